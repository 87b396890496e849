"""The command convert."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from phonate.cli.inputs import require_recording, require_sounds
from phonate.cli.parsing import add_device, add_vocoder


def convert_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate convert`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task conversion, or a checkpoint")
    parser.add_argument("recording", metavar="IN.wav", help="the recording to convert; live also microphone, or -")
    parser.add_argument("--speaker", metavar="NAME", help="the voice to convert to (default: the run's target)")
    parser.add_argument(
        "--reference",
        metavar="REF",
        action="append",
        help="the voice to convert to: a recording, or a folder of them; may be given several times",
    )
    parser.add_argument(
        "--semitones",
        type=float,
        default=0.0,
        metavar="X",
        help="raise the pitch by X semitones over the voice's own register (default: 0)",
    )
    add_vocoder(parser)
    parser.add_argument("--live", action="store_true", help="convert block by block, as the sound comes in")
    parser.add_argument(
        "--rate", type=int, metavar="HZ", help="sample rate of raw samples from standard input (default: the run's)"
    )
    add_device(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.wav",
        required=True,
        help="where to write: .wav or .flac; live also loudspeaker, or -",
    )


def convert(args: argparse.Namespace) -> int:
    """Convert a recording to another voice, or a voice while it speaks.

    RUN is a run's folder or one of its checkpoints; the recording may be of any format, rate and length. A run of the
    recipe conversion-any converts to the voice of --reference, about a minute of recordings, instead of --speaker.

    With --live each block of sound is converted as soon as it is there, which needs a causal model and a causal vocoder
    (recipe conversion-live). IN is then a recording, microphone, or - for raw 16-bit samples of one channel from
    standard input; OUT is a file, loudspeaker, or - for raw samples to standard output.
    """
    from phonate.audio.decoding import MADE, write_pieces
    from phonate.cli.output import WARNINGS, log_to_console
    from phonate.config.errors import InputError
    from phonate.workflows.load import load

    if args.live:
        return _convert_live(args)
    if args.recording == "-" or args.output == "-":
        raise InputError("- (standard input or output) needs --live")
    if args.rate is not None:
        raise InputError("--rate is for raw samples from standard input, which needs --live")
    if args.reference and args.speaker is not None:
        raise InputError("give one voice: either --reference REF, or --speaker NAME")
    _check_converted(args)
    require_recording(args.recording, args.run)
    require_sounds(one for one in args.reference or () if not os.path.isdir(one))
    log_to_console(WARNINGS)
    converter = load(args.run, "conversion", device=args.device, vocoder=args.vocoder)
    reference = args.reference
    voice = converter.reference(reference) if reference else args.speaker
    parts = converter.parts(args.recording, voice, semitones=args.semitones)
    samples = write_pieces(args.output, parts, converter.sample_rate, MADE)
    name = ", ".join(reference) if reference else args.speaker or converter.target
    print(f"{args.output}: {samples / converter.sample_rate:.1f} s as {name}")
    return 0


def _check_converted(args: argparse.Namespace) -> None:
    """Raise InputError for a file that can't be written, or that is the recording itself, before time is spent."""
    from phonate.audio.decoding import writable
    from phonate.config.errors import InputError

    if writable(args.output).resolve() == Path(args.recording).resolve():
        raise InputError(f"{args.output}: is the recording that is converted; choose another -o")


def _convert_live(args: argparse.Namespace) -> int:
    import torch

    from phonate.audio.live import LOUDSPEAKER, PIPE
    from phonate.cli.output import log_to_console
    from phonate.config.errors import InputError
    from phonate.workflows.live import convert_live
    from phonate.workflows.load import load

    if args.reference:
        raise InputError("--reference: live models only have the voices they were trained on; leave out --live")
    if args.output not in (LOUDSPEAKER, PIPE):
        _check_converted(args)
    log_to_console()
    converter = load(args.run, "conversion", device=args.device, vocoder=args.vocoder)
    torch.set_num_threads(1)  # blocks are too small to share
    result = convert_live(converter, args.recording, args.output, args.speaker, args.rate, args.semitones)
    # Standard output may be the sound.
    print(
        f"{args.output}: {result.seconds:.1f} s as {args.speaker or converter.target}, {1000 * result.latency:.0f} ms "
        f"behind the input; computation took {result.busy:.0%} of the time"
        + (f", and {result.late:.1%} of the blocks came late" if result.late else ""),
        file=sys.stderr if args.output == PIPE else sys.stdout,
    )
    return 0
