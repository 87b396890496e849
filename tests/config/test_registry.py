from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phonate.config import registry
from phonate.config.errors import InputError
from phonate.config.registry import Registry, load_plugin, nearest
from phonate.config.tasks import TASKS, TaskEntry, task_class, task_settings
from phonate.training.settings import TrainingSettings


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    """A registry of entries in a package, one of which can't be imported."""
    package = tmp_path / "colours_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "light_blue.py").write_text("class LightBlueColour:\n    pass\n")
    (package / "sky.py").write_text("class Sky:\n    pass\n")
    (package / "nothing.py").write_text("x = 1\n")
    (package / "broken.py").write_text("raise RuntimeError('imported too early')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"light_blue": ":LightBlueColour", "sky": ":Sky", "nothing": "", "broken": ""}
    entries = {name: f"colours_package.{name}{target}" for name, target in names.items()}
    yield Registry("colour", entries, suffix="colour", group="phonate_test.colours")
    for name in [name for name in sys.modules if name.startswith("colours_package")]:
        del sys.modules[name]


def test_entries_are_imported_when_they_are_asked_for(colours: Registry[Any]) -> None:
    assert colours.names() == ["broken", "light_blue", "nothing", "sky"]
    assert colours.get("light_blue").__name__ == "LightBlueColour"
    assert colours.get("sky").__name__ == "Sky"


def test_the_nearest_name_is_named(colours: Registry[Any]) -> None:
    with pytest.raises(InputError, match=r"'ligth_blue' .*did you mean light_blue\?"):
        colours.get("ligth_blue")
    with pytest.raises(InputError, match="choose from 'broken', 'light_blue', 'nothing', 'sky'"):
        colours.get("xyz")
    assert nearest("anna", ["recordings"]) == "there is only 'recordings'"
    many = nearest("anna", [f"{number:02}" for number in range(40)], "phonate data describe")
    assert many.endswith("'06', '07' and 32 more (phonate data describe lists all)")
    with pytest.raises(InputError, match=r"colours_package\.nothing .*called nothing"):
        colours.get("nothing")


def test_registered_entries_come_first(colours: Registry[Any]) -> None:
    colours.register("sky", int)
    colours.register("late", "decimal:Decimal")
    assert colours.get("sky") is int
    assert colours.get("late").__name__ == "Decimal"
    assert "late" in colours.names()


def test_entry_points_of_other_distributions(
    colours: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, value in (("first", "fractions:Fraction"), ("second", "decimal:Decimal")):  # installed twice
        folder = tmp_path / place / "paints-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: paints\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[phonate_test.colours]\nsky = {value}\n\n[others]\nsea = {value}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    for known in (registry._declared, registry._entry_points):
        known.cache_clear()
    try:
        assert colours.get("sky").__name__ == "Fraction"
        assert "sea" not in colours.names()
    finally:
        for known in (registry._declared, registry._entry_points):
            known.cache_clear()


def test_a_plugin_file_registers_and_is_recorded(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from phonate.config.settings import Settings\n"
        "from phonate.config.tasks import TASKS, TaskEntry\n"
        "print('ran')\n"
        "TASKS.register('mine', TaskEntry(Settings, Settings, task='decimal:Decimal'))\n"
    )
    record = load_plugin(plugin)
    assert record == {"path": str(plugin), "sha256": hashlib.sha256(plugin.read_bytes()).hexdigest()}
    assert task_class("mine").__name__ == "Decimal"
    assert task_settings("mine").training is TrainingSettings


def test_a_plugin_runs_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "once.py"
    plugin.write_text("print('ran')\n")
    assert load_plugin(plugin) == load_plugin(plugin)
    assert capsys.readouterr().out == "ran\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ny = unknown\n", "bad.py:2: the plug-in fails: NameError"),
        ("x = 1\ny = (\n", "bad.py:2: the plug-in fails: SyntaxError"),
        ("x = 1\nraise SystemExit(0)\n", "bad.py:2: the plug-in fails: SystemExit: 0"),
        ("import nowhere_to_be_found\n", "bad.py:1: the plug-in fails: ModuleNotFoundError"),
    ],
)
def test_a_plugin_that_fails_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(InputError) as caught:
        load_plugin(tmp_path / "bad.py")
    assert message in str(caught.value)


def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such plug-in file"):
        load_plugin(tmp_path / "absent.py")


def test_tasks_are_packages_with_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "other_tasks"
    for name, files in {"singing": ("settings", "task"), "empty": ()}.items():
        (package / name).mkdir(parents=True)
        for file in ("__init__", *files):
            (package / name / f"{file}.py").touch()
    (package / "__init__.py").touch()
    (package / "singing" / "settings.py").write_text(
        "from phonate.config.settings import Settings\n"
        "class D(Settings):\n    pass\n"
        "class M(Settings):\n    pass\n"
        "DATA, MODEL, SIZES = D, M, {'tiny': {}}\n"
    )
    (package / "singing" / "task.py").write_text("class SingingTask:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(TASKS, "package", "other_tasks")
    assert TASKS.names() == ["singing", "toy"]
    assert task_settings("singing").data.__name__ == "D"
    assert "other_tasks.singing.task" not in sys.modules
    assert task_class("singing").__name__ == "SingingTask"


def test_a_later_entry_replaces_the_first() -> None:
    from toy_task import ToyData, ToyModel

    TASKS.register("toy", TaskEntry(ToyData, ToyModel, task=dict))
    assert task_class("toy") is dict


def test_settings_of_every_task_import_no_torch() -> None:
    code = (
        "import sys\n"
        "from phonate.config.tasks import TASKS, task_settings\n"
        "for name in TASKS.names(): task_settings(name)\n"
        "heavy = {'torch', 'lhotse', 'librosa', 'accelerate', 'transformers'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
