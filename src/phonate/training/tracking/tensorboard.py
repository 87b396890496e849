"""RUN/events for TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phonate.config.errors import MissingPackageError, TrainingError
from phonate.training.tracking.stream import Sink, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview


def enabled(setting: bool | Literal["auto"]) -> bool:
    """Whether `training.logging.tensorboard` lets events be written. Raises MissingPackageError if it is true, and
    tensorboard is not installed."""
    if not setting:
        return False
    installed = importlib.util.find_spec("tensorboard") is not None
    if setting is True and not installed:
        raise MissingPackageError(
            "training.logging.tensorboard: tensorboard is not installed; pip install 'phonate[tensorboard]', or set it "
            "to auto or false"
        )
    return installed


class EventFile:
    """An event file, written without buffering.

    If the disk is full, the thread of tensorboard's own writer dies with a traceback on the console and the caller does
    not notice.

    Args:
        folder: Folder of the file.
        purge_step: TensorBoard hides events of earlier files from this step on. None: it shows all events.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("wb", buffering=0)
        self._records = RecordWriter(self._file)
        self._event = Event
        self._add(Event(file_version="brain.Event:2"))
        if purge_step is not None:
            # Twice, because TensorBoard takes the first START that it sees for the beginning of the run.
            for _ in range(2):
                self._add(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, summary: Any, step: int) -> None:
        """Append a Summary."""
        self._add(self._event(step=step, summary=summary))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard(Sink):
    """Writes event files. TensorBoard is imported at the first metric, not at the start of the run.

    Args:
        folder: Folder of the event files.
        names: Mapping from metric names to displayed names.
        resume_step: Step of a resume; events after it from before the interruption are hidden. None: a new run.
    """

    def __init__(self, folder: Path, names: Mapping[str, str], resume_step: int | None = None) -> None:
        self.folder = folder
        self.names = names
        self._purge_step = None if resume_step is None else resume_step + 1
        self._file: EventFile | None = None

    def _add(self, summary: Any, step: int) -> None:
        try:
            if self._file is None:
                self._file = EventFile(self.folder, self._purge_step)
            self._file.add(summary, step)
        except OSError as error:
            where = self.folder if self._file is None else self._file.path
            raise TrainingError(
                f"{where}: can't write TensorBoard events: {error.strerror}; fix this, then --resume; or set "
                "training.logging.tensorboard=false"
            ) from error

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event for all scalars is much cheaper than one each.
        scalars = [
            Summary.Value(tag=tag(self.names, split, name), simple_value=value) for name, value in values.items()
        ]
        self._add(Summary(value=scalars), step)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""
        from torch.utils.tensorboard.summary import audio, image

        from phonate.training.task import Sound
        from phonate.training.tracking.previews import grey

        for name, preview in previews.items():
            if isinstance(preview, Sound):
                self._add(audio(name, preview.waveform[None], preview.sample_rate), step)  # type: ignore[no-untyped-call]
            else:
                pixels = grey(preview.values)[None]
                self._add(image(name, pixels, dataformats="CHW"), step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()
