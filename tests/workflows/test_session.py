"""Sessions: what they find, say, make, and how they fail."""

from __future__ import annotations

import importlib.util
import io
import json
import shlex
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import soundfile

from phonate import ResourceDetector, TrainingSession, VoiceDataDetector
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.data.corpora.validation import Unusable, require_length
from phonate.tasks.conversion.inference import Converter
from phonate.tasks.speech.task import SpeechTask
from phonate.training.plan import plan
from phonate.workflows.session import log as session_log
from phonate.workflows.session.config import read_config
from sessions import make_recordings, make_texts, messages, read_log, write_config
from sounds import SAMPLE_RATE, voiced_tone


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a configuration."""
    write_config(tmp_path / "training/config.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(**options) -> tuple[bool, dict, list[str]]:
    """A session: whether it was done, its log, and what it said."""
    said: list[str] = []
    done = TrainingSession(**{"device": "cpu", "say": said.append, **options}).run()
    return done, read_log(Path(options.get("output_dir", "training/output"))), said


def error_of(document: dict) -> str:
    """The last entry, which is the one error."""
    assert document["log"][-1]["level"] == "ERROR"
    assert len(messages(document, "ERROR")) == 1
    return document["log"][-1]["message"]


def test_the_documented_lines_are_in_the_log_and_on_the_console(place):
    make_recordings(place / "recordings")
    done, document, said = run(voice_mode="voice")
    assert done
    assert (document["mode"], document["voice_mode"], document["device"]) == ("mixed", "voice", "cpu")
    size = sum(file.stat().st_size for file in place.glob("recordings/*/*.wav")) / 1024**2
    assert "Starting voice training" in messages(document, "INFO")
    assert f"Found 6 voice files ({size:.2f} MB)" in messages(document, "SUCCESS")
    assert "Processed 6/6 samples..." in messages(document, "INFO")
    assert any(message.startswith("step 2/2") for message in messages(document, "INFO")), "metrics are in the log"
    trained = next(one for one in messages(document, "SUCCESS") if one.startswith("Trained 2 steps"))
    assert "val_loss" in trained
    assert "val_l1" not in trained, "terms of the loss are for the report"
    assert f"✅ Found 6 voice files ({size:.2f} MB)" in said
    assert "ℹ️  Starting voice training" in said


def test_the_profile_counts_the_samples_that_were_used(place):
    make_recordings(place / "recordings")
    assert run(voice_mode="voice")[0]
    profile = json.loads((place / "training/output/voice_model/voice_profile.json").read_text())
    assert profile["sample_count"] == 6
    assert profile["total_duration"] == pytest.approx(6 * 2.2, abs=0.01)


def test_without_recordings_nothing_is_begun(place, capsys):
    make_texts(place / "datasets/samples")
    assert main(["session", "--voice-mode", "voice", "--device", "cpu"]) == 1
    document = read_log(place / "training/output")
    assert error_of(document).startswith("Training failed: No voice data found in: recordings; put .wav, .mp3, .flac")
    assert [file.name for file in (place / "training/output").iterdir()] == ["logs"]
    assert "❌ Training failed" in capsys.readouterr().out


def test_auto_takes_texts_where_there_are_no_recordings_and_says_what_it_found(place):
    make_texts(place / "recordings")
    done, document, _ = run(voice_mode="auto")
    assert done
    assert "No voice files in recordings" in messages(document, "INFO")
    assert (place / "training/output/text_model/weights.safetensors").is_file()
    report = next((place / "training/output").glob("session_*/model/report.html"))
    assert "numbers.txt" in report.read_text() or "recordings" in report.read_text()


def test_neither_recordings_nor_texts(place):
    done, document, _ = run()
    assert not done
    assert "No texts found in: recordings or datasets/samples" in error_of(document)
    assert "Starting text training" not in messages(document, "INFO")


def test_a_garbage_folder_ends_in_reasons_and_the_rest_is_trained_on(place):
    folder = make_recordings(place / "recordings")
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("not a sound")
    whole = (folder / "anna/00.wav").read_bytes()
    (folder / "cut.flac").write_bytes(whole[:30])
    soundfile.write(folder / "short.wav", voiced_tone(0.5, 150.0, (700.0,), 1), SAMPLE_RATE)
    soundfile.write(folder / "silent.wav", [0.0] * SAMPLE_RATE * 3, SAMPLE_RATE)
    (folder / "loop").symlink_to(folder)
    (folder / "gone.wav").symlink_to(folder / "nowhere.wav")
    done, document, _ = run(voice_mode="voice")
    assert done
    warnings = messages(document, "WARNING")
    for name, reason in {
        "empty.wav": "unreadable",
        "text.wav": "unreadable",
        "cut.flac": "unreadable",
        "short.wav": "too short",
        "silent.wav": "low quality",
    }.items():
        assert sum(f"{name}: {reason}: " in warning for warning in warnings) == 1, (name, warnings)
    assert "6 of 11" in " ".join(messages(document, "SUCCESS")) or "6 of 12" in " ".join(messages(document, "SUCCESS"))
    assert "Traceback" not in json.dumps(document)


def test_nothing_but_garbage_is_an_error(place):
    (place / "recordings").mkdir()
    (place / "recordings/text.wav").write_text("not a sound")
    done, document, _ = run(voice_mode="voice")
    assert not done
    assert "can be used (1 unreadable)" in error_of(document)


def test_long_recordings_are_used_up_to_the_limit(place):
    folder = make_recordings(place / "recordings", clips=2)
    soundfile.write(folder / "anna/long.wav", voiced_tone(4.0, 150.0, (700.0,), 1), SAMPLE_RATE)
    write_config(place / "training/config.yaml", "  rules: {max_seconds: 3.0}\n")
    done, document, _ = run(voice_mode="voice")
    assert done
    assert any("long.wav: too long" in warning for warning in messages(document, "WARNING"))
    (beginning,) = (place / "training/output").glob("session_*/beginnings/*.flac")
    assert soundfile.info(beginning).duration == pytest.approx(3.0, abs=0.01)
    listed = next((place / "training/output").glob("session_*/recordings.jsonl")).read_text()
    assert str(beginning.resolve()) in listed
    assert "long.wav" not in listed


def test_texts_of_long_recordings_are_not_learnt_from_their_beginnings(place):
    folder = make_recordings(place / "recordings", clips=2)
    soundfile.write(folder / "anna/long.wav", voiced_tone(4.0, 150.0, (700.0,), 1), SAMPLE_RATE)
    for file in folder.glob("*/*.wav"):
        file.with_suffix(".txt").write_text("words that are said there")
    write_config(place / "training/config.yaml", "  rules: {max_seconds: 3.0}\n  voice: recognition\n")
    done, document, _ = run(voice_mode="voice")
    assert done
    assert any("long.wav: too long, and its text is of the whole" in one for one in messages(document, "WARNING"))
    assert "long.wav" not in next((place / "training/output").glob("session_*/recordings.jsonl")).read_text()
    assert any("phonate transcribe" in message for message in messages(document, "SUCCESS"))


def test_rows_that_are_no_clip_are_left_out_in_the_words_of_every_corpus(place):
    folder = make_recordings(place / "recordings", clips=2)
    soundfile.write(folder / "long.wav", voiced_tone(6.0, 150.0, (700.0,), 1), SAMPLE_RATE)
    rows = ["audio_path,speaker_id,start,end", "anna/00.wav,anna,,", "ben/00.wav,ben,,", "long.wav,ben,0.5,5.0"]
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    write_config(place / "training/config.yaml", "  rules: {max_seconds: 3.0}\n")
    done, document, _ = run(voice_mode="voice")
    assert done
    with pytest.raises(Unusable) as refused:
        require_length(4.5, "session.rules", most=3.0)
    assert any(f"long.wav: {refused.value.detail}; left out" in line for line in messages(document, "WARNING"))


def test_what_a_list_names_in_vain_and_what_it_leaves_out_is_told(place):
    folder = make_recordings(place / "recordings", clips=2)
    soundfile.write(folder / "other.take", voiced_tone(2.5, 150.0, (700.0,), 1), SAMPLE_RATE, format="WAV")
    rows = ["audio_path,speaker_id", "anna/00.wav,anna", "ben/00.wav,ben", "ben/77.wav,ben", "other.take,ben"]
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    done, document, _ = run(voice_mode="voice")
    assert done
    warnings = "\n".join(messages(document, "WARNING"))
    assert "ben/77.wav: no such file; left out" in warnings
    assert "other.take: has no suffix of a recording, or is in another folder; left out" in warnings
    assert "anna/01.wav: not in the list of recordings; left out" in warnings
    assert len(next((place / "training/output").glob("session_*/recordings.jsonl")).read_text().splitlines()) == 2


def test_a_recogniser_needs_texts(place):
    make_recordings(place / "recordings")
    write_config(place / "training/config.yaml", "  voice: recognition\n")
    done, document, _ = run(voice_mode="voice")
    assert not done
    assert "recognition needs recordings with texts, and none has one" in error_of(document)
    assert "Validating voice files" not in messages(document, "INFO"), "told before any work"


@pytest.mark.slow
def test_a_vocoder_is_trained_first_and_can_be_a_run(place):
    make_recordings(place / "recordings")
    config = place / "training/config.yaml"
    config.write_text(config.read_text().replace("vocoder: null", "vocoder: vocoder"))
    assert run(voice_mode="voice")[0]
    (vocoder,) = (place / "training/output").glob("session_*/vocoder")
    (model,) = (place / "training/output").glob("session_*/model")
    assert resolve(model).recipe.data.vocoder == str(vocoder.resolve())
    shutil.move(place / "training/output/voice_model", place / "moved")
    shutil.copytree(vocoder, place / "vocoder-run")
    shutil.rmtree(vocoder)
    assert Converter.load("moved").render.name == "vocoder", "its vocoder moved with it"
    vocoder = place / "vocoder-run"
    config.write_text(config.read_text().replace("vocoder: vocoder", f"vocoder: {vocoder}"))
    assert run(voice_mode="voice", output_dir="other")[0]
    assert not list(Path("other").glob("session_*/vocoder"))
    (model,) = Path("other").glob("session_*/model")
    assert resolve(model).recipe.data.vocoder == str(vocoder.resolve())


@pytest.mark.slow
def test_without_a_word_the_vocoder_is_that_in_the_package_where_it_fits(place):
    make_recordings(place / "recordings")
    config = place / "training/config.yaml"
    plain = config.read_text()
    assert run(voice_mode="voice")[0]
    (model,) = (place / "training/output").glob("session_*/model")
    assert resolve(model).recipe.data.vocoder is None, "vocoder: null"
    config.write_text(plain.replace("vocoder: null", "vocoder: auto"))
    assert run(voice_mode="voice", output_dir="packaged")[0]
    (model,) = Path("packaged").glob("session_*/model")
    assert resolve(model).recipe.data.vocoder == "base/vocoder"
    assert not (model.parent / "vocoder").exists()
    assert Converter.load("packaged/voice_model").render.name == "vocoder"
    config.write_text(plain.replace("vocoder: null", "vocoder: auto") + "data: {audio: {n_mels: 64}}\n")
    assert run(voice_mode="voice", output_dir="trained")[0]
    (model,) = Path("trained").glob("session_*/model")
    assert resolve(model).recipe.data.vocoder == str((model.parent / "vocoder").resolve())


def test_mistakes_in_the_configuration_are_told_with_their_place(place):
    make_recordings(place / "recordings")
    for number, (text, told) in enumerate(
        {
            "training: {max_stepz: 2}": "c.yaml:1:12 training.max_stepz: no such option; did you mean max_steps?",
            "session: {voise: auto}": "c.yaml:1:11 session.voise: no such option; did you mean voice?",
            "session: {voice: song}": "c.yaml:1:18 session.voice: no task that sessions train on recordings;",
            "trainin: {}": "c.yaml:1:1 trainin: no such option; did you mean training?",
            "task: sing": "c.yaml:1:7 task: no task 'sing'",
            "task: conversion\nsession: {voice: speech}": "c.yaml:2:18 session.voice: speech contradicts task:",
            "task: vocoder": "c.yaml:1:7 task: a session trains conversion, recognition, speech, language; for vocoder",
            "sesion: {voice: auto}": "c.yaml:1:1 sesion: no such option; did you mean session?",
            "session: {vocoder: nowhere}": "c.yaml:1:20 session.vocoder: nowhere: neither a file nor a shipped recipe",
            "session: {vocoder: conversion}": "c.yaml:1:20 session.vocoder: conversion is a recipe of the task conv",
            "session: {rules: {min_seconds: -1}}": "c.yaml:1:32 session.rules.min_seconds: expected a number >= 0",
        }.items()
    ):
        Path("c.yaml").write_text(text)
        done, document, _ = run(voice_mode="voice", config_path="c.yaml", output_dir=f"o{number}")
        assert not done
        assert told in error_of(document)
    done, document, _ = run(config_path="none.yaml", output_dir="o")
    assert not done
    assert "none.yaml: no such configuration" in error_of(document)


def test_a_whole_recipe_is_trained_as_it_stands(place):
    make_recordings(place / "recordings")
    Path("mine.yaml").write_text("task: conversion\nmodel: {d_model: 32, n_layers: 1, n_heads: 2, d_ff: 48}\n"
                                 "training: {max_steps: 2, batch_size: 2}\n")  # fmt: skip
    done, _, _ = run(voice_mode="voice", config_path="mine.yaml")
    assert done
    assert not list((place / "training/output").glob("session_*/vocoder"))
    text = next((place / "training/output").glob("session_*/model/recipe.yaml")).read_text()
    assert "d_ff: 48" in text
    assert "norm: post" in text, "not that of the shipped recipe"


def test_a_recipe_of_texts_is_not_used_for_recordings(place):
    Path("texts.yaml").write_text("task: language\ndata: {path: datasets}\nsession: {voice: recognition}\n")
    make_recordings(place / "recordings", clips=2)
    done, document, _ = run(voice_mode="voice", config_path="texts.yaml")
    assert not done
    assert "recognition needs recordings with texts" in error_of(document), "its part session counts"
    (warning,) = messages(document, "WARNING")
    assert warning == "texts.yaml is of the task language; only its section session is used"


def test_gpu_mode_without_a_gpu(place, capsys):
    make_recordings(place / "recordings")
    assert main(["session", "--mode", "gpu"]) == 1
    error = error_of(read_log(place / "training/output"))
    assert "GPU mode requested but no CUDA devices available" in error


def test_a_launcher_of_several_processes_is_refused(place, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done, document, _ = run()
    assert not done
    assert "a session is one process; for several GPUs use torchrun" in error_of(document)


def test_a_device_that_is_not_there(place):
    done, document, _ = run(device="cuda:7")
    assert not done
    assert "device cuda:7 does not exist" in error_of(document)


def test_an_unforeseen_error_is_told_and_its_traceback_kept(place, monkeypatch):
    make_recordings(place / "recordings")

    def fail(work):
        raise KeyError("total_samples")

    monkeypatch.setattr("phonate.workflows.session.flows.train_voice", fail)
    done, document, _ = run(voice_mode="voice")
    assert not done
    assert error_of(document).startswith("Training failed: KeyError: 'total_samples'; the traceback is in ")
    (kept,) = (place / "training/output/logs").glob("*.traceback.txt")
    assert "in fail" in kept.read_text()


def test_what_leaves_by_system_exit_is_told_too(place, monkeypatch):
    make_recordings(place / "recordings")
    monkeypatch.setattr("phonate.workflows.session.flows.train_voice", lambda work: exit(2))
    done, document, _ = run(voice_mode="voice")
    assert not done
    assert "SystemExit" in error_of(document)


def test_sessions_of_one_second_do_not_share_a_log(tmp_path):
    facts = {"mode": "cpu", "voice_mode": "auto", "device": None}
    logs = [session_log.SessionLog(tmp_path, facts, lambda line: None) for _ in range(5)]
    assert len({log.session_id for log in logs}) == 5
    for log in logs:
        log.info("here")
        assert json.loads(log.path.read_text())["session_id"] == log.session_id


def test_a_session_that_failed_keeps_its_log_when_another_begins_in_its_second(place):
    for _ in range(3):
        assert not TrainingSession(config_path="none.yaml", say=lambda line: None).run()
    logs = sorted((place / "training/output/logs").glob("*.json"))
    assert len(logs) == 3
    assert [f"session_{json.loads(log.read_text())['session_id']}" for log in logs] == [log.stem for log in logs]


@pytest.mark.parametrize("gone", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_a_console_that_has_gone_does_not_end_the_session(tmp_path, gone):
    said: list[str] = []

    def say(line):
        said.append(line)
        raise gone

    log = session_log.SessionLog(tmp_path, {"mode": "cpu", "voice_mode": "auto", "device": None}, say)
    log.info("one")
    log.success("two")
    assert len(said) == 1
    assert [entry["message"] for entry in json.loads(log.path.read_text())["log"]] == ["one", "two"]


def test_a_console_without_emoji(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", screen)
    session_log.to_console("✅ done")
    assert screen.buffer.getvalue() == b"\\u2705 done\n"


def test_a_log_that_can_not_be_written_does_not_end_the_session(tmp_path, monkeypatch):
    said: list[str] = []
    facts = {"mode": "cpu", "voice_mode": "auto", "device": None}
    log = session_log.SessionLog(tmp_path, facts, said.append)
    log.info("one")
    monkeypatch.setattr(session_log.os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
    log.info("two")
    log.info("three")
    assert sum("can't be written (No space left)" in line for line in said) == 1
    monkeypatch.undo()
    log.success("four")
    assert [entry["message"] for entry in json.loads(log.path.read_text())["log"]] == ["one", "two", "three", "four"]


def test_an_output_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="choose another output_dir="):
        TrainingSession(output_dir=tmp_path / "file").run()


@pytest.mark.slow
def test_a_second_session_takes_the_place_of_the_first_ones_model(place):
    make_recordings(place / "recordings")
    output = place / "training/output"
    assert run(voice_mode="voice")[0]
    first = (output / "voice_model/manifest.json").stat().st_ino
    assert TrainingSession(voice_mode="voice", device="cpu", say=lambda line: None).run()
    assert (output / "voice_model/manifest.json").stat().st_ino != first
    assert len(list(output.glob("session_*/model/checkpoints"))) == 2
    assert not list(output.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "file", "link", "model"])
def test_what_is_not_an_earlier_model_is_never_deleted(place, kind):
    make_recordings(place / "recordings", clips=2)
    output, outside = place / "training/output", place / "mine"
    saved = output / "voice_model"
    output.mkdir()
    if kind == "file":
        saved.write_text("precious")
    elif kind == "folder":
        saved.mkdir()
        (saved / "mine.txt").write_text("precious")
    elif kind == "link":
        outside.mkdir()
        (outside / "mine.txt").write_text("precious")
        saved.symlink_to(outside)
    else:
        assert run(voice_mode="voice", output_dir="earlier")[0]
        Path("earlier/voice_model").rename(saved)
        (saved / "mine.txt").write_text("precious")
    done, document, _ = run(voice_mode="voice")
    assert done
    assert (saved / "weights.safetensors").is_file()
    (kept,) = output.glob("session_*/earlier_voice_model*")
    assert (kept if kind == "file" else kept / "mine.txt").read_text() == "precious"
    assert any(
        warning.endswith(f"they are kept as {kept.relative_to(place)}") for warning in messages(document, "WARNING")
    )


@pytest.mark.slow
def test_sessions_that_end_at_the_same_moment_both_do(place, monkeypatch):
    make_recordings(place / "recordings", clips=2)
    assert run(voice_mode="voice")[0]
    rename = Path.rename

    def race(self, target):
        """Another session takes the earlier model away, and puts its own there."""
        if self.name == "voice_model" and "earlier_" in str(target) and not (place / "raced").exists():
            rename(self, place / "raced")
            shutil.copytree(place / "raced", self)
            raise FileNotFoundError(2, "No such file or directory")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", race)
    session = TrainingSession(voice_mode="voice", device="cpu", say=lambda line: None)
    assert session.run()
    assert (place / "raced").is_dir()
    assert (session.model / "sample.flac").is_file()
    assert not list((place / "training/output").glob("session_*/earlier*"))


@pytest.mark.slow
def test_a_model_that_does_not_load_takes_no_place(place, monkeypatch):
    make_recordings(place / "recordings", clips=2)
    assert run(voice_mode="voice")[0]
    saved = place / "training/output/voice_model/manifest.json"
    before = saved.stat().st_ino

    def fail(*_):
        raise InputError("it does not load")

    monkeypatch.setattr("phonate.workflows.session.flows.sample", fail)
    assert not TrainingSession(voice_mode="voice", device="cpu", say=lambda line: None).run()
    assert saved.stat().st_ino == before


@pytest.mark.parametrize("text", ["", "# size: small\n"])
def test_a_configuration_that_says_nothing(place, text):
    make_texts(place / "recordings")
    Path("empty.yaml").write_text(text)
    Path("training/config.yaml").unlink()
    config = read_config(Path("empty.yaml"))
    assert config.plan("language", {"data.path": "recordings"}).written.recipe == (
        read_config(Path("training/config.yaml")).plan("language", {"data.path": "recordings"}).written.recipe
    )
    assert config.settings.voice == "auto"


def test_folders_of_any_name(place):
    make_recordings(place / "recordings/cafe", clips=2).rename(place / "recordings/caf\udce9")
    output = place / "mine, all 'mine'"
    done, document, _ = run(voice_mode="voice", voice_data_dir="recordings/caf\udce9", output_dir=output)
    assert done, messages(document, "ERROR")
    command = next(one for one in messages(document, "SUCCESS") if "phonate convert" in one).partition("For more: ")[2]
    assert shlex.split(command)[:3] == ["phonate", "convert", str(output / "voice_model")]
    done, document, _ = run(voice_mode="voice", output_dir="o\udce9")
    assert not done
    assert "data.path: " in error_of(document)
    assert error_of(document).endswith("recordings.jsonl' is not UTF-8, as recipes are; rename it")
    assert "Validating voice files" not in messages(document, "INFO")


def test_names_are_told_in_one_line(place):
    folder = make_recordings(place / "recordings/of\nanna", clips=2)
    (folder / "not\na\x1b[31msound.wav").write_text("text")
    (folder / "anna/00.wav").rename(folder / "anna/0\x1b[31m0.wav")
    done, document, said = run(voice_mode="voice")
    assert done
    assert all(line.removeprefix("ℹ️ ").removeprefix("⚠️ ").isprintable() for line in said), said
    warning, minutes, _ = messages(document, "WARNING")
    assert "the target, has 0." in minutes
    assert r"of\nanna/not\na\x1b[31msound.wav: unreadable" in warning


@pytest.mark.parametrize("memory", [-1.0, float("nan")])
def test_memory_that_can_not_be_asked_for(place, memory):
    with pytest.raises(InputError, match="0 or more"):
        TrainingSession(mode="cpu", min_gpu_memory=memory)


def test_as_it_is_documented(place):
    make_recordings(place / "recordings")
    devices = ResourceDetector().get_available_devices()
    assert devices[-1]["type"] == "cpu"
    device = ResourceDetector().select_best_device(mode="mixed", min_memory_gb=5.0)
    detector = VoiceDataDetector(voice_data_dir=Path("recordings"))
    assert detector.has_voice_data()
    assert detector.get_stats()["total_files"] == len(detector.get_voice_files()) == 6
    session = TrainingSession(
        mode="mixed",
        voice_mode="auto",
        device=device,
        config_path=Path("training/config.yaml"),
        voice_data_dir=Path("recordings"),
        output_dir=Path("training/output"),
    )
    assert session.run() is True
    assert session.model == Path("training/output/voice_model")


def test_looking_does_not_train(place, capsys):
    make_recordings(place / "recordings")
    assert main(["session", "--show-resources"]) == 0
    shown, aside = capsys.readouterr()
    assert not aside
    assert shown.startswith("\n" + 80 * "=" + "\nAvailable Compute Resources\n" + 80 * "=" + "\n\n")
    assert main(["session", "--check-voice-data"]) == 0
    assert "✅ Voice data found in: recordings\n\nStatistics:\n  Total files: 6\n" in capsys.readouterr().out
    assert main(["session", "--check-voice-data", "--voice-data-dir", "nowhere"]) == 1
    assert "❌ No voice data found in: nowhere" in capsys.readouterr().out
    assert not (place / "training/output").exists()


def test_missing_judges_do_not_end_a_session_before_it_begins(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "distillmos" else find(name))
    shipped = resolve("speech", ["data.path=nowhere"])
    assert shipped.recipe.data.judged
    with pytest.raises(InputError, match="pip install --no-deps distillmos"):
        SpeechTask(shipped.recipe)
    plan("speech", ["data.path=nowhere"], corpus=False).check()


@pytest.mark.slow
def test_recordings_with_texts_become_a_voice(place, recordings):
    source = recordings / "tts_en_kathleen"
    rows = (source / "metadata.csv").read_text("utf-8").splitlines()[200:212]
    (place / "recordings/wavs").mkdir(parents=True)
    for row in rows:
        file = f"{row.split('|')[0]}.flac"
        (place / "recordings/wavs" / file).symlink_to(source / "wavs" / file)
    (place / "recordings/metadata.csv").write_text("\n".join(rows) + "\n", "utf-8")
    config = write_config(place / "training/config.yaml").read_text()
    (place / "training/config.yaml").write_text(config.replace("session:", "data: {judged: 0}\nsession:"), "utf-8")
    done, document, _ = run(voice_mode="voice")
    assert done, messages(document, "ERROR")
    assert any("recordings have a text: speech" in message for message in messages(document, "INFO"))
    saved = place / "training/output/voice_model"
    assert main(["speak", str(saved), "Something that nobody has said.", "-o", "said.wav"]) == 0
    assert soundfile.info("said.wav").duration > 0.5


@pytest.mark.slow
def test_recordings_are_written_down_by_whisper_first(place, recordings):
    pytest.importorskip("faster_whisper", reason="needs faster-whisper: pip install 'phonate[eval]'")
    files = sorted((recordings / "tts_en_kathleen/wavs").glob("*.flac"))[200:206]
    (place / "recordings").mkdir()
    for file in files:
        (place / "recordings" / file.name).symlink_to(file)
    write_config(place / "training/config.yaml", "  transcribe: true\n  voice: recognition\n")
    done, document, _ = run(voice_mode="voice")
    assert done, messages(document, "ERROR")
    assert any(message.startswith("Transcribed ") for message in messages(document, "SUCCESS"))
    (listed,) = (place / "training/output").glob("session_*/recordings.jsonl")
    rows = [json.loads(line) for line in listed.read_text().splitlines()]
    assert rows
    assert all(row["text"] for row in rows)


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    posted: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook():
    """A server for webhooks on this machine."""
    Hook.posted = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_who_is_to_be_told_is_told_how_it_ended(place, hook):
    write_config(place / "training/config.yaml", f"  notices: {{webhook: {{url: '{hook}'}}}}\n")
    assert not run(voice_mode="voice")[0]
    (posted,) = Hook.posted
    assert posted["outcome"] == "failed"
    assert "No voice data found" in posted["message"]
    make_recordings(place / "recordings", clips=2)
    assert run(voice_mode="voice", output_dir="other")[0]
    assert Hook.posted[1]["outcome"] == "done"
    assert Hook.posted[1]["log"] == str(next(Path("other/logs").glob("*.json")))


@pytest.mark.slow
def test_a_notice_that_can_not_be_sent_fails_no_session(place, unused_port):
    make_recordings(place / "recordings", clips=2)
    write_config(place / "training/config.yaml", f"  notices: {{webhook: {{url: 'http://127.0.0.1:{unused_port}'}}}}\n")
    done, document, _ = run(voice_mode="voice")
    assert done
    assert "session.notices.webhook" in messages(document, "WARNING")[-1]
    Path("empty").mkdir()
    done, document, _ = run(voice_mode="voice", voice_data_dir="empty", output_dir="other")
    assert not done
    assert [entry["level"] for entry in document["log"][-2:]] == ["ERROR", "WARNING"]


def test_a_secret_that_is_missing_is_told_before_the_work(place):
    make_recordings(place / "recordings")
    write_config(place / "training/config.yaml", "  notices: {webhook: {url: $NOBODY_SET_THIS}}\n")
    done, document, _ = run(voice_mode="voice")
    assert not done
    assert "session.notices.webhook.url: the environment variable NOBODY_SET_THIS is not set" in error_of(document)
    assert "Validating voice files" not in messages(document, "INFO")


@pytest.fixture
def unused_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
