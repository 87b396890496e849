"""What a server needs of a model that makes speech: requests go in, chunks of sound come out while they are made.

`Inference.speech_service` gives one. Several requests may be worked on at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    script: Sequence[Part] | None = None
    """What the text says as SSML, parsed for the service's language; for services that follow SSML."""


class SpeechResult(ABC):
    """The speech of one request, as it is made."""

    @abstractmethod
    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        """Chunks of samples (n,) in [-1, 1] at the service's `sample_rate`, in order, each once.

        Raises:
            TimeoutError: No chunk came within `timeout` seconds.
            PhonateError: The request can't be met.
        """

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
