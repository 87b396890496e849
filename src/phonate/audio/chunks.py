"""Processing long recordings in pieces, so that memory does not grow with their length.

Shapes: T frames, F features, N samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from phonate.audio.decoding import FloatArray


def windows(frames: int, window: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Start and end of windows of at most `window` frames that cover `frames`, neighbours sharing `overlap`."""
    if not 0 <= overlap < window:
        raise ValueError(f"an overlap of {overlap} frames does not fit into windows of {window}")
    start = 0
    while True:
        end = min(start + window, frames)
        yield start, end
        if end >= frames:
            return
        start = end - overlap


def overlap_add(frames: int, window: int, overlap: int, predict: Callable[[int, int], FloatArray]) -> FloatArray:
    """(frames, F) put together from `predict(start, end)`, fading from each window to the next."""
    whole_TF: FloatArray | None = None
    for start, end in windows(frames, window, overlap):
        part_TF = predict(start, end)
        if whole_TF is None:
            whole_TF = np.empty((frames, part_TF.shape[1]), dtype=np.float32)
            whole_TF[start:end] = part_TF
            continue
        fade_T1 = ((np.arange(overlap, dtype=np.float32) + 1.0) / (overlap + 1.0))[:, None]
        joint = slice(start, start + overlap)
        whole_TF[joint] = whole_TF[joint] * (1.0 - fade_T1) + part_TF[:overlap] * fade_T1
        whole_TF[start + overlap : end] = part_TF[overlap:]
    assert whole_TF is not None
    return whole_TF


def quiet_cuts(mel_TF: FloatArray, piece: int, margin: int) -> list[int]:
    """Frames at which to cut features into pieces of at most `piece` frames, at the quietest of their last quarter.

    The ends are included, [0, ..., T]; every piece is longer than `margin`.
    """
    loudness_T = mel_TF.mean(axis=1)
    cuts = [0]
    while len(mel_TF) - cuts[-1] > piece:
        earliest, latest = cuts[-1] + piece - piece // 4, cuts[-1] + piece - margin
        cuts.append(earliest + int(np.argmin(loudness_T[earliest:latest])))
    return [*cuts, len(mel_TF)]


def joined(
    mel_TF: FloatArray, render: Callable[[FloatArray], FloatArray], hop: int, piece: int, margin: int = 16
) -> FloatArray:
    """The waveform ((T - 1) * hop,) of a long spectrogram, rendered piece by piece between quiet frames.

    Pieces are rendered with `margin` more frames on both sides and faded into each other over them. `render`
    gives (frames - 1) * hop samples and must not change levels.
    """
    if piece // 4 <= margin:
        raise ValueError(f"pieces of {piece} frames are too short for margins of {margin}")
    cuts = quiet_cuts(mel_TF, piece, margin)
    # a spectrogram of n frames is n - 1 hops long: neighbours share so much
    fade_N = np.linspace(0.0, 1.0, (2 * margin - 1) * hop, dtype=np.float32)
    whole_N = np.zeros((len(mel_TF) - 1) * hop, dtype=np.float32)
    for begin, end in itertools.pairwise(cuts):
        first, last = max(0, begin - margin), min(len(mel_TF), end + margin)
        part_N = render(mel_TF[first:last]).copy()
        if begin > 0:
            part_N[: len(fade_N)] *= fade_N
        if end < len(mel_TF):
            part_N[-len(fade_N) :] *= 1.0 - fade_N
        whole_N[first * hop : first * hop + len(part_N)] += part_N
    return whole_N
