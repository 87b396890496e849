"""Weights & Biases, where the recipe asks for it.

accelerate's tracker adds nothing here: it calls `wandb.init` and `log` too, and its import takes seconds.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import MissingPackageError
from phonate.config.randomness import derived_seed
from phonate.training.settings import LoggingSettings
from phonate.training.tracking.stream import Sink, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview


def require() -> None:
    """Raise MissingPackageError unless wandb is installed."""
    if importlib.util.find_spec("wandb") is None:
        raise MissingPackageError(
            'training.logging.wandb: it is not installed; pip install "phonate[wandb]", or set it to false'
        )


class WeightsAndBiases(Sink):
    """Reports to W&B; with WANDB_MODE=offline to RUN/wandb, for `wandb sync` later.

    The run's id follows from its folder, so a resumed run goes on in the same curves. Steps are a metric of
    their own, because W&B drops what it takes for the past.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: Our names to the names shown.
        hyperparameters: The recipe, shown beside the curves.
    """

    def __init__(
        self,
        settings: LoggingSettings,
        run_path: Path,
        names: Mapping[str, str],
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        require()
        self._wandb: Any = importlib.import_module("wandb")
        self.names = names
        self.log_model = settings.log_model
        self.name = settings.wandb_name or run_path.resolve().name
        self.run = self._wandb.init(
            project=settings.wandb_project,
            entity=settings.wandb_entity,
            name=self.name,
            id=f"{derived_seed(str(run_path.resolve())):016x}",
            tags=list(settings.wandb_tags),
            dir=str(run_path),
            config=dict(hyperparameters or {}),
            resume="allow",
        )
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
        artifact = self._wandb.Artifact(f"{self.name}-checkpoint", type="model")
        artifact.add_dir(str(path))
        self.run.log_artifact(artifact, aliases=[path.name, "latest"])

    def close(self) -> None:
        """Finish the W&B run."""
        self.run.finish()
