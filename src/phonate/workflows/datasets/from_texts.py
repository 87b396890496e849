"""Text files -> prompts and responses: a folder becomes one file of JSON lines to train on.

In a .md file a heading is the prompt and the text below it the response; in a .txt file it is the first line of a
paragraph and the lines after it. Rows of .jsonl and .json files are kept as they are. Text without a prompt becomes
{"text": ...}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phonate.compute.system import write_output
from phonate.config.errors import InputError
from phonate.data.dialogues import Dialogue, read_dialogues, row_of, text_files
from phonate.data.parallel import Progress

_HEADING = re.compile(r"#{1,6}[ \t](.*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
"""The line before and the line after a code block."""


def build_pairs(source: str | Path, target: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write the texts at `source`, a folder or a file, to the new file `target`; returns counts.

    Files and rows that can't be used are left out, counted and named. Raises InputError if `target` exists or can't be
    written, DataError if nothing can be used.
    """
    goal, root = Path(target), Path(source)
    if goal.exists():
        raise InputError(f"{goal}: already exists; name a new file")
    files = text_files(root)
    corpus = read_dialogues(root, "file")
    rows: list[dict[str, Any]] = []
    for number, dialogue in enumerate(corpus.dialogues, start=1):
        rows += _rows(dialogue)
        if progress is not None:
            progress("reading texts", number, len(corpus.dialogues))
    write_output(goal, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(), parents=True)
    return {
        "file": str(goal),
        "files": len(files),
        "pairs": sum("prompt" in row for row in rows),
        "conversations": sum("messages" in row for row in rows),
        "texts": sum("text" in row for row in rows),
        "refused": {row.place: row.reason for row in corpus.refused},
    }


def _rows(dialogue: Dialogue) -> Iterator[dict[str, Any]]:
    """The rows made of one file, or of one row."""
    name = dialogue.id.rpartition(":")[0].lower()
    if not dialogue.is_plain:
        yield row_of(dialogue)
    elif name.endswith(".md"):
        yield from _sections(dialogue.turns[0].text)
    elif name.endswith(".txt"):
        for paragraph in re.split(r"\n[ \t]*\n", dialogue.turns[0].text):
            first, _, rest = paragraph.strip().partition("\n")
            yield from _row(first.strip(), rest.strip())
    else:
        yield row_of(dialogue)


def _sections(text: str) -> Iterator[dict[str, str]]:
    """Each heading with the text below it, up to the next one. Headings without text are skipped; lines in a code block
    are not headings."""
    title, fence = "", ""
    body: list[str] = []
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        elif mark:
            fence = mark[1]
        elif heading := _HEADING.match(line):
            yield from _section(title, body)
            title, body = _title(heading[1]), []
            continue
        body.append(line)
    yield from _section(title, body)


def _title(heading: str) -> str:
    """A heading without closing hashes: "Ask ##" becomes "Ask", "Ask C#" is kept."""
    title = heading.strip()
    bare = title.rstrip("#")
    return bare.rstrip() if bare[-1:] in ("", " ", "\t") else title


def _section(title: str, lines: list[str]) -> Iterator[dict[str, str]]:
    if body := "\n".join(lines).strip():
        yield {"prompt": title, "response": body} if title else {"text": body}


def _row(first: str, rest: str) -> Iterator[dict[str, str]]:
    if rest:
        yield {"prompt": first, "response": rest}
    elif first:
        yield {"text": first}
