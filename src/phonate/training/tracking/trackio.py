"""Trackio: curves in a local database, or in a Space of the Hugging Face Hub (its own TRACKIO_SPACE_ID)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import MissingPackageError
from phonate.training.run import run_id
from phonate.training.tracking.stream import Sink, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview

PROJECT = "phonate"


def require() -> None:
    """Raise MissingPackageError unless Trackio is installed."""
    if importlib.util.find_spec("trackio") is None:
        raise MissingPackageError(
            "training.logging.trackio: trackio is not installed; pip install trackio, or set it to false"
        )


class Trackio(Sink):
    """Reports to Trackio, in the project TRACKIO_PROJECT (default: phonate); `trackio show` shows it.

    Trackio knows runs by their names, so the name of the run's folder is followed by the run's id, and a resumed run
    goes on with its own.

    Args:
        run_path: The run's folder.
        names: Mapping from metric names to displayed names.
        hyperparameters: The recipe, shown with the curves.
    """

    def __init__(self, run_path: Path, names: Mapping[str, str], hyperparameters: Mapping[str, Any]) -> None:
        require()
        self._trackio: Any = importlib.import_module("trackio")
        self.names = names
        with contextlib.redirect_stdout(io.StringIO()):  # it prints how to look at the curves
            self.run: Any = self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
                name=f"{run_path.resolve().name}-{run_id(run_path)[:6]}",
                config=dict(hyperparameters),
                resume="allow",
            )

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Report scalars."""
        shown: dict[str, Any] = {tag(self.names, split, name): value for name, value in values.items()}
        self.run.log(shown if epoch is None else {**shown, "epoch": epoch}, step=step)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Report audio and images."""
        import numpy as np

        from phonate.training.task import Sound
        from phonate.training.tracking.tensorboard import grey

        shown: dict[str, Any] = {}
        for name, preview in previews.items():
            if isinstance(preview, Sound):
                shown[name] = self._trackio.Audio(np.asarray(preview.waveform), sample_rate=preview.sample_rate)
            else:
                shown[name] = self._trackio.Image(np.repeat(grey(preview.values)[..., None], 3, axis=-1))
        self.run.log(shown, step=step)

    def close(self) -> None:
        """Finish the run."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()
