"""The model that clones, from wherever it is: a run, a checkpoint, a merged model, or the hub."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from phonate.audio.higgs_codec import CODEC, HiggsCodec
from phonate.audio.whisper import WhisperEncoder
from phonate.config.errors import CheckpointError, InputError
from phonate.nn.pretrained.loading import DTYPES, with_base
from phonate.nn.pretrained.settings import Dtype
from phonate.nn.pretrained.weights import base_fingerprint, copy_tensors, saved_tensors
from phonate.tasks.cloning import model as models
from phonate.tasks.cloning.network.loading import load_base
from phonate.tasks.cloning.network.network import CloningNetwork
from phonate.tasks.cloning.network.whisper_projector import WhisperConditioning
from phonate.tasks.cloning.sequences.sequence import CODEBOOKS
from phonate.tasks.cloning.sequences.tokens import CloningTokenizer
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.text.arabic_settings import ArabicText
from phonate.training.checkpoints.trained import TrainedModel, open_trained

DESCRIPTION = "cloning.json"
"""In the folder of a merged model, if it was merged by phonate: `codec` (a name on the hub, or a folder, absolute or
relative to that of the model), `system` (message) and `arabic` (what was changed in texts), as in training."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Opened:
    """A model with what belongs to it."""

    model: Any
    """transformers' HiggsAudioV2ForConditionalGeneration, whose linear layers may have adapters."""
    tokenizer: CloningTokenizer
    codec: HiggsCodec
    system: str | None
    """The system message."""
    arabic: ArabicText
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the task saved with the checkpoint."""
    whisper: WhisperConditioning | None = None


def open_model(
    source: str | Path,
    device: torch.device,
    dtype: str | None,
    codec: str | Path | None,
    base: str | Path | None,
) -> Opened:
    """The model of `source`. Arguments and errors are those of `VoiceCloner.load`."""
    if dtype not in (None, "auto", "int8", *DTYPES):
        raise InputError(f"dtype {dtype!r}: choose auto, {', '.join(DTYPES)} or int8")
    if is_model_folder(source) or (not Path(source).exists() and _HUB_NAME.fullmatch(str(source))):
        if base is not None:
            raise InputError(f"--base: {source} is a whole model, not adapters to a base; leave it out")
        return _pretrained(str(source), device, dtype, codec)
    return _trained(open_based(source, base), device, dtype, codec)


def is_model_folder(source: str | Path) -> bool:
    """Whether `source` is a model in files of transformers, not a run or checkpoint."""
    return (Path(source) / "config.json").is_file()


def _pretrained(name: str, device: torch.device, dtype: str | None, codec: str | Path | None) -> Opened:
    # it says at every layer of every frame that inputs are cast
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    about = _description(Path(name))
    kind = "auto" if dtype in (None, "int8") else dtype
    model = load_base(name, cast(Dtype, kind), "int8" if dtype == "int8" else None, device)
    tokenizer = CloningTokenizer.load(name, CODEBOOKS)
    models.check_fit(CloningNetwork(model), tokenizer, 0)
    found = HiggsCodec.load(codec or _codec_of(Path(name), about), device=device)
    return Opened(model, tokenizer, found, about.get("system"), ArabicText(**about.get("arabic", {})), about)


def _codec_of(folder: Path, about: Mapping[str, Any]) -> str:
    """The codec of a merged model: beside it, or by its name."""
    name = str(about.get("codec", CODEC))
    return str(folder / name) if (folder / name).is_dir() else name


def _description(folder: Path) -> dict[str, Any]:
    """What a merged model's folder says of it; nothing for others."""
    file = folder / DESCRIPTION
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise InputError(f"{file}: is no JSON ({error}); merge the model again") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds no object; merge the model again")
    return content


def open_based(source: str | Path, base: str | Path | None) -> TrainedModel[CloningRecipe]:
    """The model of a run or a checkpoint, whose base is at `base`; None: where it was in training.

    Raises CheckpointError as `open_trained`, and InputError where the base is not there.
    """
    trained = open_trained(source, "cloning", CloningRecipe)
    return replace(trained, recipe=with_base(trained.recipe, base, trained.path))


def _trained(
    trained: TrainedModel[CloningRecipe], device: torch.device, dtype: str | None, codec: str | Path | None
) -> Opened:
    settings, metadata = trained.recipe.model, trained.inference_metadata
    if dtype == "int8":
        raise InputError(f"{trained.path}: int8 is for models without adapters; phonate checkpoints merge makes one")
    if dtype in DTYPES and settings.quantization is not None:
        raise InputError(f"{trained.path}: its base is in {settings.quantization}; leave dtype out")
    network = trained_network(trained, device)
    model, conditioning = network.base, None
    if network.whisper_projector is not None:
        encoder = WhisperEncoder(settings.whisper.model, "model.whisper", threads=1)
        conditioning = WhisperConditioning(encoder, network.whisper_projector)
    if dtype in DTYPES:
        model = model.to(DTYPES[dtype])
    tokenizer = CloningTokenizer.load(settings.name, CODEBOOKS)
    if tokenizer.fingerprint != metadata["tokenizer"]:
        raise CheckpointError(f"{trained.path}: belongs to another tokenizer than {settings.name} has now")
    found = HiggsCodec.load(codec or settings.codec, device=device)
    if found.fingerprint != metadata["codec"]:
        raise CheckpointError(f"{trained.path}: was trained on codes of another codec than {found.source}")
    return Opened(model, tokenizer, found, metadata["system"], trained.recipe.data.arabic, metadata, conditioning)


def trained_network(trained: TrainedModel[CloningRecipe], device: torch.device) -> CloningNetwork:
    """The network of a checkpoint on `device`, adapters beside the weights of its base.

    Raises CheckpointError for adapters to other weights than the base has now.
    """
    settings = trained.recipe.model
    network = models.build(settings, device)
    if settings.strategy == "lora" and base_fingerprint(network) != trained.inference_metadata["base"]:
        raise CheckpointError(f"{trained.path}: belongs to other weights than {settings.name} has now")
    copy_tensors(saved_tensors(network, trained_only=settings.strategy == "lora"), trained.weights)
    return network
