"""What a session trains on: what it skips, what it names, and what it refuses before any work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from phonate import TrainingSession
from phonate.cli import main
from phonate.config.errors import DataError, InputError
from phonate.config.resolve import resolve
from phonate.data.corpora.manifest import list_corpus
from phonate.data.dialogues import text_files
from phonate.data.settings import VoiceData, VoiceRules
from phonate.data.voices import VoiceDataDetector, validate_voice_files
from phonate.workflows.session import flows
from phonate.workflows.session.config import SessionSettings, read_config
from sessions import make_recordings, make_texts, messages, read_log, write_config
from sounds import SAMPLE_RATE, voiced_tone


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a configuration."""
    write_config(tmp_path / "training/config.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(**options) -> bool:
    return TrainingSession(**{"device": "cpu", "say": lambda line: None, **options}).run()


def newest_log(output: str | Path = "training/output") -> dict:
    return json.loads(max((Path(output) / "logs").glob("session_*.json")).read_text("utf-8"))


def trained_on(output: Path) -> list[dict]:
    (listed,) = output.glob("session_*/recordings.jsonl")
    return [json.loads(line) for line in listed.read_text().splitlines()]


@pytest.mark.slow
def test_a_session_does_not_train_on_what_sessions_made(place):
    make_recordings(place / "mine", clips=2)
    for _ in range(2):
        assert run(voice_mode="voice", voice_data_dir=".")
        found = [one for one in messages(newest_log(), "SUCCESS") if one.startswith("Found ")]
        assert found[0].startswith("Found 4 voice files")
    assert len(VoiceDataDetector("training").get_voice_files()) == 0, "also from a folder within"
    assert main(["data", "check", "."]) == 0


def test_texts_of_runs_are_not_trained_on(place):
    make_texts(place / "texts")
    before = text_files(".")
    assert [file.name for file in before] == ["numbers.txt"]
    assert run(voice_mode="text", voice_data_dir=".")
    assert text_files(".") == before


@pytest.mark.slow
def test_an_output_among_the_recordings_is_skipped(place):
    make_recordings(place / "recordings", clips=2)
    for _ in range(2):
        assert run(voice_mode="voice", output_dir="recordings")
    document = newest_log("recordings")
    assert any(one.startswith("Found 4 voice files") for one in messages(document, "SUCCESS"))
    assert all("minutes of recordings" in one for one in messages(document, "WARNING"))


def test_recordings_of_one_name_are_all_used_and_named(place):
    folder = make_recordings(place / "recordings", clips=2)
    soundfile.write(folder / "anna/00.flac", voiced_tone(2.5, 190.0, (650.0,), 9), SAMPLE_RATE)
    assert run(voice_mode="voice")
    assert sorted(row["id"] for row in trained_on(place / "training/output")) == [
        "anna/00",
        "anna/00.wav",
        "anna/01",
        "ben/00",
        "ben/01",
    ]
    warning, minutes, others = messages(read_log(place / "training/output"), "WARNING")
    assert "anna, the target, has 0.1 minutes of recordings" in minutes
    assert "beside the target there is 1 other speaker" in others
    assert "anna/00.flac and " in warning
    assert warning.endswith("anna/00.wav have the same name; both are used, the second as anna/00.wav")


@pytest.fixture
def listing(tmp_path):
    """What a session lists for training of the corpus at a path, and its warnings; nothing is trained."""

    def of(path: Path, task: str = "speech") -> tuple[list[dict], list[str]]:
        warnings: list[str] = []
        log = SimpleNamespace(warning=lambda *lines: warnings.extend(lines), info=warnings.append)
        work = SimpleNamespace(
            log=log, folder=tmp_path, voice_data_dir=path, config=SimpleNamespace(settings=SessionSettings())
        )
        detector = VoiceDataDetector(path)
        files, _ = validate_voice_files(detector, VoiceRules(), processes=1)
        rows, _ = list_corpus(VoiceData(path=str(path)))
        matched = flows._match(work, rows, detector.get_voice_files(), files)
        flows._write_list(work, task, tmp_path / "listed.jsonl", matched)
        return [json.loads(line) for line in (tmp_path / "listed.jsonl").read_text().splitlines()], warnings

    return of


def test_parts_of_recordings_are_cut_out_and_none_stands_for_the_whole(tmp_path, listing):
    folder = tmp_path / "mine"
    folder.mkdir()
    sound = voiced_tone(4.0, 120.0, (700.0,), 1)
    soundfile.write(folder / "long.wav", sound, SAMPLE_RATE, subtype="FLOAT")
    parts = [(0.0, 1.5, "one"), (1.5, 2.5, "two"), (9.0, 1.0, "nowhere")]
    samples = [
        {"audio_filepath": "long.wav", "offset": start, "duration": seconds, "text": text, "speaker": "ann"}
        for start, seconds, text in parts
    ]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    listed, warnings = listing(folder)
    assert [row["text"] for row in listed] == ["one", "two"]
    found = [soundfile.read(row["audio_path"])[0] for row in listed]
    assert [len(one) / SAMPLE_RATE for one in found] == [1.5, 2.5]
    assert np.abs(found[1] - sound[round(1.5 * SAMPLE_RATE) :]).max() < 1e-3
    (warning,) = warnings
    assert warning.endswith("left out")


def test_meetings_and_second_entries_are_left_out_of_sessions_and_named(tmp_path, listing):
    folder = make_recordings(tmp_path / "mine", clips=1)
    (folder / "all.rttm").write_text(
        "SPEAKER 00 1 0.0 1.0 <NA> <NA> ann <NA> <NA>\nSPEAKER 00 1 1.0 1.2 <NA> <NA> ben <NA> <NA>\n"
    )
    (folder / "ben/00.wav").unlink()
    soundfile.write(folder / "ben/01.wav", voiced_tone(2.0, 190.0, (650.0,), 9), SAMPLE_RATE)
    with pytest.raises(DataError, match="names none"):
        listing(folder, "conversion")
    (folder / "all.rttm").unlink()
    (folder / "metadata.csv").write_text("id,audio_path,text\na,ben/01.wav,hello\nb,ben/01.wav,hello\n")
    listed, warnings = listing(folder)
    assert [row["text"] for row in listed] == ["hello"]
    assert any("its recording is listed before; left out" in one for one in warnings)


def test_links_that_form_a_loop_are_left_out(place):
    folder = make_recordings(place / "recordings", clips=2)
    (folder / "anna/self.wav").symlink_to("self.wav")
    assert run(voice_mode="voice")
    assert any("anna/self.wav: unreadable" in one for one in messages(newest_log(), "WARNING"))


@pytest.mark.parametrize("folder", ["recordigs", ""])
def test_a_folder_that_does_not_exist_trains_nothing_else(place, capsys, folder):
    make_texts(place / "datasets/samples")
    assert main(["session", "--voice-data-dir", folder, "--device", "cpu"]) == 2
    assert "--voice-data-dir" in capsys.readouterr().err
    assert not (place / "training/output").exists()
    with pytest.raises(InputError, match=f"voice_data_dir=.*{folder}"):
        TrainingSession(voice_data_dir=folder)
    if not folder:
        assert main(["session", "--check-voice-data", "--voice-data-dir", folder]) == 2


def test_the_device_of_the_configuration_is_used(place):
    make_recordings(place / "recordings", clips=2)
    config = place / "training/config.yaml"
    config.write_text(config.read_text().replace("training:\n", "training:\n  device: cuda:7\n"))
    assert not run(device=None)
    assert "device cuda:7 does not exist" in messages(newest_log(), "ERROR")[0]
    assert run(voice_mode="voice", output_dir="other"), "--device takes precedence"


def test_a_vocoder_takes_the_intervals_of_the_configuration(place):
    Path("c.yaml").write_text(
        "training:\n  max_steps: 9\n  checkpoint: {interval: 3, monitor_metric: val_cer}\n"
        "  validation: {interval: 4, metric_for_best_model: cer}\n  logging: {interval: 2, log_metrics: [loss]}\n"
    )
    training = (
        read_config(Path("c.yaml")).vocoder_plan("auto", {"data.path": "."}, corpus=False).written.recipe.training
    )
    assert (training.max_steps, training.checkpoint.interval, training.validation.interval) == (9, 3, 4)
    assert training.logging.interval == 2
    shipped = resolve("vocoder", {"data.path": "."}).recipe.training
    assert training.validation.metric_for_best_model == shipped.validation.metric_for_best_model
    assert training.checkpoint.monitor_metric == shipped.checkpoint.monitor_metric
    Path("c.yaml").write_text("training: {epochs: 3}\n")
    training = (
        read_config(Path("c.yaml")).vocoder_plan("auto", {"data.path": "."}, corpus=False).written.recipe.training
    )
    assert (training.epochs, training.max_steps) == (3, None)


def test_a_vocoder_without_checkpoints_is_refused_before_the_work(place):
    make_recordings(place / "recordings", clips=2)
    (place / "empty").mkdir()
    write_config(place / "training/config.yaml").write_text("session: {vocoder: empty}\n")
    assert not run(voice_mode="voice")
    document = newest_log()
    assert "empty" in messages(document, "ERROR")[0]
    assert "Validating voice files" not in messages(document, "INFO")


def test_a_mistake_in_the_configuration_imports_no_torch(place):
    Path("c.yaml").write_text("training: {max_stepz: 2}\n")
    code = (
        "import sys\nfrom phonate.cli import main\n"
        "code = main(['session', '--config', 'c.yaml'])\n"
        "print(code, 'torch' in sys.modules, 'librosa' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert finished.stdout.splitlines()[-1] == "1 False False"
    assert "c.yaml:1:12 training.max_stepz: no such option; did you mean max_steps?" in finished.stdout


def test_a_constant_signal_is_no_voice_and_a_wrong_suffix_is_named(place):
    folder = make_recordings(place / "recordings", clips=2)
    soundfile.write(folder / "anna/dc.wav", np.full(SAMPLE_RATE * 4, 0.3), SAMPLE_RATE)
    soundfile.write(folder / "anna/flac.wav", voiced_tone(2.5, 190.0, (650.0,), 9), SAMPLE_RATE, format="FLAC")
    assert run(voice_mode="voice")
    warnings = messages(newest_log(), "WARNING")
    assert any("anna/dc.wav: silent: " in one for one in warnings), warnings
    assert any("anna/flac.wav: wrong suffix: holds FLAC, not .wav" in one for one in warnings), warnings
    assert "anna/flac" in {row["id"] for row in trained_on(place / "training/output")}


@pytest.mark.slow
def test_a_closed_standard_output_does_not_end_a_session(place):
    make_recordings(place / "recordings", clips=2)
    finished = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m phonate session --device cpu >&-'],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ,
    )
    assert finished.returncode == 0, finished.stderr
    assert messages(newest_log(), "SUCCESS")[-1].startswith("Session ")


@pytest.mark.parametrize(("setting", "speaker"), [("speaker: carla", "carla"), ("speaker_folder: 0", "mine")])
def test_a_session_takes_the_speaker_of_its_configuration(place, monkeypatch, setting, speaker):
    make_recordings(place / "mine", clips=1)
    write_config(place / "training/config.yaml", f"data: {{{setting}}}\n")
    listed = []
    monkeypatch.setattr(flows, "_write_list", lambda work, task, path, found: listed.extend(found))
    run(voice_mode="voice", voice_data_dir="mine")
    assert {one.row.speaker for one in listed} == {speaker}
