"""Write the corpora of the recognition study: what is trained on and what is judged. They share no speaker.

    python scripts/prepare_recognition_study.py RECORDINGS FOLDER

RECORDINGS holds asr_en_an4 (metadata.csv of `id|speaker|TEXT` and wavs/). FOLDER gets train.json and test.json.
"""

from __future__ import annotations

from pathlib import Path

from studies import Rows, prepare

EVERY = 6
"""Every sixth speaker, in the order of their names, is judged and never trained on."""


def study(recordings: Path) -> dict[str, Rows]:
    """The rows of both corpora."""
    corpus = recordings / "asr_en_an4"
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


if __name__ == "__main__":
    prepare(__doc__, study)
