"""Voice cloning as a task: Higgs Audio v2 reads a reference and a text, and predicts the codes of the target.

Terms: `text` and `audio`, the cross entropy of text tokens and of codes in nats; where their weights are above 0,
`contrastive` and `similarity`, the likeness of the voice, and `l2`, the sum of the squares of what is trained. For
information, with weight 0: `accuracy`, the share of codes (ends included) that are the likeliest given those before,
and `codebook/0` and so on, the parts of `audio`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.distributed
from torch import Tensor, nn

from phonate.audio.higgs_codec import HiggsCodec
from phonate.config.errors import InputError
from phonate.data.settings import cache_folder
from phonate.nn.losses import IGNORED
from phonate.nn.pretrained.adapters import base_fingerprint, copy_tensors, saved_tensors
from phonate.nn.pretrained.loading import require
from phonate.tasks.cloning import losses as losses
from phonate.tasks.cloning import model as models
from phonate.tasks.cloning.data import CloningCorpus, CloningDataset, examples_of
from phonate.tasks.cloning.losses import VoiceSimilarity, contrastive_loss, share
from phonate.tasks.cloning.model import Load, choose_checkpointing
from phonate.tasks.cloning.network import WhisperCache
from phonate.tasks.cloning.sequences import CODEBOOK_SIZE, CODEBOOKS, CloningTokenizer
from phonate.tasks.cloning.settings import METRICS, TERMS, VOICE_TERMS, CloningRecipe
from phonate.training.precision import FORMATS, resolve
from phonate.training.task import Batch, Coupling, Metric, Stateful, Task, Terms

ACCURACY = "accuracy"
_UNITS = {
    "text": "text tokens",
    "audio": "codes",
    ACCURACY: "codes",
    "contrastive": "voices",
    "similarity": "samples",
    "l2": "samples",
}
"""What the terms are sums over; those of a codebook, over frames."""


class CloningTask(Task):
    """Trains a CloningNetwork as `recipe` says."""

    random_features = False
    earlier_keys: ClassVar = {"base_weights": "base"}

    def __init__(self, recipe: CloningRecipe) -> None:
        require("transformers", *(["peft"] if recipe.model.strategy == "lora" else []))
        self.recipe = recipe
        self.settings = recipe.training.loss
        check_loss(recipe)
        if self._weighs("contrastive"):
            self.coupling = Coupling.MICRO_BATCH
        self.corpus = CloningCorpus(recipe.data, lambda: self.codec)
        self._adaptive = losses.AdaptiveWeights(CODEBOOKS) if self.settings.codebooks == "adaptive" else None
        self._similarity: VoiceSimilarity | None = None
        self._datasets: dict[str, CloningDataset] = {}
        self._base: str | None = None
        """The fingerprint of the frozen weights, once the model is built."""

    @cached_property
    def tokenizer(self) -> CloningTokenizer:
        """The model's."""
        return CloningTokenizer.load(self.recipe.model.name)

    @cached_property
    def codec(self) -> HiggsCodec:
        """The model's; loaded when it is first needed, where training computes, and on the CPU once all is encoded."""
        codec = HiggsCodec.load(self.recipe.model.codec, device=self.device)
        codec.require(CODEBOOKS, CODEBOOK_SIZE)
        return codec

    @property
    def _full(self) -> bool:
        return self.recipe.model.strategy == "full"

    def _weighs(self, term: str) -> bool:
        return self.settings.weight(term) > 0.0

    def model(self, device: torch.device) -> nn.Module:
        """The network on `device`, with adapters or wholly trained. Raises InputError if data and model do not fit."""
        network = models.load_network(self.recipe.model, device)
        models.check_fit(network, self.tokenizer, self.recipe.data.max_length)
        choose_checkpointing(network, self.recipe.model.gradient_checkpointing, self._load, self._autocast(device))
        if self._weighs("similarity"):
            self._similarity = VoiceSimilarity(HiggsCodec.load(self.recipe.model.codec, device=device), device)
        if not self._full:
            self._base = base_fingerprint(network)
        return network

    @cached_property
    def _load(self) -> Load:
        """The largest micro-batch of a rank."""
        dataset = self.dataset("train")
        return dataset.largest(self._rows(dataset))

    def _rows(self, dataset: CloningDataset) -> int:
        """The most rows in a micro-batch of a rank, where all are as long as the longest."""
        training = self.recipe.training
        rows = training.batch_size
        if training.max_length is not None:
            rows = max(1, training.max_length // int(dataset.lengths.max()))
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return -(-rows // ranks)

    def _autocast(self, device: torch.device) -> torch.dtype | None:
        return FORMATS.get(resolve(self.recipe.training.mixed_precision, device))

    def dataset(self, split: str) -> CloningDataset:
        """Rows of samples of "train" or "validation"."""
        if split not in self._datasets:
            self._datasets[split] = self._make_dataset(split)
        return self._datasets[split]

    def _make_dataset(self, split: str) -> CloningDataset:
        data, whisper = self.recipe.data, self.recipe.model.whisper
        cache = WhisperCache(whisper.model, cache_folder(data.cache_dir) / "whisper") if whisper.enabled else None
        examples = examples_of(self.corpus, split, self.tokenizer, data, cache)
        dataset = CloningDataset(
            examples,
            self.tokenizer,
            data.max_length,
            packing=data.packing,
            learn_text=self.settings.text == "target",
        )
        if split == "train" and self._weighs("contrastive"):
            check_voices(dataset, self._rows(dataset))
        return dataset

    # ------------------------------------------------------------------ loss

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """The terms that the module's docstring describes."""
        # the contrastive term compares hidden states of the reference's frames too, which have no labels
        read = {} if self._weighs("contrastive") else {name: batch[name] for name in ("read_frames", "read_others")}
        output = model(
            batch["input_ids"],
            batch["position_ids"],
            batch["frames"],
            batch["frame_positions"],
            batch["other_positions"],
            batch["text_positions"],
            batch["audio_positions"],
            batch["sequences"],
            batch["places"],
            batch["lengths"],
            **read,
            whisper_positions=batch.get("whisper_positions"),
            whisper_features=batch.get("whisper_features"),
        )
        sums: dict[str, Tensor] = {}
        if self.recipe.model.text_head:
            sums["text"] = losses.text_loss(output.text_logits, batch["text_labels"], self.settings.label_smoothing)
        sums |= self._audio_sums(model.training, output.audio_logits, batch["audio_labels"])
        sums |= self._voice_sums(output, batch)
        if self._weighs("l2"):
            trained = [p.float().square().sum() for p in model.parameters() if p.requires_grad]
            sums["l2"] = torch.stack(trained).sum() * len(batch["target_lengths"])
        return {name: (total, _UNITS.get(name, "frames")) for name, total in sums.items()}

    def _audio_sums(self, training: bool, logits_PKV: Tensor, labels_PK: Tensor) -> dict[str, Tensor]:
        """The sums of `audio` and of what is reported about it."""
        losses_K = losses.code_losses(logits_PKV, labels_PK, self.settings.audio_label_smoothing)
        weights_K = self._codebook_weights(training, losses_K, labels_PK)
        parts = {f"codebook/{k}": one for k, one in enumerate(losses_K.detach())}
        correct = losses.correct_codes(logits_PKV.detach(), labels_PK)
        return {"audio": (weights_K * losses_K).sum(), ACCURACY: correct.to(losses_K.dtype), **parts}

    def _codebook_weights(self, training: bool, losses_K: Tensor, labels_PK: Tensor) -> Tensor:
        if self.settings.codebooks == "weighted":
            return losses.falling_weights(len(losses_K)).to(losses_K)
        if self._adaptive is None or not training:
            return torch.ones_like(losses_K)
        weights_K = self._adaptive.weights(self.step).to(losses_K)
        self._adaptive.observe(losses_K, (labels_PK != IGNORED).sum(0))
        return weights_K

    def _voice_sums(self, output: Any, batch: Batch) -> dict[str, Tensor]:
        """The sums of the terms about the likeness of the voice."""
        sums: dict[str, Tensor] = {}
        if self._weighs("contrastive"):
            where = (batch["frame_positions"], batch["pools"], batch["speakers"])
            sums["contrastive"] = contrastive_loss(output.hidden, *where, self.settings.temperature)[0]
        if self._weighs("similarity"):
            assert self._similarity is not None
            references = [batch["frames"][start:end] for start, end in batch["references"]]
            sums["similarity"] = self._similarity.loss(output.audio_logits, batch["target_lengths"], references)[0]
        return sums

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """Text and audio weigh 1; the other terms nothing, unless the recipe says so."""
        reported = {f"codebook/{k}": 0.0 for k in range(CODEBOOKS)}
        return {**TERMS, ACCURACY: 0.0, **reported}

    def loss_shares(self, step: int) -> Mapping[str, float]:
        """The curriculum of the terms about the likeness of the voice."""
        due = share(step, self.settings.curriculum_steps)
        return {} if due == 1.0 else dict.fromkeys(VOICE_TERMS, due)

    def samples(self, batch: Batch, items: int) -> int:
        """Samples, of which a row may hold several."""
        return len(batch["target_lengths"])

    # --------------------------------------------------------------- metrics

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The loss terms, and `accuracy`."""
        terms = {name for name in TERMS if self._weighs(name)} | {"audio"}
        if not self.recipe.model.text_head:
            terms -= {"text"}
        terms |= {f"codebook/{k}" for k in range(CODEBOOKS)}
        return (*map(Metric, sorted(terms)), METRICS[ACCURACY])

    def metric_names(self) -> Mapping[str, str]:
        """Names that dashboards of fine-tuning scripts for Higgs Audio have."""
        terms = {f"train/{name}": f"loss/{name}_loss" for name in ("text", "audio", "contrastive", "similarity")}
        return {
            **terms,
            "train/loss": "loss/total_loss",
            "train/learning_rate": "metrics/learning_rate",
            "train/samples_per_second": "metrics/samples_per_second",
            "system/gpu_memory_gb": "metrics/gpu_memory_gb",
        }

    # ----------------------------------------------------------- checkpoints

    @property
    def own_state(self) -> Stateful | None:
        """The running means of adaptive codebook weights."""
        return self._adaptive

    def saved(self, model: nn.Module) -> dict[str, Tensor]:
        """What is trained: adapters and the modules beside them, or every weight."""
        return saved_tensors(model, trained_only=not self._full)

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Put `saved` tensors back. Raises CheckpointError if they do not fit."""
        copy_tensors(self.saved(model), tensors)

    def identity(self) -> dict[str, Any]:
        """Fingerprints of tokenizer and codec, and of what adapters belong to."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "codec": self.codec.fingerprint,
            "base_weights": self._base,
        }

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """Fingerprints of what the weights belong to, and the system message that most samples have."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "codec": self.codec.fingerprint,
            "base": self._base,
            "system": self._system,
        }

    @cached_property
    def _system(self) -> str | None:
        systems = Counter(sample.system for sample in self.corpus.samples("train"))
        return systems.most_common(1)[0][0] if systems else None


def check_voices(dataset: CloningDataset, rows: int) -> None:
    """Raise InputError for samples that give the contrastive term nothing to compare: it would be 0 throughout.

    `rows`: of a rank's micro-batch.
    """
    known = {example.speaker for example in dataset.examples}
    if len(known) == 1 and None not in known:
        raise InputError(
            "training.loss.weights.contrastive: compares the voices of different speakers, and the samples have one, "
            f"{known.pop()}; set it to 0"
        )
    if rows * max(map(len, dataset.rows)) < 2:
        raise InputError(
            "training.loss.weights.contrastive: compares the voices of a rank's micro-batch, which holds one sample; "
            "raise training.batch_size or data.max_length"
        )


def check_loss(recipe: CloningRecipe) -> None:
    """Raise InputError for options of the loss that have no effect here, or can't be met."""
    loss = recipe.training.loss
    for name in ("main", "reduction", "auxiliary"):
        if getattr(loss, name) != type(loss).model_fields[name].get_default(call_default_factory=True):
            raise InputError(
                f"training.loss.{name}: has no effect, because the task cloning has a fixed loss; remove it, or weight "
                "its terms with training.loss.weights"
            )
    if not recipe.model.text_head and (loss.text == "target" or loss.weights.get("text", 0.0) > 0.0):
        raise InputError("training.loss.weights.text: the loss of text needs model.text_head; set that to true")
    if loss.weight("contrastive") > 0.0 and not recipe.data.packing and recipe.training.batch_size == 1:
        raise InputError(
            "training.loss.weights.contrastive: compares the voices of a batch, and one sample has no other; set "
            "data.packing to true or raise training.batch_size"
        )
