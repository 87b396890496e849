"""Content features from the encoder of a Whisper recogniser (Radford et al. 2022).

A recogniser's features describe phones and contain little of the voice, so conversion from them is more intelligible
than from perturbed envelopes. They require the evaluation extra and a Whisper model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.evaluation.transcription import SAMPLE_RATE, load_whisper, weights_fingerprint

FEATURES_PER_SECOND = 50.0
_INPUT_FRAMES_PER_FEATURE = 2
_WINDOW = 3000  # maximum input frames of the encoder: 30 s
_PADDING = 160


class WhisperEncoder:
    """The encoder of the model `name` (see `phonate.evaluation.transcription.whisper_model`)."""

    def __init__(self, name: str = "tiny.en", threads: int = 0) -> None:
        self.name = name
        self._model = load_whisper(name, "data.content: whisper", threads)
        self.fingerprint = weights_fingerprint(name)

    def __call__(self, waveform: FloatArray, sample_rate: int) -> FloatArray:
        """Waveform (samples,) -> float32 features (50 per second, width of the model).

        Recordings over 30 s are encoded in windows of 30 s. Shorter ones are not padded to 30 s: the encoder
        accepts any length, and a clip of a few seconds takes a tenth of the time.
        """
        import soxr

        samples = waveform if sample_rate == SAMPLE_RATE else soxr.resample(waveform, sample_rate, SAMPLE_RATE)
        input_CT = self._model.feature_extractor(np.asarray(samples, dtype=np.float32), padding=_PADDING)
        usable = max(
            _INPUT_FRAMES_PER_FEATURE, input_CT.shape[1] // _INPUT_FRAMES_PER_FEATURE * _INPUT_FRAMES_PER_FEATURE
        )
        input_CT = np.pad(input_CT, ((0, 0), (0, max(0, usable - input_CT.shape[1]))))
        windows = [
            np.asarray(self._model.encode(np.ascontiguousarray(input_CT[:, at : min(at + _WINDOW, usable)])))[0]
            for at in range(0, usable, _WINDOW)
        ]
        return np.asarray(np.concatenate(windows), dtype=np.float32)


def at_frames(features_SW: FloatArray, frames_T: npt.NDArray[np.int64], frames_per_second: float) -> FloatArray:
    """Features (S, W) at 50 per second, interpolated at the given mel frames: (T, W)."""
    position_T = np.minimum(frames_T * (FEATURES_PER_SECOND / frames_per_second), len(features_SW) - 1.0)
    lower_T = np.minimum(position_T.astype(int), max(0, len(features_SW) - 2))
    upper_T = np.minimum(lower_T + 1, len(features_SW) - 1)
    weight_T1 = (position_T - lower_T).astype(np.float32)[:, None]
    between_TW = features_SW[lower_T] * (1.0 - weight_T1) + features_SW[upper_T] * weight_T1
    return np.asarray(between_TW, dtype=np.float32)


def normalised(features_SW: FloatArray) -> FloatArray:
    """Features (S, W) with mean 0 and deviation 1 over the utterance."""
    return np.asarray((features_SW - features_SW.mean(axis=0)) / (features_SW.std(axis=0) + 0.1), dtype=np.float32)
