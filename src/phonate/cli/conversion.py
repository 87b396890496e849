"""The command convert."""

from __future__ import annotations

import argparse
import os
import sys

from phonate.cli.batch import Batch, Recording, Targets, add_format, batch_of, recordings_at
from phonate.cli.inputs import require_sounds
from phonate.cli.parsing import add_device, add_vocoder


def convert_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate convert`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task conversion, or a checkpoint")
    parser.add_argument(
        "recordings",
        metavar="IN.wav",
        nargs="+",
        help="recordings, or folders of them; live one recording, microphone, or -",
    )
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
        help="where to write: .wav, .flac or .mp3; of several recordings a folder; live also loudspeaker, or -",
    )
    add_format(parser, "wav", "flac or mp3")


def convert(args: argparse.Namespace) -> int:
    """Convert recordings to another voice, or a voice while it speaks.

    RUN is a run's folder or one of its checkpoints; recordings may be of any format, rate and length. A run of the
    recipe conversion-any converts to the voice of --reference, about a minute of recordings, instead of --speaker. Of
    several recordings, those that can't be read are told and left out, and the exit code is then 2.

    With --live each block of sound is converted as soon as it is there, which needs a causal model and a causal vocoder
    (recipe conversion-live). IN is then a recording, microphone, or - for raw 16-bit samples of one channel from
    standard input; OUT is a file, loudspeaker, or - for raw samples to standard output.
    """
    from phonate.audio.decoding import MADE, write_pieces
    from phonate.cli.output import WARNINGS, log_to_console
    from phonate.config.errors import InputError
    from phonate.data.progress import Stage
    from phonate.workflows.load import load

    if args.live:
        return _convert_live(args)
    if "-" in (*args.recordings, args.output):
        raise InputError("- (standard input or output) needs --live")
    if args.rate is not None:
        raise InputError("--rate is for raw samples from standard input, which needs --live")
    if args.reference and args.speaker is not None:
        raise InputError("give one voice: either --reference REF, or --speaker NAME")
    require_sounds(one for one in args.reference or () if not os.path.isdir(one))
    batch = batch_of(args, None)
    targets = _targets(args, batch)
    log_to_console(WARNINGS)
    converter = load(args.run, "conversion", device=args.device, vocoder=args.vocoder)
    voice = converter.reference(args.reference) if args.reference else args.speaker
    name = ", ".join(args.reference) if args.reference else args.speaker or converter.target

    def converted(one: Recording) -> float:
        parts = converter.parts(one.path, voice, semitones=args.semitones)
        return write_pieces(targets.path(one.name), parts, converter.sample_rate, MADE) / converter.sample_rate

    for one, seconds in batch.results(converted, Stage.CONVERTING):
        print(f"{targets.path(one.name)}: {seconds:.1f} s as {name}")
    return batch.exit_code()


def _targets(args: argparse.Namespace, batch: Batch) -> Targets:
    """Where the results are written. Raises InputError for what can't be written, or is a recording that is read."""
    from phonate.audio.decoding import encodable

    targets = Targets.of(args, batch, ".wav", (), encodable)
    assert targets is not None  # --output is required
    references = (one for path in args.reference or () for one in recordings_at(path))
    targets.require_apart(batch.recordings, [*batch.recordings, *references])
    return targets


def _convert_live(args: argparse.Namespace) -> int:
    import torch

    from phonate.audio.live import LOUDSPEAKER, PIPE
    from phonate.cli.output import log_to_console
    from phonate.config.errors import InputError
    from phonate.workflows.live import MICROPHONE, convert_live
    from phonate.workflows.load import load

    if args.reference:
        raise InputError("--reference: live models only have the voices they were trained on; leave out --live")
    if args.recordings in ([MICROPHONE], [PIPE]):
        batch = Batch([Recording(args.recordings[0], args.recordings[0])], several=False)
    else:
        batch = batch_of(args, None)
    batch.require_one(["--live"])
    (one,) = batch.recordings
    targets = None if args.output in (LOUDSPEAKER, PIPE) else _targets(args, batch)
    if targets is None and args.format is not None:
        raise InputError(f"--format {args.format}: only for files in a folder; name it by -o FOLDER")
    log_to_console()
    converter = load(args.run, "conversion", device=args.device, vocoder=args.vocoder)
    torch.set_num_threads(1)  # blocks are too small to share
    output = args.output if targets is None else str(targets.path(one.name))
    result = convert_live(converter, one.path, output, args.speaker, args.rate, args.semitones)
    # Standard output may be the sound.
    print(
        f"{output}: {result.seconds:.1f} s as {args.speaker or converter.target}, {1000 * result.latency:.0f} ms "
        f"behind the input; computation took {result.busy:.0%} of the time"
        + (f", and {result.late:.1%} of the blocks came late" if result.late else ""),
        file=sys.stderr if output == PIPE else sys.stdout,
    )
    return 0
