"""Speak a text in a trained voice.

RUN is a run's folder or one of its checkpoints; TEXT is what to say, or - to read it from standard input.
"""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate speak`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task speech, or a checkpoint")
    parser.add_argument("text", metavar="TEXT", help="what to say, of any length; - reads standard input")
    parser.add_argument("--speaker", metavar="NAME", help="the voice (default: the run's first speaker)")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="1.2 is a fifth faster (default: 1)")
    parser.add_argument(
        "--semitones", type=float, default=0.0, metavar="X", help="raise the pitch by X semitones (default: 0)"
    )
    parser.add_argument(
        "--vocoder", metavar="RUN", help="a run of the task vocoder, or griffin_lim for none (default: the recipe's)"
    )
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument("-o", "--output", metavar="OUT.wav", required=True, help="where to write: .wav or .flac")


def run(args: argparse.Namespace) -> int:
    """Speak, and print what was written."""
    from phonate.audio.decoding import MADE, writable, write_audio
    from phonate.workflows.load import load

    writable(args.output)
    text = sys.stdin.read() if args.text == "-" else args.text
    synthesiser = load(args.run, "speech", device=args.device, vocoder=args.vocoder)
    waveform = synthesiser.speak(text, args.speaker, args.speed, args.semitones)
    write_audio(args.output, waveform, synthesiser.sample_rate, MADE)
    print(f"{args.output}: {len(waveform) / synthesiser.sample_rate:.1f} s")
    return 0
