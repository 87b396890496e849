"""`phonate demo`: the whole path, and what it says when it can't be gone."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile

import phonate_process
from phonate.audio.processor import AudioProcessor
from phonate.cli import main
from phonate.config.errors import DataError, InputError
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Row
from phonate.data.settings import VoiceData
from phonate.training.checkpoints.files import RECORDINGS
from phonate.training.plan import plan
from phonate.workflows.demo import embedded, training
from phonate.workflows.demo.demo import Kind, demo, divide, figures, free_folder, train_speech
from phonate.workflows.demo.training import Limit, Machine, Training, as_value

JUDGES = ("faster_whisper", "whisper_normalizer", "distillmos", "resemblyzer")


@pytest.fixture
def phonate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `phonate ARGUMENTS` in this process; its trainings are still processes of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    processes = SimpleNamespace(
        PIPE=subprocess.PIPE,
        DEVNULL=subprocess.DEVNULL,
        Popen=lambda words, **options: phonate_process.PythonProcess(*words[1:], **options),
        run=lambda words, check, **options: phonate_process.run_python(*words[1:], stderr=None, **options),
    )
    monkeypatch.setattr(training, "subprocess", processes)

    def run(*arguments: str) -> SimpleNamespace:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return run


@pytest.mark.slow
def test_the_whole_path_on_a_persons_recordings(tone_corpus: Path, tmp_path: Path, phonate: Callable[..., Any]) -> None:
    arguments = ["--task", "conversion", "--data", str(tone_corpus), "--output", "out", "--minutes", "0.1"]
    ran = phonate("demo", *arguments)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert said[-4] == "report: out/report.html"
    assert said[-3] == "next:"
    assert said[-2].startswith("  phonate convert out ")
    assert said[-1] == "  phonate demo --data my_recordings --task conversion"
    assert any(line.startswith("this model") for line in said)
    repeated = [line for line, count in Counter((ran.stdout + ran.stderr).splitlines()).items() if line and count > 1]
    # Each process says what it trains on; a second one that is out of time is stopped as the first was, and begins anew
    # where the first was stopped before its first step. Their commands are the same where the time left allows as many
    # steps as were planned at first.
    warnings = ("anna, the target, has ", "beside the target ")
    of_each = ("conversion: ", *warnings, "SIGTERM: ", "out: nothing to resume yet", "  phonate train ")
    repeated = [line for line in repeated if not line.startswith(of_each)]
    assert not repeated
    run = tmp_path / "out"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") == 3 * 2
    assert "no conversion" in page

    log = (run / "logs" / "training.log").read_text(encoding="utf-8")
    assert "resumed from" in log
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(Counter((line["step"], line["split"]) for line in lines).values()) == 1

    trained_on = {one["audio_path"] for one in json.loads((run / "training.json").read_text())}
    clips = json.loads((run / "samples" / "samples.json").read_text())["examples"]
    sources = {example["clips"][0]["path"] for example in clips}
    assert len(sources) == 2
    assert not sources & trained_on
    for example in clips:
        source, _ = soundfile.read(example["clips"][0]["path"])
        converted, _ = soundfile.read(run / "samples" / example["clips"][1]["path"])
        assert np.abs(converted).max() > 0.1
        assert len(converted) == pytest.approx(len(source), rel=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("espeak")
def test_recordings_with_texts_become_a_voice(tmp_path: Path, phonate: Callable[..., Any]) -> None:
    if missing := [name for name in JUDGES if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'phonate[all]'")
    embedded.make_voice(tmp_path / "mine", count=12)
    ran = phonate("demo", "--data", "mine", "--output", "out", "--minutes", "0.1")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "report: out/report.html" in lines
    start = next(number for number, line in enumerate(lines) if "WER % ↓" in line)
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["natural", "vocoder", "base/voice,", "this"]
    assert "Falling back" not in ran.stderr
    run = tmp_path / "out"
    assert "resumed from" in (run / "logs" / "training.log").read_text(encoding="utf-8")
    figures_of = json.loads((run / "evaluation.json").read_text())["systems"]
    assert list(figures_of) == ["natural", "vocoder copy", "base/voice, where training began", "this voice"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") >= 4
    said = phonate("speak", "out", "The baker sold a yellow boat.", "-o", "said.wav")
    assert said.returncode == 0, said.stderr
    sound, _ = soundfile.read(tmp_path / "said.wav")
    assert np.abs(sound).max() > 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("espeak")
def test_synthetic_speech_is_learnt_without_the_voice(
    tmp_path: Path, phonate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := [name for name in JUDGES if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'phonate[all]'")
    monkeypatch.setattr("phonate.workflows.demo.demo._SENTENCES", 20)
    ran = phonate("demo", "--synthetic", "--output", "out", "--minutes", "0.1")
    assert ran.returncode == 0, ran.stderr
    assert "WER % ↓" in ran.stdout
    assert "report: out/report.html" in ran.stdout.splitlines()
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") >= 4
    assert "where training began" not in page


def test_recordings_that_come_along_start_from_the_voice_that_does() -> None:
    corpus = [f"data.path={RECORDINGS}"]
    listed, _ = list_corpus(VoiceData(path=str(RECORDINGS)))
    rows = [row for row in listed if isinstance(row, Row)]
    assert len(rows) == len(listed) == 20
    assert all(row.text and row.path.is_file() for row in rows)
    seconds = sum(soundfile.info(row.path).duration for row in rows)
    assert 120 < seconds < 150
    assert plan("speech", corpus).settings.init_from == "base/voice"


class Begins(Exception):
    """Raised in place of training."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The recipe that training would begin with."""
    recipe: list[str] = []

    def training_begins(given: list[str], *_: object) -> None:
        recipe.extend(given)
        raise Begins

    monkeypatch.setattr("phonate.workflows.demo.demo.Training", training_begins)
    return recipe


def test_it_speaks_before_it_trains(tmp_path: Path, trained: list[str]) -> None:
    """By itself it trains on the recordings that come along, after the voice that does has said something."""
    said: list[str] = []
    with pytest.raises(Begins):
        train_speech(None, tmp_path, cast(Any, None), cast(Any, None), said.append)
    sound, rate = soundfile.read(tmp_path / "base-voice.flac")
    assert 3.0 < len(sound) / rate < 12.0
    assert np.abs(sound).max() > 0.5
    assert said[0].startswith(f"listen to {tmp_path / 'base-voice.flac'}")
    assert trained[0] == "speech"
    assert any(RECORDINGS.name in one for one in trained if one.startswith("data.path="))


def test_recordings_in_another_language(tmp_path: Path, trained: list[str]) -> None:
    """The recipe has the language, and does not choose by the loss; the package's recordings have their own."""
    with pytest.raises(Begins):
        train_speech(RECORDINGS, tmp_path, cast(Any, None), cast(Any, None), [].append, language="de")
    recipe = plan("speech", trained[1:]).recipe
    assert recipe.data.language == "de"
    assert recipe.data.judged == 0
    assert recipe.data.phonemes == "espeak"
    assert recipe.training.validation.metric_for_best_model == "step"
    for data, kind in ((None, "speech"), (tmp_path, "conversion")):
        with pytest.raises(InputError, match='language="de"'):
            demo(tmp_path / "out", data, kind=kind, language="de")


def test_a_language_that_espeak_does_not_know_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    with pytest.raises(InputError, match="no language 'Klingon'"):
        demo(tmp_path / "out", RECORDINGS, language="Klingon")
    assert not (tmp_path / "out").exists()


def test_make_takes_a_language_only_from_its_command_line() -> None:
    """LANGUAGE is also a variable of the environment, in which desktops keep a list of languages."""
    root = Path(__file__).parents[2]

    def made(*given: str) -> str:
        environment = {**os.environ, "LANGUAGE": "en_US:en"}
        ran = subprocess.run(
            ["make", "-n", "demo", *given], cwd=root, env=environment, capture_output=True, text=True, check=True
        )
        return ran.stdout

    assert "--language" not in made()
    assert "--data 'mine' --language de" in " ".join(made("DATA=mine", "LANGUAGE=de").split())


def test_one_corpus_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"synthetic=True: .* data= "):
        demo(tmp_path / "out", tmp_path, synthetic=True)


def test_sentences_of_the_embedded_voice_are_many_and_always_the_same() -> None:
    made = embedded.sentences(600)
    assert len(set(made)) == 600
    assert embedded.sentences(50) == made[:50]
    assert embedded.sentences(50, seed=1) != made[:50]
    assert all(text[0].isupper() and text[-1] in ".?" and "  " not in text for text in made)


def test_one_recording_of_each_other_speaker_is_kept_out(tone_corpus: Path) -> None:
    divided = divide(tone_corpus)
    kept = {path.parent.name for path in divided.sources}
    assert kept == {"anna", "ben", "cleo"} - {divided.target}
    assert len(divided.training) == 18 - 2
    assert not {str(path.resolve()) for path in divided.sources} & {one["audio_path"] for one in divided.training}
    assert all(path.parent.name == divided.target for path in divided.target_clips)


def test_one_speaker_is_too_few(tone_corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(tone_corpus / "anna", tmp_path / "anna")
    with pytest.raises(InputError, match="two or more speakers"):
        divide(tmp_path)


def test_a_speaker_of_two_recordings_has_none_to_spare(tone_corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(tone_corpus / "anna", tmp_path / "anna")
    (tmp_path / "ben").mkdir()
    for name in ("00.wav", "01.wav"):
        shutil.copy(tone_corpus / "ben" / name, tmp_path / "ben" / name)
    with pytest.raises(InputError, match="nothing to convert"):
        divide(tmp_path)


def test_a_missing_folder_is_one_line(tmp_path: Path, phonate: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match="no such folder"):
        divide(tmp_path / "nothing")
    ran = phonate("demo", "--data", "nothing", "--output", "out")
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "--data: nothing does not exist" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_recordings_without_words_are_sent_to_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "hiss").mkdir()
    for seed in range(2):
        hiss = 0.01 * np.random.default_rng(seed).standard_normal(48000)
        soundfile.write(tmp_path / "hiss" / f"{seed}.wav", hiss, 16000)
    with pytest.raises(InputError, match='task="conversion"'):
        demo(tmp_path / "out", tmp_path / "hiss")


def test_a_folder_without_sound_is_told_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").touch()
    with pytest.raises(DataError, match=r"notes: no audio files"):
        demo(tmp_path / "run", tmp_path / "notes")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["speech", "conversion"])
def test_labelled_meetings_are_sent_to_the_task_that_learns_them(tmp_path: Path, kind: Kind) -> None:
    (folder := tmp_path / "meetings").mkdir()
    soundfile.write(folder / "a.wav", np.zeros(16000), 16000)
    (folder / "a.rttm").write_text("SPEAKER a 1 0.0 0.5 <NA> <NA> anna <NA> <NA>\n")
    with pytest.raises(InputError, match=f"^{folder}: .*phonate train diarization data.path={folder} "):
        demo(tmp_path / "out", folder, kind=kind)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_second_demo_takes_the_next_free_folder(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "demo") == tmp_path / "demo"
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").touch()
    (tmp_path / "demo-3").mkdir()  # left empty by a demo that could not begin
    assert free_folder(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.slow
@pytest.mark.usefixtures("espeak")
def test_figures_know_the_target_from_the_source(tmp_path: Path) -> None:
    if importlib.util.find_spec("resemblyzer") is None:
        pytest.skip("needs resemblyzer: pip install 'phonate[eval]'")
    from phonate.workflows.demo.embedded import SPEAKERS, make_corpus

    corpus = make_corpus(tmp_path, speakers=(SPEAKERS[0], SPEAKERS[1]), sentences=4)
    target = sorted((corpus.folder / "ada").glob("*.wav"))
    source = sorted((corpus.folder / "bert").glob("*.wav"))
    found = figures(AudioProcessor(), source[:1], target[3:4], target[:3]).systems
    assert found["this model"]["pair"] > found["no conversion"]["pair"] + 0.1
    assert found["this model"]["closer"] == 1.0
    assert found["no conversion"]["closer"] == 0.0
    assert found["this model"]["f0"] > 1.5 * found["no conversion"]["f0"]


def test_a_conversion_without_a_voiced_frame_has_no_pitch_in_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a few steps of training; the report is written all the same."""
    monkeypatch.setattr("phonate.workflows.demo.demo.missing", lambda need: ["resemblyzer"])
    embedded.make_voice(tmp_path / "mine", count=2)
    spoken = sorted((tmp_path / "mine").rglob("*.wav"))
    soundfile.write(tmp_path / "hiss.wav", 0.1 * np.random.default_rng(0).standard_normal(22050), 22050)
    found = figures(AudioProcessor(), spoken[:1], [tmp_path / "hiss.wav"], spoken[1:2])
    assert "f0" not in found.systems["this model"]
    assert found.systems["no conversion"]["f0"] > 0
    json.dumps(found.document(), allow_nan=False)


def test_a_conversion_without_speech_has_no_likeness_and_the_legend_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a few steps of training: the judge refuses it, and the report is written all the same."""

    class Judge:
        def embed(self, waveform: np.ndarray, rate: int) -> np.ndarray:
            if len(waveform) == 22050:  # the hiss
                raise DataError("a recording: the speaker judge finds no speech in it")
            return np.ones(4, dtype=np.float32) / 2

    monkeypatch.setattr("phonate.workflows.demo.demo.missing", lambda need: [])
    monkeypatch.setattr("phonate.workflows.demo.demo.SpeakerEncoder", Judge)
    embedded.make_voice(tmp_path / "mine", count=3)
    spoken = sorted((tmp_path / "mine").rglob("*.wav"))
    soundfile.write(tmp_path / "hiss.wav", 0.02 * np.random.default_rng(0).standard_normal(22050), 22050)
    found = figures(AudioProcessor(), spoken[:1], [tmp_path / "hiss.wav"], spoken[1:3])
    assert "pair" not in found.systems["this model"]
    assert found.systems["no conversion"]["pair"] == pytest.approx(1.0)
    assert found.systems["target's own recordings"]["pair"] == pytest.approx(1.0)
    assert "No speaker similarity of this model: the judge finds no speech there." in found.legend


def slow_machine(output: Path, per_step: float) -> str:
    """A program in the place of `phonate` that takes its time for each step, stops at SIGTERM and resumes."""
    return f"""
import json, pathlib, signal, sys, time
arguments = sys.argv[1:]
if "--dry-run" in arguments:
    print(json.dumps({{"metrics": {{"seconds_per_step": 0.005}}}}))
    sys.exit()
output = pathlib.Path({str(output)!r})
step = json.loads((output / "state").read_text()) if (output / "state").exists() else 0
last = next((int(one.partition("=")[2]) for one in arguments if one.startswith("training.max_steps=")), 150)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
with (output / "metrics.jsonl").open("a") as metrics, (output / "commands").open("a") as commands:
    print(last, file=commands)
    while step < last and not stop:
        time.sleep({per_step})
        step += 1
        print(json.dumps({{"step": step, "split": "train"}}), file=metrics, flush=True)
(output / "state").write_text(json.dumps(step))
sys.exit(143 if stop else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stopped_and_resumed", "straight"])
def test_the_clock_ends_training_on_a_machine_that_became_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A dry run said 200 steps a second, and 20 are done, or the recipe has too many: the run is cut to what fits,
    and still ends by itself."""
    program = tmp_path / "program.py"
    program.write_text(slow_machine(tmp_path, per_step=0.05))
    monkeypatch.setattr(training, "_phonate", lambda arguments: [sys.executable, str(program), *arguments])
    state = tmp_path / "state"
    monkeypatch.setattr(
        training.listing,
        "scan",
        lambda _: [SimpleNamespace(step=json.loads(state.read_text()))] if state.exists() else [],
    )
    said: list[str] = []
    getattr(Training(["speech", f"data.path={RECORDINGS}"], tmp_path, Machine()), way)(Limit(4.0), 1.0, said.append)
    planned = [int(line) for line in (tmp_path / "commands").read_text().split()]
    reached = json.loads((tmp_path / "state").read_text())
    assert planned[0] == (150 if way == "stopped_and_resumed" else 800)
    assert 20 <= reached <= 200
    assert reached == planned[-1]  # the learning rate has fallen to its end
    assert any(
        line.startswith(f"\nresuming; the time left allows {planned[1]} steps, not {planned[0]}:") for line in said
    )


def test_what_training_would_refuse_is_refused_before_it_begins(tmp_path: Path) -> None:
    recipe = ["conversion", "data.path=x", "model.causal=true", "data.prosody=false"]
    with pytest.raises(InputError, match=r"model\.causal: live conversion needs the pitch"):
        Training(recipe, tmp_path, Machine()).stopped_and_resumed(Limit(1.0), 1.0, [].append)


def test_training_ends_in_time_for_the_rest() -> None:
    assert Limit(200.0).share(0.25) == 50.0
    late = Limit(200.0, time.monotonic() + 100.0)
    assert late.share(0.75) == pytest.approx(100.0, abs=1.0)
    assert late.share(0.25, of_the_rest=0.25) == pytest.approx(25.0, abs=1.0)


def test_a_stop_that_comes_after_the_last_step_is_a_run_that_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        f"metrics = pathlib.Path({str(tmp_path)!r}, 'metrics.jsonl')\n"
        "metrics.write_text(json.dumps(dict(step=3, split='train')) + '\\n')\n"
        "time.sleep(60)\n"
        "metrics.with_name('not stopped').touch()\n"
    )
    monkeypatch.setattr(training, "_phonate", lambda arguments: [sys.executable, str(program), *arguments])
    saved = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(training.listing, "scan", lambda _: [SimpleNamespace(step=3)] if saved.exists() else [])
    progress = training._watch([], tmp_path, lambda now, step: step == 3)
    assert (progress.finished, progress.step) == (True, 3)
    assert not (tmp_path / "not stopped").exists()


def test_what_is_finished_out_of_time_has_no_more_steps_than_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = []

    def watch(command: list[str], output: Path, stops: object = None) -> Any:
        watched.append(command)
        return training._Progress(finished=False, step=149, startup=0.0, rate=1.0)

    monkeypatch.setattr(training, "_watch", watch)
    run = Training(["speech", f"data.path={RECORDINGS}"], tmp_path, Machine())
    said: list[str] = []
    run._finish(150, 150, 0.0, said.append)
    assert said == ["\nout of time at step 149; finishing at step 150\n"]
    assert not any("max_steps" in word for word in watched[-1])  # those of the recipe


@pytest.mark.parametrize("text", ["my voices/anna", "1234", "null", "[a]", " a", "it's: 2 # x", "'"])
def test_a_path_is_quoted_only_where_yaml_would_read_something_else(text: str) -> None:
    written = as_value(text)
    assert plan("conversion", [f"data.path={written}"], corpus=False).recipe.data.path == text
    assert (written == text) == (text in ("my voices/anna", "1234", "it's: 2 # x"))
