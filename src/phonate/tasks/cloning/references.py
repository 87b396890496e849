"""References: recordings of voices to be cloned, and how long a text may take to say."""

from __future__ import annotations

import hashlib
import math
import tempfile
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, as_waveform, read_audio
from phonate.audio.higgs_codec import HiggsCodec
from phonate.audio.readers import AUDIO_SUFFIXES
from phonate.audio.whisper import WhisperEncoder
from phonate.config.errors import InputError
from phonate.tasks.cloning.network import heard_features
from phonate.text.sentences import sentences
from phonate.training.speech_service import Reference

# ---------------------------------------------------------- Recordings of voices that are to be cloned

MAX_SECONDS = 60.0
"""Of a reference; the model's examples have 5 to 30."""
_KEPT = 64


@dataclass(frozen=True)
class Heard:
    """What the model is given of a reference."""

    codes: NDArray[np.int16]
    """(T, K)"""
    features: FloatArray | None
    """(T, C) of Whisper, if the model was trained with them."""


class ReferenceReader:
    """What the model is given of references, the last 64 of which are kept. For several threads."""

    def __init__(self, codec: HiggsCodec, whisper: WhisperEncoder | None = None) -> None:
        self._codec, self._whisper = codec, whisper
        self._kept: OrderedDict[str, Heard] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, reference: Reference) -> Heard:
        """Raises InputError for a recording that is too short, too long or no sound."""
        check_reference(reference)
        waveform = np.ascontiguousarray(reference.waveform, dtype=np.float32)
        key = hashlib.sha256(waveform.tobytes() + str(reference.sample_rate).encode()).hexdigest()
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return known
        codes, rate, features = self._codec.encode(waveform, reference.sample_rate), reference.sample_rate, None
        if self._whisper is not None:
            features = heard_features(self._whisper, waveform, rate, len(codes))
        heard = Heard(codes, features)
        with self._lock:
            self._kept[key] = heard
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return heard


def check_reference(reference: Reference) -> None:
    """Raise InputError for a recording that is silent, or longer than `MAX_SECONDS`."""
    seconds = len(reference.waveform) / reference.sample_rate
    if seconds > MAX_SECONDS:
        raise InputError(f"the reference is {seconds:.1f} s long, over {MAX_SECONDS:g} s; cut it to 5 to 30 s")
    if not np.any(reference.waveform):
        raise InputError("the reference is silent; record it again")


def as_reference(
    audio: str | Path | NDArray[Any] | BinaryIO | Reference, text: str | None, sample_rate: int | None, own_rate: int
) -> Reference:
    """A recording with its text.

    Args:
        audio: A file, an open one, samples (N,) at `sample_rate` Hz (None: at `own_rate`), or a `Reference`.
        text: What is said in it; None: what the `Reference` says, or unknown.

    Raises InputError or DataError for what is no recording.
    """
    if isinstance(audio, Reference):
        return audio if text is None else Reference(audio.waveform, audio.sample_rate, text)
    if isinstance(audio, str | Path):
        if sample_rate is not None:
            raise InputError(f"{audio}: a file has its own sample rate; sample_rate is for arrays")
        return Reference(*read_audio(audio), text)
    if isinstance(audio, np.ndarray):
        return Reference(as_waveform(audio, sample_rate or own_rate), sample_rate or own_rate, text)
    if not hasattr(audio, "read"):
        raise InputError(f"a reference is a file, samples (N,) in an array or a Reference, not {type(audio).__name__}")
    return Reference(*_read_open(audio), text)


def _read_open(file: BinaryIO) -> tuple[NDArray[np.float32], int]:
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(file.read())
        copy.flush()
        return read_audio(copy.name)


def read_voices(folder: str | Path) -> dict[str, Reference]:
    """The voices in a folder: NAME.wav (or .flac, ...), with what is said in it in NAME.txt, if that is there.

    Raises InputError for a folder that is missing or has no recordings, DataError for one that can't be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; make it, with NAME.wav and NAME.txt for each voice")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in AUDIO_SUFFIXES)
    if not files:
        raise InputError(f"{folder}: has no recordings; put NAME.wav and NAME.txt there for each voice")
    voices: dict[str, Reference] = {}
    for path in files:
        if path.stem in voices:
            raise InputError(f"{path}: there are two recordings of {path.stem}; remove one")
        voices[path.stem] = Reference(*read_audio(path), _text_of(path))
    return voices


def _text_of(recording: Path) -> str | None:
    file = recording.with_suffix(".txt")
    if not file.is_file():
        return None
    try:
        return " ".join(file.read_text(encoding="utf-8-sig").split()) or None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8; save it so") from error


# ----------- How long a text may take to say, and long texts in parts that the model can say in one go

MAX_CHARACTERS = 5000
"""Of a text."""
_WORD_SECONDS = 60.0 / 130.0
_MARGIN = 1.2
"""Slow speakers take longer; a model that ends in time is not affected."""
_FEWEST, _MOST = 48, 384
"""Frames of a part: limits below and above. At 25 frames per second, 2 and 15 seconds."""
_PART_CHARACTERS = 160


def check_text(text: str) -> None:
    """Raise InputError for a text without a letter or digit, or one that is too long."""
    if not any(map(str.isalnum, text)):
        raise InputError("the text is empty" if not text.strip() else f"nothing of this text can be spoken: {text!r}")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the text has {len(text)} characters, and at most {MAX_CHARACTERS} are allowed; split it")


def frame_limit(text: str, frame_rate: float) -> int:
    """Frames that saying `text` takes at most, 130 words per minute and a fifth in reserve; from 48 to 384."""
    return min(_MOST, max(_FEWEST, _frames(text, frame_rate)))


def parts(text: str, frame_rate: float) -> list[str]:
    """`text` in parts that fit into the limit of frames, cut between sentences, or clauses of long ones."""
    found: list[str] = []
    for piece in _fitting(text, frame_rate, _PART_CHARACTERS):
        if not any(map(str.isalnum, piece)):
            continue
        longer = f"{found[-1]} {piece}" if found else piece
        if found and _frames(longer, frame_rate) <= _MOST:
            found[-1] = longer
        else:
            found.append(piece)
    return found


def _fitting(text: str, frame_rate: float, characters: int) -> Iterator[str]:
    """Sentences, those of more than `characters` cut, or of fewer if their words are many and short."""
    for piece in sentences(text, characters):
        if _frames(piece, frame_rate) > _MOST and characters > 1:
            yield from _fitting(piece, frame_rate, characters // 2)
        else:
            yield piece


def _frames(text: str, frame_rate: float) -> int:
    return math.ceil(_words(text) * _WORD_SECONDS * _MARGIN * frame_rate)


def _words(text: str) -> float:
    """Words; a digit may be read as one, and two characters of scripts without spaces take about as long."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text.split()) + sum(map(str.isdigit, text)) + wide / 2
