"""Every command of the pages on sessions, run to its end on small data, on a machine that seems to have two GPUs."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

import fake_gpus
from phonate.cli import main
from phonate.workflows.session.config import read_config
from phonate_process import run_python
from sessions import CONFIG, make_recordings, make_texts, words_of

ROOT = Path(__file__).parents[2]
PAGES = ("do/sessions.md",)
BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [found for page in PAGES for found in BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))]
TABLED = re.findall(
    r"`(scripts/train_\w+\.sh[^`]*)`", "".join((ROOT / "docs" / page).read_text("utf-8") for page in PAGES)
)
COMMANDS = list(
    dict.fromkeys(
        [line for _, kind, code in BLOCKS if kind == "bash" for line in code.splitlines() if line.strip()] + TABLED
    )
)
TRAINING = [one for one in COMMANDS if one.startswith(("phonate session", "scripts/")) and "--show" not in one]
TRAINING = [one for one in TRAINING if "--check" not in one]
OTHERS = [one for one in COMMANDS if one not in TRAINING]

NEEDS = {
    "phonate speak": "speech",
    "phonate convert": "conversion",
    "phonate transcribe": "recognition",
    "phonate generate": "text",
    "phonate checkpoints": "conversion",
    "phonate train": "conversion",
}
"""What a command is used on -> the kind of session that makes it."""


def lay_out(place: Path) -> Path:
    """A folder as the pages suppose it."""
    make_recordings(place / "recordings")
    make_texts(place / "datasets/samples")
    (place / "training").mkdir()
    (place / "training/config.yaml").write_text(CONFIG, "utf-8")
    shutil.copy(place / "recordings/ben/00.wav", place / "somebody.wav")
    (place / "scripts").symlink_to(ROOT / "scripts")
    return place


def run(place: Path, command: str) -> str:
    """What a command prints, on a machine with the fake GPUs; a script by what it hands to `phonate`."""
    words = shlex.split(command, comments=True)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.chdir(place)
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        fake_gpus.pretend(patch.setattr)
        code = main(words_of(*words) if words[0].startswith("scripts/") else words[1:])
    assert code == 0, out.getvalue()
    return out.getvalue()


def leave_unfinished(place: Path) -> None:
    """A session that was stopped while it saved its model."""
    run(place, "phonate session --device cpu")
    (state,) = place.glob("training/output/session_*/session.json")
    state.write_text(state.read_text("utf-8").replace('"done": true', '"done": false'), "utf-8")
    shutil.rmtree(place / "training/output/voice_model")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Folders in which a session of each kind was run, made when they are first asked for."""
    places: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in places:
            place = lay_out(tmp_path_factory.mktemp(kind))
            if kind in ("speech", "recognition"):
                for number, file in enumerate(sorted(place.glob("recordings/*/*.wav"))):
                    file.with_suffix(".txt").write_text(f"these are words, number {number}", "utf-8")
                more = "data: {durations: learnt, aligner_steps: 2, judged: 0}\n" if kind == "speech" else ""
                plain = "metric_for_best_model: val_loss, greater_is_better: false"
                config = CONFIG.replace("previews: false", f"previews: false, {plain}")
                config = config.replace("session:", f"{more}session:") + f"  voice: {kind}\n"
                (place / "training/config.yaml").write_text(config, "utf-8")
            run(place, f"phonate session --device cpu --voice-mode {'text' if kind == 'text' else 'voice'}")
            (folder,) = (place / "training/output").glob("session_*")
            folder.with_name("session_20261121_143022").symlink_to(folder.name)
            places[kind] = place
        return places[kind]

    return of


def test_there_are_commands() -> None:
    assert len(TRAINING) >= 14
    assert len(OTHERS) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("command", TRAINING)
def test_sessions_train(command: str, tmp_path: Path) -> None:
    place = lay_out(tmp_path)
    if "--resume" in command:
        leave_unfinished(place)
    run(place, command)
    kept = [*tmp_path.glob("training/*/voice_model/weights.*"), *tmp_path.glob("training/*/text_model/weights.*")]
    assert kept


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHERS)
def test_other_commands_run(command: str, made, tmp_path: Path) -> None:
    kind = next((kind for start, kind in NEEDS.items() if command.startswith(start)), None)
    place = lay_out(tmp_path) if kind is None else made(kind)
    assert run(place, command).strip()


@pytest.mark.parametrize("code", [code for mark, kind, code in BLOCKS if (mark, kind) == ("session", "yaml")])
def test_configurations_can_be_read(code: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(code, "utf-8")
    config = read_config(tmp_path / "config.yaml")
    name = "conversion" if config.value("model", "name") is None else "language-lora"
    assert config.plan(name, {"data.path": "recordings"}, corpus=False).recipe.task in ("conversion", "language")


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for mark, kind, code in BLOCKS if (mark, kind) == ("session", "python")])
def test_python_runs(code: str, tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "page.py").write_text(code, "utf-8")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = run_python(tmp_path / "page.py", cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "'total_files': 6" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("training/output/voice_model training/output/logs/session_")
