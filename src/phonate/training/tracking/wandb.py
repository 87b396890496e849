"""Weights & Biases, where the recipe asks for it.

accelerate's tracker adds nothing here: it calls `wandb.init` and `log` too, and its import takes seconds.
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
    """A tracker that the recipe asks for can't be used as things are."""


def require() -> None:
    """Raise MissingPackageError unless wandb is installed."""
    if importlib.util.find_spec("wandb") is None:
        raise MissingPackageError(
            'training.logging.wandb: wandb is not installed; pip install "phonate[wandb]", or set it to false'
        )


class WeightsAndBiases(Sink):
    """Reports to W&B; with WANDB_MODE=offline to RUN/wandb, for `wandb sync` later.

    The id of the run is kept in its folder, so a resumed run continues the same curves and a new one never does.
    Steps are a metric of their own, because W&B drops rows whose step is not the newest.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: Our names to the names shown.
        hyperparameters: The recipe, shown beside the curves.
        resumed: Whether the run was resumed.

    Raises:
        TrackerError: W&B has no key, or can't be reached.
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
        # before ids were kept in runs, they were a hash of the folder
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
        """Report sounds and pictures."""
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
        """Upload a checkpoint's folder, when `log_model` asks for it."""
        if not self.log_model:
            return
        artifact = self._wandb.Artifact(artifact_name(self.name, self.run_id), type="model")
        artifact.add_dir(str(path))
        self.run.log_artifact(artifact, aliases=[path.name, "latest"])

    def close(self) -> None:
        """Finish the W&B run."""
        self.run.finish()


def artifact_name(name: str, run_id: str) -> str:
    """The name of a run's checkpoints, in the characters and the length that W&B allows. A name that had to be changed
    gets the run's id, so that two runs never share one."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    allowed = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain)[:80].strip("-.")
    if allowed != name:
        allowed = f"{allowed}-{run_id}".lstrip("-")
    return f"{allowed}-checkpoint"


def _unreachable(error: Exception) -> TrackerError:
    reason = str(error).split("\n", maxsplit=1)[0].rstrip(".")
    return TrackerError(
        f"training.logging.wandb: {reason}. Log in with `wandb login`; or set WANDB_MODE=offline in the environment to "
        "record the run in its folder for `wandb sync`; or leave it out with training.logging.wandb=false"
    )
