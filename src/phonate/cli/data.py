"""`phonate data`: check, prepare and describe a corpus."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import PurePath
from typing import Any

from phonate.cli.parsing import language_code
from phonate.config.words import duration, number_of

SHOWN = 20
_NAMED = 8  # speakers, at most, of whom a check tells how long each speaks
FURTHER = "further"  # outcomes of the other corpora that a recipe names
_LONG = {"dropped", "made", "worst", FURTHER}  # lists that only --json prints


def data_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate data`."""
    parser.add_argument(
        "action", choices=("check", "prepare", "describe"), help="what to do: check, prepare or describe"
    )
    parser.add_argument(
        "path", metavar="PATH", help="a folder, a metadata file, or a recipe (a file, or a shipped name)"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key.path=value",
        help="options of the corpus, such as data.language=de",
    )
    parser.add_argument("--cache-dir", metavar="D", help="where to prepare (default: ~/.cache/phonate)")
    parser.add_argument(
        "--shards", metavar="N", help="write shards into --output: how many, or the size of one, such as 500MB"
    )
    parser.add_argument("--split", action="store_true", help="cut recordings at pauses into pieces of 2 to 14 s")
    parser.add_argument("--transcribe", action="store_true", help="transcribe recordings with Whisper")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="a new folder for --split, --transcribe; OUT.jsonl for texts"
    )
    parser.add_argument("--rate", type=int, metavar="HZ", help="highest sample rate (default: 22050; 0: as recorded)")
    parser.add_argument("--language", metavar="L", type=language_code, help="spoken language, such as de (default: en)")
    parser.add_argument("--model", metavar="M", help="Whisper model (default: tiny.en, or base if not English)")
    parser.add_argument("--page", metavar="FILE", help="write a page with the worst clips, to hear and to leave out")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def data(args: argparse.Namespace) -> int:
    """Check a corpus, describe it, prepare it for training, or make one from long recordings or texts.

    check: which recordings can be used, and why the others can't; also for ChatML, the conversations of voice cloning.
    prepare: build the index and the cache that training reads. describe: speakers, minutes and lengths. PATH is a
    folder, a metadata file, or a recipe.

    prepare PATH --split --transcribe -o FOLDER makes a data set from a long recording or a folder of them: cut at
    pauses, transcribed by Whisper. check PATH --page OUT.html (prepare too) writes a page with the twenty worst clips,
    to listen to and to leave out.

    prepare PATH --shards 500MB -o FOLDER writes a corpus as WebDataset shards. FOLDER may be an address, such as
    s3://bucket/corpus. Given again, it goes on where it was interrupted.

    prepare PATH -o OUT.jsonl makes prompts and responses from a folder of texts, for language models.
    """
    from phonate.cli.output import log_to_console, print_json

    _refuse_useless_options(args)
    log_to_console()  # what files are left alone
    outcome = _outcome(args)
    if args.json:
        print_json(outcome)
    else:
        for number, one in enumerate((outcome, *outcome.get(FURTHER, ()))):
            if number:
                print()
            if args.action == "check":
                _print_report(one)
            else:
                _print_values({name: value for name, value in one.items() if name not in _LONG})
    checked = [outcome, *outcome.get(FURTHER, ())] if args.action == "check" else []
    return 2 if any(not one["usable"] for one in checked) else 0


def _outcome(args: argparse.Namespace) -> dict[str, Any]:
    from phonate.config.errors import InputError
    from phonate.data.parallel import report_progress as progress
    from phonate.workflows import prepare

    outcome: dict[str, Any]
    if _of_texts(args):
        from phonate.workflows.datasets.from_texts import build_pairs

        return build_pairs(args.path, args.output, progress)
    if args.action == "check" and (pairs := prepare.chatml_settings(args.path, args.overrides)) is not None:
        if args.page is not None:
            raise InputError("--page: not supported for conversations; leave it out")
        return prepare.check_chatml(*pairs)
    transcriber = None
    if args.transcribe:
        from phonate.workflows.datasets.from_recordings import load_transcriber

        transcriber = load_transcriber(args.model, args.language or "en")
    if args.shards is not None:
        from phonate.workflows.datasets.shards import write_shards

        return write_shards(
            prepare.corpus_settings(args.path, None, args.overrides), args.output, args.shards, progress
        )
    if args.output is not None:
        from phonate.workflows.datasets.from_recordings import SAMPLE_RATE, make_dataset

        rate = SAMPLE_RATE if args.rate is None else args.rate or None
        outcome = make_dataset(
            prepare.settings_to_cut(args.path, args.overrides),
            args.output,
            split=args.split,
            transcribe=transcriber,
            sample_rate=rate,
            progress=progress,
        )
        settings, transcriber = prepare.corpus_settings(args.output), None  # its own texts need no judge
    else:
        actions = {"check": prepare.check, "prepare": prepare.prepare, "describe": prepare.describe}
        settings = prepare.corpus_settings(args.path, args.cache_dir, args.overrides)
        if args.action == "prepare":
            _import_preparation()
        outcome = actions[args.action](settings, progress)
    if args.page is not None and (args.action != "check" or outcome["usable"]):
        from phonate.workflows.pages.recordings import write_worst_page

        outcome = {**outcome, **write_worst_page(settings.to_prepare[0], args.page, transcriber, progress)}
    return outcome


def _import_preparation() -> None:
    """Import what prepares."""
    from phonate.compute.importing import lasting

    with lasting():
        import phonate.data.prepared  # noqa: F401


def _of_texts(args: argparse.Namespace) -> bool:
    return args.action == "prepare" and args.output is not None and args.output.lower().endswith(".jsonl")


def _refuse_useless_options(args: argparse.Namespace) -> None:
    """Raise InputError for options that would have no effect, and for those that need another one."""
    from phonate.config.errors import InputError

    prepares, page, output, rate = args.action == "prepare", args.page, args.output, args.rate
    not_of_texts = _given(args, "split", "transcribe", "cache_dir", "rate", "language", "model", "page")
    not_of_shards = _given(args, "split", "transcribe", "rate", "page", "cache_dir")
    mistakes = {
        f"{next(iter(args.overrides), None)}: has no effect on texts; leave it out": (
            bool(args.overrides) and _of_texts(args)
        ),
        f"{not_of_texts}: only for recordings, and {output} is made of texts; leave it out": (
            bool(_of_texts(args) and not_of_texts)
        ),
        f"--cache-dir: data {args.action} caches nothing; leave it out, or use data prepare": (
            args.cache_dir is not None and not prepares
        ),
        f"{_given(args, 'split', 'output')}: data {args.action} writes no data set; use data prepare": (
            not prepares and (args.split or output is not None)
        ),
        "--shards: only data prepare writes shards": args.shards is not None and not prepares,
        "--shards: needs --output FOLDER": args.shards is not None and output is None,
        f"--shards: writes recordings as they are; leave {not_of_shards} out": (
            args.shards is not None and not_of_shards != ""
        ),
        "--split: needs --output FOLDER": args.split and output is None,
        "--output: needs --split, --transcribe, or --shards": (
            output is not None
            and not args.split
            and not args.transcribe
            and args.shards is None
            and not _of_texts(args)
        ),
        "--cache-dir: has no effect with --output; leave it out, then prepare the new folder": (
            output is not None and args.cache_dir is not None
        ),
        "--transcribe: needs --output FOLDER or --page FILE": (args.transcribe and output is None and page is None),
        "--page: data describe does not support it; use data check": page is not None and args.action == "describe",
        f"--page {page}: the page is HTML; give a name that ends in .html": (
            page is not None and not page.lower().endswith((".html", ".htm"))
        ),
        f"{_given(args, 'language', 'model')}: only valid with --transcribe; add it, or "
        + (f"data.language={args.language} for that of texts" if args.model is None else "leave this out"): (
            not args.transcribe and (args.language is not None or args.model is not None)
        ),
        "--rate: only valid with --output; add it, or leave it out": rate is not None and output is None,
        f"--rate {rate}: give 8000 Hz or more, or 0 for the rate of each recording": (
            rate is not None and rate != 0 and rate < 8000
        ),
    }
    for mistake, applies in mistakes.items():
        if applies:
            raise InputError(mistake)


def _given(args: argparse.Namespace, *names: str) -> str:
    """Those of some options that are given, as they are called."""
    given = [name for name in names if getattr(args, name) not in (None, False)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def _print_totals(outcome: dict[str, Any]) -> None:
    from phonate.data.corpora.rows import one_line

    usable, whole = outcome["usable"], outcome.get("whole_recordings", outcome["usable"])
    what = "recordings" if whole == usable else f"parts of {number_of(whole, 'recording')}"
    print(
        f"{outcome['path']} ({outcome['format']}): {usable} of {outcome['recordings']} {what} can be used, "
        f"{duration(outcome['seconds'])}, {number_of(len(outcome['speakers']), 'speaker')}"
    )
    minutes = outcome.get("minutes_by_speaker", {})
    if 2 <= len(minutes) <= _NAMED:
        print(", ".join(f"{one_line(name)} {duration(60 * spoken)}" for name, spoken in minutes.items()))


def _print_report(outcome: dict[str, Any]) -> None:
    from phonate.cli.output import print_table
    from phonate.data.corpora.rows import one_line

    _print_totals(outcome)
    if without_text := outcome.get("without_text"):
        print(
            f"{without_text} without a text: enough for conversion and the vocoder; speech and recognition need one, "
            f"written into a file such as {outcome['text_missing']}, or data.transcribe=true"
            + ("; diarization needs RTTM labels" if outcome["segments"] == outcome["usable"] else "")
        )
    if outcome["segments"] > outcome["usable"]:
        speech, overlap, seconds = outcome["speech_seconds"], outcome["overlap_seconds"], outcome["seconds"]
        print(
            f"{number_of(outcome['segments'], 'segment')}: "
            f"{duration(speech)} of speech ({100 * speech / seconds:.0f} % of the time), "
            f"{duration(overlap)} of it ({100 * overlap / max(speech, 1e-9):.0f} %) with several speakers at once"
        )
    if outcome["dropped"]:
        print(f"{outcome['dropped']} more are left out by data.drop")
    if outcome["over_limit"]:
        print(f"{outcome['over_limit']} more are left out by data.limit")
    if "transcripts" in outcome:
        print(outcome["transcripts"])
    if "page" in outcome:
        odd, findings = outcome["with_findings"], outcome["findings"]
        kinds = ", ".join(f"{count} {reason}" for reason, count in findings.items())
        have = f"{odd} {'has' if odd == 1 else 'have'} findings{kinds and f': {kinds}'}"
        print(f"{outcome['page']}: the {outcome['shown']} worst clips; of all {outcome['usable']}, {have}")
    for kind in ("refused", "warnings"):
        problems = outcome[kind]
        if problems:
            counts = Counter(problem["reason"] for problem in problems).most_common()
            noun = kind.removesuffix("s") if len(problems) == 1 else kind
            print(f"\n{len(problems)} {noun}: {', '.join(f'{count} {reason}' for reason, count in counts)}")
            rows = [[one_line(one) for one in (p["reason"], _where(p), p["detail"])] for p in problems[:SHOWN]]
            print_table(rows, ["why", "where", "detail"])
            if len(problems) > SHOWN:
                print(f"... and {len(problems) - SHOWN} more; --json lists all")


def _where(problem: dict[str, Any]) -> str:
    """The place of a problem; a line of a list with the recording, whose name is not in it."""
    place, name = str(problem["place"]), str(problem["id"])
    file, _, line = place.rpartition(":")
    named = PurePath(file).stem == name if line.isdigit() else name in place
    return place if named or not name else f"{place} ({name})"


def _print_values(values: dict[str, Any], indent: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{name}:")
            _print_values(value, indent + "  ")
        elif value not in ({}, None):
            print(f"{indent}{name}: {value}")
