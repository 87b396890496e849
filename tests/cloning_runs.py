"""Small models, corpora and settings for tests of training on voices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import soundfile

from higgs import small_model_folder
from higgs_codec import small_codec_folder
from sounds import SAMPLE_RATE, voiced_tone

SYSTEM = "You are a helpful assistant."
SPEAKERS = {"anna": (210.0, (700.0, 1800.0, 2900.0)), "ben": (110.0, (500.0, 1300.0, 2400.0))}
TEXTS = ("the quick brown fox", "هذا انت بيتي", "jumps over the dog", "ما اقدر لان هذا")


def row(reference: tuple[str, Path], target: tuple[str, Path], speaker: str) -> dict[str, Any]:
    """A row of ChatML, in the form of fine-tuning scripts for Higgs Audio."""
    wanted = f"Please generate speech for given text in reference audio's voice: {target[0]}"
    user = [
        {"type": "text", "text": reference[0]},
        {"type": "audio", "audio_url": str(reference[1])},
        {"type": "text", "text": wanted},
    ]
    assistant = [{"type": "text", "text": target[0]}, {"type": "audio", "audio_url": str(target[1])}]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": user},
        {"role": "assistant", "content": assistant},
    ]
    return {"messages": messages, "speaker": speaker, "misc": {"duration": 1.0}}


def write_corpus(folder: Path, clips: int = 4) -> Path:
    """`chatml.json` in `folder`: for each of two speakers, each clip is the reference of the next one."""
    rows = []
    for speaker, (pitch, formants) in SPEAKERS.items():
        said = []
        for clip in range(clips):
            path = folder / f"{speaker}{clip}.wav"
            sound = voiced_tone(0.6 + 0.08 * clip, pitch, formants, seed=clip)
            soundfile.write(path, sound, SAMPLE_RATE, subtype="PCM_16")
            said.append((f"{TEXTS[clip % len(TEXTS)]} {clip}", path))
        rows += [row(said[clip], said[(clip + 1) % clips], speaker) for clip in range(clips)]
    path = folder / "chatml.json"
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


def write_all(folder: Path, **options: Any) -> Path:
    """A corpus, `model` and `codec` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder)
    small_model_folder(folder / "model", **options)
    small_codec_folder(folder / "codec")
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Overrides for a run of seconds on what `write_all` wrote."""
    return {
        "data.path": str(folder / "chatml.json"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.25,
        "data.max_length": 256,
        "model.name": str(folder / "model"),
        "model.codec": str(folder / "codec"),
        "model.lora.rank": 4,
        "model.lora.dropout": 0.0,
        "training.batch_size": 2,
        "training.gradient_accumulation_steps": 1,
        "training.max_steps": 4,
        "training.optimizer.lr": 5e-3,
        "training.scheduler.warmup_steps": 2,
        "training.logging.tensorboard": False,
        "training.logging.interval": 1,
        "training.validation.interval": 4,
        "training.checkpoint.interval": 2,
        "training.checkpoint.save_total_limit": 10,
        **changes,
    }
