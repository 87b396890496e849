"""MODEL_CARD.md of an exported model: training data, settings, evaluation and permitted use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from phonate.config.errors import CheckpointError
from phonate.tasks.speech.inference import Synthesiser
from phonate.training.checkpoints import best_or_latest

CARD = "MODEL_CARD.md"
_FIGURES = "evaluation.json"
_HEADING = "## Evaluation"
_NAMED = 20
"""Maximum number of speakers listed by name; otherwise only their number is given."""
_UNKNOWN = "not recorded"
_NO_LICENCE = "*to be filled in: whether the licence and the speakers' consent permit the intended use*"
_SOURCES = ("speakers", "recordings", "sources", "licence")
"""Rows of a checkpoint's own card that say more than its files do."""


def model_card(name: str, facts: Mapping[str, str], figures: str) -> str:
    """The text of a card with a table of `facts`."""
    known = {"licence": _NO_LICENCE, **facts}
    rows = "\n".join(f"| {key} | {value} |" for key, value in known.items())
    return f"""# {name}

**The output of this model is AI-generated speech.** Disclose this wherever it is used, and do not imitate a person
without their consent.

| | |
| --- | --- |
{rows}

{_HEADING}

{figures}
"""


def facts_of(synthesiser: Synthesiser, vocoder: str) -> dict[str, str]:
    """Facts about a `Synthesiser` and its training data."""
    facts, speakers = synthesiser.inference_metadata, synthesiser.speakers
    named = ", ".join(speakers[:_NAMED]) if len(speakers) <= _NAMED else "not listed here"
    seconds = facts.get("seconds")
    return {
        "task": "text-to-speech",
        "language": synthesiser.inventory.language,
        "phones": f"{len(synthesiser.inventory)} symbols of the phonemizer {synthesiser.inventory.phonemizer_name}",
        "speakers": f"{len(speakers)}: {named}",
        "recordings": str(facts.get("recordings", _UNKNOWN)),
        "hours": _UNKNOWN if seconds is None else f"{seconds / 3600:.2f}",
        "sample rate": f"{synthesiser.sample_rate} Hz",
        "features": f"{facts['features']} ({synthesiser.data.audio.n_mels} mel bands)",
        "vocoder": vocoder,
        "made with": "phonate",
    }


def sources_beside(checkpoint: Path) -> dict[str, str]:
    """What the checkpoint's own model card says of its speakers, recordings and licence."""
    card = checkpoint / CARD
    if not card.is_file():
        return {}
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", card.read_text(encoding="utf-8"), re.MULTILINE)
    return {key: value for key, value in rows if key in _SOURCES}


def sources_of_vocoder(vocoder: str | Path | None) -> dict[str, str]:
    """The same of the vocoder, which is part of the exported file: a run or a checkpoint that may be gone."""
    try:
        found = sources_beside(best_or_latest(vocoder)) if vocoder is not None else {}
    except CheckpointError:
        return {}
    return {f"{key} of the vocoder": value for key, value in found.items()}


def figures_beside(checkpoint: Path) -> str:
    """The evaluation table of the run of `checkpoint`, if it was evaluated, or what its own model card says of it."""
    for folder in (checkpoint, *checkpoint.resolve().parents[:2]):
        if (folder / _FIGURES).is_file():
            found = json.loads((folder / _FIGURES).read_text(encoding="utf-8"))
            return _table(found["systems"], found.get("legend", ""))
    if (checkpoint / CARD).is_file():
        _, _, figures = (checkpoint / CARD).read_text(encoding="utf-8").partition(f"{_HEADING}\n")
        if figures := figures.partition("\n## ")[0].strip():
            return f"Of the checkpoint, before the export:\n\n{figures}"
    return "Not evaluated. Run `phonate evaluate RUN` before the export to include figures."


def _table(systems: Mapping[str, Mapping[str, float]], legend: str) -> str:
    metrics = list(dict.fromkeys(metric for values in systems.values() for metric in values))
    lines = [f"| system | {' | '.join(metrics)} |", f"| --- |{' --- |' * len(metrics)}"]
    for name, values in systems.items():
        cells = [f"{values[metric]:.3f}" if metric in values else "-" for metric in metrics]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + (f"\n\n{legend}" if legend else "")
