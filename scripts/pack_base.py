"""Packs a checkpoint for the package: weights in half precision, nothing of the machine it was trained on.

    python scripts/pack_base.py RUN src/phonate/base/voice data.path=kathleen [key=value ...]

RUN is a run or a checkpoint. `key=value` are changes to its recipe, whose paths must not be of this machine. The target
is a checkpoint with a manifest of its own, which `phonate checkpoints verify` checks. A MODEL_CARD.md in it is kept.
Speakers that are others at another pitch (see shift_voices.py) are left out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from phonate.config.resolve import resolve
from phonate.training.checkpoints import best_or_latest, files
from phonate.training.checkpoints.manifest import problems, write_manifest

CARD = "MODEL_CARD.md"
VOICES = "acoustic.voices.weight"
OF_THE_MACHINE = ("hostname", "platform", "git_commit", "git_branch", "git_dirty", "model_hash")


def own_voices(speakers: list[str]) -> list[int]:
    """Numbers of the speakers that are no other one at another pitch, such as kathleen+3 beside kathleen."""
    unshifted = [re.sub(r"[+-]\d$", "", name) for name in speakers]
    return [number for number, name in enumerate(speakers) if unshifted[number] not in {*speakers} - {name}]


def half_weights(source: Path, voices: list[int] | None) -> bytes:
    """The weights with 16-bit numbers, with the vectors of these `voices`; None for a model that has none."""
    with safe_open(source / files.WEIGHTS, "pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if voices is not None:
        tensors[VOICES] = tensors[VOICES][voices]
    return save({name: one.half() if one.is_floating_point() else one for name, one in tensors.items()})


def metadata(source: Path) -> bytes:
    """The checkpoint's metadata without what it says of the machine."""
    found = json.loads((source / files.METADATA).read_text(encoding="utf-8"))
    without_state = {"optimizer_state_available": False, "scheduler_state_available": False}
    return files.render(found | dict.fromkeys(OF_THE_MACHINE) | without_state)


def inference_metadata(found: dict[str, Any], voices: list[int] | None) -> bytes:
    """What inference needs beside the weights, with names of recordings instead of paths."""
    changed = {"validation": [Path(name).name for name in found["validation"]]}
    if voices is not None:
        changed["speakers"] = [found["speakers"][number] for number in voices]
    return files.render(found | changed)


def pack(source: Path, target: Path, changes: list[str]) -> None:
    """Write the checkpoint."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        if old.name != CARD:
            old.unlink()
    recipe = resolve(source / files.RECIPE, changes)
    facts = json.loads((source / files.INFERENCE).read_text(encoding="utf-8"))
    voices = own_voices(facts["speakers"]) if recipe.recipe.task == "speech" else None
    contents = {
        files.WEIGHTS: half_weights(source, voices),
        files.RECIPE: recipe.to_yaml().encode(),
        files.INFERENCE: inference_metadata(facts, voices),
        files.METADATA: metadata(source),
    }
    records = {name: files.write_durably(target / name, content) for name, content in contents.items()}
    write_manifest(target, records)
    if damage := problems(target):
        sys.exit(f"{target}: {'; '.join(map(str, damage))}")
    print(f"{target}: {sum(len(content) for content in contents.values()) / 1e6:.1f} MB, from {source.name}")


def main() -> None:
    """Pack one checkpoint."""
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    pack(best_or_latest(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])


if __name__ == "__main__":
    main()
