"""A fine-tuned Whisper as others load it: a folder of transformers or of CTranslate2 (faster-whisper), its adapters
alone as peft writes them, or merged into their base."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError, option
from phonate.nn import pretrained, whisper
from phonate.nn.pretrained import Mergeable, MergeReport, MergeRequest
from phonate.nn.whisper import WhisperTokens
from phonate.tasks.recognition.finetuning import prepared
from phonate.tasks.recognition.settings import RecognitionRecipe
from phonate.training.checkpoints.loading import TrainedModel, open_trained

_PROBE_FRAMES, _PROBE_TOKENS = 200, 32


@dataclass(frozen=True)
class FineTuned:
    """The fine-tuned Whisper of a checkpoint."""

    trained: TrainedModel[RecognitionRecipe]

    @classmethod
    def load(cls, source: str | Path, base: str | Path | None = None) -> FineTuned:
        """That of a run or a checkpoint. `base`: as for `Recogniser.load`. Raises its errors."""
        trained = open_trained(source, "recognition", RecognitionRecipe)
        settings = trained.recipe.model
        if settings.kind != "whisper":
            raise InputError(f"{source}: is no fine-tuned Whisper but a model of kind {settings.kind}")
        if base is not None:
            if not settings.adapted:
                raise pretrained.needs_no_base(source)
            settings.__dict__["name"] = str(base)
        return cls(trained)

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self.trained.path

    @property
    def recipe(self) -> RecognitionRecipe:
        """What it was trained with."""
        return self.trained.recipe

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What training saved beside the weights."""
        return self.trained.inference_metadata

    @cached_property
    def tokens(self) -> WhisperTokens:
        """Its tokens. Raises CheckpointError where those of the base are others now."""
        if not self.recipe.model.adapted:
            return WhisperTokens(self.metadata["tokenizer"])
        tokens = WhisperTokens.load(self.recipe.model.name)
        if tokens.fingerprint != self.metadata["tokens"]:
            raise pretrained.base_has_changed(self.path, "another tokenizer", self.recipe.model.name)
        return tokens

    def model(self) -> nn.Module:
        """The network on the CPU, with adapters where it was trained with them, moved back by `model.keep`.

        Raises CheckpointError where the weights do not fit, and InputError where the base is not there.
        """
        settings = self.recipe.model
        if settings.adapted:
            try:
                network = whisper.load_whisper_network(settings.name)
            except InputError as error:
                raise pretrained.base_is_gone(self.path, settings.name) from error
        else:
            network = whisper.network_of(self.metadata)
        model = prepared(network, settings)
        if settings.adapted and not self._of_base(model):
            raise pretrained.base_has_changed(self.path, "other weights", settings.name)
        weights = self.trained.weights
        if kept := settings.kept_share:  # half an adapter's product is the adapter with half of one factor
            weights = {name: (1.0 - kept) * one if ".lora_B." in name else one for name, one in weights.items()}
        pretrained.copy_tensors(pretrained.saved_tensors(model, settings.adapted), weights)
        return model.eval()

    def _of_base(self, model: nn.Module) -> bool:
        quantised = self.recipe.model.quantization is not None
        return bool(pretrained.base_fingerprint(model, quantised) == self.metadata["base"])

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write a `model` without adapters as a folder of transformers."""
        facts = self.metadata
        whisper.save(model, folder, self.tokens, facts["language"], facts["timestamps"], facts["suppress"])

    def write(self, target: Path, form: Literal["transformers", "ctranslate2"]) -> None:
        """Write the model, adapters merged, to the new folder `target`."""
        model = self.model()
        if self.recipe.model.adapted:
            model = pretrained.merge_adapters(model)
        if form == "transformers":
            self.save(model, target)
            return
        with tempfile.TemporaryDirectory(prefix="phonate-whisper-") as folder:
            self.save(model, Path(folder))
            whisper.convert(Path(folder), target)


def export(source: Path, target: Path, form: str, base: str | None = None) -> list[Path]:
    """Write the checkpoint `source` to the new folder `target`: with `form` transformers the model, adapters merged,
    with all that it needs; with ctranslate2 the same as faster-whisper loads it; with peft the adapters alone. `base`:
    as for `Recogniser.load`. Returns the files.

    Raises InputError for a folder that is not empty, for another kind of model, or for adapters where there are none.
    """
    run = FineTuned.load(source, base)
    if form == "ctranslate2":
        with pretrained.new_folder(target) as folder:
            run.write(folder, "ctranslate2")
        return sorted(file for file in target.iterdir() if file.is_file())
    request = MergeRequest(source, target, base=base)
    return pretrained.export(request, form, run.recipe.model.adapted, run.model, merge, run.save)


def merge(request: MergeRequest) -> MergeReport:
    """Write the model with its adapters merged.

    Raises:
        InputError: It has no adapters, or the folder is not empty.
        CheckpointError: The merged model differs from the one with adapters.
    """
    run = FineTuned.load(request.source, request.base)
    pretrained.check_mergeable(request.source, run.recipe.model.adapted, quantised=False)
    if request.quantization is not None:
        raise InputError(f"quantised Whispers are for CTranslate2; export with {option('form', 'ctranslate2')}")
    mergeable = Mergeable(
        model=run.model(),
        base=run.recipe.model.name,
        base_fingerprint=run.metadata["base"],
        logits=partial(_probed, run.tokens.end),
        save=run.save,
        read=lambda folder, _: whisper.load_whisper_network(str(folder), "auto"),
    )
    return pretrained.merge(request, mergeable)


def _probed(vocabulary: int, model: nn.Module) -> Tensor:
    """Logits (L, V) for tokens spread over the vocabulary, and a mel that is always the same."""
    bands = whisper.whisper_of(model).config.num_mel_bins
    mel = torch.sin(torch.arange(_PROBE_FRAMES * bands, dtype=torch.float32)).view(1, _PROBE_FRAMES, bands)
    tokens = torch.linspace(0, vocabulary, _PROBE_TOKENS).long()[None]
    encoded, mask = whisper.encode(model, mel)
    return whisper.logits(model, whisper.decode(model, tokens, encoded, mask))[0]
