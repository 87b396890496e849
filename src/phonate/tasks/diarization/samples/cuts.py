"""Lhotse cuts as diarization samples, for custom loaders."""

from __future__ import annotations

from typing import Any

import numpy as np

from phonate.audio.kaldi_settings import KaldiSettings
from phonate.config.errors import DataError
from phonate.data.conversations.activity import arrival_activity
from phonate.data.features import Features
from phonate.tasks.diarization.corpus import UNKNOWN_SPEAKER, frame_centre
from phonate.tasks.diarization.samples import Item


def item_of_cut(cut: Any, audio: KaldiSettings, features: Features) -> Item:
    """The sample of a Lhotse cut with audio, resampled and mixed down to mono. Its supervisions give the speakers;
    their indices are all UNKNOWN_SPEAKER, as there is no corpus.

    Raises DataError for audio from a command or URL, and for a supervision without a speaker.
    """
    for part in getattr(cut, "tracks", None) or [cut]:
        recording = getattr(getattr(part, "cut", part), "recording", None)
        for source in recording.sources if recording is not None else ():
            if source.type not in ("file", "memory"):
                raise DataError(f"cut {cut.id}: its audio is a {source.type}, not a file; save the recording to a file")
    waveform_CN = np.atleast_2d(cut.resample(audio.sample_rate).load_audio())
    features_TF = features.compute(np.asarray(waveform_CN.mean(axis=0), dtype=np.float32))
    unnamed = next((one.id for one in cut.supervisions if one.speaker is None), None)
    if unnamed is not None:
        raise DataError(f"cut {cut.id}: supervision {unnamed} has no speaker; fill it in")
    names = sorted({one.speaker for one in cut.supervisions})
    rate = audio.frames_per_second
    activity_TS, speaker_S = arrival_activity(
        np.array([one.start * rate for one in cut.supervisions]),
        np.array([one.end * rate for one in cut.supervisions]),
        np.array([names.index(one.speaker) for one in cut.supervisions], dtype=np.int64),
        len(features_TF),
        frame_centre(audio),
    )
    return Item(features_TF, activity_TS, np.full(len(speaker_S), UNKNOWN_SPEAKER, dtype=np.int64), str(cut.id))
