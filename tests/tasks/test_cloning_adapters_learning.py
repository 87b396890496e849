"""Adapters to a model that was trained on some voices learn recordings of others, code for code, which the model alone
can't say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from installed import missing

if missing("peft"):
    pytest.skip("needs peft: pip install 'phonate[cloning]'", allow_module_level=True)

import phonate
from cloning_runs import row, settings
from higgs import small_model_folder
from higgs_codec import small_codec_folder
from phonate.config.resolve import resolve
from phonate.data.dialogues import Audio
from phonate.tasks.cloning.decoding import Sampling
from phonate.tasks.cloning.export import export
from phonate.tasks.cloning.inference import VoiceCloner
from phonate.tasks.cloning.task import CloningTask
from phonate.training.inference import Reference
from phonate.workflows.train import train

pytestmark = pytest.mark.slow

Clips = dict[str, list[tuple[str, Path]]]
SPARE_SECONDS = 2.0
"""That speech may last longer than the recording."""


def clips_of(corpus: Path) -> Clips:
    """Texts and recordings of each speaker, from short to long."""
    found: Clips = {}
    for line in (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines():
        name, speaker, text = line.split("|")
        found.setdefault(speaker, []).append((text, corpus / "wavs" / f"{name}.flac"))
    return {speaker: sorted(own, key=lambda clip: soundfile.info(clip[1]).frames) for speaker, own in found.items()}


def write_pairs(path: Path, clips: Clips, pairs: int) -> None:
    """Of each speaker, so many clips as references of the next longer ones."""
    rows = [row(own[i], own[i + 1], speaker) for speaker, own in clips.items() for i in range(pairs)]
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, recordings: Path) -> Path:
    """`base`, a model that was trained on twelve English speakers, and pairs of four Arabic ones."""
    folder = tmp_path_factory.mktemp("adapters")
    english, arabic = (clips_of(recordings / name) for name in ("asr_en_an4", "voice_ar_commands"))
    write_pairs(folder / "english.json", dict(sorted(english.items())[:12]), 3)
    write_pairs(folder / "arabic.json", dict(sorted(arabic.items())[:4]), 1)
    small_model_folder(folder / "model", width=96)
    small_codec_folder(folder / "codec")
    trained(folder, "english", {"model.strategy": "full", "training.max_steps": 100, "training.optimizer.lr": 3e-3})
    export(folder / "english", folder / "base", "transformers")
    return folder


def trained(folder: Path, data: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Train on `data` and write it beside its pairs. Returns the options."""
    options = settings(
        folder,
        **{
            "data.path": str(folder / f"{data}.json"),
            "data.validation": 0.0,
            "data.max_length": 1024,
            "training.batch_size": 1,
            "training.epochs": 1000,
            "training.optimizer.weight_decay": 0.0,
            "training.scheduler.warmup_steps": 10,
            "training.logging.interval": 50,
            "training.checkpoint.interval": changes["training.max_steps"],
            **changes,
        },
    )
    train("voice-cloning", options, output=folder / data)
    return options


def said(cloner: VoiceCloner, task: CloningTask) -> tuple[list[int], float]:
    """By how many frames each text is said longer than its recording, and the share of the recordings' codes said."""
    samples = task.corpus.samples("train")
    expected = [task.corpus.codes(sample.target) for sample in samples]
    pieces = [
        cloner.pieces(reference_of(sample.reference, sample.reference_text), sample.target_text, seconds)
        for sample, seconds in zip(samples, [len(own) / 25 + SPARE_SECONDS for own in expected], strict=True)
    ]
    made = cloner.generate(pieces, Sampling(temperature=0.0), 0)
    equal = sum(int((codes[: len(own)] == own[: len(codes)]).sum()) for codes, own in zip(made, expected, strict=True))
    longer = [len(codes) - len(own) for codes, own in zip(made, expected, strict=True)]
    return longer, equal / sum(own.size for own in expected)


def reference_of(audio: Audio, text: str | None) -> Reference:
    return Reference(*soundfile.read(audio.path, dtype="float32"), text)


def test_adapters_say_what_they_learnt(folder: Path) -> None:
    weights = (folder / "base" / "model.safetensors").read_bytes()
    changes = {
        "model.name": str(folder / "base"),
        "model.lora.rank": 64,
        "model.lora.alpha": 64,
        "training.max_steps": 250,
        "training.optimizer.lr": 5e-3,
    }
    options = trained(folder, "arabic", changes)
    task = CloningTask(resolve("voice-cloning", options).recipe)
    adapted = phonate.load(folder / "arabic", "cloning")
    alone = phonate.load(folder / "base", codec=folder / "codec")
    assert isinstance(alone, VoiceCloner)
    alone.system = adapted.system
    longer, share = said(alone, task)
    assert share < 0.2
    assert np.count_nonzero(longer) >= 3
    longer, share = said(adapted, task)
    assert longer == [0, 0, 0, 0], "ends on the frame on which the recording ends"
    assert share >= 0.99
    assert (folder / "base" / "model.safetensors").read_bytes() == weights
