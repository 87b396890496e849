"""Commands that train, or that look at what training would do: demo, session, train, explain, resources, new."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.cli.parsing import add_recipe, language_code, local_path
from phonate.config.words import number_of

if TYPE_CHECKING:
    from phonate.training.plan import Plan
    from phonate.training.run import Run
    from phonate.workflows.train import Trained


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate demo`."""
    parser.add_argument(
        "--data", metavar="DIR", type=local_path, help="your recordings, with texts or a sub-folder per speaker"
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        type=language_code,
        help="the language of your recordings, such as de (default: English)",
    )
    parser.add_argument(
        "--task",
        choices=("speech", "conversion"),
        default="speech",
        help="text-to-speech or voice conversion (default: speech)",
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="train from scratch on speech of espeak-ng (needs phonate[espeak])"
    )
    parser.add_argument("--output", metavar="RUN", type=local_path, help="the run's folder (default: runs/demo)")
    parser.add_argument(
        "--minutes", type=float, help="minutes of training, at most (default: 4, or fewer on a slow machine)"
    )


def demo(args: argparse.Namespace) -> int:
    """Run the whole pipeline in a few minutes: corpus, training, interruption, resume, inference, scores, report.

    Without --data it trains on two minutes of recordings that come with phonate; with it, on your own recordings and
    their texts, or with --task conversion on a folder with a sub-folder for each of two or more speakers. With
    --synthetic, and for conversion without --data, it makes a corpus of synthetic speech (needs phonate[espeak]).
    """
    from phonate.config.errors import InputError
    from phonate.workflows.demo.demo import demo, free_folder

    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes {args.minutes:g}: must be more than 0")
    output = args.output or free_folder(Path("runs/demo"))
    say = partial(print, flush=True)
    result = demo(output, args.data, args.minutes, say, args.task, args.synthetic, args.language)
    from phonate.cli.output import print_table

    if result.evaluation is not None:
        print()
        print_table(result.evaluation.rows(result.metrics), result.evaluation.header(result.metrics))
        arrows = result.evaluation.directions(result.metrics)
        print(f"{arrows}{arrows and '; '}the report explains each\n")
    print(f"report: {result.report}")
    print("next:")
    for command in result.next_commands:
        print(f"  {command}")
    return 0


VOICE_MODES = ("voice", "text", "auto")
_SESSION_OPTIONS = {
    "mode": "mode",
    "voice_mode": "voice_mode",
    "device": "device",
    "min_gpu_memory": "min_gpu_memory",
    "voice_data_dir": "voice_data_dir",
    "config": "config_path",
    "output_dir": "output_dir",
}
"""Option -> argument of `TrainingSession`. Options that are not given are left to it."""


def session_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate session`."""
    parser.add_argument(
        "--mode",
        choices=("gpu", "cpu", "mixed"),
        help="gpu: only with a GPU; cpu: without; mixed (default): a GPU if one has enough free memory",
    )
    parser.add_argument(
        "--voice-mode",
        choices=VOICE_MODES,
        help="train on recordings, on texts, or (auto, default) on recordings if there are any, else on texts",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0, mps; takes precedence over --mode")
    parser.add_argument("--min-gpu-memory", type=float, metavar="GB", help="free memory a GPU needs (default: 5)")
    parser.add_argument("--voice-data-dir", metavar="D", help="a folder of recordings (default: recordings)")
    parser.add_argument("--config", metavar="C", help="settings in YAML (default: training/config.yaml, if it exists)")
    parser.add_argument("--output-dir", metavar="O", help="where to write (default: training/output)")
    parser.add_argument(
        "--resume", action="store_true", help="continue the newest unfinished session in --output-dir to its end"
    )
    parser.add_argument(
        "--show-resources", action="store_true", help="list GPUs, cores and memory (GB of 1024^3 bytes), and exit"
    )
    parser.add_argument("--check-voice-data", action="store_true", help="count the recordings, and exit")


def session(args: argparse.Namespace) -> int:
    """Find a device and data, train a model on them, and leave a log.

    Put recordings into a folder `recordings`, with a .txt beside each for text-to-speech, or texts for a language
    model, and run `phonate session`. The model is saved to OUTPUT/voice_model or OUTPUT/text_model, the log to
    OUTPUT/logs. An interrupted session continues with `phonate session --resume`.
    """
    code = 0
    if args.show_resources:
        from phonate.compute.resources import ResourceDetector

        print(ResourceDetector().text())
    if args.check_voice_data:
        from phonate.config.errors import InputError
        from phonate.data.voices import VoiceDataDetector

        if args.voice_data_dir == "":
            raise InputError("--voice-data-dir: the name is empty; name a folder, or leave the option out")
        detector = VoiceDataDetector(args.voice_data_dir or "recordings")
        print(detector.text())
        code = 0 if detector.has_voice_data() else 1
    if args.show_resources or args.check_voice_data:
        return code
    from phonate.cli.output import ProgressBar
    from phonate.config.errors import Interrupted
    from phonate.workflows.session.session import TrainingSession

    options: dict[str, Any] = {
        argument: value for option, argument in _SESSION_OPTIONS.items() if (value := getattr(args, option)) is not None
    }
    start = TrainingSession.resume if args.resume else TrainingSession
    session = start(**options, bar=ProgressBar() if sys.stderr.isatty() else None)
    try:
        return 0 if session.run() else 1
    except Interrupted as error:  # the log has shown it
        return error.exit_code


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate train`."""
    add_recipe(parser)
    parser.add_argument(
        "--resume",
        metavar="auto|RUN|CHECKPOINT",
        help="continue a run that was stopped; auto: that in --output, or begin it where there is none",
    )
    parser.add_argument(
        "--mode",
        choices=("gpu", "cpu", "mixed"),
        default="mixed",
        help="gpu: require a GPU; cpu: never use one; mixed (default): use a GPU if there is one",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0 or mps")
    parser.add_argument("--output", metavar="RUN", help="the run's folder (default: runs/<recipe>)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="estimate time, memory and disk from a few real steps; no run is kept, but data are prepared in the cache",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def train(args: argparse.Namespace) -> int:
    """Train a recipe into a run folder.

    A recipe is a file or a shipped name. Options are set by their path: training.optimizer.lr=2e-4
    data.path=my_recordings size=small. The run is written to --output, by default runs/<recipe>; --resume auto
    continues one that was interrupted. Paths in a recipe are relative to the current directory.
    """
    from phonate.config.errors import Interrupted
    from phonate.training.signals import interruptible

    args.run = None
    try:
        with interruptible():
            return _train(args)
    except Interrupted as error:
        if error.checkpoint is None and error.step is None:
            stays = "nothing was trained: the same command estimates anew" if args.dry_run else _what_stays(args.run)
            raise Interrupted(f"{error}; {stays}", error.signal_number) from None
        raise


def _what_stays(run: Run | None) -> str:
    """What a training that was stopped before its first step leaves in its folder, and how it goes on."""
    from phonate.config.errors import same_command
    from phonate.training.checkpoints.listing import has_checkpoint

    if run is None or not has_checkpoint(run.path):
        return "nothing was saved: the same command begins again"
    return (
        f"its checkpoints are as before; continue with: {same_command('train', 'resume', 'auto') or run.resumed_with}"
    )


def _train(args: argparse.Namespace) -> int:
    from phonate.compute.importing import faster_import, lasting

    with lasting():
        # before anything heavy is imported, so that a mistake in the recipe is reported at once
        planned = _plan(args)
        with faster_import():
            from phonate.workflows.train import train_plan

    if not args.dry_run:
        args.logs = args.run.logs  # an error leaves its traceback there
    if planned.is_search and not args.dry_run:
        return _search(args, planned)

    trained = train_plan(planned, dry_run=args.dry_run)
    if int(os.environ.get("RANK", "0")) == 0:  # of the processes that torchrun started, one prints
        from phonate.cli.output import print_json, print_table

        if args.json:
            outcome = {} if args.dry_run else {"run": str(trained.run.path), "step": trained.step}
            print_json({**outcome, "metrics": trained.metrics})
        elif args.dry_run:
            others = trained.metrics.pop("cores_used_by_others", None)
            print_table([_estimated(name, value) for name, value in trained.metrics.items()], ["estimate", "value"])
            print(f"\n{_circumstances(others)}")
        else:
            print(_summary(trained))
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from phonate.cli.output import log_to_console
    from phonate.training.plan import plan
    from phonate.training.run import Run

    planned = plan(
        args.recipe,
        args.overrides,
        resume=args.resume,
        mode=args.mode,
        device=args.device,
        output=args.output,
        plugins=tuple(Path(path) for path in args.plugin),
    )
    planned.require_files()
    args.run = Run(planned.run)
    log_to_console(planned.written.recipe.training.logging.verbosity)
    return planned


_UNITS = {"_gib": "GiB", "_per_step": "s", "hours": "h"}
"""How the names of estimates end, and their units."""


def _estimated(name: str, value: float) -> list[str]:
    """An estimate of a dry run in words, with its unit."""
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    if unit == "h" and value < 2:
        value, unit = (60 * value, "min") if value >= 1 / 30 else (3600 * value, "s")
    elif unit == "GiB" and value < 0.97:  # 1000 MiB would be written as 1e+03
        value, unit = 1024 * value, "MiB"
    words = {"hours": "time without validation"}.get(name, name).removesuffix("_gib").replace("_", " ")
    return [words, f"{value:.3g} {unit}" if unit else f"{value:,.0f}"]


def _circumstances(others: float | None) -> str:
    """What the times of a dry run are of, and how many cores other programs used meanwhile."""
    cores = number_of(os.cpu_count() or 1, "core")
    meanwhile = "" if others is None else f", while other programs used {others:.1f} of {cores}"
    return f"Times are the mean of a few steps{meanwhile}."


def _summary(trained: Trained) -> str:
    """What was trained, its best validation, and how to use it; the metrics of the end are shown already."""
    from phonate.config.metrics import NEWEST, told

    best, chosen = trained.best, ""
    if best is not None and best.value is not None and best.metric != NEWEST:
        chosen = f", best {best.metric} {told(best.metric, best.value, trained.declared)} at step {best.step}"
    next_command = f"; next: {trained.use}" if trained.use else ""
    return f"{trained.run.path}: step {trained.step}{chosen}{next_command}"


def _search(args: argparse.Namespace, planned: Plan) -> int:
    from phonate.cli.output import print_json, print_table
    from phonate.workflows.train import search
    from phonate.workflows.tuning import BEST

    result = search(planned)
    if args.json:
        trials = [vars(trial) for trial in result.trials]
        print_json({"run": str(result.run.path), "best": vars(result.best), "trials": trials})
    else:
        print_table(result.rows(), result.header())
        print(f"\n{result.run.path}: best {result.best.run}; its recipe is {result.run.path / BEST}")
    return 0


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate explain`."""
    add_recipe(parser)
    parser.add_argument("--describe", action="store_true", help="say what each option means (in YAML: as comments)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print as JSON")
    form.add_argument("--yaml", action="store_true", help="print the complete recipe, ready to be trained")
    form.add_argument("--schema", action="store_true", help="print the JSON schema of such recipes, for editors")


def explain(args: argparse.Namespace) -> int:
    """Print every value of a recipe with where it came from.

    The first of these that sets a value counts: command line, recipe, preset of the size, default. What the language or
    the recordings decide is shown as training will decide it. What training would refuse before it reads the recordings
    is refused. Options that you must set, such as data.path, may be left out here.
    Recordings are not read whole: `phonate data check` reads them, and says what is wrong with which.
    """
    from phonate.cli.output import print_json, print_table
    from phonate.config.errors import InputError
    from phonate.data.settings import RecordingData
    from phonate.training.plan import plan
    from phonate.workflows.explain import commented_yaml, explain, schema

    if args.describe and args.schema:
        raise InputError("--describe: has no meaning with --schema; leave it out, or use --json")
    if args.schema:
        print_json(schema(args.recipe, args.overrides))
        return 0
    planned = plan(args.recipe, args.overrides, incomplete=not args.yaml)  # with --yaml it is to be trained
    planned.check()
    resolved = planned.resolved
    if args.yaml:
        print(commented_yaml(resolved) if args.describe else resolved.to_yaml(), end="")
        return 0
    values = explain(resolved)
    if args.json:
        fields = ("value", "origin", "description") if args.describe else ("value", "origin")
        print_json({one.key: {name: getattr(one, name) for name in fields} for one in values})
        return 0
    columns = 4 if args.describe else 3
    rows = [[v.key, json.dumps(v.value, ensure_ascii=False), v.origin, v.description][:columns] for v in values]
    print_table(rows, ["option", "value", "from", "meaning"][:columns])
    path = next((one.value for one in values if one.key == "data.path"), None)
    if path is not None and isinstance(getattr(resolved.recipe, "data", None), RecordingData):
        check = shlex.join(["phonate", "data", "check", path])
        print(f"\nThe recordings were not read whole; `{check}` says what is wrong with which.")
    return 0


def resources_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate resources`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def resources(args: argparse.Namespace) -> int:
    """Show what there is to train on: GPUs with their free memory, cores, memory, and bf16 of the processor.

    Limits of containers and CUDA_VISIBLE_DEVICES are respected. Listing the GPUs takes none of their memory. On a
    processor with bf16 instructions, training.mixed_precision=bf16 can make training faster.
    """
    from phonate.cli.output import log_to_console, print_json, print_table
    from phonate.compute.resources import ResourceDetector

    log_to_console()
    devices = ResourceDetector().get_available_devices()
    if args.json:
        print_json({"devices": devices})
    else:
        print_table([_device(one) for one in devices], ["device", "memory", "computes with", "name"])
    return 0


def _device(device: dict[str, Any]) -> list[str]:
    """A device as a row of a table."""
    total = f"{device['memory_gb']:.2f} GiB"
    if device["type"] == "cpu":
        bf16 = {True: "yes", False: "no", None: "not known"}[device["bf16"]]
        return ["CPU", total, f"{number_of(device['cores'], 'core')}; bf16 instructions: {bf16}", device["name"]]
    capability = device["compute_capability"]
    power = f"CUDA, capability {capability}" if device["type"] == "cuda" else capability
    return [f"GPU {device['id']}", f"{device['free_gb']:.2f} of {total} free", power, device["name"]]


KINDS = ("loss", "callback", "corpus", "task")


def new_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate new`."""
    parser.add_argument("kind", choices=KINDS, help="what to write: loss, callback, corpus or task")
    parser.add_argument("name", metavar="NAME", help="its name in recipes, such as my_loss")
    parser.add_argument("--into", metavar="DIR", default=".", help="folder to write to (default: the current one)")


def new(args: argparse.Namespace) -> int:
    """Write a working first version of an extension, and its test.

    The file is loaded by --plugin FILE. A model belongs to a task, and so do the metrics of its evaluation: write a
    task for them.
    """
    from phonate.workflows.scaffold import scaffold

    path, test = scaffold(args.kind, args.name, args.into)
    print(f"wrote {path} and {test}; next: {shlex.join(['pytest', str(test)])}")
    if args.kind == "task":
        recipe = path.with_suffix(".yaml")
        train = shlex.join(["phonate", "train", "--plugin", str(path), str(recipe)])
        print(f"to train it, write `task: {args.name}` into {recipe}, then: {train}")
    return 0
