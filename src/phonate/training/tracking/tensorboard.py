"""RUN/events for TensorBoard, and RUN/previews: the latest sounds and images as files."""

from __future__ import annotations

import importlib.util
import os
import socket
import struct
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phonate.config.errors import MissingPackageError, TrainingError
from phonate.training.tracking.stream import Sink, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview


# -------------------------------------------------------------------------- RUN/events for TensorBoard


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


# ------------------------------------- RUN/previews: the latest audio and images of the task, as files


class PreviewFolder(Sink):
    """Writes each preview to `folder` as FLAC or PNG, replacing that of the previous validation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""
        from phonate.audio.decoding import write_audio
        from phonate.training.task import Sound

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, preview in previews.items():
                target = self.folder / name.replace("/", "-")
                if isinstance(preview, Sound):
                    write_audio(target.with_name(target.name + ".flac"), preview.waveform, preview.sample_rate)
                else:
                    target.with_name(target.name + ".png").write_bytes(png(grey(preview.values)))
        except OSError as error:
            raise TrainingError(
                f"{self.folder}: can't write previews: {error.strerror}; fix this, then --resume; or set "
                "training.validation.previews=false"
            ) from error


def grey(values: Any) -> Any:
    """A (height, width) array scaled to bytes, 0 darkest, with low frequencies at the bottom."""
    import numpy as np

    low, high = float(np.min(values)), float(np.max(values))
    return (255 * (values[::-1] - low) / max(high - low, 1e-12)).astype(np.uint8)


def png(pixels_HW: Any, palette: Any = None) -> bytes:
    """A (height, width) array of bytes as a PNG file: shades of grey, or numbers in `palette` (256, 3)."""
    height, width = pixels_HW.shape
    colour_type = 0 if palette is None else 3
    rows = b"".join(b"\0" + row.tobytes() for row in pixels_HW)  # each begins with its filter: none
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0))]
    chunks += [] if palette is None else [(b"PLTE", palette.tobytes())]
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
