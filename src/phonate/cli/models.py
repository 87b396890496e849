"""Commands that use a trained model: speak, predict, clone, convert, generate, transcribe, align, diarize, serve."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.cli.parsing import (
    add_base_option,
    add_device,
    add_known,
    add_model_options,
    add_vocoder,
    known_speakers,
    language_code,
    local_path,
    model_options,
)

if TYPE_CHECKING:
    from phonate.audio.decoding import FloatArray
    from phonate.data.transcripts import Alignment, Transcription
    from phonate.tasks.cloning.inference import VoiceCloner
    from phonate.tasks.diarization.inference import Diarizer


VOICE = "base/voice"
OUTPUT = "spoken.wav"
_BLOCK = 1024
"""Samples that are handed to the loudspeaker together."""


def speak_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate speak`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=VOICE,
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
        help=f"where to write: .wav or .flac, loudspeaker, or - (default: {OUTPUT})",
    )


def speak(args: argparse.Namespace) -> int:
    """Speak a text, in a trained voice or in the one that comes with phonate.

    RUN is a run's folder or one of its checkpoints; TEXT is what to say, or - to read it from standard input. A text
    that begins with <speak is SSML. With -o loudspeaker, or -o - for raw 16-bit samples on standard output, each
    sentence is heard while the next is made.
    """
    _without_blas_threads()
    from phonate.audio.decoding import MADE, writable, write_audio
    from phonate.audio.live import LOUDSPEAKER, PIPE, ahead
    from phonate.cli.output import WARNINGS, log_to_console
    from phonate.config.errors import InputError, plain_file
    from phonate.tasks.speech.inference import Synthesiser
    from phonate.text.captions import captions, write_captions

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


def _without_blas_threads() -> None:
    """Let NumPy's products of matrices run on the thread that asks for them. Those of a voice are so small that other
    threads would spend more time on waiting for each other than on them."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # is read when NumPy is imported


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

    if args.run == VOICE and (args.text == VOICE or os.path.isdir(args.text)):
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
    _refuse_file(args.text, "phonate speak -" if args.run == VOICE else f"phonate speak {shlex.quote(args.run)} -")


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
        help="where to write: .wav or .flac; - writes 16-bit mono samples to standard output while they are made",
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
    _require_sounds([] if args.reference is None else [args.reference])
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
    _require_recording(args.recording, args.run)
    _require_sounds(one for one in args.reference or () if not os.path.isdir(one))
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


GENERATION_OPTIONS = ("max_tokens", "temperature", "seed", "beam_width")


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate generate`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task language or sequence, or a checkpoint")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to start from; - reads standard input")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="at most N tokens (default: language 200, sequence data.max_length)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="language: 0 takes the likeliest token each time (default: 0.7)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="language: seed of the random draws (default: 0)")
    parser.add_argument(
        "--beam-width", type=int, metavar="K", help="sequence: hypotheses kept (default: the recipe's beam_width)"
    )
    add_base_option(parser)
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print prompt and text as JSON")


def generate(args: argparse.Namespace) -> int:
    """Write text with a trained model: an answer, a continuation, a translation or a label.

    RUN is a run's folder or one of its checkpoints; PROMPT is the text, or - to read it from standard input. A language
    model that was trained on responses answers, one that was trained on plain text continues; a model of sequences
    writes the target of a source, by beam search, or tells its label. Text is printed as it is generated.
    """
    from phonate.cli.output import WARNINGS, log_to_console, print_json
    from phonate.config.errors import InputError
    from phonate.workflows.load import load, task_of

    prompt = args.prompt
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")
    log_to_console(WARNINGS)
    generator: Any = load(args.run, device=args.device, base=args.base)
    if not hasattr(generator, "generate"):
        raise InputError(f"{args.run}: holds a model of the task {task_of(args.run)}, which generates no text")
    options = {name: getattr(args, name) for name in GENERATION_OPTIONS if getattr(args, name) is not None}
    for name in options.keys() - inspect.signature(generator.generate).parameters.keys():
        raise InputError(f"--{name.replace('_', '-')}: this model has no use for it; leave it out")
    if args.json:
        print_json({"prompt": prompt, "text": generator.generate(prompt, **options)})
    else:
        for piece in generator.stream(prompt, **options):
            print(piece, end="", flush=True)
        print()
    return 0


WHISPER = "whisper"
DIARIZER = "base/diarizer"


def transcribe_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate transcribe`."""
    parser.add_argument(
        "run",
        metavar="MODEL",
        nargs="?",
        default=WHISPER,
        help="a run of the task recognition, a checkpoint, whisper, whisper/NAME such as whisper/small, or a Whisper "
        "in a folder or on the hub (default: whisper, the best that is installed)",
    )
    parser.add_argument("recording", metavar="IN.wav", help="the recording to transcribe")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where to write: .txt, .srt, .vtt, .json, .rttm, .TextGrid or .ctm"
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        type=language_code,
        help="the language, such as de (default: what the model detects)",
    )
    parser.add_argument(
        "--speakers",
        metavar="DIARIZER|N",
        nargs="?",
        const=DIARIZER,
        help="give each word its speaker, by a run of the task diarization (without a value: base/diarizer, which "
        "comes with phonate); a number: by that one, of so many speakers",
    )
    add_known(parser)
    add_base_option(parser)
    parser.add_argument(
        "--beam",
        type=int,
        metavar="N",
        help="hypotheses that the search keeps; 1 is the fastest (default: the model's own choice)",
    )
    parser.add_argument("--page", metavar="OUT.html", help="write a page with a player, to listen and to correct")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print the words with their times as JSON")


def transcribe(args: argparse.Namespace) -> int:
    """Transcribe a recording of any format, sample rate and length, with the times and the speakers of the words.

    MODEL is whisper, which comes trained, or a run of your own. Without -o the text is printed.
    """
    from phonate.cli.output import WARNINGS, log_to_console, print_json
    from phonate.config.errors import InputError
    from phonate.data.transcripts import Transcription, format_transcription, write_transcription
    from phonate.pretrained import TRANSCRIPTION, require
    from phonate.workflows.load import load

    known = known_speakers(args.known)
    if args.speakers is None and known:
        raise InputError("--known names speakers, so it needs --speakers")
    if args.output is not None:  # what is wrong with it is reported before the work starts
        if Path(args.output).suffix == ".rttm" and args.speakers is None:
            raise InputError(f"{args.output}: RTTM says who speaks; add --speakers")
        format_transcription(Transcription([], 0.0), "unknown", Path(args.output).suffix)
    _require_folders(args.output, args.page)
    _require_recording(args.recording, args.run)
    _require_sounds(known.values())
    if args.run.partition("/")[0] == "whisper" and not Path(args.run).exists():  # before torch is imported
        require("transcription", TRANSCRIPTION)
    log_to_console(WARNINGS)
    count = int(args.speakers) if (args.speakers or "").isdecimal() and not Path(args.speakers).exists() else None
    source = args.speakers if count is None else DIARIZER
    diarizer = None if source is None else load(source, "diarization", device=args.device)
    recogniser = load(args.run, "recognition", device=args.device, base=args.base)
    turns = None if diarizer is None else diarizer.diarize(args.recording, speakers=count, known=known).turns
    transcription = recogniser.timed(args.recording, args.beam, language=args.language, speakers=turns)
    name = recording_name(args.recording)
    if args.output is not None:
        write_transcription(args.output, transcription, name)
    if args.page is not None:
        from phonate.workflows.pages.recordings import write_transcript_page

        write_transcript_page(args.page, args.recording, transcription)
    if args.json:
        print_json(transcription.document(args.recording))
    elif args.output or args.page:
        who = f" of {_count(transcription.speakers, 'speaker')}" if args.speakers is not None else ""
        written = ", ".join(filter(None, (args.output, args.page)))
        print(f"{written}: {_count(transcription.words, 'word')}{who}, {transcription.seconds:.1f} s")
    else:
        print(format_transcription(transcription, name, ".txt"), end="")
        _tell_of_silence(args.recording, transcription)
    return 0


def _tell_of_silence(recording: str, transcription: Transcription) -> None:
    if not transcription.words:
        print(f"{recording}: no words recognised in {transcription.seconds:.1f} s", file=sys.stderr)


ALIGNMENTS = (".TextGrid", ".json", ".ctm", ".srt", ".vtt")


def align_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate align`."""
    parser.add_argument("recordings", metavar="RECORDINGS", type=local_path, help="a recording, or a folder of them")
    parser.add_argument(
        "texts",
        metavar="TEXTS",
        type=local_path,
        help="a text file; for a folder one with a .txt of the same name for each recording, a list with the name "
        "of a recording, a bar and its text in each line, or a table such as metadata.csv",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="where to write: .TextGrid, .json, .ctm, .srt or .vtt; for several recordings a folder, or one .ctm",
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        type=language_code,
        default="en-us",
        help="the language of the texts (default: en-us)",
    )
    parser.add_argument(
        "--by",
        metavar="MODEL",
        help="pocketsphinx, whisper, whisper/NAME, or a run of the task recognition (default: pocketsphinx for "
        "English, whisper for other languages)",
    )
    parser.add_argument(
        "--format",
        choices=[suffix.removeprefix(".") for suffix in ALIGNMENTS],
        help="of the files in a folder (default: TextGrid)",
    )
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print the alignments as JSON")


def align(args: argparse.Namespace) -> int:
    """Tell when the words of texts, and in English their phones, are said in recordings of any length.

    Words of a text that are not said are left out and named, and what is said beside the text is reported; .json has
    both, with the confidence of each word where a recogniser aligns. English is aligned by pocketsphinx, other
    languages by Whisper.
    """
    from phonate.cli.output import print_json
    from phonate.data.annotations import write_lines
    from phonate.data.transcripts import format_transcription, write_transcription
    from phonate.workflows.align import aligned, aligner_for, pairs_of

    pairs = pairs_of(args.recordings, args.texts)
    _check_targets(args)
    choice = aligner_for([pair.text for pair in pairs], args.language, args.by, args.device)
    if not args.json:
        print(f"aligning {choice.sentence}", file=sys.stderr)
    documents: dict[str, Any] = {}
    lines: list[str] = []
    names = Counter(recording_name(str(pair.recording)) for pair in pairs)
    for pair, alignment, reason in aligned(choice, pairs):
        if alignment is None:
            print(f"{pair.recording}: not aligned: {reason}", file=sys.stderr)
            continue
        documents[pair.name] = alignment.document(str(pair.recording))
        name = recording_name(str(pair.recording))
        if names[name] > 1:  # in folders of their own
            name = "_".join(pair.name.split())
        if Path(args.output).suffix == ".ctm":
            lines += format_transcription(alignment, name, ".ctm").splitlines()
        else:
            write_transcription(_target(args, pair.name), alignment, name)
        if not args.json:
            print(f"{pair.name}: {_aligned_line(alignment)}")
    if lines:
        write_lines(args.output, lines)
    if args.json:
        print_json(documents)
    return 0 if len(documents) == len(pairs) else 1


def _check_targets(args: argparse.Namespace) -> None:
    """Raise InputError for an --output that does not fit the recordings."""
    from phonate.config.errors import InputError

    output, single = Path(args.output), args.recordings.is_file()
    if (single or output.suffix) and output.suffix not in ALIGNMENTS:
        raise InputError(f"{output}: alignments are written as {', '.join(ALIGNMENTS)}; choose one of these suffixes")
    if not single and output.suffix not in ("", ".ctm"):
        raise InputError(f"{output}: {args.recordings} is a folder; give a folder, too, and --format, or one .ctm file")
    if output.suffix and args.format is not None:
        raise InputError(f"--format: only for a folder; the name of {output} says its format")
    if not output.suffix and output.is_file():
        raise InputError(f"{output}: a file; give a folder, or one .ctm file")
    if output.suffix:
        _require_folders(args.output)


def _target(args: argparse.Namespace, name: str) -> Path:
    if args.recordings.is_file():
        return Path(args.output)
    path = Path(args.output) / f"{name}.{args.format or 'TextGrid'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _aligned_line(alignment: Alignment) -> str:
    parts = [f"{_count(alignment.words, 'word')} in {alignment.seconds:.1f} s"]
    if alignment.missing:
        shown = ", ".join(word.text for word in alignment.missing[:5])
        more = ", ..." if len(alignment.missing) > 5 else ""
        parts.append(f"{len(alignment.missing)} not said: {shown}{more}")
    if alignment.extra:
        seconds = sum(one.end - one.start for one in alignment.extra)
        parts.append(f"{seconds:.1f} s said beside the text, first at {alignment.extra[0].start:.1f} s")
    return "; ".join(parts)


_STREAM_SECONDS = 0.1
PICTURES = (".png", ".svg", ".pdf")


def diarize_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate diarize`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=DIARIZER,
        help=f"a run of the task diarization, or a checkpoint (default: {DIARIZER}, which comes with phonate and "
        "needs phonate[eval])",
    )
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
    add_known(parser)
    parser.add_argument("--plot", metavar="OUT.png", help="draw the turns: .png, .svg or .pdf")
    parser.add_argument("--page", metavar="OUT.html", help="write a page with a timeline and a player")
    parser.add_argument("--stream", action="store_true", help="print each turn as soon as it has ended")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print the turns as JSON")


def diarize(args: argparse.Namespace) -> int:
    """Determine who speaks when in a recording of any format, sample rate and length.

    RUN is a run's folder or one of its checkpoints. Without -o the RTTM lines are printed. With --stream the recording
    is processed in blocks, as from a microphone, and each turn is printed as soon as it has ended; this needs a causal
    model. The suffix of -o chooses RTTM, a TextGrid for Praat, .eaf for ELAN, .vtt or .srt, or .txt for Audacity.
    """
    from phonate.cli.output import WARNINGS, log_to_console
    from phonate.config.errors import InputError, optional_package
    from phonate.data.labels import writer_for
    from phonate.pretrained import TRANSCRIPTION, require
    from phonate.workflows.load import load

    _require_folders(args.output, args.plot, args.page)
    if args.output:
        writer_for(args.output)
    known = known_speakers(args.known)
    if args.plot and Path(args.plot).suffix.lower() not in PICTURES:
        raise InputError(f"--plot {args.plot}: the suffix must be one of {', '.join(PICTURES)}")
    if args.plot:
        optional_package("matplotlib", "--plot", "'phonate[plots]'")
    if args.stream:
        for name in ("speakers", "min_speakers", "max_speakers", "stitching", "known", "plot", "page", "json"):
            if getattr(args, name) is not None and getattr(args, name) is not False:
                raise InputError(f"--{name.replace('_', '-')} can't be used with --stream")
    _require_recording(args.recording, args.run)
    _require_sounds(known.values())
    if args.run == DIARIZER and not Path(DIARIZER).exists():  # before torch is imported
        require(DIARIZER, TRANSCRIPTION)
    log_to_console(WARNINGS)
    diarizer = load(args.run, "diarization", device=args.device)
    return _diarize_stream(args, diarizer) if args.stream else _diarize_whole(args, diarizer, known)


def _require_recording(recording: str, run: str) -> None:
    """Raise InputError for a recording that is not there, is none, or is given before the run, before the work
    starts."""
    from phonate.config.errors import InputError

    if os.path.isfile(run) and os.path.isfile(recording):
        raise InputError(f"{run}: a file, not a run; give one recording at a time, and a run in front of it")
    if os.path.isfile(run):
        raise InputError(f"{run}: a file; the run comes first: {recording} {run}")
    if os.path.isfile(os.path.join(recording, "recipe.yaml")):
        raise InputError(f"{recording}: a run; give the recording behind it, as in {recording} IN.wav")
    _require_sounds([recording])


def _require_sounds(recordings: Iterable[str]) -> None:
    """Raise InputError for what is no recording on this machine, before the work starts."""
    from phonate.audio.readers import opened
    from phonate.compute.remote import is_remote
    from phonate.config.errors import InputError

    for recording in recordings:
        if is_remote(recording):
            raise InputError(f"{recording}: an address; download the recording, and give its file")
        with opened(Path(recording)):
            pass


def _require_folders(*paths: str | None) -> None:
    """Raise InputError for a file that can't be written there, before the work starts."""
    from phonate.config.errors import InputError, plain_file

    for path in filter(None, paths):
        if not Path(path).absolute().parent.is_dir():
            raise InputError(f"{path}: the folder {Path(path).parent} does not exist; create it first")
        plain_file(Path(path))


def _diarize_whole(args: argparse.Namespace, diarizer: Diarizer, known: dict[str, str]) -> int:
    from phonate.cli.output import print_json
    from phonate.data.labels import write_turns
    from phonate.workflows.pages.recordings import write_diarization_page, write_picture

    diarization = diarizer.diarize(
        args.recording,
        speakers=args.speakers,
        min_speakers=args.min_speakers,
        max_speakers=args.max_speakers,
        stitching=args.stitching,
        known=known,
    )
    if args.output:
        write_turns(args.output, recording_name(args.recording), diarization.turns, diarization.seconds)
    if args.plot:
        write_picture(args.plot, diarization)
    if args.page:
        write_diarization_page(args.page, args.recording, diarization)
    if args.json:
        print_json(
            {
                "recording": args.recording,
                "seconds": diarization.seconds,
                "speakers": diarization.speakers,
                "turns": [
                    {"start": turn.start, "end": turn.end, "speaker": turn.speaker} for turn in diarization.turns
                ],
            }
        )
    elif args.output:
        written = ", ".join(filter(None, (args.output, args.plot, args.page)))
        counts = f"{_count(diarization.speakers, 'speaker')} in {_count(diarization.turns, 'turn')}"
        print(f"{written}: {counts}, {diarization.seconds:.1f} s")
    else:
        print(diarization.rttm(recording_name(args.recording)), end="")
        if not diarization.turns:
            print(f"{args.recording}: nobody speaks in its {diarization.seconds:.1f} s", file=sys.stderr)
    return 0


def _diarize_stream(args: argparse.Namespace, diarizer: Diarizer) -> int:
    from phonate.audio.decoding import read_blocks
    from phonate.data.annotations import rttm_lines
    from phonate.data.labels import write_turns

    turns = []
    name = recording_name(args.recording)
    blocks = read_blocks(args.recording, diarizer.sample_rate, block_seconds=_STREAM_SECONDS)
    for turn in diarizer.stream(blocks):
        turns.append(turn)
        print(*rttm_lines(name, [turn]), flush=True)
    if args.output:
        write_turns(args.output, name, turns)
    return 0


def recording_name(path: str) -> str:
    """The recording's name in RTTM: the file name without suffix, spaces replaced by underscores."""
    return "_".join(Path(path).stem.split())


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"


_KEY_VARIABLE = "PHONATE_API_KEY"


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate serve`."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="RUN or NAME=RUN: a run, a checkpoint, a merged model, a name on the hub, whisper or whisper/NAME",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at (default: 8000; 0: any)")
    parser.add_argument(
        "--wyoming", type=int, metavar="PORT", help="also speak Home Assistant's protocol, usually at 10200 (0: any)"
    )
    parser.add_argument(
        "--api-key-file",
        type=local_path,
        metavar="F",
        help=f"keys, one per line (default: the variable {_KEY_VARIABLE})",
    )
    add_model_options(parser)
    add_device(parser)
    parser.add_argument("--model-name", metavar="NAME", help="the first model's name (default: that of its folder)")
    parser.add_argument("--recogniser", metavar="MODEL", help="another model, which transcribes, such as whisper")
    parser.add_argument("--diarizer", metavar="RUN", help=f"another, which tells speakers apart, such as {DIARIZER}")
    parser.add_argument(
        "--idle-minutes", type=float, metavar="N", help="unload models that nobody used for so long (default: never)"
    )
    parser.add_argument(
        "--alias",
        metavar="NAME=OWN",
        action="append",
        help="another name for the model or for a voice, such as alloy=anna (repeatable; OpenAI's names are known)",
    )
    parser.add_argument("--strict", action="store_true", help="refuse requests with unknown fields; don't ignore them")
    parser.add_argument(
        "--voices", type=local_path, metavar="DIR", help="folder for uploaded voices (default: none stored)"
    )
    parser.add_argument(
        "--cors-origin", action="append", metavar="URL", help="a site whose pages may use the server (repeatable)"
    )
    parser.add_argument(
        "--no-prosody-rules",
        action="store_true",
        help="leave questions and silences as the model says them; don't apply the language's rules",
    )
    parser.add_argument(
        "--compile-model",
        nargs="?",
        const=True,
        choices=("cuda_graphs",),
        help="cloning, on GPUs (not measured yet): compile the step of a frame; cuda_graphs: and replay its kernels",
    )
    for option, kind, what in _SERVING_LIMITS:
        parser.add_argument(option, type=kind, metavar="N", help=what)


_SERVING_LIMITS = (
    ("--max-batch", int, "requests that are worked on at once (default: 8)"),
    ("--max-queue", int, "requests that wait; others are refused with 429 (default: 32)"),
    ("--max-text", int, "characters of a text (default: 4096)"),
    ("--max-silence", float, "seconds of silence that SSML may ask for in all (default: 120)"),
    ("--max-speech-seconds", float, "length of the speech of a request, also where a model clones (default: 900)"),
    ("--max-body", int, "bytes of a request (default: 26214400)"),
    ("--max-reference-seconds", float, "length of a reference recording (default: 30)"),
    ("--max-transcription-seconds", float, "length of a recording that is transcribed (default: 3600)"),
    ("--max-conversion-seconds", float, "length of a recording that is converted (default: 600)"),
    ("--max-voices", int, "voices that are stored (default: 1000)"),
    ("--request-seconds", float, "time for a request (default: 300)"),
    ("--decode-seconds", float, "processor time for decoding an upload (default: 10)"),
    ("--stop-seconds", float, "time for finishing running requests when told to stop (default: 30)"),
)


def serve(args: argparse.Namespace) -> int:
    """Serve models over HTTP: OpenAI's protocol for speech and transcripts, cloning of uploaded voices, a page, and
    metrics.

    The first model is loaded now, others when they are asked for. OpenAI's names of models stand for the first that
    does what is asked. The key that clients must bring is read from a file or from the environment variable
    PHONATE_API_KEY. SIGTERM and Ctrl-C finish running requests first.
    """
    _without_blas_threads()
    from phonate.cli.output import log_to_console
    from phonate.config.errors import InputError, optional_package
    from phonate.serving.settings import ServingSettings

    for option, port in (("--port", args.port), ("--wyoming", args.wyoming)):  # before a model is loaded
        if port is not None and not 0 <= port <= 65535:
            raise InputError(f"{option} {port}: a port is a number from 0 to 65535")

    names = [option.removeprefix("--").replace("-", "_") for option, _, _ in _SERVING_LIMITS]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    aliases, api_keys = _aliases(args.alias), _api_keys(args.api_key_file)
    try:
        settings = ServingSettings(
            aliases=aliases,
            strict=args.strict,
            voices=args.voices,
            api_keys=api_keys,
            cors_origins=tuple(args.cors_origin or ()),
            idle_minutes=args.idle_minutes,
            **given,
        )
    except InputError as error:  # which names fields
        fields = re.compile(rf"^{ServingSettings.__name__}\.(\w+)", re.MULTILINE)
        raise InputError(fields.sub(lambda one: "--" + one[1].replace("_", "-"), str(error))) from None
    for package in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        optional_package(package, "phonate serve", "'phonate[serve]'")
    if args.wyoming is not None:
        optional_package("wyoming", "phonate serve --wyoming", "'phonate[wyoming]'")
    from phonate.serving.server import hosted, serve

    log_to_console()
    first, *others = args.models
    if args.model_name:
        first = f"{args.model_name}={first if Path(first).exists() else first.rpartition('=')[2]}"
    models = hosted(
        [first, *others, *(one for one in (args.recogniser, args.diarizer) if one is not None)],
        device=args.device,
        options={**model_options(args), "compile_model": args.compile_model},
        prosody_rules=not args.no_prosody_rules,
        max_batch=settings.max_batch,
    )
    if args.no_prosody_rules and not models.services:
        raise InputError("--no-prosody-rules: no model that is served has such rules; leave it out")
    serve(models, settings, args.host, args.port, args.wyoming)
    return 0


def _aliases(pairs: Sequence[str] | None) -> dict[str, str]:
    """The names of --alias. Raises InputError for what is no NAME=OWN."""
    from phonate.config.errors import InputError

    aliases = dict(pair.split("=", 1) for pair in pairs or () if "=" in pair)
    if wrong := [pair for pair in pairs or () if "=" not in pair or pair.startswith("=") or pair.endswith("=")]:
        raise InputError(f"--alias {wrong[0]}: write NAME=OWN, such as alloy=anna")
    return aliases


def _api_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of the file, or of the environment variable. Raises InputError for a file without any."""
    from phonate.config.errors import InputError, unreadable

    if path is None:
        key = os.environ.get(_KEY_VARIABLE, "").strip()
        return (key,) if key else ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--api-key-file {path}: can't be read ({unreadable(error)}); give a text file with one key per line"
        ) from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise InputError(f"--api-key-file {path}: has no key; write one per line")
    return keys
