"""Settings of voice conversion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from phonate.config.errors import InputError
from phonate.config.metrics import Metric, by_name, losses
from phonate.config.registry import nearest
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import SessionInfo, Start, TaskInfo, Traits, shortened
from phonate.data.corpora.rows import Requirements, Row
from phonate.data.settings import EARLIER_F0, PitchData
from phonate.training.settings import TrainingSettings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _share(value: Any) -> Any:
    """Older recipes have true and false for 1 and 0."""
    return float(value) if isinstance(value, bool) else value


class PerturbationSettings(Settings):
    """How the speaker is hidden from the content while the model trains."""

    formants: tuple[PositiveFloat, PositiveFloat] = (0.65, 1.5)
    """Lowest and highest factor by which formants are moved; wide enough to turn men's voices into women's and back."""
    equaliser_db: NonNegativeFloat = 6.0
    """Standard deviation of the strongest ripple of a random equaliser, in dB."""
    noise_probability: Fraction = 0.6
    """Share of the samples to which coloured noise is added."""
    noise_snr_db: tuple[float, float] = (12.0, 45.0)
    """Lowest and highest ratio of speech to that noise, in dB."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("formants", "noise_snr_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is [lowest, highest]; {[low, high]} has them the other way round")
        return self


class ConversionData(PitchData):
    """The corpus, and what the model reads of a recording."""

    voices: Literal["corpus", "reference"] = "corpus"
    """Whose voices the model converts to: those of the speakers in the corpus, which it learns, or anybody's, given by
    recordings in conversion (needs `content: whisper` and a corpus of many speakers)."""
    content: Literal["mel", "whisper"] = "mel"
    """What was said: perturbed mel envelopes, or the features of a Whisper encoder (needs phonate[eval]). A causal
    model predicts the latter from perturbed envelopes, and needs the encoder in training only."""
    whisper_model: str = "tiny.en"
    """Whisper model for `content: whisper`: a faster-whisper name, or a folder."""
    cepstral_coefficients: Annotated[int, Field(ge=2)] | None = 12
    """Smoothness of the mel envelope; few enough that the pitch can't be read from it. Null: no smoothing."""
    normalise: bool = True
    """Bring each content feature to mean 0 and deviation 1 over the utterance."""
    prosody: bool = True
    """Give the model pitch and voicing; in conversion the melody is moved to the target's register."""
    equalise: Annotated[Fraction, BeforeValidator(_share)] = 0.5
    """In conversion, how far the mean and deviation of each mel band are brought to those of the target's recordings:
    0 not at all, 1 all the way."""
    perturbation: PerturbationSettings | None = PerturbationSettings()
    """How the speaker is hidden while training. Null: not at all (a control: such a model converts nothing)."""
    vocoder: str | None = None
    """A run of the task vocoder, by which mels become sound. Null: Griffin-Lim."""
    target: str | None = None
    """The speaker that previews, evaluation and `phonate convert` convert to. Null: the one with the most speech."""
    distil_from: str | None = None
    """A run of this task that converts whole recordings to the target. The model learns from its conversions of the
    other speakers' recordings too: a causal model gets closer to the target by them. Null: from recordings alone."""
    crop_frames: PositiveInt = 160
    """Frames of a training sample, cut at random from its recording; 86 are a second."""
    crops_per_clip: PositiveInt = 1
    """Crops of each recording in an epoch."""

    @property
    def requirements(self) -> Requirements:
        """Clips of one named speaker, who is in training where the model learns the voices of the corpus."""
        return replace(super().requirements, trained_speaker=self.voices == "corpus")

    @property
    def strangers(self) -> Literal["corpus"] | None:
        """Voices that are given by recordings are validated on speakers who are not in training."""
        return "corpus" if self.voices == "reference" else None

    def require_speakers(self, names: Collection[str]) -> None:
        """Refuse a target that the corpus does not have."""
        if self.target is not None and self.target not in names:
            which = nearest(self.target, sorted(names), "phonate data describe")
            raise InputError(f"data.target: the corpus has no {self.target!r}; {which}")

    @model_validator(mode="after")
    def _envelope_is_smooth(self) -> Self:
        kept, bands = self.cepstral_coefficients, self.audio.n_mels
        if self.content == "mel" and kept is not None and kept >= bands:
            raise ValueError(
                f"cepstral_coefficients {kept} must be below audio.n_mels {bands}, or nothing is smoothed; "
                "lower it, or set it to null"
            )
        return self

    @model_validator(mode="after")
    def _references_are_searched_by_content(self) -> Self:
        if self.voices == "corpus":
            return self
        if self.content != "whisper":
            raise ValueError("voices: reference looks up recordings by their Whisper features; set content to whisper")
        if self.target is not None:
            raise ValueError("target names a speaker of the corpus, whom voices: reference doesn't learn; leave it out")
        return self

    @model_validator(mode="after")
    def _distilled_once(self) -> Self:
        if self.distil_from is not None and self.voices == "reference":
            raise ValueError("distil_from teaches a voice of the corpus; leave it out, or set voices to corpus")
        if self.distil_from is not None and self.augmentation is not None:
            raise ValueError(
                "distil_from: recordings are converted once, so that their audio can't be augmented; set augmentation "
                "to null"
            )
        return self

    @model_validator(mode="after")
    def _whisper_is_computed_once(self) -> Self:
        if self.content == "whisper" and self.augmentation is not None:
            raise ValueError(
                "content: whisper is computed once for each recording, so its audio can't be augmented; "
                "set augmentation to null, or content to mel"
            )
        return self


class ConversionModel(Settings):
    """VoiceTransformer's numbers. Sizes and kinds that are left out are those of its published form."""

    d_model: PositiveInt = 512
    """Width of the encoder."""
    n_heads: PositiveInt = 8
    """Attention heads."""
    n_layers: PositiveInt = 6
    """Encoder layers."""
    d_ff: PositiveInt = 2048
    """Width of the feed-forward networks."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training."""
    max_seq_len: PositiveInt = 5000
    """Longest window in frames (sinusoidal positions)."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after or before each branch; pre trains faster and needs no long warm-up."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the feed-forward networks."""
    positions: Literal["sinusoidal", "rotary"] = "sinusoidal"
    """How positions are encoded; rotary encodes only distances, so short crops are enough for training."""
    stride: PositiveInt = 1
    """Frames that the encoder sees as one."""
    post_net_layers: Annotated[int, Field(ge=0)] = 0
    """Layers of the residual convolutional post-net; 0 for none."""
    causal: bool = False
    """Convert each frame from itself, earlier ones and `lookahead` later ones, as `phonate convert --live` needs it;
    normalisation then follows running statistics instead of those of the whole recording."""
    lookahead: Annotated[int, Field(ge=0)] = 3
    """Frames after a frame that a causal model reads; each adds 11.6 ms of delay. 3 and 5 fit stride 2 best."""
    memory: PositiveInt = 160
    """Frames before a frame that the attention of a causal model covers."""
    discriminator_channels: PositiveInt = 16
    """Channels of the discriminator's first layer (only used in training)."""

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} can't be divided among n_heads {self.n_heads}")
        return self

    @model_validator(mode="after")
    def _causal_positions(self) -> Self:
        if self.causal and self.positions != "rotary":
            raise ValueError(f"causal: positions {self.positions} are limited, a stream is not; set them to rotary")
        return self


class ConversionTraining(TrainingSettings):
    """Training, with its adversarial part."""

    adversarial_start: PositiveInt | None = None
    """The step from which a discriminator takes part, which keeps mels from being over-smooth. Null: never."""
    adversarial_weight: NonNegativeFloat = 0.1
    """Weight of fooling the discriminator."""
    feature_matching_weight: NonNegativeFloat = 0.5
    """Weight of the distance between what the discriminator sees in natural and in made mels."""


def _size(d_model: int, n_layers: int, n_heads: int, lr: float) -> dict[str, dict[str, Any]]:
    model = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": 4 * d_model}
    return {"model": model, "training": {"optimizer": {"lr": lr}}}


def facts(inference_metadata: Mapping[str, Any]) -> dict[str, str]:
    """Rows of a report's table."""
    return {"Speakers": shortened(inference_metadata.get("voices", ())) or "anybody, by recordings"}


ConversionRecipe = Recipe[ConversionData, ConversionModel, ConversionTraining]

DATA = ConversionData
MODEL = ConversionModel
TRAINING = ConversionTraining
SIZES = {
    "tiny": _size(128, 3, 4, 2e-3),
    "small": _size(256, 4, 4, 1e-3),
    "default": _size(512, 6, 8, 3e-4),
    "large": _size(768, 8, 12, 2e-4),
}
METRICS = by_name(
    Metric("speaker_effect", "", "dB"),
)
"""What validation and evaluation measure, besides losses."""
LOSS = "l1"
"""The main loss of recipes that name none."""


def start(recipe: ConversionRecipe) -> Iterator[Start]:
    """What training does about the packaged vocoder where that does not fit the recipe's mels.

    Raises DataError where a target is given and the recordings can't be listed, InputError where it is none of their
    speakers."""
    from phonate.data.corpora.manifest import list_corpus
    from phonate.rendering import start_of_vocoder

    yield start_of_vocoder(recipe.data.vocoder, recipe.data.audio.facts)
    if recipe.data.target is not None:
        rows = [row for row in list_corpus(recipe.data)[0] if isinstance(row, Row)]
        if rows:
            recipe.data.require_speakers({name for row in rows for name in row.speakers})


def traits(recipe: ConversionRecipe) -> Traits | None:
    """See `TaskInfo.traits`; None where the recipe chooses losses, or has a teacher, which must be loaded."""
    check(recipe)
    if recipe.data.distil_from is not None or not recipe.training.loss.is_only(LOSS):
        return None
    return Traits(metrics_of(recipe, [LOSS]), frozenset({LOSS, "adversarial", "features"}))


def metrics_of(recipe: ConversionRecipe, named: Iterable[str]) -> tuple[Metric, ...]:
    """What validation reports besides `loss` where the losses are those `named`."""
    more = ["content"] if recipe.model.causal and recipe.data.content == "whisper" else []
    more += ["discriminator"] if recipe.training.adversarial_start is not None else []
    return (*losses([*named, *more]), *METRICS.values())


def check(recipe: ConversionRecipe) -> None:
    """Raise InputError for what a model can't be trained with."""
    from phonate.rendering import check_vocoder

    model, crop = recipe.model, recipe.data.crop_frames
    if model.positions == "sinusoidal" and crop > model.max_seq_len * model.stride:
        raise InputError(
            f"data.crop_frames: {crop} frames are more than model.max_seq_len {model.max_seq_len} positions"
        )
    if model.causal and not recipe.data.prosody:
        raise InputError("model.causal: live conversion needs the pitch; set data.prosody to true")
    if model.causal and recipe.data.voices == "reference":
        raise InputError("model.causal: live models only have their corpus's voices; set data.voices to corpus")
    check_vocoder(recipe.data.vocoder, recipe.data.audio.facts)


INFO = TaskInfo(
    use="phonate convert {run} RECORDING -o converted.wav",
    use_with={("model.causal", "data.vocoder"): "phonate convert {run} RECORDING --live -o converted.wav"},
    recipe="conversion-whisper",
    previews={
        "source": "a validation recording of a speaker who is not the target",
        "converted": "the same in the target's voice",
    },
    hub_task="audio-to-audio",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.conversion.inference:Converter",
    evaluation="phonate.tasks.conversion.evaluation:evaluate",
    options=("vocoder",),
    session=SessionInfo("recordings", default_for="recordings"),
    start=start,
    traits=traits,
    earlier=EARLIER_F0,
    facts=facts,
)
