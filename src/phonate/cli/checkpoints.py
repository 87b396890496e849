"""The sub-commands of `phonate checkpoints`: list, verify, prune, export, push, merge and compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phonate.cli.output import log_to_console, print_json, print_table
from phonate.cli.parsing import WEIGHTS
from phonate.config.documents import parse
from phonate.config.errors import InputError
from phonate.config.metrics import NEWEST, RANKED, Metric, told
from phonate.config.tasks import TASKS, task_info
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.files import Problem, problems
from phonate.training.checkpoints.listing import checkpoints_folder, find, is_checkpoint, located, no_run

SHOWN = 20
"""Lines of changed tensors that `compare` shows; --json has all."""
_FILES = {".html", ".onnx"}
"""Suffixes of exports that are one file."""


def run(args: argparse.Namespace) -> int:
    """Run the sub-command; returns the exit code."""
    args.run = located(args.run)
    if not args.run.is_dir():
        raise no_run(args.run)
    actions = {"list": _list, "verify": _verify, "prune": _prune, "export": _export, "merge": _merge, "push": _push}
    return (actions | {"compare": _compare})[args.action](args)


def _list(args: argparse.Namespace) -> int:
    folder = checkpoints_folder(args.run)
    infos = listing.scan(folder)
    best = listing.best_of(infos)
    sizes = {item.name: _size(item.path) for item in infos}
    rows = [_row(item, best, size) for item in listing.sort_listing(infos, args.sort_by) if (size := sizes[item.name])]
    if args.json:
        print_json({"folder": str(folder), "checkpoints": rows, "best": best.document() if best else None})
        return 0
    header = ("checkpoint", "version", "epochs", "saved (UTC)", "val_loss", "MB", "")
    print_table([_cells(row) for row in rows], header)
    return 0


def _size(path: Path) -> int:
    """Bytes of a checkpoint; 0 for one that training has deleted since it was listed."""
    try:
        return sum(file.stat().st_size for file in path.iterdir())
    except FileNotFoundError:
        return 0


def _row(item: listing.CheckpointInfo, best: listing.Best | None, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": item.name, "step": item.step, "path": str(item.path), "bytes": size}
    row["best"] = best is not None and best.name == item.name
    row["metadata"] = item.metadata.document() if item.metadata else None
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    megabytes = row["bytes"] / 1e6
    size = f"{megabytes:.{1 if megabytes < 100 else 0}f}"
    metadata = row["metadata"]
    if metadata is None:
        return [row["name"], "", "", "", "", size, "damaged: metadata.json can't be read"]
    version = f"v{metadata['version']}" if metadata["version"] else ""
    saved = metadata["timestamp"][:16].replace("T", " ")
    loss = "" if metadata["val_loss"] is None else f"{float(metadata['val_loss']):.4f}"
    metric = metadata["best_metric_name"]
    mark = f"best {'(newest)' if metric == NEWEST else metric}" if row["best"] else ""
    return [row["name"], version, str(metadata["epoch"]), saved, loss, size, mark]


def _verify(args: argparse.Namespace) -> int:
    if is_checkpoint(args.run) and not args.names:
        paths = [args.run]
    else:
        folder = checkpoints_folder(args.run)
        named = [find(folder, name) for name in args.names]
        paths = named or [item.path for item in listing.scan(folder)]
    checked = {path.name: _problems(path) for path in paths}
    by_checkpoint = {name: [str(one) for one in problems] for name, problems in checked.items() if problems is not None}
    damaged = [name for name, problems in by_checkpoint.items() if problems]
    if args.json:
        print_json({"intact": not damaged, "checkpoints": by_checkpoint})
    else:
        print_table(
            [(name, "; ".join(problems) or "intact") for name, problems in by_checkpoint.items()], ("checkpoint", "")
        )
    return 1 if damaged else 0


def _problems(path: Path) -> list[Problem] | None:
    """What is wrong with a checkpoint; None for one that training has deleted meanwhile."""
    while True:
        try:
            before = path.stat().st_ino
            damage = problems(path)
            if not damage or path.stat().st_ino == before:
                return damage
        except FileNotFoundError:
            return None


def _prune(args: argparse.Namespace) -> int:
    folder = checkpoints_folder(args.run)
    surplus = [item.name for item in listing.surplus(listing.scan(folder), args.keep)]
    if not args.dry_run:
        surplus = listing.prune(folder, args.keep)
        listing.refresh(folder)
    remaining = [item.name for item in listing.scan(folder) if item.name not in surplus]
    if args.json:
        print_json({"removed": [] if args.dry_run else surplus, "would_remove": surplus, "kept": remaining})
        return 0
    verb = "would be deleted" if args.dry_run else "deleted"
    print_table([(name, verb) for name in surplus] + [(name, "kept") for name in remaining], ("checkpoint", ""))
    return 0


def _push(args: argparse.Namespace) -> int:
    from phonate.workflows.hub import push

    source = _exported(args.run, args.checkpoint)
    address = push(source, args.name, private=args.private, licence=args.licence, base=args.base_model)
    if args.json:
        print_json({"source": str(source), "address": address})
    else:
        print(address)
    return 0


def _export(args: argparse.Namespace) -> int:
    if (args.target is None) == (args.output is None):
        raise InputError("export: give one target, such as -o exported")
    target: Path = args.target or args.output
    source = _exported(args.run, args.checkpoint)
    options = {"vocoder": args.vocoder, "dtype": args.dtype, "base": args.base, "runtime": args.runtime}
    if args.format == WEIGHTS:
        if target.suffix in _FILES:
            raise InputError(f"{target}: weights are exported as a folder; for a file add its kind, as --format onnx")
        for name in (name for name, value in options.items() if value is not None):
            raise InputError(f"--{name}: only for other formats than weights; leave it out, or choose another --format")
        paths = list(listing.export(source, target).iterdir())
    else:
        from phonate.workflows.evaluate import export

        log_to_console()
        paths = export(source, target, args.format, options)
    names = sorted(path.name for path in paths)
    folder = paths[0].parent
    if args.json:
        print_json({"source": str(source), "target": str(folder), "files": names})
    else:
        print_table([(str(source), str(folder), " ".join(names))], ("from", "to", "files"))
    return 0


def _exported(run: Path, name: str | None) -> Path:
    """The checkpoint to export: `run` itself, if it is one, or that of the run which `name` names."""
    if is_checkpoint(run):
        if name is not None:
            raise InputError(f"--checkpoint {name}: {run} is a checkpoint already; leave the option out")
        return run
    folder = checkpoints_folder(run)
    if name is not None:
        return find(folder, name)
    source = find(folder, "latest" if listing.best_of(listing.scan(folder)) is None else "best")
    listing.tell_of_unfinished(run, source)
    return source


def _merge(args: argparse.Namespace) -> int:
    from phonate.workflows.evaluate import merge

    source = _exported(args.run, args.checkpoint)
    report = merge(source, args.output, args.dtype, args.quantize, args.base)
    if args.json:
        print_json({"target": str(args.output), **asdict(report)})
        return 0
    rows = [
        ("merged into", f"{report.base} ({report.quantization or report.dtype}, {report.bytes / 1e6:.1f} MB)"),
        (
            "largest difference of a logit by merging, fp32",
            f"{report.merge_difference:.2g} of {report.largest_logit:.3g}",
        ),
        ("error of the logits as stored", f"{report.stored_error:.2%}"),
        ("most likely tokens unchanged", f"{report.stored_agreement:.2%}"),
        ("written to", str(args.output)),
    ]
    print_table(rows, ("merged", source.name))
    return 0


def _compare(args: argparse.Namespace) -> int:
    if args.metric is None and len(args.names) < 2:
        raise InputError("compare: name two checkpoints, such as latest best, or rank them all with --metric loss")
    if args.metric is None and len(args.names) == 2:
        return _differences(args)
    folder = checkpoints_folder(args.run)
    infos = [listing.info(find(folder, name)) for name in args.names] or listing.scan(folder)
    metric = args.metric or "val_loss"
    declared = _declared(infos)
    ranked = listing.rank_by(infos, metric, args.higher_is_better, declared)
    if args.json:
        print_json({"metric": metric, "checkpoints": [{"name": item.name, "value": value} for item, value in ranked]})
        return 0
    cells = [
        (str(place), item.name, "not measured" if value is None else told(metric, value, declared or (), RANKED))
        for place, (item, value) in enumerate(ranked, start=1)
    ]
    print_table(cells, ("", "checkpoint", metric))
    return 0


def _declared(infos: Sequence[listing.CheckpointInfo]) -> tuple[Metric, ...] | None:
    """The metrics of the task that the checkpoints are of; None where they name none, or its plug-in is not loaded."""
    recipe = infos[-1].path / files.RECIPE if infos else None
    if recipe is None or not recipe.is_file() or recipe.stat().st_size == 0:  # of a run that was started from Python
        return None
    task = parse(recipe.read_text(encoding="utf-8"), str(recipe)).values.get("task")
    return task_info(task).metrics if task in TASKS.names() else None


def _differences(args: argparse.Namespace) -> int:
    from phonate.training.checkpoints.loading import compare, load

    def named(text: str) -> Path:
        return Path(text) if is_checkpoint(Path(text)) else find(checkpoints_folder(args.run), text)

    first, second = (load(named(text), weights_only=True) for text in args.names)
    result = compare(first, second)
    if args.json:
        print_json({"first": str(first.path), "second": str(second.path), **asdict(result)})
        return 0
    rows = [(key, _text(one), _text(two)) for key, (one, two) in _flat(result.metadata).items()]
    print_table(rows, ("metadata", first.path.name, second.path.name))
    tensors = [
        (change.name, "different shape or type", "")
        if change.relative is None
        else (change.name, f"{change.largest:.3g}", f"{change.relative:.3g}")
        for change in result.changed[:SHOWN]
    ]
    tensors += [(name, f"only in {first.path.name}", "") for name in result.only_first]
    tensors += [(name, f"only in {second.path.name}", "") for name in result.only_second]
    tensors.append((f"{len(result.changed)} changed, {result.equal} equal", "", ""))
    print_table(tensors, ("weights", "largest change", "relative"))
    return 0


def _flat(differences: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Differences with a row for each metric."""
    flat: dict[str, tuple[Any, Any]] = {}
    for key, (one, two) in differences.items():
        if isinstance(one, dict) and isinstance(two, dict):
            names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
            flat.update({f"{key}.{name}": (one.get(name, ""), two.get(name, "")) for name in names})
        else:
            flat[key] = (one, two)
    return flat


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
