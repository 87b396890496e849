"""Export of a model that clones voices: adapters as peft writes them, or the whole model as transformers does."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.nn import pretrained
from phonate.nn.pretrained import Mergeable, MergeReport, MergeRequest
from phonate.tasks.cloning.inference import DESCRIPTION, open_based, trained_network
from phonate.tasks.cloning.model import load_base
from phonate.tasks.cloning.network import CloningNetwork
from phonate.tasks.cloning.sequences import CloningTokenizer, write_processor
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.training.checkpoints.loading import TrainedModel

_PROBE_TOKENS, _PROBE_FRAMES = 48, 32


def export(source: Path, target: Path, form: str, base: str | None = None) -> list[Path]:
    """Write the checkpoint `source` to the new folder `target`: with `form` peft its adapters, with transformers the
    model, adapters merged, and its tokenizer. `base`: as for `VoiceCloner.load`. Returns the files.

    Raises InputError for a folder that is not empty, for a quantised base, for adapters where there are none, or for a
    Whisper projector.
    """
    trained = open_based(source, base)
    _refuse_projector(trained, source)
    adapted, request = trained.recipe.model.strategy == "lora", MergeRequest(source, target, base=base)
    return pretrained.export(request, form, adapted, partial(_model, trained), merge, partial(_save, trained))


def merge(request: MergeRequest) -> MergeReport:
    """Write the model with its adapters merged, and what is needed to speak with it.

    Raises:
        InputError: It has no adapters, its base is quantised, it has a Whisper projector, or the folder is not empty.
        CheckpointError: The merged model differs from the one with adapters.
    """
    trained = open_based(request.source, request.base)
    settings = trained.recipe.model
    pretrained.check_mergeable(request.source, settings.strategy == "lora", settings.quantization is not None)
    _refuse_projector(trained, request.source)
    mergeable = Mergeable(
        model=_model(trained),
        base=settings.name,
        base_fingerprint=trained.inference_metadata["base"],
        logits=probed,
        save=partial(_save, trained),
        read=lambda folder, kind: load_base(str(folder), "auto", kind, text_head=settings.text_head),
    )
    return pretrained.merge(request, mergeable)


def _model(trained: TrainedModel[CloningRecipe]) -> nn.Module:
    return trained_network(trained, torch.device("cpu")).model


def _refuse_projector(trained: TrainedModel[CloningRecipe], source: Path) -> None:
    """Raise InputError for a model with a Whisper projector, without which it would be another one."""
    if trained.recipe.model.whisper.enabled:
        raise InputError(
            f"{source}: was trained with model.whisper, and files of transformers and peft have no place for its "
            "projector; speak with the run itself, or train without model.whisper"
        )


def probed(model: nn.Module) -> Tensor:
    """Logits (N, V) of the audio head for a text followed by frames, both spread over the vocabulary."""
    network = CloningNetwork(model)
    config: Any = network.config
    length = _PROBE_TOKENS + _PROBE_FRAMES
    text = torch.linspace(0, config.vocab_size - 1, length).long()
    codes = torch.linspace(0, config.codebook_size - 1, _PROBE_FRAMES * config.num_codebooks).long()
    positions = torch.arange(length)
    output = network(
        text[None],
        positions[None],
        codes.view(config.num_codebooks, _PROBE_FRAMES).T,
        positions[_PROBE_TOKENS:],
        positions[:_PROBE_TOKENS],
        positions[:_PROBE_TOKENS],
        positions,
    )
    logits: Tensor = output.audio_logits.flatten(0, 1)
    return logits


def _save(trained: TrainedModel[CloningRecipe], model: nn.Module, folder: Path) -> None:
    """The model with its tokenizer and processor, and a description of what it was trained with."""
    settings = trained.recipe.model
    model.save_pretrained(folder)  # type: ignore[operator]  # of transformers
    codec = str(Path(settings.codec).resolve()) if Path(settings.codec).is_dir() else settings.codec
    write_processor(folder, CloningTokenizer.load(settings.name).text.tokenizer, codec)
    about = {
        "codec": codec,
        "system": trained.inference_metadata["system"],
        "arabic": trained.recipe.data.arabic.model_dump(mode="json"),
    }
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")
