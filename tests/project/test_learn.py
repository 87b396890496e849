"""The chapters of docs/learn, command by command, on real recordings; only steps and sizes are smaller."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from phonate.cli import main
from phonate.data.annotations import read_rttm, write_rttm

EVAL = ("faster_whisper", "resemblyzer")
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, EVAL)), reason="needs pip install 'phonate[eval]'"
)

LEARN = Path(__file__).parents[2] / "docs" / "learn"
SMALL = {
    "speech": ["training.max_steps=2", "training.scheduler.warmup_steps=1", "data.judged=2"],
    "diarization-pretrained": ["training.max_steps=2", "data.samples=8"],
    "conversion-whisper": ["training.max_steps=2", "size=tiny", "training.batch_size=4"],
}
EVERY = ["training.validation.interval=2", "training.checkpoint.interval=1", "training.logging.tensorboard=false"]


def commands(chapter: str) -> list[list[str]]:
    """What the chapter tells its reader to type."""
    blocks = re.findall(r"<!-- learn -->\n```bash\n(.*?)^```$", (LEARN / chapter).read_text("utf-8"), re.S | re.M)
    return [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]


def my_voice(data: Path) -> None:
    """Eight recordings with a text file beside each."""
    Path("my_voice").mkdir()
    lines = (data / "tts_en_lj/metadata.csv").read_text("utf-8").splitlines()
    for number, (name, *_, text) in enumerate(line.split("|") for line in lines[:8]):
        (source,) = (data / "tts_en_lj/wavs").glob(f"{name}.*")
        shutil.copy(source, f"my_voice/{number:02d}{source.suffix}")
        Path(f"my_voice/{number:02d}.txt").write_text(text, "utf-8")


def meetings(data: Path) -> None:
    """Extracts of meetings with their labels; the last one is the unseen Tuesday."""
    Path("meetings").mkdir()
    turns = read_rttm(data / "diar_en_ami/ref.rttm")
    recordings = sorted((data / "diar_en_ami/wavs").iterdir())
    for recording in recordings[:4]:
        shutil.copy(recording, "meetings")
    write_rttm(Path("meetings/all.rttm"), {one.stem: turns[one.stem] for one in recordings[:4]})
    soundfile.write("tuesday.wav", *soundfile.read(recordings[-1]))
    write_rttm(Path("tuesday_by_hand.rttm"), {"tuesday": turns[recordings[-1].stem]})


def my_recordings(data: Path) -> None:
    """A folder for each of four speakers, and one of what is kept back."""
    speakers = sorted((data / "spk_en_librispeech/test-other").iterdir())
    for name, speaker in zip(("anna", "ben", "carl", "dora"), speakers, strict=True):
        shutil.copytree(speaker, Path("my_recordings") / name)
    strangers = sorted((data / "spk_en_librispeech/train-clean-100").iterdir())[:2]
    kept = [("anna", recording) for recording in sorted(Path("my_recordings/anna").iterdir())[:2]]
    for name, recording in [*kept, *((one.stem, one) for one in strangers)]:
        Path("kept_back", name).mkdir(parents=True, exist_ok=True)
        sound, rate = soundfile.read(recording)
        soundfile.write(Path("kept_back", name, f"{recording.stem}.wav"), sound[: 4 * rate], rate)  # a judge is slow
    for _, recording in kept:
        recording.unlink()
    soundfile.write("somebody.wav", *soundfile.read(sorted(Path("my_recordings/ben").iterdir())[0]))


CHAPTERS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "voice.md": (my_voice, ["hello.wav", "runs/speech/report.html", "my_voice_sherpa/model.onnx"]),
    "meetings.md": (meetings, ["tuesday.srt", "tuesday.rttm", "tuesday.html", "tuesday.txt"]),
    "converter.md": (my_recordings, ["anna.wav"]),
}
"""Chapter -> (what makes its folder, the files that its reader ends up with)."""


def test_every_chapter_is_tested() -> None:
    assert {page.name for page in LEARN.glob("*.md")} == CHAPTERS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_runs_from_its_folder_to_its_files(
    chapter: str, recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lay_out, files = CHAPTERS[chapter]
    lay_out(recordings)
    assert len(commands(chapter)) >= 5
    for words in commands(chapter):
        small = [*SMALL[Path(words[1]).name], *EVERY] if words[0] == "train" else []
        if "--resume" in words:
            small = [word.replace("max_steps=2", "max_steps=3") for word in small]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([*words, *small]) == 0, words
        assert out.getvalue().strip() or words[0] in ("speak", "convert", "diarize", "transcribe"), words
    for name in files:
        assert Path(name).stat().st_size > 1000 or not name.endswith((".wav", ".html", ".onnx")), name
