"""Recognition by fine-tuning Whisper (Radford et al. 2022): its labels, its training samples, and the task.

A sequence is the prompt (start; of multilingual models language and task; that there are no timestamps, unless labels
have times), the text, and the end. The one term, `nll`, is the negative log likelihood of text and end, per token:
prompt and padding are no labels. Transcription gives the model the same prompt.

Shapes: B batch, T mel frames, M mel bands, L tokens, N labels, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.decoding import FloatArray, resample
from phonate.audio.whisper import HOP_LENGTH, SAMPLE_RATE, LogMel
from phonate.config.language_codes import primary
from phonate.data.batches import evaluation_batches
from phonate.data.cache import IndexedSegment
from phonate.nn import whisper
from phonate.nn.losses import IGNORED
from phonate.nn.pretrained import add_adapters, base_fingerprint, copy_tensors, prepare_import, saved_tensors
from phonate.nn.whisper import WhisperTokens
from phonate.tasks.recognition.data import MASKS, RecognitionCorpus, RecognitionDataset, as_spoken
from phonate.tasks.recognition.settings import (
    WHISPER_SECONDS,
    RecognitionData,
    RecognitionModel,
    RecognitionRecipe,
)
from phonate.tasks.recognition.task import RecognitionTask
from phonate.text.characters import lower_case
from phonate.training.task import Batch, Dataset, Picture, Preview, Sums, Terms, move

logger = logging.getLogger("phonate")

_WHOLE = 0.1
"""Seconds at either end of a recording that a segment of all of it may leave out."""
_MOST_SAMPLES = round(WHISPER_SECONDS * SAMPLE_RATE)


# ------------------------------------------------------------------------------------------- Labels


@dataclass(frozen=True)
class Transcript:
    """What is said in a recording."""

    text: str
    parts: tuple[tuple[float, float, str], ...] | None = None
    """Start and end in seconds, and text, of each part, where the labels have times."""


def transcript_of(segments: Sequence[IndexedSegment], seconds: float) -> Transcript:
    """What `segments` of a recording of so many seconds say; with times, unless one segment is all of it."""
    said = [(one.start, one.end, " ".join(one.text.split())) for one in segments if one.text.strip()]
    text = " ".join(words for *_, words in said)
    whole = len(said) == 1 and said[0][0] <= _WHOLE and said[0][1] >= seconds - _WHOLE
    return Transcript(text) if whole or not said else Transcript(text, tuple(said))


def sequence_of(
    transcript: Transcript, tokens: WhisperTokens, language: str, stretch: float = 1.0
) -> tuple[list[int], int]:
    """The tokens of a training sample, and how many of them are its prompt. `stretch`: what times are multiplied by."""
    prompt = tokens.prompt(language, transcript.parts is not None)
    ids = list(prompt)
    if transcript.parts is None:
        ids += tokens.encode(transcript.text)
    else:
        for start, end, text in transcript.parts:
            ids += [tokens.time(start * stretch), *tokens.encode(text), tokens.time(end * stretch)]
    return [*ids, tokens.end], len(prompt)


class WhisperCorpus(RecognitionCorpus):
    """The prepared corpus at `data.path`, with the transcripts that Whisper learns."""

    def __init__(self, data: RecognitionData, tokens: WhisperTokens, most: int) -> None:
        """`most`: tokens that the model takes."""
        super().__init__(data)
        self.tokens, self.most = tokens, most
        self.language = primary(data.language)
        self.spoken = as_spoken(data.language)

    @cached_property
    def transcripts(self) -> list[Transcript]:
        """What is said in each recording; in lower case where no text has any other than capitals, of which Whisper
        hardly knows the words."""
        index, rate = self.prepared.index, self.data.audio.frames_per_second
        frames = index.frames
        said = [transcript_of(index.segments(i), float(frames[i]) / rate) for i in range(len(index))]
        everything = "".join(one.text for one in said)
        if everything.upper() == everything and everything.lower() != everything:
            logger.info("%s: its texts are in capitals; Whisper learns them in lower case", self.data.path)
            case = partial(lower_case, language=self.language)
            said = [
                Transcript(case(one.text), one.parts and tuple((a, b, case(text)) for a, b, text in one.parts))
                for one in said
            ]
        return said

    @cached_property
    def wordings(self) -> list[str]:
        """The text of each recording, as it is learnt."""
        return [one.text for one in self.transcripts]

    @property
    def timed(self) -> bool:
        """Whether training labels have times."""
        return any(self.transcripts[position].parts is not None for position in self.positions("train"))

    def fits(self, position: int) -> bool:
        """Whether the model takes as many tokens as the text has."""
        return len(sequence_of(self.transcripts[position], self.tokens, self.language)[0]) <= self.most

    too_long = "have texts of more tokens than Whisper takes"


# ---------------------------------------------------------------------------------- Training samples


@dataclass(frozen=True)
class WhisperItem:
    """One sample."""

    mel_TM: FloatArray
    tokens_L: NDArray[np.int64]
    prompt: int
    """Tokens of the prompt."""


class WhisperDataset(RecognitionDataset):
    """One split, whole recordings with silence behind them."""

    def __init__(self, corpus: WhisperCorpus, split: str, bands: int) -> None:
        super().__init__(corpus, split)
        self._own = corpus
        self._log_mel = LogMel(bands)
        least, most = corpus.data.padding
        self._padding = (least, most) if split == "train" else ((least + most) / 2.0,) * 2

    def whole_windows(self) -> WhisperDataset:
        """The samples with silence up to 30 s, as transcription hears them. With less, a Whisper that has not learnt
        to do without it says the same again and again."""
        padded = copy(self)
        padded._padding = (WHISPER_SECONDS, WHISPER_SECONDS)
        return padded

    @cached_property
    def wordings(self) -> list[str]:
        """The texts as they are read out, which evaluation compares."""
        return [self._own.spoken(self._own.wordings[position]) for position in self.positions]

    @property
    def cached(self) -> bool:
        """False: the mel is computed for each sample."""
        return False

    def get(self, index: int, rng: np.random.Generator) -> WhisperItem:
        """Sample number `index`."""
        corpus, position = self._own, self.positions[index]
        recorded = corpus.prepared.cache.waveform(position)
        waveform = self._varied(recorded, rng)
        mel_TM = self._log_mel(waveform)
        if self._augmentation is not None:
            for _ in range(MASKS):
                mel_TM = self._augmentation.spec(mel_TM, rng)
        silence = round(rng.uniform(*self._padding) * SAMPLE_RATE / HOP_LENGTH)
        room = _MOST_SAMPLES // HOP_LENGTH - len(mel_TM)
        behind = np.full((min(silence, room), mel_TM.shape[1]), LogMel.silence(mel_TM), dtype=np.float32)
        stretch = len(waveform) / max(1, len(recorded))
        tokens, prompt = sequence_of(corpus.transcripts[position], corpus.tokens, corpus.language, stretch)
        return WhisperItem(np.concatenate([mel_TM, behind]), np.array(tokens, dtype=np.int64), prompt)

    def _waveform(self, position: int, rng: np.random.Generator) -> FloatArray:
        return self._varied(self.prepared.cache.waveform(position), rng)

    def _varied(self, recorded: FloatArray, rng: np.random.Generator) -> FloatArray:
        """The waveform at another speed and augmented, as the recipe says; no longer than Whisper hears."""
        waveform = recorded[:_MOST_SAMPLES]
        if self._speed is not None:
            speed = max(rng.uniform(*self._speed), len(waveform) / _MOST_SAMPLES)
            waveform = resample(waveform, SAMPLE_RATE * speed, SAMPLE_RATE)[:_MOST_SAMPLES]
        if self._augmentation is not None:
            augmented = self._augmentation(waveform, rng)
            waveform = augmented if len(augmented) <= _MOST_SAMPLES else waveform
        return waveform

    def collate(self, items: list[Any]) -> Batch:
        """Samples as a batch.

        Returns:
            `mel` (B, T, M) with zeros after the ends, `lengths` (B,).
            `tokens` (B, L): all but the last of each sequence, then its end again and again, to which nothing attends.
            `labels` (B, L): the token after each, or `IGNORED` in the prompt and behind the end.
            `labelled` (N,): where labels are, as indices into a flattened (B * L).
        """
        lengths = [len(item.mel_TM) for item in items]
        mel = np.zeros((len(items), max(lengths) + max(lengths) % 2, items[0].mel_TM.shape[1]), dtype=np.float32)
        size = max(len(item.tokens_L) for item in items) - 1
        tokens = np.full((len(items), size), self._own.tokens.end, dtype=np.int64)
        labels = np.full((len(items), size), IGNORED, dtype=np.int64)
        for row, item in enumerate(items):
            mel[row, : lengths[row]] = item.mel_TM
            tokens[row, : len(item.tokens_L) - 1] = item.tokens_L[:-1]
            labels[row, item.prompt - 1 : len(item.tokens_L) - 1] = item.tokens_L[item.prompt :]
        return {
            "mel": torch.from_numpy(mel),
            "lengths": torch.tensor(lengths),
            "tokens": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            # found here, on the CPU: on a GPU, nonzero would wait for the device
            "labelled": torch.from_numpy(np.flatnonzero(labels != IGNORED)),
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Tokens that are learnt."""
        return {"tokens": float(len(batch["labelled"]))}


# --------------------------------------------------------------------------------------- The network


def prepared(network: nn.Module, settings: RecognitionModel) -> nn.Module:
    """`network` with gradients where `settings` says, and with adapters where they are wanted."""
    own: Any = network
    if settings.gradient_checkpointing:
        own.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if settings.adapted:
        targets: Sequence[str] | None = settings.lora.targets
        if not settings.train_encoder:
            targets = _decoder_layers(network, targets)
        return add_adapters(network, settings.lora, targets, task=None)
    if not settings.train_encoder:
        own.model.encoder.requires_grad_(False)
    own.model.encoder.embed_positions.requires_grad_(False)  # sinusoids
    return network


@contextmanager
def moved_back(model: nn.Module, kept: float) -> Iterator[None]:
    """`model` with its adapters counting for 1 - `kept` of what they are."""
    found = (getattr(module, "scaling", None) for module in model.modules())
    scalings = [one for one in found if isinstance(one, dict)]
    before = [dict(one) for one in scalings]
    for one in scalings:
        one.update({name: (1.0 - kept) * value for name, value in one.items()})
    try:
        yield
    finally:
        for one, values in zip(scalings, before, strict=True):
            one.update(values)


def _decoder_layers(network: nn.Module, targets: Sequence[str] | None) -> list[str]:
    """The names of the decoder's linear layers, those that end in one of `targets` (None: all)."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear) and ".decoder." in name]
    return [name for name in names if targets is None or any(name.endswith(f".{one}") for one in targets)]


def negative_log_likelihood(model: nn.Module, batch: Batch) -> Tensor:
    """-log p of each label in nats (N,), in fp32."""
    encoded, mask = whisper.encode(model, batch["mel"], batch["lengths"])
    hidden_BLD = whisper.decode(model, batch["tokens"], encoded, mask)
    where = batch["labelled"]
    scores_NV = whisper.logits(model, hidden_BLD.flatten(0, 1)[where]).float()
    return F.cross_entropy(scores_NV, batch["labels"].flatten()[where], reduction="none")


class WhisperTask(RecognitionTask):
    """Fine-tunes a Whisper as `recipe` says."""

    earlier_keys: ClassVar[Mapping[str, str]] = {}

    def __init__(self, recipe: RecognitionRecipe) -> None:
        super().__init__(recipe)
        prepare_import()
        self._base: str | None = None
        """The fingerprint of the frozen weights, once the model is built."""

    @cached_property
    def tokens(self) -> WhisperTokens:
        """The pretrained model's. Raises InputError where it does not know the language of the texts."""
        tokens = WhisperTokens.load(self.recipe.model.name)
        tokens.prompt(primary(self.recipe.data.language), False)
        return tokens

    @cached_property
    def pretrained(self) -> nn.Module:
        """The model to start from, which becomes the one that is trained."""
        settings = self.recipe.model
        return whisper.load_whisper_network(settings.name, device=self.device, quantization=settings.quantization)

    @cached_property
    def corpus(self) -> WhisperCorpus:
        """The corpus, prepared when it is first needed."""
        return WhisperCorpus(
            self.recipe.data, self.tokens, whisper.whisper_of(self.pretrained).config.max_target_positions
        )

    def model(self, device: torch.device) -> nn.Module:
        """The pretrained model on `device`, frozen where it is not trained."""
        assert self.tokens, "a language that they lack is refused before any work"
        model = prepared(self.pretrained.to(device), self.recipe.model)
        if self._adapters_alone:
            self._base = base_fingerprint(model, self.recipe.model.quantization is not None)
        return model

    def compiled_modules(self, model: nn.Module) -> Sequence[nn.Module]:
        """The layers: nothing calls the model that holds them."""
        network = whisper.whisper_of(model).model
        return [*network.encoder.layers, *network.decoder.layers]

    @property
    def _adapters_alone(self) -> bool:
        return bool(self.recipe.model.adapted)

    def dataset(self, split: str) -> WhisperDataset:
        """Whole recordings; varied for training as the recipe says."""
        return WhisperDataset(self.corpus, split, whisper.whisper_of(self.pretrained).config.num_mel_bins)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the module."""
        return {"nll": (negative_log_likelihood(model, batch).sum(), "tokens")}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """As `RecognitionTask.evaluate`, of the model that transcribes: moved back by `model.keep`."""
        with moved_back(model, self.recipe.model.kept_share):
            return super().evaluate(model, dataset, positions)

    def _decoded(self, model: nn.Module, samples: RecognitionDataset, positions: Sequence[int]) -> dict[int, str]:
        """Greedy transcripts of the samples at `positions`, as transcription gives them, but read out."""
        device, size = next(model.parameters()).device, self.recipe.training.evaluation_batch_size
        heard = cast(WhisperDataset, samples).whole_windows()
        never = self._facts["suppress"]
        prompt = self.tokens.prompt(self.corpus.language, self.corpus.timed)
        hypotheses: dict[int, str] = {}
        for places, _, batch in evaluation_batches(heard, positions, size):
            batch = move(batch, device)
            encoded, mask = whisper.encode(model, batch["mel"], batch["lengths"])
            rows = whisper.greedy(model, self.tokens, encoded, mask, prompt, never)
            texts = [self.corpus.spoken(self.tokens.decode(ids)) for ids in rows]
            hypotheses |= dict(zip(places, texts, strict=True))
        return hypotheses

    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """The mel of a validation recording."""
        samples = self.dataset("validation")
        if not samples.positions:
            return {}
        return {"mel": Picture(np.ascontiguousarray(samples.get(0, np.random.default_rng(0)).mel_TM.T))}

    def saved(self, model: nn.Module) -> dict[str, Tensor]:
        """Every weight, or the adapters alone."""
        return saved_tensors(model, trained_only=self._adapters_alone)

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Put `saved` tensors back. Raises CheckpointError if they do not fit."""
        copy_tensors(self.saved(model), tensors)

    def identity(self) -> dict[str, Any]:
        """The tokens, the language, and the frozen weights that adapters belong to."""
        return {"tokens": self.tokens.fingerprint, "language": self.corpus.language, "base_weights": self._base}

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What transcription needs beside the weights and the recipe."""
        return {**self._facts, "base": self._base} | ({} if self._adapters_alone else whisper.document_of(model))

    @cached_property
    def _facts(self) -> dict[str, Any]:
        corpus, training = self.corpus, self.corpus.positions("train")
        index = corpus.prepared.index
        words = Counter(word for position in training for word in corpus.wordings[position].lower().split())
        seconds = sum(int(index.frames[position]) for position in training) / corpus.data.audio.frames_per_second
        facts: dict[str, Any] = {
            "tokens": self.tokens.fingerprint,
            "language": corpus.language,
            "timestamps": corpus.timed,
            "suppress": self._suppress(training),
            "validation": [index.id[position] for position in corpus.positions("validation")],
            "recordings": len(training),
            "seconds": round(seconds, 1),
            "most_frequent_word": max(sorted(words), key=words.__getitem__),
            "words_per_second": words.total() / seconds,
        }
        if not self._adapters_alone:
            facts["tokenizer"] = self.tokens.document
        return facts

    def _suppress(self, training: Sequence[int]) -> list[int]:
        """The tokens that the pretrained model is kept from writing, such as brackets, but for those in the labels."""
        corpus = self.corpus
        learnt = {
            token
            for position in training
            for token in sequence_of(corpus.transcripts[position], self.tokens, corpus.language)[0]
        }
        usual = whisper.whisper_of(self.pretrained).generation_config.suppress_tokens or []
        return [token for token in usual if token not in learnt or token > self.tokens.end]
