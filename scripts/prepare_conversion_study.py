"""Write the corpora of the conversion study: what is trained on, and what is judged. They share only the target.

    python scripts/prepare_conversion_study.py RECORDINGS FOLDER

RECORDINGS holds tts_en_kathleen, tts_en_lj, tts_de_kerstin (LJSpeech layout: metadata.csv and wavs/), asr_en_an4
(metadata.csv with speakers) and spk_en_librispeech (train-clean-100/ with one clip a speaker, test-other/SPEAKER/).
FOLDER gets train.json, train_many.json (the same and 142 other speakers), train_speeds.json (the same, and once more at
another speed, as voices of another pitch: everybody's recordings, of the target's every other one), evaluation.json,
development.json (clips of twelve speakers, to choose on) and confirmation.json (of twelve further ones, to confirm on).
Nobody who is converted in one of these three is in what is trained on.
"""

from __future__ import annotations

from pathlib import Path

import soundfile
from prepare_base import at_other_speed
from studies import Rows, prepare, write

TARGET = "kathleen"
TARGET_REFERENCES = 30
# The four speakers with several clips, and every twelfth of the hundred others in order of their median pitch
# (79 to 210 Hz): twelve unlike voices, half of them or more men's.
SEVERAL_CLIPS = ("1688", "1998", "2033", "2414")
SINGLE_CLIPS = ("5703", "8098", "4014", "2002", "7505", "1578", "1088", "8051")
RANKED_SPEAKERS = 37
"""Further voices among which the target must come first: with the twelve sources and the target, fifty."""
CONFIRMED_EACH = 4
"""Every fourth of the remaining speakers is a source of the confirmation."""
DEVELOPED_EACH = 3
"""Every third of those that then remain, from the fourth on, is a source of the development corpus."""
PIECE = 3.0
"""Seconds of the pieces that long recordings are trained on in: a recording gives one sample an epoch."""
END = 0.001
"""Seconds left out at the end of a recording, which a rounded time must not exceed."""


def read_ljspeech(folder: Path, speaker: str) -> Rows:
    """Rows of a corpus in LJSpeech layout, in the order of its metadata."""
    lines = (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()
    fields = [line.split("|") for line in lines]
    return [
        {
            "id": row[0],
            "audio_path": str(folder / "wavs" / f"{row[0]}.flac"),
            "speaker_id": speaker,
            "text": row[-1],
        }
        for row in fields
    ]


def read_an4(folder: Path) -> Rows:
    """Rows of AN4, in the order of its metadata."""
    lines = (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()
    return [
        {"id": id, "audio_path": str(folder / "wavs" / f"{id}.flac"), "speaker_id": f"an4-{speaker}"}
        for id, speaker, _ in (line.split("|") for line in lines)
    ]


def pieces(rows: Rows) -> Rows:
    """Each recording of `rows` in pieces of `PIECE` seconds; the last one is up to twice as long."""
    cut: Rows = []
    for row in rows:
        seconds = soundfile.info(row["audio_path"]).duration
        count = max(1, int(seconds / PIECE))
        for number in range(count):
            start = PIECE * number
            part = {"offset": start, "duration": PIECE if number + 1 < count else seconds - start}
            cut.append(row | part | {"id": f"{row['id']}-{number}"})
    return cut


def at_other_speeds(rows: Rows, folder: Path) -> Rows:
    """Each recording of `rows` at another speed, in the same pieces, as one of a speaker of its own."""
    made: Rows = []
    played: dict[str, tuple[str, float]] = {}
    for row in rows:
        audio = row["audio_path"]
        if audio not in played:
            played[audio] = at_other_speed(Path(audio), len(played), folder)
        path, speed = played[audio]
        changed = {"id": f"{row['id']}-s", "audio_path": path, "speaker_id": f"{row['speaker_id']} x{speed}"}
        if "offset" in row:
            offset, left = round(row["offset"] / speed, 4), soundfile.info(path).duration - END
            changed |= {"offset": offset, "duration": round(min(row["duration"] / speed, left - offset), 4)}
        made.append(row | changed)
    return made


def librispeech(files: list[Path]) -> Rows:
    """Rows of LibriSpeech clips, whose names begin with their speakers."""
    return [{"id": file.stem, "audio_path": str(file), "speaker_id": file.name.partition("-")[0]} for file in files]


def study(recordings: Path) -> dict[str, Rows]:
    """The rows of the corpora. The judged clips come first, one of each speaker, as the evaluation takes them."""
    target = read_ljspeech(recordings / "tts_en_kathleen", TARGET)
    books = recordings / "spk_en_librispeech"
    several = [sorted((books / "test-other" / speaker).glob("*.flac")) for speaker in SEVERAL_CLIPS]
    singles = sorted((books / "train-clean-100").glob("*.flac"))
    judged = [next(file for file in singles if file.name.startswith(f"{name}-")) for name in SINGLE_CLIPS]
    ranked = [file for file in singles if file not in judged][:RANKED_SPEAKERS]
    sources = [clips[0] for clips in several] + judged
    others = [file for clips in several for file in clips[1:]] + ranked
    confirmed = [file for file in singles if file not in judged + ranked][::CONFIRMED_EACH][: len(sources)]
    rest = [file for file in singles if file not in judged + ranked + confirmed]
    developed = rest[DEVELOPED_EACH::DEVELOPED_EACH][: len(sources)]
    references = target[-TARGET_REFERENCES:]
    trained = target[:-TARGET_REFERENCES]
    trained += read_ljspeech(recordings / "tts_en_lj", "lj") + read_ljspeech(recordings / "tts_de_kerstin", "kerstin")
    many = ranked + [file for file in rest if file not in developed]
    return {
        "train": trained,
        "train_many": trained + pieces(librispeech(many)) + read_an4(recordings / "asr_en_an4"),
        "evaluation": librispeech(sources) + librispeech(others) + references,
        "development": librispeech(developed) + librispeech(ranked) + references,
        "confirmation": librispeech(confirmed) + librispeech(ranked) + references,
    }


if __name__ == "__main__":
    corpora, folder = prepare(__doc__, study)
    known = corpora["train_many"]
    again = [row for row in known if row["speaker_id"] == TARGET][1::2]
    again += [row for row in known if row["speaker_id"] != TARGET]
    write(folder, "train_speeds", known + at_other_speeds(again, folder / "speeds"))
