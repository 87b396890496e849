"""Write the corpora of the recognition study: what is trained on and what is judged. They share no speaker.

    python scripts/prepare_recognition_study.py RECORDINGS FOLDER

RECORDINGS holds asr_en_an4 (metadata.csv of `id|speaker|TEXT` and wavs/), and tts_en_lj and tts_en_kathleen (of
`id|text|text`). FOLDER gets train.json and test.json, and lj.json and kathleen.json: other speech, by which nothing was
chosen.
"""

from __future__ import annotations

from pathlib import Path

from studies import Rows, prepare

EVERY = 6
"""Every sixth speaker, in the order of their names, is judged and never trained on."""

OTHERS = {"lj": ("tts_en_lj", slice(1, None, 2)), "kathleen": ("tts_en_kathleen", slice(5, None, 20))}
"""The folder of each other reader, and which recordings are judged: none of those that chose the settings."""


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
        **{name: reader(recordings / folder, name)[which] for name, (folder, which) in OTHERS.items()},
    }


def reader(corpus: Path, name: str) -> Rows:
    """The rows of a corpus of one reader, in LJ Speech's layout."""
    lines = (line.split("|") for line in (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines())
    return [
        {"id": one, "audio_path": str(corpus / "wavs" / f"{one}.flac"), "speaker_id": name, "text": text}
        for one, _, text in lines
    ]


if __name__ == "__main__":
    prepare(__doc__, study)
