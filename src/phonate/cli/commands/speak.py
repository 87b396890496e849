"""Speak a text, in a trained voice or in the one that comes with phonate.

RUN is a run's folder or one of its checkpoints; TEXT is what to say, or - to read it from standard input. A text that
begins with <speak is SSML. With -o loudspeaker, or -o - for raw 16-bit samples on standard output, each sentence is
heard while the next is made.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phonate.audio.decoding import FloatArray

VOICE = "base/voice"
OUTPUT = "spoken.wav"
_BLOCK = 1024
"""Samples that are handed to the loudspeaker together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate speak`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=VOICE,
        help="a run of the task speech, or a checkpoint (default: base/voice, which comes with phonate)",
    )
    parser.add_argument("text", metavar="TEXT", help="what to say, of any length; - reads standard input")
    parser.add_argument("--speaker", metavar="NAME", help="the voice (default: the run's first speaker)")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="1.2 is a fifth faster (default: 1)")
    parser.add_argument(
        "--semitones", type=float, default=0.0, metavar="X", help="raise the pitch by X semitones (default: 0)"
    )
    parser.add_argument(
        "--vocoder", metavar="RUN", help="a run of the task vocoder, or griffin_lim for none (default: the recipe's)"
    )
    parser.add_argument("--lexicon", metavar="FILE", help="your own pronunciations: a word and its phones on each line")
    parser.add_argument(
        "--no-prosody-rules",
        action="store_true",
        help="leave questions and silences as the model says them; don't apply the language's rules",
    )
    parser.add_argument("--captions", metavar="FILE", help="write captions (.srt, .vtt) or word times (.json)")
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.wav",
        default=OUTPUT,
        help=f"where to write: .wav or .flac, loudspeaker, or - (default: {OUTPUT})",
    )


def run(args: argparse.Namespace) -> int:
    """Speak, and print what was written."""
    from phonate.audio.decoding import MADE, writable, write_audio
    from phonate.audio.live import LOUDSPEAKER, PIPE
    from phonate.config.errors import InputError, plain_file
    from phonate.text.captions import captions, write_captions
    from phonate.workflows.load import load

    streamed = args.output in (LOUDSPEAKER, PIPE)
    if streamed and args.captions is not None:
        raise InputError("--captions: only for a sound file; name one by -o OUT.wav")
    if not streamed:
        writable(args.output)
    if args.run == VOICE and (args.text == VOICE or os.path.isdir(args.text)):
        raise InputError(f"{args.text} is a voice or a folder: say what to speak, as in phonate speak {args.text} TEXT")
    if (Path(args.text).suffix or os.sep in args.text) and os.path.isfile(args.text):
        run = "" if args.run == VOICE else f"{args.run} "
        raise InputError(f"{args.text} is a file: to speak what it says, write phonate speak {run}- < {args.text}")
    if args.captions is not None:  # what is wrong with it is reported before anything is spoken
        captions([], plain_file(Path(args.captions)).suffix.lower())
        if not (folder := Path(args.captions).absolute().parent).is_dir():
            raise InputError(f"{args.captions}: no folder {folder}; make it first")
    text = _standard_input() if args.text == "-" else args.text
    synthesiser = load(args.run, "speech", device=args.device, vocoder=args.vocoder)
    synthesiser.prosody_rules = not args.no_prosody_rules
    if args.lexicon is not None:
        synthesiser.pronounce(args.lexicon)
    if streamed:
        return _stream(
            synthesiser.stream(text, args.speaker, args.speed, args.semitones), synthesiser.sample_rate, args
        )
    given = (text, args.speaker, args.speed, args.semitones)
    if args.captions is not None:
        waveform, words = synthesiser.timed(*given)
        write_captions(args.captions, words)
    else:
        waveform = synthesiser.speak(*given)
    write_audio(args.output, waveform, synthesiser.sample_rate, MADE)
    print(f"{args.output}: {len(waveform) / synthesiser.sample_rate:.1f} s")
    return 0


def _stream(pieces: Iterator[FloatArray], sample_rate: int, args: argparse.Namespace) -> int:
    from phonate.audio.live import PIPE, ahead, opened_sink

    samples = 0
    with opened_sink(args.output, sample_rate, _BLOCK) as sink:
        for piece in ahead(pieces):
            sink.write(piece)
            samples += len(piece)
    said = sys.stderr if args.output == PIPE else sys.stdout  # standard output is the sound
    print(f"{args.output}: {samples / sample_rate:.1f} s at {sample_rate} Hz", file=said)
    return 0


def _standard_input() -> str:
    """Raises InputError for what is no UTF-8 text, which would be spoken as other words."""
    from phonate.config.errors import InputError

    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input is not UTF-8 text ({error.reason} at byte {error.start}); convert it"
        ) from error
