"""Limits of the server. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from phonate.config.settings import Settings


class ServingSettings(Settings):
    """What the server allows."""

    idle_minutes: float | None = Field(default=None, gt=0)
    """Time after which a model that nobody uses is unloaded. None: never."""
    aliases: Mapping[str, str] = Field(default_factory=dict)
    """Other names for models and for voices. OpenAI's, such as tts-1 and alloy, stand for the first model and for its
    voices, in turn, where they are not set here."""
    strict: bool = False
    """Whether unknown fields of a request are errors; otherwise they are ignored, and a header `warning` names them."""
    voices: Path | None = None
    """Folder for the voices that are uploaded. None: none can be uploaded."""
    api_keys: tuple[str, ...] = Field(default=(), repr=False)
    """Keys, one of which a request must bring. None: all requests are served."""
    cors_origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may call the server."""
    max_batch: int = Field(default=8, ge=1)
    """Requests that are worked on at once."""
    max_queue: int = Field(default=32, ge=0)
    """Requests that wait; further ones are refused (429)."""
    max_text: int = Field(default=4096, ge=1)
    """Characters of a text; of SSML, those that are spoken, and ten times as many with the markup."""
    max_silence: float = Field(default=120.0, ge=0)
    """Seconds of silence that an SSML document may ask for in all."""
    max_speech_seconds: float = Field(default=900.0, gt=0)
    """Length of the speech of a request. A cloning model is not asked for more, longer speech is broken off with an
    error. Few characters can make much speech: 4,096 digits take 18 minutes, 4,096 letters of English five."""
    max_body: int = Field(default=25 * 2**20, ge=1024)
    """Bytes of a request."""
    max_reference_seconds: float = Field(default=30.0, gt=0)
    """Length of a reference recording."""
    max_transcription_seconds: float = Field(default=3600.0, gt=0)
    """Length of a recording that is transcribed."""
    max_conversion_seconds: float = Field(default=600.0, gt=0)
    """Length of a recording that is converted."""
    max_voices: int = Field(default=1000, ge=1)
    """Voices that are stored."""
    request_seconds: float = Field(default=300.0, gt=0)
    """Time for a request, from its arrival to its last sound. Wyoming's clients are disconnected when they send or take
    nothing for so long."""
    decode_seconds: float = Field(default=10.0, gt=0)
    """Processor time for decoding an uploaded recording; three times as much by the clock."""
    stop_seconds: float = Field(default=30.0, ge=0)
    """Time for finishing running requests after SIGTERM."""
