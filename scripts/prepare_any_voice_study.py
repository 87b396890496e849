"""Write the corpora of the study of conversion to any voice. Nobody who speaks or is converted to in one is in another;
voices that targets are ranked among may be.

    python scripts/prepare_any_voice_study.py RECORDINGS FOLDER

RECORDINGS holds tts_en_kathleen, tts_en_lj, tts_de_kerstin (LJSpeech layout: metadata.csv and wavs/),
spk_en_librispeech (train-clean-100/ with one clip a speaker, test-other/SPEAKER/), and asr_en_an4 and voice_ar_commands
(metadata.csv of `id|speaker|text` and wavs/). FOLDER gets train.json, development.json, on which settings are chosen,
and evaluation.json, whose clips to convert are those of the conversion study.
"""

from __future__ import annotations

from pathlib import Path

from prepare_conversion_study import (
    RANKED_SPEAKERS,
    SEVERAL_CLIPS,
    SINGLE_CLIPS,
    TARGET,
    TARGET_REFERENCES,
    librispeech,
    read_ljspeech,
)
from studies import Rows, prepare

GIVEN_CLIPS = 30
"""First clips of Kathleen, from which a minute is the reference; the last ones are compared with."""
DEVELOPMENT_CLIPS = ("7078", "887", "441", "1040", "481", "6818", "5678", "2952", "103", "2416", "446", "8580")
DEVELOPMENT_SPEAKERS = ("00000001", "00000005")
"""Of voice_ar_commands; with Kerstin, the voices that are converted to while settings are chosen."""


def read_speakers(folder: Path) -> Rows:
    """Rows of a corpus of several speakers, without their texts: recognisers that judge read English only."""
    lines = (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()
    fields = [line.split("|") for line in lines]
    return [
        {"id": name, "audio_path": str(folder / "wavs" / f"{name}.flac"), "speaker_id": speaker}
        for name, speaker, *_ in fields
    ]


def study(recordings: Path) -> dict[str, Rows]:
    """The rows of the three corpora. Clips to convert come first, one of each speaker, as the evaluation takes them."""
    kathleen = read_ljspeech(recordings / "tts_en_kathleen", TARGET)
    books = recordings / "spk_en_librispeech"
    several = [sorted((books / "test-other" / speaker).glob("*.flac")) for speaker in SEVERAL_CLIPS]
    singles = {file.name.partition("-")[0]: file for file in sorted((books / "train-clean-100").glob("*.flac"))}
    judged = [singles.pop(name) for name in SINGLE_CLIPS]
    ranked = list(singles.values())[:RANKED_SPEAKERS]
    development = [singles.pop(name) for name in DEVELOPMENT_CLIPS]
    commands = read_speakers(recordings / "voice_ar_commands")
    kept = [row for row in commands if row["speaker_id"] in DEVELOPMENT_SPEAKERS]
    return {
        "train": librispeech(list(singles.values()))
        + read_speakers(recordings / "asr_en_an4")
        + [row for row in commands if row["speaker_id"] not in DEVELOPMENT_SPEAKERS],
        "development": librispeech(development) + kept + read_ljspeech(recordings / "tts_de_kerstin", "kerstin"),
        "evaluation": librispeech([clips[0] for clips in several] + judged)
        + librispeech([file for clips in several for file in clips[1:]])
        + read_ljspeech(recordings / "tts_en_lj", "lj")
        + kathleen[:GIVEN_CLIPS]
        + kathleen[-TARGET_REFERENCES:]
        + librispeech(ranked),
    }


if __name__ == "__main__":
    prepare(__doc__, study)
