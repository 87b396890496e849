"""The whole path once, in minutes: a corpus, training that is stopped and resumed, inference, a report.

Recordings with texts become a text-to-speech voice; recordings of several speakers, a voice conversion model.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phonate.config.errors import DataError, InputError
from phonate.evaluation.tables import Evaluation
from phonate.workflows.demo.conversion import convert_voices
from phonate.workflows.demo.speech import train_speech
from phonate.workflows.demo.training import Limit, Machine, Say
from phonate.workflows.pages.report import write_report

# ------------------------------------------------------------------------------- A person's recordings

MOST_SOURCES = 3
_FEWEST_CLIPS = 3
_SHORTEST_SOURCE = 1.0  # seconds; a shorter one says too little of a voice


@dataclass(frozen=True)
class Divided:
    """The division."""

    training: list[dict[str, str]]
    """Recordings to train on, as a JSON corpus lists them."""
    speakers: int
    target: str
    """The speaker with the most speech."""
    target_clips: tuple[Path, ...]
    """The target's recordings."""
    sources: tuple[Path, ...]
    """A recording of each of a few other speakers; not in `training`."""


@dataclass(frozen=True)
class _Recording:
    path: Path
    seconds: float


def divide(folder: Path) -> Divided:
    """Keep one recording of up to three speakers who are not the target.

    Raises InputError when `folder` has no two speakers, or none to spare a recording of, and DataError when it
    can't be read.
    """
    speakers = _by_speaker(folder)
    if len(speakers) < 2:
        found = f"only of {next(iter(speakers))!r}" if speakers else "none"
        raise InputError(
            f"{folder}: the demo needs recordings of two or more speakers, a sub-folder each; found {found}"
        )
    target = max(speakers, key=lambda name: sum(one.seconds for one in speakers[name]))
    kept: dict[str, Path] = {}
    for name, recordings in speakers.items():
        long = [one for one in recordings if one.seconds >= _SHORTEST_SOURCE]
        if name != target and len(recordings) >= _FEWEST_CLIPS and long and len(kept) < MOST_SOURCES:
            kept[name] = long[-1].path
    if not kept:
        raise InputError(
            f"{folder}: nothing to convert; a speaker beside {target!r} needs {_FEWEST_CLIPS} recordings or more, "
            f"one of them of {_SHORTEST_SOURCE:g} s or longer"
        )
    sources = set(kept.values())
    training = [
        {"audio_path": str(one.path.resolve()), "speaker_id": name}
        for name, recordings in speakers.items()
        for one in recordings
        if one.path not in sources
    ]
    clips = tuple(one.path for one in speakers[target])
    return Divided(training, len(speakers), target, clips, tuple(kept.values()))


def _by_speaker(folder: Path) -> dict[str, list[_Recording]]:
    """The usable recordings of each speaker, in the corpus's order."""
    from phonate.data.manifests.manifest import check_corpus
    from phonate.data.settings import VoiceData

    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give one with a sub-folder of recordings for each speaker")
    checked, _ = check_corpus(VoiceData(path=str(folder), format="folder"))
    speakers: dict[str, list[_Recording]] = {}
    for one in checked:
        recording = _Recording(one.row.path.resolve(), one.seconds)
        speakers.setdefault(str(one.row.segments[0].speaker), []).append(recording)
    return speakers


# --------------------------------------------------------------------- The whole path once, in minutes

Kind = Literal["speech", "conversion"]
MINUTES = 5.0
"""Minutes of training by default."""
_TRAINED_BY = 390.0
"""Seconds after the start at which training ends by default, on a slow machine too, where the rest takes up to 200."""


@dataclass(frozen=True)
class Demo:
    """What the demo made."""

    report: Path
    evaluation: Evaluation | None
    """None where the packages that measure are not installed."""
    metrics: tuple[str, ...]
    """The metrics of `evaluation` to look at first."""
    next_commands: tuple[str, ...]
    """What to type next."""


def demo(
    output: Path,
    data: Path | None = None,
    minutes: float | None = None,
    say: Say = lambda line: None,
    kind: Kind = "speech",
    synthetic: bool = False,
    language: str | None = None,
) -> Demo:
    """Run everything in `output`, a folder that is new or empty.

    Args:
        output: becomes the run's folder.
        data: Recordings with texts, in any form that `phonate data check` reads; for conversion, a folder with a
            sub-folder of recordings for each of two or more speakers. None: for speech, the recordings that come with
            the package; for conversion, a synthetic corpus.
        minutes: Minutes of training. None: MINUTES, or fewer, so that the whole demo ends within ten minutes.
        say: Called with each line of progress.
        kind: What to train.
        synthetic: Train on a synthetic corpus, which for speech means from scratch.
        language: That of the texts of `data`, such as "de"; None: English.

    Raises:
        InputError: a folder can't be used, `data` was given with `synthetic`, or `language` without `data`.
        PhonateError: training failed.
    """
    if synthetic and data is not None:
        raise InputError("--synthetic: makes a corpus, and --data gives one; leave one of them out")
    if language is not None and (data is None or kind != "speech"):
        raise InputError(f"--language {language}: only for your own recordings; give them with --data")
    if data is not None and not data.exists():
        raise InputError(f"--data: {data} does not exist; name a folder of recordings")
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; choose another folder by --output")
    started = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    limit = Limit(60 * MINUTES, started + _TRAINED_BY) if minutes is None else Limit(60 * minutes)
    machine = _machine(say)
    if kind == "speech":
        evaluation = train_speech(data, output, limit, machine, say, synthetic, language)
        metrics: tuple[str, ...] = ("wer", "mos", "speaker", "mcd", "rtf")
        use = ["phonate", "speak", str(output), "The baker sold a yellow boat.", "-o", "said.wav"]
    else:
        evaluation, source, target = convert_voices(data, output, limit, machine, say)
        metrics = ("pair", "own", "closer", "f0")
        use = ["phonate", "convert", str(output), str(source), "--speaker", target, "-o", "converted.wav"]
    say("\nwriting the report")
    own = ["phonate", "demo", "--data", "my_recordings", *(["--task", kind] if kind != "speech" else [])]
    return Demo(write_report(output), evaluation, metrics, (shlex.join(use), shlex.join(own)))


def _machine(say: Say) -> Machine:
    """The device and the threads for every process of the demo."""
    import psutil
    import torch

    from phonate.compute import device as devices

    device = str(devices.choose("mixed"))
    if device != "cpu":
        say(f"device: {device}")
        return Machine(device)
    cores = torch.get_num_threads()
    free = max(1, cores - round(psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1)))
    if free >= cores:
        say(f"device: cpu, {cores} threads")
        return Machine(device)
    say(f"device: cpu, {free} of {cores} threads; other programs use the rest")
    torch.set_num_threads(free)
    return Machine(device, free)


def free_folder(wanted: Path) -> Path:
    """`wanted`, or `wanted-2`, `wanted-3`, ... when something lies in it already."""
    number, path = 1, wanted
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
