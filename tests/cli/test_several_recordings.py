"""Several recordings, and folders of them, in one command: `phonate transcribe`, `diarize` and `convert`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from phonate.audio.decoding import read_audio
from phonate.cli import main
from phonate.cli.output import ProgressBar
from phonate.data.annotations import SpeakerTurn, read_rttm
from phonate.data.labels import LABEL_FORMATS
from phonate.data.progress import Stage, progress_in
from phonate.data.transcripts import Transcription
from phonate.tasks.diarization.inference import Diarization
from phonate.text.captions import TimedWord


class Model:
    """Hears of each recording the number that its name ends in; as a converter, makes a second of each."""

    sample_rate = 16000
    target = "anna"

    def stream(self, blocks: Any) -> Iterator[SpeakerTurn]:
        yield SpeakerTurn(0.1, len(list(blocks)) / 10, "speaker1")

    def timed(self, path: str, *_: Any, speakers: Any = None, **__: Any) -> Transcription:
        seconds, number = self._heard(path, Stage.TRANSCRIBING)
        return Transcription([TimedWord(f"number{number}", 0.1, 0.5, 1.0, "anna" if speakers else None)], seconds)

    def diarize(self, path: str, **_: Any) -> Diarization:
        seconds, number = self._heard(path, Stage.DIARIZING)
        turns = [SpeakerTurn(0.1, 0.5, f"speaker{number}")]
        return Diarization(turns, [f"speaker{number}"], np.ones((1, 1), np.float32), 1.0, seconds)

    def reference(self, *_: Any) -> str:
        return "anna"

    def parts(self, path: str, voice: str | None, semitones: float) -> Iterator[np.ndarray]:
        _, number = self._heard(path, Stage.CONVERTING)
        yield np.full(16000, int(number) / 10, np.float32)

    @staticmethod
    def _heard(path: str, stage: Stage) -> tuple[float, str]:
        progress = progress_in(stage, path)
        seconds = len(read_audio(path, 16000)[0]) / 16000
        progress(seconds / 2)
        progress(seconds)
        return seconds, Path(path).stem[-1]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that a command loads, in a folder with recordings of 2, 3 and 4 s and one that is none."""
    monkeypatch.chdir(tmp_path)
    Path("calls/may").mkdir(parents=True)
    for name, seconds in (("one 1", 2), ("may/two 2", 3), ("may/three 3", 4)):
        soundfile.write(f"calls/{name}.wav", np.zeros(seconds * 16000), 16000)
    Path("calls/broken.wav").write_text("Good morning.")
    names: list[str] = []
    monkeypatch.setattr("phonate.workflows.load.load", lambda name, *_, **__: (names.append(name), Model())[1])
    monkeypatch.setattr("phonate.pretrained.require", lambda *_: None)
    return names


def test_a_folder_has_a_file_for_each_recording(loaded: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "whisper", "calls", "-o", "texts"]) == 2
    files = {str(file.relative_to("texts")): file.read_text() for file in Path("texts").rglob("*.txt")}
    assert files == {"one 1.txt": "number1\n", "may/two 2.txt": "number2\n", "may/three 3.txt": "number3\n"}
    assert loaded == ["whisper"], "it is loaded once"
    printed = capsys.readouterr()
    assert f"{Path('texts/may/two 2.txt')}: 1 word, 3.0 s\n" in printed.out
    first, last = printed.err.splitlines()
    assert first.startswith("calls/broken.wav: not readable as audio")
    assert last == "1 of 4 recordings can't be read"
    assert main(["transcribe", "calls/may", "-o", "captions", "--format", "srt"]) == 0
    assert sorted(file.name for file in Path("captions").iterdir()) == ["three 3.srt", "two 2.srt"]


def test_a_folder_is_converted_into_a_folder(loaded: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "mine", "calls", "-o", "as/anna"]) == 2
    assert sorted(str(file.relative_to("as/anna")) for file in Path("as/anna").rglob("*.*")) == [
        "may/three 3.wav", "may/two 2.wav", "one 1.wav",
    ]  # fmt: skip
    assert loaded == ["mine"], "it is loaded once"
    printed = capsys.readouterr()
    assert f"{Path('as/anna/may/two 2.wav')}: 1.0 s as anna\n" in printed.out
    first, last = printed.err.splitlines()
    assert first.startswith("calls/broken.wav: not readable as audio")
    assert last == "1 of 4 recordings can't be read"
    assert main(["convert", "mine", "calls/one 1.wav", "calls/may", "-o", "all", "--format", "flac"]) == 0
    assert sorted(file.name for file in Path("all").iterdir()) == ["one 1.flac", "three 3.flac", "two 2.flac"]
    assert soundfile.info("all/one 1.flac").format == "FLAC"
    assert main(["convert", "mine", "calls/may", "-o", "calls/may", "--format", "flac"]) == 0, "sources are kept"
    assert len(soundfile.read("calls/may/two 2.wav")[0]) == 48000


@pytest.mark.parametrize("model", [[], ["whisper"], ["runs/mine"]])
def test_recordings_may_stand_in_place_of_the_model(
    model: list[str], loaded: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/recipe.yaml").touch()
    assert main(["transcribe", *model, "calls/one 1.wav", "calls/may", "calls/one 1.wav"]) == 0
    assert capsys.readouterr().out == "one 1: number1\nthree 3: number3\ntwo 2: number2\n"
    assert loaded == (model or ["whisper"])
    loaded.clear()
    assert main(["transcribe", *model, "calls/may", "calls/one 1.wav", "--json"]) == 0
    assert loaded == (model or ["whisper"])
    documents = json.loads(capsys.readouterr().out)
    assert {name: one["text"] for name, one in documents.items()} == {
        "three 3": "number3", "two 2": "number2", "one 1": "number1",
    }  # fmt: skip
    assert documents["one 1"]["recording"] == "calls/one 1.wav"


def test_one_file_can_hold_the_labels_of_all(loaded: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "calls/may", "-o", "all.ctm"]) == 0
    assert [one.recording for one in LABEL_FORMATS["ctm"].read(Path("all.ctm"))] == ["three_3", "two_2"]
    assert main(["diarize", "calls", "-o", "all.rttm"]) == 2
    assert {name: turns[0].speaker for name, turns in read_rttm("all.rttm").items()} == {
        "one_1": "speaker1", "two_2": "speaker2", "three_3": "speaker3",
    }  # fmt: skip
    assert main(["diarize", "calls/may", "-o", "turns", "--format", "TextGrid"]) == 0
    assert sorted(file.name for file in Path("turns").iterdir()) == ["three 3.TextGrid", "two 2.TextGrid"]
    capsys.readouterr()
    assert main(["diarize", "calls/may"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["three_3", "two_2"]


def test_one_recording_goes_into_a_folder_that_is_named_as_one(loaded: list[str]) -> None:
    assert main(["transcribe", "calls/one 1.wav", "-o", "texts/"]) == 0
    assert main(["diarize", "calls/one 1.wav", "-o", "texts"]) == 0, "it is there by now"
    assert sorted(file.name for file in Path("texts").iterdir()) == ["one 1.rttm", "one 1.txt"]
    assert main(["diarize", "calls/one 1.wav", "--stream", "-o", "turns/"]) == 0
    assert [file.name for file in Path("turns").iterdir()] == ["one 1.rttm"]


def test_several_go_into_a_folder_that_is_named_as_a_file(loaded: list[str]) -> None:
    assert main(["transcribe", "calls/may", "-o", "all.ctm/", "--format", ".json"]) == 0
    assert sorted(file.name for file in Path("all.ctm").iterdir()) == ["three 3.json", "two 2.json"]


def test_what_was_told_as_done_is_written_when_others_are_stopped(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = Model.timed

    def stopped(self: Model, path: str, *rest: Any, **options: Any) -> Transcription:
        if path.endswith("two 2.wav"):
            raise KeyboardInterrupt
        return timed(self, path, *rest, **options)

    monkeypatch.setattr(Model, "timed", stopped)
    assert main(["transcribe", "calls/may", "-o", "all.ctm"]) == 130
    assert capsys.readouterr().out == "three 3: 1 word, 4.0 s\n"
    assert [one.recording for one in LABEL_FORMATS["ctm"].read(Path("all.ctm"))] == ["three_3"]


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "recipe.yaml", "checkpoints"])
def test_recordings_may_lie_beside_other_files(name: str, loaded: list[str]) -> None:
    Path("calls/may", name).touch()
    assert main(["transcribe", "calls/may", "-o", "texts"]) == 0
    Path("calls/may/recipe.yaml").touch()
    Path("calls/may/hyperparameters.json").touch()
    assert main(["transcribe", "calls/may"]) == 2, "it is a run now"


@pytest.mark.parametrize("command", [["transcribe"], ["diarize"], ["convert", "mine"]])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(
    command: list[str], loaded: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("texts").mkdir()
    Path("texts/may").touch()
    Path("here").mkdir()
    access = os.access
    forbidden = str(Path("here").absolute())
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != forbidden and access(path, mode))
    for output, said in (
        ("texts", f"texts/may: can't be written ({Path('texts/may').absolute()} is a file); choose another path"),
        ("texts/may/deep", f"texts/may/deep: can't be written ({Path('texts/may').absolute()} is a file); choose"),
        ("here/new", "here/new: can't be written (Permission denied); choose another path"),
    ):
        assert main([*command, "calls", "-o", output]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {said}")
    assert not loaded
    assert not list(Path("here").iterdir())


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        (["transcribe", "calls", "--speakers"], Stage.TRANSCRIBING),
        (["convert", "mine", "calls", "-o", "out"], Stage.CONVERTING),
    ],
)
def test_progress_is_that_of_all_recordings(
    words: list[str], stage: Stage, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, int, int]] = []
    monkeypatch.setattr(ProgressBar, "__call__", lambda self, *report: shown.append(report))
    assert main(words) == 2
    assert {(what, total) for what, _, total in shown} == {(stage, 9)}
    done = [one for _, one, _ in shown]
    assert done == sorted(done)
    assert set(done) == {0, 2, 4, 6, 7, 8, 9}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["transcribe", "calls", "-o", "all.srt"],
            "all.srt: there are several recordings; give a folder, such as -o all --format srt, or one .ctm or",
        ),
        (["transcribe", "calls", "-o", "texts", "--format", "doc"], "not as .doc"),
        (["transcribe", "calls", "-o", "texts", "--format", "rttm"], "add --speakers"),
        (["transcribe", "calls", "--format", "srt"], "--format srt: only for files in a folder; name it by -o FOLDER"),
        (["transcribe", "calls", "-o", "a.ctm", "--format", "srt"], "--format: only for a folder"),
        (["transcribe", "calls", "--page", "a.html"], "--page: is for one recording; leave it out, or give one"),
        (["transcribe", "others", "--page", "a.html"], "leave it out, or give others/two 2.wav"),
        (["diarize", "calls", "--stream"], "--stream: is for one recording"),
        (["diarize", "calls", "absent.wav"], "absent.wav: no such file"),
        (["diarize", "calls/may", "others"], "others/two 2.wav: both would be written as two 2; rename one"),
        (["diarize", "alike", "-o", "all.rttm"], "alike/a_1.wav: both would be written as a_1; rename one"),
        (["transcribe", "alike", "-o", "all.ctm"], "alike/a_1.wav: both would be written as a_1; rename one"),
        (["transcribe", "absent.wav", "calls"], "absent.wav: no such file"),
        (["transcribe", "s3://bucket/a.wav", "calls"], "s3://bucket/a.wav: an address; download the recording"),
        (["transcribe", "calls", "-o", ""], "-o: is empty; give a file or a folder"),
        (["transcribe", "empty"], "empty: has no recordings"),
        (["transcribe", "whisper"], "whisper: a model; give the recording behind it, as in whisper IN.wav"),
        (["transcribe", "calls", "whisper"], "calls: a folder of recordings; the run comes first: whisper calls"),
        (["transcribe", "model.pt", "calls"], "model.pt: neither a run nor a recording; give the folder of a run"),
        (["convert", "model.pt", "calls", "-o", "out"], "model.pt: neither a run nor a recording"),
        (
            ["convert", "calls", "calls/may", "-o", "out"],
            "calls: a folder of recordings; the run comes first, as in RUN",
        ),
        (
            ["convert", "mine", "others", "-o", "q.wav"],
            "q.wav: a folder was given, not its recording others/two 2.wav; give that, or a folder, such as -o q",
        ),
        (["convert", "mine", "calls", "-o", "all.wav"], "there are several recordings; give a folder, such as -o all"),
        (["convert", "mine", "calls", "-o", "out", "--format", "ogg"], "only .wav, .flac and .mp3 can be written"),
        (["convert", "mine", "calls", "-o", "calls"], "calls/broken.wav: is a recording that is read; choose"),
        (["convert", "mine", "others", "calls/may/three 3.wav", "-o", "calls/may/"], "three 3.wav: is a recording"),
        (
            ["convert", "mine", "others", "--reference", "calls/may", "-o", "calls/may"],
            "calls/may/two 2.wav: is a recording that is read",
        ),
        (["convert", "mine", "calls", "--live", "-o", "out/"], "--live: is for one recording; leave it out, or give"),
    ],
)
def test_mistakes_are_told_before_the_work(
    words: list[str], said: str, loaded: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("model.pt").write_bytes(b"PK")
    Path("others").mkdir()
    Path("alike").mkdir()
    Path("alike/a 1.wav").touch()
    Path("alike/a_1.wav").touch()
    Path("others/two 2.wav").write_bytes(Path("calls/may/two 2.wav").read_bytes())
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not loaded
