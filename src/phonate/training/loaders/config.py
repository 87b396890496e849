"""`TrainingConfig`: the settings of `VoiceTrainer` as one flat object. Imports no torch."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings
from phonate.training.settings import (
    CheckpointConfig,
    EarlyStoppingSettings,
    LoggingSettings,
    OptimizerSettings,
    PerformanceSettings,
    SchedulerSettings,
    TrainingSettings,
    ValidationSettings,
)


class TrainingConfig(Settings):
    """Flat settings for `VoiceTrainer`. `settings()` gives the typed ones that recipes use."""

    batch_size: PositiveInt = 32
    """Items a batch, for the log; the loaders decide."""
    learning_rate: NonNegativeFloat = 1e-4
    """Peak learning rate."""
    num_epochs: PositiveInt = 100
    """Passes over the training loader."""
    gradient_clip: PositiveFloat | None = 1.0
    """Largest gradient norm."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay."""
    loss_type: str = "mse"
    """A registered loss, or reconstruction, perceptual, stft."""
    loss_weights: dict[str, NonNegativeFloat] = Field(default_factory=lambda: {"reconstruction": 1.0})
    """Weights of the loss terms."""
    optimizer_type: str = "adamw"
    """A registered optimizer."""
    optimizer_params: dict[str, Any] = Field(default_factory=dict)
    """Further optimizer settings."""
    scheduler_type: str = "cosine"
    """A registered schedule."""
    scheduler_params: dict[str, Any] = Field(default_factory=dict)
    """Further schedule settings."""
    warmup_steps: NonNegativeInt = 1000
    """Optimizer steps of warm-up; at most a tenth of the run is used. onecycle has its own and takes none but what is
    set here."""
    use_amp: bool = True
    """16-bit forward pass where the device has it."""
    distributed: bool = False
    """Train over the processes that torchrun started; without a launcher a warning, and one process."""
    local_rank: NonNegativeInt = 0
    """Which GPU of this machine."""
    world_size: PositiveInt = 1
    """Expected number of processes (checked where `distributed`)."""
    log_interval: PositiveInt = 100
    """Steps between log lines."""
    save_interval: PositiveInt = 1000
    """Steps between checkpoints."""
    validate_interval: PositiveInt = 500
    """Steps between validations."""
    max_checkpoints: PositiveInt = 5
    """Checkpoints kept."""
    early_stopping_patience: PositiveInt | None = 10
    """Validations without improvement before the end; null: never."""
    early_stopping_min_delta: NonNegativeFloat = 1e-6
    """Smaller improvements do not count."""
    gradient_accumulation_steps: PositiveInt = 1
    """Batches in one optimizer step."""
    compile_model: bool = False
    """torch.compile the model."""
    seed: NonNegativeInt = 42
    """Seed of everything random."""
    output_dir: str = "runs"
    """Where runs are written: OUTPUT_DIR/experiment_name."""
    verbosity: Literal["quiet", "normal", "debug"] = "normal"
    """What the console shows."""
    use_wandb: bool = False
    """Report to Weights & Biases (needs phonate[wandb])."""
    wandb_project: str = "phonate"
    """W&B project."""

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if not self.distributed and (self.local_rank, self.world_size) != (0, 1):
            name = "world_size" if self.world_size != 1 else "local_rank"
            raise ValueError(f"{name} has no effect without distributed=True; set that, or leave {name} out")
        if self.loss_type != "mse" and "reconstruction" not in self.loss_weights:
            raise ValueError(
                f"loss_type={self.loss_type} has no effect, as loss_weights has no term reconstruction; add it, or "
                "leave loss_type out"
            )
        return self

    def settings(self, total_steps: int, validated: bool = True) -> TrainingSettings:
        """The typed settings, as in a recipe's `training` part.

        Args:
            total_steps: optimizer steps of the run.
            validated: whether there is a validation loader; without one the default patience is left out.
        """
        early = None
        asked = validated or "early_stopping_patience" in self.model_fields_set
        if self.early_stopping_patience is not None and asked:
            early = EarlyStoppingSettings(
                patience=self.early_stopping_patience, min_delta=self.early_stopping_min_delta
            )
        return TrainingSettings(
            epochs=self.num_epochs,
            batch_size=self.batch_size,
            random_seed=self.seed,
            optimizer=OptimizerSettings(
                type=self.optimizer_type,
                lr=self.learning_rate,
                weight_decay=self.weight_decay,
                **self.optimizer_params,
            ),
            scheduler=SchedulerSettings(
                type=self.scheduler_type,
                warmup_steps=self._warmup(total_steps),
                **self.scheduler_params,
            ),
            gradient_clipping=self.gradient_clip,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            mixed_precision="auto" if self.use_amp else "fp32",
            validation=ValidationSettings(interval=self.validate_interval),
            early_stopping=early,
            checkpoint=CheckpointConfig(interval=self.save_interval, save_total_limit=self.max_checkpoints),
            logging=LoggingSettings(
                interval=self.log_interval,
                verbosity=self.verbosity,
                wandb=self.use_wandb,
                wandb_project=self.wandb_project,
            ),
            performance=PerformanceSettings(compile_model=self.compile_model),
        )

    def _warmup(self, total_steps: int) -> int:
        if self.scheduler_type == "onecycle" and "warmup_steps" not in self.model_fields_set:
            return 0
        return min(self.warmup_steps, total_steps // 10)


def get_default_training_config() -> TrainingConfig:
    """The defaults."""
    return TrainingConfig()
