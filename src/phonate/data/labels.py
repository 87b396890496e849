"""Labels of recordings in any format: who speaks when, and what. The one list of formats, with their suffixes.

Some formats name recordings (RTTM, STM, CTM, AMI); a file of another is of the recording of its name. Readers give
`RecordingLabels`; diarizations are written by `write_turns`.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from phonate.compute.remote import on_disk
from phonate.config.errors import DataError, InputError
from phonate.config.registry import looked_in, nearest_path
from phonate.data import annotations as nist
from phonate.data.annotations import SpeakerTurn, Zones
from phonate.data.corpora.rows import Segment, audio_files, nfc, printable

logger = logging.getLogger("phonate")


@dataclass
class RecordingLabels:
    """The labels of a recording."""

    recording: str
    """As the file calls it, or the file's name without its suffix."""
    place: str
    """The file, and the line where there are several recordings in it."""
    segments: list[Segment]
    """In the order in which they start; each has an end."""
    channel: str | None = None
    """1, 2, A or B, where the format says so."""
    left_out: Counter[str] = field(default_factory=Counter)
    """How many of what are not taken over, such as pauses and marks."""
    words: list[Segment] = field(default_factory=list)
    """The words by themselves, where the labels have the times of each."""


Write = Callable[[Path, str, Sequence[SpeakerTurn], float | None], None]


@dataclass(frozen=True)
class LabelFormat:
    """A format of labels."""

    name: str
    title: str
    suffixes: tuple[str, ...]
    reader: str
    """`module:function`, which reads a file into a list of `RecordingLabels`. It raises DataError with the place."""
    writer: str | None = None
    """`module:function(path, recording, turns, seconds)`, which writes the turns of a recording so many seconds long
    (None: as its last turn ends)."""
    names_recordings: bool = False
    """Whether the recordings are named in the file, not by it."""
    names_speakers: bool = True
    """Whether it can say who speaks."""
    content: str | None = None
    """For suffixes that other files have as well: a pattern that the first line matches."""
    holds: str | None = None
    """For such suffixes, too: `module:function`, which says whether a file holds labels."""

    def ends(self, name: str) -> bool:
        """Whether a file's name has one of the suffixes, in small or capital letters."""
        return name.lower().endswith(tuple(suffix.lower() for suffix in self.suffixes))

    def read(self, path: Path) -> list[RecordingLabels]:
        """The recordings of a file. Raises DataError."""
        return list(map(_with_lengths, cast(Callable[[Path], list[RecordingLabels]], _function(self.reader))(path)))

    @cached_property
    def write(self) -> Write | None:
        """Writes a diarization; None where the format can't hold one."""
        return None if self.writer is None else cast(Write, _function(self.writer))

    def has(self, path: Path) -> bool:
        """Whether a file is of this format."""
        if not self.ends(path.name):
            return False
        try:
            if self.holds is not None:
                return bool(_function(self.holds)(path))
            return self.content is None or bool(re.match(self.content, _first_line(path)))
        except OSError:  # reported by whoever reads it
            return False


def _with_lengths(one: RecordingLabels) -> RecordingLabels:
    """The labels without segments that end where they start, or before."""
    segments = [segment for segment in one.segments if cast(float, segment.end) > segment.start]
    short = Counter({"segments without a length": len(one.segments) - len(segments)})
    return replace(one, segments=segments, left_out=one.left_out + short)


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _first_line(path: Path) -> str:
    with path.open("rb") as file:
        return file.readline(4096).decode("utf-8-sig", "replace")


_TEXTS, _DOCUMENTS = "phonate.data.label_texts", "phonate.data.label_documents"
_CAPTIONS = "phonate.data.label_captions"

LABEL_FORMATS = {
    one.name: one
    for one in (
        LabelFormat("rttm", "RTTM", (".rttm",), f"{_TEXTS}:read_rttm", f"{_TEXTS}:write_rttm", True),
        LabelFormat("stm", "STM", (".stm",), f"{_TEXTS}:read_stm", None, True),
        LabelFormat("ctm", "CTM", (".ctm",), f"{_TEXTS}:read_ctm", None, True, False),
        LabelFormat(
            "textgrid", "Praat TextGrid", (".TextGrid",), f"{_DOCUMENTS}:read_textgrid", f"{_DOCUMENTS}:write_textgrid"
        ),
        LabelFormat("elan", "ELAN", (".eaf",), f"{_DOCUMENTS}:read_elan", f"{_DOCUMENTS}:write_elan"),
        LabelFormat("webvtt", "WebVTT", (".vtt",), f"{_CAPTIONS}:read_webvtt", f"{_CAPTIONS}:write_webvtt"),
        LabelFormat("srt", "SubRip", (".srt",), f"{_CAPTIONS}:read_srt", f"{_CAPTIONS}:write_srt"),
        LabelFormat(
            "captions",
            "Other captions",
            (".tsv", ".sbv", ".json3", ".lrc", ".ttml"),
            f"{_CAPTIONS}:read_captions",
            holds=f"{_CAPTIONS}:is_captions",
        ),
        LabelFormat("ass", "Advanced SubStation Alpha", (".ass", ".ssa"), f"{_CAPTIONS}:read_ass"),
        LabelFormat(
            "audacity",
            "Audacity labels",
            (".txt",),
            f"{_TEXTS}:read_audacity",
            f"{_TEXTS}:write_audacity",
            content=r"\d+([.,]\d+)?\t\d+([.,]\d+)?(\t|\s*$)",
        ),
        LabelFormat("chat", "CHAT", (".cha",), f"{_TEXTS}:read_chat"),
        LabelFormat(
            "transcript", "Transcripts in JSON", (".json",), f"{_DOCUMENTS}:read_json", holds=f"{_DOCUMENTS}:is_timed"
        ),
        LabelFormat(
            "ami", "AMI words and segments", (".words.xml", ".segments.xml"), f"{_DOCUMENTS}:read_ami", None, True
        ),
    )
}
"""By the names that `data.format` takes."""
_PLAIN = LabelFormat("text", "Plain text", (".txt",), f"{_TEXTS}:read_plain", names_speakers=False)
"""What is said in a recording, without times. Scoring alone reads it, for a folder has texts of other kinds, too."""


def label_format(path: Path) -> LabelFormat | None:
    """The format of a file; None where it holds no labels."""
    return next((one for one in LABEL_FORMATS.values() if one.has(path)), None)


def suffixes(formats: Iterable[LabelFormat] = LABEL_FORMATS.values()) -> str:
    """The suffixes of formats, for messages: .rttm, .stm, ..."""
    return ", ".join(dict.fromkeys(suffix for one in formats for suffix in one.suffixes))


def label_files(folder: Path) -> dict[LabelFormat, list[Path]]:
    """The label files under a folder, by format. Where the first few texts are no labels, the others are not opened."""
    ends = {Path(f"x{suffix}").suffix.lower() for one in LABEL_FORMATS.values() for suffix in one.suffixes}
    listed: dict[LabelFormat, list[Path]] = {}
    opened: Counter[LabelFormat] = Counter()
    for file in audio_files(folder, ends, problems=[]):
        for kind in LABEL_FORMATS.values():
            if not kind.ends(file.name):
                continue
            if (kind.content or kind.holds) is not None and kind not in listed:
                opened[kind] += 1
                if opened[kind] > _LOOKED_AT:
                    continue
            if file.is_file() and kind.has(file):
                listed.setdefault(kind, []).append(file)
    return listed


_LOOKED_AT = 10


def before_transcripts(kinds: Iterable[LabelFormat]) -> list[LabelFormat]:
    """Kinds of labels, without transcripts in JSON where there are others: programs that recognise speech write the
    same as captions beside them."""
    listed = list(kinds)
    return [one for one in listed if one.name != "transcript"] or listed


_UNNAMED = "segments without a speaker"


def of_speakers(one: RecordingLabels) -> RecordingLabels:
    """The labels; of a transcript in JSON that names speakers, without the segments that name none, in which WhisperX's
    diarizer heard nobody."""
    named = [segment for segment in one.segments if segment.speaker is not None]
    unnamed = len(one.segments) - len(named)
    if not (named and unnamed and LABEL_FORMATS["transcript"].ends(one.place)):
        return one
    return replace(one, segments=named, left_out=one.left_out + Counter({_UNNAMED: unnamed}))


# --------------------------------------------------- Turns of any label file, and turns to a label file


def read_turns(path: str | Path) -> dict[str, list[SpeakerTurn]]:
    """Recording -> its turns, sorted by start, of a label file, or of all files of one format in a folder. Names are in
    one form (`same_name`).

    Raises DataError for files that can't be read, that are of no format in LABEL_FORMATS, or that name no speakers.
    """
    turns: dict[str, list[SpeakerTurn]] = {}
    left_out: Counter[str] = Counter()
    for one in map(of_speakers, _read(path)):
        left_out[_UNNAMED] += one.left_out[_UNNAMED]
        if any(segment.speaker is None for segment in one.segments):
            raise DataError(f"{one.place}: segments of {one.recording} name no speaker; give labels with speakers")
        turns.setdefault(same_name(one.recording), []).extend(map(_turn, one.segments))
    if left_out[_UNNAMED]:
        logger.warning("%s: left out: %d %s", printable(str(path)), left_out[_UNNAMED], _UNNAMED)
    return {name: sorted(listed) for name, listed in turns.items()}


@dataclass(frozen=True)
class Texts:
    """What is said in a recording."""

    segments: list[Segment]
    """Each with a text, sorted by start."""
    words: list[Segment]
    """Words with times of their own; where the labels have none, the segments. Sorted by start."""


def read_texts(path: str | Path) -> dict[str, Texts]:
    """Recording -> what is said in it; otherwise as `read_turns`."""
    spoken: dict[str, tuple[list[Segment], list[Segment]]] = {}
    for one in _read(path, texts=True):
        segments, words = spoken.setdefault(same_name(one.recording), ([], []))
        segments += [segment for segment in one.segments if segment.text]
        words += [word for word in one.words or one.segments if word.text]
    if not any(segments for segments, _ in spoken.values()):
        raise DataError(f"{path}: has no texts; give labels with what is said")
    return {
        name: Texts(by_start(segments), sorted(words, key=lambda one: one.start))
        for name, (segments, words) in spoken.items()
    }


Listed = TypeVar("Listed")


def read_pair(
    read: Callable[[str | Path], dict[str, Listed]], reference: str | Path, hypothesis: str | Path
) -> tuple[dict[str, Listed], dict[str, Listed]]:
    """Two label files by `read_turns` or `read_texts`. Where both are of one recording, and one of them does not name
    it, it is the same.

    Raises DataError as these do.
    """
    ref, hyp = read(reference), read(hypothesis)
    kinds = [_format_of(Path(path), read is read_texts) for path in (reference, hypothesis) if Path(path).is_file()]
    unnamed = any(kind is not None and not kind.names_recordings for kind in kinds)
    if unnamed and len(ref) == len(hyp) == 1:
        hyp = dict(zip(ref, hyp.values(), strict=True))
    return ref, hyp


_MOST_NAMES = 3


def require_same_names(reference: Collection[str], hypothesis: Collection[str], annotated: str) -> None:
    """Raises InputError, with both sides' names, where a recording is only in the hypothesis: nobody knows whether it
    has no speech. `annotated`: the mend where it has none."""
    if not (others := sorted({*hypothesis} - {*reference})):
        return
    mend = annotated
    if not {*reference} & {*hypothesis}:
        mend = "name them alike: in the 2nd column of RTTM, the 1st of STM and CTM, or by the file's name"
    raise InputError(f"the hypothesis has {some(others)}, the reference {some(sorted(reference))}; {mend}")


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(printable(one) for one in names[:_MOST_NAMES]) + more


def _read(source: str | Path, texts: bool = False) -> list[RecordingLabels]:
    """The labels of a file or folder; `texts`: beside others, those that can't hold any are passed over."""
    path = on_disk(source)
    if not path.exists():
        mend = nearest_path(path) or "; give one of labels, such as meeting.rttm"
        raise DataError(f"{path}: no such file or folder{looked_in(path)}{mend}")
    files = [path]
    if path.is_dir():
        listed = label_files(path)
        if texts and not listed:
            listed = {_PLAIN: files} if (files := list(audio_files(path, {".txt"}, problems=[]))) else {}
        kinds = before_transcripts(one for one in listed if not texts or one.name != "rttm") or [*listed]
        if len(kinds) != 1:
            names = ", ".join(one.title for one in kinds) or f"no labels ({suffixes()})"
            raise DataError(f"{path}: has {names}; give a folder with one kind of labels, or a file")
        files = listed[kinds[0]]
    return [one for file in files for one in _labelled(file, texts)]


def _format_of(file: Path, texts: bool) -> LabelFormat | None:
    """The format of a file of labels; `texts`: or of texts alone."""
    return label_format(file) or (_PLAIN if texts and _PLAIN.ends(file.name) else None)


def read_zones(path: str | Path) -> dict[str, Zones]:
    """Recording -> the zones of an RTTM file; none of other labels. Raises DataError."""
    path = Path(path)
    kind = None if path.is_dir() else label_format(path)
    if path.is_dir() or (kind is not None and kind.name != "rttm"):
        return {}
    return {same_name(name): zones for name, zones in nist.read_zones(path).items()}


def _labelled(file: Path, texts: bool) -> list[RecordingLabels]:
    try:
        kind = _format_of(file, texts) or (LABEL_FORMATS["rttm"] if _RTTM.match(_first_line(file)) else None)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}; give a file of labels that can be read") from error
    if kind is None:
        if by_name := [one.title for one in LABEL_FORMATS.values() if one.ends(file.name)]:
            raise DataError(f"{file}:1: neither {' nor '.join(by_name)} nor RTTM; give a file of labels, such as .rttm")
        raise DataError(f"{file}: not RTTM, nor a label file by its name; these end in {suffixes()}")
    return kind.read(file)


_RTTM = re.compile(r"\s*($|[;#]|[A-Z][A-Z/_-]*\s)")
"""How RTTM under any name begins."""


def _turn(segment: Segment) -> SpeakerTurn:
    return SpeakerTurn(segment.start, cast(float, segment.end), cast(str, segment.speaker))


def writer_for(path: str | Path) -> LabelFormat:
    """The format in which turns are written to `path`, by its suffix; RTTM without one. Raises InputError."""
    if not Path(path).suffix:
        return LABEL_FORMATS["rttm"]
    writable = [one for one in LABEL_FORMATS.values() if one.writer is not None]
    kind = next((one for one in writable if one.ends(Path(path).name)), None)
    if kind is None:
        raise InputError(f"{path}: turns are written as {suffixes(writable)}; choose one of these suffixes")
    return kind


def write_turns(path: str | Path, recording: str, turns: Sequence[SpeakerTurn], seconds: float | None = None) -> None:
    """Write the turns of a recording of so many seconds in the format of the suffix. Raises InputError."""
    write = writer_for(path).write
    assert write is not None
    write(Path(path), recording, sorted(turns), seconds)


# ---------------------------------------------------------------------------- What several readers need


def same_name(name: str) -> str:
    """The name with `_` for spaces, which some formats can't hold, and in one form of Unicode."""
    return re.sub(r"[\s_]+", "_", nfc(name))


PAUSE = 0.5
"""Seconds of silence that part two utterances of one speaker where only words have times."""


def utterances(words: Iterable[Segment]) -> list[Segment]:
    """Words, joined where the same speaker goes on within PAUSE seconds; sorted by start."""
    joined: list[Segment] = []
    latest: dict[str | None, int] = {}
    for word in sorted(words, key=lambda one: (one.start, one.end or 0.0)):
        at = latest.get(word.speaker)
        if at is not None and word.start - cast(float, joined[at].end) <= PAUSE:
            before = joined[at]
            end = max(cast(float, before.end), cast(float, word.end))
            joined[at] = replace(before, end=end, text=" ".join(filter(None, (before.text, word.text))) or None)
        else:
            latest[word.speaker] = len(joined)
            joined.append(word)
    return joined


def by_start(segments: Iterable[Segment]) -> list[Segment]:
    """Segments in the order in which they start, and else in theirs, as MeetEval has them."""
    return sorted(segments, key=lambda one: one.start)


_PARTICLES = "(?:(?:da|de|del|den|der|di|dos|du|la|van|von|zu) ){0,2}"
NAME = rf"[^\W\d_a-z][\w.'-]*(?: (?:{_PARTICLES}[^\W\d_a-z][\w.'-]*|\d+)){{0,2}}"
"""One to three words in capitals, or numbers behind the first: `Ann`, `Ann de Vries`, `SPEAKER_00`, `Speaker 1`."""
NO_NAME = re.compile(
    r"(?:questions?|answers?|notes?|warning|caution|tip|example|chapter|section|part|verse|page|step|day|lesson|exercise"
    r"|rule|q|a|at|by|from|until)\b.*",
    re.IGNORECASE,
)
"""What stands before a colon and names nobody."""
_PREFIX = re.compile(
    r"^\[?([^\W_](?:[^:：\]\n]{0,39}(?=\]?:)|[^:：\]\n]{0,7}(?=：)))(?:\]?:\s+|：\s*)(?=\S)", re.MULTILINE
)
_MOST_WORDS = 4
"""Of a speaker's name before a text."""


def voices(segments: Sequence[Segment]) -> list[Segment]:
    """Captions with the speakers that begin their lines (`Ann Lee: hello`, `[SPEAKER_00]: hello`), where at least half
    of the texts without a speaker begin so. Several speakers of a caption have its times."""
    texts = [one.text for one in segments if one.speaker is None and one.text]
    prefixes = [match[1].strip() for text in texts for match in _PREFIX.finditer(text) if _may_name(match)]
    first = [match[1].strip() for text in texts if (match := _PREFIX.match(text)) is not None and _may_name(match)]
    if not _are_names(first, len(texts)):
        return [replace(one, text=one.text and " ".join(one.text.split())) for one in segments]
    known = {*first, *filter(_is_like_a_name, prefixes)}
    speaker: str | None = None
    told = []
    for one in segments:
        for name, said in _turns_of(one.text or "", known) if one.speaker is None else [(None, one.text or "")]:
            speaker = name or speaker
            told.append(replace(one, speaker=one.speaker or speaker, text=" ".join(said.split()) or None))
    return told


def name_before(text: str) -> str | None:
    """What looks like a speaker's name before a text, such as Ann of `Ann: hello`."""
    match = _PREFIX.match(text)
    return match[1].strip() if match is not None and _may_name(match) and _is_like_a_name(match[1].strip()) else None


def _may_name(match: re.Match[str]) -> bool:
    return len(match[1].split()) <= _MOST_WORDS


def _are_names(first: Sequence[str], texts: int) -> bool:
    """Whether the words before colons with which texts begin are speakers: they return, or a few look like names."""
    if not first or 2 * len(first) < texts:
        return False
    return len({*first}) < len(first) or (len(first) <= 3 and all(map(_is_like_a_name, first)))


def _is_like_a_name(words: str) -> bool:
    return re.fullmatch(rf"{NAME}|\S+(?: \d+)?", words) is not None and not NO_NAME.fullmatch(words)


def _turns_of(text: str, known: Collection[str]) -> Iterator[tuple[str | None, str]]:
    """What each speaker of a caption says; without a name before it, who spoke before goes on."""
    marks = [one for one in _PREFIX.finditer(text) if _may_name(one) and (one.start() == 0 or one[1].strip() in known)]
    ends = [*(one.start() for one in marks), len(text)]
    if ends[0] > 0 or not marks:
        yield None, text[: ends[0]]
    for mark, end in zip(marks, ends[1:], strict=True):
        yield mark[1].strip(), text[mark.end() : end]
