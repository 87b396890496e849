"""Determine who speaks when in a recording of any format, sample rate and length.

RUN is a run's folder or one of its checkpoints. Without -o the RTTM lines are printed. With --stream the recording is
processed in blocks, as from a microphone, and each turn is printed as soon as it has ended; this needs a causal model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.tasks.diarization.inference import Diarization, Diarizer

_STREAM_SECONDS = 0.1
PICTURES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate diarize`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task diarization, or a checkpoint")
    parser.add_argument("recording", metavar="IN.wav", help="the recording")
    parser.add_argument("-o", "--output", metavar="OUT.rttm", help="where to write the turns")
    parser.add_argument("--speakers", type=int, metavar="N", help="number of speakers, if known")
    parser.add_argument("--min-speakers", type=int, metavar="N", help="minimum number of speakers")
    parser.add_argument("--max-speakers", type=int, metavar="N", help="maximum number of speakers")
    parser.add_argument(
        "--stitching",
        choices=("embeddings", "overlap"),
        help="match speakers across windows by voice embeddings, or by their activity where windows overlap "
        "(default: the recipe's model.decoding.stitching)",
    )
    parser.add_argument("--plot", metavar="OUT.png", help="draw the turns: .png, .svg or .pdf")
    parser.add_argument("--page", metavar="OUT.html", help="write a page with a timeline and a player")
    parser.add_argument("--stream", action="store_true", help="print each turn as soon as it has ended")
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument("--json", action="store_true", help="print the turns as JSON")


def run(args: argparse.Namespace) -> int:
    """Diarize, and print or write the turns."""
    from phonate.config.errors import InputError, optional_package, plain_file
    from phonate.workflows.load import load

    for path in filter(None, (args.output, args.plot, args.page)):  # checked before the work starts
        if not Path(path).absolute().parent.is_dir():
            raise InputError(f"{path}: the folder {Path(path).parent} does not exist; create it first")
        plain_file(Path(path))
    if args.plot and Path(args.plot).suffix.lower() not in PICTURES:
        raise InputError(f"--plot {args.plot}: the suffix must be one of {', '.join(PICTURES)}")
    if args.plot:
        optional_package("matplotlib", "--plot", "'phonate[plots]'")
    if args.stream:
        for name in ("speakers", "min_speakers", "max_speakers", "stitching", "plot", "page", "json"):
            if getattr(args, name) is not None and getattr(args, name) is not False:
                raise InputError(f"--{name.replace('_', '-')} can't be used with --stream")
    diarizer = load(args.run, "diarization", device=args.device)
    return _stream(args, diarizer) if args.stream else _whole(args, diarizer)


def _whole(args: argparse.Namespace, diarizer: Diarizer) -> int:
    from phonate.cli.output import print_json
    from phonate.data.annotations import write_rttm
    from phonate.workflows.pages.diarization import write_diarization_page, write_picture

    found = diarizer.diarize(
        args.recording,
        speakers=args.speakers,
        min_speakers=args.min_speakers,
        max_speakers=args.max_speakers,
        stitching=args.stitching,
    )
    if args.output:
        write_rttm(args.output, {recording_name(args.recording): found.turns})
    if args.plot:
        write_picture(args.plot, found)
    if args.page:
        write_diarization_page(args.page, args.recording, found)
    if args.json:
        print_json(_document(args.recording, found))
    elif args.output:
        written = ", ".join(filter(None, (args.output, args.plot, args.page)))
        print(f"{written}: {_count(found.speakers, 'speaker')} in {_count(found.turns, 'turn')}, {found.seconds:.1f} s")
    else:
        print(found.rttm(recording_name(args.recording)), end="")
    return 0


def _stream(args: argparse.Namespace, diarizer: Diarizer) -> int:
    from phonate.audio.decoding import read_blocks
    from phonate.data.annotations import rttm_lines, write_rttm

    turns = []
    name = recording_name(args.recording)
    blocks = read_blocks(args.recording, diarizer.sample_rate, block_seconds=_STREAM_SECONDS)
    for turn in diarizer.stream(blocks):
        turns.append(turn)
        print(*rttm_lines(name, [turn]), flush=True)
    if args.output:
        write_rttm(args.output, {name: turns})
    return 0


def recording_name(path: str) -> str:
    """The recording's name in RTTM: the file name without suffix, spaces replaced by underscores."""
    return "_".join(Path(path).stem.split())


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"


def _document(recording: str, found: Diarization) -> dict[str, Any]:
    return {
        "recording": recording,
        "seconds": found.seconds,
        "speakers": found.speakers,
        "turns": [{"start": turn.start, "end": turn.end, "speaker": turn.speaker} for turn in found.turns],
    }
