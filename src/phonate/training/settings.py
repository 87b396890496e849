"""Settings of training: the recipe's `training` part, and `TrainingConfig`, those of `VoiceTrainer`. Imports no torch.

Steps are optimizer steps everywhere.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from phonate.compute.resources import CompileModel
from phonate.config.errors import InputError
from phonate.config.metrics import NEWEST, plain
from phonate.config.registry import Named
from phonate.config.settings import Settings

# -------------- Settings of the optimizer, its schedule and the loss: parts of the recipe's `training`

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]


def _interval(value: Any) -> Any:
    """Normalise `5 epochs`, `1 epoch` and `500 steps`; integers are unchanged."""
    expected = "an interval is a number of optimizer steps (500) or of epochs ('5 epochs'), at least 1"
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if not number.isdigit() or int(number) < 1:
            raise ValueError(expected)
        if unit.strip() in {"epoch", "epochs"}:
            return f"{int(number)} epochs"
        if unit.strip() in {"", "step", "steps"}:
            return int(number)
        raise ValueError(expected)
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise ValueError(expected)
    return value


Interval = Annotated[PositiveInt | Annotated[str, Field(pattern=r"^[1-9]\d* epochs$")], BeforeValidator(_interval)]
"""A number of optimizer steps (500) or epochs ("5 epochs")."""


class OptimizerSettings(Settings):
    """Optimizer and its hyperparameters. Options that the chosen optimizer does not support are rejected."""

    type: Annotated[str, Named("phonate.training.registries:OPTIMIZERS")] = "adamw"
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
    """Use the AMSGrad variant (adam, adamw)."""
    momentum: OpenFraction | None = None
    """Momentum of sgd (null: 0.9) and rmsprop (null: 0)."""
    nesterov: bool = False
    """Nesterov momentum (sgd)."""
    rho: OpenFraction | None = None
    """Decay of the squared average: adadelta (null: 0.9) and rmsprop's alpha (null: 0.99)."""


class SchedulerSettings(Settings):
    """Learning rate schedule. All types but plateau are pure functions of the optimizer step.

    Options that the chosen schedule does not support are rejected.
    """

    type: Annotated[str, Named("phonate.training.registries:SCHEDULES")] = "cosine"
    """cosine, cosine_restarts, linear, exponential, step, plateau, onecycle or constant."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up from 0 to the peak, for every type."""
    min_lr: NonNegativeFloat = 0.0
    """Lower bound of the learning rate."""
    max_lr: PositiveFloat | None = None
    """Peak learning rate, for every type. Null: `optimizer.lr`."""
    decay_steps: PositiveInt | None = None
    """Steps from the end of warm-up to the minimum (both cosines, linear, onecycle). Null: the rest of the run."""
    num_cycles: PositiveInt = 1
    """Number of equal cycles in the decay (cosine_restarts with `cycle_mult` 1 and no `cycle_steps`)."""
    cycle_steps: Interval | None = None
    """Length of the first cycle of cosine_restarts (T_0), in steps or epochs. Null: the decay over `num_cycles`."""
    cycle_mult: PositiveInt = 1
    """Factor by which each cycle of cosine_restarts is longer than the one before (T_mult)."""
    step_size: Interval | None = None
    """Interval at which `step` and `exponential` multiply the rate by `gamma`. Null: 1000; with `gamma` null too,
    exponential falls to 1 % of the peak by the end of the run, however long that is."""
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Factor of exponential (null: 0.95, with a `step_size`), step and plateau (null: 0.1)."""
    patience: NonNegativeInt = 5
    """Validations without improvement before plateau multiplies the rate by `gamma`."""
    mode: Literal["min", "max"] | None = None
    """Whether a lower (min) or higher (max) value of plateau's metric is better. Null: as the task declares; losses
    are better when lower."""
    metric: str = "val_loss"
    """The metric that plateau monitors."""


LossName = Named("phonate.training.registries:LOSSES")


class LossSettings(Settings):
    """The loss, for tasks that let the recipe choose it, and the weights of the loss terms, for all tasks."""

    main: Annotated[str | None, LossName] = None
    """Name of a registered loss. Null: the task's own."""
    label_smoothing: OpenFraction = 0.0
    """Smoothing of class targets (cross_entropy, nll, bce, bce_with_logits)."""
    reduction: Literal["mean", "sum"] = "mean"
    """mean: over all frames of the step; sum: each item's sum, averaged over the items."""
    auxiliary: Annotated[dict[str, NonNegativeFloat], LossName] = Field(default_factory=dict)
    """Additional registered losses and their weights, such as {norm_reg: 0.1}."""
    weights: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Weights of the task's loss terms, overriding its defaults."""
    focal_alpha: Fraction | None = 0.25
    """Class balance of the focal loss; null for none."""
    focal_gamma: NonNegativeFloat = 2.0
    """Focusing parameter of the focal loss, main or auxiliary."""

    def is_only(self, main: str, *, smoothed: bool = False) -> bool:
        """Whether it is the loss called `main` alone, the task's own; with `smoothed` also with smoothed labels."""
        return self.main in (None, main) and not self.auxiliary and (smoothed or not self.label_smoothing)


def require_own_loss(settings: LossSettings, task: str) -> None:
    """Raise InputError for loss options that have no effect, for tasks whose loss can't be chosen."""
    unset = LossSettings()
    for name in type(settings).model_fields:
        if name != "weights" and getattr(settings, name) != getattr(unset, name):
            raise InputError(
                f"training.loss.{name}: has no effect, because the task {task} has a fixed loss; remove it, or "
                "weight its terms with training.loss.weights"
            )


# ------------------------------------------------------------------- Settings of hyperparameter search

Choice = bool | int | float | str | None | list[Any] | dict[str, Any]


class RangeSettings(Settings):
    """A range of numbers. If all its options are integers, so are the values."""

    low: int | float
    """Lowest value."""
    high: int | float
    """Highest value, included."""
    log: bool = False
    """Sample on a logarithmic scale, for example for learning rates."""
    step: PositiveInt | PositiveFloat | None = None
    """The values are low, low + step, low + 2 step, ... Null: any number, or any integer."""

    @property
    def whole(self) -> bool:
        """Whether the values are integers."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    @property
    def grid(self) -> list[int | float]:
        """The values of a range with a step."""
        assert self.step is not None
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return [self.low + self.step * number for number in range(count)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low:g} must be above 0 for log")
        if self.log and self.step is not None:
            raise ValueError("log and step can't be combined; leave one out")
        return self


class TuningSettings(Settings):
    """Hyperparameter search. With a `library`, `phonate train` trains `n_trials` runs in RUN/trials instead of one."""

    library: Literal["optuna", "raytune"] | None = None
    """The search library: optuna (needs phonate[tuning]) or raytune (needs phonate[raytune]). Null: no search."""
    search_space: dict[str, Annotated[list[Choice], Field(min_length=1)] | RangeSettings] = Field(default_factory=dict)
    """Path of an option, such as training.optimizer.lr -> list of its values, or a range {low, high, log, step}."""
    n_trials: PositiveInt = 20
    """Number of runs, including those stopped early."""
    metric: str = "val_loss"
    """The validation metric to optimise; the best value of each run counts."""
    direction: Literal["minimize", "maximize"] | None = None
    """Whether lower or higher is better. Null: as the task declares; losses are better when lower."""
    pruning: bool = True
    """Stop a run when its metric is worse than the median of earlier runs at the same step (from the 6th run on)."""

    @model_validator(mode="after")
    def _has_something_to_search(self) -> Self:
        if self.library is not None and not self.search_space:
            raise ValueError("search_space is empty; add options with their values or ranges")
        own = [path for path in self.search_space if path.startswith("training.tuning")]
        if own:
            raise ValueError(f"search_space: {own[0]} is an option of the search itself")
        return self


# ----------------------- Settings of the trainer's parts, and of the whole `training` part of a recipe


class ValidationSettings(Settings):
    """Validation."""

    interval: Interval = "1 epochs"
    """Optimizer steps or epochs between validations."""
    batch_size: PositiveInt | None = None
    """Items per batch. Null: as in training."""
    metric_for_best_model: str = "val_loss"
    """The metric that selects the best checkpoint: val_loss, val_<term>, or a metric of the task's evaluation; step
    selects the newest one, where no metric tells (an adversarial loss, say)."""
    greater_is_better: bool | None = None
    """Whether higher values of that metric are better. Null: as the task declares; losses are better when lower."""
    previews: bool = True
    """Send the task's audio and images to the trackers after each validation."""


class EarlyStoppingSettings(Settings):
    """Early stopping."""

    patience: PositiveInt = 10
    """Validations without improvement before training stops."""
    metric: str = "val_loss"
    """The monitored metric."""
    min_delta: NonNegativeFloat = 1e-6
    """Smallest change that counts as an improvement."""
    mode: Literal["min", "max"] | None = None
    """Whether lower (min) or higher (max) is better. Null: as the task declares; losses are better when lower."""
    restore_best_weights: bool = True
    """Restore the weights of the best validation at the end."""


class LoggingSettings(Settings):
    """Logging and experiment tracking."""

    interval: PositiveInt = 50
    """Optimizer steps between reports of training metrics."""
    tensorboard: bool | Literal["auto"] = "auto"
    """Write TensorBoard events to RUN/events. auto: where tensorboard is installed (phonate[tensorboard])."""
    wandb: bool = False
    """Report to Weights & Biases (needs phonate[wandb])."""
    wandb_interval: PositiveInt = 10
    """Optimizer steps between reports while W&B is on; they go to all trackers, in addition to those of `interval`."""
    wandb_project: str = "phonate"
    """W&B project."""
    wandb_entity: str | None = None
    """W&B team or user. Null: the account's default."""
    wandb_name: str | None = None
    """W&B run name. Null: the run folder's name."""
    wandb_tags: tuple[str, ...] = ()
    """W&B tags."""
    mlflow: bool = False
    """Report to MLflow (pip install mlflow), at the address MLFLOW_TRACKING_URI."""
    trackio: bool = False
    """Report to Trackio (pip install trackio)."""
    log_metrics: tuple[str, ...] | None = None
    """Show only these metrics in the console and the trackers; metrics.jsonl has all. Names or wildcards: `loss` is
    that of training and validation, `val_loss` that of validation alone. Null: all."""
    log_model: bool = False
    """Upload checkpoints to W&B and MLflow."""
    log_gradients: bool = False
    """Report the gradient norm of each top-level module."""
    system: bool = True
    """Report memory, CPU and GPU utilisation with the training metrics."""
    verbosity: Literal["quiet", "normal", "debug"] = "normal"
    """Console output: warnings and the result (quiet), progress and metrics (normal), or everything (debug)."""

    def due(self, step: int) -> bool:
        """Whether a line of training metrics is due after `step` optimizer steps."""
        return step % self.interval == 0 or (self.wandb and step % self.wandb_interval == 0)


class PerformanceSettings(Settings):
    """Data loading and performance."""

    refused_keys: ClassVar = {
        "enable_cpu_offload": "weights are not moved to the CPU; for less memory lower training.batch_size, or hold "
        "frozen weights in 4 bits (model.quantization, for adapters)",
        "max_memory_usage": "there is no share to set: all free memory may be used, and a batch that does not fit is "
        "computed in halves; leave it out",
        "use_flash_attention": "attention is torch's scaled_dot_product_attention, which takes the fastest kernel that "
        "the device has; leave it out",
    }

    num_workers: NonNegativeInt | Literal["auto"] = "auto"
    """Loader processes. auto: none when the samples are cached, else up to 4, leaving one core free."""
    pin_memory: bool | Literal["auto"] = "auto"
    """Pin memory, for faster copies to a GPU. auto: on CUDA."""
    prefetch_factor: PositiveInt = 2
    """Batches prefetched by each worker."""
    persistent_workers: bool = True
    """Keep the workers alive between epochs."""
    stuck_minutes: PositiveFloat = 30.0
    """Minutes without a batch (after the first one) or a step after which loader processes, or this one, count as
    stuck: their stacks are logged, and loader processes replaced. With several processes at most 0.8 of
    distributed.timeout_minutes."""
    compile_model: CompileModel = False
    """torch.compile the model. cuda_graphs: and replay the kernels of each shape as one CUDA graph, for small models,
    whose steps wait for kernels to be launched; with batch_shim, so that shapes return. Not measured on a GPU yet."""
    matmul_precision: Literal["highest", "high", "medium"] = "high"
    """How fp32 matrix products are computed on CUDA (torch.set_float32_matmul_precision). highest: in fp32. high: in
    TF32, which has 10 bits of mantissa, on GPUs that have it. medium: in bf16. Matters most in mixed_precision fp32."""
    batch_shim: bool = False
    """Pad each batch to a multiple of 64 frames, and of 16 tokens where it has both, to limit the number of shapes: for
    compile_model, CUDA, and processors, whose matrix products are compiled for each shape. Parts of batches
    (split_by_length) have a multiple of 4 samples and of 32 frames."""
    split_by_length: bool = False
    """Compute batches of short and long samples in parts of similar length, which have less padding and, up to
    rounding, the same gradient. For one process without a GPU; elsewhere it has no effect."""
    threads: PositiveInt | None = None
    """Number of threads of torch and of NumPy's matrix products. Null: their defaults."""
    memory_management: bool = True
    """Check free memory at every batch, and free caches under pressure. Overhead under 1 %."""
    profile_batches: PositiveInt | None = None
    """Number of optimizer steps in which data loading, forward, backward, optimizer step and the gaps are timed; the
    log and RUN/profile then name the bottleneck. Overhead under 1 %. Null: no profiling."""


class DistributedSettings(Settings):
    """Training with several processes, started by torchrun or accelerate launch."""

    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """auto: nccl on CUDA, else gloo."""
    strategy: Literal["ddp", "fsdp", "fsdp-offload"] = "ddp"
    """ddp: each process has all weights. fsdp: each has a part of the weights and of the optimizer's state (FSDP2), for
    models that do not fit on one GPU (cloning, language). fsdp-offload: and keeps it in host memory."""
    world_size: PositiveInt | None = None
    """Expected number of processes; a different number is an error. Null: not checked."""
    sync_gradient_barrier: bool = False
    """Wait for all ranks before each optimizer step (to detect a slow rank)."""
    find_unused_parameters: bool = False
    """Allow parameters without a gradient in a step (DDP). Tasks with several phases set this automatically."""
    gradient_as_bucket_view: bool = True
    """Make gradients views of DDP's buckets, which saves a copy."""
    static_graph: bool = False
    """Tell DDP that every step uses the same parameters."""
    timeout_minutes: PositiveFloat = 10.0
    """Minutes a rank waits for the others before it fails."""


class EMASettings(Settings):
    """Exponential moving average of the weights (Polyak & Juditsky 1992)."""

    decay: OpenFraction = 0.999
    """Decay per step."""
    warmup: bool = True
    """Start with a smaller decay, min(decay, (1 + step) / (10 + step)), to forget early weights."""
    validate_with: Literal["ema", "raw", "better"] = "ema"
    """Weights that are validated, and saved as best; better: both are validated and the better one counts, by
    the metric of the best, or by the loss where that is the newest."""


class CallbackSettings(Settings):
    """A callback by its registered name, with its options."""

    type: Annotated[str, Named("phonate.training.registries:CALLBACKS")]
    """lr_monitor, feature_redraw, gradient_clipping, early_stopping, freeze_layers, pruning, dynamic_lr or your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of its constructor."""

    @model_validator(mode="before")
    @classmethod
    def _type_and_options(cls, values: Any) -> Any:
        """Refuse a bare name, and options that stand beside the type, with the form that is expected."""
        if isinstance(values, str):
            raise ValueError(f"expected {{type: {values}, options: {{...}}}}")
        names = [str(key) for key in values] if isinstance(values, dict) else []
        others = [name for name in names if not get_close_matches(name, ("type", "options"), cutoff=0.75)]
        if others:
            place = f"; {', '.join(others)} must stand under options" if "type" in values else ""
            raise ValueError(f"expected {{type: NAME, options: {{...}}}}{place}")
        return values


class CheckpointConfig(Settings):
    """Checkpoints: when they are saved, what they hold and how many are kept."""

    save_dir: str = "checkpoints"
    """Folder, relative to the run or absolute. Each run needs its own."""
    interval: Interval = "1 epochs"
    """Optimizer steps or epochs between saves. The last step is always saved."""
    save_total_limit: PositiveInt = 5
    """Number of checkpoints to keep besides the best one."""
    save_best_only: bool = False
    """Save only when the monitored metric improved (and at the end or an interruption, to allow a resume)."""
    monitor_metric: str | None = None
    """Metric that chooses the best checkpoint. Null: `validation.metric_for_best_model`."""
    resume: str | None = None
    """auto, a run or a checkpoint to resume from, as with `--resume`."""
    allow_changed_data: bool = False
    """Resume also where training data were replaced, added or removed since the checkpoint was written."""
    backup_dir: str | None = None
    """Folder for a copy of each new best checkpoint, relative to the run or absolute. In a folder outside the run (on
    another disk, say) each run has its own subfolder."""
    max_backups: PositiveInt = 3
    """Number of backups to keep."""
    compress: bool = False
    """Compress the tensors with zlib (smaller, slower)."""
    verify_integrity: bool = True
    """Verify the SHA-256 of every file before loading."""
    snapshot_optimizer: bool = True
    """Save the optimizer's state; without it a run can't be resumed."""
    snapshot_scheduler: bool = True
    """Save the schedule's state; without it a plateau schedule starts over after a resume."""
    snapshot_features: bool = True
    """Save random features (Performer matrices) with the weights; otherwise new ones are drawn on resume, and
    checkpoints are of no use for inference, evaluation and export."""
    snapshot_random_states: bool = True
    """Save the states of Python's, numpy's and torch's global generators."""
    save_model_architecture: bool = True
    """Save the printed model structure with the weights."""
    versioning: bool = True
    """Number the checkpoints of a run (v1, v2, ...) and list them in checkpoint_history.json."""
    track_git_info: bool = True
    """Record the git commit, the branch and whether tracked files were changed."""
    track_system_info: bool = True
    """Record the host name, platform and versions."""
    track_model_hash: bool = True
    """Record a SHA-256 of the weights."""


class TrainingSettings(Settings):
    """The recipe's `training` part."""

    epochs: PositiveInt = 100
    """Passes over the training samples."""
    max_steps: PositiveInt | None = None
    """Optimizer steps; overrides `epochs`, unless it is a recipe's and only `epochs` is given on top of it."""
    batch_size: PositiveInt = 32
    """Items per forward pass, over all ranks; replaced by `max_duration` or `max_length`."""
    max_duration: PositiveFloat | None = None
    """Maximum seconds of audio in a batch, including padding; batches then consist of clips of similar length."""
    max_length: PositiveInt | None = None
    """The same for data sets not measured in seconds, in their own unit (tokens of text)."""
    random_seed: NonNegativeInt = 42
    """Seed of all randomness: initial weights, order, augmentation, dropout."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """Optimizer."""
    scheduler: SchedulerSettings = SchedulerSettings()
    """Learning rate schedule."""
    gradient_clipping: PositiveFloat | None = 1.0
    """Maximum gradient norm. Null: no clipping."""
    not_finite: Literal["stop", "skip", "rollback"] = "stop"
    """What follows a loss or gradient that is NaN or infinite: stop; skip leaves weights and optimizer as they are in
    such a step; rollback returns to the newest checkpoint and trains again from there, without that batch. The samples
    are told, on a GPU with the next log line."""
    quarantine: NonNegativeInt = 0
    """Number of samples that may be left out because they can't be loaded or their loader process died twice; one more
    ends the run. They are in RUN/quarantine.jsonl: once mended, remove their lines."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes per optimizer step."""
    mixed_precision: Literal["auto", "fp32", "fp16", "bf16"] | bool = "auto"
    """auto (or true): bf16 or fp16 on a GPU that supports it, else fp32; false is fp32. On a GPU 16 bits save memory,
    and time where the model or the batch is large; small ones may be faster in fp32."""
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
    """Loss, and the weights of its terms."""
    validation: ValidationSettings = ValidationSettings()
    """Validation."""
    early_stopping: EarlyStoppingSettings | None = None
    """Early stopping. Null: none."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    logging: LoggingSettings = LoggingSettings()
    """Logging and experiment tracking."""
    performance: PerformanceSettings = PerformanceSettings()
    """Data loading and performance."""
    distributed: DistributedSettings = DistributedSettings()
    """Training with several processes."""
    ema: EMASettings | None = None
    """Moving average of the weights. Null: none."""
    callbacks: tuple[CallbackSettings, ...] = ()
    """Callbacks, in order."""
    feature_redraw_interval: PositiveInt | None = None
    """Steps between redraws of random features (models with `redraw_features()`). Null: the model's own interval, 1000
    for linear attention."""
    fixed_projection: bool = False
    """Keep the initial random features for the whole run, regardless of the interval."""
    init_from: str | None = None
    """A run or checkpoint to take the initial weights from."""
    profiling: bool = False
    """Record a torch profiler trace of a few steps to RUN/profile."""
    tuning: TuningSettings = TuningSettings()
    """Search for hyperparameters. None by default."""
    device: str | None = None
    """cpu, cuda:0 or mps. Null: the first GPU, else the CPU."""

    @property
    def grad_scaler(self) -> dict[str, Any]:
        """Arguments of the dynamic loss scaler."""
        return {
            "init_scale": self.amp_init_scale,
            "growth_factor": self.amp_growth_factor,
            "backoff_factor": self.amp_backoff_factor,
            "growth_interval": self.amp_growth_interval,
        }

    @property
    def evaluation_batch_size(self) -> int:
        """Samples that validation takes at once."""
        return self.validation.batch_size or self.batch_size

    @property
    def best_metric(self) -> str:
        """The metric that selects the best checkpoint."""
        return self.checkpoint.monitor_metric or self.validation.metric_for_best_model

    def restore_conflict(self, metric: str) -> str | None:
        """Why early stopping on `metric` can't restore the best weights. None: it can.

        A run has one best checkpoint, selected by `best_metric`; the newest has the weights of the end already.
        """
        if self.best_metric == NEWEST:
            return None
        best = self.best_metric
        if plain(metric) != plain(best):
            chooser = (
                "checkpoint.monitor_metric" if self.checkpoint.monitor_metric else "validation.metric_for_best_model"
            )
            return (
                f"early_stopping monitors {metric}, but the best checkpoint, whose weights it restores, is selected "
                f"by {best}; set training.{chooser}={metric}, or restore_best_weights to false"
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
            conflict = self.restore_conflict(str(options.get("metric", "val_loss")))
            if conflict and options.get("restore_best_weights", True):
                raise ValueError(conflict)
        if self.fixed_projection and any(entry.type == "feature_redraw" for entry in self.callbacks):
            raise ValueError("fixed_projection keeps the features that the callback feature_redraw redraws; drop one")
        return self


# --------------------------------- `TrainingConfig`: the settings of `VoiceTrainer` as one flat object


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
        stopping = validated or "early_stopping_patience" in self.model_fields_set
        if self.early_stopping_patience is not None and stopping:
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
