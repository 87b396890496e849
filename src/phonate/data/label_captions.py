"""Captions: WebVTT, SubRip, Advanced SubStation Alpha, which FFmpeg reads, and those of other programs."""

from __future__ import annotations

import html
import json
import logging
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.annotations import SpeakerTurn, clock_seconds, text_of, write_lines
from phonate.data.corpora.rows import Segment, printable
from phonate.data.labels import NAME, NO_NAME, RecordingLabels, by_start, name_before, voices
from phonate.text.captions import clock

logger = logging.getLogger("phonate")

# ------------------------------------------------------------------------------------- Cues and their lines

Cue = tuple[float, float, list[str]]
"""Start, end and lines."""

_TIME = r"(?:\d+:)?\d\d?:\d\d(?:[.,]\d+)?"
_CUE = re.compile(rf"({_TIME})\s*-->\s*({_TIME})(?!\S)")
_LIKE_CUE = re.compile(r"\d.*-->")
_WORD_TIME = re.compile(r"<[\d:.]+>")
_TAG = re.compile(r"</?(?:[a-zA-Z][^<>]*|[\d:.]+)>|\{\\[^{}]*\}")


def read_webvtt(path: Path) -> list[RecordingLabels]:
    """The cues, with the speakers of voice tags (`<v Ann>`), or of texts such as `Ann: hello`."""
    text = text_of(path)
    if not text.startswith("WEBVTT"):
        raise DataError(f"{path}: does not begin with WEBVTT; is it another kind of file?")
    left_out: Counter[str] = Counter()
    return _captions(path, _cues(text.split("\n"), True, left_out), left_out)


def read_srt(path: Path) -> list[RecordingLabels]:
    """The captions, with the speakers of texts such as `Ann: hello`, `[SPEAKER_00]: hello` or `(Ann) hello`."""
    lines = text_of(path).split("\n")
    if not any(_CUE.match(line.strip()) for line in lines):
        raise DataError(f"{path}: no caption with times (00:00:01,000 --> 00:00:02,000) in it")
    left_out: Counter[str] = Counter()
    return _captions(path, _cues(lines, False, left_out), left_out)


def _cues(lines: Iterable[str], until_empty: bool, left_out: Counter[str]) -> list[Cue]:
    """Each cue, up to an empty line, or else, for empty lines may be within, to the number and times of the next one.
    Outside of cues are numbers, names, notes, styles."""
    cues: list[Cue] = []
    said: list[str] = []
    numbered: bool | None = None
    for line in lines:
        plain = line.strip()
        times = _CUE.match(plain)
        if times is not None or _LIKE_CUE.match(plain):
            is_number = bool(said) and said[-1].isdecimal()
            numbered = is_number if numbered is None else numbered
            del said[-1 if numbered and is_number else len(said) :]
            said = []
            if times is not None:
                cues.append((clock_seconds(times[1]), clock_seconds(times[2]), said))
            else:
                left_out["captions whose times can't be read"] += 1
        elif until_empty and not line:
            said = []
        elif plain:
            said.append(plain)
    return cues


def read_ass(path: Path) -> list[RecordingLabels]:
    """The dialogue lines, with their names as speakers."""
    import av

    cues: list[Cue] = []
    try:
        with av.open(f"file:{path}", format="ass") as container:  # else 10:30:00.ass is an address
            for packet in container.demux():
                if packet.pts is not None and packet.duration is not None and packet.time_base is not None:
                    start = float(packet.pts * packet.time_base)
                    # FFmpeg's fields: order, layer, style, name, three margins, effect, text.
                    _, _, _, name, *_, text = bytes(packet).decode().split(",", 8)
                    said = re.sub(r"\\[Nn]", "\n", text).replace(r"\h", " ")
                    voice = f"<v {html.escape(name, quote=False)}>" if name else ""
                    cues.append((start, start + float(packet.duration * packet.time_base), [f"{voice}{said}"]))
    except (OSError, ValueError) as error:  # among them FFmpeg's
        raise DataError(f"{path}: not readable as Advanced SubStation Alpha ({error}); save it as .srt") from error
    if not cues:
        raise DataError(f"{path}: no dialogue of Advanced SubStation Alpha in it")
    return _captions(path, cues, Counter())


def is_captions(path: Path) -> bool:
    """Whether a file that may hold other captions does: a table, if it is Whisper's."""
    if path.suffix.lower() != ".tsv":
        return True
    with path.open("rb") as file:
        return file.readline(64).decode("utf-8-sig", "replace").rstrip("\r\n") == _TABLE_HEAD


def read_captions(path: Path) -> list[RecordingLabels]:
    """Whisper's tables, YouTube's captions, lyrics with times, and TTML."""
    left_out: Counter[str] = Counter()
    text = text_of(path)
    try:
        cues = _OTHERS[path.suffix.lower()](text, left_out)
    except (ValueError, LookupError, TypeError, AttributeError, ET.ParseError) as error:
        raise DataError(f"{path}: not readable as captions ({error}); save it as .srt") from error
    if not cues:
        raise DataError(f"{path}: no captions with times in it")
    return _captions(path, cues, left_out)


_TABLE_HEAD = "start\tend\ttext"


def _of_table(text: str, left_out: Counter[str]) -> list[Cue]:
    """Whisper's lines of two times in milliseconds and a text."""
    rows = [line.split("\t", 2) for line in text.splitlines()[1:] if line.strip()]
    timed = [row for row in rows if len(row) == 3 and row[0].isdecimal() and row[1].isdecimal()]
    left_out["captions whose times can't be read"] += len(rows) - len(timed)
    return [(int(start) / 1000, int(end) / 1000, [_plain(said)]) for start, end, said in timed]


def _plain(text: str) -> str:
    """A text in which `<` is no tag, as lines of captions have it."""
    return html.escape(text, quote=False)


def _of_sbv(text: str, left_out: Counter[str]) -> list[Cue]:
    """YouTube's SubViewer, whose times have a comma between them."""
    lines = re.sub(rf"^({_TIME}),({_TIME})\s*$", r"\1 --> \2", text, flags=re.MULTILINE).split("\n")
    return _cues(lines, True, left_out)


def _of_json3(text: str, left_out: Counter[str]) -> list[Cue]:
    """YouTube's events, which are shown until they leave the screen, while others are spoken."""
    timed = []
    for event in json.loads(text)["events"]:
        said = "".join(part.get("utf8", "") for part in event.get("segs", ()))
        if said.strip():
            start = event["tStartMs"] / 1000
            timed.append((start, start + event.get("dDurationMs", 0) / 1000, said))
    starts = [*(start for start, _, _ in timed[1:]), float("inf")]
    return [
        (start, min(end, following) if following > start else end, _plain(said).split("\n"))
        for (start, end, said), following in zip(timed, starts, strict=True)
    ]


_STAMP = r"\[\d+:\d\d(?:[.:]\d+|:\d\d\.\d+)?\]"


def _of_lyrics(text: str, left_out: Counter[str]) -> list[Cue]:
    """Lines with the times at which they begin; each goes on to the next, the last to the length that is noted."""
    notes = dict(re.findall(r"^\[(offset|length):\s*([-+\d:.]+)\]", text, re.MULTILINE))
    earlier = float(notes.get("offset", 0)) / 1000
    lines = []
    for stamps, said in re.findall(rf"^((?:{_STAMP} *)+)(.*)$", text, re.MULTILINE):
        said = re.sub(rf"{_STAMP}|<[\d:.]+>", "", said)  # of words
        # The last colon of mm:ss:cc is a point.
        times = (re.sub(r"^(\d+:\d+):(\d+)$", r"\1.\2", one[1:-1]) for one in re.findall(_STAMP, stamps))
        lines += [(max(0.0, clock_seconds(time) - earlier), said.strip()) for time in times]
    unread = re.findall(rf"^(?!{_STAMP})\[\d+:", text, re.MULTILINE)
    left_out["captions whose times can't be read"] += len(unread)
    lines.sort()
    if lines and lines[-1][1] and "length" not in notes:
        left_out["captions without an end"] += 1
    ends = [*(start for start, _ in lines), clock_seconds(notes["length"]) if "length" in notes else 0.0]
    return [(start, end, [said]) for (start, said), end in zip(lines, ends[1:], strict=True) if said and end > start]


def _of_ttml(text: str, left_out: Counter[str]) -> list[Cue]:
    """Paragraphs, or spans in those without times, with `begin`, and `end` or `dur` (TTML2, 12.3). Times count from
    that of what they are in, but in Apple's lyrics, which say that they have times of lines or words."""
    document = ET.fromstring(text)
    values = {name.rpartition("}")[2]: value for name, value in document.attrib.items()}
    over, under = map(float, re.split(r"[\s:]+", values.get("frameRateMultiplier", "1 1")))
    frames = float(values.get("frameRate", 30.0)) * over / under
    ticks = float(values.get("tickRate", frames))
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "f": 1 / frames, "t": 1 / ticks}
    agents = _agents(document)

    def seconds(value: str) -> float:
        if match := re.fullmatch(r"([\d.]+)(h|ms?|s|f|t)", value):
            return float(match[1]) * units[match[2]]
        clocks = value.split(":")
        return clock_seconds(":".join(clocks[:3])) + sum(map(float, clocks[3:])) / frames

    def cues(element: ET.Element, earlier: float, agent: str) -> Iterator[Cue]:
        own = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        start = earlier + seconds(own.get("begin", "0s"))
        agent = own.get("agent", agent)
        if _name_of(element) in ("p", "span") and "begin" in own:
            end = start + seconds(own["dur"]) if "dur" in own else earlier + seconds(own.get("end", "0s"))
            voice = f"<v {_plain(agents[agent])}>" if agent in agents else ""
            yield start, end, f"{voice}{_plain(_lines_of(element))}".split("\n")
            return
        for child in element:
            yield from cues(child, 0.0 if "timing" in values else start, agent)

    return list(cues(document, 0.0, ""))


def _agents(document: ET.Element) -> dict[str, str]:
    """Of those of TTML that have a name, by their id (TTML2, 14.2)."""
    named = {}
    for agent in document.iter():
        names = [one.text.strip() for one in agent if _name_of(one) == "name" and one.text and one.text.strip()]
        if _name_of(agent) == "agent" and names:
            named[agent.get("{http://www.w3.org/XML/1998/namespace}id", "")] = names[0]
    return named


def _name_of(element: ET.Element) -> str:
    """The name of an element, without its namespace."""
    return element.tag.rpartition("}")[2]


def _lines_of(element: ET.Element) -> str:
    """The text of an element of TTML, in which white space is one space, with its breaks."""
    if _name_of(element) == "metadata":
        return ""
    inner = "\n" if _name_of(element) == "br" else re.sub(r"\s+", " ", element.text or "")
    return inner + "".join(_lines_of(child) + re.sub(r"\s+", " ", child.tail or "") for child in element)


_OTHERS: dict[str, Callable[[str, Counter[str]], list[Cue]]] = {
    ".tsv": _of_table,
    ".sbv": _of_sbv,
    ".json3": _of_json3,
    ".lrc": _of_lyrics,
    ".ttml": _of_ttml,
}


def _said_once(cues: Sequence[Cue], left_out: Counter[str]) -> Sequence[Cue]:
    """The cues; of captions that roll, as YouTube's, where a line moves up when another comes below it, each line when
    it comes. Without times of words this is a guess, and counted."""
    filled = [(start, end, [line for line in lines if _TAG.sub("", line).strip()]) for start, end, lines in cues]
    plain = [[_TAG.sub("", line).strip() for line in lines] for _, _, lines in filled]
    repeated = [_repeated(*pair) for pair in pairwise(plain)]
    moved = any(0 < count < len(lines) for count, lines in zip(repeated, plain[1:], strict=True))
    if not moved or 2 * sum(map(bool, repeated)) < len(repeated):
        return filled
    if not any(_WORD_TIME.search(line) for _, _, lines in cues for line in lines):
        left_out["lines that the caption before has"] += sum(repeated)
    starts = [*(start for start, _, _ in cues[1:]), float("inf")]
    return [
        (start, min(end, following) if following > start else end, lines[count:])
        for (start, end, lines), count, following in zip(filled, [0, *repeated], starts, strict=True)
    ]


def _repeated(before: Sequence[str], lines: Sequence[str]) -> int:
    """With how many of the lines that end one cue another begins."""
    most = min(len(before), len(lines))
    return next((count for count in range(most, 0, -1) if before[-count:] == lines[:count]), 0)


# ----------------------------------------------------------------------------- Who says what of their lines

_VOICE = re.compile(r"<v(?:\.[^\s>]*)*\s+([^>]*)>(.*?)(?=<v[.\s]|</v>|$)", re.DOTALL)
_NOISE = re.compile(
    r"\[[^\[\]]*\b(?:music|musical|singing|applause|applauds|clapping|cheers|cheering|laughs?|laughing|laughter|chuckles?"
    r"|giggles|sighs?|gasps?|groans|coughs?|coughing|sniffs|sobs|sobbing|screams|noise|silence|beep|beeps|ringing|rings"
    r"|bell|barking|barks|thunder|footsteps|knocks|knocking|door (?:opens|closes|shuts|slams|creaks))\b[^\[\]]*\](?!:)",
    re.IGNORECASE,
)
_SOUND = re.compile(
    rf"{_NOISE.pattern}|^(?:[-–] ?)?\[[^\[\]\n]*\]$|\A[\[(（【［][^\[\]()（）]*[\])）】］]\Z",
    re.IGNORECASE | re.MULTILINE,
)
"""What captions say of sounds: `[door closes]`, and whatever is a caption by itself, `(laughs)`, or a line, `[wind]`.
Other brackets, as `[he] went`, are words or speakers."""
_SONG = re.compile(r"[♪♫][^♪♫]*[♪♫]|^[♪♫].*$|\A# .* #\Z", re.MULTILINE)
_TURN = re.compile(r"(?:^|(?<=[.!?…\"”]) )(?:[-–] (?=[^\W\d_])|>{2,3} ?)", re.MULTILINE)
"""The dash or `>>` of a speaker's turn; before a digit a dash may be a sign."""
_UNHEARD = re.compile(r"[\[(][^\[\]()]*\b(?:inaudible|unintelligible|crosstalk)\b[^\[\]()]*[\])](?!:)", re.IGNORECASE)
"""In place of words that nobody wrote down, so that the caption is not what is said."""
_BRACKETED = re.compile(
    r"(?:(?:[-–]|>{2,3}) ?)?[\[(（【［]([^\W_][^\[\]():（）【】［］：]{0,39})(?:[\])]\s+|[）】］]\s*)(?=\S)"
)
_SHOUTED = re.compile(r"([A-Z][A-Z]+(?:[ .'-][A-Z\d]+){0,3}): (?=.*[a-z])")
"""A speaker before a single caption, in the capitals of subtitles for the deaf."""


def _captions(path: Path, cues: Sequence[Cue], left_out: Counter[str]) -> list[RecordingLabels]:
    spoken = _named_in_brackets([one for cue in _said_once(cues, left_out) for one in _voices(*cue)])
    segments = []
    for one in voices([words for one in spoken if (words := _words(one, left_out)) is not None]):
        if one.speaker is None and one.text and (name := _SHOUTED.match(one.text)) and not NO_NAME.fullmatch(name[1]):
            left_out["names of speakers before single captions"] += 1
            one = replace(one, text=one.text[name.end() :])
        if one.text is not None and _UNHEARD.search(one.text):
            left_out["captions with words that were not understood"] += 1
            if one.speaker is None:
                continue
            one = replace(one, text=None)  # the turn remains
        segments.append(one)
    texts = [one.text for one in segments if one.text and one.speaker is None]
    names = list(filter(None, map(name_before, texts)))
    if len(names) > 3 and len(texts) <= 2 * len(names):
        _report_names(path, names[0])
    return [RecordingLabels(path.stem, str(path), by_start(segments), left_out=left_out)]


@cache
def _report_names(path: Path, name: str) -> None:
    """Says, once, that captions may begin with speakers, of whom none returns."""
    logger.warning(
        "%s: texts begin with words before a colon (%s), which are taken for spoken; if they are speakers, write them "
        "as <v %s> in WebVTT",
        *(printable(str(path)), printable(name), printable(name)),
    )


def _voices(start: float, end: float, lines: Sequence[str]) -> Iterator[Segment]:
    """What each voice of a cue says, without tags, line by line."""
    text = "\n".join(lines)
    for speaker, said in [(match[1], match[2]) for match in _VOICE.finditer(text)] or [("", text)]:
        plain = html.unescape(_TAG.sub("", said)).strip().split("\n")
        yield Segment(start, end, html.unescape(speaker).strip() or None, "\n".join(map(str.strip, plain)))


def _named_in_brackets(spoken: Sequence[Segment]) -> Sequence[Segment]:
    """The captions; where at least half of them begin with names in brackets (`[Ann] hello`, `(Ann)` above a line) that
    return, these as other captions name speakers. Before fewer they are sounds."""
    marks = [_name_in_brackets(one.text or "") if one.speaker is None else None for one in spoken]
    names = Counter(mark[1] for mark in marks if mark is not None)
    texts = sum(bool(one.text) and _SOUND.fullmatch(one.text or "") is None for one in spoken)
    if len(names) == names.total() or 2 * names.total() < texts:
        return spoken
    return [
        one if mark is None else replace(one, text=f"{mark[1]}: {(one.text or '')[mark.end() :]}")
        for one, mark in zip(spoken, marks, strict=True)
    ]


def _name_in_brackets(text: str) -> re.Match[str] | None:
    mark = _BRACKETED.match(text)
    return mark if mark and re.fullmatch(NAME, mark[1]) and not _NOISE.match(f"[{mark[1]}]") else None


def _words(one: Segment, left_out: Counter[str]) -> Segment | None:
    """A caption without sounds, which are counted, and marks of turns; None where nothing remains."""
    whole = one.text or ""
    plain = whole if _UNHEARD.search(whole) else _SONG.sub(" ", _SOUND.sub(" ", whole))
    if plain != whole:
        left_out["sounds within captions" if plain.strip() else "captions of sounds"] += 1
    text = _TURN.sub(" ", "\n".join(map(str.strip, plain.split("\n")))).strip()
    return replace(one, text=text or None) if text or one.speaker else None


# -------------------------------------------------------------------------------------------------- Writing


def write_webvtt(path: Path, recording: str, turns: Sequence[SpeakerTurn], length: float | None) -> None:
    """A cue for each turn, with its speaker as voice and as text."""
    cues = (
        f"{clock(one.start, '.')} --> {clock(one.end, '.')}\n"
        f"<v {html.escape(one.speaker, quote=False)}>{html.escape(one.speaker, quote=False)}\n"
        for one in turns
    )
    write_lines(path, ["WEBVTT\n", *cues])


def write_srt(path: Path, recording: str, turns: Sequence[SpeakerTurn], length: float | None) -> None:
    """A caption for each turn: its speaker."""
    write_lines(
        path,
        (
            f"{number}\n{clock(one.start, ',')} --> {clock(one.end, ',')}\n{one.speaker}: …\n"
            for number, one in enumerate(turns, start=1)
        ),
    )
