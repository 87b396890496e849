"""Evaluate a trained run beside baselines and a ceiling.

Scorers are optional packages: pip install 'phonate[eval]'. The figures and what was measured on each item go to
RUN/evaluation.json, or to the folder that --output names. For voice cloning RUN may also be the folder of a merged
model, or the name of a model of Higgs Audio v2 on the hub; --data and, for the hub, --output are needed then.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from phonate.cli.parsing import add_model_options, model_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate evaluate`."""
    parser.add_argument("run", metavar="RUN", help="the run's folder, or a merged model's")
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="a corpus to evaluate on, not trained on (default: what training held out); for speech also a .txt file",
    )
    parser.add_argument(
        "--vocoder", metavar="RUN", help="a run of the task vocoder, or griffin_lim for none (default: the recipe's)"
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="for diarization: first choose thresholds on what training held out, and keep them in the run",
    )
    add_model_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where to write (default: RUN; required for base/voice, a checkpoint or a name on the hub)",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0, mps (default: the task's choice)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate, then print the table."""
    from phonate.cli.output import log_to_console, print_json, print_table

    log_to_console()

    from phonate.workflows.evaluate import evaluate

    found = evaluate(
        args.run,
        args.data,
        args.vocoder,
        device=args.device,
        tune=args.tune,
        output=args.output,
        **model_options(args),
    )
    if args.json:
        print_json(found.document())
    else:
        print_table(found.rows(), found.header())
        print("\n" + "\n".join(f"{name.replace('_', ' ')}: {_shown(value)}" for name, value in found.notes.items()))
    return 0


def _shown(value: object) -> str:
    """A note's value in words: what is null in a mapping is left out."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {one}" for name, one in value.items() if one is not None)
    return str(value)
