"""Dialogues: turns of text and audio parts, each turn marked as learnt or as context; and the files that they are in.

Plain text is a dialogue of one turn without a role. A prompt with its response is a user's turn followed by an
assistant's; so is a source with its target, and a row with a source alone is plain text. Rows of files that can't be
used are refused, counted and named with file and line.

    {"text": "..."}                              plain text
    {"prompt": "...", "response": "..."}         a prompt with its response
    {"messages": [{"role": ..., "content": ...}, ...], "speaker": ...}

A message's content is a text or a list of parts, {"type": "text", "text": ...} and {"type": "audio", "audio_url": ...}
(ChatML as OpenAI's and Higgs Audio's files have it). The assistant's messages are learnt, but those of `weight` 0 and
those before the row's `start_index`.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import os
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from phonate.compute.remote import on_disk
from phonate.config.errors import DataError, json_mistake
from phonate.config.randomness import derived_seed
from phonate.config.registry import listed, looked_in, nearest, nearest_path
from phonate.config.words import number_of
from phonate.data.annotations import read_text
from phonate.data.corpora.rows import Problem, audio_files, printable

logger = logging.getLogger("phonate")

# ------------------------------------------------------------------------------ Turns and their parts

Role = Literal["system", "user", "assistant"]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Text:
    """A text part."""

    text: str


@dataclass(frozen=True)
class Audio:
    """An audio part: a file, or a span of one."""

    path: str
    """As written in the corpus file: absolute, or relative to the current directory."""
    start: float = 0.0
    """Where the span starts, in seconds."""
    end: float | None = None
    """Where the span ends, in seconds; None: at the end of the file."""

    @property
    def duration(self) -> float | None:
        """Seconds of the span; None: up to the end of the file."""
        return None if self.end is None else self.end - self.start


Part = Text | Audio


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: Role | None
    """Who speaks; None: plain text, which belongs to no conversation."""
    parts: tuple[Part, ...]
    learnt: bool
    """Whether the turn is a training target (True) or context only (False)."""

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The audio parts."""
        return tuple(part for part in self.parts if isinstance(part, Audio))


@dataclass(frozen=True)
class Dialogue:
    """A text or a conversation."""

    id: str
    """Where it was read: file:line, or file:row for the rows of a .json file."""
    turns: tuple[Turn, ...]
    speaker: str | None = None
    """Whose voice the learnt turns have, where the corpus says so."""

    @classmethod
    def plain(cls, id: str, text: str) -> Dialogue:
        """Plain text, all of it learnt."""
        return cls(id, (Turn(None, (Text(text),), learnt=True),))

    @classmethod
    def pair(cls, id: str, prompt: str, response: str) -> Dialogue:
        """A prompt with the response to learn."""
        user = Turn("user", (Text(prompt),), learnt=False)
        return cls(id, (user, Turn("assistant", (Text(response),), learnt=True)))

    @property
    def is_plain(self) -> bool:
        """Whether this is plain text rather than a conversation."""
        return self.turns[0].role is None

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The turns before the last learnt one, which is the `response`. Empty for plain text."""
        return self.turns[: self._last_learnt]

    @property
    def response(self) -> Turn:
        """The last learnt turn."""
        return self.turns[self._last_learnt]

    @property
    def _last_learnt(self) -> int:
        return max(index for index, turn in enumerate(self.turns) if turn.learnt)


def split_dialogues(dialogues: Sequence[Dialogue], share: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """Split into training and validation dialogues; `share` of them, about, are for validation.

    The side of a dialogue is a function of its contents, so copies end up on the same side. With `share` above 0 and
    at least two different dialogues, neither side is empty.
    """
    return split_by_contents(dialogues, [_contents(dialogue) for dialogue in dialogues], share)


def split_by_contents(
    items: Sequence[Item], contents: Sequence[Sequence[str]], share: float
) -> tuple[list[Item], list[Item]]:
    """`split_dialogues` for anything whose contents are strings."""
    if share == 0.0 or not items:
        return list(items), []
    keys = [derived_seed("validation", *one) for one in contents]
    limit = max(min(keys) + 1, int(share * 2**63))
    if limit > max(keys):
        limit = max(keys)
    sides: tuple[list[Item], list[Item]] = ([], [])
    for key, item in zip(keys, items, strict=True):
        sides[key < limit].append(item)
    return sides


def _contents(dialogue: Dialogue) -> list[str]:
    """What the dialogue says. Plain text counts as the response to an empty prompt."""
    contents = [""] if dialogue.is_plain else []
    for turn in dialogue.turns:
        for part in turn.parts:
            contents.append(part.text if isinstance(part, Text) else f"{part.path}\x1e{part.start}\x1e{part.end}")
    return contents


# ------------------------------------------------------------------------------ JSON rows -> dialogues

SURROGATE = re.compile("[\ud800-\udfff]")
"""A lone surrogate: no valid text holds one, but JSON escapes, arguments and file names may."""
_MOST_SECONDS = 1e9  # integers of JSON may be too large for a float
_AUDIO_KEYS = ("audio_url", "audio", "path", "url")
_EXPECTED = 'write {"prompt": ..., "response": ...}, {"text": ...} or {"messages": [...]}'


def dialogue_of(place: str, row: Any) -> Dialogue:
    """The dialogue in a JSON row read at `place`. Raises DataError for a row that can't be used."""
    if not isinstance(row, Mapping):
        raise DataError(f"not an object; {_EXPECTED}")
    if "messages" in row:
        return _conversation(place, row)
    refuse_instructions(row)
    if "text" in row and "response" not in row:
        return Dialogue.plain(place, text_of(row, "text"))
    if not {"prompt", "response"} & row.keys():
        raise DataError(f"no 'response', 'text' or 'messages'; {_EXPECTED}")
    response = text_of(row, "response")
    return Dialogue.pair(place, text_of(row, "prompt"), response)


def refuse_instructions(row: Mapping[str, Any]) -> None:
    """Raise DataError for a row with a text beside prompt and response that says what to do, which would be lost."""
    for key in ("system", "instruction"):
        if isinstance(row.get(key), str) and row[key].strip():
            raise DataError(f'{key!r} is not read beside a prompt; write {{"messages": [...]}} with it as a message')


def text_of(row: Mapping[Any, Any], key: Any, name: str | None = None) -> str:
    """The text under `key`, called `name` in errors. Raises DataError if there is none."""
    name, value = repr(key) if name is None else name, row.get(key)
    if value is None:
        raise DataError(f"no {name}")
    if not isinstance(value, str):
        raise DataError(f"{name} is {type(value).__name__}, not a text")
    if SURROGATE.search(value):
        raise DataError(f"{name} holds half a character (a lone surrogate)")
    if not value.strip():
        raise DataError(f"{name} is empty")
    return value


def _conversation(place: str, row: Mapping[str, Any]) -> Dialogue:
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise DataError("'messages' is not a list of messages")
    first = row.get("start_index") or 0
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise DataError(f"'start_index' is {reprlib.repr(first)}, not the number of a message")
    turns = tuple(_turn(index, message, learnt=index >= first) for index, message in enumerate(messages))
    if not any(turn.learnt for turn in turns):
        raise DataError("nothing to learn: no assistant message with a weight above 0")
    speaker = row.get("speaker")
    if speaker is not None and not (isinstance(speaker, str) and not SURROGATE.search(speaker)):
        raise DataError(f"'speaker' is {type(speaker).__name__}, not a text")
    return Dialogue(place, turns, speaker)


def _turn(index: int, message: Any, learnt: bool) -> Turn:
    name = f"message {index + 1}"
    if not isinstance(message, Mapping):
        raise DataError(f"{name} is not an object with 'role' and 'content'")
    role = message.get("role")
    if role not in get_args(Role):
        raise DataError(f"{name} has the role {reprlib.repr(role)}; choose from {listed(get_args(Role))}")
    if unsupported := sorted({"tool_calls", "function_call"} & {key for key, value in message.items() if value}):
        raise DataError(f"{name} has {unsupported[0]!r}, which is not supported; write what is said as its content")
    weight = message.get("weight", 1)
    if not isinstance(weight, int) or weight not in (0, 1):
        raise DataError(f"{name} has the weight {reprlib.repr(weight)}; 0 and 1 are supported")
    content = message.get("content")
    parts: tuple[Part, ...]
    if isinstance(content, list):
        parts = tuple(_part(f"part {number} of {name}", part) for number, part in enumerate(content, start=1))
        if not parts:
            raise DataError(f"'content' of {name} is empty")
    else:
        parts = (Text(text_of(message, "content", f"'content' of {name}")),)
    return Turn(cast(Role, role), parts, learnt=learnt and role == "assistant" and weight == 1)


def _part(name: str, part: Any) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        return Text(text_of(part, "text", f"'text' of {name}"))
    if kind in ("audio", "audio_url"):
        return _audio(name, part)
    raise DataError(f"{name} has the type {reprlib.repr(kind)}; choose from {listed(('text', 'audio'))}")


def _audio(name: str, part: Mapping[str, Any]) -> Audio:
    key = next((key for key in _AUDIO_KEYS if key in part), "audio_url")
    source = part.get(key)
    if isinstance(source, Mapping):  # OpenAI nests the address
        part, key = {**part, "url": source.get("url")}, "url"
    path = text_of(part, key, f"{key!r} of {name}")
    if path.startswith("data:") or "://" in path:
        raise DataError(f"{key!r} of {name} is not a local file")
    start = _seconds(name, part, "start" if "start" in part else "offset") or 0.0
    end = _seconds(name, part, "end")
    if end is None and (duration := _seconds(name, part, "duration")) is not None:
        end = start + duration
    if end is not None and end <= start:
        raise DataError(f"{name} ends at {end:g} s, not after its start at {start:g} s")
    return Audio(path, start, end)


def _seconds(name: str, part: Mapping[str, Any], key: str) -> float | None:
    value = part.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
        raise DataError(f"{key!r} of {name} is {reprlib.repr(value)}, not seconds from 0 on")
    return float(value)


def row_of(dialogue: Dialogue) -> dict[str, Any]:
    """A JSON row that `dialogue_of` reads as `dialogue`."""
    if dialogue.is_plain:
        return {"text": dialogue.turns[0].text}
    if dialogue == Dialogue.pair(dialogue.id, dialogue.turns[0].text, dialogue.turns[-1].text):
        return {"prompt": dialogue.turns[0].text, "response": dialogue.turns[-1].text}
    row: dict[str, Any] = {"messages": [_message_of(turn) for turn in dialogue.turns]}
    return row if dialogue.speaker is None else {**row, "speaker": dialogue.speaker}


def _message_of(turn: Turn) -> dict[str, Any]:
    content: str | list[dict[str, Any]] = turn.text
    if len(turn.parts) > 1 or turn.audio:
        content = [_part_of(part) for part in turn.parts]
    context = {"weight": 0} if turn.role == "assistant" and not turn.learnt else {}
    return {"role": turn.role, "content": content, **context}


def _part_of(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    content: dict[str, Any] = {"type": "audio", "audio_url": part.path}
    if part.start:
        content["start"] = part.start
    if part.end is not None:
        content["end"] = part.end
    return content


# --------------------------------------------------------------------- Rows with a source and a target

TABLES = {".tsv": "\t", ".csv": ","}
"""Suffix -> what separates the cells."""
SOURCES = ("source", "src", "prompt", "text", "input")
"""Names of the source's column, where no other is asked for."""
TARGETS = ("target", "tgt", "response", "label", "output")
"""Names of the target's column, where no other is asked for."""
_LONGEST_CELL = 2**31 - 1


@dataclass(frozen=True)
class Columns:
    """Which column, or key of a JSON row, holds the source and which the target; None: the usual names, or else the
    first two columns of a table."""

    source: str | None = None
    target: str | None = None

    def dialogue(self, place: str, row: Any) -> Dialogue:
        """The dialogue in a JSON row. Raises DataError for a row that can't be used."""
        if not isinstance(row, Mapping) or "messages" in row:
            return dialogue_of(place, row)
        source, target = _named(row, self.source, SOURCES), _named(row, self.target, TARGETS)
        if source is None:
            return dialogue_of(place, row)
        refuse_instructions({key: value for key, value in row.items() if key not in (source, target)})
        text = text_of(row, source)
        return Dialogue.plain(place, text) if target is None else Dialogue.pair(place, text, text_of(row, target))

    def in_table(self, header: Sequence[str]) -> tuple[int, int | None] | None:
        """Positions of source and target in a table whose first row is `header`; None: that row is no header.

        Raises DataError if a column that was asked for is not there.
        """
        names = [cell.strip() for cell in header]
        lower = [name.lower() for name in names]
        for column in (self.source, self.target):
            if column is not None and column not in names:
                raise DataError(f"no column {column!r}; {nearest(column, names)}")
        source = names.index(self.source) if self.source else _first(lower, SOURCES)
        target = names.index(self.target) if self.target else _first(lower, TARGETS)
        if source is None and target is None:
            return None
        if source is None:
            raise DataError(f"a column {names[target or 0]!r}, but none of the source; name it in data.source")
        return source, target


def table_rows(name: str, text: str, separator: str, columns: Columns) -> Iterator[tuple[str, Dialogue | DataError]]:
    """The dialogues of a table's rows, or why a row can't be used, each with its place (file:line)."""
    rows = _cells(name, text, separator)
    positions: tuple[int, int | None] | None = None
    width = 0
    for number, (place, cells) in enumerate(rows):
        if isinstance(cells, DataError):
            yield place, cells
            continue
        try:
            if number == 0:
                width = len(cells)
                positions = columns.in_table(cells)
                if positions is not None:
                    continue
                positions = (0, 1 if len(cells) > 1 else None)
            assert positions is not None
            if len(cells) > width:
                # A separator in a text: what is behind it would be dropped in silence.
                mend = "take tabs out of texts" if separator == "\t" else "put quotes around texts that hold a comma"
                raise DataError(f"{len(cells)} columns, the first row has {width}; {mend}")
            yield place, _picked(place, cells, *positions)
        except DataError as error:
            yield place, error
            if positions is None:
                return


def _cells(name: str, text: str, separator: str) -> Iterator[tuple[str, list[str] | DataError]]:
    """The cells of each row that is not blank, with its place. In .tsv files a quote is a character like any other."""
    if separator == "\t":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{name}:{number}", line.rstrip("\r").split("\t")
        return
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"{name}:{start}", DataError(f"{error}; the rows from here on are not read")
            return
        if any(cell.strip() for cell in cells):
            yield f"{name}:{start}", cells


def _picked(place: str, cells: Sequence[str], source: int, target: int | None) -> Dialogue:
    most = max(source, target or 0)
    if len(cells) <= most:
        raise DataError(f"{len(cells)} columns, and column {most + 1} is needed")
    row = dict(enumerate(cells))
    text = text_of(row, source, f"column {source + 1}")
    if target is None:
        return Dialogue.plain(place, text)
    return Dialogue.pair(place, text, text_of(row, target, f"column {target + 1}"))


def _named(row: Mapping[str, Any], asked: str | None, usual: Sequence[str]) -> str | None:
    if asked is None:
        return next((name for name in usual if name in row), None)
    if asked not in row:
        raise DataError(f"no {asked!r}; {nearest(asked, [*row])}")
    return asked


def _first(names: Sequence[str], choices: Sequence[str]) -> int | None:
    return next((names.index(name) for name in choices if name in names), None)


# -------------------------------------------------------------------- Text and JSON files -> dialogues

PLAIN_SUFFIXES = (".txt", ".md")
JSON_SUFFIXES = (".jsonl", ".json")
SUFFIXES = (*PLAIN_SUFFIXES, *JSON_SUFFIXES)
REPORTED = 5
"""RefusedRow rows that are named in the log; the rest are counted."""
Convert = Callable[[str, Any], Dialogue]
"""Makes the dialogue of a JSON row read at a place (file:line). Raises DataError."""
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class RefusedRow:
    """A row that can't be used."""

    place: str
    """file:line, or file:row of a .json file."""
    reason: str


@dataclass(frozen=True)
class ReadDialogues:
    """What was read at a path."""

    dialogues: list[Dialogue]
    refused: list[RefusedRow]


def text_files(path: str | Path, suffixes: Collection[str] = SUFFIXES) -> list[Path]:
    """The files with one of `suffixes` at `path`, a file or a folder including its sub-folders. Hidden ones are
    skipped, and so are .json files that hold no list (settings of other programs, say) and what phonate wrote itself
    (runs, models, sessions).

    Raises DataError if there are none.
    """
    return _scan(on_disk(path), tuple(suffixes))[0]


def _scan(root: Path, suffixes: tuple[str, ...]) -> tuple[list[Path], list[RefusedRow]]:
    """`text_files` of these suffixes, and folders and files that can't be read."""
    if root.is_file():
        if root.suffix.lower() not in suffixes:
            raise DataError(f"{root}: not a text file; give one of {', '.join(suffixes)}, or a folder of them")
        return [root], []
    if not root.is_dir():
        raise DataError(f"{root}: no such file or folder{looked_in(root)}{nearest_path(root)}")
    files: list[Path] = []
    unreadable: list[Problem] = []
    refused: list[RefusedRow] = []
    for file in audio_files(root, suffixes, unreadable):
        if not file.is_file():
            name = printable(file.relative_to(root).as_posix())
            refused.append(RefusedRow(name, "not a file (a broken link, or a pipe)"))
        elif file.suffix.lower() != ".json" or _may_hold_rows(file):
            files.append(file)
    refused = [RefusedRow(os.path.relpath(one.place, root), one.detail) for one in unreadable] + refused
    if not files:
        why = f" ({refused[0].place}: {refused[0].reason})" if refused else ""
        raise DataError(f"{root}: no text files in this folder{why}; put {', '.join(suffixes)} files there")
    return files, refused


def _may_hold_rows(file: Path) -> bool:
    """Whether a .json file starts as a list does. One that can't be read is left to who reads it, and reported then."""
    try:
        with file.open("rb") as stream:
            return stream.read(256).removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"[", b"")
    except OSError:
        return True


def read_dialogues(path: str | Path, documents: str = "auto", columns: Columns | None = None) -> ReadDialogues:
    """All dialogues at `path`. A warning counts and names the rows that are refused.

    Args:
        path: A file, or a folder that is searched for files.
        documents: What a document of a .txt or .md file is: "line", "paragraph", "file", or "auto" (paragraphs if the
            file has blank lines, else lines).
        columns: Read .tsv and .csv files too, and JSON rows with a source and a target under these names. None: don't.

    Raises DataError if nothing can be used.
    """
    root = on_disk(path)
    dialogues: list[Dialogue] = []
    files, refused = _scan(root, SUFFIXES if columns is None else (*SUFFIXES, *TABLES))
    for file in files:
        name = printable(file.relative_to(root).as_posix() if root.is_dir() else file.name)
        for one in _read_file(file, name, documents, columns):
            if isinstance(one, RefusedRow):
                refused.append(one)
            else:
                dialogues.append(one)
    warn_refused(root, refused)
    if root.is_dir():
        _tell_others(root, files)
    if not dialogues:
        first = f"{refused[0].place}: {refused[0].reason}" if refused else "the files are empty"
        raise DataError(f"{root}: no document can be used ({len(refused)} refused; {first})")
    return ReadDialogues(dialogues, refused)


def _tell_others(root: Path, files: Sequence[Path]) -> None:
    """Tells, by kind, of files that are no texts."""
    others = {*audio_files(root, None, [])} - {*files}
    kinds = Counter(file.suffix.lower() or "no suffix" for file in others if file.is_file())
    if kinds:
        counts = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.most_common(6))
        logger.info("%s: ignored, not texts: %s", printable(str(root)), counts)


def warn_refused(root: Path, refused: list[RefusedRow]) -> None:
    """Log how many rows were refused, and the first of them."""
    if refused:
        logger.warning("%s: %s can't be used", root, number_of(len(refused), "row"))
    for row in refused[:REPORTED]:
        logger.warning("%s: %s", row.place, row.reason)
    if len(refused) > REPORTED:
        logger.warning("... and %d more", len(refused) - REPORTED)


def require_rows(path: str, rows: Sized, refused: list[RefusedRow], purpose: str | None = None) -> None:
    """Log what was refused. Raises DataError where no row is left for the `purpose`, such as to train on."""
    warn_refused(Path(path), refused)
    if purpose is not None and not len(rows):
        why = f"; {refused[0].place}: {refused[0].reason}" if refused else ""
        raise DataError(f"{path}: nothing {purpose}{why}")


def _read_file(file: Path, name: str, documents: str, columns: Columns | None) -> Iterator[Dialogue | RefusedRow]:
    suffix = file.suffix.lower()
    try:
        text = read_text(file)
    except UnicodeDecodeError as error:
        yield RefusedRow(f"{name}:1", f"not UTF-8 (byte {error.start}); save it as UTF-8")
    except OSError as error:
        yield RefusedRow(f"{name}:1", str(error.strerror))
    else:
        if suffix in PLAIN_SUFFIXES:
            yield from _plain(name, text, documents)
        elif suffix in TABLES:
            for place, row in table_rows(name, text, TABLES[suffix], columns or Columns()):
                yield RefusedRow(place, str(row)) if isinstance(row, DataError) else row
        else:
            convert = dialogue_of if columns is None else columns.dialogue
            yield from (_json_lines if suffix == ".jsonl" else _json_list)(name, text, convert)


def _plain(name: str, text: str, documents: str) -> Iterator[Dialogue]:
    unit = documents
    if unit == "auto":
        unit = "paragraph" if _BLANK_LINES.search(text.strip()) else "line"
    separator = {"line": re.compile(r"\n"), "paragraph": _BLANK_LINES, "file": None}[unit]
    line, counted = 1, 0
    for start, piece in _split(text, separator):
        if piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            line, counted = line + text.count("\n", counted, first), first
            yield Dialogue.plain(f"{name}:{line}", piece.strip())


def _split(text: str, separator: re.Pattern[str] | None) -> Iterator[tuple[int, str]]:
    """The pieces of `text` between matches of `separator`, with their offsets."""
    start = 0
    for match in separator.finditer(text) if separator else ():
        yield start, text[start : match.start()]
        start = match.end()
    yield start, text[start:]


def _json_lines(name: str, text: str, convert: Convert) -> Iterator[Dialogue | RefusedRow]:
    # Not splitlines: a JSON text may hold U+2028 and the like, which end no row.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{name}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield RefusedRow(place, f"not JSON ({json_mistake(error)})")
        else:
            yield _row(place, row, convert)


def _json_list(name: str, text: str, convert: Convert) -> Iterator[Dialogue | RefusedRow]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield RefusedRow(f"{name}:1", f"not JSON ({json_mistake(error)})")
        return
    if not isinstance(rows, list):
        yield RefusedRow(f"{name}:1", "not a list of rows")
        return
    for number, row in enumerate(rows, start=1):
        yield _row(f"{name}:{number}", row, convert)


def _row(place: str, row: Any, convert: Convert) -> Dialogue | RefusedRow:
    try:
        return convert(place, row)
    except DataError as error:
        return RefusedRow(place, str(error))
