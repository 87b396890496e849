"""Voice cloning as a task: Higgs Audio v2 reads a reference and a text, and predicts the codes of the target.

Terms: `text` and `audio`, the cross entropy of text tokens and of codes in nats; where their weights are above 0,
`contrastive` and `similarity`, the likeness of the voice, and `l2`, the sum of the squares of what is trained. For
information, with weight 0: `accuracy`, the share of codes (ends included) that are the likeliest given those before,
and `codebook/0` and so on, the parts of `audio`.

Shapes: P frames with labels, K codebooks, V values of a code; S samples, A frames, H width of the network; T frames
of an audio, N samples of a waveform.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.augmentation import sinc_resample
from phonate.audio.higgs_codec import HiggsCodec
from phonate.audio.mel_filters import mel_filters
from phonate.compute.distributed import of_all_ranks
from phonate.compute.system import cache_folder
from phonate.config.errors import InputError
from phonate.nn.losses import IGNORED, ContrastiveLoss, SumCount
from phonate.nn.pretrained import base_fingerprint, copy_tensors, prepare_import, saved_tensors
from phonate.pretrained import SPEAKER_LEVEL, load_voice_encoder
from phonate.tasks.cloning import model as models
from phonate.tasks.cloning.data import CloningCorpus, CloningDataset, examples_of
from phonate.tasks.cloning.model import Load, choose_checkpointing
from phonate.tasks.cloning.network import WhisperCache, attends_unpadded
from phonate.tasks.cloning.sequences import CODEBOOK_SIZE, CODEBOOKS, CloningTokenizer, undelayed
from phonate.tasks.cloning.settings import ACCURACY, TERMS, VOICE_TERMS, CloningRecipe, traits
from phonate.training.precision import FORMATS, resolve
from phonate.training.task import Batch, Metric, Stateful, Task, Terms

# ------------------------------------------- A curriculum: terms that are hard at first come in slowly

CURRICULUM_START = 0.1
"""Share of its weight with which a term begins."""


def curriculum_share(step: int, steps: int | None) -> float:
    """Share of its weight that a term has in optimizer step `step` (from 0): from `CURRICULUM_START` to 1 over `steps`
    steps along half a cosine, and 1 from then on. None: always 1."""
    if steps is None or step >= steps:
        return 1.0
    return CURRICULUM_START + (1.0 - CURRICULUM_START) * (1.0 - math.cos(math.pi * step / steps)) / 2.0


# ------------------------------------------- Cross entropy of codes, and the weights of the codebooks

LOSS_DECAY = 0.99
"""Share of the running mean of a codebook's loss that is left after an optimizer step."""


def code_losses(logits_PKV: Tensor, labels_PK: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of codes in nats, summed over frames: (K,). Frames where a codebook's label is `IGNORED` do not
    count."""
    losses_PK = F.cross_entropy(
        logits_PKV.float().flatten(0, 1),
        labels_PK.flatten(),
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )
    return losses_PK.view(labels_PK.shape).sum(0)


def correct_codes(logits_PKV: Tensor, labels_PK: Tensor) -> Tensor:
    """How many codes, ends included, are the likeliest given what came before."""
    return (logits_PKV.argmax(-1) == labels_PK).sum()


def falling_weights(codebooks: int) -> Tensor:
    """(K,): in proportion to 1 / (i + 1), 1 on average."""
    weights = 1.0 / torch.arange(1, codebooks + 1)
    return weights / weights.mean()


class AdaptiveWeights:
    """Weights of codebooks in proportion to the running mean of their losses, 1 on average.

    They change between optimizer steps only, and are the same on all ranks: what was observed in a step counts from the
    next step on. Before the first, they are all 1.
    """

    def __init__(self, codebooks: int) -> None:
        self.running_K = torch.zeros(codebooks)
        self._observed_2K: Tensor | None = None
        """Losses and their counts since `_step` began, on this rank."""
        self._step = -1

    def weights(self, step: int) -> Tensor:
        """(K,) for optimizer step `step`. All ranks call it in every step."""
        if step != self._step:
            self._fold()
            self._step = step
        mean = self.running_K.mean()
        return torch.where(mean > 0, self.running_K / mean.clamp_min(1e-12), torch.ones_like(self.running_K))

    def observe(self, losses_K: Tensor, counts_K: Tensor) -> None:
        """Take note of the summed losses of a micro-batch."""
        observed = torch.stack([losses_K.detach(), counts_K.to(losses_K.dtype)])
        self._observed_2K = observed if self._observed_2K is None else self._observed_2K + observed

    @torch.no_grad()
    def _fold(self) -> None:
        """Let the running mean follow what was observed."""
        if self._observed_2K is None:
            return
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._observed_2K)
        losses_K, counts_K = self._observed_2K
        self._observed_2K = None
        before = self.running_K.to(losses_K.device)
        means_K = torch.where(counts_K > 0, losses_K / counts_K.clamp_min(1), before)
        self.running_K = torch.where(before > 0, LOSS_DECAY * before + (1 - LOSS_DECAY) * means_K, means_K)

    def state(self) -> dict[str, Any]:
        """The running mean. All ranks call it together."""
        self._fold()
        return {"running": self.running_K.tolist()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore it. None (saved without adaptive weights): they begin at 1, as in a new run."""
        if state is not None:
            self.running_K = torch.tensor(state["running"])
        self._observed_2K, self._step = None, -1


# ------------------------------------------------ Likeness of voices by what the network makes of them


def contrastive_loss(
    hidden_NH: Tensor, frame_positions_A: Tensor, pools_A: Tensor, speakers_S: Tensor, temperature: float
) -> SumCount:
    """InfoNCE between references and targets (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748), with the
    voices of other speakers in the batch as negatives.

    Hidden states of the frames of a voice are averaged, normalised like a layer's input, and centred over the batch:
    before, the part that all voices share outweighs what tells them apart. The batch is that of all ranks.

    Args:
        hidden_NH: Last hidden states at all positions (B * L, H).
        frame_positions_A: Where the frames stand.
        pools_A: 2 s for frames of the reference of sample s, 2 s + 1 for those of its target, -1 for neither.
        speakers_S: Numbers of the samples' speakers; voices of one speaker are never negatives of each other.
        temperature: Cosines are divided by it.

    Returns:
        Sum and count over the 2 S voices of this rank; 0 with a single speaker.
    """
    with torch.autocast(hidden_NH.device.type, enabled=False):
        voices_VH = _pooled(hidden_NH[frame_positions_A].float(), pools_A, 2 * len(speakers_S))
        voices_VH = F.layer_norm(voices_VH, voices_VH.shape[-1:])
        (voices_VH, labels_V), own = of_all_ranks(voices_VH, speakers_S.repeat_interleave(2))
        voices_VH = voices_VH - voices_VH.mean(0)
        return ContrastiveLoss(temperature).among(voices_VH, labels_V, torch.ones_like(labels_V, dtype=torch.bool), own)


def _pooled(frames_AH: Tensor, pools_A: Tensor, voices: int) -> Tensor:
    """Means over the frames of each voice (voices, H). Frames of pool -1 go into one more, which is dropped."""
    pools_A = pools_A % (voices + 1)
    sums = frames_AH.new_zeros(voices + 1, frames_AH.shape[-1]).index_add(0, pools_A, frames_AH)
    counts = frames_AH.new_zeros(voices + 1).index_add(0, pools_A, torch.ones_like(frames_AH[:, 0]))
    return (sums / counts.clamp_min(1)[:, None])[:-1]


# --------------------------------------------------------------------------- Likeness of voices by ear

ENCODER_RATE = 16000
"""Hz, of the encoder."""
_WINDOW, _HOP, _BANDS = 400, 160, 40
_PIECE = 160 * _HOP
"""Samples that the encoder hears at once: 1.6 s."""


class DifferentiableSpeakerEncoder(nn.Module):
    """resemblyzer's encoder with its pretrained weights (Apache 2.0, in its wheel), whose embeddings have gradients
    with respect to the waveform. Silence is not cut out."""

    window: Tensor
    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        _, self.network = load_voice_encoder("training.loss.weights.similarity")
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        filters = torch.from_numpy(mel_filters(ENCODER_RATE, _WINDOW, _BANDS, 0.0, ENCODER_RATE / 2))
        self.register_buffer("filters", filters, persistent=False)
        self.requires_grad_(False)

    def mel(self, waveform_BN: Tensor) -> Tensor:
        """(B, T, 40) energies in mel bands, not in decibels; T = 1 + N // 160."""
        spectrum_BFT = torch.stft(
            waveform_BN, _WINDOW, _HOP, window=self.window, center=True, pad_mode="constant", return_complex=True
        )
        energies_BFT: Tensor = torch.view_as_real(spectrum_BFT).square().sum(-1)
        return (self.filters @ energies_BFT).transpose(1, 2)

    def forward(self, waveform_N: Tensor) -> Tensor:
        """(256,) unit-length embedding of a waveform (N,) at 16 kHz: the mean over pieces of 1.6 s, one each 0.8 s. The
        last one is filled up with silence."""
        level = waveform_N.square().mean().clamp_min(1e-12).log10() * 10
        levelled_N = waveform_N * 10 ** ((SPEAKER_LEVEL - level) / 20)
        half = _PIECE // 2
        pieces = max(1, -(-(len(levelled_N) - _PIECE) // half) + 1)
        padded_N = F.pad(levelled_N, (0, max(0, (pieces + 1) * half - len(levelled_N))))
        frames = _PIECE // _HOP
        pieces_PTM = self.mel(padded_N[None])[0].unfold(0, frames, frames // 2).transpose(1, 2)
        self.network.train()  # cuDNN has a backward pass for LSTMs in this mode only; there is no dropout
        embedding: Tensor = F.normalize(self.network(pieces_PTM).mean(0), dim=0)
        return embedding


class VoiceSimilarity:
    """1 - cosine of the voices of what the model says and of the reference.

    What the model says are its distributions of codes given the codes before (teacher forcing), each decoded as the
    mean of its codebook.

    Args:
        codec: The model's, which stays as it is.
        device: Where to compute.
    """

    def __init__(self, codec: HiggsCodec, device: torch.device) -> None:
        self.codec = codec
        self.encoder = DifferentiableSpeakerEncoder().to(device)

    def loss(self, logits_PKV: Tensor, lengths: Sequence[int], references: Sequence[Tensor]) -> SumCount:
        """Sum and count over S samples.

        Args:
            logits_PKV: Logits at the labelled frames of all targets, in order.
            lengths: (S,) frames T of each target; each has T + K labelled frames.
            references: (S,) frames (F, K) of each reference, under the delay pattern.
        """
        with torch.autocast(logits_PKV.device.type, enabled=False):
            total, start = logits_PKV.new_zeros((), dtype=torch.float32), 0
            codebooks = logits_PKV.shape[1]
            for length, reference in zip(lengths, references, strict=True):
                rows_PKV = logits_PKV[start : start + length + codebooks].float()
                start += length + codebooks
                total = total + 1.0 - self._target_embedding(rows_PKV, length) @ self._reference_embedding(reference)
        return total, float(len(lengths))

    def _target_embedding(self, logits_PKV: Tensor, length: int) -> Tensor:
        """(256,) of what the model says."""
        size = self.codec.codebook_size
        codes_TKV = torch.stack([logits_PKV[k : k + length, k, :size] for k in range(logits_PKV.shape[1])], dim=1)
        return self._embedding(self.codec.soft_decode(codes_TKV.softmax(-1)[None])[0])

    @torch.no_grad()
    def _reference_embedding(self, frames_FK: Tensor) -> Tensor:
        """(256,) of a reference."""
        waveform = self.codec.decode(undelayed(frames_FK.cpu().numpy()))
        return self._embedding(torch.from_numpy(np.ascontiguousarray(waveform)).to(frames_FK.device))

    def _embedding(self, waveform_N: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(sinc_resample(waveform_N, self.codec.sample_rate, ENCODER_RATE))
        return embedding


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
        known = traits(recipe)
        self._metrics, self.coupling = known.metrics, known.coupling
        prepare_import()
        self.recipe = recipe
        self.settings = recipe.training.loss
        self.corpus = CloningCorpus(recipe.data, lambda: self.codec)
        self._adaptive = AdaptiveWeights(CODEBOOKS) if self.settings.codebooks == "adaptive" else None
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
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return -(-self._rows_of_all(dataset) // ranks)

    def _rows_of_all(self, dataset: CloningDataset) -> int:
        """The same of all ranks together."""
        training = self.recipe.training
        if training.max_length is None:
            return training.batch_size
        return max(1, training.max_length // int(dataset.lengths.max()))

    def _autocast(self, device: torch.device) -> torch.dtype | None:
        return FORMATS.get(resolve(self.recipe.training.mixed_precision, device))

    def dataset(self, split: str) -> CloningDataset:
        """Rows of samples of "train" or "validation"."""
        if split not in self._datasets:
            self._datasets[split] = self._make_dataset(split)
        return self._datasets[split]

    def _make_dataset(self, split: str) -> CloningDataset:
        data, whisper = self.recipe.data, self.recipe.model.whisper
        self.corpus.samples(split)  # what is wrong with the data is told before anything is downloaded
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
            check_voices(dataset, self._rows_of_all(dataset))
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
            batch["cu_seqlens"] if attends_unpadded(batch["cu_seqlens"].device) else None,
            **read,
            whisper_positions=batch.get("whisper_positions"),
            whisper_features=batch.get("whisper_features"),
            text_labels=batch["text_labels"],
            label_smoothing=self.settings.label_smoothing,
        )
        sums: dict[str, Tensor] = {}
        if self.recipe.model.text_head:
            sums["text"] = output.text_loss
        sums |= self._audio_sums(model.training, output.audio_logits, batch["audio_labels"])
        sums |= self._voice_sums(output, batch)
        if self._weighs("l2"):
            trained = [p.float().square().sum() for p in model.parameters() if p.requires_grad]
            sums["l2"] = torch.stack(trained).sum() * len(batch["target_lengths"])
        return {name: (total, _UNITS.get(name, "frames")) for name, total in sums.items()}

    def _audio_sums(self, training: bool, logits_PKV: Tensor, labels_PK: Tensor) -> dict[str, Tensor]:
        """The sums of `audio` and of what is reported about it."""
        losses_K = code_losses(logits_PKV, labels_PK, self.settings.audio_label_smoothing)
        weights_K = self._codebook_weights(training, losses_K, labels_PK)
        parts = {f"codebook/{k}": one for k, one in enumerate(losses_K.detach())}
        correct = correct_codes(logits_PKV.detach(), labels_PK)
        return {"audio": (weights_K * losses_K).sum(), ACCURACY: correct.to(losses_K.dtype), **parts}

    def _codebook_weights(self, training: bool, losses_K: Tensor, labels_PK: Tensor) -> Tensor:
        if self.settings.codebooks == "weighted":
            return falling_weights(len(losses_K)).to(losses_K)
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
        due = curriculum_share(step, self.settings.curriculum_steps)
        return {} if due == 1.0 else dict.fromkeys(VOICE_TERMS, due)

    def samples(self, batch: Batch, items: int) -> int:
        """Samples, of which a row may hold several."""
        return len(batch["target_lengths"])

    # --------------------------------------------------------------- metrics

    @property
    def metrics(self) -> Sequence[Metric] | None:
        """The loss terms, and `accuracy`."""
        return self._metrics

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

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The layers of the language model."""
        return models.run_by_themselves(model)

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

    `rows`: of a micro-batch, all ranks together.
    """
    known = {example.speaker for example in dataset.examples}
    if len(known) == 1 and None not in known:
        raise InputError(
            "training.loss.weights.contrastive: compares the voices of different speakers, and the samples have one, "
            f"{known.pop()}; set it to 0"
        )
    if rows * max(map(len, dataset.rows)) < 2:
        raise InputError(
            "training.loss.weights.contrastive: compares the voices of a micro-batch, which holds one sample; "
            "raise training.batch_size or data.max_length"
        )
