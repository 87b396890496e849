"""How long each token of a recording lasts: pocketsphinx, TextGrids, espeak-ng's own times.

The aligner may find a pronunciation that differs from ours. `pronunciations` then returns the words with the
aligner's phones. A file that does not match its text is an error.

`phonate.workflows.demo.embedded.say` writes them.

The aligner uses our pronunciations as its dictionary, so its phones match ours one to one.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.config.registry import looked_in, nearest_path
from phonate.pretrained import Pocketsphinx
from phonate.text.phonemes import Word

# -------------------------------------------------------------------------- From times to whole frames

Durations = NDArray[np.int64]
Aligner = Callable[[int, Sequence[Word]], Durations]
"""Position of a recording in the corpus, its words -> frames of each token. Raises DataError where it can't."""

_ROUNDING = 1e-6
"""Seconds by which times may fall."""


def frames_between(seconds: Sequence[float], frames: int, frames_per_second: float) -> Durations:
    """Frames (L,) of each of L tokens, of which number i + 1 begins at `seconds[i]` (L - 1 times that never fall).

    The first token begins with the first frame and the last ends with the last, so they sum to `frames`.
    """
    starts = np.asarray(seconds, dtype=np.float64)
    if (np.diff(starts) < -_ROUNDING).any():
        raise ValueError("a token begins before the one in front of it")
    # of two times that are the same but for rounding, one may lie just under a half frame and the other on it
    inner = np.rint(np.maximum.accumulate(starts) * frames_per_second).astype(np.int64)
    return np.diff(np.concatenate([[0], np.clip(inner, 0, frames), [frames]]))


# ----- Praat TextGrid files with tiers `words` and `phones`, as written by the Montreal Forced Aligner


@dataclass(frozen=True)
class Span:
    """A label from `start` to `end`, in seconds; an empty label is a pause."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Grid:
    """One file: its words and phones in order."""

    path: Path
    words: list[Span]
    phones: list[Span]


def read(path: Path) -> Grid:
    """The two tiers of a file. Raises DataError for an invalid file."""
    from phonate.data.label_documents import textgrid_tiers

    listed = textgrid_tiers(path)
    tiers = {}
    for tier in ("words", "phones"):
        # MFA calls the tiers of a recording with several speakers "NAME - words"
        named = [one for one in listed if one.name == tier or one.name.endswith(f" - {tier}")]
        if len(named) != 1:
            raise DataError(f"{path}: has {len(named)} tiers called {tier}; expected one")
        tiers[tier] = [Span(start, end, label.strip()) for start, end, label in named[0].entries if label.strip()]
    return Grid(path, tiers["words"], tiers["phones"])


@dataclass(frozen=True)
class TextGridFiles:
    """The files of a corpus."""

    paths: dict[int, Path]
    """Position of a recording -> its file."""
    problems: list[str]
    """A line for each recording without one."""


def in_folder(folder: Path, ids: Mapping[int, str]) -> TextGridFiles:
    """The file of each recording in `ids` (position and id): `<id>.TextGrid` in `folder` or a subfolder (MFA makes
    one for each speaker).

    Raises DataError for a folder that does not exist.
    """
    if not folder.is_dir():
        raise DataError(f"data.alignments: {folder}: no such folder{looked_in(folder)}{nearest_path(folder)}")
    by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.TextGrid")):
        by_name.setdefault(path.stem, []).append(path)
    paths: dict[int, Path] = {}
    problems: list[str] = []
    for position, identity in ids.items():
        try:
            paths[position] = _chosen(folder, identity, by_name)
        except DataError as error:
            problems.append(str(error))
    return TextGridFiles(paths, problems)


def _chosen(folder: Path, identity: str, by_name: Mapping[str, Sequence[Path]]) -> Path:
    direct = folder / f"{identity}.TextGrid"
    if direct.is_file():
        return direct
    # an id may include the speaker's folder, so that several files may match its last part
    candidates = by_name.get(identity.rsplit("/", 1)[-1], [])
    if len(candidates) > 1:
        raise DataError(
            f"{identity}: several TextGrids have its name ({candidates[0]}, {candidates[1]}); ids must be unique"
        )
    if not candidates:
        raise DataError(f"{identity}: has no TextGrid in {folder}")
    return candidates[0]


def beside(recordings: Mapping[int, Path]) -> TextGridFiles:
    """The TextGrid next to each recording in `recordings` (position and path)."""
    paths = {position: recording.with_suffix(".TextGrid") for position, recording in recordings.items()}
    there = {position: path for position, path in paths.items() if path.is_file()}
    missing = [path for position, path in paths.items() if position not in there]
    return TextGridFiles(
        there, [f"{path}: no such file; durations: espeak needs speech made by espeak" for path in missing]
    )


def fingerprint(paths: Sequence[Path]) -> str:
    """Fingerprint of every file's path, size and modification time."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        status = path.stat()
        digest.update(repr((str(path), status.st_size, status.st_mtime_ns)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


# --------------------- Durations from TextGrids of the Montreal Forced Aligner, one for each recording

_SILENCES = {"", "sil", "sp", "silence", "<eps>", "<s>", "</s>", "<sil>"}
_UNKNOWN = {"<unk>", "spn", "<spn>", "oov", "<oov>"}
_LONGER_SECONDS = 0.25
"""Seconds by which a TextGrid may be longer than its recording."""


@dataclass(frozen=True)
class _Group:
    """Words of the text, and the matching part of the TextGrid."""

    words: list[Word]
    phones: list[Span]


class TextGridTimes:
    """The aligner of a corpus: reads a TextGrid for each recording."""

    def __init__(
        self,
        paths: Mapping[int, Path],
        ids: Sequence[str],
        lengths: NDArray[np.int64],
        frames_per_second: float,
        inventory: Collection[str],
    ) -> None:
        """`paths`: the TextGrid of each position; `lengths`: its frames; `inventory`: all known phones."""
        self._paths = paths
        self._ids = ids
        self._lengths = lengths
        self._frames_per_second = frames_per_second
        self._inventory = frozenset(inventory)

    def pronunciations(self, position: int, words: Sequence[Word]) -> list[Word]:
        """`words` with the phones of the TextGrid. Raises DataError naming the recording if they differ."""
        return [word for group in self._groups(position, words) for word in self._words(position, group)]

    def __call__(self, position: int, words: Sequence[Word]) -> Durations:
        """Frames of each token; `words` are the result of `pronunciations`. Pauses belong to the preceding boundary."""
        starts: list[float] = []
        for group in self._groups(position, words):
            at = 0
            for word in group.words:
                phones = group.phones[at : at + len(word.phones)]
                at += len(word.phones)
                starts += [phone.start for phone in phones]
                starts.append(phones[-1].end)
        return frames_between(starts, int(self._lengths[position]), self._frames_per_second)

    def _groups(self, position: int, words: Sequence[Word]) -> list[_Group]:
        grid = read(self._paths[position])
        seconds = int(self._lengths[position]) / self._frames_per_second
        if grid.phones and grid.phones[-1].end > seconds + _LONGER_SECONDS:
            raise DataError(
                f"{self._ids[position]}: its TextGrid ends at {grid.phones[-1].end:.2f} s, the recording lasts "
                f"{seconds:.2f} s ({grid.path})"
            )
        try:
            return list(_grouped(words, grid))
        except DataError as error:
            raise DataError(f"{self._ids[position]}: {error} ({grid.path})") from None

    def _words(self, position: int, group: _Group) -> list[Word]:
        """The words of a group, with the phones of the TextGrid if these differ in more than stress."""
        labels = [phone.label for phone in group.phones]
        own = [phone for word in group.words for phone in word.phones]
        if _plain(labels) == _plain(own):
            return group.words
        near = _distance(_plain(labels), _plain(own)) <= len(labels) / 2
        if len(group.words) == 1 and near and self._inventory.issuperset(labels):
            return [replace(group.words[0], phones=tuple(labels))]
        text = " ".join(word.text for word in group.words)
        raise DataError(
            f"{self._ids[position]}: the word {text!r} is {' '.join(own)} here, and {' '.join(labels) or 'nothing'} in "
            f"its TextGrid ({self._paths[position]})"
        )


def _grouped(words: Sequence[Word], grid: Grid) -> Iterator[_Group]:
    """The smallest groups of words with equal spelling (the aligner may write "thursday 's" or "well-known")."""
    spoken = [span for span in grid.words if span.label.lower() not in _SILENCES]
    at = 0
    pending: list[Word] = []
    for number, word in enumerate(words):
        pending.append(word)
        spelling = "".join(_letters(one.text) for one in pending)
        end, spelled = at, ""
        unknown = at < len(spoken) and spoken[at].label.lower() in _UNKNOWN
        if unknown:
            end, spelled = at + 1, spelling
        while end < len(spoken) and len(spelled) < len(spelling):
            spelled += _letters(spoken[end].label)
            end += 1
        while spelled == spelling and end < len(spoken) and not _letters(spoken[end].label):  # "'" by itself
            if spoken[end].label.lower() in _UNKNOWN:
                break
            end += 1
        if spelled == spelling:
            yield _Group(pending, [phone for span in spoken[at:end] for phone in _phones_in(span, grid)])
            at, pending = end, []
        elif not spelled.startswith(spelling) or number + 1 == len(words):
            instead = spoken[at].label if at < len(spoken) else "nothing"
            raise DataError(f"the text has the word {pending[0].text!r} where its TextGrid has {instead!r}")
    if at < len(spoken):
        raise DataError(f"its TextGrid has the word {spoken[at].label!r} after the end of the text")


def _phones_in(word: Span, grid: Grid) -> list[Span]:
    """The phones of a word, without pauses in it."""
    inside = [span for span in grid.phones if word.start <= (span.start + span.end) / 2 < word.end]
    return [span for span in inside if span.label.lower() not in _SILENCES]


def _letters(word: str) -> str:
    """Spelling for comparison: case-folded, Unicode-normalised, only letters and digits."""
    return "".join(letter for letter in unicodedata.normalize("NFC", word).casefold() if letter.isalnum())


def _plain(phones: Sequence[str]) -> list[str]:
    """The phone without ARPAbet stress."""
    return [phone.rstrip("012") or phone for phone in phones]


def _distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Insertions, deletions and substitutions between two sequences."""
    row = list(range(len(other) + 1))
    for number, mine in enumerate(one, start=1):
        before, row[0] = row[0], number
        for place, theirs in enumerate(other, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (mine != theirs))
    return row[-1]


# -------- Exact durations of speech synthesised by espeak-ng, from the TextGrid next to each recording

_Timed = tuple[str, float, float]
"""A phone with its start and end in seconds."""
_MARKS = {"Mn", "Lm", "Sk"}
"""Unicode's categories of combining marks, modifier letters such as ˈ, ː and ʲ, and symbols such as the hook of ˞."""
_LEAST_HEARD = 0.9
"""Minimum share of phones that espeak must have reported."""


def starts(words: Sequence[Word], phones: Sequence[Span], length: float) -> list[float]:
    """Start time of each token except the first; `phones` are those of a recording of `length` seconds.

    Pauses between words belong to the boundary, pauses within a word to the preceding phone. Raises DataError if the
    phones differ from those of the words.
    """
    begins = _matched([phone for word in words for phone in word.phones], phones)
    times: list[float] = []
    at = 0
    for word in words:
        times += [start for _, start, _ in begins[at : at + len(word.phones)]]
        at += len(word.phones)
        times.append(begins[at - 1][2] if at else 0.0)
    return [min(second, length) for second in times]


def _matched(phones: Sequence[str], spans: Sequence[Span]) -> list[_Timed]:
    """Times of the `phones`.

    espeak does not report a few phones (the l of "twelve"); such a phone gets half of the preceding one.
    """
    reported = [phone for span in spans for phone in _code_points(span)]
    matched: list[_Timed] = []
    at = 0
    for phone in phones:
        if at < len(reported) and reported[at][0] == phone:
            matched.append(reported[at])
            at += 1
        elif matched:
            before, start, end = matched[-1]
            matched[-1:] = [(before, start, (start + end) / 2), (phone, (start + end) / 2, end)]
    if at < len(reported) or len(reported) < _LEAST_HEARD * len(phones) or len(matched) < len(phones):
        reported_phones = "".join(phone for phone, _, _ in reported)
        raise DataError(f"espeak said {reported_phones!r}, the text has {''.join(phones)!r}")
    return matched


def _code_points(span: Span) -> list[_Timed]:
    """(phone, start, end) of each code point of an event: stress and combining marks have no duration, the
    others are equally long."""
    from phonate.text import espeak

    phones = espeak.plain(span.label)
    timed = [not is_silent_mark(phone) for phone in phones]
    share = (span.end - span.start) / max(1, sum(timed))
    parts, at = [], span.start
    for phone, lasts in zip(phones, timed, strict=True):
        end = at + share * lasts
        parts.append((phone, at, end))
        at = end
    return parts


def is_silent_mark(phone: str) -> bool:
    """Whether a code point of espeak's IPA modifies its neighbour (stress, length, diacritics)."""
    return all(unicodedata.category(letter) in _MARKS for letter in phone)


class EspeakTimes:
    """The aligner of a corpus: reads the TextGrid next to each recording."""

    def __init__(self, paths: Mapping[int, Path], lengths: NDArray[np.int64], frames_per_second: float) -> None:
        """`paths`: the TextGrid of each position; `lengths`: its frames."""
        self._paths = paths
        self._lengths = lengths
        self._frames_per_second = frames_per_second

    def __call__(self, position: int, words: Sequence[Word]) -> Durations:
        """Frames of each token."""
        frames = int(self._lengths[position])
        grid = read(self._paths[position])
        seconds = starts(words, grid.phones, frames / self._frames_per_second)
        return frames_between(seconds, frames, self._frames_per_second)


# -------------------- Durations by pocketsphinx: forced alignment with the English models in its wheel


class PocketsphinxAligner:
    """Aligns recordings with ARPAbet phones."""

    def __init__(self, vocabulary: Sequence[Sequence[Word]]) -> None:
        """`vocabulary`: the words of all recordings to be aligned."""
        self._vocabulary = vocabulary
        self._aligner = Pocketsphinx(word for words in vocabulary for word in words)

    def __reduce__(self) -> tuple[type[PocketsphinxAligner], tuple[Sequence[Sequence[Word]]]]:
        """Another process makes a decoder of its own."""
        return PocketsphinxAligner, (self._vocabulary,)

    def __call__(
        self, waveform: FloatArray, sample_rate: int, words: Sequence[Word], frames: int, frames_per_second: float
    ) -> Durations:
        """Frames of each token. Raises DataError if the words can't be found in the recording."""
        aligned = self._aligner(waveform, sample_rate, words)
        starts: list[float] = []
        for edges in aligned:
            starts += edges  # the last one is the start of the boundary after the word
        return frames_between(starts, frames, frames_per_second)
