"""Commands about what was trained: evaluate, score, report, checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phonate.cli.parsing import (
    WEIGHTS,
    Help,
    add_base_option,
    add_model_options,
    add_vocoder,
    described,
    local_path,
    model_options,
)
from phonate.config.words import number_of

if TYPE_CHECKING:
    from phonate.evaluation.diarization import DiarizationErrors, Scores
    from phonate.evaluation.words import TranscriptErrors


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate evaluate`."""
    parser.add_argument(
        "run", metavar="RUN", help="the run's folder, a merged model's, or a Whisper such as whisper/base"
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="a corpus to evaluate on, not trained on (default: what training held out); for speech also a .txt "
        "file, one sentence per line",
    )
    add_vocoder(parser)
    parser.add_argument(
        "--tune",
        action="store_true",
        help="for diarization: first choose thresholds on 3 or more recordings that training held out, and keep them",
    )
    add_model_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where to write (default: RUN; required for base/voice, a checkpoint or a name on the hub)",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0, mps (default: the task's choice)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def evaluate(args: argparse.Namespace) -> int:
    """Evaluate a trained run and what its task compares it with: recordings, baselines or the model it started from.

    Scorers are optional packages: pip install 'phonate[eval]'. The figures and what was measured on each item go to
    RUN/evaluation.json, or to the folder that --output names. What training began from, or any Whisper, is evaluated
    alike: give it as RUN, with --data and --output. For voice cloning RUN may also be the folder of a merged
    model, or the name of a model of Higgs Audio v2 on the hub; --data and, for the hub, --output are needed then.
    """
    from phonate.cli.output import log_to_console, print_json, print_table

    log_to_console()

    from phonate.evaluation.tables import in_words
    from phonate.workflows.evaluate import evaluate

    evaluation = evaluate(
        args.run,
        args.data,
        args.vocoder,
        device=args.device,
        tune=args.tune,
        output=args.output,
        **model_options(args),
    )
    if args.json:
        print_json(evaluation.document())
    else:
        print_table(evaluation.rows(), evaluation.header())
        print("\n".join(["", *filter(None, [evaluation.directions()])]))
        if evaluation.legend:
            print(evaluation.legend.removesuffix(".").replace("; ", "\n") + "\n")
        for name, value in evaluation.notes.items():
            if value not in (None, 0, ""):
                print(f"{name.replace('_', ' ')}: {in_words(value)}")
        for caveat in evaluation.caveats:
            print(caveat)
    return 0


CONVENTIONS = ("phonate", "md-eval", "pyannote", "dscore")
"""As in phonate.evaluation.diarization, whose import takes time."""
_SCORE_HEADER = (
    "recording",
    "DER %",
    "miss %",
    "FA %",
    "confusion %",
    "JER %",
    "speech, s",
    "speakers",
)


def score_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate score`."""
    parser.add_argument("reference", metavar="REF.rttm", help="the reference")
    parser.add_argument("hypothesis", metavar="HYP.rttm", help="the diarization to score")
    parser.add_argument("--uem", metavar="FILE", help="the regions to score (default: whole recordings)")
    parser.add_argument(
        "--collar",
        type=float,
        metavar="S",
        help="seconds excluded before and after each reference boundary (default: 0); with --words, by which the words "
        "of the hypothesis may be off (default: 5)",
    )
    parser.add_argument("--skip-overlap", action="store_true", help="exclude overlapping speech")
    parser.add_argument(
        "--convention",
        choices=CONVENTIONS,
        default=CONVENTIONS[0],
        help="whose edge cases to follow, to compare with figures of that scorer (default: phonate)",
    )
    parser.add_argument("--words", action="store_true", help="score what is said: WER, CER, cpWER and tcpWER")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON, in seconds and fractions")


def score(args: argparse.Namespace) -> int:
    """Score a diarization: DER with its components, and JER, per recording and in total.

    REF.rttm and HYP.rttm may contain many recordings. Each may also be another label file with speakers (TextGrid,
    .eaf, .stm, .vtt, .srt, .cha, Audacity's .txt, AMI's .xml), or a folder of files of one kind. A recording missing
    from the hypothesis counts as missed; one missing from the reference is an error unless the UEM lists it. The collar
    is excluded on each side of a reference boundary, as in md-eval (0.25 here is 0.5 in pyannote.metrics).

    With --words, what is said is scored instead (STM, CTM, TextGrid, captions, plain .txt and others with texts, or
    folders of them): WER and CER of all words in the order in which their segments start, and cpWER, for which all
    words of a speaker are one text, and speakers are mapped so that it is lowest. tcpWER compares only words that are
    said at the same time: words without times of their own share that of their segment by their number of characters.
    """
    if args.words:
        return _score_words(args)
    args.collar = args.collar or 0.0
    from phonate.cli.output import print_json
    from phonate.data.annotations import read_uem
    from phonate.data.labels import read_pair, read_turns, read_zones, same_name
    from phonate.evaluation.diarization import score_recordings

    reference, hypothesis = read_pair(read_turns, args.reference, args.hypothesis)
    uem = {same_name(name): regions for name, regions in read_uem(args.uem).items()} if args.uem else None
    scores = score_recordings(
        reference,
        hypothesis,
        uem=uem,
        collar=args.collar,
        skip_overlap=args.skip_overlap,
        convention=args.convention,
        zones=(zones := read_zones(args.reference)),
    )
    conventions = _conventions(args)
    if args.json:
        print_json(
            {
                "conventions": conventions,
                "recordings": {name: _score_figures(errors) for name, errors in scores.recordings.items()},
                "total": _score_figures(scores.total),
                "without_hypothesis": scores.missed,
                "not_in_uem": scores.left_out,
                "beyond_labels": scores.beyond,
            }
        )
        return 0
    _print_scores(scores, conventions)
    if zones and args.convention != "md-eval":
        print(
            f"NOSCORE and NON-LEX lines, scored as all else (--convention md-eval leaves them out): {', '.join(zones)}"
        )
    return 0


def _print_scores(scores: Scores, conventions: Mapping[str, str]) -> None:
    from phonate.cli.output import print_table
    from phonate.evaluation.diarization import DER, JER

    for note in _score_notes(scores):  # in front: what is missing may make up most of the total
        print(note)
    rows = [_score_row(name, errors) for name, errors in scores.recordings.items()]
    if len(rows) != 1:
        rows.append(_score_row("total", scores.total))
    print_table(rows, _SCORE_HEADER)
    print(
        "\nspeech, speakers: in the reference"
        + "; who is in two recordings counts twice" * (len(scores.recordings) > 1)
    )
    for what, how in {"DER": DER, "JER": JER, **conventions}.items():
        if how != CONVENTIONS[0]:  # phonate's own say nothing to who compares with nobody
            print(f"{what}: {how}")


def _score_words(args: argparse.Namespace) -> int:
    from phonate.cli.output import print_json, print_table
    from phonate.config.errors import InputError
    from phonate.data.labels import read_pair, read_texts
    from phonate.evaluation.tables import SHARED
    from phonate.evaluation.words import COLLAR, score_transcripts

    for name, unset in (("uem", None), ("skip_overlap", False), ("convention", CONVENTIONS[0])):
        if getattr(args, name) != unset:
            raise InputError(f"--{name.replace('_', '-')} can't be used with --words")
    collar = COLLAR if args.collar is None else args.collar
    scores = score_transcripts(*read_pair(read_texts, args.reference, args.hypothesis), collar)
    if args.json:
        print_json({"collar": collar, "recordings": {name: one.document() for name, one in scores.items()}})
        return 0
    header = ("recording", *(f"{SHARED[rate].title} %" for rate in _WORD_RATES), "words")
    rows = [_word_row(name, one) for name, one in scores.items()]
    print_table(rows[:1] if len(rows) == 2 else rows, header)  # the total of one recording is its own row
    print("\ntexts: in lower case, without punctuation and accents")
    print(f"tcpWER: words may be {collar:g} s off, as in MeetEval (--collar)")
    return 0


_WORD_RATES = ("wer", "cer", "cpwer", "tcpwer")


def _word_row(name: str, scores: TranscriptErrors) -> list[str]:
    document = scores.document()
    rates = [document[rate] for rate in _WORD_RATES]
    return [name, *("–" if rate is None else f"{100 * rate:.2f}" for rate in rates), str(scores.words)]


def _conventions(args: argparse.Namespace) -> dict[str, str]:
    collar = "none"
    if args.collar:
        collar = (
            f"{args.collar:g} s before and after each reference boundary are not scored, "
            f"as in md-eval (pyannote.metrics: collar={2 * args.collar:g})"
        )
    whole = "the reference's first to last label" if args.convention == "md-eval" else "whole recordings"
    return {
        "convention": args.convention,
        "collar": collar,
        "overlap": "not scored" if args.skip_overlap else "scored for each speaker",
        "regions": args.uem or whole,
        "speakers": "mapped one to one in each recording, maximising the common duration",
    }


def _score_notes(scores: Scores) -> Iterator[str]:
    from phonate.evaluation.diarization import BEYOND

    beyond = (
        f"the hypothesis goes on more than {BEYOND:g} s after the last label; if the rest is not labelled, give --uem"
    )
    for what, names in (
        ("no turns in the hypothesis, all speech counted as missed", scores.missed),
        ("not in the UEM, not scored", scores.left_out),
        (beyond, scores.beyond),
    ):
        if names:
            yield f"{what}: {', '.join(names)}"


def _score_figures(errors: DiarizationErrors) -> dict[str, Any]:
    return {
        "der": errors.der,
        "jer": errors.jer,
        "miss": errors.miss,
        "false_alarm": errors.false_alarm,
        "confusion": errors.confusion,
        "speech": errors.speech,
        "speakers": errors.speakers,
        "scored": errors.scored,
    }


def _score_row(name: str, errors: DiarizationErrors) -> list[str]:
    parts = (errors.miss, errors.false_alarm, errors.confusion)
    shares = [f"{100 * part / errors.speech:.2f}" if errors.speech else "–" for part in parts]
    rates = [f"{100 * errors.der:.2f}", *shares, f"{100 * errors.jer:.2f}"]
    return [name, *rates, f"{errors.speech:.2f}", str(errors.speakers)]


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate replay`."""
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--step", type=int, metavar="N", required=True, help="the step, as in the log and in errors: 1 is the first"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write the sounds of the batch and samples.json there")
    parser.add_argument("--mode", choices=("gpu", "cpu", "mixed"), default="mixed", help="as in `phonate train`")
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0, mps (default: as in `phonate train`)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def replay(args: argparse.Namespace) -> int:
    """Compute one step of a run again, for whoever wonders why a loss jumped.

    Training goes on from the nearest checkpoint before the step, without touching the run; the loss is the same to the
    bit on the same machine, and the losses that the run logged on the way are compared. Shown are the loss, its terms,
    and each sample of the batch with its text, speaker and its loss alone (before the step, without dropout).
    """
    from phonate.cli.output import log_to_console, print_json, print_table

    log_to_console()

    from phonate.workflows.replay import replay, seconds_of

    replayed = replay(args.run, args.step, device=args.device, mode=args.mode)
    if args.output is not None:
        replayed.save(args.output)
    if args.json:
        print_json(replayed.document())
        return 0
    rows = [
        (
            str(number),
            one.id,
            "–" if (seconds := seconds_of(one.preview)) is None else f"{seconds:.2f}",
            "–" if one.loss is None else f"{one.loss:.6g}",
            one.preview.speaker or "–",
            " ".join(one.preview.text.split()) or "–",
        )
        for number, one in enumerate(replayed.samples, 1)
    ]
    print_table(rows, ("", "sample", "seconds", "loss alone", "speaker", "text"))
    began = "the beginning" if replayed.checkpoint is None else str(replayed.checkpoint)
    print(f"\nstep {replayed.step} after {number_of(replayed.epoch, 'epoch')}, from {began}")
    print("  ".join(f"{name} {value!r}" for name, value in replayed.losses.items()))
    for problem in replayed.problems:
        print(problem)
    print(_comparison(replayed.compared, replayed.differing))
    return 0


def _comparison(compared: list[int], differing: Mapping[int, tuple[float, float]]) -> str:
    """What became of the losses that were logged on the way."""
    if not compared:
        return "nothing was logged on the way to compare it with"
    if not differing:
        return f"the losses logged at {_steps(compared)} are the same to the bit"
    step, (logged, now) = next(iter(differing.items()))
    return (
        f"NOT the same: the loss at step {step} was {logged!r} and is {now!r} now; another machine, device, version, "
        "number of threads or of processes computes others, and so do settings that a resume changed"
    )


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate report`."""
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print the report's path as JSON")


def report(args: argparse.Namespace) -> int:
    """Write a run's report: one HTML page with curves, sounds, figures, and the model's data and settings."""
    from phonate.cli.output import print_json
    from phonate.workflows.pages.report import write_report

    path = write_report(args.run)
    if args.json:
        print_json({"report": str(path)})
    else:
        print(path)
    return 0


def checkpoints_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate checkpoints` and its sub-commands."""
    parsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def sub_command(name: str, text: str) -> argparse.ArgumentParser:
        added = parsers.add_parser(name, help=text, formatter_class=Help)
        added.description = described(f"{text[0].upper()}{text[1:]}.", added.prog)
        added.add_argument("run", metavar="RUN", type=local_path, help="a run's folder")
        added.add_argument("--json", action="store_true", help="print one JSON document")
        return added

    show = sub_command("list", "list the checkpoints, and show which is the best")
    show.add_argument(
        "--sort-by",
        choices=("timestamp", "epoch", "val_loss"),
        default="timestamp",
        help="newest first (timestamp, default), highest epoch first, or lowest validation loss first",
    )
    verify = sub_command("verify", "compare size and SHA-256 of every file; exit code 1 if one is damaged")
    verify.add_argument("names", metavar="CHECKPOINT", nargs="*", help="only these; default: all")
    prune = sub_command("prune", "delete all but the newest ones and the best one")
    prune.add_argument(
        "--keep", type=int, required=True, metavar="N", help="how many of the newest to keep, besides the best"
    )
    prune.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    leave = sub_command("export", "write what inference needs: weights without the training state, or another format")
    _add_export_arguments(leave)
    merge = sub_command("merge", "add a run's adapters to the weights of their base and write the model")
    merge.add_argument("-o", "--output", metavar="FOLDER", type=local_path, required=True, help="a new folder")
    merge.add_argument("--checkpoint", help="which checkpoint of the run (default: the best, else the newest)")
    add_base_option(merge)
    merge.add_argument(
        "--dtype",
        choices=("auto", "fp32", "fp16", "bf16"),
        default="auto",
        help="type of the weights; auto: as in the base",
    )
    merge.add_argument("--quantize", choices=("int8", "int4"), help="quantise the linear layers (needs phonate[qlora])")
    push = sub_command("push", "push what inference needs to the Hugging Face Hub, with a model card")
    push.add_argument("name", metavar="hf:OWNER/NAME", help="the model on the hub, which is created if it is not there")
    push.add_argument("--checkpoint", help="which checkpoint of the run (default: the best, else the newest)")
    push.add_argument("--private", action="store_true", help="only you may see a model that is created")
    push.add_argument("--licence", metavar="ID", help="the licence as the hub abbreviates it, such as cc-by-4.0")
    push.add_argument("--base-model", metavar="OWNER/NAME", help="the model on the hub that it was adapted from")
    compare = sub_command(
        "compare", "show how the metadata and the weights of two checkpoints differ, or rank several by a metric"
    )
    compare.add_argument("names", metavar="CHECKPOINT", nargs="*", help="two or more; with --metric default: all")
    compare.add_argument("--metric", help="rank by this metric (default for more than two: val_loss)")
    compare.add_argument(
        "--higher-is-better",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="higher values of the metric are better, or not; only for metrics of which the run does not say it",
    )


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", type=local_path, nargs="?", help="where to write: a new folder or file"
    )
    parser.add_argument("-o", "--output", metavar="TARGET", type=local_path, help="the same as TARGET")
    parser.add_argument("--checkpoint", help="which checkpoint of the run (default: the best, else the newest)")
    parser.add_argument(
        "--format",
        default=WEIGHTS,
        help="weights (default), or one that the run's task has: speech has onnx (phones to waveform in one file), "
        "piper (a voice for Piper), sherpa (for sherpa-onnx) and browser (a page that speaks); language models and "
        "voice cloning have transformers and peft",
    )
    parser.add_argument(
        "--vocoder", metavar="RUN", help="a run of the task vocoder to export with (default: the recipe's)"
    )
    parser.add_argument(
        "--dtype",
        choices=("fp32", "fp16", "int8"),
        help="what the weights of onnx, piper, sherpa and browser are stored as (default: fp32; for browser int8)",
    )
    add_base_option(parser)
    parser.add_argument(
        "--runtime",
        metavar="FOLDER",
        type=local_path,
        help="the npm package onnxruntime-web, for browser (default: node_modules/onnxruntime-web)",
    )


def checkpoints(args: argparse.Namespace) -> int:
    """List, verify, prune, export, push, merge and compare the checkpoints of a run.

    RUN is a run's folder, its folder of checkpoints, or (for verify, export, push and merge) one checkpoint. A
    checkpoint of a run is named by its step (500), its folder (step-00000500), its version (v3), `latest` or `best`.
    """
    from phonate.cli.checkpoints import run

    return run(args)
