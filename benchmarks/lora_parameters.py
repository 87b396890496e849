"""How many parameters the published Higgs Audio v2 has, and how many of them low-rank adapters train.

    python benchmarks/lora_parameters.py [--out FILE.md]

The model is made on torch's meta device in its published size, so no weights are downloaded or held; adapters of
several ranks (Hu et al. 2021, arXiv:2106.09685) are put by PEFT on the modules that each mode names, and counted.
Memory is arithmetic: bytes for each parameter, without activations.
"""

from __future__ import annotations

import argparse
import re
import warnings
from pathlib import Path

import peft
import torch
import transformers
from torch import nn
from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

_GB = 1e9
_FFN = ("gate_proj", "up_proj", "down_proj")
_ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
_AUDIO = tuple(f"audio_mlp.{name}" for name in _FFN)
_TEXT = tuple(f".mlp.{name}" for name in _FFN)
PROMISED = (*_ATTENTION, *_TEXT, *_AUDIO, "audio_encoder_proj.linear", "audio_head.projector.linear")
"""The twelve patterns that adapters are promised for; a leading dot keeps the two feed-forward networks apart."""
MODES = {
    "the patterns, as far as they match": PROMISED,
    "with the audio head": (*_ATTENTION, *_TEXT, *_AUDIO, "audio_lm_head"),
    "attention only": _ATTENTION,
}
RANKS = (8, 16, 20, 32, 64)
_HEADER = """# Parameters of Higgs Audio v2, and of adapters on it

    python {command}

The model in its published size on torch's meta device, counted, not trained; transformers {transformers}, PEFT {peft},
torch {torch}.

{total:.2f} B parameters in all: {parts}.
A token passes one of the two feed-forward networks of a layer, so {active:.2f} B of layers take part in it.

Of the {patterns} promised patterns, {missing} match nothing: {names}.

Weights in bf16 take {weights:.1f} GB; an adapter's own with their gradients and Adam's moments, fp32, the GB in
brackets. That is arithmetic, without activations.

| millions of parameters, by rank | {ranks} |
|---|{rules}
"""


def network() -> nn.Module:
    """The published model without numbers in it."""
    config = HiggsAudioV2Config(codebook_size=1026)
    with torch.device("meta"):
        return HiggsAudioV2ForConditionalGeneration(config, use_text_head=True)


def matching(model: nn.Module, patterns: tuple[str, ...]) -> dict[str, list[str]]:
    """The linear layers that end as each pattern does."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return {pattern: [name for name in linear if name.endswith(pattern)] for pattern in patterns}


def trained(patterns: tuple[str, ...], rank: int) -> int:
    """Parameters that adapters of `rank` on these modules have."""
    model = network()
    names = [name for found in matching(model, patterns).values() for name in found]
    expression = "|".join(map(re.escape, names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=f"({expression})"))
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def parts(model: nn.Module) -> dict[str, int]:
    """Parameters by what they are for."""
    kinds = {"audio_mlp": "audio feed-forward", ".mlp.": "text feed-forward", "self_attn": "attention"}
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        kind = next((kind for part, kind in kinds.items() if part in name), "embeddings, heads and norms")
        counts[kind] = counts.get(kind, 0) + parameter.numel()
    return counts


def main() -> None:
    """Count and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = network()
    counts = parts(model)
    total, found = sum(counts.values()), matching(model, PROMISED)
    missing = [pattern for pattern, names in found.items() if not names]
    command = "benchmarks/lora_parameters.py" + (f" --out {options.out}" if options.out else "")
    lines = [
        _HEADER.format(
            command=command,
            transformers=transformers.__version__,
            peft=peft.__version__,
            torch=torch.__version__,
            total=total / 1e9,
            active=(counts["attention"] + counts["text feed-forward"]) / 1e9,
            parts=", ".join(f"{kind} {count / 1e9:.2f} B" for kind, count in counts.items()),
            patterns=len(PROMISED),
            missing=len(missing),
            names=", ".join(f"`{name}`" for name in missing),
            weights=2 * total / _GB,
            ranks=" | ".join(map(str, RANKS)),
            rules="---|" * len(RANKS),
        ).rstrip("\n")
    ]
    for mode, patterns in MODES.items():
        numbers = [trained(patterns, rank) for rank in RANKS]
        lines.append(
            f"| {mode} | " + " | ".join(f"{number / 1e6:.1f} ({16 * number / _GB:.2f})" for number in numbers) + " |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
