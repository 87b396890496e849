"""The whole path once, in minutes: a corpus, training that is stopped and resumed, conversion, figures, a report.

Training runs as a process of its own, so that it is stopped as a person or a scheduler would stop it: by a
signal. Both times it is the same command.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.config.errors import InputError, PhonateError
from phonate.training.run import Run
from phonate.workflows import embedded_corpus
from phonate.workflows.exhibits import LISTENING, Clip, Example, Listening
from phonate.workflows.report import write_report

Say = Callable[[str], None]

_FEWEST_STEPS_A_MINUTE, _MOST_STEPS = 75, 4000
"""However slow the dry run was: other programs may have held it up."""
_STOPPED = 128 + signal.SIGTERM
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Material:
    """What the demo trains on and what it converts."""

    data: Path
    """`data.path` of the recipe: a folder of speakers, or a list of recordings."""
    target: str
    """The speaker whose voice is learnt to be put on."""
    target_clips: tuple[Path, ...]
    """Recordings of the target."""
    sources: tuple[Path, ...]
    """Recordings of other speakers that are kept out of training."""
    source_note: str
    """Who speaks there."""


def demo(output: Path, data: Path | None = None, minutes: float = 4.0, say: Say = lambda line: None) -> Path:
    """Run it all in `output`, a folder that is new or empty; returns where the report is.

    Args:
        data: A folder with a sub-folder of recordings for each of two or more speakers. None: the embedded corpus.
        minutes: About how long training takes.
        say: Told what is being done, line by line.

    Raises InputError for a folder that can't be used and PhonateError when training fails.
    """
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; choose another folder by --output")
    output.mkdir(parents=True, exist_ok=True)
    material = _embedded(output, say) if data is None else _own(data, output, say)
    _train(material, output, minutes, say)
    _convert(material, output, say)
    say("\nwriting the report")
    return write_report(output)


def free_folder(wanted: Path) -> Path:
    """`wanted`, or `wanted-2`, `wanted-3`, ... when something lies in it already."""
    number, path = 1, wanted
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path


# ---------------------------------------------------------------- material


def _embedded(output: Path, say: Say) -> Material:
    say("making a corpus: six synthetic speakers of English, thirty sentences each, spoken by espeak-ng")
    corpus = embedded_corpus.make(output / "corpus")
    target = embedded_corpus.SPEAKERS[0].name
    return Material(
        data=corpus.folder,
        target=target,
        target_clips=tuple(sorted((corpus.folder / target).glob("*.wav"))),
        sources=corpus.unseen,
        source_note="a speaker and a sentence that were kept out of training",
    )


def _own(data: Path, output: Path, say: Say) -> Material:
    """A person's recordings, with one of each speaker but the target kept out of training."""
    from phonate.workflows.demo_recordings import divide

    say(f"reading the recordings in {data}")
    divided = divide(data)
    listed = output / "training.json"
    listed.write_text(json.dumps(divided.training, indent=1), encoding="utf-8")
    say(
        f"{len(divided.training)} recordings of {divided.speakers} speakers to train on; "
        f"{len(divided.sources)} kept out, to be converted to {divided.target}"
    )
    return Material(
        data=listed,
        target=divided.target,
        target_clips=divided.target_clips,
        sources=divided.sources,
        source_note="a recording that was kept out of training",
    )


# ---------------------------------------------------------------- training


def _quoted(text: object) -> str:
    """As an override's value, whatever it looks like: a speaker may be called 1234."""
    return json.dumps(str(text), ensure_ascii=False)


def _train(material: Material, output: Path, minutes: float, say: Say) -> None:
    """Train to about the middle, stop by SIGTERM, and resume with the same command."""
    recipe = [
        "conversion",
        "size=tiny",
        f"data.path={_quoted(material.data)}",
        f"data.target={_quoted(material.target)}",
    ]
    steps = _affordable_steps(recipe, output, minutes, say)
    interval = max(20, steps // 10)
    command = [
        "train",
        *recipe,
        f"training.max_steps={steps}",
        f"training.scheduler.warmup_steps={steps // 20}",
        f"training.validation.interval={interval}",
        f"training.checkpoint.interval={interval}",
        f"training.logging.interval={max(5, steps // 100)}",
        "--output",
        str(output),
        "--resume",
        "auto",
    ]
    say(f"\ntraining for {steps} steps:\n  phonate {' '.join(command)}\n")
    stopped_at = _train_and_stop(command, output, steps // 2)
    say(f"\nstopped by SIGTERM at step {stopped_at}; the same command goes on from there\n")
    _run(command)


def _affordable_steps(recipe: Sequence[str], output: Path, minutes: float, say: Say) -> int:
    """How many steps this machine does in `minutes`, as a dry run says."""
    say("preparing the recordings and measuring how fast this machine trains")
    command = ["train", *recipe, "training.scheduler.warmup_steps=0", "--dry-run", "--json", "--output", str(output)]
    finished = subprocess.run(_phonate(command), stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise PhonateError("the dry run failed; what it said is above")
    seconds = json.loads(finished.stdout)["metrics"]["seconds_per_step"]
    steps = round(60 * minutes / seconds, -1)
    return int(min(max(steps, _FEWEST_STEPS_A_MINUTE * minutes, 20), _MOST_STEPS))


def _phonate(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "phonate", *arguments]


def _run(command: Sequence[str]) -> None:
    if subprocess.run(_phonate(command), check=False).returncode != 0:
        raise PhonateError("training failed; what it said is above")


def _train_and_stop(command: Sequence[str], output: Path, step: int) -> int:
    """Start training, send SIGTERM once `step` is done, and wait; returns the step that was saved."""
    with subprocess.Popen(_phonate(command)) as training:
        try:
            while training.poll() is None and _reached(output) < step:
                time.sleep(_POLL_SECONDS)
            training.send_signal(signal.SIGTERM)
            code = training.wait()
        except BaseException:
            training.terminate()
            raise
    if code != _STOPPED:
        raise PhonateError(f"training ended with exit code {code} before it was stopped; what it said is above")
    from phonate.training.checkpoints import listing

    return listing.scan(output / "checkpoints")[-1].step


def _reached(output: Path) -> int:
    """The last step that the metrics tell of."""
    from phonate.training.tracking.jsonl import read_metrics

    return max((int(line["step"]) for line in read_metrics(Run(output).metrics)), default=0)


# ---------------------------------------------------------------- conversion


def _convert(material: Material, output: Path, say: Say) -> None:
    """Convert the recordings that were kept out; write sounds and figures for the report."""
    import soundfile

    from phonate.tasks.conversion.inference import Converter
    from phonate.workflows.demo_figures import figures

    say(f"\nconverting {len(material.sources)} recordings to the voice of {material.target}")
    converter = Converter.load(output)
    samples = (output / LISTENING).parent
    samples.mkdir()
    converted = []
    for number, source in enumerate(material.sources, start=1):
        waveform = converter.convert_file(source, material.target)
        converted.append(samples / f"converted-{number}.wav")
        soundfile.write(converted[-1], waveform, converter.sample_rate, subtype="PCM_16")
    Run(output).write_json(LISTENING, _listening(material, converted, samples).model_dump())
    say("measuring how good the conversion is")
    table = figures(converter.extractor.processor, material.sources, converted, material.target_clips)
    Run(output).write_json("evaluation.json", {**table.document(), "legend": table.legend})


def _listening(material: Material, converted: Sequence[Path], samples: Path) -> Listening:
    target = Clip(
        label="Target", path=str(material.target_clips[-1].resolve()), note=f"{material.target}, saying something else"
    )
    examples = [
        Example(
            title=f"{source.stem}, in the voice of {material.target}",
            clips=(
                Clip(label="Source", path=str(source.resolve()), note=material.source_note),
                Clip(label="Converted", path=path.relative_to(samples).as_posix(), note="what this model makes of it"),
                target,
            ),
        )
        for source, path in zip(material.sources, converted, strict=True)
    ]
    note = "A few minutes of training make an audible change of voice, not a good one: expect a blurred, buzzing sound."
    return Listening(note=note, examples=tuple(examples))
