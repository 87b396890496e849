"""Convert a recording to another voice.

RUN is a run's folder or one of its checkpoints; the recording may be of any format, rate and length.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate convert`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task conversion, or a checkpoint")
    parser.add_argument("recording", metavar="IN.wav", help="the recording to convert")
    parser.add_argument("--speaker", metavar="NAME", help="the voice to convert to (default: the run's target)")
    parser.add_argument(
        "--vocoder", metavar="RUN", help="a run of the task vocoder, or griffin_lim for none (default: the recipe's)"
    )
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument("-o", "--output", metavar="OUT.wav", required=True, help="where to write: .wav or .flac")


def run(args: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    from phonate.audio.decoding import MADE, writable, write_audio
    from phonate.workflows.load import load

    writable(args.output)  # before the time of a conversion is spent
    converter = load(args.run, "conversion", device=args.device, vocoder=args.vocoder)
    waveform = converter.convert(args.recording, args.speaker)
    write_audio(args.output, waveform, converter.sample_rate, MADE)
    print(f"{args.output}: {len(waveform) / converter.sample_rate:.1f} s as {args.speaker or converter.target}")
    return 0
