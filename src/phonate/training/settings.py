"""Settings of training: the recipe's `training` part. Steps are optimizer steps everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from phonate.config.errors import InputError
from phonate.config.registry import Named
from phonate.config.settings import Settings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]


def _interval(value: Any) -> Any:
    """`5 epochs`, `1 epoch` and `500 steps` in their plain form; integers as they are."""
    wanted = "an interval is a number of optimizer steps (500) or of epochs ('5 epochs'), at least 1"
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if not number.isdigit() or int(number) < 1:
            raise ValueError(wanted)
        if unit.strip() in {"epoch", "epochs"}:
            return f"{int(number)} epochs"
        if unit.strip() in {"", "step", "steps"}:
            return int(number)
        raise ValueError(wanted)
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise ValueError(wanted)
    return value


Interval = Annotated[PositiveInt | Annotated[str, Field(pattern=r"^[1-9]\d* epochs$")], BeforeValidator(_interval)]
"""Every so many optimizer steps (500) or epochs ("5 epochs")."""


class OptimizerSettings(Settings):
    """Which optimizer, and its numbers. A number that the chosen optimizer does not have is refused."""

    type: Annotated[str, Named("phonate.training.optimizers:OPTIMIZERS")] = "adamw"
    """adamw, adam, adamax, sgd, lion, adagrad, rmsprop or adadelta."""
    lr: NonNegativeFloat = 1e-4
    """Peak learning rate, reached after warm-up."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled for adamw and lion; added to the gradient for the others."""
    betas: tuple[OpenFraction, OpenFraction] | None = None
    """Decay of the running averages. Null: the optimizer's own, (0.9, 0.999), for lion (0.9, 0.99)."""
    epsilon: PositiveFloat | None = None
    """Added to the denominator. Null: the optimizer's own."""
    amsgrad: bool = False
    """Keep the maximum of the second moment (adam, adamw)."""
    momentum: OpenFraction | None = None
    """Momentum of sgd (null: 0.9) and rmsprop (null: 0)."""
    nesterov: bool = False
    """Nesterov momentum (sgd)."""
    rho: OpenFraction | None = None
    """Decay of the squared average: adadelta (null: 0.9) and rmsprop's alpha (null: 0.99)."""


class SchedulerSettings(Settings):
    """How the learning rate moves. All but plateau are pure functions of the optimizer step.

    A number that the chosen schedule does not have is refused.
    """

    type: Annotated[str, Named("phonate.training.schedules:SCHEDULES")] = "cosine"
    """cosine, cosine_restarts, linear, exponential, step, plateau, onecycle or constant."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear rise from 0 to the peak; every type has it."""
    min_lr: NonNegativeFloat = 0.0
    """The learning rate never falls under this."""
    max_lr: PositiveFloat | None = None
    """The peak, for every type. Null: `optimizer.lr`."""
    decay_steps: PositiveInt | None = None
    """Steps from the end of warm-up to the minimum (both cosines, linear, onecycle). Null: the rest of the run."""
    num_cycles: PositiveInt = 1
    """Restarts: how many equal cycles fit into the decay (cosine_restarts with `cycle_mult` 1 and no `cycle_steps`)."""
    cycle_steps: Interval | None = None
    """Length of the first cycle of cosine_restarts (T_0), in steps or epochs. Null: the decay over `num_cycles`."""
    cycle_mult: PositiveInt = 1
    """Each cycle of cosine_restarts is this many times as long as the one before (T_mult)."""
    step_size: Interval = 1000
    """Interval at which `step` and `exponential` multiply the rate by `gamma`."""
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Factor of exponential (null: 0.95), step and plateau (null: 0.1)."""
    patience: NonNegativeInt = 5
    """Validations without improvement that plateau waits before it multiplies the rate by `gamma`."""
    mode: Literal["min", "max"] = "min"
    """Whether plateau's metric is better when lower or higher."""
    metric: str = "val_loss"
    """What plateau watches."""


LossName = Named("phonate.training.losses.names:LOSSES")


class LossSettings(Settings):
    """The loss, for tasks whose loss is chosen by the recipe, and the weights of its terms, for all."""

    main: Annotated[str | None, LossName] = None
    """Registered loss. Null: the task's own."""
    label_smoothing: OpenFraction = 0.0
    """Smoothing of class targets (cross_entropy, nll, bce, bce_with_logits)."""
    reduction: Literal["mean", "sum"] = "mean"
    """mean: over all frames of the step; sum: each item's sum, averaged over the items."""
    auxiliary: Annotated[dict[str, NonNegativeFloat], LossName] = Field(default_factory=dict)
    """Further registered losses and their weights, such as {norm_reg: 0.1}."""
    weights: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Weights of the task's loss terms, over the task's own."""
    focal_alpha: Fraction | None = 0.25
    """Class balance of the focal loss; null for none."""
    focal_gamma: NonNegativeFloat = 2.0
    """How much the focal loss, main or auxiliary, plays down easy examples."""


def require_own_loss(settings: LossSettings, task: str) -> None:
    """For a task whose loss can't be chosen: raise InputError naming an option that would change nothing."""
    unset = LossSettings()
    for name in type(settings).model_fields:
        if name != "weights" and getattr(settings, name) != getattr(unset, name):
            raise InputError(
                f"training.loss.{name}: has no effect, the task {task} has a loss of its own; leave it out, or weigh "
                "its terms by training.loss.weights"
            )


class ValidationSettings(Settings):
    """When and how the model is validated."""

    interval: Interval = "1 epochs"
    """Optimizer steps or epochs between validations."""
    batch_size: PositiveInt | None = None
    """Items a batch. Null: as in training."""
    metric_for_best_model: str = "val_loss"
    """What chooses the best checkpoint: val_loss, val_<term>, or a metric of the task's evaluation."""
    greater_is_better: bool = False
    """Whether that metric is better when higher."""
    previews: bool = True
    """Write the task's sounds and pictures to the trackers after each validation."""


class EarlyStoppingSettings(Settings):
    """Stop when a metric no longer improves."""

    patience: PositiveInt = 10
    """Validations without improvement before training stops."""
    metric: str = "val_loss"
    """What is watched."""
    min_delta: NonNegativeFloat = 1e-6
    """Smaller improvements do not count."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher is better."""
    restore_best_weights: bool = True
    """End with the weights of the best validation instead of the last."""


class LoggingSettings(Settings):
    """Where metrics go."""

    interval: PositiveInt = 50
    """Optimizer steps between lines of training metrics."""
    tensorboard: bool = True
    """Write TensorBoard events to RUN/events."""
    wandb: bool = False
    """Report to Weights & Biases (needs phonate[wandb])."""
    wandb_interval: PositiveInt = 10
    """Optimizer steps between lines where W&B is on; they go to every tracker, beside those of `interval`."""
    wandb_project: str = "phonate"
    """W&B project."""
    wandb_entity: str | None = None
    """W&B team or user. Null: your default."""
    wandb_name: str | None = None
    """W&B run name. Null: the run folder's name."""
    wandb_tags: tuple[str, ...] = ()
    """W&B tags."""
    log_metrics: tuple[str, ...] | None = None
    """Only these metrics go to the console and the trackers; metrics.jsonl keeps all. Null: all."""
    log_model: bool = False
    """Upload checkpoints to W&B as artifacts."""
    log_gradients: bool = False
    """Report the gradient norm of each top-level module."""
    system: bool = True
    """Report memory, processor and GPU use beside the training metrics."""
    verbosity: Literal["quiet", "normal", "debug"] = "normal"
    """What the console shows: only warnings and the end, progress and metrics, or everything."""

    def due(self, step: int) -> bool:
        """Whether a line of training metrics is due after `step` optimizer steps."""
        return step % self.interval == 0 or (self.wandb and step % self.wandb_interval == 0)


class PerformanceSettings(Settings):
    """How the machine is used."""

    num_workers: NonNegativeInt | Literal["auto"] = "auto"
    """Loader processes. auto: none when the samples are cached, else up to 4 of the spare cores."""
    pin_memory: bool | Literal["auto"] = "auto"
    """Page-locked batches for faster copies to a GPU. auto: on CUDA."""
    prefetch_factor: PositiveInt = 2
    """Batches that each worker prepares ahead."""
    persistent_workers: bool = True
    """Keep the workers from one epoch to the next."""
    compile_model: bool = False
    """torch.compile the model."""
    batch_shim: bool = False
    """Pad each batch up to a multiple of 64 frames, so that few shapes occur (for compile_model and CUDA)."""
    threads: PositiveInt | None = None
    """Threads torch computes with. Null: torch's choice."""
    memory_management: bool = True
    """Look at free memory at every batch, and clean up under pressure. Costs under 1 % of the time."""
    profile_batches: PositiveInt | None = None
    """Time data, forward, backward, optimizer step and the gaps between over so many optimizer steps, and say what
    holds training up (in the log and in RUN/profile). Costs under 1 % of the time. Null: not."""


class DistributedSettings(Settings):
    """Training over several processes, started by torchrun or accelerate launch."""

    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """auto: nccl on CUDA, else gloo."""
    world_size: PositiveInt | None = None
    """How many processes the recipe expects. Null: any. Another number than the launcher's is an error."""
    sync_gradient_barrier: bool = False
    """Wait for all ranks before each optimizer step (to find the slow one)."""
    find_unused_parameters: bool = False
    """Allow parameters without gradient in a step (DDP). Tasks with several phases set it themselves."""
    gradient_as_bucket_view: bool = True
    """Let gradients be views of DDP's buckets: one copy less."""
    static_graph: bool = False
    """Tell DDP that the same parameters are used in every step."""
    timeout_minutes: PositiveFloat = 10.0
    """How long a rank waits for the others before it gives up."""


class EMASettings(Settings):
    """Exponential moving average of the weights (Polyak & Juditsky 1992)."""

    decay: OpenFraction = 0.999
    """Share of the old average kept in a step."""
    warmup: bool = True
    """Start with a smaller decay, min(decay, (1 + step) / (10 + step)), so that early weights are forgotten."""
    validate_with: Literal["ema", "raw", "better"] = "ema"
    """Which weights are validated, and so chosen as best; better: both, and the better one is reported."""


class CallbackSettings(Settings):
    """A callback by its registered name, with its options."""

    type: Annotated[str, Named("phonate.training.callbacks:CALLBACKS")]
    """lr_monitor, feature_redraw, gradient_clipping, early_stopping, freeze_layers, pruning, dynamic_lr or your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of its constructor."""


class CheckpointConfig(Settings):
    """When checkpoints are saved, what they hold and how many are kept."""

    save_dir: str = "checkpoints"
    """Folder, relative to the run or absolute. No two runs can have the same."""
    interval: Interval = "1 epochs"
    """Optimizer steps or epochs between saves. The last step is always saved."""
    save_total_limit: PositiveInt = 5
    """How many to keep besides the best one."""
    save_best_only: bool = False
    """Save only when the monitored metric improved (and at the end or an interruption, to resume from)."""
    monitor_metric: str | None = None
    """Metric that chooses the best checkpoint. Null: `validation.metric_for_best_model`."""
    resume: str | None = None
    """auto, a run or a checkpoint to resume from, as with `--resume`."""
    backup_dir: str | None = None
    """Folder for a copy of each new best checkpoint, relative to the run or absolute. In a folder outside the run (on
    another disk, say) each run has its own subfolder."""
    max_backups: PositiveInt = 3
    """How many backups to keep."""
    compress: bool = False
    """Compress the tensors (zlib); smaller and slower."""
    verify_integrity: bool = True
    """Compare the SHA-256 of every file before it is loaded."""
    snapshot_optimizer: bool = True
    """Save the optimizer's state; without it a run can't be resumed, only used."""
    snapshot_scheduler: bool = True
    """Save the schedule's state; without it a plateau schedule starts over after a resume."""
    snapshot_features: bool = True
    """Save redrawn random features (Performer matrices) with the weights; without it they are drawn anew."""
    snapshot_random_states: bool = True
    """Save the states of Python's, numpy's and torch's global generators."""
    save_model_architecture: bool = True
    """Write the model's printed structure beside the weights."""
    versioning: bool = True
    """Number the checkpoints of a run (v1, v2, ...) and keep the list in checkpoint_history.json."""
    track_git_info: bool = True
    """Record git commit, branch and whether tracked files were changed."""
    track_system_info: bool = True
    """Record host name, platform and versions."""
    track_model_hash: bool = True
    """Record a SHA-256 over the weights."""


class TrainingSettings(Settings):
    """The recipe's `training` part."""

    epochs: PositiveInt = 100
    """Passes over the training samples."""
    max_steps: PositiveInt | None = None
    """Optimizer steps; where given it decides the length of the run instead of `epochs`."""
    batch_size: PositiveInt = 32
    """Items of a forward pass, over all ranks together; `max_duration` and `max_length` take its place."""
    max_duration: PositiveFloat | None = None
    """Seconds of audio that a batch may hold, padding counted; batches are then made of clips of like length."""
    max_length: PositiveInt | None = None
    """The same for data sets that are not measured in seconds, in their own unit: tokens of text."""
    random_seed: NonNegativeInt = 42
    """Seed of everything random: initial weights, order, augmentation, dropout."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """Which optimizer."""
    scheduler: SchedulerSettings = SchedulerSettings()
    """How the learning rate moves."""
    gradient_clipping: PositiveFloat | None = 1.0
    """Largest norm of the gradient; larger ones are scaled down. Null: no clipping."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes summed into one optimizer step."""
    mixed_precision: Literal["auto", "fp32", "fp16", "bf16"] | bool = "auto"
    """auto (or true): bf16 or fp16 on a GPU that has it, else fp32; false is fp32."""
    amp_loss_scale: PositiveFloat | None = None
    """Fixed loss scale for fp16. Null: dynamic."""
    amp_init_scale: PositiveFloat = 65536.0
    """Initial dynamic loss scale for fp16."""
    amp_growth_factor: Annotated[float, Field(gt=1.0)] = 2.0
    """Factor by which the dynamic loss scale grows."""
    amp_backoff_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Factor by which the dynamic loss scale shrinks after an overflow."""
    amp_growth_interval: PositiveInt = 2000
    """Steps without overflow after which the dynamic loss scale grows."""
    loss: LossSettings = LossSettings()
    """Which loss, and the weights of its terms."""
    validation: ValidationSettings = ValidationSettings()
    """When the model is validated."""
    early_stopping: EarlyStoppingSettings | None = None
    """When training stops before its end. Null: never."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are saved."""
    logging: LoggingSettings = LoggingSettings()
    """Where metrics go."""
    performance: PerformanceSettings = PerformanceSettings()
    """How the machine is used."""
    distributed: DistributedSettings = DistributedSettings()
    """Several processes."""
    ema: EMASettings | None = None
    """Average the weights. Null: no average."""
    callbacks: tuple[CallbackSettings, ...] = ()
    """Callbacks, in order."""
    feature_redraw_interval: PositiveInt | None = None
    """Steps between redraws of random features (models with `redraw_features()`). Null: never."""
    fixed_projection: bool = False
    """Keep the first random features for the whole run, whatever the interval."""
    init_from: str | None = None
    """A run or checkpoint whose weights this run starts from."""
    profiling: bool = False
    """Record a torch profiler trace of a few steps to RUN/profile."""
    device: str | None = None
    """cpu, cuda:0 or mps. Null: the first GPU with enough free memory, else the CPU."""

    @property
    def grad_scaler(self) -> dict[str, Any]:
        """The arguments of the dynamic loss scaler."""
        return {
            "init_scale": self.amp_init_scale,
            "growth_factor": self.amp_growth_factor,
            "backoff_factor": self.amp_backoff_factor,
            "growth_interval": self.amp_growth_interval,
        }

    @property
    def best_metric(self) -> str:
        """What makes a checkpoint the best."""
        return self.checkpoint.monitor_metric or self.validation.metric_for_best_model

    def restore_conflict(self, metric: str, mode: str) -> str | None:
        """Why an early stopping that watches `metric` can't end with the best weights. None: it can.

        There is one best checkpoint in a run, and it is chosen by `best_metric`.
        """
        best, best_mode = self.best_metric, "max" if self.validation.greater_is_better else "min"
        if metric.removeprefix("val_") != best.removeprefix("val_"):
            chooser = (
                "checkpoint.monitor_metric" if self.checkpoint.monitor_metric else "validation.metric_for_best_model"
            )
            return (
                f"early_stopping watches {metric}, but the best checkpoint, whose weights it restores, is chosen by "
                f"{best}; set training.{chooser}={metric}, or restore_best_weights to false"
            )
        if mode != best_mode:
            return (
                f"early_stopping has mode {mode}, but the best checkpoint, whose weights it restores, is that with the "
                f"{best_mode}imum of {best}; set training.validation.greater_is_better={str(mode == 'max').lower()}, "
                "or restore_best_weights to false"
            )
        return None

    @model_validator(mode="after")
    def _one_cap(self) -> Self:
        if self.max_duration is not None and self.max_length is not None:
            raise ValueError("max_duration and max_length both limit batches; drop one")
        return self

    @model_validator(mode="after")
    def _callbacks_agree(self) -> Self:
        stopping = [{**entry.options} for entry in self.callbacks if entry.type == "early_stopping"]
        if self.early_stopping is not None:
            stopping.append(self.early_stopping.model_dump())
        for options in stopping:
            conflict = self.restore_conflict(str(options.get("metric", "val_loss")), str(options.get("mode", "min")))
            if conflict and options.get("restore_best_weights", True) and options.get("mode", "min") in {"min", "max"}:
                raise ValueError(conflict)
        if self.fixed_projection and any(entry.type == "feature_redraw" for entry in self.callbacks):
            raise ValueError("fixed_projection keeps the features that the callback feature_redraw redraws; drop one")
        return self
