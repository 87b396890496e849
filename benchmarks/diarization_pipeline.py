"""Diarization by pretrained parts, to compare a trained model with: Silero's voice activity, resemblyzer, clustering.

    python benchmarks/diarization_pipeline.py CORPUS OUT.rttm [--threshold 0.4] [--distance 0.35]
    phonate score CORPUS/ref.rttm OUT.rttm --uem CORPUS/ref.uem

CORPUS is a folder of recordings. Pieces of 1.6 s, four in a second, whose middle is in detected speech are embedded and
clustered by average linkage; each part of the speech goes to the cluster of the nearest piece.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps
from scipy.cluster.hierarchy import fcluster, linkage

from phonate.audio.decoding import FloatArray, read_audio
from phonate.data.annotations import SpeakerTurn, turns_from_activity, write_rttm
from phonate.pretrained import SPEAKER_RATE, SpeakerEncoder

PER_SECOND = 4
FRAMES_PER_SECOND = 100
OPTIONS = {"min_silence_duration_ms": 100, "speech_pad_ms": 30}


def diarize(waveform_N: FloatArray, judge: SpeakerEncoder, threshold: float, distance: float) -> list[SpeakerTurn]:
    """Who speaks when in a recording at 16 kHz."""
    size = SPEAKER_RATE // FRAMES_PER_SECOND
    voiced_U = np.zeros(len(waveform_N) // size, dtype=bool)
    for found in get_speech_timestamps(waveform_N, VadOptions(threshold=threshold, **OPTIONS)):
        voiced_U[found["start"] // size : found["end"] // size] = True
    if not voiced_U.any():
        return []
    pieces_PD, middle_P = judge.embed_continuously(waveform_N, PER_SECOND)
    frame_P = np.minimum((middle_P * FRAMES_PER_SECOND).astype(int), len(voiced_U) - 1)
    kept_P = np.flatnonzero(voiced_U[frame_P])
    if not len(kept_P):
        kept_P = np.arange(len(middle_P))
    labels_P = np.ones(1, dtype=int)
    if len(kept_P) > 1:
        labels_P = fcluster(linkage(pieces_PD[kept_P], "average", metric="cosine"), distance, "distance")
    time_U = (np.arange(len(voiced_U)) + 0.5) / FRAMES_PER_SECOND
    nearest_U = np.abs(time_U[:, None] - middle_P[kept_P]).argmin(axis=1)
    active_US = (labels_P[nearest_U][:, None] == np.unique(labels_P)) & voiced_U[:, None]
    return turns_from_activity(active_US, FRAMES_PER_SECOND, [f"speaker{one}" for one in np.unique(labels_P)])


def main() -> None:
    """Diarize all recordings of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--threshold", type=float, default=0.4, help="of the probability of speech")
    parser.add_argument("--distance", type=float, default=0.35, help="1 - cosine from which voices are different")
    args = parser.parse_args()
    judge = SpeakerEncoder()
    files = sorted(one for one in args.corpus.rglob("*") if one.suffix in {".flac", ".wav"})
    waveforms = {file.stem: read_audio(file, SPEAKER_RATE)[0] for file in files}
    write_rttm(
        args.output,
        {name: diarize(waveform, judge, args.threshold, args.distance) for name, waveform in waveforms.items()},
    )


if __name__ == "__main__":
    main()
