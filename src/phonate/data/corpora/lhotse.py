"""Lhotse: manifests of cuts, manifests of recordings and supervisions, and corpora that its recipes prepare.

Lhotse is imported on use, which takes seconds.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from phonate.compute.system import lock
from phonate.config.errors import DataError, InputError, Interrupted, json_mistake, optional_package
from phonate.config.registry import listed
from phonate.data.corpora.kaldi import Part, part_of_pipe
from phonate.data.corpora.lists import first_object, json_lines, read_lines, speaker_of
from phonate.data.corpora.rows import (
    Problem,
    Row,
    Segment,
    as_text,
    audio_files,
    cached_recording,
    checked_row,
    corpus_format,
    malformed,
    printable,
    split_among,
    store,
)
from phonate.data.settings import LHOTSE, PARTS, DatasetSettings

# ------------ A CutSet as JSON, or as Shar. A cut is a row: a recording, or a part or channel of one

logger = logging.getLogger("phonate")

NOT_LHOTSE = (
    ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError, RuntimeError, ImportError
)  # fmt: skip
"""What Lhotse raises for objects that are not its own."""
_SLACK_SECONDS = 0.05
_ENDS = (".jsonl", ".jsonl.gz", ".json")
"""Of manifests."""


def is_cutset(path: Path) -> bool:
    """JSON of cuts, or a folder with such a file, and no recordings or those of its cuts; compressed JSON lines are
    nothing else."""
    if path.is_dir():
        files = _cutsets(path)
        recorded = files and next(audio_files(path, problems=[]), None) is not None
        return bool(files) and (not recorded or any(_is_of_files_in(path, file) for file in files))
    name = path.name.lower()
    return path.is_file() and (name.endswith(".jsonl.gz") or (name.endswith(_ENDS) and _is_cut(path)))


def _cutsets(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.name.endswith(_ENDS) and file.is_file())
    return [file for file in files if _is_cut(file)]


def _is_of_files_in(folder: Path, manifest: Path) -> bool:
    """Whether the recording of a manifest's first cut is in a folder."""
    cut = first_entry(manifest)
    try:
        cut = cut if "recording" in cut else cut["tracks"][0]["cut"]
        sources = [Path(one["source"]) for one in cut["recording"]["sources"]]
    except NOT_LHOTSE:
        return False
    files = [file for source in sources for file in (folder / source, source) if file.is_file()]
    return any(file.resolve().is_relative_to(folder.resolve()) for file in files)


def _is_cut(path: Path) -> bool:
    first = first_entry(path)
    return "recording" in first or ("tracks" in first and first.get("type") == "MixedCut")


@corpus_format(is_cutset, priority=80)
def cutset_rows(path: Path, cache: Path) -> Iterator[Row | Problem]:
    """Rows of a manifest of cuts, each with its supervisions as segments. Cuts that Lhotse mixes, pads, changes or
    joins from several files are written to `cache`, once. Audio that comes from a command or an address is refused: a
    manifest is data, and may neither run a shell nor use the network."""
    require_lhotse(path)
    # Lhotse runs a "path" that begins with pipe: in a shell, and opens addresses; an absolute path is neither.
    path = path.resolve()
    if path.is_dir():
        files = _cutsets(path)
        if len(files) != 1:
            names = ", ".join(printable(file.name) for file in files[:5]) or "no manifest of cuts"
            raise DataError(f"{path}: has {names}; give the file that is meant as data.path")
        path = files[0]
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a CutSet manifest ({', '.join(_ENDS)})")
    for place, entry in _entries(path):
        yield entry if isinstance(entry, Problem) else _row_of_entry(entry, path, place, cache)


def require_lhotse(path: Path) -> None:
    """Raise MissingPackageError unless Lhotse is installed, which reads its own manifests."""
    optional_package("lhotse", f"{path}: a manifest of Lhotse", LHOTSE)


def first_entry(path: Path) -> dict[str, Any]:
    """The first object of JSON lines, or of a list in a JSON file; an empty one where there is none."""
    if ".jsonl" in path.name:
        return first_object(path)
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT).decode("utf-8-sig", "replace").lstrip()
    try:
        entry, _ = json.JSONDecoder().raw_decode(start.removeprefix("[").lstrip()) if start.startswith("[") else ({}, 0)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


_LOOKED_AT = 2**20
"""Bytes of a JSON file in which its first entry ends."""


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a manifest with their places; of JSON lines one by one, so that a bad one spoils no other."""
    if ".jsonl" in path.name:
        yield from json_lines(path)
        return
    try:
        document = json.loads("\n".join(read_lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({json_mistake(error)})") from error
    if not isinstance(document, list):
        raise DataError(f"{path}: not a manifest of Lhotse, which is a list")
    yield from ((f"{path}: entry {number}", entry) for number, entry in enumerate(document, start=1))


def _row_of_entry(entry: Any, path: Path, place: str, cache: Path) -> Row | Problem:
    from lhotse.serialization import deserialize_item

    try:
        cut = deserialize_item(entry)
    except NOT_LHOTSE as error:
        return malformed(place, f"not a cut of Lhotse ({' '.join(str(error).split())}); write the manifest again")
    return _row_or_problem(cut, path, place, cache)


def _row_or_problem(cut: Any, path: Path, place: str, cache: Path) -> Row | Problem:
    try:
        return row_of_cut(cut, path, place, cache)
    except (*NOT_LHOTSE, OSError) as error:
        return malformed(place, f"not a cut of Lhotse ({' '.join(str(error).split())}); write the manifest again")


def row_of_cut(cut: Any, path: Path, place: str, cache: Path) -> Row | Problem:
    """The row of a cut. `path` is the manifest, to which files may be relative."""
    recordings = _recordings(cut)
    if not recordings or not all(one.sources for one in recordings):
        return malformed(place, "not a cut of a recording; save the audio of features, too")
    for source in (source for one in recordings for source in one.sources):
        try:
            source.type, source.source = "file", str(_file_of(source, path, cache))
        except ValueError as error:
            detail = f"its audio is a {source.type}{error}, not a file; save the recording to a file"
            return Problem(str(cut.id), place, "not a file", detail)
    origin = None if _is_computed(cut) else _source(cut, cut.recording, path)
    if origin is None:
        segments = tuple(sorted((_segment_of(one, cut, 0.0) for one in cut.supervisions), key=lambda one: one.start))
        return checked_row(Row(str(cut.id), _written(cut, cache), segments, place))
    source, channel = origin
    start, whole = float(cut.start), abs(cut.duration - cut.recording.duration) <= 1e-3
    end = None if whole else start + float(cut.duration)
    segments = tuple(sorted((_segment_of(one, cut, start) for one in cut.supervisions), key=lambda one: one.start))
    return checked_row(Row(str(cut.id), Path(source.source), segments, place, channel, 0.0 if whole else start, end))


def _recordings(cut: Any) -> list[Any]:
    """The recordings that a cut is made of."""
    parts = [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]
    return [part.recording for part in parts if getattr(part, "recording", None) is not None]


def _is_computed(cut: Any) -> bool:
    """Whether the samples of a cut are in no file: mixed, padded, or changed by more than a new sample rate, which
    reading them changes anyway."""
    if hasattr(cut, "tracks"):
        return True
    names = [one.get("name") if isinstance(one, dict) else type(one).__name__ for one in cut.recording.transforms or ()]
    return any(name != "Resample" for name in names)


def _file_of(source: Any, path: Path, cache: Path) -> Path:
    """The file of a source, absolute; what is in memory, as in shards, is written to a file, and of a command that only
    decodes a file it is this file. Raises ValueError for other sources."""
    if source.type == "command":
        part = _decoded(source.source)
        if part != Part(part.file):
            raise ValueError(" for a part")
        source.source = part.file
    elif source.type not in ("file", "memory"):
        raise ValueError
    if isinstance(source.source, bytes):
        return cached_recording(source.source, cache)
    file = Path(source.source)
    return file.absolute() if file.is_absolute() or file.is_file() else path.parent / file


def _decoded(command: str) -> Part:
    try:
        return part_of_pipe(f"{command.rstrip(' |')} |")
    except ValueError as error:
        raise ValueError(f" ({command[:60]}), {error}") from None


def _written(cut: Any, cache: Path) -> Path:
    """A file with the samples that Lhotse computes for a cut."""
    facts = [cut.to_dict(), [_state(source.source) for one in _recordings(cut) for source in one.sources]]
    file = cache / f"{hashlib.sha256(repr(facts).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.wav"
    if not file.is_file():
        encoded = io.BytesIO()
        soundfile.write(encoded, np.atleast_2d(cut.load_audio()).T, round(cut.sampling_rate), "FLOAT", format="WAV")
        store(file, encoded.getvalue())
    return file


def _state(file: str) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


def _source(cut: Any, recording: Any, path: Path) -> tuple[Any, int | None] | None:
    """The file of a cut, and the channel in it (None: all of them); None where these are not one file."""
    channels = {cut.channel} if isinstance(cut.channel, int) else set(cut.channel)
    if len(recording.sources) == 1 and channels == set(recording.channel_ids):
        return recording.sources[0], None
    if len(recording.channel_ids) == 1 and len(recording.sources) == 1:
        report_only_channel(path)
        return recording.sources[0], None
    if len(channels) != 1:
        return None
    (channel,) = channels
    for source in recording.sources:
        if channel in source.channels:
            return source, source.channels.index(channel) if len(source.channels) > 1 else None
    return None


@functools.cache
def report_only_channel(path: Path) -> None:
    """Says, once, that cuts are of a channel that their recordings do not have, as those trimmed to supervisions from
    an RTTM, whose channels count from 1."""
    logger.warning("%s: cuts of a channel 1 of recordings with one channel, 0; that one is read", printable(str(path)))


def _segment_of(supervision: Any, cut: Any, start: float) -> Segment:
    """A supervision, whose times count from the cut, with times in the file."""
    begin, end = float(supervision.start), float(supervision.start + supervision.duration)
    speaker, text = as_text(supervision.speaker), as_text(supervision.text)
    if abs(begin) <= _SLACK_SECONDS and abs(end - float(cut.duration)) <= _SLACK_SECONDS:
        return Segment(start, None, speaker, text, str(supervision.id))
    return Segment(start + begin, start + end, speaker, text, str(supervision.id))


# ------------- Manifests of recordings and supervisions, as Lhotse's recipes write them, without cuts


def is_lhotse(path: Path) -> bool:
    """A folder with a pair of manifests, or one of the two."""
    if path.is_dir():
        return bool(manifest_pairs(path))
    return path.name.endswith(_ENDS) and bool(first_entry(path).keys() & {"sources", "recording_id"})


@corpus_format(is_lhotse, priority=90)
def lhotse_rows(path: Path, cache: Path) -> Iterator[Row | Problem]:
    """A row for each recording, with its supervisions as segments; where these are of single channels of several, a
    row for each channel. `path` is a folder with `*recordings*.jsonl[.gz]` and `*supervisions*.jsonl[.gz]`, or .json of
    both, or one of these files. Where no supervision has a speaker there is one, called after the folder."""
    require_lhotse(path)
    pairs = manifest_pairs(path if path.is_dir() else path.parent)
    if path.is_file():
        pairs = [pair for pair in pairs if path in pair]
    if not pairs:
        raise DataError(f"{path}: no *recordings*.jsonl.gz with its *supervisions*.jsonl.gz beside it")
    for recordings, supervisions in pairs:
        # absolute, as in cutset: Lhotse runs a name that begins with pipe: in a shell, and opens addresses
        yield from _rows_of_pair(recordings.resolve(), supervisions.resolve(), cache)


def manifest_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Manifests of recordings, each with that of the supervisions, whose name differs in this word alone."""
    files = {file.name: file for file in sorted(file for file in folder.iterdir() if file.name.endswith(_ENDS))}
    pairs = []
    for name, file in files.items():
        for end in (name, name.removesuffix(".gz"), f"{name}.gz"):
            beside = files.get(end.replace("recordings", "supervisions"))
            if "recordings" in name and beside is not None:
                pairs.append((file, beside))
                break
    return pairs


def _rows_of_pair(recordings: Path, supervisions: Path, cache: Path) -> Iterator[Row | Problem]:
    from lhotse import Recording, SupervisionSegment

    listed: dict[str, list[tuple[str, Any]]] = {}
    for place, segment in _manifest_entries(supervisions, SupervisionSegment):
        if isinstance(segment, Problem):
            yield segment
        else:
            listed.setdefault(segment.recording_id, []).append((place, segment))
    named = any(segment.speaker for entries in listed.values() for _, segment in entries)
    alone = None if named else speaker_of(recordings)
    split = split_among(recordings.name.split(".")[0].split("_"))
    for place, recording in _manifest_entries(recordings, Recording):
        if isinstance(recording, Problem):
            yield recording
            continue
        segments = [segment for _, segment in listed.pop(recording.id, [])]
        for row in _rows_of(recording, segments, recordings, place, cache):
            if isinstance(row, Row):
                row = replace(row.with_speaker(alone) if alone is not None else row, split=split)
            yield row
    for name, entries in listed.items():
        for place, segment in entries:
            yield Problem(str(segment.id), place, "missing file", f"its recording {name!r} is not in {recordings.name}")


def _manifest_entries(path: Path, kind: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a manifest with their places; a Problem in the place of one that can't be read."""
    for place, entry in _entries(path):
        try:
            yield place, entry if isinstance(entry, Problem) else _checked_entry(kind.from_dict(entry))
        except NOT_LHOTSE as error:
            reason = " ".join(str(error).split())
            yield place, malformed(place, f"not a {kind.__name__} of Lhotse ({reason}); write the manifest again")


def _checked_entry(entry: Any) -> Any:
    """Raises TypeError for fields of other types than Lhotse's, which it takes without a look."""
    for name, kind in (("id", str), ("recording_id", str), ("start", float), ("duration", float)):
        value = getattr(entry, name, None)
        if value is not None and not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError(f"{name} is {value!r}")
    return entry


def _rows_of(recording: Any, segments: list[Any], path: Path, place: str, cache: Path) -> Iterator[Row | Problem]:
    channels = {one.channel if isinstance(one.channel, int) else tuple(one.channel) for one in segments}
    separate = len(recording.channel_ids) > 1 and channels and all(isinstance(one, int) for one in channels)
    try:
        if not separate:
            cut = recording.to_cut()
            cut.id, cut.supervisions = recording.id, segments
            yield row_of_cut(cut, path, place, cache)
            return
        for channel in sorted(channels):
            cut = recording.to_cut().with_channels(channel)
            cut.id = recording.id if len(channels) == 1 else f"{recording.id}-channel{channel}"
            cut.supervisions = [one for one in segments if one.channel == channel]
            yield row_of_cut(cut, path, place, cache)
    except NOT_LHOTSE as error:
        yield malformed(place, f"not a recording that can be read ({' '.join(str(error).split())})")


# ------------ Downloads and prepares corpora with Lhotse's recipes: from a recipe's name to manifests

DEFAULTS: Mapping[str, Mapping[str, Any]] = {"ami": {"mic": "ihm-mix"}, "icsi": {"mic": "ihm-mix"}}
"""Defaults that differ from Lhotse's: recordings with all speakers instead of one per microphone."""
PREPARED = "phonate.json"
"""In a folder of manifests: what they were made from. In a downloaded corpus: the folder of its recordings, null until
the download is complete."""
_FOLDERS = ("corpus_dir", "data_dir", "target_dir")
_downloaded_here: set[Path] = set()
"""Corpora downloaded by this process: with force_download they are downloaded once per run."""
_FAILURES = (Exception, SystemExit)
"""Recipes raise anything: AssertionError for missing files, ValueError, download errors, ..."""


def manifests_of(dataset: DatasetSettings, num_jobs: int = 1) -> Path:
    """The folder with the manifests of a dataset, which is downloaded and prepared if necessary.

    `corpus_dir` and `output_dir` must be set. Manifests in `output_dir` from other sources are used as they are.

    Raises DataError if the download or the recipe fails, InputError for arguments that the recipe does not accept.
    """
    if dataset.corpus_dir is None or dataset.output_dir is None:
        raise ValueError("corpus_dir and output_dir must be set")
    corpus = Path(dataset.corpus_dir).expanduser().resolve()
    output = Path(dataset.output_dir).expanduser().resolve()
    with lock(output.parent / f".{output.name}.lock"):  # processes of other GPUs wait until this one has finished
        _prepare_once(dataset, corpus, output, num_jobs)
    return output


def _prepare_once(dataset: DatasetSettings, corpus: Path, output: Path, num_jobs: int) -> None:
    arguments = _arguments(dataset)
    made_from = {"name": dataset.name, "corpus": str(corpus), "arguments": json.loads(json.dumps(arguments))}
    record = _record(output)
    force = bool(dataset.force_download) and corpus not in _downloaded_here
    if output.is_dir() and manifest_pairs(output):
        if not force and (record is None or record["made_from"] == made_from):
            return
        if record is None:
            raise DataError(f"{output}: contains manifests not written by phonate; set another output_dir")
    prepare = _function("prepare", dataset.name)
    _check_arguments(dataset, prepare, arguments)
    candidates = _corpus(dataset, corpus, arguments, force)
    output.mkdir(parents=True, exist_ok=True)
    before = record["before"] if record else sorted(entry.name for entry in output.iterdir())
    # If this process is killed, the next one removes all files that are not listed here.
    _write_record(output, {"made_from": None, "before": before})
    _prepare(dataset, prepare, candidates, output, arguments, num_jobs)
    _write_record(output, {"made_from": made_from, "before": before})


def _arguments(dataset: DatasetSettings) -> dict[str, Any]:
    recipe, chosen = PARTS.get(dataset.name, (dataset.name, {}))
    return {**DEFAULTS.get(recipe, {}), **chosen, **dataset.process_params}


def _function(kind: str, name: str) -> Callable[..., Any]:
    function = _optional_function(kind, name)
    if function is None:
        raise InputError(f"datasets: {name}: Lhotse has no function {kind}_{name}")
    return function


def _optional_function(kind: str, name: str) -> Callable[..., Any] | None:
    from lhotse import recipes

    return getattr(recipes, f"{kind}_{PARTS.get(name, (name, {}))[0]}", None)


def _check_arguments(dataset: DatasetSettings, prepare: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise InputError for unknown and for missing arguments."""
    known = inspect.signature(prepare).parameters
    own = {_folder_of(prepare, arguments), "output_dir", "num_jobs"}
    for name in arguments:
        if name not in known or name in own:
            takes = listed(sorted(known.keys() - own)) or "none"
            raise InputError(f"datasets: {dataset.name}: process_params: unknown {name!r}; the recipe accepts {takes}")
    missing = [
        name for name, one in known.items() if one.default is one.empty and name not in arguments and name not in own
    ]
    if missing:
        raise InputError(f"datasets: {dataset.name}: process_params lacks {', '.join(missing)}")


def _folder_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The name of the parameter for the corpus folder: one of the usual names, or the first parameter."""
    names = [name for name in inspect.signature(function).parameters if name not in arguments]
    return next((name for name in _FOLDERS if name in names), names[0])


def _corpus(dataset: DatasetSettings, corpus: Path, arguments: Mapping[str, Any], force: bool) -> list[Path]:
    """Candidate folders of the corpus: existing ones, or the one downloaded now."""
    there = corpus.is_dir() and any(corpus.iterdir())
    downloaded = _record(corpus) if there else None
    finished = downloaded is None or downloaded["corpus"] is not None
    if there and finished and not force:
        if downloaded is not None:
            return [Path(downloaded["corpus"])]
        # Archives often contain a single top-level folder.
        below = [one for one in corpus.iterdir() if one.is_dir() and not one.name.startswith(".")]
        return [corpus, *below] if len(below) == 1 else [corpus]
    download = _optional_function("download", dataset.name)
    if download is None:
        raise DataError(
            f"{corpus}: no such corpus, and Lhotse can't download {dataset.name}; put it there, or set corpus_dir to "
            "its folder"
        )
    return [_downloaded(dataset, download, corpus, arguments)]


def _downloaded(
    dataset: DatasetSettings, download: Callable[..., Any], corpus: Path, arguments: Mapping[str, Any]
) -> Path:
    known = inspect.signature(download).parameters
    unknown = next((name for name in dataset.download_params if name not in known), None)
    if unknown is not None:
        takes = listed(list(known))
        raise InputError(f"datasets: {dataset.name}: download_params: unknown {unknown!r}; the recipe accepts {takes}")
    accepted = {name: value for name, value in arguments.items() if name in known} | dataset.download_params
    if "force_download" in known:
        accepted.setdefault("force_download", bool(dataset.force_download))
    logger.info("downloading %s to %s", dataset.name, corpus)
    try:
        corpus.mkdir(parents=True, exist_ok=True)
        _write_record(corpus, {"corpus": None})  # marks the download as incomplete
        with redirect_stdout(sys.stderr):
            returned = download(**{_folder_of(download, accepted): corpus}, **accepted)
    except Interrupted:
        raise
    except _FAILURES as error:
        raise DataError(
            f"{dataset.name}: the download failed ({_message(error)}); without a network, put the corpus into {corpus}"
        ) from error
    folder = Path(returned) if isinstance(returned, str | Path) else corpus
    _write_record(corpus, {"corpus": str(folder.resolve())})
    _downloaded_here.add(corpus)
    return folder


def _prepare(
    dataset: DatasetSettings,
    prepare: Callable[..., Any],
    candidates: list[Path],
    output: Path,
    arguments: Mapping[str, Any],
    num_jobs: int,
) -> None:
    """Run the recipe on the candidates until one yields recordings; its manifests are written to `output`."""
    known = inspect.signature(prepare).parameters
    extra: dict[str, Any] = {"output_dir": output} if "output_dir" in known else {}
    if "num_jobs" in known:
        extra["num_jobs"] = num_jobs
    failures: list[str] = []
    for corpus in candidates:
        _remove_others(output)
        try:
            with redirect_stdout(sys.stderr):
                returned = prepare(**{_folder_of(prepare, arguments): corpus}, **extra, **arguments)
        except Interrupted:
            raise
        except _FAILURES as error:
            failures.append(f"{corpus}: Lhotse's recipe {dataset.name} failed: {_message(error)}")
            continue
        if not manifest_pairs(output):
            _write(returned, output, dataset.name)
        if any(True for recordings, _ in manifest_pairs(output) for _ in json_lines(recordings)):
            return
        failures.append(f"{corpus}: Lhotse's recipe {dataset.name} found no recordings with supervisions")
    _remove_others(output)
    raise DataError(failures[0])


def _remove_others(output: Path) -> None:
    """Remove the files that recipes wrote into a folder: all that did not exist before."""
    earlier = {PREPARED, *(_record(output) or {"before": []})["before"]}
    for entry in list(output.iterdir()):
        if entry.name not in earlier:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _write(returned: Any, output: Path, name: str) -> None:
    """Write manifests that a recipe returned without writing them: {split: {"recordings": ..., "supervisions": ...}},
    possibly nested deeper."""
    for keys, pair in _pairs(returned, ()):
        for kind in ("recordings", "supervisions"):
            pair[kind].to_file(output / ("_".join((name, kind, *keys)) + ".jsonl.gz"))


def _pairs(returned: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    if isinstance(returned, Mapping):
        if returned.get("recordings") is not None and returned.get("supervisions") is not None:
            yield keys, returned
            return
        for key, below in returned.items():
            yield from _pairs(below, (*keys, str(key)))


def _record(folder: Path) -> dict[str, Any] | None:
    """The contents of PREPARED; None if it is missing or invalid."""
    try:
        document = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
        return document if isinstance(document, dict) else None
    except (OSError, ValueError):
        return None


def _write_record(folder: Path, facts: Mapping[str, Any]) -> None:
    (folder / PREPARED).write_text(json.dumps(facts), encoding="utf-8")


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
