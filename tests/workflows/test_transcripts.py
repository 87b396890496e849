"""Recordings without texts, transcribed on the way: `data.transcribe`."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import phonate_process
from phonate import pretrained
from phonate.audio.decoding import read_audio
from phonate.config.errors import DataError, InputError, MissingPackageError
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Problem, Row
from phonate.data.prepared import prepare
from phonate.data.settings import SpokenData
from phonate.evaluation.words import word_error_rate
from phonate.tasks.speech.settings import SpeechData
from phonate.training.plan import plan
from phonate.workflows.datasets import transcripts
from phonate.workflows.datasets.from_recordings import load_transcriber
from phonate.workflows.datasets.transcripts import transcribe
from phonate.workflows.demo.demo import RECORDINGS
from phonate.workflows.demo.demo import _listed as demo_listing
from phonate.workflows.train import train

pytestmark = pytest.mark.usefixtures("whisper")
CLIPS = ("LJ001-0002", "LJ001-0004", "LJ001-0008", "LJ001-0012")
with (RECORDINGS / "metadata.csv").open(encoding="utf-8", newline="") as _opened:
    TRUE = {row["audio_path"].removesuffix(".ogg"): row["text"] for row in csv.DictReader(_opened)}
RATE = 22050


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    """Four recordings of a human voice without texts."""
    folder = tmp_path / "voice"
    folder.mkdir()
    for clip in CLIPS:
        shutil.copy(RECORDINGS / f"{clip}.ogg", folder)
    return folder


def settings(voice: Path, **given: Any) -> SpeechData:
    values = {"transcribe": True, "cache_dir": str(voice.parent / "cache"), **given}
    return SpeechData(path=str(voice), **values)


def texts_of(data: SpokenData) -> dict[str, str | None]:
    return {row.id: row.text for row in list_corpus(data)[0] if isinstance(row, Row)}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def phonate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return phonate_process.run(*arguments, cwd=cwd, env={**os.environ, "XDG_CACHE_HOME": str(cwd / "cache")})


@pytest.mark.slow
def test_the_words_are_those_that_are_spoken_and_nothing_is_written_into_the_folder(voice: Path) -> None:
    before = sorted(voice.rglob("*"))
    data = settings(voice)
    said = transcribe(data)
    assert data.transcripts is not None
    assert str(data.transcripts / "transcripts.jsonl") in said
    assert "4 transcribed clips" in said
    heard = texts_of(data)
    assert word_error_rate([TRUE[clip] for clip in CLIPS], [heard[clip] or "" for clip in CLIPS]) < 0.1
    assert sorted(voice.rglob("*")) == before
    own = SpeechData(path=str(data.transcripts / "transcripts.jsonl"))  # a corpus by itself
    assert texts_of(own) == heard


@pytest.mark.slow
def test_what_cannot_be_heard_is_left_out_with_reasons(voice: Path) -> None:
    soundfile.write(voice / "silence.wav", np.zeros(3 * RATE), RATE)
    hiss = 0.01 * np.random.default_rng(0).standard_normal(3 * RATE)
    soundfile.write(voice / "hiss.wav", hiss, RATE)
    (voice / "broken.wav").write_bytes(b"RIFF of nothing")
    shutil.copy(RECORDINGS / "LJ001-0020.ogg", voice)
    (voice / "LJ001-0020.txt").write_text("The lower case being invented.", encoding="utf-8")
    data = settings(voice)
    said = transcribe(data)
    assert "left out: " in said
    assert "2 silence" in said
    assert "1 unreadable" in said
    rows, _ = list_corpus(data)
    assert {row.id: row.reason for row in rows if isinstance(row, Problem)} == {
        "silence": "silence",
        "hiss": "silence",
        "broken": "unreadable",
    }
    assert texts_of(data)["LJ001-0020"] == "The lower case being invented."
    assert prepare(data).report["usable"] == 5


def test_recordings_at_which_processes_died_are_tried_again(voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []

    class Dying:
        def map(self, function: Any, items: Any, on_crash: Any, file: Any) -> Any:
            tried.append([one.row.id for one in items])
            return map(on_crash, items)

    monkeypatch.setattr(transcripts, "executor_of", lambda *_: Dying())
    data = settings(voice)
    assert "4 crashed" in transcribe(data)
    assert {row.reason for row in list_corpus(data)[0] if isinstance(row, Problem)} == {"crashed"}
    assert "4 crashed" in transcribe(data)
    assert sorted(tried[1]) == sorted(CLIPS)


@pytest.mark.slow
def test_corrections_stay_and_only_what_changed_is_transcribed_again(
    voice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = settings(voice)
    transcribe(data)
    assert data.transcripts is not None
    file = data.transcripts / "transcripts.jsonl"
    entries = {one["id"]: one for one in lines(file)}
    entries["LJ001-0002"]["text"] = "In being very modern."
    del entries["LJ001-0008"]
    file.write_text("\n".join(json.dumps(one) for one in entries.values()), encoding="utf-8")  # no newline at the end
    with monkeypatch.context() as patched:
        patched.setattr(transcripts, "_Transcribing", None)  # nothing is heard again
        for clip in CLIPS:
            os.utime(voice / f"{clip}.ogg")
        transcribe(data)
    assert texts_of(data)["LJ001-0002"] == "In being very modern."
    assert not texts_of(data)["LJ001-0008"]
    shutil.copy(RECORDINGS / "LJ001-0020.ogg", voice / "LJ001-0004.ogg")  # another recording of this name
    shutil.copy(RECORDINGS / "LJ001-0013.ogg", voice)  # a new one
    transcribe(data)
    heard = texts_of(data)
    assert heard["LJ001-0002"] == "In being very modern."
    assert "lower case" in (heard["LJ001-0004"] or "")
    assert "operations" in (heard["LJ001-0013"] or "")
    assert len(lines(file)) == 4
    assert prepare(data).report["usable"] == 4


@pytest.mark.slow
def test_long_recordings_are_cut_at_pauses(voice: Path) -> None:
    ids = sorted(TRUE)[:6]
    parts = [part for id in ids for part in (read_audio(RECORDINGS / f"{id}.ogg", RATE)[0], np.zeros(RATE // 2))]
    for file in voice.iterdir():
        file.unlink()
    soundfile.write(voice / "all.flac", np.concatenate(parts), RATE)
    data = settings(voice, validation=0.2)
    transcribe(data)
    rows = [row for row in list_corpus(data)[0] if isinstance(row, Row)]
    assert len(rows) > 3
    assert all(row.end is not None and row.end - row.start <= 15.0 for row in rows)
    heard = " ".join(row.text or "" for row in rows)
    assert word_error_rate([" ".join(TRUE[id] for id in ids)], [heard]) < 0.15
    prepared = prepare(data)
    assert len(prepared.validation) > 0
    assert len(prepared.train) > len(prepared.validation)
    drop = voice.parent / "drop.txt"
    drop.write_text(rows[0].id, encoding="utf-8")
    assert rows[0].id not in texts_of(data.model_copy(update={"drop": str(drop)}))


def test_recordings_of_several_speakers_are_no_reason_to_wait_for_transcripts(tmp_path: Path) -> None:
    """Nothing transcribes them, so that what follows is about their texts."""
    soundfile.write(tmp_path / "talk.wav", np.zeros(RATE * 4), RATE)
    turns = "".join(f"SPEAKER talk 1 {start} 1.0 <NA> <NA> {name} <NA> <NA>\n" for start, name in ((0, "a"), (2, "b")))
    (tmp_path / "talk.rttm").write_text(turns)
    data = SpeechData(path=str(tmp_path / "talk.rttm"), transcribe=True, cache_dir=str(tmp_path / "cache"))
    assert transcribe(data) == ""
    (row,), _ = list_corpus(data)
    assert isinstance(row, Row)
    assert len(row.speakers) == 2


def test_whisper_computes_on_the_device_of_the_training(voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded(Exception):
        """Nothing need be transcribed."""

    def load(model: str, purpose: str, threads: int, device: str) -> None:
        raise Loaded(device)

    monkeypatch.setattr(pretrained, "load_whisper", load)
    with pytest.raises(Loaded, match=r"^cpu$"):
        train("speech", {"data.path": str(voice), "data.transcribe": True}, output=voice.parent / "run", device="cpu")
    with pytest.raises(Loaded, match=r"^cpu$"):
        train("speech", {"data.path": str(voice), "data.transcribe": True}, output=voice.parent / "run", mode="cpu")
    with pytest.raises(Loaded, match=r"^cuda:1$"):
        transcribe(settings(voice), lambda: "cuda:1")
    with pytest.raises(Loaded, match=r"^cuda:2$"):
        load_transcriber(None, "en", device="cuda:2")


@pytest.mark.slow
def test_an_interruption_loses_only_the_recording_at_work(voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings(voice)
    original, calls = transcripts.transcribed, []

    def interrupted(transcriber: Any, waveform: Any, rate: int) -> Any:
        calls.append(rate)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(transcriber, waveform, rate)

    monkeypatch.setattr(transcripts, "transcribed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transcribe(data)
    transcribe(data)
    assert len(calls) == 5
    assert sorted(texts_of(data)) == sorted(CLIPS)
    assert all(texts_of(data).values())


@pytest.mark.slow
def test_mistakes_are_one_line_with_the_mend(voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings(voice)
    with pytest.raises(DataError, match=r"transcripts\.jsonl: not there.*phonate data prepare"):
        list_corpus(data)
    with pytest.raises(InputError, match=r"data\.language 'de'"):
        transcribe(settings(voice, language="de", transcribe="tiny.en"))
    transcribe(data)
    assert data.transcripts is not None
    file = data.transcripts / "transcripts.jsonl"
    file.write_text(file.read_text(encoding="utf-8") + "{oops\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"transcripts\.jsonl:5: .*correct the line, or delete it"):
        list_corpus(data)
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "faster_whisper" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[eval\]'"):
        transcribe(settings(voice, cache_dir=str(voice.parent / "other")))


@pytest.mark.slow
def test_the_commands(voice: Path, tmp_path: Path) -> None:
    without = phonate("train", "speech", "data.path=voice", "--dry-run", cwd=tmp_path)
    assert without.returncode == 2
    assert "4 no text" in without.stderr
    assert "data.transcribe=true" in without.stderr
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: speech\ndata:\n  path: voice\n  transcribe: true\n", encoding="utf-8")
    prepared = phonate("data", "prepare", "recipe.yaml", cwd=tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    assert "4 transcribed clips; correct their texts in" in prepared.stdout
    trained = phonate(
        *("train", "speech", "data.path=voice", "data.transcribe=true", "data.durations=learnt", "size=tiny"),
        *("data.aligner_steps=2", "data.judged=0", "training.max_steps=2", "training.init_from=null"),
        *("training.adversarial_start=null", "training.validation.metric_for_best_model=val_loss"),
        *("training.validation.greater_is_better=false", "training.batch_size=2"),
        cwd=tmp_path,
    )
    assert trained.returncode == 0, trained.stderr
    assert "4 transcribed clips; correct their texts in" in (tmp_path / "runs/speech/logs/training.log").read_text()


def test_what_is_to_be_transcribed_counts_for_the_steps(voice: Path) -> None:
    options = {"data.path": str(voice), "data.cache_dir": str(voice.parent / "cache")}
    assert plan("speech", options).reason == ""
    assert "0.3 minutes of recordings: " in plan("speech", {**options, "data.transcribe": True}).reason


@pytest.mark.slow
def test_a_shipped_recipe_transcribes_what_nothing_has_prepared(voice: Path, tmp_path: Path) -> None:
    words = ("speech", "data.path=voice", "data.transcribe=true")
    prepared = phonate("data", "prepare", *words, cwd=tmp_path)
    assert "4 transcribed clips; correct their texts in" in prepared.stdout, prepared.stderr
    shutil.rmtree(tmp_path / "cache")
    trained = phonate("train", *words, "training.max_steps=1", "data.judged=0", "--device", "cpu", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "4 transcribed clips; correct their texts in" in trained.stderr


@pytest.mark.slow
def test_the_demo_transcribes_by_itself(voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(voice.parent / "cache"))
    said: list[str] = []
    listed, options = demo_listing(SpeechData(path=str(voice)), said.append)
    assert options == ["data.transcribe=true"]
    assert all(isinstance(row, Row) and row.text for row in listed)
    assert "no recording has a text, so they are transcribed first" in said[0]
    assert demo_listing(SpeechData(path=str(RECORDINGS)), said.append)[1] == []
