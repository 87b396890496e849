"""Label files of lines: RTTM, STM and CTM (NIST), Audacity's labels, CHAT (TalkBank)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import phonate.data.annotations as nist
from phonate.config.errors import DataError
from phonate.data.annotations import SpeakerTurn, fields_of, seconds, text_of, write_lines
from phonate.data.corpora.rows import Segment
from phonate.data.labels import RecordingLabels, by_start, utterances, voices

# ------------------------------------------------------------------------------------ RTTM, STM and CTM


def read_rttm(path: Path) -> list[RecordingLabels]:
    """The turns (SPEAKER lines) of recordings."""
    return [
        RecordingLabels(name, str(path), [Segment(one.start, one.end, one.speaker) for one in turns])
        for name, turns in nist.read_rttm(path).items()
    ]


def write_rttm(path: Path, recording: str, turns: Sequence[SpeakerTurn], length: float | None) -> None:
    """One recording."""
    nist.write_rttm(path, {recording: turns})


_ALTERNATIVES = re.compile(r"\{\s([^{}]*)\}")
_MARKS = re.compile(r"\([^()]*\)|(?<!\S)(@|%\w+|<\w+>|\{\w+\})(?!\S)")
"""Optional words, and what is no word, such as TED-LIUM's `<unk>` and `{SMOKE}`."""
_IGNORED = "ignore_time_segment_in_scoring"


def stm_segment(line: str) -> tuple[str, Segment | None]:
    """Channel and segment of a line; None for one that is to be ignored. Raises ValueError and IndexError."""
    _, channel, speaker, begin, finish, *rest = line.split(maxsplit=5)
    start, end = seconds(begin), seconds(finish)
    text = rest[0] if rest else ""
    if text.startswith("<") and ">" in text:  # labels such as <o,f0,male>
        text = text[text.index(">") + 1 :].strip()
    if start >= end:
        raise ValueError(line)
    if _IGNORED in text.lower():
        return channel, None
    return channel, Segment(start, end, speaker, sclite_words(text) or None)


def sclite_words(text: str) -> str:
    """The words of a transcript as sclite writes it: the first of alternatives (`{ wanna / want to / @ }`, where `@` is
    nothing), without optional words and marks (`(uh)`, `%hesitation`, `<unk>`, `{NOISE}`)."""
    plain = text
    while (first := _ALTERNATIVES.sub(lambda match: f" {match[1].split(' / ')[0]} ", plain)) != plain:
        plain = first  # alternatives may hold others
    plain = _MARKS.sub(" ", plain)
    return text if plain == text else " ".join(plain.split())


def read_stm(path: Path) -> list[RecordingLabels]:
    """The segments of recordings and their channels, with texts: of alternatives (`{ a / b }`) the first, without
    optional words and marks (`(uh)`, `%hesitation`, `<unk>`, `{NOISE}`)."""
    recordings: dict[tuple[str, str], RecordingLabels] = {}
    for place, fields in fields_of(path):
        try:
            channel, segment = stm_segment(" ".join(fields))
        except (ValueError, IndexError):
            raise DataError(f"{place}: expected recording, channel, speaker, start, end, labels and text") from None
        one = recordings.setdefault((fields[0], channel.lower()), RecordingLabels(fields[0], place, [], channel))
        if segment is None:
            one.left_out["segments not to be scored"] += 1
        else:
            one.segments.append(segment)
    return [replace(one, segments=by_start(one.segments)) for one in recordings.values()]


def read_ctm(path: Path) -> list[RecordingLabels]:
    """The words of recordings and their channels, joined to utterances where no pause is over half a second; of
    alternatives the first."""
    words: dict[tuple[str, str], list[Segment]] = {}
    first: dict[tuple[str, str], str] = {}
    marks: Counter[tuple[str, str]] = Counter()
    skipped = False
    for place, fields in fields_of(path):
        mark = fields[4].upper() if len(fields) > 4 else ""
        if mark in ("<ALT_BEGIN>", "<ALT>", "<ALT_END>"):
            skipped = mark == "<ALT>"
            continue
        try:
            key = fields[0], fields[1].lower()
            start, end, word = seconds(fields[2]), seconds(fields[2]) + seconds(fields[3]), fields[4]
        except (IndexError, ValueError):
            raise DataError(f"{place}: expected recording, channel, start, duration and word; correct it") from None
        first.setdefault(key, place)
        text = "" if re.fullmatch(r"<[^<>]*>|@", word) else sclite_words(word)
        if skipped or not text:
            marks[key] += 1
        else:
            words.setdefault(key, []).append(Segment(start, end, None, text))
    return [
        RecordingLabels(
            key[0],
            place,
            by_start(utterances(words.get(key, ()))),
            key[1],
            Counter({"marks and alternatives": marks[key]}),
            words.get(key, []),
        )
        for key, place in first.items()
    ]


# ------------------------------------------------------------ Audacity: start, end and label, with tabs


def read_audacity(path: Path) -> list[RecordingLabels]:
    """The labels that have a length. A label is a speaker where it is one word or returns, else what is said."""
    labels: list[Segment] = []
    points = 0
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip() or line.startswith("\\"):  # frequencies of a spectral selection
            continue
        start, end, *rest = [*line.split("\t", 2), ""]
        try:
            first, last = seconds(start.replace(",", ".")), seconds(end.replace(",", "."))
        except ValueError:
            raise DataError(f"{path}:{number}: expected start, end and label with tabs between; correct it") from None
        points += last <= first
        if last > first:
            labels.append(Segment(first, last, None, rest[0].strip() or None))
    segments = voices(by_start(labels))
    texts = [one.text for one in segments if one.text and one.speaker is None]
    if texts and (all(" " not in text for text in texts) or 2 * len(set(texts)) <= len(texts)):
        segments = [replace(one, speaker=one.speaker or one.text, text=None) for one in segments]
    return [RecordingLabels(path.stem, str(path), segments, left_out=Counter({"labels of a point in time": points}))]


def write_audacity(path: Path, recording: str, turns: Sequence[SpeakerTurn], length: float | None) -> None:
    """A label for each turn: its speaker."""
    write_lines(path, (f"{one.start:.6f}\t{one.end:.6f}\t{one.speaker}" for one in turns))


def read_plain(path: Path) -> list[RecordingLabels]:
    """A text without times, and without the speakers that may begin its lines: `Ann: hello`."""
    lines = [Segment(0.0, math.inf, None, line) for line in map(str.strip, text_of(path).split("\n")) if line]
    return [RecordingLabels(path.stem, str(path), [replace(one, speaker=None) for one in voices(lines)])]


# --------------------------------------------------- CHAT: *SPK: words, with milliseconds between bullets

_BULLET = re.compile("\x15(\\d+)_(\\d+)\x15")
_NO_WORDS = re.compile(
    r"\[[^\[\]]*\]"  # codes: [//], [= laughs], [* m]
    r"|(?<!\S)(?:&[=+~*{}][^\s]*|xxx|yyy|www|0\S*|\(\.{1,3}\)|\(\d+[.:]?\d*\)|[‡„]|\+[^\s\w]+)(?=\s|$)"
)
"""Events, fragments, what can't be understood or was not said, pauses, and marks of how a turn begins and ends."""
_ENDS = re.compile(r"\s+([.?!])")
_FORM = re.compile(r"@\S*")
_SIGNS = re.compile(r"[<>↑↓→⌈⌉⌊⌋∆∇°▁▔☺♋]|(?<=\w)[:^](?=\w|\s|$)")


def read_chat(path: Path) -> list[RecordingLabels]:
    """The main lines that have times (bullets), without what is no word: `xxx`, `&=laughs`, `0is`, codes in
    brackets."""
    segments: list[Segment] = []
    left_out: Counter[str] = Counter()
    for place, speaker, line in _main_lines(path):
        times = _BULLET.findall(line)
        if not times:
            left_out["utterances without times"] += 1
            continue
        start, end = int(times[0][0]) / 1000.0, int(times[-1][1]) / 1000.0
        if end <= start:
            raise DataError(f"{place}: its times end before they begin; correct them")
        segments.append(Segment(start, end, speaker, chat_words(_BULLET.sub(" ", line)) or None))
    if not segments:
        raise DataError(f"{path}: no utterance with times (bullets) in it; link it to its recording in CLAN first")
    return [RecordingLabels(path.stem, str(path), by_start(segments), left_out=left_out)]


def _main_lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Place, speaker and text of the lines of speakers, with the lines that go on with them."""
    current: tuple[str, str, str] | None = None
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if line.startswith(("\t", " ")) and current is not None:
            current = (current[0], current[1], f"{current[2]} {line.strip()}")
            continue
        if current is not None:
            yield current
        speaker, colon, text = line.removeprefix("*").partition(":")
        current = (f"{path}:{number}", speaker, text.strip()) if line.startswith("*") and colon else None
    if current is not None:
        yield current


def chat_words(text: str) -> str:
    """The words of a main line of CHAT: `cookie@f` is cookie, `(be)cause` because, `&-uh` uh; `xxx`, `&=laughs`, `0is`
    and codes in brackets are none."""
    plain = text
    while (shorter := _NO_WORDS.sub(" ", plain)) != plain:
        plain = shorter
    words: Iterable[str] = (_FORM.sub("", word.removeprefix("&-")) for word in _SIGNS.sub("", plain).split())
    bare = (re.sub(r"[()]", "", word).replace("_", " ") for word in words)
    joined = " ".join(re.sub(r"(?<=\w)\+(?=\w)", "", word) for word in bare if word)
    said = _ENDS.sub(r"\1", joined)
    return said if any(map(str.isalnum, said)) else ""
