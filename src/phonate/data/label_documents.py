"""Label files that are documents: Praat's TextGrid, ELAN's XML, transcripts in JSON, the AMI corpus' own XML."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ET
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError, json_mistake
from phonate.data.annotations import SpeakerTurn, encoding_of, not_utf8, read_text, seconds, write_lines
from phonate.data.corpora.lists import SEGMENTS, audio_name, bounds_of, column_names, samples_of
from phonate.data.corpora.rows import Segment, as_text
from phonate.data.labels import RecordingLabels, by_start, utterances

# -------------- TextGrid: tiers of intervals and points, as long or short text, or in Praat's binary form

_TOKEN = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?!\S)|<(exists|absent)>')
_BINARY = b"ooBinaryFile\x08TextGrid"
_INTERVALS = "IntervalTier"
_PARTS = (
    "phones", "phone", "phonemes", "phoneme", "segments", "syllables", "syllable", "syl", "ipa", "sampa", "mau", "mas",
    "kan-mau", "kas-mau",
)  # fmt: skip
"""Tiers of what is less than a word, or of how words are pronounced; the last are WebMAUS'."""
_WORDS = ("words", "word", "ort-mau")
_UTTERANCES = (
    "phrase", "phrases", "utterance", "utterances", "sentence", "sentences", "transcript", "transcription", "text",
    "ort", "ortho", "orthography", "speech", "transkript", "transkription", "trn",
)  # fmt: skip
"""Tiers of one speaker, who has no name."""
_NOTES = (
    "notes", "note", "comments", "comment", "remarks", "tones", "tone", "breaks", "break", "misc", "pos", "gloss",
    "translation", "events", "silences",
)  # fmt: skip
"""Tiers of what nobody says."""
_SPEAKERS = ("speakers", "speaker", "spk", "diarization")
"""Tiers whose labels are speakers."""
_SILENCE = ("sil", "<sil>", "sp", "spn", "#", "silence", "<p:>", "<p>", "<eps>", "pause", "<pause>", "...", "…")


@dataclass(frozen=True)
class Tier:
    """A tier of a TextGrid."""

    name: str
    entries: list[tuple[float, float, str]]
    """Start, end and label, in seconds. Points start and end at the same time."""


def textgrid_tiers(path: Path) -> list[Tier]:
    """The tiers of a TextGrid in any form that Praat saves. Raises DataError."""
    try:
        content = path.read_bytes()
        values = _binary(content) if content.startswith(_BINARY) else _textual(path, content)
        return list(_tiers(values))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except DataError:
        raise
    except (StopIteration, ValueError, RuntimeError, struct.error, IndexError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it ends too early"
        raise DataError(f"{path}: not a readable TextGrid ({reason}); save it alone in Praat, as text file") from error


Values = Iterator[str | float]


class _Next:
    """Values of a TextGrid, one by one."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def number(self) -> float:
        value = next(self._values)
        if not isinstance(value, float):
            raise ValueError(f"{value[:40]!r} stands where a number is expected")
        return value

    def text(self) -> str:
        value = next(self._values)
        if not isinstance(value, str):
            raise ValueError(f"{value:g} stands where a text is expected")
        return value


def _tiers(values: Values) -> Iterator[Tier]:
    following = _Next(values)
    for _ in range(int(following.number())):
        kind, name = following.text(), following.text()
        following.number(), following.number()
        entries = []
        for _ in range(int(following.number())):
            start = following.number()
            end = following.number() if kind == _INTERVALS else start
            entries.append((start, end, following.text()))
        yield Tier(name, entries)


def _textual(path: Path, content: bytes) -> Values:
    """The values from the number of tiers on. Praat saves ASCII, UTF-8, or UTF-16 with its mark; only numbers that
    stand alone and quoted texts count."""
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    tokens = _TOKEN.finditer(text)
    if "TextGrid" not in (next(tokens)[1], next(tokens)[1]):
        raise ValueError("it does not say that it is one")
    values: Values = (
        float(token[2]) if token[2] is not None else token[1].replace('""', '"') for token in tokens if token[3] is None
    )
    next(values), next(values)  # the beginning and the end of all
    return values


def _binary(content: bytes) -> Values:
    """The values from the number of tiers on, big-endian."""
    at = len(_BINARY) + 16 + 1  # two times, and whether there are tiers

    def number(form: str) -> float:
        nonlocal at
        (value,) = struct.unpack_from(form, content, at)
        at += struct.calcsize(form)
        return float(value)

    def text() -> str:
        nonlocal at
        length, width = int(number(">H")), 1
        if length == 0xFFFF:
            length, width = int(number(">H")), 2
        at += width * length
        if at > len(content):
            raise IndexError
        return content[at - width * length : at].decode("latin-1" if width == 1 else "utf-16-be")

    tiers = number(">i")
    yield tiers
    for _ in range(int(tiers)):
        length = int(number(">B"))
        at += length
        kind = content[at - length : at].decode("ascii", "replace")
        yield kind
        yield text()
        yield number(">d")
        yield number(">d")
        count = number(">i")
        yield count
        for _ in range(int(count)):
            yield number(">d")
            if kind == _INTERVALS:
                yield number(">d")
            yield text()


def read_textgrid(path: Path) -> list[RecordingLabels]:
    """A tier is a speaker, and its labels what they say; but the
    labels of a tier `speaker` are speakers, and tiers of words, as aligners write (`words`, `ann - words`), are joined
    to utterances. Tiers of phones, points and notes are left out."""
    tiers = textgrid_tiers(path)
    names = [one.name for one in tiers]
    count = len(names)
    left_out: Counter[str] = Counter()
    segments: list[Segment] = []
    words: list[Segment] = []
    tiers = [one for one in tiers if _part_of(one.name) not in _NOTES]
    left_out["tiers of notes"] = count - len(tiers)
    spoken = [one for one in tiers if _part_of(one.name) not in _PARTS]
    if count and not spoken:
        mend = "rename the one that holds what is said, such as to text"
        raise DataError(f"{path}: only tiers of parts of words or of notes ({', '.join(names)}) are in it; {mend}")
    left_out["tiers of parts of words"] = len(tiers) - len(spoken)
    for tier in spoken:
        points = [one for one in tier.entries if one[0] == one[1]]
        left_out["points in time"] += len(points)
        labels = [
            (start, end, " ".join(label.split()))
            for start, end, label in tier.entries
            if end > start >= 0.0 and label.strip() and label.strip().lower() not in _SILENCE
        ]
        if _part_of(tier.name) in _SPEAKERS:
            segments += [Segment(start, end, label) for start, end, label in labels]
        elif _part_of(tier.name) in _WORDS:
            speaker = tier.name.rpartition(" - ")[0].strip() or None
            words += [Segment(start, end, speaker, label) for start, end, label in labels]
        else:
            prefix, _, level = tier.name.rpartition(" - ")
            name = (prefix if level.strip().lower() in _UTTERANCES else tier.name).strip() or None
            segments += [Segment(start, end, name, None if label == name else label) for start, end, label in labels]
    segments = _with_speakers_beside(segments)
    timed = [] if segments else words
    return [
        RecordingLabels(path.stem, str(path), by_start(segments or utterances(words)), left_out=left_out, words=timed)
    ]


def _with_speakers_beside(segments: Sequence[Segment]) -> list[Segment]:
    """The segments; where a tier names speakers and another has texts, these as one, by the times that they share."""
    turns = [one for one in segments if one.speaker is not None and one.text is None]
    texts = [one for one in segments if one.speaker is None]
    if not (turns and texts):
        return list(segments)

    def shared(one: Segment, other: Segment) -> float:
        return min(one.end or 0.0, other.end or 0.0) - max(one.start, other.start)

    said = []
    without_text = dict.fromkeys(turns)
    coming, near = deque(by_start(turns)), list[Segment]()  # an hour has a thousand of both
    for one in by_start(texts):
        while coming and coming[0].start < (one.end or 0.0):
            near.append(coming.popleft())
        near = [turn for turn in near if (turn.end or 0.0) > one.start]
        turn = max(near, key=lambda other: shared(one, other), default=None)
        if turn is not None and shared(one, turn) > 0:
            without_text.pop(turn, None)
            one = replace(one, speaker=turn.speaker)
        said.append(one)
    return [one for one in segments if one.speaker is not None and one.text is not None] + said + [*without_text]


def is_alignment(path: Path) -> bool:
    """Whether a TextGrid has tiers of words and phones, as aligners write beside texts."""
    try:
        parts = {_part_of(one.name) for one in textgrid_tiers(path)}
    except DataError:
        return False
    return bool(parts & {*_PARTS}) and bool(parts & {*_WORDS})


def _part_of(name: str) -> str:
    return name.rpartition(" - ")[2].strip(' "').lower()


def write_textgrid(path: Path, recording: str, turns: Sequence[SpeakerTurn], length: float | None) -> None:
    """A tier for each speaker, with the name as label of each turn; turns of a speaker that overlap are joined."""
    end = max([length or 0.0, *(one.end for one in turns)]) or 1.0
    speakers = sorted({one.speaker for one in turns})
    write_tiers(path, [Tier(name, _joined(one for one in turns if one.speaker == name)) for name in speakers], end)


def _joined(turns: Iterable[SpeakerTurn]) -> list[tuple[float, float, str]]:
    joined: list[tuple[float, float, str]] = []
    for turn in sorted(turns):
        start, end = turn.start, turn.end
        if joined and start <= joined[-1][1]:
            start, before, _ = joined.pop()
            end = max(end, before)
        joined.append((start, end, turn.speaker))
    return joined


def write_tiers(path: Path, tiers: Sequence[Tier], end: float) -> None:
    """Write tiers of intervals as a TextGrid. Raises InputError if the file can't be written."""
    write_lines(path, textgrid_lines(tiers, end))


def textgrid_lines(tiers: Sequence[Tier], end: float) -> Iterator[str]:
    """The lines of a TextGrid of tiers of intervals, in order, that ends at `end` seconds, as Praat's long text.
    Between intervals there is silence; those that overlap meet."""
    yield from ('File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {_number(end)}")
    yield from ("tiers? <exists>", f"size = {len(tiers)}", "item []:")
    for number, tier in enumerate(tiers, start=1):
        intervals = _without_gaps(tier.entries, end)
        yield from (f"    item [{number}]:", f'        class = "{_INTERVALS}"', f"        name = {_quoted(tier.name)}")
        yield from ("        xmin = 0", f"        xmax = {_number(end)}", f"        intervals: size = {len(intervals)}")
        for place, (start, stop, label) in enumerate(intervals, start=1):
            yield from (f"        intervals [{place}]:", f"            xmin = {_number(start)}")
            yield from (f"            xmax = {_number(stop)}", f"            text = {_quoted(label)}")


def _without_gaps(entries: Sequence[tuple[float, float, str]], end: float) -> list[tuple[float, float, str]]:
    intervals: list[tuple[float, float, str]] = []
    at = 0.0
    for start, stop, label in [*entries, (end, end, "")]:
        start = max(start, at)
        intervals += [(at, start, "")] if start > at else []
        if stop > start:
            intervals.append((start, stop, label))
        at = max(stop, at)
    return intervals


def _number(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


# -------------------------------------- ELAN: annotations between time slots, of tiers with participants


def read_elan(path: Path) -> list[RecordingLabels]:
    """The annotations of the tiers that depend on no other, by participant (or tier). One without a text has that of
    the annotations that refer to it. Slots without a time lie evenly between their neighbours."""
    document = _xml(path)
    times = {
        slot.get("TIME_SLOT_ID", ""): float(value) / 1000.0 if (value := slot.get("TIME_VALUE")) is not None else None
        for slot in document.iter("TIME_SLOT")
    }
    tiers = list(document.iter("TIER"))
    texts = _referring(tiers)
    segments: list[Segment] = []
    left_out: Counter[str] = Counter()
    for tier in tiers:
        if tier.get("PARENT_REF") is not None:
            left_out["dependent tiers"] += 1
            continue
        speaker = (tier.get("PARTICIPANT") or tier.get("TIER_ID") or "").strip() or None
        listed = list(tier.iter("ALIGNABLE_ANNOTATION"))
        spans = _spans([(one.get("TIME_SLOT_REF1", ""), one.get("TIME_SLOT_REF2", "")) for one in listed], times)
        for annotation, span in zip(listed, spans, strict=True):
            if span is None:
                raise DataError(f"{path}: annotation {annotation.get('ANNOTATION_ID')} has no times; align it in ELAN")
            said = _value(annotation) or texts.get(annotation.get("ANNOTATION_ID", ""))
            segments.append(Segment(*span, speaker, None if said == speaker else said))
    return [RecordingLabels(path.stem, str(path), by_start(segments), left_out=left_out)]


def _xml(path: Path) -> ET.Element:
    try:
        return ET.parse(path).getroot()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except ET.ParseError as error:
        raise DataError(f"{path}: not readable as XML ({error})") from error


def _value(annotation: ET.Element) -> str | None:
    return " ".join((annotation.findtext("ANNOTATION_VALUE") or "").split()) or None


def _referring(tiers: Sequence[ET.Element]) -> dict[str, str]:
    """Annotation -> what the annotations of the first tier that refers to it say."""
    texts: dict[str, str] = {}
    for tier in tiers:
        said: dict[str, list[str]] = {}
        for annotation in tier.iter("REF_ANNOTATION"):
            if (value := _value(annotation)) is not None:
                said.setdefault(annotation.get("ANNOTATION_REF", ""), []).append(value)
        for reference, values in said.items():
            texts.setdefault(reference, " ".join(values))
    return texts


def _spans(pairs: Sequence[tuple[str, str]], times: dict[str, float | None]) -> list[tuple[float, float] | None]:
    """The times of annotations between slots; of a chain of annotations, slots without a time are spread evenly."""
    filled = dict(times)
    order = list(times)
    chain = list(dict.fromkeys(slot for pair in pairs for slot in pair))
    position = {slot: number for number, slot in enumerate(order)}
    for at, slot in enumerate(chain):
        if filled.get(slot) is not None:
            continue
        after = next((step for step in range(at + 1, len(chain)) if times.get(chain[step]) is not None), None)
        before = filled.get(chain[at - 1]) if at else None
        first = before if before is not None else _neighbour(order, position.get(slot, 0), times, -1)
        last = times.get(chain[after]) if after is not None else _neighbour(order, position.get(slot, 0), times, 1)
        if first is None or last is None:
            continue
        steps = (after if after is not None else len(chain)) - at + 1
        filled[slot] = first + (last - first) / steps
    spans: list[tuple[float, float] | None] = []
    for one, two in pairs:
        start, end = filled.get(one), filled.get(two)
        spans.append(None if start is None or end is None else (start, end))
    return spans


def _neighbour(order: Sequence[str], at: int, times: dict[str, float | None], step: int) -> float | None:
    """The time of the nearest slot that has one, before or after a slot."""
    at += step
    while 0 <= at < len(order):
        if (time := times[order[at]]) is not None:
            return time
        at += step
    return None


_XSI = "http://www.w3.org/2001/XMLSchema-instance"


def write_elan(path: Path, recording: str, turns: Sequence[SpeakerTurn], length: float | None) -> None:
    """A tier for each speaker, with the name as value of each turn."""
    ET.register_namespace("xsi", _XSI)
    schema = {f"{{{_XSI}}}noNamespaceSchemaLocation": "http://www.mpi.nl/tools/elan/EAFv3.0.xsd"}
    head = {"AUTHOR": "", "DATE": "1970-01-01T00:00:00Z", "FORMAT": "3.0", "VERSION": "3.0"}
    root = ET.Element("ANNOTATION_DOCUMENT", {**head, **schema})
    ET.SubElement(root, "HEADER", MEDIA_FILE="", TIME_UNITS="milliseconds")
    order = ET.SubElement(root, "TIME_ORDER")
    for number, time in enumerate(time for one in turns for time in (one.start, one.end)):
        ET.SubElement(order, "TIME_SLOT", TIME_SLOT_ID=f"ts{number + 1}", TIME_VALUE=str(round(1000 * time)))
    for speaker in sorted({one.speaker for one in turns}):
        tier = ET.SubElement(root, "TIER", LINGUISTIC_TYPE_REF="default-lt", PARTICIPANT=speaker, TIER_ID=speaker)
        for number, turn in enumerate(turns):
            if turn.speaker == speaker:
                slots = {f"TIME_SLOT_REF{end}": f"ts{2 * number + end}" for end in (1, 2)}
                outer = ET.SubElement(tier, "ANNOTATION")
                inner = ET.SubElement(outer, "ALIGNABLE_ANNOTATION", {"ANNOTATION_ID": f"a{number + 1}", **slots})
                ET.SubElement(inner, "ANNOTATION_VALUE").text = speaker
    ET.SubElement(
        root, "LINGUISTIC_TYPE", GRAPHIC_REFERENCES="false", LINGUISTIC_TYPE_ID="default-lt", TIME_ALIGNABLE="true"
    )
    ET.indent(root)
    write_lines(path, ['<?xml version="1.0" encoding="UTF-8"?>', ET.tostring(root, encoding="unicode")])


# ------------------- Transcripts in JSON: of Whisper, WhisperX and `phonate transcribe`, of no recording by name

_LARGEST = 64 * 2**20


def is_timed(path: Path) -> bool:
    """Whether a JSON file is a transcript with times."""
    status = path.stat()
    return status.st_size <= _LARGEST and _is_timed(path, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=2**16)
def _is_timed(path: Path, stamp: tuple[int, int, int]) -> bool:
    """The same, kept while the file is as it is: the format of a folder is asked for several times."""
    try:
        return _timed(_document(path)) is not None
    except DataError:  # told by whoever reads it as something else
        return False


def names_speakers(path: Path) -> bool:
    """Whether a transcript with times says who speaks, or has no text for the whole. One of silence says nothing."""
    document = _document(path)
    segments = _timed(document) or []
    return any(one.speaker is not None for one in segments) or bool(segments and "text" not in document)


def read_json(path: Path) -> list[RecordingLabels]:
    """The segments or words of Whisper, WhisperX and others, with speakers where one list has them; detected where they
    name speakers."""
    segments = _timed(_document(path))
    if segments is None:
        raise DataError(f"{path}: neither segments nor words with times (start, end, text) in it")
    return [RecordingLabels(path.stem, str(path), by_start(segments))]


Document = Mapping[str, Any]


def _document(path: Path) -> Document:
    """The object that a JSON file holds, or its list as one of segments; an empty one for another value, and for
    objects that name recordings. Raises DataError."""
    try:
        document = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({json_mistake(error)})") from error
    samples = samples_of(document) if isinstance(document, (dict, list)) else None
    if any(
        isinstance(one, dict) and audio_name(one)
        for one in (document, *(samples[:1] if isinstance(samples, list) else ()))
    ):
        return {}
    return {"segments": document} if isinstance(document, list) else document if isinstance(document, dict) else {}


_DEPTH = 2
"""Objects in an object in which segments may be, as in the `results` of Deepgram."""
_WORDS_ALONE = ("words", "word_segments")


def _timed(document: Document) -> list[Segment] | None:
    """The segments with times of a transcript; of words what they are joined to. None where it is no transcript."""
    values = dict(_lists_in(document, _DEPTH))
    lists = [_segments(values.get(name, ())) for name in SEGMENTS]
    lists += [utterances(_segments(values.get(name, ()))) for name in _WORDS_ALONE]
    # Of several, one with speakers and texts; words come last, for where segments begin is not told by pauses.
    said = max(lists, key=lambda one: (any(part.speaker for part in one), any(part.text for part in one), bool(one)))
    if said:
        return said
    silent = document.get("segments") == [] or (document.get("words") == [] and document.get("text") == "")
    return [] if silent and not document.get("words") else None


def _lists_in(document: Document, depth: int) -> Iterator[tuple[str, list[Any]]]:
    for name, value in document.items():
        if isinstance(value, list):
            yield name, value
        elif isinstance(value, dict) and depth:
            yield from _lists_in(value, depth - 1)


def _segments(listed: Sequence[object]) -> list[Segment]:
    """Objects with a start, an end and a text, a speaker or both, of one channel; none where one has not."""
    segments = [_segment(one) if isinstance(one, dict) else None for one in listed]
    said = [one for one in segments if one is not None]
    if len(said) < len(segments) or len({str(one.get("channel")) for one in listed if isinstance(one, dict)}) > 1:
        return []
    if _count_milliseconds(said):
        said = [replace(one, start=one.start / 1000.0, end=(one.end or 0.0) / 1000.0) for one in said]
    return said


def _segment(listed: Document) -> Segment | None:
    columns = {meaning: listed[key] for meaning, key in column_names(listed).items()}
    if isinstance(pair := listed.get("timestamp"), list) and len(pair) == 2:  # as of transformers
        columns |= {"start": pair[0], "end": pair[1]}
    try:
        start, end = bounds_of(columns)
    except (TypeError, ValueError):
        return None
    speaker, text = as_text(columns.get("speaker_id")), columns.get("text")
    if start is None or end is None or not (isinstance(text, str) or (text is None and speaker is not None)):
        return None
    return Segment(start, end, speaker, (text or "").strip() or None)


_SLOWEST = 0.05
"""Characters a second, fewer than in the second word of a silent half minute, which Whisper makes up: times of such
texts are milliseconds."""


def _count_milliseconds(segments: Sequence[Segment]) -> bool:
    spans = [(one.start, one.end or 0.0) for one in segments]
    whole = not any(time % 1 for span in spans for time in span)
    letters = sum(len(one.text or "") for one in segments)
    return whole and 0 < letters < _SLOWEST * sum(end - start for start, end in spans)


# ----------- AMI: words/MEETING.AGENT.words.xml, segments/MEETING.AGENT.segments.xml, meetings.xml

_NITE = "{http://nite.sourceforge.net/}"
_RANGE = re.compile(r"id\(([^()]+)\)")
_SESSION = re.compile(r"([A-Z]{2}\d{4})[a-z]")


def read_ami(path: Path) -> list[RecordingLabels]:
    """One participant of a meeting: the transcriber's segments with their words, or, without a file of segments, words
    joined to utterances. The speaker is called as in corpusResources/meetings.xml, or after the meetings that share
    participants (ES2002A)."""
    meeting, agent, kind, _ = path.name.split(".", 3) if path.name.count(".") > 2 else ("", "", "", "")
    if kind not in ("words", "segments"):
        raise DataError(f"{path}: not called MEETING.AGENT.words.xml or MEETING.AGENT.segments.xml")
    words_file = _beside(path, "words", f"{meeting}.{agent}.words.xml")
    segments_file = _beside(path, "segments", f"{meeting}.{agent}.segments.xml")
    if kind == "segments" and words_file is not None:
        return []  # its words have been read, or will be
    session = _SESSION.fullmatch(meeting)
    names = _participants(_resources(path))
    speaker = names.get((meeting, agent)) or f"{session[1] if session else meeting}{agent}"
    words = _ami_words(words_file) if words_file is not None else []
    timed = [Segment(start, end, speaker, text) for _, start, end, text in words]
    segments = utterances(timed) if segments_file is None else _ami_segments(segments_file, speaker, words)
    return [RecordingLabels(meeting, str(path), by_start(segments), words=timed)]


def _beside(path: Path, folder: str, name: str) -> Path | None:
    places = (path.with_name(name), path.parent.parent / folder / name)
    return next((one for one in places if one.is_file()), None)


def _ami_words(path: Path) -> list[tuple[str, float, float, str]]:
    """Id, start, end and text of the words, with the marks behind them. Laughs and noises are no words."""
    words: list[tuple[str, float, float, str]] = []
    for element in _xml(path).iter("w"):
        # Letters that are spelled: T_V_ is T V.
        text = " ".join((element.text or "").replace("_'", "'").replace("_", " ").split())
        if element.get("punc") == "true" and words:
            id, start, end, before = words[-1]
            words[-1] = (id, start, end, before + text)
        elif text and element.get("starttime") is not None and element.get("endtime") is not None:
            times = (seconds(element.get("starttime", "")), seconds(element.get("endtime", "")))
            words.append((element.get(f"{_NITE}id", ""), *times, text))
    return words


def _ami_segments(path: Path, speaker: str, words: Sequence[tuple[str, float, float, str]]) -> list[Segment]:
    segments = []
    numbers = [(int(match[0]), text) for id, _, _, text in words if (match := re.search(r"\d+$", id)) is not None]
    for element in _xml(path).iter("segment"):
        try:
            start, end = (seconds(element.get(f"transcriber_{which}", "")) for which in ("start", "end"))
        except ValueError:
            raise DataError(f"{path}: segment {element.get(f'{_NITE}id')} has no transcriber_start and end") from None
        child = element.find(f"{_NITE}child")
        ids = _RANGE.findall(child.get("href", "")) if child is not None else []
        ends = [int(match[0]) for id in ids if (match := re.search(r"\d+$", id)) is not None]
        said = [text for number, text in numbers if ends and ends[0] <= number <= ends[-1]]
        segments.append(Segment(start, end, speaker, " ".join(said) or None))
    return segments


def _resources(path: Path) -> Path | None:
    above = (folder / "corpusResources" / "meetings.xml" for folder in list(path.absolute().parents)[:3])
    return next((one for one in above if one.is_file()), None)


@lru_cache(maxsize=4)
def _participants(path: Path | None) -> dict[tuple[str, str], str]:
    """(meeting, agent) -> the global name of the participant."""
    if path is None:
        return {}
    return {
        (meeting.get("observation", ""), one.get("nxt_agent", "")): one.get("global_name", "")
        for meeting in _xml(path).iter("meeting")
        for one in meeting.iter("speaker")
        if one.get("global_name")
    }
