"""Rows with a source and a target: tables and JSON, with a header or without, and rows that can't be used."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from phonate.config.errors import DataError
from phonate.data.dialogues import Columns, read_dialogues


def read(path: Path, text: str, columns: Columns | None = None) -> list[tuple[str, str, str]]:
    path.write_text(text, encoding="utf-8", newline="")
    found = read_dialogues(path, columns=columns or Columns()).dialogues
    return [(one.id, one.prompt[0].text if one.prompt else "", one.response.text) for one in found]


def test_a_table_without_a_header(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tsv", 'a "b\tc d"\r\n\n x\ty, z\n') == [
        ("a.tsv:1", 'a "b', 'c d"'),
        ("a.tsv:3", " x", "y, z"),
    ]


def test_a_table_with_a_header(tmp_path: Path) -> None:
    text = 'id,target,source\n1,"un, deux\ntrois",one\n2,quatre,four\n'
    assert read(tmp_path / "a.csv", text) == [("a.csv:2", "one", "un, deux\ntrois"), ("a.csv:4", "four", "quatre")]
    named = "id,French,English\n1,un,one\n"
    assert read(tmp_path / "b.csv", named, Columns("English", "French")) == [("b.csv:2", "one", "un")]
    assert read(tmp_path / "c.csv", "text\nonly this\n") == [("c.csv:2", "", "only this")]


def test_json_rows_under_these_names_and_the_usual_ones(tmp_path: Path) -> None:
    rows = [{"en": "one", "fr": "un"}, {"en": "two"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with_target = read(tmp_path / "a.jsonl", text, Columns("en", "fr"))
    assert with_target == [("a.jsonl:1", "one", "un")]
    mixed = [
        {"source": "a", "target": "b"},
        {"prompt": "c", "response": "d"},
        {"text": "e"},
        {"text": "f", "label": "g"},
    ]
    assert read(tmp_path / "b.json", json.dumps(mixed)) == [
        ("b.json:1", "a", "b"),
        ("b.json:2", "c", "d"),
        ("b.json:3", "", "e"),
        ("b.json:4", "f", "g"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "columns", "told"),
    [
        ("a.tsv", "one\tun\ntwo\n", Columns(), "a.tsv:2: 1 columns, and column 2 is needed"),
        ("a.tsv", "one\tun\n\tdeux\n", Columns(), "a.tsv:2: column 1 is empty"),
        ("a.csv", 'one,un\n"two,deux\nthree,trois\n', Columns(), "a.csv:2: .*the rows from here on are not read"),
        ("a.jsonl", '{"en": "one", "fr": "un"}\n{"en": "two"}\n', Columns("en", "fr"), "a.jsonl:2: no 'fr'"),
        (
            "a.csv",
            "source,target\none,un\nhow,bien, merci\n",
            Columns(),
            "a.csv:3: 3 columns, the first row has 2; put quotes",
        ),
        ("a.tsv", "one\tun\ntwo\tdeux\ttrois\n", Columns(), "a.tsv:2: 3 columns, the first row has 2; take tabs"),
        (
            "a.jsonl",
            '{"input": "one", "output": "un"}\n{"instruction": "Say it.", "input": "a", "output": "b"}\n',
            Columns(),
            "a.jsonl:2: 'instruction' is not read beside a prompt",
        ),
        (
            "a.jsonl",
            '{"prompt": "one", "response": "un"}\n{"system": "Be brief.", "prompt": "a", "response": "b"}\n',
            Columns(),
            "a.jsonl:2: 'system' is not read beside a prompt",
        ),
        (
            "a.jsonl",
            '{"src": "one", "target": "un"}\n{"src": 2, "target": ""}\n',
            Columns(),
            "a.jsonl:2: 'src' is int, not a text",
        ),
    ],
)
def test_rows_that_cant_be_used_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str, columns: Columns, told: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="phonate"):
        assert len(read(tmp_path / name, text, columns)) == 1
    assert "1 row can't be used" in caplog.text
    assert re.search(told, caplog.text)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv:1: .*'Englisch'; did you mean English\?"):
        read(tmp_path / "a.csv", "English,French\none,un\n", Columns("Englisch", "French"))
    with pytest.raises(DataError, match=r"a\.jsonl:1: .*'Englisch'; did you mean English\?"):
        read(tmp_path / "a.jsonl", '{"English": "one", "French": "un"}\n', Columns("Englisch", "French"))
    with pytest.raises(DataError, match=r"name it in data\.source"):
        read(tmp_path / "b.csv", "English,target\none,un\n")


def test_other_tasks_read_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\tun\n")
    with pytest.raises(DataError, match="not a text file"):
        read_dialogues(tmp_path / "a.tsv")
