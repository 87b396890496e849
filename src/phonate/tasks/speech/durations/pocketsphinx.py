"""Durations by pocketsphinx: forced alignment with the English models in its wheel (BSD), no download.

The aligner uses our pronunciations as its dictionary, so its phones match ours one to one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.tasks.speech.durations.boundaries import Durations, frames_between
from phonate.text.phonemes import Word

_RATE = 16000
_FRAME_SECONDS = 0.010
_OFFSET_SECONDS = 0.0078
"""Offset of a boundary from the start of its frame, measured on speech with known phones."""
_HISS = 1e-3  # 60 dB below full scale
_SILENCES = {"<s>", "</s>", "<sil>", "(NULL)", "[NOISE]", "[SPEECH]", "++NOISE++"}


class PocketsphinxAligner:
    """Aligns recordings with ARPAbet phones."""

    def __init__(self, vocabulary: Sequence[Sequence[Word]]) -> None:
        """`vocabulary`: the words of all recordings to be aligned."""
        import pocketsphinx

        self._names: dict[tuple[str, ...], str] = {}
        for words in vocabulary:
            for word in words:
                self._names.setdefault(_plain(word.phones), f"w{len(self._names)}")
        with tempfile.TemporaryDirectory() as folder:
            dictionary = Path(folder) / "words.dict"
            dictionary.write_text("".join(f"{name} {' '.join(phones)}\n" for phones, name in self._names.items()))
            self._decoder: Any = pocketsphinx.Decoder(
                hmm=pocketsphinx.get_model_path("en-us/en-us"),
                dict=str(dictionary),
                lm=None,
                bestpath=False,  # otherwise the second pass fails for one recording in six
                loglevel="FATAL",
            )

    def __call__(
        self, waveform: FloatArray, sample_rate: int, words: Sequence[Word], frames: int, frames_per_second: float
    ) -> Durations:
        """Frames of each token. Raises DataError if the words can't be found in the recording."""
        import soxr

        samples = soxr.resample(waveform, sample_rate, _RATE)
        raw = _as_bytes(samples)
        decoder = self._decoder
        decoder.set_align_text(" ".join(self._names[_plain(word.phones)] for word in words))
        self._decode(raw)
        if decoder.hyp() is None:
            raise DataError("the aligner can't find these words in the recording")
        decoder.set_alignment()
        self._decode(raw)
        return frames_between(self._starts(words), frames, frames_per_second)

    def _decode(self, raw: bytes) -> None:
        self._decoder.start_utt()
        self._decoder.process_raw(raw, no_search=False, full_utt=True)
        try:
            self._decoder.end_utt()
        except RuntimeError as error:  # the end of the text was not reached
            raise DataError("the aligner can't find these words in the recording") from error

    def _starts(self, words: Sequence[Word]) -> list[float]:
        """Start time of each token except the first."""
        # Keep a reference and read in order: entries point into it, and become invalid with it or with the next entry.
        alignment = self._decoder.get_alignment()
        found: list[list[tuple[str, int, int]]] = []
        for entry in alignment:
            if entry.name not in _SILENCES:
                found.append([(phone.name, phone.start, phone.duration) for phone in entry])
        if len(found) != len(words):
            raise DataError(f"the aligner found {len(found)} of {len(words)} words")
        starts: list[float] = []
        for word, phones in zip(words, found, strict=True):
            if [name for name, _, _ in phones] != list(_plain(word.phones)):
                raise DataError(f"the aligner found other phones in {word.text!r}")
            starts += [_seconds(start) for _, start, _ in phones]
            _, start, duration = phones[-1]
            starts.append(_seconds(start + duration))  # the boundary after the word
        return starts


def _as_bytes(samples: FloatArray) -> bytes:
    """16-bit samples at full scale with faint noise: the aligner has no model of digital silence, which synthetic and
    gated recordings contain (without noise, four in ten of espeak's sentences fail)."""
    hiss = _HISS * np.random.default_rng(0).standard_normal(len(samples))
    whole = np.rint(np.clip(samples / max(float(np.abs(samples).max()), 1e-6) + hiss, -1.0, 1.0) * 32767.0)
    return bytes(whole.astype("<i2").tobytes())


def _plain(phones: Sequence[str]) -> tuple[str, ...]:
    """The phone without stress, which the aligner's models do not have."""
    return tuple(phone.rstrip("012") for phone in phones)


def _seconds(frame: int) -> float:
    return frame * _FRAME_SECONDS + _OFFSET_SECONDS
