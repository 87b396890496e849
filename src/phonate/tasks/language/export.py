"""Export of a trained language model: as a folder that transformers loads, or its adapters as peft writes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn.pretrained import adapters
from phonate.nn.pretrained.adapters import Mergeable, MergeReport, MergeRequest, Stored
from phonate.nn.pretrained.loading import load_pretrained
from phonate.tasks.language import model as models
from phonate.tasks.language.inference import Generator

_PROBE_TOKENS = 64


def export(source: Path, target: Path, form: str, base: str | None = None) -> list[Path]:
    """Write the checkpoint `source` to the new folder `target`: with `form` transformers the model, adapters merged,
    and its tokenizer; with peft the adapters alone. `base`: as for `Generator.load`. Returns the files.

    Raises InputError for a folder that is not empty, for 4-bit weights, or for adapters where there are none.
    """
    generator = Generator.load(source, base=base)
    adapted = generator.recipe.model.adapted
    if form == "peft":
        if not adapted:
            raise InputError(f"--format peft: {source} has no adapters; use --format transformers")
        return adapters.export_adapters(generator.model, target)
    if adapted:
        merge(MergeRequest(source, target, base=base))
    else:
        with adapters.new_folder(target) as folder:
            _save(generator.tokenizer, generator.model, folder)
    return sorted(file for file in target.iterdir() if file.is_file())


def merge(request: MergeRequest) -> MergeReport:
    """Write the model with its adapters merged.

    Raises:
        InputError: It has no adapters, its base has 4-bit weights, or the folder is not empty.
        CheckpointError: The merged model differs from the one with adapters.
    """
    generator = Generator.load(request.source, base=request.base)
    settings = generator.recipe.model
    if not settings.adapted:
        raise InputError(f"{request.source}: has no adapters to merge; export it with --format transformers")
    if settings.trains == "qlora":
        raise InputError("adapters can't be merged into 4-bit weights; merge them into the base in full precision")
    assert settings.name is not None
    mergeable = Mergeable(
        model=generator.model,
        base=settings.name,
        base_fingerprint=generator.inference_metadata["base"],
        logits=partial(_probed, len(generator.tokenizer)),
        save=partial(_save, generator.tokenizer),
        read=_read,
    )
    return adapters.merge(request, mergeable)


def _probed(vocabulary: int, model: nn.Module) -> Tensor:
    """Logits (L, V) for tokens spread over the vocabulary."""
    length = min(_PROBE_TOKENS, getattr(model.config, "max_position_embeddings", _PROBE_TOKENS))
    ids = torch.linspace(0, vocabulary - 1, length).long()[None]
    return models.logits(model, ids, torch.arange(length)[None])[0]


def _save(tokenizer: TextTokenizer, model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)  # type: ignore[operator]  # of transformers
    tokenizer.tokenizer.save_pretrained(folder)


def _read(folder: Path, quantization: Stored | None) -> nn.Module:
    kind = "nf4" if quantization == "int4" else quantization
    return load_pretrained(str(folder), "auto", kind)
