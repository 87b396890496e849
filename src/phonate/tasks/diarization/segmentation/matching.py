"""Who the speakers of each window are in the recording, by their voices.

Shapes: W windows, K speakers of the model, N local speakers (of single windows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from phonate.tasks.diarization.decoding_settings import DecodingSettings
from phonate.tasks.diarization.segmentation.clustering import SpeakerLimits, cluster
from phonate.tasks.diarization.segmentation.reassignment import exchanges
from phonate.tasks.diarization.segmentation.stitching import SILENT, Assignment, Exchange, Segmentation, tracks
from phonate.tasks.diarization.segmentation.turns import active
from phonate.tasks.diarization.segmentation.voices import Voices

_TRACKED_SECONDS = 0.3
"""Speakers of two windows are linked only if they are active together for at least this long."""


def by_voice(
    windows: Segmentation, voices: Voices, settings: DecodingSettings, limits: SpeakerLimits, frames_per_second: float
) -> tuple[Assignment, Sequence[Exchange]]:
    """(W, K) the speaker of the recording for each speaker of a window, and where single segments have another one."""
    active_WUK = [active(own_UK, settings.threshold, settings.median) for own_UK in windows.probabilities]
    frames = math.ceil(_TRACKED_SECONDS * frames_per_second)
    found, columns_N = voices.found(tracks(windows, active_WUK, frames))
    assignment_WK = np.full((len(windows.starts), windows.probabilities[0].shape[1]), SILENT)
    assignment_WK[found.windows_N, columns_N] = cluster(found, settings.cluster_distance, limits)
    if settings.reassignment_margin is None:
        return assignment_WK, ()
    return assignment_WK, exchanges(voices.segments(), assignment_WK, settings.reassignment_margin)
