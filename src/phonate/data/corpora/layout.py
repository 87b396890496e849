"""What the folders of a corpus say of its recordings: their speakers and splits."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from phonate.config.errors import DataError, to_set
from phonate.data.corpora.names import DATE, FOLDERS, not_people
from phonate.data.corpora.rows import official_split, printable, split_among

logger = logging.getLogger("phonate")

_KIND = re.compile(
    r"(wavs?|waves?|audios?|sounds?|recordings?|clips|mp3s?|flacs?|oggs?|opus|sph|data)([_ -]?\d\w*)?", re.IGNORECASE
)
"""Folders called after what is in them, such as wav48_silence_trimmed."""
_GENDER = re.compile(r"(fe)?males?|(wo)?m[ae]n", re.IGNORECASE)
_LABEL = re.compile(r"(spk|speaker|id|p|s|g)?[_-]?\d{2,}", re.IGNORECASE)
"""What speakers are called in corpora of many."""
_VOXCELEB = re.compile(r"id\d{5}")
"""Speakers of VoxCeleb, in whose folders are those of videos."""


def _named(folders: Sequence[str]) -> tuple[str, ...]:
    """Folders but for those called after what is in them."""
    return tuple(part for part in folders if not _KIND.fullmatch(part))


class Layout:
    """Which of the folders that a recording lies in names its speaker, and which its split."""

    def __init__(self, root: Path, listed: Sequence[Path], at: int | None) -> None:
        self._root = root
        self._name = root.resolve().name
        self._at = at
        self._cores: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.inside = [file.relative_to(root) for file in listed]
        """The recordings by their paths in the folder."""
        self._beside: dict[tuple[str, ...], set[str]] = {}
        """The folders in a folder, but for those called after what is in them."""
        for folders in map(_named, {inside.parts[:-1] for inside in self.inside}):
            for at, part in enumerate(folders):
                self._beside.setdefault(folders[:at], set()).add(part)
        # Folders with recordings of one speaker, where all of them are called after splits and one is for training
        # (train/1.wav, test/2.wav); else such names are those of speakers.
        direct = {core for inside in self.inside if len(core := self._core(inside)) == 1}
        named = {official_split(core[0]) for core in direct}
        self._splits = direct if "train" in named and None not in named else set()
        lowest = {official_split(core[-1]) for inside in self.inside if (core := self._core(inside))}
        self._lowest = "train" in lowest and None not in lowest
        """Whether the lowest folders are those of splits (ann/train/1.wav)."""

    def _core(self, inside: Path) -> tuple[str, ...]:
        """The folders of a recording but those called after what is in them, and days (2024-03-01, 2024/03/01)."""
        folders = inside.parts[:-1]
        if folders not in self._cores:
            core = _named(folders)
            while days := next((n for n in (1, 2, 3) if self._is_day(core, n)), None):
                core = core[:-days]
            self._cores[folders] = core
        return self._cores[folders]

    def _is_day(self, core: tuple[str, ...], count: int) -> bool:
        """Whether the lowest folders, so many, are those of a day or a month, or of a year among nothing but such in a
        folder that is not a split's: else 1988 may be a speaker, and 1988/147956 is one with a chapter."""
        day, below, above = "-".join(core[-count:]), core[-count:][1:], core[:-count]
        if len(core) < count or DATE.fullmatch(day) is None or any(len(part) != 2 for part in below):
            return False
        years = all(map(DATE.fullmatch, self._beside[above])) and not all(map(official_split, above))
        return years or len(day) > len("1988")

    def speaker(self, inside: Path) -> str:
        """What the speaker of a recording is called. Raises DataError where it has no folder of the number given."""
        if self._at is not None:
            above = (self._name, *inside.parts[:-1])
            if self._at >= len(above):
                raise DataError(f"data.speaker_folder={self._at}: {self._root / inside} is in {len(above) - 1} folders")
            return above[self._at]
        core = self._core(inside)
        if self._lowest:
            core = core[:-1]
        if not core or core in self._splits:
            return self._name
        return self._certain(inside) or core[-1]

    def is_certain(self, inside: Path) -> bool:
        """Whether more than the place of a folder says that it names the speaker."""
        return self._at is not None or self._certain(inside) is not None

    def _certain(self, inside: Path) -> str | None:
        """The folder of a speaker that a recording is called after (103/1241/103_1241_1.wav, as in LibriTTS and MLS),
        that is one of VoxCeleb's, or that lies in one called male or female, with others in it."""
        *above, _ = core = self._core(inside) or ("",)
        for at, part in enumerate(above):
            if _GENDER.fullmatch(part):
                return core[at + 1]
            if _VOXCELEB.fullmatch(part):
                return part
            called = inside.name.startswith((f"{part}_", f"{part}-"))
            # 1998/15444/1998_15444_7 is a speaker's, 2024/03/2024-03-01 none's.
            year = DATE.fullmatch(part) and not (
                len(core[at + 1]) > 2 and inside.name[len(part) + 1 :].startswith(core[at + 1])
            )
            if called and _LABEL.fullmatch(part) and not year:
                return part
        return None

    def split(self, inside: Path) -> str | None:
        """The official split of a recording: of train/1.wav where such folders are splits, and of train/ann/1.wav."""
        core = self._core(inside)
        return core[-1] if core in self._splits or (core and self._lowest) else split_among(core[:-1])

    def report(self, unnamed: Sequence[Path]) -> None:
        """Warns where the speakers of recordings that nothing but folders names may be called after other folders, or
        after none."""
        files = [inside for inside in unnamed if self._certain(inside) is None]
        cores = [self._core(inside) for inside in files]
        if self._at is not None or self._lowest or not cores:
            return
        for at in range(max(map(len, cores)) - 1):
            names = {core[at] for core in cores if len(core) > at + 1 and official_split(core[at]) is None}
            if len(names) > 1:
                example = next(inside for inside in files if self._core(inside)[at : at + 1] == (min(names),))
                number = example.parts.index(min(names)) + 1
                _report(self._root, self._core(example)[-1], min(names), number)
                return
        self._report_others({core[-1]: inside for core, inside in zip(cores, files, strict=True) if core})
        days = {inside.parts[:-1] for core, inside in zip(cores, files, strict=True) if not core}
        days = {folders for folders in days if any(map(DATE.fullmatch, folders))}
        if len(days) > 1:
            number = max(at for at, part in enumerate(min(days), start=1) if not _KIND.fullmatch(part))
            what = f"the folders seem to be days, so all is of one speaker ({self._root.resolve().name})"
            _report_kind(self._root, what, "each is of another", number)

    def _report_others(self, named: Mapping[str, Path]) -> None:
        """Warns where the folders that name the speakers do not seem to be called after people."""
        kind = not_people(named)
        if kind is not None:
            first = min(named)
            above = (self._root.resolve().name, *named[first].parts[:-1])
            number = above.index(first, 1) - 1
            what = f"the folders name the speakers ({', '.join(sorted(named)[:3])}), but seem to be {kind}"
            _report_kind(self._root, what, f"all are of one ({above[number]})", number)


def tell_speakers_in_folders(path: Path, recordings: Sequence[Path], speaker: str) -> bool:
    """Whether folders may name the speakers of recordings that a list in `path` says to be of one, which is told."""
    if not all(file.is_relative_to(path) for file in recordings):
        return False
    layout = Layout(path, recordings, None)
    names = {layout.speaker(inside) for inside in layout.inside}
    if len(names) < 2 or not_people(names) is not None:
        return False
    _report_folders(path, speaker, tuple(sorted(names)))
    return True


@cache
def _report_folders(path: Path, speaker: str, names: tuple[str, ...]) -> None:
    logger.warning(
        "%s: one speaker: %s; if the folders of its recordings name them (%s: %d), %s",
        *(printable(str(path)), speaker, printable(", ".join(names[:3])), len(names)),
        to_set(f"data.format=folder, else data.speaker={speaker}", "write them into its list"),
    )


@cache
def _report_kind(root: Path, what: str, otherwise: str, number: int) -> None:
    """Says, once, what folders seem to be called after, and how others name the speakers."""
    logger.warning(
        "%s: %s; if %s, %s",
        *(printable(str(root)), printable(what), printable(otherwise)),
        to_set(f"data.speaker_folder={number}", FOLDERS),
    )


@cache
def _report(root: Path, speaker: str, other: str, number: int) -> None:
    """Says, once, which folders name the speakers, and how others would."""
    logger.warning(
        "%s: the lowest folders name the speakers (%s); if those above do (%s), %s",
        printable(str(root)),
        printable(speaker),
        printable(other),
        to_set(f"data.speaker_folder={number}", FOLDERS),
    )
