"""`phonate data prepare FOLDER -o OUT.jsonl`: samples become pairs that a language model is trained on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phonate.cli import main
from phonate.config.errors import InputError
from phonate.data.dialogues import read_dialogues
from phonate.workflows.datasets.from_texts import build_pairs


def test_samples_become_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = tmp_path / "samples"
    (samples / "sub").mkdir(parents=True)
    (samples / "a.txt").write_text("Who is it?\nIt is I.\n And he.\n\n\nJust a line.\n", encoding="utf-8")
    (samples / "sub" / "b.md").write_text(
        "Before.\n\n# Ask #\n\nOne.\n\nTwo.\n## Empty\n## Last\nÜ.\n", encoding="utf-8"
    )
    (samples / "c.jsonl").write_text(
        '{"prompt": "p", "response": "r"}\n{"prompt": "p"}\n{"text": "t"}\n', encoding="utf-8"
    )
    chat = {"messages": [{"role": role, "content": role} for role in ("system", "user", "assistant")]}
    (samples / "d.json").write_text(json.dumps([chat]), encoding="utf-8")
    out = tmp_path / "new" / "pairs.jsonl"
    assert main(["data", "prepare", str(samples), "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["files"], told["pairs"], told["conversations"], told["texts"]) == (4, 4, 1, 3)
    assert told["refused"] == {"c.jsonl:2": "no 'response'"}
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"prompt": "Who is it?", "response": "It is I.\n And he."},
        {"text": "Just a line."},
        {"prompt": "p", "response": "r"},
        {"text": "t"},
        chat,
        {"text": "Before."},
        {"prompt": "Ask", "response": "One.\n\nTwo."},
        {"prompt": "Last", "response": "Ü."},
    ]
    assert len(read_dialogues(out).dialogues) == 8
    assert main(["data", "prepare", str(samples), "-o", str(out)]) == 2
    assert "already exists; name a new file" in capsys.readouterr().err


def test_lines_of_code_are_no_headings(tmp_path: Path) -> None:
    """And a hash that belongs to a heading's last word stays."""
    text = "# Learning C#\n\n```sh\n# install it\nmake\n```\n\n## How? ##\n~~~~\n```\n# no\n~~~~\nDone.\n"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    build_pairs(tmp_path / "a.md", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"prompt": "Learning C#", "response": "```sh\n# install it\nmake\n```"},
        {"prompt": "How?", "response": "~~~~\n```\n# no\n~~~~\nDone."},
    ]


def test_what_cant_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.txt").write_text("x\ny\n", encoding="utf-8")
    monkeypatch.setattr(os, "replace", full)
    for target in (tmp_path / "o.jsonl", tmp_path / "a.txt" / "o.jsonl"):
        with pytest.raises(InputError, match="can't be written"):
            build_pairs(tmp_path / "a.txt", target)
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("option", [["--split"], ["--transcribe"], ["--rate", "8000"], ["--cache-dir", "x"]])
def test_options_of_recordings_are_refused(
    tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n", encoding="utf-8")
    assert main(["data", "prepare", str(tmp_path), "-o", str(tmp_path / "o.jsonl"), *option]) == 2
    assert f"error: {option[0]}: only for recordings, and" in capsys.readouterr().err
    assert not (tmp_path / "o.jsonl").exists()
