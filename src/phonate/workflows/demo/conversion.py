"""The demo of voice conversion: recordings kept out of training, in the voice of another speaker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.training.run import Run
from phonate.workflows.demo import embedded_corpus
from phonate.workflows.demo.training import Say, quoted, train_stop_resume
from phonate.workflows.pages.exhibits import LISTENING, Clip, Example, Listening


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


def convert_voices(data: Path | None, output: Path, minutes: float, say: Say) -> None:
    """Train on `data`, or the embedded corpus, and convert what was kept out; sounds and figures go to `output`."""
    material = _embedded(output, say) if data is None else _own(data, output, say)
    _train(material, output, minutes, say)
    _convert(material, output, say)


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
    from phonate.workflows.demo.recordings import divide

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


def _train(material: Material, output: Path, minutes: float, say: Say) -> None:
    """Train to about the middle, stop, and resume."""
    recipe = [
        "conversion",
        "size=tiny",
        f"data.path={quoted(material.data)}",
        f"data.target={quoted(material.target)}",
    ]
    train_stop_resume(recipe, output, minutes, say)


def _convert(material: Material, output: Path, say: Say) -> None:
    """Convert the recordings that were kept out; write sounds and figures for the report."""
    import soundfile

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
