"""When each word and each phone begins in speech that espeak-ng makes, from the library's own events."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.config.errors import PhonateError

PHONEME_EVENTS = 0x0001 | 0x0002
"""espeakINITIALIZE_PHONEME_EVENTS and espeakINITIALIZE_PHONEME_IPA of speak_lib.h."""
_END_OF_LIST, _WORD, _PHONEME = 0, 1, 7  # espeak_EVENT_TYPE
_LONGEST_NAME = 8  # bytes; the library cuts what is longer


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * _LONGEST_NAME))


class EventStruct(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


@dataclass(frozen=True)
class Event:
    """A word (its `label` is the text) or a phone (IPA; "" is a pause) that begins at `sample`."""

    is_word: bool
    sample: int
    label: str


def read_events(events: ctypes._Pointer[EventStruct], text: str) -> list[Event]:
    """The words and phones of one call of the synthesis callback while `text` is spoken."""
    found: list[Event] = []
    number = 0
    while events and events[number].type != _END_OF_LIST:
        event = events[number]
        if event.type == _WORD:
            start = event.text_position - 1  # counted from 1, in characters
            found.append(Event(True, event.sample, text[start : start + event.length]))
        elif event.type == _PHONEME:
            name = ctypes.string_at(ctypes.addressof(event.id), _LONGEST_NAME).split(b"\0")[0]
            try:
                found.append(Event(False, event.sample, name.decode()))
            except UnicodeDecodeError as error:
                raise PhonateError(f"espeak-ng cut the name of a phone in {text!r}: {name!r}") from error
        number += 1
    return found


def write_textgrid(path: Path, events: Sequence[Event], samples: int, sample_rate: int) -> None:
    """Write the tiers `words` and `phones` for Praat. Phones tile the whole recording, pauses being empty; a word
    lasts from its first phone to the end of its last."""
    from praatio.textgrid import IntervalTier, Textgrid

    phones = [event for event in events if not event.is_word]
    tiled = [(0, phones[0].sample, ""), *_until_the_next(phones, samples)]
    words = []
    for start, end, label in _until_the_next([event for event in events if event.is_word], samples):
        spoken = [(begin, stop) for begin, stop, phone in tiled if phone and start <= begin < end]
        if spoken and label:
            words.append((spoken[0][0], spoken[-1][1], label))
    length = samples / sample_rate
    grid = Textgrid(0.0, length)
    for name, spans in (("words", words), ("phones", tiled)):
        entries = [(start / sample_rate, end / sample_rate, label) for start, end, label in spans if start < end]
        grid.addTier(IntervalTier(name, entries, 0.0, length))
    grid.save(str(path), format="long_textgrid", includeBlankSpaces=True)


def _until_the_next(events: Sequence[Event], samples: int) -> list[tuple[int, int, str]]:
    """(first sample, end, label) of each event, which lasts until the next begins."""
    ends = [*(event.sample for event in events[1:]), samples]
    return [(event.sample, end, event.label) for event, end in zip(events, ends, strict=True)]
