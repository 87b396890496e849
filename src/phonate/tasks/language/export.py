"""Export of a trained language model: as a folder that transformers loads, or its adapters as peft writes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn import pretrained
from phonate.nn.pretrained import Mergeable, MergeReport, MergeRequest, load_pretrained
from phonate.tasks.language import model as models
from phonate.tasks.language.inference import Generator

_PROBE_TOKENS = 64


def export(source: Path, target: Path, form: str, base: str | None = None) -> list[Path]:
    """Write the checkpoint `source` to the new folder `target`: with `form` transformers the model, adapters merged,
    and its tokenizer; with peft the adapters alone. `base`: as for `Generator.load`. Returns the files.

    Raises InputError for a folder that is not empty, for 4-bit weights, or for adapters where there are none.
    """
    generator = Generator.load(source, base=base)
    adapted, request = generator.recipe.model.adapted, MergeRequest(source, target, base=base)
    return pretrained.export(
        request, form, adapted, lambda: generator.model, merge, partial(_save_new, generator.tokenizer)
    )


def merge(request: MergeRequest) -> MergeReport:
    """Write the model with its adapters merged.

    Raises:
        InputError: It has no adapters, its base has 4-bit weights, or the folder is not empty.
        CheckpointError: The merged model differs from the one with adapters.
    """
    generator = Generator.load(request.source, base=request.base)
    settings = generator.recipe.model
    quantised = settings.trains == "qlora" or getattr(generator.model.config, "quantization_config", None) is not None
    pretrained.check_mergeable(request.source, settings.adapted, quantised)
    assert settings.name is not None
    mergeable = Mergeable(
        model=generator.model,
        base=settings.name,
        base_fingerprint=generator.inference_metadata["base"],
        logits=partial(_probed, len(generator.tokenizer)),
        save=partial(_save, generator.tokenizer),
        read=lambda folder, kind: load_pretrained(str(folder), "auto", kind),
    )
    return pretrained.merge(request, mergeable)


def _probed(vocabulary: int, model: nn.Module) -> Tensor:
    """Logits (L, V) for tokens spread over the vocabulary."""
    length = min(_PROBE_TOKENS, getattr(model.config, "max_position_embeddings", _PROBE_TOKENS))
    ids = torch.linspace(0, vocabulary - 1, length).long()[None]
    return models.logits(model, ids, torch.arange(length)[None])[0]


def _save_new(tokenizer: TextTokenizer, model: nn.Module, folder: Path) -> None:
    """Save a model that was not made from another, with a tokenizer that begins texts as training did."""
    _save(tokenizer, model, folder)
    if (begin := tokenizer.tokenizer.bos_token) is not None:
        from tokenizers import Tokenizer, processors

        file = str(folder / "tokenizer.json")
        backend: Any = Tokenizer.from_file(file)
        specials = [(begin, tokenizer.tokenizer.bos_token_id)]
        pair = f"{begin} $A {begin}:1 $B:1"
        backend.post_processor = processors.TemplateProcessing(f"{begin} $A", pair=pair, special_tokens=specials)
        backend.save(file)


def _save(tokenizer: TextTokenizer, model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)  # type: ignore[operator]  # of transformers
    tokenizer.tokenizer.save_pretrained(folder)
