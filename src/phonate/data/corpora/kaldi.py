"""Kaldi's data directories (https://kaldi-asr.org/doc/data_prep.html): wav.scp, segments, text, utt2spk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.annotations import seconds
from phonate.data.corpora._annotations import is_stereo, ordered
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import (
    Problem,
    Row,
    Segment,
    checked_row,
    corpus_format,
    in_any_form,
    is_file,
    malformed,
    official_split,
    printable,
)

_CHANNELS = {"a": 0, "b": 1, "1": 0, "2": 1}
_PARENTS = 4


def is_kaldi(path: Path) -> bool:
    """A folder with wav.scp, or with folders (train, dev, test) that have one."""
    return path.is_dir() and bool(_folders(path))


@corpus_format(is_kaldi, priority=70, unit="segment")
def kaldi_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording of wav.scp, with its utterances as segments; without `segments` the recording is one
    utterance. `reco2file_and_channel` chooses channels. Recordings that a command makes are refused: a list is data,
    and may not run a shell. Of several folders, each is read, and the ids begin with its name."""
    folders = _folders(path)
    if not folders:
        raise DataError(f"{path}: no wav.scp in it")
    for folder in folders:
        for row in _Folder(folder).rows():
            if isinstance(row, Row) and folder != path:
                inside = printable(folder.relative_to(path).as_posix())
                segments = tuple(replace(one, id=one.id and f"{inside}/{one.id}") for one in row.segments)
                row = replace(row, id=f"{inside}/{row.id}", segments=segments)
            yield row


def _folders(path: Path) -> list[Path]:
    if (path / "wav.scp").is_file():
        return [path]
    return sorted(file.parent for file in path.glob("*/wav.scp"))


class _Folder:
    """One data directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._split = folder.name if official_split(folder.name) else None
        self._speakers = self._table("utt2spk")
        self._texts = self._table("text")
        self._channels = self._table("reco2file_and_channel")
        self._sources = self._table("wav.scp")

    def _table(self, name: str) -> dict[str, str]:
        """Key -> the rest of its line; nothing where there is no such file."""
        if not (self._folder / name).is_file():
            return {}
        lines = (line.split(maxsplit=1) for line in read_lines(self._folder / name))
        return {fields[0]: fields[1].strip() if len(fields) > 1 else "" for fields in lines if fields}

    def rows(self) -> Iterator[Row | Problem]:
        """The recordings, and what is wrong with some."""
        utterances, bad = self._utterances()
        yield from bad.values()
        refused = {problem.id for problem in bad.values()}
        seen = set()
        for number, line in enumerate(read_lines(self._folder / "wav.scp"), start=1):
            place, fields = f"{self._folder / 'wav.scp'}:{number}", line.split(maxsplit=1)
            if not fields:
                continue
            if len(fields) < 2:
                yield malformed(place, "expected a recording and its file")
                continue
            name, source = fields[0], fields[1].strip()
            seen.add(name)
            if name not in refused:
                segments = utterances.get(name, []) if utterances is not None else [self._utterance(name)]
                yield self._row(name, source, ordered(segments), place)
        for name in (utterances or {}).keys() - seen:
            place = str(self._folder / "segments")
            yield Problem(name, place, "missing file", f"recording {name!r} is not in wav.scp")

    def _row(self, name: str, source: str, segments: tuple[Segment, ...], place: str) -> Row | Problem:
        if source.endswith("|") or source == "-":
            detail = f"made by a command ({source[:60]}); run it once and list the file that it makes"
            return Problem(name, place, "command", detail)
        channel = None
        if name in self._channels:
            fields = self._channels[name].split()
            channel = _CHANNELS.get(fields[-1].lower()) if len(fields) == 2 else None
            if channel is None:
                return malformed(place, f"reco2file_and_channel has {self._channels[name]!r}; give a file and A or B")
            # Most recipes make a file of each channel; the list then only says where it was once.
            if not is_stereo(self._file(source)):
                channel = None
        return checked_row(Row(name, self._file(source), segments, place, channel, split=self._split))

    def _utterances(self) -> tuple[dict[str, list[Segment]] | None, dict[str, Problem]]:
        """Recording -> utterances, None without a file `segments`; and for recordings with a bad line, the line."""
        if not (self._folder / "segments").is_file():
            return None, {}
        found: dict[str, list[Segment]] = {}
        bad: dict[str, Problem] = {}
        for number, line in enumerate(read_lines(self._folder / "segments"), start=1):
            fields, place = line.split(), f"{self._folder / 'segments'}:{number}"
            if not fields:
                continue
            try:
                id, recording, start = fields[0], fields[1], seconds(fields[2])
                end = None if float(fields[3]) == -1.0 else seconds(fields[3])  # -1: to the end of the recording
                if end is not None and start >= end:
                    raise ValueError
            except (IndexError, ValueError):
                name = fields[1] if len(fields) > 1 else place
                bad[name] = Problem(name, place, "malformed row", "expected utterance, recording, start and end")
                continue
            found.setdefault(recording, []).append(replace(self._utterance(id), start=start, end=end))
        return found, bad

    def _utterance(self, id: str) -> Segment:
        return Segment(speaker=self._speakers.get(id) or None, text=self._texts.get(id) or None, id=id)

    def _file(self, source: str) -> Path:
        """The file of wav.scp: relative to the folder, or to one above it, as Kaldi's recipes run there."""
        file = Path(source)
        if file.is_absolute():
            return file
        roots = [self._folder, *list(self._folder.resolve().parents)[:_PARENTS]]
        files = (root / file for root in roots if is_file(root / file))
        spelled = (in_any_form(root, source) for root in roots if not source.isascii())
        return next(filter(None, chain(files, spelled)), self._folder / file)
