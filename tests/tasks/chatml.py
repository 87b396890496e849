"""Small ChatML files with recordings, as voices are cloned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import soundfile

from phonate.tasks.cloning.data import INSTRUCTION
from sounds import SAMPLE_RATE, voiced_tone


def audio(path: Path | str, **span: float) -> dict[str, Any]:
    """An audio part."""
    return {"type": "audio", "audio_url": str(path), **span}


def text(words: str) -> dict[str, Any]:
    """A text part."""
    return {"type": "text", "text": words}


def row(
    reference: Path | str, target: Path | str, words: str, said: str | None = "what the reference says", **more: Any
) -> dict[str, Any]:
    """A pair as the document's files have it."""
    user = [audio(reference), text(f"{INSTRUCTION} {words}")]
    return {
        "messages": [
            {"role": "system", "content": "You speak in the reference's voice."},
            {"role": "user", "content": user if said is None else [text(said), *user]},
            {"role": "assistant", "content": [text(words), audio(target)]},
        ],
        **more,
    }


def recording(path: Path, seconds: float = 1.0, seed: int = 0) -> Path:
    """A voiced sound at 22.05 kHz, written to `path`."""
    sound = voiced_tone(seconds, 120.0 + 10 * seed, (600.0, 1500.0, 2500.0), seed=seed)
    soundfile.write(path, sound, SAMPLE_RATE, subtype="PCM_16")
    return path


def chatml_corpus(folder: Path, pairs: int = 6, seconds: float = 0.6) -> Path:
    """A chatml.json of `pairs` rows of two speakers, with absolute paths."""
    rows = []
    for pair in range(pairs):
        reference = recording(folder / f"{pair}-reference.wav", seconds, seed=2 * pair)
        target = recording(folder / f"{pair}-target.wav", seconds + 0.05 * pair, seed=2 * pair + 1)
        words = f"these are the words of pair number {pair}"
        rows.append(row(reference, target, words, speaker=f"speaker {pair % 2}", misc={"duration": seconds}))
    path = folder / "chatml.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path
