"""How well a codec keeps speech: copies beside recordings that it was not trained on.

    python scripts/score_small_codec.py RECORDINGS CODEC

RECORDINGS holds spk_en_librispeech/test-other/SPEAKER/, whose voices are compared, and tts_en_lj (LJSpeech layout),
whose words are recognised by Whisper tiny.en. Mel distance is the mean difference of log-mel energies to the base of
10, at the resolutions that train_small_codec.py minimises.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from train_small_codec import MEL_SIZES, RATE, log_mel

from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.higgs_codec import HiggsCodec
from phonate.audio.mel_filters import mel_filters
from phonate.data.parallel import track
from phonate.evaluation.words import word_edits
from phonate.pretrained import SpeakerEncoder, Transcriber

CLIPS, SENTENCES = 3, 8
"""Clips of each speaker whose voices are compared, and recordings whose words are recognised."""


def mel_distance(recording: FloatArray, copy: FloatArray) -> float:
    """Mean over resolutions."""
    length = min(len(recording), len(copy))
    both = torch.from_numpy(np.stack([recording[:length], copy[:length]]))
    spectra = [
        log_mel(both, torch.from_numpy(mel_filters(RATE, size, bands, 40.0, RATE / 2))) for size, bands in MEL_SIZES
    ]
    return float(np.mean([float((own[0] - own[1]).abs().mean()) for own in spectra]))


def voices(codec: HiggsCodec, folder: Path) -> None:
    """Print mel distance, and cosines of voices."""
    judge = SpeakerEncoder()
    natural, copied, distances = [], [], []
    speakers = sorted(one for one in folder.iterdir() if one.is_dir())
    files = [file for speaker in speakers for file in sorted(speaker.glob("*.flac"))[:CLIPS]]
    for file in track("voices", files):
        recording, _ = read_audio(file, RATE)
        copy = codec.decode(codec.encode(recording, RATE))
        distances.append(mel_distance(recording, copy))
        natural.append((file.parent.name, judge.embed(recording, RATE)))
        copied.append(judge.embed(copy, RATE))
    pairs = list(combinations(range(len(natural)), 2))
    same = [(i, j) for i, j in pairs if natural[i][0] == natural[j][0]]
    other = [(i, j) for i, j in pairs if natural[i][0] != natural[j][0]]
    own = [float(one @ copy) for (_, one), copy in zip(natural, copied, strict=True)]
    print(f"{len(natural)} recordings of {len({name for name, _ in natural})} speakers, mel distance of copies")
    print(f"  {np.mean(distances):.3f}")
    print(f"cosine of a copy and its recording: {np.mean(own):.3f}")
    for name, chosen in (("one speaker", same), ("two speakers", other)):
        recordings = np.mean([natural[i][1] @ natural[j][1] for i, j in chosen])
        copies = np.mean([(natural[i][1] @ copied[j] + natural[j][1] @ copied[i]) / 2 for i, j in chosen])
        print(f"cosine of recordings of {name}: {recordings:.3f}; of a recording and a copy: {copies:.3f}")


def words(codec: HiggsCodec, folder: Path) -> None:
    """Print word error rates."""
    recogniser = Transcriber()
    lines = [line.split("|") for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()][:SENTENCES]
    texts, heard = [line[-1] for line in lines], {"recordings": [], "copies": []}
    for line in track("words", lines):
        recording, _ = read_audio(folder / "wavs" / f"{line[0]}.flac", RATE)
        heard["recordings"].append(recogniser.transcribe(recording, RATE))
        heard["copies"].append(recogniser.transcribe(codec.decode(codec.encode(recording, RATE)), RATE))
    for name, transcripts in heard.items():
        edits, total = word_edits(texts, transcripts)
        print(f"word error rate of {name}: {100 * edits / total:.1f} % of {total} words")


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("codec", type=Path)
    arguments = parser.parse_args()
    codec = HiggsCodec.load(arguments.codec)
    voices(codec, arguments.recordings / "spk_en_librispeech" / "test-other")
    words(codec, arguments.recordings / "tts_en_lj")


if __name__ == "__main__":
    main()
