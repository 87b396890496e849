"""Commands that speak a text: speak, predict, clone."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from phonate.cli.inputs import require_sounds, without_blas_threads
from phonate.cli.parsing import add_device, add_model_options, add_vocoder, local_path, model_options
from phonate.training.checkpoints.files import BASE_VOICE

if TYPE_CHECKING:
    from phonate.audio.decoding import FloatArray
    from phonate.tasks.cloning.inference import VoiceCloner


OUTPUT = "spoken.wav"


_BLOCK = 1024
"""Samples that are handed to the loudspeaker together."""


def speak_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate speak`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=BASE_VOICE,
        help="a run of the task speech, or a checkpoint (default: base/voice, which comes with phonate)",
    )
    parser.add_argument("text", metavar="TEXT", help="what to say, of any length; - reads standard input")
    parser.add_argument(
        "--speaker", metavar="NAME", help="the voice, or a blend: anna:0.6+ben:0.4 (default: the run's first speaker)"
    )
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="1.2 is a fifth faster (default: 1)")
    parser.add_argument(
        "--semitones", type=float, default=0.0, metavar="X", help="raise the pitch by X semitones (default: 0)"
    )
    add_vocoder(parser)
    parser.add_argument("--lexicon", metavar="FILE", help="your own pronunciations: a word and its phones on each line")
    parser.add_argument(
        "--no-prosody-rules",
        action="store_true",
        help="leave questions and silences as the model says them; don't apply the language's rules",
    )
    parser.add_argument("--captions", metavar="FILE", help="write captions (.srt, .vtt) or word times (.json)")
    add_device(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.wav",
        default=OUTPUT,
        help=f"where to write: .wav, .flac or .mp3, loudspeaker, or - (default: {OUTPUT})",
    )


def speak(args: argparse.Namespace) -> int:
    """Speak a text, in a trained voice or in the one that comes with phonate.

    RUN is a run's folder or one of its checkpoints; TEXT is what to say, or - to read it from standard input. A text
    that begins with <speak is SSML. With -o loudspeaker, or -o - for raw 16-bit samples on standard output, each
    sentence is heard while the next is made.
    """
    without_blas_threads()
    from phonate.audio.decoding import MADE, writable, write_audio
    from phonate.audio.live import LOUDSPEAKER, PIPE, ahead
    from phonate.cli.output import WARNINGS, log_to_console
    from phonate.config.errors import InputError, plain_file
    from phonate.tasks.speech.inference import Synthesiser
    from phonate.text.captions import captions, write_captions
    from phonate.text.language import tell_other

    streamed = args.output in (LOUDSPEAKER, PIPE)
    if streamed and args.captions is not None:
        raise InputError("--captions: only for a sound file; name one by -o OUT.wav")
    if not streamed:
        writable(args.output)
    _require_text(args)
    if args.captions is not None:  # what is wrong with it is reported before anything is spoken
        captions([], plain_file(Path(args.captions)).suffix.lower())
        if not (folder := Path(args.captions).absolute().parent).is_dir():
            raise InputError(f"{args.captions}: no folder {folder}; make it first")
    text = _text(args.text)
    log_to_console(WARNINGS)
    synthesiser = Synthesiser.load(args.run, args.vocoder, device=args.device)
    synthesiser.prosody_rules = not args.no_prosody_rules
    if args.lexicon is not None:
        synthesiser.pronounce(args.lexicon)
    if told := tell_other(re.sub(r"<[^>]*>", " ", text), synthesiser.inventory.language):
        logging.getLogger("phonate").warning(told)
    request = (text, args.speaker, args.speed, args.semitones)
    if streamed:
        rate = synthesiser.sample_rate
        seconds = _play(ahead(synthesiser.stream(*request)), args.output, rate) / rate
        stream = sys.stderr if args.output == PIPE else sys.stdout  # standard output is the sound
        print(f"{args.output}: {seconds:.1f} s at {rate} Hz", file=stream)
        return 0
    if args.captions is not None:
        waveform, words = synthesiser.timed(*request)
        write_captions(args.captions, words, len(waveform) / synthesiser.sample_rate)
    else:
        waveform = synthesiser.speak(*request)
    write_audio(args.output, waveform, synthesiser.sample_rate, MADE)
    print(f"{args.output}: {len(waveform) / synthesiser.sample_rate:.1f} s")
    return 0


def _play(pieces: Iterator[FloatArray], output: str, sample_rate: int) -> int:
    """Hand each piece to the loudspeaker or to standard output as soon as it is there; returns the samples."""
    from phonate.audio.live import opened_sink

    samples = 0
    with opened_sink(output, sample_rate, _BLOCK) as sink:
        for piece in pieces:
            sink.write(piece)
            samples += len(piece)
    return samples


def _require_text(args: argparse.Namespace) -> None:
    """Raise InputError for a run or a file that was given as the text to speak."""
    from phonate.config.errors import InputError

    if args.run == BASE_VOICE and (args.text == BASE_VOICE or os.path.isdir(args.text)):
        example = f"phonate speak {shlex.quote(args.text)} TEXT"
        raise InputError(f"{args.text} is a voice or a folder: say what to speak, as in {example}")
    if not os.path.exists(args.run) and os.path.isdir(args.text):
        raise InputError(f"{args.text}: a folder; the run comes first: {shlex.join([args.text, args.run])}")
    if not os.path.exists(args.run) and all(re.fullmatch(r"\w[\w']*[,.!?]?", one) for one in (args.run, args.text)):
        from phonate.training.checkpoints.listing import no_run

        words = shlex.quote(f"{args.run} {args.text}")
        raise no_run(
            args.run, f"no such run or checkpoint; a text of two words needs quotes: phonate speak {words}", "speech"
        )
    _refuse_file(args.text, "phonate speak -" if args.run == BASE_VOICE else f"phonate speak {shlex.quote(args.run)} -")


_TEXT_FILES = (".csv", ".doc", ".docx", ".epub", ".html", ".json", ".md", ".odt", ".pdf", ".rtf", ".srt", ".ssml",
               ".text", ".txt", ".vtt", ".xml")  # fmt: skip


def _refuse_file(text: str, command: str) -> None:
    """Raise InputError for the name of a file that was given as the text to speak. `command`: what speaks standard
    input."""
    from phonate.config.errors import InputError

    name = shlex.quote(text)
    if (Path(text).suffix or os.sep in text) and os.path.isfile(text):
        raise InputError(f"{text} is a file: to speak what it says, write {command} < {name}")
    if Path(text).suffix.lower() in _TEXT_FILES and len(text.split()) == 1:
        raise InputError(f"{text}: no such file; to speak these very words, write echo {name} | {command}")


def _text(argument: str) -> str:
    """The text, or for - that of standard input. Raises InputError for what is no UTF-8, which would be spoken as other
    words."""
    from phonate.config.errors import InputError

    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input is not UTF-8 text ({error.reason} at byte {error.start}); convert it"
        ) from error


def predict_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate predict`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task speech, or a checkpoint")
    parser.add_argument("-o", "--output", metavar="FOLDER", type=local_path, required=True, help="a new folder")


def predict(args: argparse.Namespace) -> int:
    """Predict the mels of a voice's own corpus, with the recorded durations, energy and pitch (teacher forcing).

    A vocoder that is fine-tuned on them (data.predicted=FOLDER, training.init_from=VOCODER) sounds better with that
    voice: predicted mels are smoother than recorded ones.
    """
    from phonate.tasks.speech.inference import predict_corpus

    count = predict_corpus(args.run, args.output)
    print(f"{args.output}: mels of {count} recordings")
    return 0


def clone_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate clone`."""
    parser.add_argument("model", metavar="MODEL", help="a run, a checkpoint, a merged model, or a name on the hub")
    parser.add_argument("--reference", metavar="REF.wav", help="the voice: 5 to 30 seconds of it")
    parser.add_argument("--voice", metavar="NAME", help="the voice: one of --voices")
    parser.add_argument("--voices", metavar="DIR", help="a folder with NAME.wav and NAME.txt for each voice")
    parser.add_argument("--text", metavar="TEXT", required=True, help="what to say; - reads standard input")
    parser.add_argument("--reference-text", metavar="TEXT", help="what is said in REF.wav; improves the likeness")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the random draws (default: 0)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest codes (default: 0.3)")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest codes (default: 50; 0: all)")
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="draw from the likeliest codes that reach probability P together (default: 0.95)",
    )
    parser.add_argument(
        "--max-seconds", type=float, metavar="S", help="speak at most S seconds (default: estimated from the text)"
    )
    add_model_options(parser)
    add_device(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.wav",
        required=True,
        help="where to write: .wav, .flac or .mp3; - writes 16-bit mono samples to standard output while they are made",
    )


def clone(args: argparse.Namespace) -> int:
    """Speak a text in the voice of a recording.

    MODEL is a run of the task cloning, one of its checkpoints, the folder of a merged model, or the name of a model of
    Higgs Audio v2 on the hub. The file that is written carries the tag "AI-generated by phonate".
    """
    import numpy as np

    from phonate.audio.decoding import MADE, writable, write_audio
    from phonate.cli.output import log_to_console
    from phonate.config.errors import InputError
    from phonate.config.registry import nearest
    from phonate.workflows.load import load

    if (args.reference is None) == (args.voice is None) or (args.voice is None) != (args.voices is None):
        raise InputError("give the voice: either --reference REF.wav, or --voices DIR with --voice NAME")
    log_to_console()
    if args.output != "-":
        writable(args.output)
    _refuse_file(args.text, "phonate clone ... --text -")
    text = _text(args.text)
    require_sounds([] if args.reference is None else [args.reference])
    cloner = load(args.model, "cloning", device=args.device, voices=args.voices, **model_options(args))
    if args.voice is not None and args.voice not in cloner.voices:
        raise InputError(f"--voice {args.voice}: {nearest(args.voice, sorted(cloner.voices))}")
    began = time.monotonic()
    chunks = _cloned_chunks(args, cloner, text)
    if args.output == "-":
        samples = _play(chunks, args.output, cloner.sample_rate)
    else:
        waveform = np.concatenate(list(chunks))
        samples = len(waveform)
        write_audio(args.output, waveform, cloner.sample_rate, MADE)
    took, lasts = time.monotonic() - began, samples / cloner.sample_rate
    done = "standard output" if args.output == "-" else args.output
    print(
        f"{done}: {lasts:.1f} s at {cloner.sample_rate} Hz, made in {took:.1f} s (real-time factor {took / lasts:.2f})",
        file=sys.stderr if args.output == "-" else sys.stdout,
    )
    return 0


def _cloned_chunks(args: argparse.Namespace, cloner: VoiceCloner, text: str) -> Iterator[FloatArray]:
    """The speech as it is made, with its progress on a terminal."""
    from phonate.cli.output import ProgressBar

    options = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "seed", "max_seconds")}
    voice = args.voice if args.reference is None else args.reference
    longest = round(cloner.longest(text, args.max_seconds) * cloner.sample_rate)
    bar, samples = ProgressBar(), 0
    try:
        for chunk in cloner.stream(voice, text, reference_text=args.reference_text, **options):
            yield chunk
            samples += len(chunk)
            bar("Speaking", min(samples, longest - 1), longest)  # it may end sooner
    finally:
        bar.close()
