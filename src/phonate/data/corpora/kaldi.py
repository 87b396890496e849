"""Kaldi's data directories (wav.scp, segments, text, utt2spk), and the decoders that they read recordings through."""

from __future__ import annotations

import functools
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from phonate.config.errors import DataError
from phonate.config.words import number_of
from phonate.data.annotations import clock_seconds, seconds
from phonate.data.corpora.annotation_files import CHANNELS, is_stereo
from phonate.data.corpora.lists import read_lines, report_left_out
from phonate.data.corpora.rows import (
    Problem,
    Row,
    Segment,
    cached_recording,
    checked_row,
    corpus_format,
    in_any_form,
    is_file,
    malformed,
    printable,
    split_among,
)
from phonate.data.labels import by_start

logger = logging.getLogger("phonate")

# ----- wav.scp, segments, text, utt2spk, reco2file_and_channel (https://kaldi-asr.org/doc/data_prep.html)

_PARENTS = 4


def is_kaldi(path: Path) -> bool:
    """A folder with wav.scp, or with folders (train, dev, test; data/train; ESPnet's dump/raw/train) that have one."""
    return path.is_dir() and bool(_kaldi_folders(path))


@corpus_format(is_kaldi, priority=70, unit="segment")
def kaldi_rows(path: Path, cache: Path) -> Iterator[Row | Problem]:
    """A row for each recording of wav.scp, with its utterances as segments; without `segments` the recording is one
    utterance. `reco2file_and_channel` chooses channels. Of a recording that a plain decoder makes, the file is read
    that it decodes (`part_of_pipe`); other commands are refused: a list is data, and may not run a shell. Recordings in
    archives (`x.ark:12`) are written to `cache`, once. Of several folders, each is read, and the ids begin with its
    name."""
    folders = _kaldi_folders(path)
    if not folders:
        raise DataError(f"{path}: no wav.scp in it")
    for folder in folders:
        for row in _KaldiFolder(folder, cache).rows():
            if isinstance(row, Row) and folder != path:
                inside = printable(folder.relative_to(path).as_posix())
                segments = tuple(replace(one, id=one.id and f"{inside}/{one.id}") for one in row.segments)
                row = replace(row, id=f"{inside}/{row.id}", segments=segments)
            yield row


def _kaldi_folders(path: Path) -> list[Path]:
    if (path / "wav.scp").is_file():
        return [path]
    inside = (sorted(path.glob(f"{folder}*/wav.scp")) for folder in ("", "data/", "dump/raw/"))
    return [file.parent for file in next(filter(None, inside), [])]


class _KaldiFolder:
    """One data directory."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder, self._cache = folder, cache
        self._doubts: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """File -> key of which it says two things -> where."""
        self._split = split_among([folder.name])
        self._speakers = self._table("utt2spk")
        self._texts = self._table("text")
        self._channels = self._table("reco2file_and_channel")
        self._sources = self._table("wav.scp")

    def _table(self, name: str) -> dict[str, str]:
        """Key -> the rest of its line; nothing where there is no such file."""
        table: dict[str, tuple[str, int]] = {}
        file = self._folder / name
        for number, line in enumerate(read_lines(file) if file.is_file() else [], start=1):
            key, value = (*line.split(maxsplit=1), "", "")[:2]
            first, above = table.setdefault(key, (value.strip(), number))
            if first.split() != value.split():
                self._doubted(name, key, above, number)
        return {key: value for key, (value, _) in table.items() if key}

    def _doubted(self, name: str, key: str, above: int, number: int) -> None:
        differ = f"lines {above} and {number} of {self._folder / name} differ; keep one of them"
        self._doubts[name].setdefault(key, printable(differ))

    def rows(self) -> Iterator[Row | Problem]:
        """The recordings, and what is wrong with some."""
        utterances, bad = self._utterances()
        yield from bad.values()
        refused = {problem.id for problem in bad.values()}
        names = set()
        for number, line in enumerate(read_lines(self._folder / "wav.scp"), start=1):
            place, fields = f"{self._folder / 'wav.scp'}:{number}", line.split(maxsplit=1)
            if not fields:
                continue
            if len(fields) < 2:
                yield malformed(place, "expected a recording and its file")
                continue
            name, source = fields[0], fields[1].strip()
            names.add(name)
            if name not in refused:
                segments = utterances.get(name, []) if utterances is not None else [self._utterance(name)]
                doubt = self._doubt(name, segments)
                if doubt is not None:
                    refused.add(name)
                    yield Problem(name, place, "several lines", doubt)
                    continue
                yield self._row(name, source, tuple(by_start(segments)), place)
        for name in (utterances or {}).keys() - names:
            place = str(self._folder / "segments")
            yield Problem(name, place, "missing file", f"recording {name!r} is not in wav.scp")
        spoken = names if utterances is None else {one.id for some in utterances.values() for one in some}
        lost = [id for id in self._texts if id not in spoken]
        if lost and not bad:
            _report_unspoken(self._folder, len(lost), lost[0])
        if several := self._doubts["text"]:
            report_left_out(self._folder, len(several), *next(iter(several.items())))

    def _row(self, name: str, source: str, segments: tuple[Segment, ...], place: str) -> Row | Problem:
        try:
            part = part_of_pipe(source) if source.endswith("|") or source == "-" else Part(source)
        except ValueError as error:
            detail = f"made by a command ({source[:60]}), {error}; run it once and list the file that it makes"
            return Problem(name, place, "command", detail)
        file, channel = self._file(part.file), part.channel
        archive = _ARCHIVE.fullmatch(part.file)
        if archive is not None:
            try:
                file = cached_recording(archive_member(self._file(archive[1]), int(archive[2])), self._cache)
            except (OSError, ValueError) as error:
                detail = (
                    f"in an archive ({part.file[-60:]}) that can't be read: {getattr(error, 'strerror', None) or error}"
                )
                return Problem(name, place, "archive", f"{detail}; list the recordings as files")
        if channel is None and name in self._channels:
            fields = self._channels[name].split()
            channel = CHANNELS.get(fields[-1].lower()) if len(fields) == 2 else None
            if channel is None:
                return malformed(place, f"reco2file_and_channel has {self._channels[name]!r}; give a file and A or B")
        # Most recipes make a file of each channel; the list then only says where it was once.
        if channel is not None and not is_stereo(file):
            channel = None
        moved = tuple(
            replace(one, start=one.start + part.start, end=None if one.end is None else one.end + part.start)
            for one in segments
        )
        return checked_row(Row(name, file, moved, place, channel, part.start, part.end, self._split))

    def _utterances(self) -> tuple[dict[str, list[Segment]] | None, dict[str, Problem]]:
        """Recording -> utterances, None without a file `segments`; and for recordings with a bad line, the line."""
        if not (self._folder / "segments").is_file():
            return None, {}
        utterances: dict[str, list[Segment]] = {}
        bad: dict[str, Problem] = {}
        places: dict[str, tuple[object, int]] = {}
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
            first, above = places.setdefault(id, ((recording, start, end), number))
            if first != (recording, start, end):
                self._doubted("segments", id, above, number)
            elif above != number:
                continue
            utterances.setdefault(recording, []).append(replace(self._utterance(id), start=start, end=end))
        return utterances, bad

    def _utterance(self, id: str) -> Segment:
        left_out = self._doubts["text"].get(id)
        text = None if left_out else self._texts.get(id) or None
        return Segment(speaker=self._speakers.get(id) or None, text=text, id=id, no_text=left_out)

    def _doubt(self, name: str, segments: Sequence[Segment]) -> str | None:
        """Why it is not known which recording is meant, or who speaks in it."""
        keys = [("wav.scp", name), ("reco2file_and_channel", name)]
        keys += [(file, str(one.id)) for one in segments for file in ("segments", "utt2spk")]
        return next((f"{key}: {doubt}" for file, key in keys if (doubt := self._doubts[file].get(key))), None)

    def _file(self, source: str) -> Path:
        """The file of wav.scp: relative to the folder, or to one above it, as Kaldi's recipes run there."""
        file = Path(source)
        if file.is_absolute():
            return file
        roots = [self._folder, *list(self._folder.resolve().parents)[:_PARENTS]]
        files = (root / file for root in roots if is_file(root / file))
        spelled = (in_any_form(root, source) for root in roots if not source.isascii())
        return next(filter(None, chain(files, spelled)), self._folder / file)


@functools.cache
def _report_unspoken(folder: Path, count: int, example: str) -> None:
    logger.warning(
        "%s: left out: %s of utterances that are not listed, such as %s",
        *(printable(str(folder)), number_of(count, "text"), printable(example)),
    )


# ------- Recordings that a decoder makes: the file is read here, and the command never runs


@dataclass(frozen=True)
class Part:
    """A recording, or what a decoder takes of it."""

    file: str
    channel: int | None = None
    """Counted from 0. None: all of them."""
    start: float = 0.0
    """Seconds."""
    end: float | None = None


_ARCHIVE = re.compile(r"(.*):(\d+)")


def archive_member(file: Path, at: int) -> bytes:
    """The recording at a byte of an archive: a WAV, as Kaldi keeps them, or any file with its length before it, as
    kaldiio does. Raises OSError, and ValueError for what else may be there, such as features."""
    with file.open("rb") as opened:
        opened.seek(at)
        head = opened.read(8)
        if head.startswith(b"RIFF"):
            size = 8 + int.from_bytes(head[4:], "little")
            opened.seek(at)
        elif head.startswith(b"AUDIO"):
            opened.seek(at + 6)
            size = int.from_bytes(opened.read(head[5]), "little")
        else:
            raise ValueError("no recording is there")
        content = opened.read(size)
        if len(content) < size:
            raise ValueError("it ends too early")
        return content


_QUIET = re.compile(r"2\s*>\s*(/dev/null|&1)")
_STDIN, _STDOUT = ("-", "pipe:0", "pipe:", "/dev/stdin"), ("-", "pipe:1", "pipe:", "/dev/stdout", "-p")


def part_of_pipe(command: str) -> Part:
    """What the pipe at the end of a line of wav.scp decodes: `flac -c -d -s x.flac |`, `sph2pipe -f wav -c 1 x.sph |`,
    `sox x.mp3 -t wav - trim 5 10 |`, `ffmpeg -i x.m4a -ac 1 -f wav - |`, and several in a row. Rates and sample
    formats are left to the reader.

    Raises ValueError that says what keeps it from being read without running it.
    """
    first, *others = map(_stage, _stages(command))
    if first.file in _STDIN:
        raise ValueError("which reads standard input")
    return functools.reduce(_narrowed, others, first)


def _stages(command: str) -> list[list[str]]:
    """The words of each program before a `|`."""
    tokens = shlex.shlex(_QUIET.sub("", command), posix=True, punctuation_chars="|;&<>()$`")
    tokens.whitespace_split = True
    tokens.commenters = ""
    stages: list[list[str]] = [[]]
    for token in tokens:
        if token == "|":
            stages.append([])
        elif set(token) <= set("|;&<>()$`"):
            raise ValueError(f"which needs a shell for {token!r}")
        else:
            stages[-1].append(token)
    if len(stages) < 2 or stages.pop():
        raise ValueError("which does not say what it reads")
    return stages


def _narrowed(part: Part, following: Part) -> Part:
    """What a program takes of what the one before it takes."""
    if following.file not in _STDIN:
        raise ValueError(f"which then reads {following.file}")
    if (following.start, following.end) != (0.0, None):
        if (part.start, part.end) != (0.0, None):
            raise ValueError("which cuts twice")
        part = replace(part, start=following.start, end=following.end)
    if following.channel is not None:
        if part.channel is not None:
            raise ValueError("which takes a channel twice")
        part = replace(part, channel=following.channel)
    return part


def _stage(words: Sequence[str]) -> Part:
    name = words[0].rpartition("/")[2] if words else ""
    if name not in _DECODERS:
        raise ValueError(f"of which {name!r} is none of {', '.join(_DECODERS)}")
    return _DECODERS[name](words[1:])


def _options(words: Sequence[str], valued: Sequence[str], flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options and what is none. Raises ValueError for others than `valued` and `flags`."""
    options: dict[str, str] = {}
    plain: list[str] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word == "-":
            plain.append(word)
        elif word in valued:
            options[word] = next(left, "")
        elif "=" in word and word.partition("=")[0] in valued:
            name, _, options[name] = word.partition("=")
        elif word not in flags:
            raise ValueError(f"with {word}")
    return options, plain


def _one(files: Sequence[str]) -> str:
    if len(files) != 1:
        raise ValueError(f"which reads {len(files)} files")
    return files[0]


def _flac(words: Sequence[str]) -> Part:
    single = [f"-{letter}" for word in words if re.fullmatch("-[cdsF]+", word) for letter in word[1:]]
    rest = [word for word in words if not re.fullmatch("-[cdsF]+", word)]
    _, files = _options(rest, (), ("--decode", "--stdout", "--silent", "--totally-silent"))
    if "-d" not in single and "--decode" not in words:
        raise ValueError("which does not decode")
    return Part(_one(files))


def _sph2pipe(words: Sequence[str]) -> Part:
    options, files = _options(words, ("-f", "-c", "-t", "-h"), ("-p", "-u", "-a"))
    begin, _, end = options.get("-t", ":").partition(":")
    if files and files[-1] in _STDOUT:
        files.pop()
    return Part(
        _one(files),
        int(options["-c"]) - 1 if "-c" in options else None,
        seconds(begin or "0"),
        seconds(end) if end else None,
    )


_SOX_VALUED = ("-t", "-r", "-c", "-b", "-e", "-C", "--bits", "--rate", "--channels", "--encoding", "--type", "--buffer")
_SOX_FLAGS = ("-q", "-S", "-D", "-R", "-V", "-V0", "-V1", "-V2", "-V3", "-s", "-w", "-2", "-L", "--no-dither")
_HEADERLESS = ("raw", "s8", "u8", "s16", "s24", "s32", "f32", "ul", "al", "sw", "gsm", "lpc", "dat")
_SOX_EFFECTS = ("trim", "remix", "rate", "channels", "dither")


def _sox(words: Sequence[str]) -> Part:
    at = next((position for position, word in enumerate(words) if word in _SOX_EFFECTS), len(words))
    _, files = _options(words[:at], _SOX_VALUED, _SOX_FLAGS)
    if len(files) > 2:
        raise ValueError(f"with the effect {files[2]}" if files[1] in _STDOUT else "which joins or mixes files")
    file = files[0] if files else "-"
    before = list(words[: words.index(file)]) if file in words else []
    if "-t" in before and before[before.index("-t") + 1] in _HEADERLESS:
        raise ValueError(f"which reads {before[before.index('-t') + 1]}, without a header")
    effects: list[list[str]] = []
    for word in words[at:]:
        if word in _SOX_EFFECTS:
            effects.append([])
        effects[-1].append(word)
    part = Part(file)
    for name, *values in effects:
        part = _narrowed(part, _sox_effect(name, values))
    return part


def _sox_effect(name: str, values: list[str]) -> Part:
    """What an effect takes of its input. Raises ValueError for those that change samples."""
    if name == "trim" and 1 <= len(values) <= 2:
        start, *to = values
        begin = _clock(start)
        end = None if not to else _clock(to[0].lstrip("=")) + (0.0 if to[0].startswith("=") else begin)
        return Part("-", None, begin, end)
    if name == "remix" and len(values) == 1 and values[0].isdigit():
        return Part("-", int(values[0]) - 1)
    harmless = {"remix": "-", "rate": r"(-[a-zA-Z]|[\d.]+k?)*", "channels": r"\d", "dither": "(-s)?"}
    if not re.fullmatch(harmless.get(name, "(?!)"), "".join(values)):
        raise ValueError(f"with {' '.join((name, *values))}")
    return Part("-")


_FFMPEG_VALUED = (
    "-i", "-f", "-ar", "-ac", "-acodec", "-c:a", "-codec:a", "-c", "-ab", "-b:a", "-loglevel", "-v", "-threads",
    "-sample_fmt", "-map", "-map_channel", "-ss", "-t", "-to", "-fflags", "-flags",
)  # fmt: skip
_FFMPEG_FLAGS = ("-y", "-nostdin", "-hide_banner", "-vn", "-sn", "-dn", "-nostats", "-bitexact")


def _ffmpeg(words: Sequence[str]) -> Part:
    if words.count("-i") != 1:
        raise ValueError(f"which reads {words.count('-i')} files")
    options, _ = _options(words, _FFMPEG_VALUED, _FFMPEG_FLAGS)
    if options.get("-map", "0:a") not in ("0", "0:a", "0:a:0", "0:0", "a"):
        raise ValueError(f"with -map {options['-map']}")
    channel = re.fullmatch(r"0\.0\.(\d+)", options.get("-map_channel", ""))
    if "-map_channel" in options and channel is None:
        raise ValueError(f"with -map_channel {options['-map_channel']}")
    start, end = _clock(options.get("-ss", "0")), None
    if "-to" in options:  # counted from the file's beginning where -ss is behind -i, too
        end = _clock(options["-to"])
    if "-t" in options:
        end = start + _clock(options["-t"])
    return Part(options["-i"].removeprefix("file:"), int(channel[1]) if channel else None, start, end)


def _clock(value: str) -> float:
    """Seconds of `12.5` or `1:02:03.5`. Raises ValueError."""
    return seconds(str(clock_seconds(value.removesuffix("s"))))


def _plain(valued: Sequence[str], flags: Sequence[str]) -> Callable[[Sequence[str]], Part]:
    """A decoder of whose options none changes what is read; the output, if it is named, is the last word."""

    def part(words: Sequence[str]) -> Part:
        _, files = _options(words, valued, flags)
        if len(files) > 1 and files[-1] in _STDOUT:
            files.pop()
        return Part(_one(files))

    return part


_DECODERS: Mapping[str, Callable[[Sequence[str]], Part]] = {
    "flac": _flac,
    "sph2pipe": _sph2pipe,
    "sox": _sox,
    "ffmpeg": _ffmpeg,
    "avconv": _ffmpeg,
    "cat": _plain((), ()),
    "lame": _plain((), ("--decode", "--quiet", "--silent", "-S")),
    "mpg123": _plain(("-w", "--wav"), ("-q", "--quiet")),
    "opusdec": _plain(("--rate",), ("--quiet", "--force-wav")),
    "oggdec": _plain(("-o", "--output"), ("-Q", "--quiet")),
    "wav-copy": _plain((), ()),
}
