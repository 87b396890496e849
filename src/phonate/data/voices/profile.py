"""The profile of a voice over all of its recordings, as one JSON document."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.voice_features import VoiceFeatures
from phonate.config.errors import DataError
from phonate.data.voices.validation import VoiceFile

PROFILE = "voice_profile.json"
_DIGITS = 6


def voice_profile(files: Sequence[VoiceFile], features: Sequence[VoiceFeatures]) -> dict[str, Any]:
    """The profile of a voice from its recordings and the features of each.

    Means and deviations are those over all frames of all recordings together. The pitch of recordings without voice
    does not count; without any, its values are null.

    Returns:
        sample_count; total_duration in seconds; avg_quality_score; voice_pitch {mean, std, min, max} in Hz;
        spectral_profile {centroid_mean, centroid_std, rolloff_mean} in Hz, {zero_crossing_rate_mean};
        mfcc_profile {mean, std} of 13 coefficients; energy_profile {mean, std, min, max} of RMS, whose ends are the
        quietest and the loudest recording.

    Raises:
        DataError: there are no recordings.
    """
    if not files or len(files) != len(features):
        raise DataError(f"a voice profile needs recordings with their features; {len(files)} have {len(features)}")
    frames = np.array([one.frames for one in features], dtype=np.float64)
    centroid = _pooled(
        [one.spectral_centroid for one in features], [one.spectral_centroid_std for one in features], frames
    )
    mfcc = _pooled([one.mfcc_mean for one in features], [one.mfcc_std for one in features], frames)
    energy = _pooled([one.rms for one in features], [one.rms_std for one in features], frames)
    loudness = [one.rms for one in features]
    profile = {
        "sample_count": len(files),
        "total_duration": sum(file.seconds for file in files),
        "avg_quality_score": sum(file.quality for file in files) / len(files),
        "voice_pitch": _pitch(features),
        "spectral_profile": {
            "centroid_mean": float(centroid[0]),
            "centroid_std": float(centroid[1]),
            "rolloff_mean": float(np.average([one.spectral_rolloff for one in features], weights=frames)),
            "zero_crossing_rate_mean": float(np.average([one.zero_crossing_rate for one in features], weights=frames)),
        },
        "mfcc_profile": {"mean": mfcc[0].tolist(), "std": mfcc[1].tolist()},
        "energy_profile": {
            "mean": float(energy[0]),
            "std": float(energy[1]),
            "min": min(loudness),
            "max": max(loudness),
        },
    }
    rounded: dict[str, Any] = _rounded(profile)
    return rounded


def write_profile(profile: dict[str, Any], folder: str | Path) -> Path:
    """Write voice_profile.json into `folder`, whole or not at all; returns its path."""
    path = Path(folder) / PROFILE
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{PROFILE}.{os.getpid()}")
    beside.write_text(json.dumps(profile, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def _pitch(features: Sequence[VoiceFeatures]) -> dict[str, float | None]:
    voiced = [one for one in features if one.voiced_frames]
    if not voiced:
        return dict.fromkeys(("mean", "std", "min", "max"))
    frames = np.array([one.voiced_frames for one in voiced], dtype=np.float64)
    mean, std = _pooled([one.pitch_mean for one in voiced], [one.pitch_std for one in voiced], frames)
    lowest = [one.pitch_min for one in voiced if one.pitch_min is not None]
    highest = [one.pitch_max for one in voiced if one.pitch_max is not None]
    return {"mean": float(mean), "std": float(std), "min": min(lowest), "max": max(highest)}


def _pooled(means: Sequence[Any], stds: Sequence[Any], weights: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Mean and standard deviation of everything, from those of its parts: the variance is the mean of the squares
    less the square of the mean."""
    mean_R = np.asarray(means, dtype=np.float64)
    square_R = np.square(mean_R) + np.square(np.asarray(stds, dtype=np.float64))
    mean = np.average(mean_R, axis=0, weights=weights)
    return mean, np.sqrt(np.maximum(np.average(square_R, axis=0, weights=weights) - np.square(mean), 0.0))


def _rounded(value: Any) -> Any:
    """Floats with six digits behind the point; the rest as it is."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        assert math.isfinite(value), "features of finite samples are finite"
        return round(value, _DIGITS)
    return value
