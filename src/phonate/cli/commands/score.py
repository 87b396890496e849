"""Score a diarization: DER with its components, and JER, per recording and in total.

REF.rttm and HYP.rttm may contain many recordings. A recording missing from the hypothesis counts as missed; one missing
from the reference is an error unless the UEM lists it. The collar is excluded on each side of a reference boundary, as
in md-eval (0.25 here is 0.5 in pyannote.metrics).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.evaluation.diarization import DiarizationErrors, Scores

_HEADER = ("recording", "DER %", "miss %", "false alarm %", "confusion %", "JER %", "speech s", "speakers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate score`."""
    parser.add_argument("reference", metavar="REF.rttm", help="the reference")
    parser.add_argument("hypothesis", metavar="HYP.rttm", help="the diarization to score")
    parser.add_argument("--uem", metavar="FILE", help="the regions to score (default: whole recordings)")
    parser.add_argument(
        "--collar",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds excluded before and after each reference boundary (default: 0)",
    )
    parser.add_argument("--skip-overlap", action="store_true", help="exclude overlapping speech")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON, in seconds and fractions")


def run(args: argparse.Namespace) -> int:
    """Score, and print a row for each recording, the total, and the conventions."""
    from phonate.cli.output import print_json, print_table
    from phonate.data.annotations import read_rttm, read_uem
    from phonate.evaluation.diarization import score_recordings

    scores = score_recordings(
        read_rttm(args.reference),
        read_rttm(args.hypothesis),
        uem=None if args.uem is None else read_uem(args.uem),
        collar=args.collar,
        skip_overlap=args.skip_overlap,
    )
    conventions = _conventions(args)
    if args.json:
        print_json(
            {
                "conventions": conventions,
                "recordings": {name: _figures(errors) for name, errors in scores.recordings.items()},
                "total": _figures(scores.total),
                "without_hypothesis": scores.missed,
                "not_in_uem": scores.left_out,
            }
        )
        return 0
    rows = [*scores.recordings.items(), ("total", scores.total)]
    print_table([_row(name, errors) for name, errors in rows], _HEADER)
    print()
    for what, how in conventions.items():
        print(f"{what}: {how}")
    for note in _notes(scores):
        print(note)
    return 0


def _conventions(args: argparse.Namespace) -> dict[str, str]:
    """The scoring conventions, in words."""
    collar = "none"
    if args.collar:
        collar = (
            f"{args.collar:g} s before and after each reference boundary are not scored, "
            f"as in md-eval (pyannote.metrics: collar={2 * args.collar:g})"
        )
    return {
        "collar": collar,
        "overlap": "not scored" if args.skip_overlap else "scored for each speaker",
        "regions": args.uem or "whole recordings",
        "speakers": "mapped one to one in each recording, maximising the common duration",
    }


def _notes(scores: Scores) -> Iterator[str]:
    for what, names in (
        ("no turns in the hypothesis, all speech counted as missed", scores.missed),
        ("not in the UEM, not scored", scores.left_out),
    ):
        if names:
            yield f"{what}: {', '.join(names)}"


def _figures(errors: DiarizationErrors) -> dict[str, Any]:
    return {
        "der": errors.der,
        "jer": errors.jer,
        "miss": errors.miss,
        "false_alarm": errors.false_alarm,
        "confusion": errors.confusion,
        "speech": errors.speech,
        "speakers": errors.speakers,
        "scored": errors.scored,
    }


def _row(name: str, errors: DiarizationErrors) -> list[str]:
    parts = (errors.miss, errors.false_alarm, errors.confusion)
    shares = [f"{100 * part / errors.speech:.2f}" if errors.speech else "–" for part in parts]
    rates = [f"{100 * errors.der:.2f}", *shares, f"{100 * errors.jer:.2f}"]
    return [name, *rates, f"{errors.speech:.2f}", str(errors.speakers)]
