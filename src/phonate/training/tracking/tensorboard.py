"""RUN/events for TensorBoard.

accelerate's tracker would write the same events, but importing accelerate takes seconds and its tracker
knows neither sounds nor pictures nor where a resumed run went on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import MissingPackageError
from phonate.training.tracking.stream import Sink, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview


def require() -> None:
    """Raise MissingPackageError unless tensorboard is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingPackageError(
            "training.logging.tensorboard: tensorboard is not installed; pip install tensorboard, or set it to false"
        )


class TensorBoard(Sink):
    """Writes event files. TensorBoard is imported at the first metric, not when the run starts.

    Args:
        folder: Where the event files go.
        names: Our names to the names shown.
        resume_step: Events after it, written by the run before it was interrupted, are hidden. None: fresh.
    """

    def __init__(self, folder: Path, names: Mapping[str, str], resume_step: int | None = None) -> None:
        require()
        self.folder = folder
        self.names = names
        self._purge_step = None if resume_step is None else resume_step + 1
        self._writer: Any = None

    @property
    def writer(self) -> Any:
        """The SummaryWriter."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=self._purge_step, flush_secs=30)
        return self._writer

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event for all of them: a fraction of the cost of an add_scalar each.
        scalars = [
            Summary.Value(tag=tag(self.names, split, name), simple_value=value) for name, value in values.items()
        ]
        self.writer.file_writer.add_summary(Summary(value=scalars), step)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write sounds and pictures."""
        from phonate.training.task import Sound

        for name, preview in previews.items():
            if isinstance(preview, Sound):
                self.writer.add_audio(name, preview.waveform[None], step, preview.sample_rate)
            else:
                self.writer.add_image(name, grey(preview.values)[None], step)

    def close(self) -> None:
        """Write out what is queued."""
        if self._writer is not None:
            self._writer.close()


def grey(values: Any) -> Any:
    """A (height, width) array scaled to bytes, 0 darkest, with low frequencies at the bottom."""
    import numpy as np

    low, high = float(np.min(values)), float(np.max(values))
    return (255 * (values[::-1] - low) / max(high - low, 1e-12)).astype(np.uint8)
