"""Scores of the demo's voice conversion, beside no conversion, a baseline and the target's own recordings.

`phonate evaluate` is more thorough; this scores a few recordings and needs no speech recogniser.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import median_f0
from phonate.audio.processor import AudioProcessor
from phonate.config.metrics import Metric, by_name
from phonate.evaluation.tables import Evaluation
from phonate.tasks.conversion.baseline import Baseline

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
    from phonate.evaluation.speaker_similarity import SpeakerJudge, similarity

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
