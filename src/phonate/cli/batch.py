"""One or several recordings of a command: which they are, where the results of each go, and which can't be read."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from phonate.cli.inputs import require_folders, require_makeable, require_sounds

if TYPE_CHECKING:
    from phonate.data.progress import Stage

Result = TypeVar("Result")


@dataclass(frozen=True)
class Recording:
    """A recording of a command."""

    name: str
    """Its path below the folder that was given, or the name of its file; without a suffix."""
    path: str


def add_recordings(parser: argparse.ArgumentParser) -> None:
    """Add the recordings of a command."""
    parser.add_argument("recordings", metavar="IN.wav", nargs="+", help="recordings, or folders of them")


def add_format(parser: argparse.ArgumentParser, default: str, others: str) -> None:
    """Add --format."""
    parser.add_argument("--format", metavar="NAME", help=f"of the files in a folder: {default} (default), {others}")


# ---------------------------------------------------------------------------------------- What is given


@dataclass
class Batch:
    """The recordings of a command."""

    recordings: Sequence[Recording]
    several: bool
    """Whether several were given, or a folder of them."""
    unread: list[str] = field(default_factory=list)
    """Those that could not be read."""

    def results(self, work: Callable[[Recording], Result], stage: Stage) -> Iterator[tuple[Recording, Result]]:
        """Each recording with what `work` makes of it. One of several that can't be read is told in a line and left
        out. `stage`: the work whose progress is shown, of all recordings together."""
        from phonate.config.errors import DataError
        from phonate.data.progress import progress_of_each

        for one, reported in zip(
            self.recordings, progress_of_each(stage, [one.path for one in self.recordings]), strict=True
        ):
            try:
                with reported:
                    result = work(one)
            except DataError as error:
                if not self.several:
                    raise
                print(error, file=sys.stderr)
                self.unread.append(one.path)
            else:
                yield one, result

    def exit_code(self) -> int:
        """2 where recordings could not be read, which is told."""
        if self.unread:
            print(f"{len(self.unread)} of {len(self.recordings)} recordings can't be read", file=sys.stderr)
        return 2 if self.unread else 0

    def require_one(self, options: Iterable[str]) -> None:
        """Raise InputError for options that are for one recording, where several were given."""
        from phonate.config.errors import InputError

        if self.several and (option := next(iter(options), None)):
            one = self.recordings[0].path if len(self.recordings) == 1 else "one"
            raise InputError(f"{option}: is for one recording; leave it out, or give {one}")

    @property
    def needs_folder(self) -> str:
        """That the results of several don't go into one file, and what to give."""
        if len(self.recordings) > 1:
            return "there are several recordings; give a folder"
        return f"a folder was given, not its recording {self.recordings[0].path}; give that, or a folder"


def batch_of(args: argparse.Namespace, default: str | None) -> Batch:
    """The recordings of a command. Where a recording stands in place of the model `args.run`, the model is `default`
    (None: there is none).

    Raises InputError for what is no recording, a folder without any, and two of one name."""
    paths = list(args.recordings)
    if args.run != default and _may_be_recordings(args.run):
        paths, args.run = [args.run, *paths], _model_instead(args.run, paths, default)
    if len(paths) == 1 and not os.path.isdir(paths[0]):
        if default is not None and paths == [default] and not os.path.exists(default):
            raise _only_a_model(default)
        require_sounds(paths)
        return Batch([Recording(Path(paths[0]).stem, paths[0])], several=False)
    recordings = list(dict.fromkeys(one for path in paths for one in recordings_at(path)))
    _require_distinct({one: one.name for one in recordings})
    return Batch(recordings, several=True)


def _model_instead(first: str, others: Sequence[str], default: str | None) -> str:
    """The model, where `first` stands in its place. Raises InputError unless that is a recording, as `others` are."""
    from phonate.audio.containers.kinds import AUDIO_SUFFIXES
    from phonate.config.errors import DataError, InputError

    if os.path.isfile(first) and Path(first).suffix.lower() not in AUDIO_SUFFIXES:
        try:
            require_sounds([first])
        except DataError as error:
            raise InputError(f"{first}: neither a run nor a recording; give the folder of a run") from error
    what = "a folder of recordings" if os.path.isdir(first) else "a recording"
    if other := next((one for one in others if not _may_be_recordings(one)), None):
        raise InputError(f"{first}: {what}; the run comes first: {other} {first}")
    if default is None:
        raise InputError(f"{first}: {what}; the run comes first, as in RUN {first}")
    return default


def recordings_at(path: str) -> list[Recording]:
    """A recording, or those of a folder."""
    from phonate.config.errors import InputError

    if not os.path.isdir(path):
        if not os.path.exists(path):
            require_sounds([path])
        return [Recording(Path(path).stem, path)]
    if not (files := _files_in(path)):
        if _is_model(path) or any(os.path.isfile(os.path.join(path, name)) for name in ("recipe.yaml", "config.json")):
            raise _only_a_model(path)
        raise InputError(f"{path}: has no recordings")
    return [Recording(file.relative_to(path).with_suffix("").as_posix(), str(file)) for file in files]


def _only_a_model(path: str) -> Exception:
    from phonate.config.errors import InputError

    return InputError(
        f"{path}: a {'run' if os.path.isdir(path) else 'model'}; give the recording behind it, as in {path} IN.wav"
    )


def _files_in(folder: str) -> list[Path]:
    """The recordings of a folder that is no model."""
    from phonate.data.corpora.rows import audio_files

    return [] if not os.path.isdir(folder) or _is_model(folder) else list(audio_files(Path(folder)))


def _is_model(folder: str) -> bool:
    """Whether a folder is a run, a checkpoint or a Whisper, which may have recordings in it."""
    from phonate.data.corpora.rows import is_output

    return is_output(Path(folder)) or os.path.isfile(os.path.join(folder, "model.bin"))


def _may_be_recordings(path: str) -> bool:
    """Whether it is a file, or would be one by its name, or a folder of recordings."""
    from phonate.audio.containers.kinds import AUDIO_SUFFIXES

    if os.path.isdir(path):
        return bool(_files_in(path))
    return os.path.isfile(path) or Path(path).suffix.lower() in AUDIO_SUFFIXES


# ------------------------------------------------------------------------------------ What is written


@dataclass(frozen=True)
class Targets:
    """Where the results of recordings are written: of one a file, of several a folder of files, or one file whose lines
    name the recordings."""

    output: Path
    suffix: str
    """Of the files, such as .txt."""
    kind: Literal["file", "folder", "joined"]

    @classmethod
    def of(
        cls,
        args: argparse.Namespace,
        batch: Batch,
        default: str,
        joined: Sequence[str],
        check: Callable[[str], object],
    ) -> Targets | None:
        """Where `args.output` says, in `args.format`; None without an output. Raises InputError for what can't be
        written there.

        Args:
            batch: The recordings.
            default: Suffix of the files in a folder.
            joined: Suffixes of files that can hold several recordings.
            check: Raises InputError for the name of a file whose suffix can't be written.
        """
        from phonate.config.errors import InputError

        if args.output is None:
            if args.format is not None:
                raise InputError(f"--format {args.format}: only for files in a folder; name it by -o FOLDER")
            return None
        if not args.output:
            raise InputError("-o: is empty; give a file or a folder")
        output, several = Path(args.output), batch.several
        form = output.suffix
        kind: Literal["file", "folder", "joined"] = "joined" if several and form in joined else "file"
        if output.is_dir() or args.output.endswith(("/", os.sep)) or ((args.format or several) and not form):
            form, kind = f".{args.format.removeprefix('.')}" if args.format else default, "folder"
        check(str(output) if kind != "folder" else f"{output / 'name'}{form}")
        one = f", or one {' or '.join(joined)} file" if joined else ""
        if several and kind == "file":
            there = shlex.quote(str(output.with_suffix(""))) + (f" --format {form[1:]}" if form != default else "")
            raise InputError(f"{output}: {batch.needs_folder}, such as -o {there}{one}")
        if args.format is not None and kind != "folder":
            raise InputError(f"--format: only for a folder; the name of {output} says its format")
        if kind == "folder" and output.is_file():
            raise InputError(f"{output}: a file; give a folder{one}")
        if kind != "folder":
            require_folders(args.output)
        targets = cls(output, form, kind)
        for folder in dict.fromkeys(targets._of(one.name).parent for one in batch.recordings):
            require_makeable(folder)
        return targets

    def require_apart(self, recordings: Iterable[Recording], sources: Iterable[Recording]) -> None:
        """Raise InputError where the result of one of `recordings` would be written over one of `sources`."""
        from phonate.config.errors import InputError

        own = {os.path.realpath(source.path) for source in sources}
        for path in (self._of(one.name) for one in recordings):
            if os.path.realpath(path) in own:
                raise InputError(f"{path}: is a recording that is read; choose another -o")

    def _of(self, name: str) -> Path:
        return self.output / f"{name}{self.suffix}" if self.kind == "folder" else self.output

    def path(self, name: str) -> Path:
        """Where the result of the recording called `name` is written; its folder is made. Raises InputError."""
        from phonate.compute.system import writing

        path = self._of(name)
        if self.kind != "folder":
            return path
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def joined_texts(targets: Targets | None) -> Iterator[list[str]]:
    """A list for the lines of each recording. They are written as one file, where `targets` ask for it, whatever ends
    the block: what an interruption leaves was told as done. Raises InputError."""
    from phonate.compute.system import write_output

    texts: list[str] = []
    try:
        yield texts
    finally:
        if targets is not None and texts:
            write_output(targets.output, "".join(texts).encode())


def label_names(recordings: Sequence[Recording], together: bool) -> dict[Recording, str]:
    """What recordings are called in files that name them: as their files are, unless two files are called alike;
    without spaces. Raises InputError for two of one name, where one file names all `together`."""
    own = [recording_name(one.path) for one in recordings]
    alike = Counter(own)
    names = {
        one: "_".join(one.name.split()) if alike[name] > 1 else name for one, name in zip(recordings, own, strict=True)
    }
    if together:
        _require_distinct(names)
    return names


def _require_distinct(names: Mapping[Recording, str]) -> None:
    """Raise InputError for two recordings of one name."""
    from phonate.config.errors import InputError

    counts = Counter(names.values())
    if twice := next((name for name, count in counts.items() if count > 1), None):
        first, second, *_ = [one.path for one, name in names.items() if name == twice]
        raise InputError(f"{first}, {second}: both would be written as {twice}; rename one, or give them one by one")


def recording_name(path: str) -> str:
    """The recording's name in RTTM: the file name without suffix, spaces replaced by underscores."""
    return "_".join(Path(path).stem.split())
