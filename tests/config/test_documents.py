from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from phonate.config import documents
from phonate.config.documents import Place, parse, parse_value, read, shipped, value_at
from phonate.config.errors import RecipeError
from phonate.config.resolve import resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("010", 10),
        ("0o17", 15),
        ("2024-01-01", "2024-01-01"),
        ("12:30:45", "12:30:45"),
        ("'2e-4'", "2e-4"),
        ("[1, a, null]", [1, "a", None]),
        ("{no: 1, 2: b}", {"no": 1, "2": "b"}),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = parse_value(text, "command line x")
    assert found == value
    assert type(found) is type(value)


def test_pyyaml_would_read_the_learning_rate_as_text() -> None:
    """The fault that this guards against: YAML 1.1 has no float without a point."""
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load("lr: 2e-4") == {"lr": "2e-4"}
    assert parse("lr: 2e-4", "recipe.yaml").values == {"lr": 2e-4}


def test_every_key_and_value_has_its_place() -> None:
    document = parse("task: toy\nmodel:\n  widths: [1,\n    2]\n", "r.yaml")
    assert document.places["task",] == Place("r.yaml:1:1", "r.yaml:1:7")
    assert document.places["model", "widths"] == Place("r.yaml:3:3", "r.yaml:3:11")
    assert document.places["model", "widths", "1"].value == "r.yaml:4:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.yaml:1:1: the recipe is empty"),
        ("# only a comment\n", "r.yaml:1:1: the recipe is empty"),
        ("- a\n", "r.yaml:1:1: a recipe is a mapping"),
        ("just text", "r.yaml:1:1: a recipe is a mapping"),
        ("a: 1\nb: [1,\n", "r.yaml:3:1: not valid YAML"),
        ("a: 1\n b: 2\n", "r.yaml:2:3: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2:1: not valid YAML"),
        ("a: 1\n\tb: 2\n", "r.yaml:2:1: not valid YAML"),
        ("a: *nobody\n", "r.yaml:1:4: not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", "r.yaml:3:1 a: written twice, first at r.yaml:1:1"),
        ("a:\n  b: 1\n  b: 1\n", "r.yaml:3:3 b: written twice, first at r.yaml:2:3"),
        ("a: !!python/object/apply:os.system [ls]\n", "r.yaml:1:4: the tag !!python/object/apply:os.system"),
        ("a: !include other.yaml\n", "r.yaml:1:4: the tag !include is refused"),
        ("a: !!binary aGk=\n", "r.yaml:1:4: the tag !!binary is refused"),
        ("a: !!int six\n", "r.yaml:1:4: 'six' is no int"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "r.yaml:3:3: YAML 1.2 has no merge key"),
        ("? [a, b]\n: 1\n", "r.yaml:1:3: a key must be plain text"),
        ("a: x\x07y\n", "r.yaml:1:5: a character that YAML forbids"),
        ("a: &x [*x]\n", "nested"),
        ("a: " + "[" * 200 + "]" * 200, "nested more than 40 levels deep"),
        ("a: " + "[" * 600, "not valid YAML: nested too deeply"),
    ],
)
def test_a_bad_document_is_one_line_with_its_position(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text, "r.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(RecipeError, match="aliases"):
        parse("\n".join(lines), "r.yaml")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(RecipeError):
        parse_value(text, "command line x")
    with contextlib.suppress(RecipeError):
        assert isinstance(parse(text, "r.yaml").values, dict)


def test_the_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("task: toy\n")
    monkeypatch.chdir(tmp_path)
    assert read("run/recipe.yaml").name == "run/recipe.yaml"
    assert read("run").name == "run/recipe.yaml"
    assert read("run").title == "run"
    assert read("run/recipe.yaml").title == "recipe"


def test_what_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"task: \xff\n")
    with pytest.raises(RecipeError, match="not a text file"):
        read(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match=r"did you mean .*recipe\.yaml"):
        read(tmp_path / "recipes.yaml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match=r"without recipe\.yaml"):
        read(tmp_path / "empty")


def test_an_unknown_name_lists_the_near_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phonate.config.documents.shipped", lambda: ["conversion", "speech"])
    with pytest.raises(RecipeError, match=r"did you mean conversion\?"):
        read("convertion")


def test_every_shipped_recipe_is_read_by_its_name() -> None:
    for name in shipped():
        assert read(name).name == f"shipped {name}.yaml"


def test_an_anchor_may_be_defined_again(recwarn: pytest.WarningsRecorder) -> None:
    text = "a: &x 1\nb: *x\nc: &x 2\nd: *x\n"
    assert parse(text, "r.yaml").values == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert not recwarn.list


needs_libyaml = pytest.mark.skipif(
    documents._composed_by_libyaml("a: 1", YAML(typ="safe", pure=True)) is None,
    reason="ruamel.yaml has no C library here: pip install 'ruamel.yaml<0.19'",
)


def test_libyaml_reads_what_python_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes as they are shipped and as a run keeps one; of an empty value libyaml tells the end of its key's line."""
    texts = [*(read(name).text for name in shipped()), resolve("conversion", ["data.path=x"]).to_yaml()]
    fast = [parse(text, "a.yaml") for text in texts]
    asked: list[str] = []
    monkeypatch.setattr(documents, "_composed_by_libyaml", lambda text, _: asked.append(text))
    for one, other in zip(fast, [parse(text, "b.yaml") for text in texts], strict=True):
        assert one.values == other.values
        assert list(one.places) == list(other.places)
        for path, place in one.places.items():
            if value_at(one.values, path) is not None:
                assert str(place) == str(other.places[path]).replace("b.yaml", "a.yaml")
    assert asked == texts


@needs_libyaml
@pytest.mark.parametrize(
    "text", ["[" * 201 + "]" * 201, "- " * 201, "é: 1", "a: &b 1", "a: |\n  b", "%YAML 1.1\n---\na: 1"]
)
def test_libyaml_is_not_given_what_it_reads_otherwise(text: str) -> None:
    yaml = YAML(typ="safe", pure=True)
    assert documents._composed_by_libyaml("a: 1", yaml)
    assert documents._composed_by_libyaml("# wav|text\na: 1", yaml)
    assert documents._composed_by_libyaml(text, yaml) is None
