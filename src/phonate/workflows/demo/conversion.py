"""The demo of voice conversion: held-out recordings, converted to another speaker's voice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.evaluation.tables import Evaluation
from phonate.training.run import Run
from phonate.workflows.demo import embedded_corpus
from phonate.workflows.demo.training import Limit, Machine, Say, Training, quoted
from phonate.workflows.pages.exhibits import LISTENING, Clip, Example, Listening


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
    corpus = embedded_corpus.make(output / "corpus")
    target = embedded_corpus.SPEAKERS[0].name
    return Material(
        data=corpus.folder,
        target=target,
        target_clips=tuple(sorted((corpus.folder / target).glob("*.wav"))),
        sources=corpus.unseen,
        source_note="speaker and sentence held out of training",
    )


def _own(data: Path, output: Path, say: Say) -> Material:
    """A person's recordings, with one of each speaker but the target kept out of training."""
    from phonate.workflows.demo.recordings import divide

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
    from phonate.workflows.demo.figures import figures

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
