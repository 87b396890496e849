"""Generating the codes of several utterances at once, with a cache of keys and values.

transformers' `generate` gives codes only at its end, takes one batch from start to finish, draws all rows from one
generator, and may draw begin or end of stream in the middle of a sentence. Here utterances join and leave between any
two frames. Shapes: R rows (utterances that are being generated), L tokens, K codebooks, V logits of a codebook.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.tasks.cloning.decoding.delay import DelayedStream
from phonate.tasks.cloning.decoding.sampling import Sampling, allowed, choose
from phonate.tasks.cloning.network.dual_ffn import Attention, Paths, run_layers
from phonate.tasks.cloning.network.whisper_projector import WhisperProjector
from phonate.tasks.cloning.sequences.tokens import Prompt

OwnerT = TypeVar("OwnerT")


@dataclass(frozen=True)
class Piece:
    """A text, or a part of a long one, that is generated in one go."""

    prompt: Prompt
    limit: int
    """Frames, at most."""


def piece_seed(seed: int, number: int) -> int:
    """The seed of a text's part, so that it gives the same codes wherever it is generated."""
    return derived_seed("clone", seed, number)


@dataclass(frozen=True)
class Job(Generic[OwnerT]):
    """An utterance to generate."""

    piece: Piece
    sampling: Sampling
    seed: int
    owner: OwnerT
    """Whose it is; returned with its codes."""


@dataclass(frozen=True)
class Step(Generic[OwnerT]):
    """What one step made for one utterance."""

    owner: OwnerT
    codes: NDArray[np.int16] | None
    """(K,) of the next frame; None: none is complete yet."""
    done: bool
    cut_short: bool
    """Whether it is done because the limit was reached."""


@dataclass
class _Row(Generic[OwnerT]):
    job: Job[OwnerT]
    stream: DelayedStream
    position: int
    """Of the next token."""
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        # on the CPU, so that every device draws the same numbers
        self.generator = torch.Generator().manual_seed(self.job.seed)


class SlotCache:
    """Keys and values of all layers, (slots, heads, length, head size) each, allocated once. It takes the place of
    transformers' `Cache` in the model's forward."""

    def __init__(self, model: Any, slots: int, length: int) -> None:
        config, weight = model.config, model.model.embed_tokens.weight
        shape = (slots, config.num_key_value_heads, length, config.head_dim)
        layers = range(config.num_hidden_layers)
        self._keys = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in layers]
        self._values = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in layers]
        self._rows = slice(0, 0)
        self._positions: Tensor | None = None
        self._start = self._length = 0

    def prefill(self, slot: int, start: int, length: int) -> None:
        """The next forward writes the positions from `start` to `length` of one slot, and reads those before too."""
        self._rows, self._positions = slice(slot, slot + 1), None
        self._start, self._length = start, length

    def decode(self, positions_R: Tensor, length: int) -> None:
        """The next forward writes one position in each of the first R slots, and reads the first `length` ones."""
        self._rows, self._positions, self._length = slice(0, len(positions_R)), positions_R, length

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store (R, heads, L, head size); returns all that there is for these rows."""
        held_keys, held_values = self._keys[layer][self._rows], self._values[layer][self._rows]
        if self._positions is None:
            held_keys[:, :, self._start : self._length] = keys
            held_values[:, :, self._start : self._length] = values
        else:
            rows = torch.arange(len(self._positions), device=keys.device)
            held_keys[rows, :, self._positions] = keys[:, :, 0]
            held_values[rows, :, self._positions] = values[:, :, 0]
        return held_keys[:, :, : self._length], held_values[:, :, : self._length]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for held in (*self._keys, *self._values):
            held[target, :, :length] = held[source, :, :length]


class Decoder(Generic[OwnerT]):
    """A model with room for `slots` utterances of `length` tokens, prompt included. Not for several threads."""

    def __init__(self, model: nn.Module, slots: int, length: int, projector: WhisperProjector | None = None) -> None:
        """`model`: transformers' HiggsAudioV2ForConditionalGeneration, whose linear layers may have adapters.
        `projector`: for the features that prompts have, if the model was trained with them."""
        self.model: Any = model
        self.projector = projector
        config: Any = model.config
        self.codebooks, self.codebook_size = int(config.num_codebooks), int(config.codebook_size)
        self.begin, self.end = int(config.audio_stream_bos_id), int(config.audio_stream_eos_id)
        self.slots, self.length = slots, length
        self._cache = SlotCache(model, slots, length)
        shape = (slots, self.codebooks, self.codebook_size)
        self._logits = torch.zeros(shape, device=self.device)
        self._read_in = [np.empty((0, 2 + self.codebooks), dtype=np.int64)] * slots
        """Tokens of the prompt that each slot's keys and values begin with, also after its utterance has left."""
        self._rows: list[_Row[OwnerT]] = []

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device: torch.device = self.model.model.embed_tokens.weight.device
        return device

    @property
    def owners(self) -> list[OwnerT]:
        """Whose utterances are being generated."""
        return [row.job.owner for row in self._rows]

    @property
    def free(self) -> int:
        """Utterances that may join."""
        return self.slots - len(self._rows)

    def check(self, job: Job[Any]) -> None:
        """Raise InputError for an utterance that does not fit."""
        prompt, limit = job.piece.prompt, job.piece.limit
        tokens = len(prompt.input_ids)
        if tokens + limit + self.codebooks > self.length:
            raise InputError(
                f"the prompt has {tokens} tokens ({len(prompt.frames)} of the reference), up to {limit} frames "
                f"are to follow, at most {self.length - self.codebooks} together; shorten the reference or the text"
            )

    @torch.inference_mode()
    def join(self, job: Job[OwnerT]) -> None:
        """Begin an utterance: its prompt is read now. Raises InputError as `check`; there must be a free slot."""
        assert self.free, "no free slot"
        self.check(job)
        slot, tokens = len(self._rows), self._tokens(job.piece.prompt)
        length, start = len(tokens), self._reuse(slot, tokens)
        self._read_in[slot] = tokens[:start]
        self._cache.prefill(slot, start, length)
        hidden_H = self._read_prompt(job.piece.prompt, tokens, start)
        self._read_in[slot] = tokens
        self._logits[slot] = self._heads(hidden_H[None])[0]
        stream = DelayedStream(self.codebooks, self.begin, self.end, job.piece.limit)
        self._rows.append(_Row(job, stream, length))

    @torch.inference_mode()
    def step(self) -> list[Step[OwnerT]]:
        """The next frame of every utterance; those that are done leave."""
        if not self._rows:
            return []
        made, frames = [], []
        for row, chosen_K in zip(self._rows, self._chosen(), strict=True):
            frame, codes = row.stream.accept(chosen_K)
            frames.append(frame)
            made.append(Step(row.job.owner, codes, row.stream.done, row.stream.cut_short))
        going = [index for index, row in enumerate(self._rows) if not row.stream.done]
        frames_RK = torch.from_numpy(np.stack(frames))[self._keep(going)]
        if self._rows:
            self._read(frames_RK.to(self.device))
        return made

    def leave(self, owner: OwnerT) -> None:
        """Drop what is generated for `owner`."""
        self._keep([index for index, row in enumerate(self._rows) if row.job.owner is not owner])

    def _tokens(self, prompt: Prompt) -> NDArray[np.int64]:
        """(L, 2 + K): of a prompt and of the begin of its speech the ids, a hash of Whisper's features where they are
        heard, and the frames where they stand."""
        tokens = np.zeros((len(prompt.input_ids) + 1, 2 + self.codebooks), dtype=np.int64)
        tokens[:-1, 0] = prompt.input_ids
        if prompt.heard is not None:
            tokens[prompt.heard_positions, 1] = hash(prompt.heard.tobytes())
        tokens[prompt.frame_positions, 2:] = prompt.frames
        tokens[-1] = self.model.config.audio_token_id, 0, *[self.begin] * self.codebooks
        return tokens

    def _read_prompt(self, prompt: Prompt, tokens: NDArray[np.int64], start: int) -> Tensor:
        """Run the model on a prompt from the token `start` on; returns the last one's hidden state (H,)."""
        model, device, length = self.model.model, self.device, len(tokens)
        embedded_LH = model.embed_tokens(torch.from_numpy(tokens[start:, 0]).to(device))
        audio = np.append(prompt.frame_positions, length - 1)
        audio = audio[audio >= start]
        text = np.setdiff1d(np.arange(start, length), audio)
        paths = Paths(*(torch.from_numpy(positions - start).to(device) for positions in (audio, text)))
        frames = torch.from_numpy(tokens[audio, 2:]).to(device)
        embedded_LH.index_copy_(0, paths.audio, model.embed_audio_tokens(frames))
        if self.projector is not None and prompt.heard is not None:
            new = prompt.heard_positions >= start
            heard = torch.from_numpy(prompt.heard_positions[new] - start).to(device)
            features = self.projector(torch.from_numpy(prompt.heard[new]).to(device))
            embedded_LH.index_add_(0, heard, features.to(embedded_LH.dtype))
        embedded_1LH = embedded_LH[None]
        seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()[start:]
        mask = torch.zeros_like(seen, dtype=embedded_LH.dtype).masked_fill_(~seen, -torch.inf)
        places = torch.arange(start, length, device=device)[None]
        turns = model.rotary_emb(embedded_1LH, places)
        attention = Attention(mask=mask[None, None])
        hidden_1LH = run_layers(model.layers, embedded_1LH, turns, attention, paths, self._cache)
        hidden_H: Tensor = model.norm(hidden_1LH)[0, -1]
        return hidden_H

    def _reuse(self, slot: int, tokens: NDArray[np.int64]) -> int:
        """Copy to `slot` what some slot has of the keys and values of a prompt; returns how many tokens that are.

        Requests for the same voice share all but the text, so that the reference is read once (as in RadixAttention,
        Zheng et al. 2024, https://arxiv.org/abs/2312.07104).
        """
        shared = [_common_prefix(held, tokens) for held in self._read_in]
        source = max(range(self.slots), key=lambda index: (shared[index], index == slot))
        if source != slot:
            self._cache.move(source, slot, shared[source])
        return min(shared[source], len(tokens) - 1)  # the last one's hidden state is wanted

    def _chosen(self) -> NDArray[np.int64]:
        """The codes (R, K) that the rows choose for their next frames."""
        streams = [row.stream for row in self._rows]
        may_end = torch.tensor([stream.may_end for stream in streams], device=self.device)
        logits = allowed(self._logits[: len(streams)], may_end, self.begin, self.end)
        draws = torch.stack([torch.rand(self.codebooks, 2, generator=row.generator) for row in self._rows])
        recent = torch.from_numpy(np.stack([stream.recent() for stream in streams]))
        options = [row.job.sampling for row in self._rows]
        found = choose(logits, options, draws.to(self.device), recent.to(self.device), self.end)
        chosen: NDArray[np.int64] = found.cpu().numpy()
        return chosen

    def _keep(self, going: list[int]) -> list[int]:
        """Drop all rows but those at the indices `going`, and close the gaps, so that the rows are the first slots.
        Returns the indices in their new order."""
        count = len(going)
        behind = [index for index in going if index >= count]
        order = [slot if slot in going else behind.pop() for slot in range(count)]
        for slot, source in enumerate(order):
            if slot != source:
                self._cache.move(source, slot, self._rows[source].position)
                self._logits[slot] = self._logits[source]
                self._read_in[slot] = self._read_in[source]
        self._rows = [self._rows[index] for index in order]
        return order

    def _read(self, frames_RK: Tensor) -> None:
        """Run the model on the next frame of every row."""
        positions_R = torch.tensor([row.position for row in self._rows], device=self.device)
        longest = max(row.position for row in self._rows) + 1
        seen_RL = torch.arange(longest, device=self.device) <= positions_R[:, None]
        self._cache.decode(positions_R, longest)
        output = self.model.model(
            audio_input_ids=frames_RK[:, None],
            attention_mask=seen_RL[:, None, None],
            position_ids=positions_R[:, None],
            past_key_values=self._cache,
        )
        self._logits[: len(self._rows)] = self._heads(output.last_hidden_state[:, -1])
        for row in self._rows:
            row.position += 1

    def _heads(self, hidden_RH: Tensor) -> Tensor:
        """Logits (R, K, V) in fp32."""
        logits: Tensor = self.model.audio_lm_head(hidden_RH).float()
        return logits.view(len(hidden_RH), self.codebooks, self.codebook_size)


def _common_prefix(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Tokens that two prompts begin with."""
    count = min(len(left), len(right))
    differs = (left[:count] != right[:count]).any(axis=1)
    return int(differs.argmax()) if differs.any() else count


def run(decoder: Decoder[OwnerT], jobs: Iterable[Job[OwnerT]]) -> Iterator[Step[OwnerT]]:
    """What all `jobs` make, as many at once as there is room for. Raises InputError for one that does not fit."""
    waiting = deque(jobs)
    while waiting or decoder.owners:
        while waiting and decoder.free:
            decoder.join(waiting.popleft())
        yield from decoder.step()
