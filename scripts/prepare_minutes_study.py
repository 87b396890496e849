"""Writes the corpora of a study: how good is a voice from 2, 5, 15 or 50 minutes, from scratch and from a base?

    python scripts/prepare_minutes_study.py RECORDINGS study

RECORDINGS has the folders tts_en_kathleen, tts_en_lj and spk_en_librispeech/train-clean-100. The texts of LibriSpeech,
which come without, are written by Whisper base.

    others.csv       other speakers, with texts: the base of the study, which has never heard Kathleen
    kathleen-N.csv   N minutes of Kathleen; each table has the recordings of the smaller ones
    held_out.csv     Kathleen's held-out recordings, those of prepare_base.py, which are in no other table
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from prepare_base import Row, held_out, readers, rows, write

from phonate.audio.decoding import probe, read_audio
from phonate.pretrained import Transcriber

MINUTES = (2, 5, 15, 50)
VALIDATION = 0.1
"""Share of the recordings of each table that checkpoints are judged by."""


def with_texts(table: list[Row]) -> list[Row]:
    """The recordings with what Whisper base understands; those in which it understands nothing are left out."""
    recogniser = Transcriber("base")
    found = [(audio, speaker, recogniser.transcribe(*read_audio(Path(audio)))) for audio, speaker, _ in table]
    return [row for row in found if row[2].strip()]


def minutes_of(table: list[Row], minutes: float) -> list[Row]:
    """The first recordings of a table that last so long together, or all of it."""
    chosen, seconds = list[Row](), 0.0
    for row in table:
        seconds += probe(Path(row[0])).duration
        if seconds > 60 * minutes:
            break
        chosen.append(row)
    return chosen


def main() -> None:
    """Write the tables."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    recordings, study = map(Path, sys.argv[1:])
    study.mkdir(parents=True, exist_ok=True)
    voice = rows(recordings / "tts_en_kathleen", "kathleen")
    kept = held_out(voice)
    write(study / "held_out.csv", [row for row in voice if row[0] in kept], test=kept)
    known = [row for row in voice if row[0] not in kept]
    random.Random(0).shuffle(known)
    for minutes in MINUTES:
        chosen = minutes_of(known, minutes)
        judged = {audio for audio, *_ in chosen[: max(2, round(VALIDATION * len(chosen)))]}
        write(study / f"kathleen-{minutes}.csv", chosen, validation=judged)
    lj = rows(recordings / "tts_en_lj", "lj")
    others = with_texts(readers(recordings / "spk_en_librispeech" / "train-clean-100"))
    write(study / "others.csv", lj + others, validation={audio for audio, *_ in lj[:4]})


if __name__ == "__main__":
    main()
