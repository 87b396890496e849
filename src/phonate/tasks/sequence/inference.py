"""Inference of sequence models: targets by beam search, continuations and labels.

Shapes: B sequences, S source tokens, P prefix tokens, K beams per sequence, N <= B x K rows, V vocabulary, C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, overload

import numpy as np
import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.data.dialogues import Dialogue
from phonate.tasks.sequence.data import Ids, SequenceDataset, SequenceItem, batched, spans
from phonate.tasks.sequence.model import SequenceModel, build_model
from phonate.tasks.sequence.settings import SequenceRecipe
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Device, Inference
from phonate.training.task import move

# ----------------------------------------------------------------------------------------- Beam search


class NextToken(Protocol):
    """An autoregressive model with incremental decoding."""

    def next(self, tokens_N: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (N, V) of the tokens after the given ones (N,), and the updated state."""
        ...

    def select(self, state: Any, rows_M: Tensor) -> Any:
        """The state of these rows (M,), which may be repeated or left out."""
        ...


@dataclass(eq=False)
class _Beams:
    """The hypotheses of one sequence."""

    position: int
    """Its index in the results."""
    alive: list[list[int]] = field(default_factory=lambda: [[]])
    scores: list[float] = field(default_factory=lambda: [0.0])
    finished: list[tuple[float, list[int]]] = field(default_factory=list)


@torch.no_grad()
def beam_search(
    model: NextToken,
    logits_BV: Tensor,
    state: Any,
    *,
    width: int,
    end: int,
    max_tokens: int,
    length_penalty: float = 1.0,
) -> list[list[int]]:
    """The best continuation of each sequence, without the end token.

    Args:
        model: The model.
        logits_BV: Logits of the first token.
        state: The model's state before the first token, with a row for each sequence.
        width: Number of hypotheses; 1 is greedy decoding.
        end: The token that ends a sequence.
        max_tokens: Maximum length.
        length_penalty: Finished hypotheses are ranked by log probability / ((5 + length) / 6) ** length_penalty.

    The search for a sequence ends when `width` of its hypotheses have ended.
    """
    beams = [_Beams(position) for position in range(len(logits_BV))]
    results: list[list[int]] = [[] for _ in beams]
    penalty = [((5.0 + length) / 6.0) ** length_penalty for length in range(max_tokens + 2)]
    for length in range(1, max_tokens + 1):
        rows, tokens, going = _grow(beams, logits_BV, width, end, penalty[length])
        for one in beams:
            if one not in going or length == max_tokens:
                results[one.position] = _best(one, penalty[length])
        beams = going
        if not beams or length == max_tokens:
            break
        state = model.select(state, torch.tensor(rows, device=logits_BV.device))
        logits_BV, state = model.next(torch.tensor(tokens, device=logits_BV.device), state)
    return results


def _grow(
    beams: list[_Beams], logits_NV: Tensor, width: int, end: int, penalty: float
) -> tuple[list[int], list[int], list[_Beams]]:
    """Extend each hypothesis by a token. Returns the rows that continue, their new tokens, and their beams."""
    log_probs_NV = logits_NV.float().log_softmax(-1)
    # at most `width` of 2 x width candidates are end tokens, so at least `width` others remain
    best_NC, token_NC = log_probs_NV.topk(min(2 * width, log_probs_NV.shape[-1]), dim=-1)
    log_probs, candidates = best_NC.tolist(), token_NC.tolist()
    rows: list[int] = []
    tokens: list[int] = []
    going: list[_Beams] = []
    first = 0
    for one in beams:
        count = len(one.alive)
        options = [
            (one.scores[k] + log_prob, k, token)
            for k in range(count)
            for log_prob, token in zip(log_probs[first + k], candidates[first + k], strict=True)
        ]
        options.sort(key=lambda option: -option[0])
        alive: list[list[int]] = []
        scores: list[float] = []
        for rank, (score, k, token) in enumerate(options[: 2 * width]):
            if token == end:
                if rank < width:
                    one.finished.append((score / penalty, one.alive[k]))
            elif len(alive) < width:
                alive.append([*one.alive[k], token])
                scores.append(score)
                rows.append(first + k)
                tokens.append(token)
        one.alive, one.scores = alive, scores
        if len(one.finished) >= width or not alive:
            del rows[len(rows) - len(alive) :], tokens[len(tokens) - len(alive) :]
        else:
            going.append(one)
        first += count
    return rows, tokens, going


def _best(one: _Beams, penalty: float) -> list[int]:
    """The best finished hypothesis, or, if there is none, the best unfinished one."""
    if one.finished:
        return max(one.finished, key=lambda hypothesis: hypothesis[0])[1]
    return max(zip(one.scores, one.alive, strict=True), key=lambda hypothesis: hypothesis[0] / penalty)[1]


# ------------------------------------- Inference of sequence models: targets, continuations and labels

MARGIN = 16
"""Texts generated for scoring may be longer than the longest target by this many tokens."""


class SequenceGenerator(Inference):
    """Generates the targets of sources, continues sequences, or classifies sources."""

    def __init__(
        self,
        model: SequenceModel,
        tokenizer: TextTokenizer,
        labels: Sequence[str],
        chat: bool,
        recipe: SequenceRecipe,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`labels`: the classes of an encoder-only model; `chat`: whether a decoder-only model was trained on pairs,
        and answers prompts; `recipe`: that of the run; `inference_metadata`: saved with the checkpoint by the task."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.labels = tuple(labels)
        self.chat = chat
        self.recipe = recipe
        self.inference_metadata = dict(inference_metadata or {})

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint, on `device` (None: cpu).

        Raises CheckpointError if there is none, or it is damaged or belongs to another task.
        """
        trained = open_trained(source, "sequence", SequenceRecipe)
        metadata = trained.inference_metadata
        tokenizer = TextTokenizer.from_exported(metadata["tokenizer"])
        model = build_model(trained.recipe.model, len(tokenizer), len(metadata["labels"]))
        trained.load_into(model)
        return cls(model, tokenizer, metadata["labels"], bool(metadata["answered"]), trained.recipe, metadata).to(
            device
        )

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The transformer."""
        return (self.model,)

    @overload
    def generate(self, prompt: str, max_tokens: int | None = None, beam_width: int | None = None) -> str: ...

    @overload
    def generate(
        self, prompt: list[str] | tuple[str, ...], max_tokens: int | None = None, beam_width: int | None = None
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str] | tuple[str, ...],
        max_tokens: int | None = None,
        beam_width: int | None = None,
    ) -> str | list[str]:
        """The target of a source, the continuation of a sequence, or the label of a source (encoder-only models).

        Args:
            prompt: A text, or a list of texts, which are decoded in batches.
            max_tokens: Maximum number of generated tokens. None: `data.max_length`.
            beam_width: Number of hypotheses. None: the recipe's `training.eval_knobs.beam_width`.

        Raises InputError for an empty or too long text, or for numbers below 1.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not all(text.strip() for text in prompts):
            raise InputError("the input text is empty")
        if self.model.decoder is None:
            written = [max(probabilities, key=probabilities.__getitem__) for probabilities in self.classify(prompts)]
        else:
            written = self._write([self._encoded(text) for text in prompts], max_tokens, beam_width)
        return written[0] if isinstance(prompt, str) else written

    def stream(self, prompt: str, max_tokens: int | None = None, beam_width: int | None = None) -> Iterator[str]:
        """Yields the result of `generate` as one piece, as beam search has no partial results."""
        yield self.generate(prompt, max_tokens, beam_width)

    def answers(self, pairs: Sequence[Dialogue]) -> list[str]:
        """The texts generated for the sources of `pairs`, or as the last turns of conversations, for comparison with
        their targets. They have at most `MARGIN` tokens more than the longest target."""
        longest_target = max(len(self.tokenizer.encode_prompt(one.response.text, chat=False)) for one in pairs)
        max_tokens = min(longest_target + MARGIN, self.recipe.data.max_length)
        if self.model.encoder is not None:
            return self.generate([one.prompt[-1].text for one in pairs], max_tokens)
        return self._write([_ids(self.tokenizer.encode_context(one)) for one in pairs], max_tokens, None)

    @overload
    def classify(self, text: str) -> dict[str, float]: ...

    @overload
    def classify(self, text: list[str] | tuple[str, ...]) -> list[dict[str, float]]: ...

    @torch.no_grad()
    def classify(self, text: str | list[str] | tuple[str, ...]) -> dict[str, float] | list[dict[str, float]]:
        """The probability of each label. Raises InputError for models that are not encoder-only."""
        if self.model.decoder is not None:
            raise InputError("this model generates texts; only encoder-only models (model_type encoder) have labels")
        sources = [self._encoded(one) for one in ([text] if isinstance(text, str) else text)]
        by_index: dict[int, dict[str, float]] = {}
        for members in self._groups([len(ids) for ids in sources]):
            items = [SequenceItem("", self._windows(sources[index])) for index in members]
            batch = move(SequenceDataset(items, self.tokenizer.pad).collate(items), self.device)
            logits_BC, _ = self.model(batch)
            for index, row in zip(members, logits_BC.float().softmax(-1).tolist(), strict=True):
                by_index[index] = dict(zip(self.labels, row, strict=True))
        ordered = [by_index[index] for index in range(len(sources))]
        return ordered[0] if isinstance(text, str) else ordered

    @torch.no_grad()
    def _write(self, sources: Sequence[Ids], max_tokens: int | None, beam_width: int | None) -> list[str]:
        """Beam search for source tokens (S,) of the encoder, or prefixes (P,) of a decoder-only model."""
        width = beam_width if beam_width is not None else self.recipe.training.eval_knobs.beam_width
        most = max_tokens if max_tokens is not None else self.recipe.data.max_length
        if width < 1 or most < 1:
            raise InputError(f"beam_width {width}, max_tokens {most}: both must be at least 1")
        texts: dict[int, str] = {}
        end = self.tokenizer.end
        assert end is not None, "a tokenizer trained by phonate has one"
        for members in self._groups([len(ids) for ids in sources], same=self.model.encoder is None):
            logits_BV, state = self._begin([sources[index] for index in members])
            prefix = 1 if self.model.encoder is not None else len(sources[members[0]])
            ids = beam_search(self.model, logits_BV, state, width=width, end=end, max_tokens=self._room(prefix, most))
            texts |= zip(members, map(self.tokenizer.decode, ids), strict=True)
        return [texts[index] for index in range(len(sources))]

    def _begin(self, sources: Sequence[Ids]) -> tuple[torch.Tensor, Any]:
        """Logits (B, V) of the first generated token, and the state before it."""
        if self.model.encoder is None:
            return self.model.begin(torch.from_numpy(np.stack(sources)).to(self.device))
        batch = batched(sources, self.tokenizer.pad, "source")
        memory = self.model.encode(batch["source"].to(self.device), batch["source_lengths"].to(self.device))
        first = self.tokenizer.encode_prompt("", chat=False)
        prefix_B1 = torch.tensor([first] * len(sources), device=self.device)
        return self.model.begin(prefix_B1, *memory)

    def _groups(self, lengths: Sequence[int], same: bool = False) -> Iterator[list[int]]:
        """Indices in batches of similar length or, with `same`, of equal length, so that prefixes need no padding."""
        training = self.recipe.training
        size = training.eval_knobs.batch_size or training.evaluation_batch_size
        order = sorted(range(len(lengths)), key=lambda index: lengths[index])
        runs = [list(run) for _, run in itertools.groupby(order, key=lambda index: lengths[index] if same else 0)]
        for run in runs:
            yield from (run[start : start + size] for start in range(0, len(run), size))

    def _encoded(self, text: str) -> Ids:
        """The encoder's input tokens (S,), or the prefix (P,) of a decoder-only model."""
        if self.model.encoder is None:
            ids = self.tokenizer.encode_prompt(text, self.chat)
        else:
            ids = self.tokenizer.encode(Dialogue.plain("the text", text)).ids.tolist()
        limit = self.recipe.model.max_tokens
        windowed = self.model.decoder is None and self.recipe.training.eval_knobs.sliding_window is not None
        if limit is not None and len(ids) > limit - (self.model.encoder is None) and not windowed:
            raise InputError(f"the text has {len(ids)} tokens; this model has learnable positions for {limit}")
        return _ids(ids)

    def _room(self, prefix: int, most: int) -> int:
        limit = self.recipe.model.max_tokens
        return most if limit is None else min(most, limit - prefix)

    def _windows(self, ids: Ids) -> tuple[Ids, ...]:
        """A source divided into windows as in validation."""
        window = self.recipe.training.eval_knobs.sliding_window
        if window is None:
            return (ids,)
        return tuple(ids[start:end] for start, end in spans(len(ids), window, window // 2))


def _ids(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int64)
