"""The recordings that a vocoder is trained on, with the pitch of each and the mels that a model predicted for it."""

from __future__ import annotations

import logging
from functools import cached_property

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor, preemphasised
from phonate.config.errors import DataError
from phonate.data.store.derived import DerivedFeatures, open_pitch
from phonate.data.store.predicted import TeacherForcedMels
from phonate.data.store.prepared import Prepared, prepare_to_train
from phonate.tasks.vocoder.settings import VocoderData

logger = logging.getLogger("phonate")
_SILENT = 1e-6


class Corpus:
    """The prepared corpus at `data.path`, with the pitch of each recording."""

    def __init__(self, data: VocoderData) -> None:
        self.data = data
        self.processor = AudioProcessor(data.audio)
        self.prepared: Prepared = prepare_to_train(data)
        self.predicted = None if data.predicted is None else self._predicted(data.predicted)

    def _predicted(self, folder: str) -> TeacherForcedMels:
        """Mels that a model predicted for the recordings. Raises DataError where there is one for none of them."""
        mels = TeacherForcedMels(folder, self.processor.fingerprint)
        ids = self.prepared.index.id[:]
        found = sum(name in mels for name in ids)
        if not found:
            raise DataError(
                f"data.predicted: {folder} has mels of other recordings than {self.data.path}, such as "
                f"{mels.example!r} where the corpus has {ids[0]!r}; predict them from the same data.path"
            )
        logger.info("predicted mels: of %d of %d recordings", found, len(ids))
        return mels

    def predicted_mel(self, position: int) -> FloatArray | None:
        """The mel (T, M) predicted for a recording; None where there is none."""
        if self.predicted is None:
            return None
        index = self.prepared.index
        return self.predicted.get(index.id[position], int(index.frames[position]))

    def positions(self, split: str) -> list[int]:
        """Positions of a split's recordings in the index."""
        found = self.prepared.train if split == "train" else self.prepared.validation
        return [int(position) for position in found]

    @cached_property
    def pitch(self) -> DerivedFeatures:
        """F0 (T, 1) in Hz of each recording."""
        return open_pitch(self.prepared, self.data.audio)

    def pitch_of(self, waveform: FloatArray) -> FloatArray:
        """F0 (T,) in Hz at the mel's frames."""
        return f0(waveform, self.data.audio.sample_rate, self.data.audio.hop_length)

    def levelled(self, waveform: FloatArray) -> FloatArray:
        """A waveform (N,) at the level of its mel, which is computed with the pre-emphasised waveform peaking at 1."""
        peak = float(np.abs(preemphasised(waveform, self.data.audio.preemphasis)).max(initial=0.0))
        return waveform / np.float32(max(peak, _SILENT))
