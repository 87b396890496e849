"""The whole path once, in minutes: a corpus, training that is stopped and resumed, inference, a report.

Recordings with texts become a text-to-speech voice. The voice that comes along speaks first. Recordings whose features
and phones are its own adapt it; for others, and for the synthetic corpus, a vocoder and an acoustic model are trained
from scratch. Recordings of several speakers become a voice conversion model; held-out ones are converted and scored,
without a speech recogniser (`phonate evaluate` is more thorough).
"""

from __future__ import annotations

import importlib.util
import json
import math
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import voice_f0
from phonate.audio.processor import AudioProcessor
from phonate.audio.whisper import PACKAGES, is_included, model_for
from phonate.compute.resources import multiplies_in_bf16
from phonate.config.errors import DataError, InputError, MissingPackageError, install_command, option
from phonate.config.metrics import Metric, by_name
from phonate.config.registry import nearest_path
from phonate.config.words import number_of
from phonate.data.corpora.manifest import detect_format, list_corpus, require_corpora
from phonate.data.corpora.rows import Problem, Row
from phonate.evaluation.speakers import similarity
from phonate.evaluation.tables import Evaluation
from phonate.pretrained import SPEAKERS, Embedding, SpeakerEncoder, missing
from phonate.tasks.conversion.evaluation import Baseline
from phonate.tasks.speech.settings import SpeechData
from phonate.tasks.speech.start import JUDGES
from phonate.training.checkpoints.files import BASE_VOICE, FIGURES, RECORDINGS
from phonate.training.plan import plan
from phonate.training.run import Run
from phonate.workflows.datasets.transcripts import transcribe
from phonate.workflows.demo import embedded
from phonate.workflows.demo.training import Limit, Machine, Say, Training, as_value
from phonate.workflows.evaluate import evaluate
from phonate.workflows.pages.report import LISTENING, Clip, Example, Listening, write_report

# ----------------------------------------- Scores of the demo's voice conversion, beside no conversion

TARGET_CLIPS = 8
_MODEL, _TARGET, _UNCHANGED = "this model", "target's own recordings", "no conversion"
_F0 = "Median F0 in Hz."
_VOICES = (
    "pair: mean cosine of speaker embeddings (resemblyzer) to single recordings of the target; own: to the source; "
    "closer: share that ended closer to the target than to the source; "
)


def figures(
    processor: AudioProcessor, sources: Sequence[Path], converted: Sequence[Path], target: Sequence[Path]
) -> Evaluation:
    """Pitch and, where phonate[eval] is installed, likeness of voices, of each system over the same recordings."""
    own = [processor.load(path) for path in sources]
    natural = [processor.load(path) for path in target[:TARGET_CLIPS]]
    systems = {_UNCHANGED: own}
    if importlib.util.find_spec("librosa") is not None:
        baseline = Baseline(processor, natural)
        systems["pitch shift and equaliser, no learning"] = [baseline(waveform) for waveform in own]
    systems |= {_MODEL: [processor.load(path) for path in converted], _TARGET: natural}
    rate = processor.config.sample_rate
    judged = not missing(SPEAKERS)
    voices, silent = _likeness(systems, rate) if judged else ({}, [])
    legend = f"Over {len(own)} held-out recordings. {_VOICES if judged else ''}{_F0}"
    if not judged:
        legend += f" For speaker similarity: {install_command(SPEAKERS.install)}."
    if silent:
        legend += f" No speaker similarity of {' and '.join(silent)}: the judge finds no speech there."
    results = {name: voices.get(name, {}) | _pitch(sounds, rate) for name, sounds in systems.items()}
    shown = by_name(Metric("f0", "", "Hz", "median F0"))
    return Evaluation("conversion", results, focus=_MODEL, legend=legend, notes={"clips": len(own)}, columns=shown)


def _pitch(sounds: Sequence[FloatArray], rate: int) -> dict[str, float]:
    """Nothing where no recording is voiced, as after a few steps of training."""
    f0 = voice_f0(sounds, rate)
    return {} if math.isnan(f0) else {"f0": f0}


def _likeness(systems: Mapping[str, Sequence[FloatArray]], rate: int) -> tuple[dict[str, dict[str, float]], list[str]]:
    """For each system the likeness to the target and to its own source, and how many end closer to the target; and the
    systems with a sound that has no speech, as after a few steps of training, for which there is none."""
    judge = SpeakerEncoder()
    embedded = {name: _voices(judge, sounds, rate) for name, sounds in systems.items()}
    silent = [name for name, voices in embedded.items() if voices is None]
    natural, own = embedded[_TARGET], embedded[_UNCHANGED]
    likeness: dict[str, dict[str, float]] = {}
    if natural is None or own is None:
        return likeness, silent
    for name, voices in embedded.items():
        if name == _TARGET:  # each of them against the others
            if len(natural) > 1:
                pairs = [similarity(one, natural[:i] + natural[i + 1 :]) for i, one in enumerate(natural)]
                likeness[name] = {"pair": float(np.mean(pairs))}
        elif voices is not None:
            pair = np.array([similarity(voice, natural) for voice in voices])
            to_source = np.array([similarity(voice, [source]) for voice, source in zip(voices, own, strict=True)])
            likeness[name] = {
                "pair": float(pair.mean()),
                "own": float(to_source.mean()),
                "closer": float((pair > to_source).mean()),
            }
    return likeness, silent


def _voices(judge: SpeakerEncoder, sounds: Sequence[FloatArray], rate: int) -> list[Embedding] | None:
    """The voices of all sounds; None if there is no speech in one of them."""
    try:
        return [judge.embed(sound, rate) for sound in sounds]
    except DataError:
        return None


# ------------- The demo of voice conversion: held-out recordings, converted to another speaker's voice


@dataclass(frozen=True)
class Material:
    """What the demo trains on and what it converts."""

    data: Path
    """`data.path` of the recipe: a folder of speakers, or a list of recordings."""
    target: str
    """The speaker to convert to."""
    target_clips: tuple[Path, ...]
    """Recordings of the target."""
    sources: tuple[Path, ...]
    """Held-out recordings of other speakers."""
    source_note: str
    """A caption for them."""


def convert_voices(
    data: Path | None, output: Path, limit: Limit, machine: Machine, say: Say
) -> tuple[Evaluation, Path, str]:
    """Train on `data`, or the embedded corpus, and convert held-out recordings; sounds and figures go to `output`.

    Returns the evaluation, a held-out recording and the target speaker.
    """
    material = _embedded(output, say) if data is None else _own(data, output, say)
    recipe = [
        "conversion",
        "size=tiny",
        f"data.path={as_value(material.data)}",
        f"data.target={as_value(material.target)}",
    ]
    Training(recipe, output, machine).stopped_and_resumed(limit, 1.0, say)
    return _convert(material, output, say), material.sources[0], material.target


def _embedded(output: Path, say: Say) -> Material:
    say("making a corpus: six synthetic English speakers, thirty sentences each, spoken by espeak-ng")
    corpus = embedded.make_corpus(output / "corpus")
    target = embedded.SPEAKERS[0].name
    return Material(
        data=corpus.folder,
        target=target,
        target_clips=tuple(sorted((corpus.folder / target).glob("*.wav"))),
        sources=corpus.unseen,
        source_note="speaker and sentence held out of training",
    )


def _own(data: Path, output: Path, say: Say) -> Material:
    """A person's recordings, with one of each speaker but the target kept out of training."""

    say(f"reading the recordings in {data}")
    divided = divide(data)
    listed = output / "training.json"
    listed.write_text(json.dumps(divided.training, indent=1), encoding="utf-8")
    say(
        f"{number_of(len(divided.training), 'recording')} of {divided.speakers} speakers to train on; "
        f"{len(divided.sources)} held out, to be converted to {divided.target}"
    )
    return Material(
        data=listed,
        target=divided.target,
        target_clips=divided.target_clips,
        sources=divided.sources,
        source_note="a recording held out of training",
    )


def _convert(material: Material, output: Path, say: Say) -> Evaluation:
    """Convert the held-out recordings; write sounds and figures for the report."""
    from phonate.audio.decoding import MADE, write_audio
    from phonate.tasks.conversion.inference import Converter

    say(f"\nconverting {number_of(len(material.sources), 'recording')} to the voice of {material.target}")
    converter = Converter.load(output)
    samples = (output / LISTENING).parent
    samples.mkdir()
    converted = []
    for number, source in enumerate(material.sources, start=1):
        waveform = converter.convert(source, material.target)
        converted.append(samples / f"converted-{number}.wav")
        write_audio(converted[-1], waveform, converter.sample_rate, MADE)
    Run(output).write_json(LISTENING, _listening(material, converted, samples).model_dump())
    say("scoring the conversions")
    table = figures(converter.extractor.processor, material.sources, converted, material.target_clips)
    Run(output).write_json(FIGURES, table.document())
    return table


def _listening(material: Material, converted: Sequence[Path], samples: Path) -> Listening:
    target = Clip(
        label="Target", path=str(material.target_clips[-1].resolve()), note=f"{material.target}, another sentence"
    )
    examples = [
        Example(
            title=f"{source.stem}, in the voice of {material.target}",
            clips=(
                Clip(label="Source", path=str(source.resolve()), note=material.source_note),
                Clip(label="Converted", path=path.relative_to(samples).as_posix(), note="this model"),
                target,
            ),
        )
        for source, path in zip(material.sources, converted, strict=True)
    ]
    note = "After a few minutes of training the voice changes audibly, but the sound is still blurred and buzzing."
    return Listening(note=note, examples=tuple(examples))


# ------------------------------------------------------------------------ The demo of text-to-speech

_VOCODER_SHARE = 0.25
"""Of the training time; the rest goes to the acoustic model."""
_SENTENCES = 400
_GREETING = "Hello. This is the voice that comes with phonate. In a few minutes there will be another one."
_KEPT = 12
"""Validation sentences, synthesised at the end."""
_UNJUDGED = "data.judged=0"
"""Scoring speech at every validation takes too long for a demo."""


def _instead() -> str:
    """What to do with recordings without texts."""
    way = option("task", "conversion")
    return (
        "; or add the texts (see docs/do/recordings.md), or try voice conversion, which needs none: "
        f"{way} (make demo: TASK=conversion)"
    )


def train_speech(
    data: Path | None,
    output: Path,
    limit: Limit,
    machine: Machine,
    say: Say,
    synthetic: bool = False,
    language: str | None = None,
) -> Evaluation | None:
    """Train a voice on `data`, or on the package's recordings or a synthetic corpus, and synthesise validation texts.

    `language` is that of `data`; None: English. Everything goes to `output`. Returns the evaluation; None where the
    packages for it are not installed.
    """
    from phonate.audio.decoding import MADE, write_audio
    from phonate.workflows.load import load

    voice = load(BASE_VOICE, "speech")  # something to listen to at once
    path = output / "base-voice.flac"
    write_audio(path, voice.speak(_GREETING), voice.sample_rate, MADE)
    say(f'listen to {path}: the voice that comes with phonate says "{_GREETING}"')
    if synthetic:
        say(f"making a corpus: {_SENTENCES} random sentences, spoken by espeak-ng")
        data = output / "corpus"
        embedded.make_voice(data, _SENTENCES)
    elif data is None:
        say(f"recordings: {RECORDINGS}, the first of LJ Speech; for your own: --data FOLDER (make demo DATA=FOLDER)")
        data = RECORDINGS
    spoken = {"language": language} if language is not None else {}
    listed, texts = _listed(SpeechData(path=str(data), **spoken), say)
    share = min(0.2, _KEPT / len(listed))
    corpus = [f"data.path={as_value(data)}", f"data.validation={share:.3g}"]
    texts += [f"data.{name}={value}" for name, value in spoken.items()]
    if _bf16_is_faster():
        corpus.append("training.mixed_precision=bf16")
    if synthetic:
        _train_from_scratch(["size=tiny", *corpus], texts, output, limit, machine, say, synthetic=True)
    else:
        adapted = Training(["speech", *corpus, *texts, _UNJUDGED], output, machine)
        if adapted.plan.settings.init_from is not None:
            say("\ntraining: the voice that comes with phonate becomes that of the recordings")
            adapted.stopped_and_resumed(limit, 1.0, say)
        else:
            _train_from_scratch(["size=tiny", *corpus], texts, output, limit, machine, say)
    if advice := _to_score(language):
        say(f"\nsynthesis of validation texts (to score it, {advice})")
        _speak(output)
        return None
    say("\nsynthesis of validation texts, and scores")
    return evaluate(output)


def _to_score(language: str | None) -> str | None:
    """What to install for scores; None where all is there."""
    judges = (*JUDGES, SPEAKERS)
    if lacking := missing(*judges):
        return f"{install_command(*(one.install for one in judges))}; missing: {', '.join(lacking)}"
    model = model_for(language or "en")
    return None if is_included(model) else f"pip install {PACKAGES[model]}"


def _listed(settings: SpeechData, say: Say) -> tuple[list[Row | Problem], list[str]]:
    """What the corpus lists, and overrides for its texts: recordings without any are transcribed."""
    data = settings.path
    listed, _ = list_corpus(settings)
    if _has_text(listed):
        return listed, []
    say(f"{data}: no recording has a text, so they are transcribed first, with Whisper (data.transcribe=true)")
    settings = settings.model_copy(update={"transcribe": True})
    try:
        say(transcribe(settings))
    except (InputError, MissingPackageError) as error:
        raise InputError(f"{data}: no recording has a text; {error}{_instead()}") from error
    listed, _ = list_corpus(settings)
    if not _has_text(listed):
        raise InputError(f"{data}: no recording has a text, and in none words were understood{_instead()}")
    return listed, ["data.transcribe=true"]


def _has_text(listed: list[Row | Problem]) -> bool:
    return any(isinstance(row, Row) and row.text for row in listed)


def _train_from_scratch(
    corpus: list[str], texts: list[str], output: Path, limit: Limit, machine: Machine, say: Say, synthetic: bool = False
) -> None:
    """A vocoder, then an acoustic model."""
    vocoder = output / "vocoder"
    say("\n1. a vocoder: mel spectrogram to waveform")
    plain = "training.adversarial_start=null"
    Training(["vocoder", *corpus, plain], vocoder, machine).straight(limit, _VOCODER_SHARE, say)
    say("\n2. an acoustic model: text to mel spectrogram")
    recipe = ["speech", *corpus, *texts, plain, _UNJUDGED, "training.init_from=null", "training.batch_size=8"]
    recipe.append(f"data.vocoder={as_value(vocoder)}")
    if synthetic:  # espeak-ng reports when each phone begins
        recipe += ["data.phonemes=espeak", "data.durations=espeak", "model.predictor_dropout=0.1"]
    Training(recipe, output, machine).stopped_and_resumed(limit, 1.0 - _VOCODER_SHARE, say)


def _bf16_is_faster() -> bool:
    """Whether there is no GPU, for which `auto` chooses, and the processor does 1.7 times as many steps in bf16: of
    those by Intel and AMD, on which it was measured."""
    import torch

    measured = platform.machine().lower() in ("x86_64", "amd64")
    return measured and not torch.cuda.is_available() and bool(multiplies_in_bf16())


def _speak(output: Path) -> None:
    from phonate.audio.decoding import MADE, write_audio
    from phonate.data.prepared import prepare
    from phonate.tasks.speech.inference import Synthesiser

    synthesiser = Synthesiser.load(output)
    prepared = prepare(synthesiser.data)
    samples = (output / LISTENING).parent
    examples: list[Example] = []
    for position in prepared.validation[:_KEPT]:
        text, name = prepared.index.text[position], f"{len(examples) + 1}"
        speaker = prepared.speakers[int(prepared.index.speaker[position])]
        write_audio(samples / f"spoken-{name}.flac", synthesiser.speak(text, speaker), synthesiser.sample_rate, MADE)
        natural = Clip(label="Natural", path=prepared.index.path[position], note="the recording of this text")
        synthetic = Clip(label="Spoken", path=f"spoken-{name}.flac", note="this model")
        examples.append(Example(title=text, clips=(natural, synthetic)))
    Run(output).write_json(LISTENING, Listening(examples=tuple(examples)).model_dump())


# ------------------------------------------------------------------------------- A person's recordings

MOST_SOURCES = 3
_FEWEST_CLIPS = 3
_SHORTEST_SOURCE = 1.0  # seconds; a shorter one says too little of a voice


@dataclass(frozen=True)
class Division:
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


def divide(folder: Path) -> Division:
    """Keep one recording of up to three speakers who are not the target.

    Raises InputError when `folder` has no two speakers, or none to spare a recording of, and DataError when it
    can't be read.
    """
    speakers = _by_speaker(folder)
    if len(speakers) < 2:
        listed = f"only of {next(iter(speakers))!r}" if speakers else "none"
        raise InputError(
            f"{folder}: the demo needs recordings of two or more speakers, a sub-folder each; found {listed}"
        )
    target = max(speakers, key=lambda name: sum(one.seconds for one in speakers[name]))
    held_out: dict[str, Path] = {}
    for name, recordings in speakers.items():
        long = [one for one in recordings if one.seconds >= _SHORTEST_SOURCE]
        if name != target and len(recordings) >= _FEWEST_CLIPS and long and len(held_out) < MOST_SOURCES:
            held_out[name] = long[-1].path
    if not held_out:
        raise InputError(
            f"{folder}: nothing to convert; a speaker beside {target!r} needs {_FEWEST_CLIPS} recordings or more, "
            f"one of them of {_SHORTEST_SOURCE:g} s or longer"
        )
    sources = set(held_out.values())
    training = [
        {"audio_path": str(one.path.resolve()), "speaker_id": name}
        for name, recordings in speakers.items()
        for one in recordings
        if one.path not in sources
    ]
    clips = tuple(one.path for one in speakers[target])
    return Division(training, len(speakers), target, clips, tuple(held_out.values()))


def _by_speaker(folder: Path) -> dict[str, list[_Recording]]:
    """The usable recordings of each speaker, in the corpus's order."""
    from phonate.data.corpora.manifest import check_corpus
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
MINUTES = 4.0
"""Minutes of training by default, at most."""
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
    _require_usable(output, data, kind, synthetic, language)
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


def _require_usable(output: Path, data: Path | None, kind: Kind, synthetic: bool, language: str | None) -> None:
    """Raise InputError as `demo` does, before there is a folder, and a voice to listen to."""
    if synthetic and data is not None:
        raise InputError(
            f"{option('synthetic', True)}: makes a corpus, and {option('data')} gives one; leave one of them out"
        )
    if language is not None and (data is None or kind != "speech"):
        raise InputError(
            f"{option('language', language)}: only for your own recordings; give them with {option('data')}"
        )
    if data is not None and not data.exists():
        mend = nearest_path(data) or "; name a folder of recordings"
        raise InputError(f"{option('data')}: {data} does not exist{mend}")
    if data is not None:
        require_corpora(SpeechData(path=str(data)))
        if detect_format(data) == "rttm":
            learns = f"phonate train diarization data.path={shlex.quote(str(data))}"
            raise InputError(
                f"{data}: holds recordings of who speaks when, which the demo does not learn; {learns} does"
            )
    if language is not None:  # what training would refuse of it
        options = {"data.path": str(data), "data.language": language, "data.judged": 0}
        _ = plan("speech", options, corpus=False).traits
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; choose another folder with {option('output')}")


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
        say(f"device: cpu, {_threads(cores)}")
        return Machine(device)
    say(f"device: cpu, {free} of {_threads(cores)}; other programs use the rest")
    torch.set_num_threads(free)
    return Machine(device, free)


def _threads(count: int) -> str:
    return number_of(count, "thread")


def free_folder(folder: Path) -> Path:
    """`wanted`, or `wanted-2`, `wanted-3`, ... when something lies in it already."""
    number, path = 1, folder
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = folder.with_name(f"{folder.name}-{number}")
    return path
