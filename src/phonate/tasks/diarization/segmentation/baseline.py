"""Diarization without a trained model: voice activity detection, embeddings of short segments, clustering.

WebRTC's voice activity detector (webrtcvad), d-vectors of 1.6 s (resemblyzer) and average linkage. It can't detect
overlapping speech.

Shapes: U frames of the detector, P segments, D embedding, S speakers, N samples of a frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, resample
from phonate.config.packages import optional_package
from phonate.data.annotations import SpeakerTurn, turns_from_activity
from phonate.evaluation.packages import old_pkg_resources
from phonate.evaluation.speaker_similarity import JUDGE_RATE, SpeakerJudge
from phonate.tasks.diarization.segmentation.clustering import LocalSpeakers, SpeakerLimits, cluster

_FRAME_SECONDS = 0.03
"""webrtcvad accepts frames of 10, 20 or 30 ms."""
_AGGRESSIVENESS = 3
"""webrtcvad's mode from 0 to 3; 3 rejects most non-speech, and is the best on meetings."""
_SMOOTHED_SECONDS = 0.3
_PIECES_PER_SECOND = 4
_MOST_CLUSTERED = 3000
"""If there are more segments, evenly spaced ones are clustered and the others assigned to the nearest cluster."""


class Baseline:
    """Detects speech and clusters its segments by speaker."""

    def __init__(self, distance: float) -> None:
        """`distance`: cosine distance above which clusters are not merged, if the number of speakers is not given.

        Raises MissingPackageError if resemblyzer is not installed.
        """
        self._distance = distance
        self._judge = SpeakerJudge()

    @cached_property
    def _detector(self) -> Any:
        with old_pkg_resources():
            return optional_package("webrtcvad", "voice activity").Vad(_AGGRESSIVENESS)

    def diarize(
        self, blocks: Iterable[FloatArray], sample_rate: int, limits: SpeakerLimits | None = None
    ) -> list[SpeakerTurn]:
        """The turns of a recording, given in blocks (N,) at `sample_rate` Hz."""
        waveform = np.concatenate(list(blocks))
        if sample_rate != JUDGE_RATE:
            waveform = resample(waveform, sample_rate, JUDGE_RATE)
        voiced_U = self._voiced(waveform)
        pieces_PD, middle_P = self._judge.embed_continuously(waveform, _PIECES_PER_SECOND)
        if not voiced_U.any():
            return []
        frame_P = np.minimum((middle_P / _FRAME_SECONDS).astype(int), len(voiced_U) - 1)
        kept_P = np.flatnonzero(voiced_U[frame_P])
        if not len(kept_P):  # the speech is so short that no segment is centred on it
            kept_P = np.arange(len(middle_P))
        clustered_P = np.zeros(len(kept_P), dtype=np.float32)
        clustered_P[:: -(-len(kept_P) // _MOST_CLUSTERED)] = 10.0
        found = LocalSpeakers(np.arange(len(kept_P)), pieces_PD[kept_P], clustered_P, np.arange(len(kept_P)))
        labels_P = cluster(found, self._distance, limits or SpeakerLimits())
        time_U = (np.arange(len(voiced_U)) + 0.5) * _FRAME_SECONDS
        label_U = labels_P[np.rint(np.interp(time_U, middle_P[kept_P], np.arange(len(kept_P)))).astype(int)]
        active_US = (label_U[:, None] == np.arange(labels_P.max() + 1)) & voiced_U[:, None]
        names = [f"speaker{number + 1}" for number in range(active_US.shape[1])]
        return turns_from_activity(active_US, 1.0 / _FRAME_SECONDS, names)

    def _voiced(self, waveform: FloatArray) -> NDArray[np.bool_]:
        """(U,) speech activity of each frame, smoothed by a median filter."""
        from scipy.ndimage import median_filter

        size = round(_FRAME_SECONDS * JUDGE_RATE)
        frames_UN = waveform[: len(waveform) // size * size].reshape(-1, size)
        pcm_UN = (frames_UN.clip(-1.0, 1.0) * 32767).astype("<i2")
        voiced_U = np.array([self._detector.is_speech(one.tobytes(), JUDGE_RATE) for one in pcm_UN], dtype=bool)
        width = round(_SMOOTHED_SECONDS / _FRAME_SECONDS) | 1
        return np.asarray(median_filter(voiced_U.astype(np.uint8), width)) > 0 if len(voiced_U) else voiced_U
