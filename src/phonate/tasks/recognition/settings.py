"""Settings of speech recognition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.audio.settings import AudioConfig
from phonate.config.errors import InputError
from phonate.config.language_codes import is_english
from phonate.config.metrics import by_name, losses
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import SessionInfo, TaskInfo, Traits
from phonate.data.settings import LanguageCode, SpokenData
from phonate.evaluation.tables import SHARED
from phonate.nn.settings import LoRASettings, Quantization, require_packages
from phonate.training.settings import TrainingSettings, require_own_loss

if TYPE_CHECKING:
    from phonate.data.corpora.rows import Problem
    from phonate.data.corpora.validation import CheckedRow


WHISPER_RATE = 16000
"""Hz."""
WHISPER_SECONDS = 30.0
_AUDIO_OF_WAVEFORMS = ("sample_rate", "min_seconds", "max_seconds", "hop_length")


class RecognitionData(SpokenData):
    """The corpus: recordings with what is said in them."""

    language: LanguageCode = "en-us"
    """Language of the texts: a code such as de, or a name such as German. For ctc English ones are normalised to spoken
    words first; of others the letters are taken. Whisper learns texts as they are written, in lower case where a corpus
    has capitals alone."""
    features: Literal["mel", "waveform"] = "mel"
    """What is kept of recordings. mel: the mel of `audio`, which ctc reads. waveform: the sound at 16 kHz, of which
    training computes Whisper's own log mel; `audio` then has its rate, shortest and longest recording only."""
    padding: tuple[NonNegativeFloat, NonNegativeFloat] = (0.0, 0.0)
    """waveform: the least and the most seconds of silence behind a training recording, drawn anew each time. Whisper
    was trained on 30 s whatever was said in them; 30 gives it these again, which takes ten times as long as 3."""
    validation_by: Literal["recording", "speaker"] = "recording"
    """What `validation` keeps: recordings of speakers who are trained on too, or all recordings of some speakers. The
    second one chooses the checkpoint that hears strangers best, and wants a corpus of many speakers. An official
    validation split is kept by both."""
    speed: tuple[PositiveFloat, PositiveFloat] | None = None
    """Slowest and fastest speed at which a training recording is played, drawn anew each time; pitch and formants move
    with it, as if another person spoke. 1.1 is a tenth faster. Null: as recorded."""

    def refusals(self, recordings: Sequence[CheckedRow]) -> list[Problem]:
        """Texts that can't be spoken, or are longer than their recordings."""
        if self.features == "waveform":
            return []
        from phonate.tasks.recognition.data import refusals  # imports torch

        return refusals(recordings, self)

    @property
    def tells_speakers_apart(self) -> bool:
        """Only where whole speakers are held out."""
        return self.validation_by == "speaker"

    @property
    def feature_name(self) -> str:
        """mel or waveform."""
        return self.features

    @model_validator(mode="after")
    def _waveforms_for_whisper(self) -> Self:
        if self.padding[0] > self.padding[1]:
            raise ValueError(f"padding is [least, most]; {list(self.padding)} has them the other way round")
        if self.features == "mel":
            if self.padding != (0.0, 0.0):
                raise ValueError("padding: only for features: waveform; leave it out")
            return self
        audio, others = self.audio, AudioConfig()
        if audio.sample_rate != WHISPER_RATE or audio.max_seconds > WHISPER_SECONDS:
            raise ValueError(
                f"audio: Whisper reads up to {WHISPER_SECONDS:g} s at {WHISPER_RATE} Hz; set sample_rate to "
                f"{WHISPER_RATE} and max_seconds to {WHISPER_SECONDS:g} or less"
            )
        for name in AudioConfig.model_fields:
            if name not in _AUDIO_OF_WAVEFORMS and getattr(audio, name) != getattr(others, name):
                raise ValueError(f"audio.{name}: has no use for features: waveform; leave it out")
        return self

    @model_validator(mode="after")
    def _slowest_first(self) -> Self:
        if self.speed is not None and self.speed[0] > self.speed[1]:
            raise ValueError(f"speed is [slowest, fastest]; {list(self.speed)} has them the other way round")
        return self


class RecognitionModel(Settings):
    """The network, and how text is read from what it gives. An option that only the other kind has is refused."""

    kind: Literal["ctc", "whisper"] = "ctc"
    """ctc: a network of its own, which writes letters. whisper: a pretrained Whisper, which is fine-tuned."""
    width: PositiveInt = 256
    """Width of the network (ctc)."""
    layers: PositiveInt = 12
    """ConvNeXt blocks over frames, of which one stands for four of the mel (ctc)."""
    kernel: PositiveInt = 11
    """Frames that a block sees, an odd number; 11 are 0.44 s with a mel frame each 10 ms (ctc)."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training (ctc)."""
    beam: PositiveInt = 16
    """Texts that the search keeps. 1: the likeliest symbol each time; for ctc without the language model."""
    language_order: NonNegativeInt = 6
    """Length of the sequences of symbols that are counted in the training texts as a language model. 0: none (ctc)."""
    language_weight: NonNegativeFloat = 0.5
    """Weight of the language model's log probability beside the network's (ctc)."""
    symbol_bonus: float = 0.5
    """Added for each symbol of a text, for a language model likes short texts (ctc)."""
    name: str = "tiny.en"
    """The Whisper to start from: tiny.en (English) or base (99 languages), which packages include, another released
    one such as small or large-v3, a folder of transformers or CTranslate2, or a name on the hub (whisper)."""
    strategy: Literal["full", "lora"] = "lora"
    """full: every weight is trained. lora: low-rank adapters (whisper)."""
    lora: LoRASettings = LoRASettings()
    """The adapters (whisper)."""
    quantization: Quantization | Literal["int8"] | None = None
    """Hold the linear layers that adapters are trained beside in 8 bits (int8) or 4 (nf4, fp4): a fraction of the
    memory of a large Whisper, for a slower step on a CPU. Transcription and exports add the adapters to the whole base
    (whisper)."""
    keep: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """How far the trained model is moved back to the pretrained one, for validation and use: 0 not at all, 0.5 to the
    middle (Wortsman et al. 2022). It forgets other speech less, and learns this one nearly as well. Null: 0.3 for
    adapters, 0 where other weights are trained, too, or all (whisper)."""
    train_encoder: bool = True
    """Whether the encoder is trained, too, or the decoder alone (whisper)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time (whisper)."""

    @property
    def adapted(self) -> bool:
        """Whether adapters are trained."""
        return self.kind == "whisper" and self.strategy == "lora"

    @property
    def kept_share(self) -> float:
        """`keep`, or what stands for null."""
        if self.keep is not None:
            return self.keep
        return KEEP if self.adapted and self._adapters_alone else 0.0

    @property
    def _adapters_alone(self) -> bool:
        return not self.lora.dora and self.lora.bias == "none" and not self.lora.modules_to_save

    @model_validator(mode="after")
    def _nothing_else_is_moved_back(self) -> Self:
        if self.keep and not (self.adapted and self._adapters_alone):
            raise ValueError(
                f"keep {self.keep:g}: only adapters are moved back; take strategy lora without dora, bias and "
                "modules_to_save, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _adapters_beside_fewer_bits(self) -> Self:
        if self.quantization is not None and self.kind == "whisper" and self.strategy == "full":
            raise ValueError(f"quantization {self.quantization}: strategy full trains every weight; leave it out")
        return self

    @model_validator(mode="after")
    def _of_this_kind(self) -> Self:
        # a value is compared with the default, so that a recipe written out in full is read again
        fields, other = type(self).model_fields, "whisper" if self.kind == "ctc" else "ctc"
        for name in OWN[other]:
            if getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"{name}: a model of kind {self.kind} has no {name}; of its own it has {', '.join(OWN[self.kind])}"
                )
        return self

    @model_validator(mode="after")
    def _odd_kernel(self) -> Self:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} must be odd, so that a block sees as far back as ahead")
        return self


KEEP = 0.3
"""`model.keep` of adapters where the recipe leaves it open."""
OWN = {
    "ctc": ("width", "layers", "kernel", "dropout", "language_order", "language_weight", "symbol_bonus"),
    "whisper": ("name", "strategy", "lora", "quantization", "keep", "train_encoder", "gradient_checkpointing"),
}
"""What only one kind of model has."""


def _size(width: int, layers: int, dropout: float, lr: float) -> dict[str, dict[str, Any]]:
    return {
        "model": {"width": width, "layers": layers, "dropout": dropout},
        "training": {"optimizer": {"lr": lr}},
    }


def session_defaults(language: str) -> dict[str, Any]:
    """Overrides for a language."""
    return {} if is_english(language) else {"data.language": language}


RecognitionRecipe = Recipe[RecognitionData, RecognitionModel, TrainingSettings]

DATA = RecognitionData
MODEL = RecognitionModel
SIZES = {
    "tiny": _size(128, 6, 0.1, 3e-3),
    "small": _size(192, 8, 0.1, 2e-3),
    "default": _size(256, 12, 0.1, 1e-3),
    "large": _size(512, 16, 0.1, 5e-4),
}
KINDS = {
    "whisper": {
        size: {"model": {"name": name}}
        for size, name in {"tiny": "tiny.en", "small": "base", "default": "small", "large": "large-v3-turbo"}.items()
    }
}
METRICS = by_name(SHARED["wer"], SHARED["cer"])
"""What validation measures, besides the loss."""


def traits(recipe: RecognitionRecipe) -> Traits:
    """See `TaskInfo.traits`."""
    kind, features = recipe.model.kind, recipe.data.features
    if (kind == "whisper") != (features == "waveform"):
        raise InputError(
            f"model.kind {kind} does not read data.features {features}; take the recipe recognition-whisper for "
            "Whisper, recognition for ctc"
        )
    require_own_loss(recipe.training.loss, "recognition")
    if kind == "whisper":
        model = recipe.model
        require_packages(
            "transformers", *["peft"] * model.adapted, *["bitsandbytes"] * (model.quantization is not None)
        )
    return Traits((*losses(["nll" if kind == "whisper" else "ctc"]), *METRICS.values()), frozenset())


INFO = TaskInfo(
    use="phonate transcribe {run} RECORDING",
    recipe="recognition-whisper",
    previews={
        "mel": "a validation recording as the model gets it",
        "symbols": "the probabilities of its symbols, over the same time; the blank is the lowest row",
    },
    hub_task="automatic-speech-recognition",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.recognition.inference:Recogniser",
    options=("base",),
    pretrained=("whisper",),
    traits=traits,
    model_types=("whisper",),
    model_keys=("suppress_ids",),
    evaluation="phonate.tasks.recognition.evaluation:evaluate",
    export="phonate.tasks.recognition.export:export",
    formats=("transformers", "ctranslate2", "peft"),
    export_options=("base",),
    merge="phonate.tasks.recognition.export:merge",
    session=SessionInfo("recordings", needs_text=True, defaults=session_defaults),
)
