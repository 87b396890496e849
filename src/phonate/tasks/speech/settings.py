"""Settings of text-to-speech, and `EnglishTrainingConfig`: the autoregressive English voice as one flat object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.audio.settings import F0Method
from phonate.config.language_codes import is_english
from phonate.config.metrics import Metric, by_name
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import SessionInfo, TaskInfo, shortened
from phonate.data.corpora.rows import Requirements
from phonate.data.settings import EARLIER_F0, LanguageCode, PitchData, SpokenData
from phonate.evaluation.tables import SHARED
from phonate.training.plan import plan
from phonate.training.settings import TrainingSettings

if TYPE_CHECKING:
    from phonate.data.corpora.rows import Problem
    from phonate.data.corpora.validation import CheckedRow


class SpeechData(SpokenData, PitchData):
    """The corpus: recordings with what is said in them."""

    phonemes: Literal["english", "espeak", "characters"] = "english"
    """How text becomes phones: english needs nothing else, espeak knows 100 languages (needs phonate[espeak])."""
    language: LanguageCode = "en-us"
    """Language of the texts: a code such as de, as espeak calls it, or a name such as German."""
    f0_method: F0Method = "yin"
    """How the fundamental frequency is measured. yin: as for the packaged voice, from which training starts, up to 500
    Hz. swift: by a network (SwiftF0), right in telephone speech and children's voices, too; take it for those. One
    speaker of another language, who starts from the packaged voice, takes it."""
    durations: Literal["pocketsphinx", "mfa", "learnt", "espeak"] = "pocketsphinx"
    """Where the durations of phones come from: forced alignment with pocketsphinx (English phones; with others, learnt
    takes its place), TextGrids of the Montreal Forced Aligner (`alignments`), an aligner that is trained on the corpus
    first (any language), or the TextGrids that lie beside speech that espeak made."""
    alignments: str | None = None
    """The folder of TextGrids for `durations: mfa`, one a recording, called after its id; sub-folders are looked
    into."""
    aligner_steps: PositiveInt = 1000
    """Steps for which the aligner of `durations: learnt` is trained, some minutes on a processor."""
    vocoder: str | None = None
    """A run of the task vocoder, by which mels become sound. Null: Griffin-Lim."""
    judged: NonNegativeInt = 0
    """Validation texts that are spoken at each validation and judged: their words, naturalness and voice (needs
    phonate[eval]); the metric `quality` can then choose the best checkpoint. 0: none."""

    @property
    def requirements(self) -> Requirements:
        """Clips of one named speaker who is in training, with a text."""
        return replace(super().requirements, trained_speaker=True)

    def refusals(self, recordings: Sequence[CheckedRow]) -> list[Problem]:
        """Texts that can't be spoken, or are longer than their recordings."""
        from phonate.tasks.speech.data import refusals  # imports torch

        return refusals(recordings, self)

    def require_packages(self) -> None:
        """Also of what makes the phones."""
        super().require_packages()
        if self.phones_by == "espeak":
            from phonate.text.espeak import require_espeak

            require_espeak()

    @property
    def phones_by(self) -> Literal["english", "espeak", "characters"]:
        """What makes phones of texts in this language: English ones are known for English alone."""
        return "espeak" if self.phonemes == "english" and not is_english(self.language) else self.phonemes


class SpeechModel(Settings):
    """The acoustic model's numbers. One that only the other kind has is refused."""

    kind: Literal["parallel", "autoregressive"] = "parallel"
    """parallel: durations, pitch and energy are predicted, then all frames at once; it can't skip words.
    autoregressive: a transformer that predicts durations, then one frame after the other."""
    width: PositiveInt = 256
    """Width of the encoder and the decoder."""
    encoder_layers: PositiveInt = 6
    """Blocks over phones."""
    decoder_layers: PositiveInt = 6
    """Blocks over frames."""
    predictor_layers: PositiveInt = 2
    """Blocks of the network that predicts durations, pitch and energy (parallel)."""
    heads: PositiveInt = 8
    """Attention heads; they divide the width (autoregressive)."""
    feed_forward: PositiveInt = 2048
    """Hidden units of the gated feed-forward network of each block (autoregressive)."""
    postnet_channels: NonNegativeInt = 512
    """Channels of the five convolutions that sharpen the mel; 0: none (autoregressive)."""
    checkpoint_segments: PositiveInt | Literal["auto"] | None = None
    """Gradient checkpointing: the encoder's and the decoder's blocks are cut into so many segments, whose activations
    are computed again in the backward pass: less memory, the more segments the less, for another forward pass. auto: by
    the GPU's memory. Null: none (autoregressive)."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training."""
    predictor_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """The same, in what predicts durations, pitch and energy, which learns a small corpus by heart (parallel)."""
    melody_gradient: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Share of the gradient of pitch and voicing that reaches the encoder, which learns by heart how the sentences of a
    small corpus are said (parallel)."""
    contour: bool = False
    """The pitch also follows how near a frame is to the beginning and the end of its sentence, alike in all sentences.
    One speaker of another language, who starts from the packaged voice, has it, and no `melody_gradient` (parallel)."""
    discriminator_channels: PositiveInt = 16
    """Channels of the discriminator's first layer (only used in training; parallel)."""

    @model_validator(mode="after")
    def _of_this_kind(self) -> Self:
        # A value is compared with the default, not looked for, so that a recipe written out in full is read again.
        fields, has = type(self).model_fields, ", ".join(OWN[self.kind])
        other = "autoregressive" if self.kind == "parallel" else "parallel"
        for name in OWN[other]:
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name}: a model of kind {self.kind} has no {name}; of its own it has {has}")
        if self.kind == "autoregressive" and self.width % self.heads:
            raise ValueError(f"width {self.width} can't be divided among {self.heads} heads")
        if self.kind == "autoregressive" and self.width % 2:
            raise ValueError(f"width {self.width}: an autoregressive model needs an even one")
        return self


OWN = {
    "parallel": ("predictor_layers", "predictor_dropout", "melody_gradient", "contour", "discriminator_channels"),
    "autoregressive": ("heads", "feed_forward", "postnet_channels", "checkpoint_segments"),
}
"""What only one kind of model has."""


class SpeechTraining(TrainingSettings):
    """Training, with its adversarial part."""

    adversarial_start: PositiveInt | None = None
    """The step from which a discriminator takes part, which keeps mels from being over-smooth (parallel models). Null:
    never."""
    adversarial_weight: NonNegativeFloat = 1.0
    """Weight of fooling the discriminator."""
    feature_matching_weight: NonNegativeFloat = 5.0
    """Weight of the distance between what the discriminator sees in natural and in made mels."""


def _parallel(width: int, encoder: int, decoder: int, lr: float) -> dict[str, dict[str, Any]]:
    model = {"width": width, "encoder_layers": encoder, "decoder_layers": decoder}
    return {"model": model, "training": {"optimizer": {"lr": lr}}}


def _autoregressive(width: int, layers: int, heads: int, lr: float) -> dict[str, dict[str, Any]]:
    preset = _parallel(width, layers, layers, lr)
    preset["model"] |= {"heads": heads, "feed_forward": 4 * width}
    return preset


def facts(inference_metadata: Mapping[str, Any]) -> dict[str, str]:
    """Rows of a report's table."""
    return {"Speakers": shortened(inference_metadata.get("speakers", ()))}


def session_defaults(language: str) -> dict[str, Any]:
    """Overrides for a language. Others than English are not judged in training: that takes a larger recogniser."""
    return {} if is_english(language) else {"data.language": language, "data.judged": 0}


SpeechRecipe = Recipe[SpeechData, SpeechModel, SpeechTraining]

DATA = SpeechData
MODEL = SpeechModel
TRAINING = SpeechTraining
SIZES = {
    "tiny": _parallel(128, 3, 4, 2e-3),
    "small": _parallel(192, 4, 6, 1.5e-3),
    "medium": _parallel(256, 6, 8, 1e-3),
    "default": _parallel(384, 6, 8, 8e-4),
    "large": _parallel(512, 8, 12, 5e-4),
}
KINDS = {
    "autoregressive": {
        "tiny": _autoregressive(128, 3, 4, 1e-3),
        "small": _autoregressive(256, 4, 8, 3e-4),
        "medium": _autoregressive(384, 6, 8, 2e-4),
        "default": _autoregressive(512, 6, 8, 1e-4),
        "large": _autoregressive(768, 8, 12, 1e-4),
    }
}
WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "parallel": {"mel": 10.0, "duration": 1.0, "pitch": 1.0, "voicing": 1.0, "energy": 5.0},
    "autoregressive": {"mel": 10.0, "mel_before": 5.0, "duration": 0.1, "stop": 1.0},
}
"""By `model.kind`: the weights of the acoustic model's loss terms."""
METRICS = by_name(SHARED["wer"], SHARED["mos"], SHARED["speaker"], Metric("quality", "higher"))
"""What judges measure in validation, and `quality`, by which they choose checkpoints."""
INFO = TaskInfo(
    validation="Validation has texts spoken: wer is the share of words that a recogniser gets wrong, mos the predicted "
    "naturalness (1 to 5), speaker how alike their voice is to the recordings' (1: the same), quality is mos less 5 "
    "times wer.",
    use="phonate speak {run} {text} -o said.wav",
    previews={"natural": "a validation recording", "spoken": "its text, spoken by the model"},
    hub_task="text-to-speech",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.speech.inference:Synthesiser",
    evaluation="phonate.tasks.speech.evaluation:evaluate",
    export="phonate.tasks.speech.export:export",
    formats=("onnx", "piper", "sherpa", "browser"),
    export_options=("vocoder", "dtype", "runtime"),
    options=("vocoder",),
    start="phonate.tasks.speech.start:start",
    rehearsal="phonate.tasks.speech.start:rehearsal",
    traits="phonate.tasks.speech.start:traits",
    earlier={**EARLIER_F0, "model.melody_gradient": 1.0, "model.contour": False},
    session=SessionInfo("recordings", needs_text=True, default_for="transcribed recordings", defaults=session_defaults),
    facts=facts,
)


# --------- The autoregressive English voice as one flat object, with restarts of the learning rate

# It says the same as a recipe, and builds one: `phonate.train(RECIPE, config.overrides())`.

RECIPE = "speech-autoregressive"
"""The shipped recipe that a configuration is laid over."""
_LOGGED_EVERY = 10
_PROFILED = 100


class EnglishTrainingConfig(Settings):
    """Flat settings of the autoregressive kind of the task `speech`. `recipe()` gives the typed ones."""

    data_dir: str = "LJSpeech-1.1"
    """The corpus."""
    validation_split: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of the recordings kept for validation."""
    max_seq_length: PositiveInt = 2500
    """Mel frames of the longest recording taken."""
    sample_rate: PositiveInt = 22050
    """Samples a second."""
    n_mels: PositiveInt = 80
    """Mel bands."""
    n_fft: PositiveInt = 1024
    """Points of the Fourier transform."""
    win_length: PositiveInt = 1024
    """Samples under the window."""
    hop_length: PositiveInt = 256
    """Samples from one frame to the next."""
    f_min: NonNegativeFloat = 0.0
    """Lower edge of the mel bands, in Hz."""
    f_max: PositiveFloat = 8000.0
    """Upper edge of the mel bands, in Hz."""
    hidden_dim: PositiveInt = 512
    """Width of the model."""
    n_encoder_layers: PositiveInt = 6
    """Blocks over phones."""
    n_decoder_layers: PositiveInt = 6
    """Blocks over frames."""
    n_heads: PositiveInt = 8
    """Attention heads."""
    ff_dim: PositiveInt = 2048
    """Hidden units of each block's feed-forward network."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training."""
    gradient_checkpointing: bool = True
    """Compute activations again in the backward pass, for less memory."""
    checkpoint_segments: PositiveInt | Literal["auto"] = 2
    """Segments for that; auto: by the GPU's memory."""
    batch_size: PositiveInt = 16
    """Recordings a batch."""
    max_batch_seconds: PositiveFloat | None = None
    """Length-based batching: clips of similar length, at most so many seconds a batch, padding counted; replaces
    `batch_size`. Null: `batch_size` clips drawn at random."""
    num_epochs: PositiveInt = 100
    """Passes over the corpus."""
    learning_rate: NonNegativeFloat = 1e-4
    """Learning rate at the start and at each restart."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Running averages of AdamW."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Largest gradient norm."""
    T_0: PositiveInt = 20
    """Epochs of the first cosine cycle."""
    T_mult: PositiveInt = 2
    """Each cycle is so many times as long as the one before."""
    eta_min: NonNegativeFloat = 1e-6
    """Learning rate at the end of each cycle."""
    duration_loss_weight: NonNegativeFloat = 0.1
    """Weight of the durations."""
    stop_token_loss_weight: NonNegativeFloat = 1.0
    """Weight of the stop token."""
    validate_every: PositiveInt = 1
    """Epochs between validations."""
    save_every: PositiveInt = 5
    """Epochs between checkpoints."""
    use_mixed_precision: bool = True
    """16-bit forward pass where the device has it."""
    amp_init_scale: PositiveFloat = 65536.0
    """Initial loss scale for fp16."""
    amp_growth_factor: Annotated[float, Field(gt=1.0)] = 2.0
    """Factor by which the loss scale grows."""
    amp_backoff_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Factor by which the loss scale shrinks after an overflow."""
    amp_growth_interval: PositiveInt = 2000
    """Steps without overflow after which the loss scale grows."""
    num_workers: NonNegativeInt | Literal["auto"] = 2
    """Loader processes."""
    pin_memory: bool | Literal["auto"] = "auto"
    """Page-locked batches. auto: on CUDA."""
    device: str | None = None
    """cpu, cuda:0 or mps. Null: a GPU where there is one."""
    use_wandb: bool = False
    """Report to Weights & Biases."""
    wandb_project: str = "phonate"
    """W&B project."""
    wandb_entity: str | None = None
    """W&B team or user."""
    wandb_name: str | None = None
    """W&B run name."""
    wandb_tags: tuple[str, ...] = ()
    """W&B tags."""
    enable_profiling: bool = False
    """Time the parts of 100 steps, and say what holds training up."""
    seed: NonNegativeInt = 42
    """Seed of everything random."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave, or a part of it. Raises InputError for unknown fields."""
        return cls(**values)

    def recipe(self) -> Recipe[Any, Any, Any]:
        """What is trained, a recipe of the task `speech`. Raises RecipeError where the fields contradict each other."""
        return plan(RECIPE, self.overrides()).recipe

    def overrides(self) -> dict[str, Any]:
        """What is to be laid over the shipped recipe, by dotted option."""
        return {
            "data.path": self.data_dir,
            "data.validation": self.validation_split,
            "data.audio.sample_rate": self.sample_rate,
            "data.audio.n_mels": self.n_mels,
            "data.audio.n_fft": self.n_fft,
            "data.audio.win_length": self.win_length,
            "data.audio.hop_length": self.hop_length,
            "data.audio.fmin": self.f_min,
            "data.audio.fmax": self.f_max,
            "data.audio.max_seconds": self.max_seq_length * self.hop_length / self.sample_rate,
            "model.kind": "autoregressive",
            "model.width": self.hidden_dim,
            "model.encoder_layers": self.n_encoder_layers,
            "model.decoder_layers": self.n_decoder_layers,
            "model.heads": self.n_heads,
            "model.feed_forward": self.ff_dim,
            "model.dropout": self.dropout,
            "model.checkpoint_segments": self.checkpoint_segments if self.gradient_checkpointing else None,
            "training.epochs": self.num_epochs,
            "training.batch_size": self.batch_size,
            "training.max_duration": self.max_batch_seconds,
            "training.random_seed": self.seed,
            "training.optimizer.type": "adamw",
            "training.optimizer.lr": self.learning_rate,
            "training.optimizer.weight_decay": self.weight_decay,
            "training.optimizer.betas": list(self.betas),
            "training.scheduler.type": "cosine_restarts",
            "training.scheduler.warmup_steps": 0,
            "training.scheduler.cycle_steps": f"{self.T_0} epochs",
            "training.scheduler.cycle_mult": self.T_mult,
            "training.scheduler.min_lr": self.eta_min,
            "training.gradient_clipping": self.max_grad_norm,
            "training.loss.weights": {"duration": self.duration_loss_weight, "stop": self.stop_token_loss_weight},
            "training.mixed_precision": "auto" if self.use_mixed_precision else "fp32",
            "training.amp_init_scale": self.amp_init_scale,
            "training.amp_growth_factor": self.amp_growth_factor,
            "training.amp_backoff_factor": self.amp_backoff_factor,
            "training.amp_growth_interval": self.amp_growth_interval,
            "training.validation.interval": f"{self.validate_every} epochs",
            "training.checkpoint.interval": f"{self.save_every} epochs",
            "training.performance.num_workers": self.num_workers,
            "training.performance.pin_memory": self.pin_memory,
            "training.device": self.device,
            "training.logging.interval": _LOGGED_EVERY,
            "training.logging.wandb": self.use_wandb,
            "training.logging.wandb_project": self.wandb_project,
            "training.logging.wandb_entity": self.wandb_entity,
            "training.logging.wandb_name": self.wandb_name,
            "training.logging.wandb_tags": list(self.wandb_tags),
            "training.performance.profile_batches": _PROFILED if self.enable_profiling else None,
        }


def get_default_config() -> EnglishTrainingConfig:
    """English speech with the documented defaults: 57.5 million parameters, and 4.3 more in the post-net."""
    return EnglishTrainingConfig()


def get_small_config() -> EnglishTrainingConfig:
    """English speech for tests: 9.7 million parameters and the post-net, ten epochs."""
    return EnglishTrainingConfig(
        batch_size=8, hidden_dim=256, n_encoder_layers=4, n_decoder_layers=4, ff_dim=1024, num_epochs=10
    )


def get_medium_config() -> EnglishTrainingConfig:
    """32.4 million parameters and the post-net."""
    return EnglishTrainingConfig(hidden_dim=384, ff_dim=1536)


def get_large_config() -> EnglishTrainingConfig:
    """171.8 million parameters and the post-net."""
    return EnglishTrainingConfig(hidden_dim=768, n_encoder_layers=8, n_decoder_layers=8, n_heads=12, ff_dim=3072)
