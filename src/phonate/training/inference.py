"""A trained model ready for use: the base of what `phonate.load` returns, whatever the task; and what a server needs of
one that makes speech.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import nn

    from phonate.audio.decoding import FloatArray
    from phonate.text.captions import TimedWord
    from phonate.text.ssml import Part


@dataclass(frozen=True)
class Reference:
    """A recording of a voice that is to be cloned."""

    waveform: FloatArray
    """(N,) mono samples in [-1, 1]."""
    sample_rate: int
    """Hz."""
    text: str | None = None
    """What is said in it, where it is known."""


@dataclass(frozen=True)
class SpeechRequest:
    """What is to be said, and how. A value of None leaves the choice to the model."""

    text: str
    """The text, or the SSML document."""
    voice: str | None = None
    """One of the service's `voices`."""
    reference: Reference | None = None
    """The voice itself, for models that clone."""
    speed: float = 1.0
    """1.25 is a quarter faster."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """Requests with the same seed and text give the same speech."""
    max_seconds: float | None = None
    """For models that clone: how long the speech may be, which is then made in one part."""
    script: Sequence[Part] | None = None
    """What the text says as SSML, parsed for the service's language; for services that follow SSML."""
    continues: bool = False
    """Whether another request follows with what comes next in the same paragraph."""


class SpeechResult(ABC):
    """The speech of one request, as it is made."""

    @abstractmethod
    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        """Chunks of samples (n,) in [-1, 1] at the service's `sample_rate`, in order, each once.

        Raises:
            TimeoutError: No chunk came within `timeout` seconds.
            PhonateError: The request can't be met.
        """

    @property
    def after(self) -> float:
        """Seconds of silence between this speech, once all of it is made, and what follows in the same text."""
        return 0.25

    def words(self) -> list[TimedWord]:
        """The words of what is being said now and was said before, and when; each is given once. For services that tell
        times."""
        return []

    @abstractmethod
    def cancel(self) -> None:
        """Stop working on the request. Its `chunks` end."""


class SpeechService(ABC):
    """A model that speaks for several callers at once. All methods may be called from any thread."""

    sample_rate: int
    """Hz."""
    needs_reference: bool
    """Whether a request without one of `voices` must bring a `Reference`."""
    follows_ssml: bool = False
    """Whether a text may be SSML."""
    language: str | None = None
    """In which SSML must be."""
    tells_times: bool = False
    """Whether results give their words with times."""

    @property
    @abstractmethod
    def voices(self) -> Sequence[str]:
        """The names of voices that can be asked for."""

    def left_out(self, request: SpeechRequest) -> str:
        """The characters of the text that will not be read, in words; "" where all are, or where that isn't known."""
        return ""

    @abstractmethod
    def submit(self, request: SpeechRequest) -> SpeechResult:
        """Begin to work on `request`, as soon as there is room. Raises InputError for one that can't be met."""

    @property
    @abstractmethod
    def active(self) -> int:
        """Requests that are being worked on now."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that have not been begun."""

    @abstractmethod
    def close(self) -> None:
        """Refuse further requests, finish those that are there, and free what the service holds."""


Device: TypeAlias = "str | torch.device"


def inference_device(device: Device | None) -> torch.device:
    """The device so called; None: the CPU. Raises InputError where it is not available."""
    import torch

    from phonate.compute.device import choose

    return choose(device=device) if isinstance(device, str) else device or torch.device("cpu")


@dataclass(frozen=True)
class Demonstration:
    """What a model makes of one example, for the end of a session."""

    summary: str
    """One sentence without a full stop."""
    command: str
    """The command that does the same; {run} stands for the quoted path of the model."""
    waveform: FloatArray | None = None
    """(N,) at the model's `sample_rate`, where it makes sound."""


class Inference(ABC):
    """A trained model on one device.

    A task subclasses it in its module `inference` and adds its verb (`speak`, `convert`, `transcribe`, ...), which
    takes one input or a list of them. The subclass is named by `TaskInfo.inference`.
    """

    sample_rate: int | None = None
    """Rate in Hz of the audio that goes in and comes out; None for models of text."""
    inference_metadata: Mapping[str, Any]
    """What the task saved beside the weights (`Task.inference_metadata`)."""

    @classmethod
    @abstractmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint, on `device` (None: cpu).

        Raises CheckpointError where there is none, or it is damaged or of another task; InputError where the device is
        not available.
        """

    @property
    @abstractmethod
    def networks(self) -> Sequence[nn.Module]:
        """The networks that `to` moves, the model first."""

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """What the model makes of one training example, of which there is a recording, a text, both or neither. None:
        there is nothing to show."""
        return None

    def speech_service(self, max_batch: int = 8) -> SpeechService | None:
        """The model as a server uses it, working on up to `max_batch` requests at once; None: it makes no speech of
        text."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.networks[0].parameters()).device

    def to(self, device: Device | None) -> Self:
        """Move the networks to `device`, such as "cuda:0" (None: leave them). Returns itself.

        Raises InputError where the device is not available.
        """
        if device is not None:
            target = inference_device(device)
            for network in self.networks:
                network.to(target)
        return self
