"""Settings of speech recognition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.config.language_codes import is_english
from phonate.config.metrics import by_name
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import SessionInfo, TaskInfo
from phonate.data.settings import SpokenData
from phonate.evaluation.tables import SHARED
from phonate.training.settings import TrainingSettings

if TYPE_CHECKING:
    from phonate.data.corpora.rows import Problem
    from phonate.data.corpora.validation import CheckedRow


class RecognitionData(SpokenData):
    """The corpus: recordings with what is said in them."""

    language: str = "en-us"
    """Language of the texts. English ones are normalised to spoken words first; of others the letters are taken."""
    validation_by: Literal["recording", "speaker"] = "recording"
    """What `validation` keeps: recordings of speakers who are trained on too, or all recordings of some speakers. The
    second one chooses the checkpoint that hears strangers best, and wants a corpus of many speakers. An official
    validation split is kept by both."""
    speed: tuple[PositiveFloat, PositiveFloat] | None = None
    """Slowest and fastest speed at which a training recording is played, drawn anew each time; pitch and formants move
    with it, as if another person spoke. 1.1 is a tenth faster. Null: as recorded."""

    def refusals(self, recordings: Sequence[CheckedRow]) -> list[Problem]:
        """Texts that can't be spoken, or are longer than their recordings."""
        from phonate.tasks.recognition.data import refusals  # imports torch

        return refusals(recordings, self)

    @model_validator(mode="after")
    def _slowest_first(self) -> Self:
        if self.speed is not None and self.speed[0] > self.speed[1]:
            raise ValueError(f"speed is [slowest, fastest]; {list(self.speed)} has them the other way round")
        return self


class RecognitionModel(Settings):
    """The network's numbers, and how text is read from what it gives."""

    width: PositiveInt = 256
    """Width of the network."""
    layers: PositiveInt = 12
    """ConvNeXt blocks over frames, of which one stands for four of the mel."""
    kernel: PositiveInt = 11
    """Frames that a block sees, an odd number; 11 are 0.44 s with a mel frame each 10 ms."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training."""
    beam: PositiveInt = 16
    """Texts that the search keeps at each frame. 1: the likeliest symbol of each frame, without the language model."""
    language_order: NonNegativeInt = 6
    """Length of the sequences of symbols that are counted in the training texts as a language model. 0: none."""
    language_weight: NonNegativeFloat = 0.5
    """Weight of the language model's log probability beside the network's."""
    symbol_bonus: float = 0.5
    """Added for each symbol of a text, for a language model likes short texts."""

    @model_validator(mode="after")
    def _odd_kernel(self) -> Self:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} must be odd, so that a block sees as far back as ahead")
        return self


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
METRICS = by_name(SHARED["wer"], SHARED["cer"])
"""What validation measures, besides the loss."""
INFO = TaskInfo(
    use="phonate transcribe {run} RECORDING",
    hub_task="automatic-speech-recognition",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.recognition.inference:Recogniser",
    pretrained=("whisper",),
    evaluation="phonate.tasks.recognition.evaluation:evaluate",
    session=SessionInfo("recordings", needs_text=True, defaults=session_defaults),
)
