"""Writes the corpora of the voice and the vocoder that come with the package.

    python scripts/prepare_base.py KATHLEEN KERSTIN LIBRISPEECH study [OTHERS ...]

KATHLEEN and KERSTIN are folders in LJSpeech's layout, such as those of the open recordings of Kathleen (English) and
Kerstin (German), LIBRISPEECH is a folder of recordings called SPEAKER-CHAPTER-NUMBER, such as train-clean-100, OTHERS
are folders of recordings of many people, called SPEAKER-NUMBER or SPEAKER_NUMBER.

    vocoder.csv   everyone, without texts, and all but Kathleen once more, faster or slower: as a voice of another pitch
    voice.csv     Kathleen, with texts
    speakers.csv  Kathleen, with texts, and LibriSpeech, without (data.transcribe writes them)
    held_out.csv  Kathleen's held-out recordings

A tenth of Kathleen's prompts, those of held_out.csv, takes part in no training: the ones that `data.validation=0.1`
would choose. They are the test split of the tables with texts, and are left out of what the vocoder is trained on. 24
others are the validation split, so that no checkpoint is chosen on the prompts that figures are reported on.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import soundfile
import soxr

from phonate.audio.decoding import read_audio
from phonate.data.corpora.rows import audio_files
from phonate.data.prepared import split

Row = tuple[str, str, str]
HELD_OUT = 0.1
"""Share of Kathleen's recordings."""
JUDGED = 24
"""Of her other recordings for validation; at most a quarter of them."""
HEADER = ("audio_path", "speaker_id", "text", "split")
SPEEDS = (0.8, 1.12, 0.9, 1.25)
"""Of the recordings in turn."""


def rows(corpus: Path, speaker: str) -> list[Row]:
    """The recordings of a corpus in LJSpeech's layout: path, speaker and text."""
    with (corpus / "metadata.csv").open(encoding="utf-8") as lines:
        fields = [line.rstrip("\n").split("|") for line in lines]
    found = []
    for name, *texts in fields:
        (audio,) = (corpus / "wavs").glob(f"{name}.*")
        found.append((str(audio.resolve()), speaker, texts[-1]))
    return found


def held_out(table: list[Row], share: float = HELD_OUT) -> set[str]:
    """The recordings of a share of the rows."""
    names = [Path(audio).stem for audio, *_ in table]
    _, chosen = split(names, np.zeros(len(names), dtype=np.int64), share)
    return {table[position][0] for position in chosen.tolist()}


def write(path: Path, table: list[Row], **splits: set[str]) -> None:
    """A table of recordings; those in none of the `splits` are for training."""
    named = {audio: name for name, members in splits.items() for audio in members}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows((*row, named.get(row[0], "train")) for row in table)
    counts = Counter(named.get(row[0], "train") for row in table)
    print(f"{path}: {', '.join(f'{count} for {name}' for name, count in counts.items())}")


def many_voices(folder: Path) -> list[Row]:
    """Recordings of a folder and their speakers, without texts."""
    return [(str(one.resolve()), re.sub(r"[-_][^-_]*$", "", one.stem), "") for one in audio_files(folder)]


def at_other_speed(audio: Path, number: int, folder: Path) -> tuple[str, float]:
    """Recording number `number` played faster or slower, with the pitch and the formants of another voice: its file in
    `folder`, which is kept if it is there, and the speed."""
    folder.mkdir(parents=True, exist_ok=True)
    speed = SPEEDS[number % len(SPEEDS)]
    target = folder / f"{number}-{audio.stem}.flac"
    if not target.exists():
        waveform, rate = read_audio(audio)
        unfinished = folder / "unfinished.flac"
        soundfile.write(unfinished, soxr.resample(waveform, speed * rate, rate, quality="VHQ"), rate)
        unfinished.replace(target)
    return str(target.resolve()), speed


def at_other_speeds(table: list[Row], folder: Path) -> list[Row]:
    """The recordings at other speeds, each as a recording of a speaker of its own."""
    made = []
    for number, (audio, speaker, _) in enumerate(table):
        played, speed = at_other_speed(Path(audio), number, folder)
        made.append((played, f"{speaker} x{speed}", ""))
    return made


def readers(folder: Path) -> list[Row]:
    """Recordings of LibriSpeech, without texts."""
    return [(str(one.resolve()), f"librispeech-{one.stem.split('-')[0]}", "") for one in audio_files(folder)]


def main() -> None:
    """Write the tables."""
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    kathleen, kerstin, librispeech, study, *others = map(Path, sys.argv[1:])
    for name, folder in (("KATHLEEN", kathleen), ("KERSTIN", kerstin)):
        if not (folder / "metadata.csv").is_file():
            sys.exit(f"{name}={folder}: no metadata.csv there; give the folder that has it and wavs")
    for folder in (librispeech, *others):
        if not folder.is_dir() or folder == Path():
            sys.exit(f"{folder}: no such folder; LIBRISPEECH and OTHERS are folders of recordings")
    study.mkdir(parents=True, exist_ok=True)
    voice = rows(kathleen, "kathleen")
    kept = held_out(voice)
    rest = [row for row in voice if row[0] not in kept]
    splits = {"test": kept, "validation": held_out(rest, min(JUDGED / len(rest), 0.25))}
    write(study / "voice.csv", voice, **splits)
    write(study / "speakers.csv", voice + readers(librispeech), **splits)
    many = [(audio, speaker, "") for audio, speaker, _ in rows(kerstin, "kerstin")]
    many += [one for folder in (librispeech, *others) for one in many_voices(folder)]
    known = [(audio, speaker, "") for audio, speaker, _ in rest]
    write(study / "vocoder.csv", known + many + at_other_speeds(many, study / "speeds"))
    write(study / "held_out.csv", [row for row in voice if row[0] in kept], test=kept)


if __name__ == "__main__":
    main()
