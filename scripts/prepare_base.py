"""Writes the corpora of the voice and the vocoder that come with the package.

    python scripts/prepare_base.py KATHLEEN KERSTIN study

KATHLEEN and KERSTIN are folders in LJSpeech's layout, such as those of the open recordings of Kathleen (English) and
Kerstin (German). study/vocoder.csv has the recordings of both, study/voice.csv those of Kathleen with their texts. A
tenth of Kathleen's prompts, study/held_out.csv, takes part in no training: the ones that `data.validation=0.1` would
choose, so that figures of the base and of a voice trained from scratch are of the same prompts. They are the validation
of the voice, and are left out of the vocoder's.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from phonate.data.store.splits import split

Row = tuple[str, str, str]
HELD_OUT = 0.1
HEADER = ("audio_path", "speaker_id", "text", "split")


def rows(corpus: Path, speaker: str) -> list[Row]:
    """The recordings of a corpus in LJSpeech's layout: path, speaker and text."""
    with (corpus / "metadata.csv").open(encoding="utf-8") as lines:
        fields = [line.rstrip("\n").split("|") for line in lines]
    found = []
    for name, *texts in fields:
        (audio,) = (corpus / "wavs").glob(f"{name}.*")
        found.append((str(audio.resolve()), speaker, texts[-1]))
    return found


def held_out(table: list[Row]) -> set[str]:
    """The recordings of a share of the rows."""
    names = [Path(audio).stem for audio, *_ in table]
    _, chosen = split(names, np.zeros(len(names), dtype=np.int64), HELD_OUT)
    return {table[position][0] for position in chosen.tolist()}


def write(path: Path, table: list[Row], kept: set[str], split_name: str) -> None:
    """A table of recordings, with those that are `kept` in a split of their own."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows((*row, split_name if row[0] in kept else "train") for row in table)
    print(f"{path}: {len(table)} recordings, {sum(row[0] in kept for row in table)} of them held out")


def main() -> None:
    """Write the tables."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    kathleen, kerstin, study = map(Path, sys.argv[1:])
    study.mkdir(parents=True, exist_ok=True)
    voice = rows(kathleen, "kathleen")
    kept = held_out(voice)
    write(study / "voice.csv", voice, kept, "validation")
    write(study / "vocoder.csv", [*voice, *rows(kerstin, "kerstin")], kept, "test")
    write(study / "held_out.csv", [row for row in voice if row[0] in kept], kept, "validation")


if __name__ == "__main__":
    main()
