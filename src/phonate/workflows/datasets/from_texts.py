"""Samples -> pairs: a folder of texts becomes one file of JSON lines, {"prompt", "response"}, to train on.

In a .md a heading asks and what stands under it answers; in a .txt the first line of a paragraph asks and the others
answer. The rows of a .jsonl are pairs already. What has nothing that asks stays plain text, {"text"}.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError
from phonate.data.manifests.validation import Progress
from phonate.tasks.language.documents import Document, read_texts, text_files

_HEADING = re.compile(r"#{1,6}[ \t](.*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
"""Before and behind a code block."""


def build_pairs(source: str | Path, target: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write the samples at `source`, a folder or a file, to the new file `target`; returns how many of what.

    Files and rows that can't be used are left out, counted and named. Raises InputError where `target` is there
    already or can't be written, DataError where nothing can be used.
    """
    goal, root = Path(target), Path(source)
    if goal.exists():
        raise InputError(f"{goal}: is there already; name a new file")
    files = text_files(root)
    found = read_texts(root, "file")
    rows: list[dict[str, str]] = []
    for number, document in enumerate(found.documents, start=1):
        rows += _rows(document)
        if progress is not None:
            progress("reading samples", number, len(found.documents))
    beside = goal.with_name(f".{goal.name}.{os.getpid()}")
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
            beside.replace(goal)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{goal}: can't be written ({error.strerror})") from error
    pairs = sum("prompt" in row for row in rows)
    return {
        "file": str(goal),
        "files": len(files),
        "pairs": pairs,
        "texts": len(rows) - pairs,
        "refused": {row.place: row.reason for row in found.refused},
    }


def _rows(document: Document) -> Iterator[dict[str, str]]:
    """The samples of one file, or of one row."""
    name = document.id.rpartition(":")[0].lower()
    if document.prompt is not None:
        yield {"prompt": document.prompt, "response": document.response}
    elif name.endswith(".md"):
        yield from _sections(document.response)
    elif name.endswith(".txt"):
        for paragraph in re.split(r"\n[ \t]*\n", document.response):
            first, _, rest = paragraph.strip().partition("\n")
            yield from _row(first.strip(), rest.strip())
    else:
        yield {"text": document.response}


def _sections(text: str) -> Iterator[dict[str, str]]:
    """A heading with what stands under it, up to the next one; a heading with nothing under it is passed over. Lines of
    a code block are no headings."""
    title, fence = "", ""
    body: list[str] = []
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        elif mark:
            fence = mark[1]
        elif found := _HEADING.match(line):
            yield from _section(title, body)
            title, body = _title(found[1]), []
            continue
        body.append(line)
    yield from _section(title, body)


def _title(heading: str) -> str:
    """A heading without the hashes that may close it: "Ask ##" is "Ask", but "Ask C#" is itself."""
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
