"""Writes the corpora of the voice and the vocoder that come with the package.

    python scripts/prepare_base.py KATHLEEN KERSTIN study

KATHLEEN and KERSTIN are folders in LJSpeech's layout, such as those of the open recordings of Kathleen (English) and
Kerstin (German). study/vocoder.csv has the recordings of both, study/voice.csv those of Kathleen with their texts. A
tenth of Kathleen's prompts takes part in no training (split "test"): the ones that `data.validation=0.1` would choose,
so that figures of the base and of a voice trained from scratch are of the same prompts.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phonate.data.store.splits import split

HELD_OUT = 0.1
HEADER = ("audio_path", "speaker_id", "text", "split")


def rows(corpus: Path, speaker: str) -> list[tuple[str, str, str, str]]:
    """The recordings of a corpus in LJSpeech's layout, all for training."""
    with (corpus / "metadata.csv").open(encoding="utf-8") as lines:
        fields = [line.rstrip("\n").split("|") for line in lines]
    found = []
    for name, *texts in fields:
        (audio,) = (corpus / "wavs").glob(f"{name}.*")
        found.append((str(audio.resolve()), speaker, texts[-1], "train"))
    return found


def with_test(given: list[tuple[str, str, str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Rows with a share marked as held out."""
    names = [Path(audio).stem for audio, *_ in given]
    _, held_out = split(names, np.zeros(len(names), dtype=np.int64), HELD_OUT)
    for number, row in enumerate(given):
        yield (*row[:3], "test" if number in set(held_out.tolist()) else "train")


def write(path: Path, table: list[tuple[str, str, str, str]]) -> None:
    """A table of recordings."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(table)
    print(f"{path}: {len(table)} recordings, {sum(row[3] == 'test' for row in table)} of them held out")


def main() -> None:
    """Write both tables."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    kathleen, kerstin, study = map(Path, sys.argv[1:])
    study.mkdir(parents=True, exist_ok=True)
    voice = list(with_test(rows(kathleen, "kathleen")))
    write(study / "voice.csv", voice)
    write(study / "vocoder.csv", [*voice, *rows(kerstin, "kerstin")])


if __name__ == "__main__":
    main()
