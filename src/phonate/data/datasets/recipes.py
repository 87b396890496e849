"""Downloads and prepares corpora with Lhotse's recipes: from a recipe's name to manifests on disk."""

from __future__ import annotations

import inspect
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from phonate.compute.system import lock
from phonate.config.errors import DataError, InputError, Interrupted
from phonate.data.corpora.lhotse import manifest_pairs
from phonate.data.datasets.settings import PARTS, DatasetSettings

logger = logging.getLogger("phonate")

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
    written = _record(output)
    force = bool(dataset.force_download) and corpus not in _downloaded_here
    if output.is_dir() and manifest_pairs(output):
        if not force and (written is None or written["made_from"] == made_from):
            return
        if written is None:
            raise DataError(f"{output}: contains manifests not written by phonate; set another output_dir")
    prepare = _function("prepare", dataset.name)
    _check_arguments(dataset, prepare, arguments)
    candidates = _corpus(dataset, corpus, arguments, force)
    output.mkdir(parents=True, exist_ok=True)
    before = written["before"] if written else sorted(entry.name for entry in output.iterdir())
    # If this process is killed, the next one removes all files that are not listed here.
    _write_record(output, {"made_from": None, "before": before})
    _prepare(dataset, prepare, candidates, output, arguments, num_jobs)
    _write_record(output, {"made_from": made_from, "before": before})


def _arguments(dataset: DatasetSettings) -> dict[str, Any]:
    recipe, chosen = PARTS.get(dataset.name, (dataset.name, {}))
    return {**DEFAULTS.get(recipe, {}), **chosen, **dataset.process_params}


def _function(kind: str, name: str) -> Callable[..., Any]:
    found = _optional_function(kind, name)
    if found is None:
        raise InputError(f"datasets: {name}: Lhotse has no function {kind}_{name}")
    return found


def _optional_function(kind: str, name: str) -> Callable[..., Any] | None:
    from lhotse import recipes

    return getattr(recipes, f"{kind}_{PARTS.get(name, (name, {}))[0]}", None)


def _check_arguments(dataset: DatasetSettings, prepare: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise InputError for unknown and for missing arguments."""
    known = inspect.signature(prepare).parameters
    own = {_folder_of(prepare, arguments), "output_dir", "num_jobs"}
    for name in arguments:
        if name not in known or name in own:
            takes = ", ".join(sorted(known.keys() - own)) or "none"
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
        takes = ", ".join(known)
        raise InputError(f"datasets: {dataset.name}: download_params: unknown {unknown!r}; the recipe accepts {takes}")
    given = {name: value for name, value in arguments.items() if name in known} | dataset.download_params
    if "force_download" in known:
        given.setdefault("force_download", bool(dataset.force_download))
    logger.info("downloading %s to %s", dataset.name, corpus)
    try:
        corpus.mkdir(parents=True, exist_ok=True)
        _write_record(corpus, {"corpus": None})  # marks the download as incomplete
        with redirect_stdout(sys.stderr):
            returned = download(**{_folder_of(download, given): corpus}, **given)
    except Interrupted:
        raise
    except _FAILURES as error:
        raise DataError(
            f"{dataset.name}: the download failed ({_said(error)}); without a network, put the corpus into {corpus}"
        ) from error
    found = Path(returned) if isinstance(returned, str | Path) else corpus
    _write_record(corpus, {"corpus": str(found.resolve())})
    _downloaded_here.add(corpus)
    return found


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
            failures.append(f"{corpus}: Lhotse's recipe {dataset.name} failed: {_said(error)}")
            continue
        if not manifest_pairs(output):
            _write(returned, output, dataset.name)
        if any(_length(one) for pair in manifest_pairs(output) for one in pair[:1]):
            return
        failures.append(f"{corpus}: Lhotse's recipe {dataset.name} found no recordings with supervisions")
    _remove_others(output)
    raise DataError(failures[0])


def _remove_others(output: Path) -> None:
    """Remove the files that recipes wrote into a folder: all that did not exist before."""
    kept = {PREPARED, *(_record(output) or {"before": []})["before"]}
    for entry in list(output.iterdir()):
        if entry.name not in kept:
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


def _length(manifest: Path) -> int:
    from phonate.data.corpora._lists import json_lines

    return sum(1 for _ in json_lines(manifest))


def _record(folder: Path) -> dict[str, Any] | None:
    """The contents of PREPARED; None if it is missing or invalid."""
    try:
        found = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def _write_record(folder: Path, facts: Mapping[str, Any]) -> None:
    (folder / PREPARED).write_text(json.dumps(facts), encoding="utf-8")


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
