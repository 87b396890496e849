"""Commands that tell what is said in a recording, when and by whom: transcribe, align, diarize."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.cli.inputs import require_folders, require_recording, require_sounds
from phonate.cli.parsing import add_base_option, add_device, add_known, known_speakers, language_code, local_path
from phonate.training.checkpoints.files import BASE_DIARIZER

if TYPE_CHECKING:
    from phonate.data.transcripts import Alignment, Transcription
    from phonate.tasks.diarization.inference import Diarizer


WHISPER = "whisper"


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
    require_folders(args.output, args.page)
    require_recording(args.recording, args.run)
    require_sounds(known.values())
    if args.run.partition("/")[0] == "whisper" and not Path(args.run).exists():  # before torch is imported
        require("transcription", TRANSCRIPTION)
    log_to_console(WARNINGS)
    count = int(args.speakers) if (args.speakers or "").isdecimal() and not Path(args.speakers).exists() else None
    source = args.speakers if count is None else BASE_DIARIZER
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
    from phonate.cli.output import WARNINGS, log_to_console, print_json
    from phonate.data.annotations import write_lines
    from phonate.data.transcripts import format_transcription, write_transcription
    from phonate.workflows.align import aligned, aligner_for, pairs_of

    log_to_console(WARNINGS)
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
        require_folders(args.output)


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
        default=BASE_DIARIZER,
        help=f"a run of the task diarization, or a checkpoint (default: {BASE_DIARIZER}, which comes with phonate and "
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

    require_folders(args.output, args.plot, args.page)
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
    require_recording(args.recording, args.run)
    require_sounds(known.values())
    if args.run == BASE_DIARIZER and not Path(BASE_DIARIZER).exists():  # before torch is imported
        require(BASE_DIARIZER, TRANSCRIPTION)
    log_to_console(WARNINGS)
    diarizer = load(args.run, "diarization", device=args.device)
    return _diarize_stream(args, diarizer) if args.stream else _diarize_whole(args, diarizer, known)


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
