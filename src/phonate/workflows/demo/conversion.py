"""The demo of voice conversion: held-out recordings, converted to another speaker's voice and scored.

`phonate evaluate` is more thorough; this scores a few recordings and needs no speech recogniser.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import median_f0
from phonate.audio.processor import AudioProcessor
from phonate.config.metrics import Metric, by_name
from phonate.evaluation.tables import Evaluation
from phonate.tasks.conversion.evaluation import Baseline
from phonate.training.run import Run
from phonate.workflows.demo import embedded
from phonate.workflows.demo.training import Limit, Machine, Say, Training, quoted
from phonate.workflows.pages.report import LISTENING, Clip, Example, Listening

# ----------------------------------------- Scores of the demo's voice conversion, beside no conversion

TARGET_CLIPS = 8
_MODEL, _TARGET = "this model", "target's own recordings"
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
    systems = {"no conversion": own}
    if importlib.util.find_spec("librosa") is not None:
        baseline = Baseline(processor, natural)
        systems["pitch shift and equaliser, no learning"] = [baseline(waveform) for waveform in own]
    systems |= {_MODEL: [processor.load(path) for path in converted], _TARGET: natural}
    rate = processor.config.sample_rate
    judged = importlib.util.find_spec("resemblyzer") is not None
    voices = _likeness(systems, own, natural, rate) if judged else {}
    legend = f"Over {len(own)} held-out recordings. {_VOICES if judged else ''}{_F0}"
    if not judged:
        legend += " For speaker similarity: pip install 'phonate[eval]'."
    results = {
        name: {**voices.get(name, {}), "f0": float(np.nanmedian([median_f0(one, rate) for one in sounds]))}
        for name, sounds in systems.items()
    }
    shown = by_name(Metric("f0", "", "Hz", "median F0"))
    return Evaluation("conversion", results, focus=_MODEL, legend=legend, notes={"clips": len(own)}, columns=shown)


def _likeness(
    systems: Mapping[str, Sequence[FloatArray]], sources: Sequence[FloatArray], target: Sequence[FloatArray], rate: int
) -> dict[str, dict[str, float]]:
    """For each system the likeness to the target and to its own source, and how many end closer to the target."""
    from phonate.pretrained.speakers import SpeakerJudge, similarity

    judge = SpeakerJudge()
    natural = [judge.embed(sound, rate) for sound in target]
    own = [judge.embed(sound, rate) for sound in sources]
    found = {}
    for name, sounds in systems.items():
        if name == _TARGET:  # each of them against the others
            if len(natural) > 1:
                pairs = [similarity(one, natural[:i] + natural[i + 1 :]) for i, one in enumerate(natural)]
                found[name] = {"pair": float(np.mean(pairs))}
            continue
        voices = [judge.embed(sound, rate) for sound in sounds]
        pair = np.array([similarity(voice, natural) for voice in voices])
        to_source = np.array([similarity(voice, [source]) for voice, source in zip(voices, own, strict=True)])
        found[name] = {
            "pair": float(pair.mean()),
            "own": float(to_source.mean()),
            "closer": float((pair > to_source).mean()),
        }
    return found


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
        f"data.path={quoted(material.data)}",
        f"data.target={quoted(material.target)}",
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
    from phonate.workflows.demo.demo import divide

    say(f"reading the recordings in {data}")
    divided = divide(data)
    listed = output / "training.json"
    listed.write_text(json.dumps(divided.training, indent=1), encoding="utf-8")
    say(
        f"{len(divided.training)} recordings of {divided.speakers} speakers to train on; "
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

    say(f"\nconverting {len(material.sources)} recordings to the voice of {material.target}")
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
    Run(output).write_json("evaluation.json", table.document())
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
