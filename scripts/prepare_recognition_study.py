"""Write the corpora of the recognition study: what is trained on and what is judged. They share no speaker.

    python scripts/prepare_recognition_study.py RECORDINGS FOLDER

RECORDINGS holds asr_en_an4 (metadata.csv of `id|speaker|TEXT` and wavs/). FOLDER gets train.json and test.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

EVERY = 6
"""Every sixth speaker, in the order of their names, is judged and never trained on."""


def study(corpus: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of both corpora."""
    lines = (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines()
    rows = [
        {"id": name, "audio_path": str(corpus / "wavs" / f"{name}.flac"), "speaker_id": speaker, "text": text}
        for name, speaker, text in (line.split("|") for line in lines)
    ]
    judged = set(sorted({row["speaker_id"] for row in rows})[::EVERY])
    return {
        "train": [row for row in rows if row["speaker_id"] not in judged],
        "test": [row for row in rows if row["speaker_id"] in judged],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, rows in study((arguments.recordings / "asr_en_an4").resolve()).items():
        path = arguments.folder / f"{name}.json"
        path.write_text(json.dumps({"samples": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        speakers = len({row["speaker_id"] for row in rows})
        print(f"{path}: {len(rows)} clips of {speakers} speakers")


if __name__ == "__main__":
    main()
