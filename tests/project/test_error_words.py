"""Errors name an option on the command line, and an argument in Python (`phonate.config.errors.option`)."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from phonate.config.errors import RecipeError, command_line, json_mistake, option, same_command, unreadable
from phonate.config.resolve import resolve

ROOT = Path(__file__).parents[2] / "src" / "phonate"
BY_COMMAND_ALONE = ("cli", "serving")
"""What no function of Python leads to."""
OTHER_PROGRAMS = re.compile(
    r"\b(pip install|torchrun|ray start|accelerate launch|tar --sparse|phonate data prepare|evaluate --tune)\b"
)


def test_no_error_spells_an_option_by_hand() -> None:
    by_hand = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] in BY_COMMAND_ALONE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise):
                continue
            parts = [
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            text = " ".join(parts)
            if re.search(r"(^|[ (])--[a-z]", text) and "in Python" not in text and not OTHER_PROGRAMS.search(text):
                by_hand.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    assert not by_hand


def test_an_option_to_set_can_be_pasted_behind_a_command() -> None:
    """`set data.x=y`; `data.x: y` is what a recipe has, and only where it is said to be so."""
    as_in_recipes = re.compile(r"\b(set|with|use|try) (data|model|training)\.[a-z_.]+: [a-z0-9_]")
    texts = [
        (path, node.value)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(texts) > 1000
    assert not [f"{path.relative_to(ROOT)}: {text}" for path, text in texts if as_in_recipes.search(text)]


@pytest.mark.parametrize(
    ("name", "value", "in_python", "on_command_line"),
    [
        ("output", None, "output=", "--output"),
        ("resume", "auto", 'resume="auto"', "--resume auto"),
        ("form", "onnx", 'form="onnx"', "--format onnx"),
        ("higher_is_better", True, "higher_is_better=True", "--higher-is-better"),
        ("higher_is_better", False, "higher_is_better=False", "--no-higher-is-better"),
    ],
)
def test_an_option_is_named_as_it_was_given(
    name: str, value: str | bool | None, in_python: str, on_command_line: str
) -> None:
    assert option(name, value) == in_python
    with command_line():
        assert option(name, value) == on_command_line


@pytest.mark.parametrize("given", [{"training.epoch": 1}, ["training.epoch=1"]])
def test_what_python_gave_is_not_said_to_stand_on_the_command_line(given: dict[str, object] | list[str]) -> None:
    with pytest.raises(RecipeError) as raised:
        resolve("speech", given)
    missing, unknown = str(raised.value).splitlines()
    assert missing.startswith('data.path: missing; give it as in phonate.train("speech", {"data.path": ...})')
    assert unknown.startswith("overrides training.epoch: ")


def test_the_reason_of_a_system_is_words_alone(tmp_path: Path) -> None:
    (broken := tmp_path / "broken.txt").write_bytes(b"a\xff")
    for path, said in ((tmp_path / "gone", "No such file or directory"), (broken, "byte 2 is not UTF-8")):
        with pytest.raises((OSError, UnicodeDecodeError)) as raised:
            path.read_text(encoding="utf-8")
        assert unreadable(raised.value) == said


def test_a_place_in_json_is_that_of_editors() -> None:
    for text, said in (("{", "column 2"), ('{\n "a" 1}', "line 2, column 6"), (100_000 * "[", "nested too deeply")):
        with pytest.raises((ValueError, RecursionError)) as raised:
            json.loads(text)
        assert json_mistake(raised.value).endswith(said)


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (["train", "my recipe.yaml", "data.path=a b"], "phonate train 'my recipe.yaml' 'data.path=a b' --resume auto"),
        (["train", "speech", "--resume", "runs/old", "size=small"], "phonate train speech size=small --resume auto"),
        (["train", "--resume=runs/old", "speech", "--", "a=b"], "phonate train speech --resume auto -- a=b"),
        (["demo"], None),
    ],
)
def test_a_command_is_given_again_with_another_option(given: list[str], again: str | None) -> None:
    with command_line(given):
        assert same_command("train", "resume", "auto") == again
    assert same_command("train", "resume", "auto") is None
