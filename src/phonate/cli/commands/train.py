"""Train a recipe into a run folder.

A recipe is a file or a shipped name. Options are set by their path: training.optimizer.lr=2e-4
data.path=my_recordings size=small. The run is written to --output, by default runs/<recipe>; --resume auto continues
one that was interrupted. Paths in a recipe are relative to the current directory.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

from phonate.cli.parsing import add_recipe

if TYPE_CHECKING:
    from phonate.workflows.plan import Plan
    from phonate.workflows.train import Trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate train`."""
    add_recipe(parser)
    parser.add_argument("--resume", metavar="auto|RUN|CHECKPOINT", help="resume a run that was stopped")
    parser.add_argument(
        "--mode",
        choices=("gpu", "cpu", "mixed"),
        default="mixed",
        help="gpu: require a GPU; cpu: never use one; mixed (default): use a GPU if there is one",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0 or mps")
    parser.add_argument("--output", metavar="RUN", help="the run's folder (default: runs/<recipe>)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="estimate time, memory and disk from a few real steps; keep nothing",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Train, then print the run's folder and its last metrics."""
    # What imports make stays. To look through it for garbage again and again took a sixth of the time of a start.
    gc.disable()
    try:
        return _train(args)
    finally:
        gc.unfreeze()
        gc.enable()


def _train(args: argparse.Namespace) -> int:
    # before anything heavy is imported, so that a mistake in the recipe is reported at once
    from phonate.workflows.plan import plan

    planned = plan(
        args.recipe,
        args.overrides,
        resume=args.resume,
        mode=args.mode,
        device=args.device,
        output=args.output,
        plugins=tuple(Path(path) for path in args.plugin),
    )

    from phonate.cli.output import log_to_console

    log_to_console(planned.written.recipe.training.logging.verbosity)

    from phonate.workflows.train import train_plan

    gc.freeze()
    gc.enable()

    args.logs = planned.run / "logs"  # an error leaves its traceback there
    if planned.is_search and not args.dry_run:
        return _search(args, planned)

    trained = train_plan(planned, dry_run=args.dry_run)
    if int(os.environ.get("RANK", "0")) == 0:  # of the processes that torchrun started, one prints
        _print(trained, args)
    return 0


def _search(args: argparse.Namespace, planned: Plan) -> int:
    """Search for hyperparameters, then print the table of runs."""
    from phonate.cli.output import print_json, print_table
    from phonate.workflows.tuning import BEST, tune

    found = tune(planned)
    if args.json:
        trials = [vars(trial) for trial in found.trials]
        print_json({"run": str(found.run.path), "best": vars(found.best), "trials": trials})
    else:
        print_table(found.rows(), found.header())
        print(f"\n{found.run.path}: best {found.best.run}; its recipe is {found.run.path / BEST}")
    return 0


def _print(trained: Trained, args: argparse.Namespace) -> None:
    from phonate.cli.output import print_json, print_table

    if args.json:
        outcome = {} if args.dry_run else {"run": str(trained.run.path), "step": trained.step}
        print_json({**outcome, "metrics": trained.metrics})
    elif args.dry_run:
        print_table([[name, f"{value:.5g}"] for name, value in trained.metrics.items()], ["estimate", "value"])
    else:
        shown = "".join(f"  {name} {value:.5g}" for name, value in sorted(trained.metrics.items()))
        print(f"{trained.run.path}: step {trained.step}{shown}")
