"""Weights & Biases.

accelerate's tracker would add nothing: it also calls `wandb.init` and `log`, and importing it takes seconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import InputError, MissingPackageError
from phonate.config.randomness import derived_seed
from phonate.training.run import run_id
from phonate.training.settings import LoggingSettings
from phonate.training.tracking.stream import Sink, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview


class TrackerError(InputError):
    """A tracker enabled in the recipe can't be used."""


def require() -> None:
    """Raise MissingPackageError unless wandb is installed."""
    if importlib.util.find_spec("wandb") is None:
        raise MissingPackageError(
            'training.logging.wandb: wandb is not installed; pip install "phonate[wandb]", or set it to false'
        )


class WeightsAndBiases(Sink):
    """Reports to W&B, or with WANDB_MODE=offline to RUN/wandb for a later `wandb sync`.

    The W&B run id is stored in the run folder, so that a resumed run continues its curves and a new run gets new ones.
    The step is a metric of its own, because W&B drops rows with an earlier step.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: Mapping from metric names to displayed names.
        hyperparameters: The recipe, shown with the curves.
        resumed: Whether the run was resumed.

    Raises:
        TrackerError: there is no W&B API key, or W&B can't be reached.
    """

    def __init__(
        self,
        settings: LoggingSettings,
        run_path: Path,
        names: Mapping[str, str],
        hyperparameters: Mapping[str, Any] | None = None,
        resumed: bool = False,
    ) -> None:
        require()
        self._wandb: Any = importlib.import_module("wandb")
        self.names = names
        self.log_model = settings.log_model
        self.name = settings.wandb_name or run_path.resolve().name
        # runs of earlier versions have no stored id: it was a hash of the folder
        earlier = f"{derived_seed(str(run_path.resolve())):016x}" if resumed else None
        self.run_id = run_id(run_path, default=earlier)
        try:
            self.run = self._wandb.init(
                project=settings.wandb_project,
                entity=settings.wandb_entity,
                name=self.name,
                id=self.run_id,
                tags=list(settings.wandb_tags),
                dir=str(run_path),
                config=dict(hyperparameters or {}),
                resume="allow",
            )
        except self._wandb.Error as error:
            raise _unreachable(error) from error
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Report scalars."""
        tagged: dict[str, Any] = {tag(self.names, split, name): value for name, value in values.items()}
        tagged["step"] = step
        if epoch is not None:
            tagged["epoch"] = epoch
        self.run.log(tagged)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Report audio and images."""
        from phonate.training.task import Sound
        from phonate.training.tracking.tensorboard import grey

        shown: dict[str, Any] = {"step": step}
        for name, preview in previews.items():
            if isinstance(preview, Sound):
                shown[name] = self._wandb.Audio(preview.waveform, sample_rate=preview.sample_rate)
            else:
                shown[name] = self._wandb.Image(grey(preview.values))
        self.run.log(shown)

    def artifact(self, path: Path) -> None:
        """Upload a checkpoint folder if `log_model` is set."""
        if not self.log_model:
            return
        artifact = self._wandb.Artifact(artifact_name(self.name, self.run_id), type="model")
        artifact.add_dir(str(path))
        self.run.log_artifact(artifact, aliases=[path.name, "latest"])

    def close(self) -> None:
        """Finish the W&B run."""
        self.run.finish()


def artifact_name(name: str, run_id: str) -> str:
    """Artifact name of a run's checkpoints, in the characters and length that W&B allows. The run id is added to names
    that had to be changed, to keep them unique."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    allowed = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain)[:80].strip("-.")
    if allowed != name:
        allowed = f"{allowed}-{run_id}".lstrip("-")
    return f"{allowed}-checkpoint"


def _unreachable(error: Exception) -> TrackerError:
    reason = str(error).split("\n", maxsplit=1)[0].rstrip(".")
    return TrackerError(
        f"training.logging.wandb: {reason}. Log in with `wandb login`; or set WANDB_MODE=offline in the environment to "
        "record the run in its folder for `wandb sync`; or turn it off with training.logging.wandb=false"
    )
