"""Packs a checkpoint for the package: weights in half precision, nothing of the machine it was trained on.

    python scripts/pack_base.py RUN src/phonate/base/voice data.path=kathleen [key=value ...] [--average RUN SHARE]

RUN is a run or a checkpoint. `key=value` are changes to its recipe, whose paths must not be of this machine. The target
is a checkpoint with a manifest of its own, which `phonate checkpoints verify` checks. A MODEL_CARD.md in it is kept.
Speakers that are others at another pitch (see shift_voices.py) are left out. `--average` averages the weights with
those of a run that RUN was trained from, which get this share (Wortsman et al. 2022, arXiv:2109.01903); discriminators
are left as they are. Several `--average` apply in turn; held out is what none of these runs was trained on, also those
with a share of 0. Where that run had a single speaker, vectors of speakers shrink by this share.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from phonate.config.resolve import resolve
from phonate.training.checkpoints import best_or_latest, files
from phonate.training.checkpoints.files import problems, write_manifest

CARD = "MODEL_CARD.md"
VOICES = "acoustic.voices.weight"
AVERAGED = ("acoustic.", "vocoder.")
"""What names of weights begin with that are averaged: no discriminators."""
OF_THE_MACHINE = ("hostname", "platform", "git_commit", "git_branch", "git_dirty", "model_hash")
OF_THE_WEIGHTS = ("train_loss", "val_loss", "best_metric")


def own_voices(speakers: list[str]) -> list[int]:
    """Numbers of the speakers that are no other one at another pitch, such as kathleen+3 beside kathleen."""
    unshifted = [re.sub(r"[+-]\d$", "", name) for name in speakers]
    return [number for number, name in enumerate(speakers) if unshifted[number] not in {*speakers} - {name}]


def weights(source: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, in single precision."""
    found = load_file(source / files.WEIGHTS)
    return {name: one.float() if one.is_floating_point() else one for name, one in found.items()}


def averaged(tensors: dict[str, Tensor], earlier: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """The weights with this share of those of an earlier training."""
    made = dict(tensors)
    for name, one in tensors.items():
        if name.startswith(AVERAGED) and one.is_floating_point():
            before = earlier.get(name, one)
            if name == VOICES and (name not in earlier or len(before) == 1):
                before = torch.zeros_like(one)
            if before.shape != one.shape:
                sys.exit(f"{name}: {tuple(before.shape)} can't be averaged with {tuple(one.shape)}")
            made[name] = torch.lerp(one, before, share)
    return made


def half_weights(tensors: dict[str, Tensor], voices: list[int] | None) -> bytes:
    """The weights with 16-bit numbers, with the vectors of these `voices`; None for a model that has none."""
    if voices is not None:
        tensors = {**tensors, VOICES: tensors[VOICES][voices]}
    return save({name: one.half() if one.is_floating_point() else one for name, one in tensors.items()})


def metadata(source: Path, measured: bool) -> bytes:
    """The checkpoint's metadata without what it says of the machine, nor losses of weights that were not measured."""
    found = json.loads((source / files.METADATA).read_text(encoding="utf-8"))
    without_state = {"optimizer_state_available": False, "scheduler_state_available": False}
    losses = {} if measured else {"metrics": {}, **dict.fromkeys(OF_THE_WEIGHTS)}
    return files.render(found | dict.fromkeys(OF_THE_MACHINE) | without_state | losses)


def facts(source: Path) -> dict[str, Any]:
    """What inference needs beside the weights, with names of recordings instead of paths."""
    found: dict[str, Any] = json.loads((source / files.INFERENCE).read_text(encoding="utf-8"))
    return found | {"validation": [Path(name).name for name in found["validation"]]}


def inference_metadata(source: Path, earlier: list[Path], voices: list[int] | None, recipe: Any) -> bytes:
    """The facts; held out are the recordings that no training used whose weights take part."""
    found = facts(source)
    if "vocoder" in found:
        found["vocoder"] = recipe.data.vocoder
    kept = [set(facts(one)["validation"]) for one in earlier]
    changed = {"validation": [name for name in found["validation"] if all(name in names for names in kept)]}
    if voices is not None:
        changed["speakers"] = [found["speakers"][number] for number in voices]
    return files.render(found | changed)


def pack(source: Path, target: Path, changes: list[str], averages: list[tuple[Path, float]]) -> None:
    """Write the checkpoint."""
    tensors = weights(source)
    for earlier, share in averages:
        tensors = averaged(tensors, weights(earlier), share)
    recipe = resolve(source / files.RECIPE, changes)
    voices = own_voices(facts(source)["speakers"]) if recipe.recipe.task == "speech" else None
    contents = {
        files.WEIGHTS: half_weights(tensors, voices),
        files.RECIPE: recipe.to_yaml().encode(),
        files.INFERENCE: inference_metadata(source, [earlier for earlier, _ in averages], voices, recipe.recipe),
        files.METADATA: metadata(source, not averages),
    }
    stray = [one.name for one in target.glob("*") if one.name not in {CARD, files.MANIFEST, *contents}]
    if stray or target.resolve() == source.resolve():
        sys.exit(f"{target}: {', '.join(stray) or 'the checkpoint itself'} is in the way; give another folder")
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        if old.name != CARD:
            old.unlink()
    records = {name: files.write_durably(target / name, content) for name, content in contents.items()}
    write_manifest(target, records)
    if damage := problems(target):
        sys.exit(f"{target}: {'; '.join(map(str, damage))}")
    print(f"{target}: {sum(len(content) for content in contents.values()) / 1e6:.1f} MB, from {source.name}")


def main() -> None:
    """Pack one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("target", type=Path)
    parser.add_argument("changes", nargs="+", metavar="key=value")
    parser.add_argument("--average", nargs=2, metavar=("RUN", "SHARE"), action="append", default=[])
    args = parser.parse_args()
    averages = [(best_or_latest(run), float(share)) for run, share in args.average]
    pack(best_or_latest(args.run), args.target, args.changes, averages)


if __name__ == "__main__":
    main()
