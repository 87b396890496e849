"""The recordings that a model is trained on, with what is derived of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.data.store.derived import DerivedFeatures, open_derived, open_pitch
from phonate.data.store.prepared import Prepared, prepare_to_train
from phonate.tasks.conversion.features.extractor import FeatureExtractor, Recording
from phonate.tasks.conversion.features.running import Expected
from phonate.tasks.conversion.settings import ConversionData
from phonate.tasks.conversion.voices import Voice

_EXPECTED_OVER = 300
_VERSION = 1  # raise it when Whisper features are computed otherwise


class Corpus:
    """The prepared corpus at `data.path`, with F0 and Whisper features beside its cached waveforms and mels."""

    def __init__(self, data: ConversionData, extractor: FeatureExtractor) -> None:
        self.data = data
        self.extractor = extractor
        self.prepared: Prepared = prepare_to_train(data)
        if extractor.causal:
            extractor.envelope.expected = self.expected
        self.speakers = self.prepared.speakers
        """Names in the order of the embedding."""

    def positions(self, split: str) -> list[int]:
        """Positions of a split's recordings in the index."""
        found = self.prepared.train if split == "train" else self.prepared.validation
        return [int(position) for position in found]

    def recording(self, position: int) -> Recording:
        """The clean features of a recording."""
        whisper_SW = self._whisper[position] if self.data.content == "whisper" else None
        mel_TM = self.prepared.cache.features(position)
        f0_T = self._f0[position][:, 0] if self.data.prosody else np.zeros(len(mel_TM), dtype=np.float32)
        return Recording(mel_TM, f0_T, whisper_SW)

    def waveform(self, position: int) -> FloatArray:
        """The clean waveform (N,) of a recording."""
        return self.prepared.cache.waveform(position)

    @cached_property
    def target(self) -> int:
        """Number of the speaker to convert to: the recipe's, or the one with the most speech."""
        wanted = self.data.target
        if wanted is not None:
            if wanted not in self.speakers:
                raise InputError(f"data.target: the corpus has no {wanted!r}; {nearest(wanted, self.speakers)}")
            return self.speakers.index(wanted)
        index = self.prepared.index
        frames = np.bincount(index.speaker, weights=index.frames, minlength=len(self.speakers))
        return int(frames.argmax())

    @cached_property
    def voices(self) -> dict[str, Voice]:
        """Register and long-term spectrum of each speaker that is learnt, from training recordings."""
        if self.extractor.reference_dim:
            return {}
        numbers = self.prepared.index.speaker
        train = self.positions("train")

        def recordings(speaker: int) -> Iterator[Recording]:
            return (self.recording(position) for position in train if numbers[position] == speaker)

        return {name: Voice.of(recordings(number)) for number, name in enumerate(self.speakers)}

    @cached_property
    def expected(self) -> Expected:
        """What training recordings are like before normalisation, over at most 300 of them."""
        train = self.positions("train")
        chosen = train[:: max(1, len(train) // _EXPECTED_OVER)]
        mels = (self.prepared.cache.features(position) for position in chosen)
        return Expected.of((mel_TM, self.extractor.envelope.smoothed(mel_TM)) for mel_TM in mels)

    @property
    def content_dim(self) -> int:
        """Content features of a frame."""
        reads_whisper = self.data.content == "whisper" and not self.extractor.teacher
        return self._whisper.width if reads_whisper else self.data.audio.n_mels

    @property
    def teacher_dim(self) -> int | None:
        """Whisper features that a causal model is taught to predict for a frame; None: none."""
        return self._whisper.width if self.extractor.teacher else None

    @property
    def content_fingerprint(self) -> str:
        """What the content features depend on beside the audio settings."""
        return self.extractor.whisper.fingerprint if self.data.content == "whisper" else "mel"

    @cached_property
    def _f0(self) -> DerivedFeatures:
        return open_pitch(self.prepared, self.data.audio)

    @cached_property
    def _whisper(self) -> DerivedFeatures:
        """The features of a Whisper encoder, kept beside the prepared corpus."""
        encoder, rate = self.extractor.whisper, self.data.audio.sample_rate
        name = re.sub(r"[^\w.-]", "_", f"whisper-{encoder.fingerprint}-v{_VERSION}")
        return open_derived(
            self.prepared.folder / name,
            len(self.prepared.index),
            lambda position: encoder(self.waveform(position), rate),
            np.float16,
            what="computing Whisper features",
        )
