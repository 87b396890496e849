"""JSON rows -> dialogues.

    {"text": "..."}                              plain text
    {"prompt": "...", "response": "..."}         a prompt with its response
    {"messages": [{"role": ..., "content": ...}, ...], "speaker": ...}

A message's content is a text or a list of parts, {"type": "text", "text": ...} and {"type": "audio", "audio_url": ...}
(ChatML as OpenAI's and Higgs Audio's files have it). The assistant's messages are learnt, but those of `weight` 0 and
those before the row's `start_index`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any, cast, get_args

from phonate.config.errors import DataError
from phonate.data.dialogues.dialogue import Audio, Dialogue, Part, Role, Text, Turn

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
        raise DataError(f"{name} has the role {reprlib.repr(role)}; known are {', '.join(get_args(Role))}")
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
    raise DataError(f"{name} has the type {reprlib.repr(kind)}; known are text, audio")


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
    found: dict[str, Any] = {"type": "audio", "audio_url": part.path}
    if part.start:
        found["start"] = part.start
    if part.end is not None:
        found["end"] = part.end
    return found
