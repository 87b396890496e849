"""Commands that tell what is said in a recording, when and by whom: transcribe, align, diarize."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.cli.batch import (
    Batch,
    Recording,
    Targets,
    add_format,
    add_recordings,
    batch_of,
    joined_texts,
    label_names,
    recording_name,
)
from phonate.cli.inputs import require_folders, require_sounds
from phonate.cli.parsing import add_base_option, add_device, add_known, known_speakers, language_code, local_path
from phonate.training.checkpoints.files import BASE_DIARIZER

if TYPE_CHECKING:
    from phonate.data.transcripts import Alignment, Transcription
    from phonate.tasks.diarization.inference import Diarization, Diarizer


WHISPER = "whisper"


def transcribe_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate transcribe`."""
    parser.add_argument(
        "run",
        metavar="MODEL",
        nargs="?",
        default=WHISPER,
        help="a run of the task recognition, a checkpoint, whisper, whisper/NAME such as whisper/small, or a Whisper "
        "in a folder or on the hub (default: whisper, the best that is installed: base, or tiny.en, for English)",
    )
    add_recordings(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="where to write: .txt, .srt, .vtt, .json, .rttm, .TextGrid or .ctm; of several recordings a folder, or "
        "one .ctm or .rttm",
    )
    add_format(parser, "txt", "srt, vtt, json, rttm, TextGrid or ctm")
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
        const=BASE_DIARIZER,
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
    """Transcribe recordings of any format, sample rate and length, with the times and the speakers of the words.

    MODEL is whisper, which comes trained, or a run of your own. Without -o or --page the text is printed. Of several
    recordings, or folders of them, each has a file in the folder -o, or lines that begin with its name. Those that
    can't be read are told and left out, and the exit code is then 2.
    """
    from phonate.cli.output import WARNINGS, log_to_console, print_json
    from phonate.config.errors import InputError
    from phonate.data.progress import Stage
    from phonate.data.transcripts import format_transcription, write_transcription
    from phonate.pretrained import TRANSCRIPTION, require

    known = known_speakers(args.known)
    if args.speakers is None and known:
        raise InputError("--known names speakers, so it needs --speakers")
    batch = batch_of(args, WHISPER)
    targets = Targets.of(args, batch, ".txt", (".ctm", ".rttm"), lambda path: _require_form(path, args))
    names = label_names(batch.recordings, together=targets is not None and targets.kind == "joined")
    batch.require_one(["--page"] if args.page else [])
    require_folders(args.page)
    require_sounds(known.values())
    if args.run.partition("/")[0] == WHISPER and not Path(args.run).exists():  # before torch is imported
        require("transcription", TRANSCRIPTION)
    log_to_console(WARNINGS)
    documents: dict[str, Any] = {}
    with joined_texts(targets) as texts:
        for one, transcription in batch.results(_transcriber(args, known), Stage.TRANSCRIBING):
            documents[one.name] = transcription.document(one.path)
            if targets is not None and targets.kind == "joined":
                texts.append(format_transcription(transcription, names[one], targets.suffix))
            elif targets is not None:
                write_transcription(targets.path(one.name), transcription, names[one])
            if args.page is not None:
                from phonate.workflows.pages.recordings import write_transcript_page

                write_transcript_page(args.page, one.path, transcription)
            if not args.json:
                _print_transcription(args, one, batch, transcription, targets)
    if args.json:
        print_json(documents if batch.several else next(iter(documents.values())))
    return batch.exit_code()


def _require_form(path: str, args: argparse.Namespace) -> None:
    """Raise InputError for a file of a form in which no transcripts are written."""
    from phonate.config.errors import InputError
    from phonate.data.transcripts import Transcription, format_transcription

    suffix = Path(path).suffix
    if suffix == ".rttm" and args.speakers is None:
        raise InputError(f"{args.output}: RTTM says who speaks; add --speakers")
    format_transcription(Transcription([], 0.0), "unknown", suffix)


def _transcriber(args: argparse.Namespace, known: dict[str, str]) -> Callable[[Recording], Transcription]:
    """What transcribes a recording with the models and the options of the command."""
    from phonate.workflows.load import load

    count = int(args.speakers) if (args.speakers or "").isdecimal() and not Path(args.speakers).exists() else None
    source = args.speakers if count is None else BASE_DIARIZER
    diarizer = None if source is None else load(source, "diarization", device=args.device)
    recogniser = load(args.run, "recognition", device=args.device, base=args.base)

    def transcribed(one: Recording) -> Transcription:
        turns = None if diarizer is None else diarizer.diarize(one.path, speakers=count, known=known).turns
        transcription = recogniser.timed(one.path, args.beam, language=args.language, speakers=turns)
        if transcription.words:
            _tell_without_words(one, [turn.speaker for turn in turns or []], transcription)
        return transcription

    return transcribed


def _tell_without_words(one: Recording, heard: Iterable[str], transcription: Transcription) -> None:
    """Say who of the speakers that were `heard` is missing in the transcription."""
    from phonate.data.labels import some

    if missing := [name for name in dict.fromkeys(heard) if name not in transcription.speakers]:
        print(f"{one.path}: no words of {some(missing)} were recognised", file=sys.stderr)


def _print_transcription(
    args: argparse.Namespace, one: Recording, batch: Batch, transcription: Transcription, targets: Targets | None
) -> None:
    """Print what is said in a recording, or where it was written."""
    from phonate.data.transcripts import format_transcription

    if targets is not None or args.page:
        who = f" of {_count(transcription.speakers, 'speaker')}" if args.speakers is not None else ""
        written = _written(one, targets, args.page)
        print(f"{written}: {_count(transcription.words, 'word')}{who}, {transcription.seconds:.1f} s")
        return
    for line in format_transcription(transcription, one.name, ".txt").splitlines():
        print(f"{one.name}: {line}" if batch.several else line)
    if not transcription.words:
        print(f"{one.path}: no words recognised in {transcription.seconds:.1f} s", file=sys.stderr)


def _written(one: Recording, targets: Targets | None, *others: str | None) -> str:
    """What was written of a recording."""
    if targets is None or targets.kind != "joined":
        own = None if targets is None else str(targets.path(one.name))
        return ", ".join(filter(None, (own, *others)))
    return one.name


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
    add_format(parser, "TextGrid", "json, ctm, srt or vtt")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print the alignments as JSON")


def align(args: argparse.Namespace) -> int:
    """Tell when the words of texts, and in English their phones, are said in recordings of any length.

    Words of a text that are not said are left out and named, and what is said beside the text is reported; .json has
    both, with the confidence of each word where a recogniser aligns. English is aligned by pocketsphinx, other
    languages by Whisper.
    """
    from phonate.cli.output import WARNINGS, log_to_console, print_json
    from phonate.data.transcripts import format_transcription, write_transcription
    from phonate.workflows.align import aligned, aligner_for, pairs_of

    log_to_console(WARNINGS)
    pairs = pairs_of(args.recordings, args.texts)
    recordings = [Recording(pair.name, str(pair.recording)) for pair in pairs]
    batch = Batch(recordings, several=not args.recordings.is_file())
    targets = Targets.of(args, batch, ".TextGrid", (".ctm",), _require_alignment_form)
    assert targets is not None  # --output is required
    names = label_names(recordings, together=targets.kind == "joined")
    choice = aligner_for([pair.text for pair in pairs], args.language, args.by, args.device)
    if not args.json:
        print(f"aligning {choice.sentence}", file=sys.stderr)
    documents: dict[str, Any] = {}
    with joined_texts(targets) as texts:
        for one, (alignment, reason) in zip(recordings, aligned(choice, pairs), strict=True):
            if alignment is None:
                print(f"{one.path}: not aligned: {reason}", file=sys.stderr)
                continue
            documents[one.name] = alignment.document(one.path)
            if targets.kind == "joined":
                texts.append(format_transcription(alignment, names[one], targets.suffix))
            else:
                write_transcription(targets.path(one.name), alignment, names[one])
            if not args.json:
                print(f"{one.name}: {_aligned_line(alignment)}")
    if args.json:
        print_json(documents)
    return 0 if len(documents) == len(pairs) else 1


def _require_alignment_form(path: str) -> None:
    """Raise InputError for a file of a form in which no alignments are written."""
    from phonate.config.errors import InputError

    if Path(path).suffix not in ALIGNMENTS:
        raise InputError(f"{path}: alignments are written as {', '.join(ALIGNMENTS)}; choose one of these suffixes")


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
        default=BASE_DIARIZER,
        help=f"a run of the task diarization, or a checkpoint (default: {BASE_DIARIZER}, which comes with phonate and "
        "needs phonate[eval])",
    )
    add_recordings(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.rttm",
        help="where to write the turns; of several recordings a folder, or one .rttm",
    )
    add_format(parser, "rttm", "TextGrid, eaf, vtt, srt or txt")
    parser.add_argument(
        "--speakers", type=int, metavar="N", help="number of speakers; more than it finds itself may split a voice"
    )
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

    batch = batch_of(args, BASE_DIARIZER)
    targets = Targets.of(args, batch, ".rttm", (".rttm",), writer_for)
    in_one = not args.json if targets is None else targets.kind == "joined"
    names = label_names(batch.recordings, together=in_one)
    batch.require_one(f"--{name}" for name in ("plot", "page", "stream") if getattr(args, name))
    require_folders(args.plot, args.page)
    known = known_speakers(args.known)
    if args.plot and Path(args.plot).suffix.lower() not in PICTURES:
        raise InputError(f"--plot {args.plot}: the suffix must be one of {', '.join(PICTURES)}")
    if args.plot:
        optional_package("matplotlib", "--plot", "'phonate[plots]'")
    if args.stream:
        for name in ("speakers", "min_speakers", "max_speakers", "stitching", "known", "plot", "page", "json"):
            if getattr(args, name) is not None and getattr(args, name) is not False:
                raise InputError(f"--{name.replace('_', '-')} can't be used with --stream")
    require_sounds(known.values())
    if args.run == BASE_DIARIZER and not Path(BASE_DIARIZER).exists():  # before torch is imported
        require(BASE_DIARIZER, TRANSCRIPTION)
    log_to_console(WARNINGS)
    diarizer = load(args.run, "diarization", device=args.device)
    if args.stream:
        return _diarize_stream(targets, batch.recordings[0], diarizer)
    return _diarize_whole(args, batch, names, targets, diarizer, known)


def _diarize_whole(
    args: argparse.Namespace,
    batch: Batch,
    names: dict[Recording, str],
    targets: Targets | None,
    diarizer: Diarizer,
    known: dict[str, str],
) -> int:
    from phonate.cli.output import print_json
    from phonate.data.labels import write_turns
    from phonate.data.progress import Stage
    from phonate.workflows.pages.recordings import write_diarization_page, write_picture

    limits = {name: getattr(args, name) for name in ("speakers", "min_speakers", "max_speakers", "stitching")}
    documents: dict[str, Any] = {}

    def diarized(one: Recording) -> Diarization:
        return diarizer.diarize(one.path, known=known, **limits)

    with joined_texts(targets) as texts:
        for one, diarization in batch.results(diarized, Stage.DIARIZING):
            documents[one.name] = _diarization_document(one, diarization)
            if targets is not None and targets.kind == "joined":
                texts.append(diarization.rttm(names[one]))
            elif targets is not None:
                write_turns(targets.path(one.name), names[one], diarization.turns, diarization.seconds)
            if args.plot:
                write_picture(args.plot, diarization)
            if args.page:
                write_diarization_page(args.page, one.path, diarization)
            if not args.json:
                _print_diarization(args, one, names[one], diarization, targets)
    if args.json:
        print_json(documents if batch.several else next(iter(documents.values())))
    return batch.exit_code()


def _print_diarization(
    args: argparse.Namespace, one: Recording, name: str, diarization: Diarization, targets: Targets | None
) -> None:
    """Print the turns of a recording, or where they were written."""
    if targets is not None:
        counts = f"{_count(diarization.speakers, 'speaker')} in {_count(diarization.turns, 'turn')}"
        print(f"{_written(one, targets, args.plot, args.page)}: {counts}, {diarization.seconds:.1f} s")
        return
    print(diarization.rttm(name), end="")
    if not diarization.turns:
        print(f"{one.path}: nobody speaks in its {diarization.seconds:.1f} s", file=sys.stderr)


def _diarization_document(one: Recording, diarization: Diarization) -> dict[str, Any]:
    return {
        "recording": one.path,
        "seconds": diarization.seconds,
        "speakers": diarization.speakers,
        "turns": [{"start": turn.start, "end": turn.end, "speaker": turn.speaker} for turn in diarization.turns],
    }


def _diarize_stream(targets: Targets | None, one: Recording, diarizer: Diarizer) -> int:
    from phonate.audio.decoding import read_blocks
    from phonate.data.annotations import rttm_lines
    from phonate.data.labels import write_turns

    turns = []
    name = recording_name(one.path)
    blocks = read_blocks(one.path, diarizer.sample_rate, block_seconds=_STREAM_SECONDS)
    for turn in diarizer.stream(blocks):
        turns.append(turn)
        print(*rttm_lines(name, [turn]), flush=True)
    if targets is not None:
        write_turns(targets.path(one.name), name, turns)
    return 0


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"
