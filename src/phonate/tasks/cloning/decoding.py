"""From a prompt to codes: the delay pattern, sampling, the loop with its cache, sound as a stream, several callers.

Frame 0 is the begin of stream in all codebooks; codebook k lags k frames behind the first. Where the first codebook
ends, the others end one frame after another (Copet et al. 2023, https://arxiv.org/abs/2306.05284).

transformers' `generate` gives codes only at its end, takes one batch from start to finish, draws all rows from one
generator, and may draw begin or end of stream in the middle of a sentence. Here utterances join and leave between any
two frames, those of several callers too (continuous batching; Yu et al. 2022, Orca,
https://www.usenix.org/conference/osdi22/presentation/yu).

Shapes: R rows (utterances that are being generated), L tokens, K codebooks, V logits of a codebook.
"""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from phonate.audio.decoding import FloatArray
from phonate.audio.higgs_codec import CodecStream
from phonate.compute.device import compile_mode
from phonate.compute.resources import CompileModel
from phonate.config.errors import InputError, PhonateError
from phonate.config.randomness import derived_seed
from phonate.tasks.cloning.network import Attention, Paths, WhisperProjector, run_layers
from phonate.tasks.cloning.sequences import Prompt

# ----------------------------------------------------------------------- Choosing the codes of a frame

REPETITION_WINDOW = 7
"""Frames in which repetitions are counted; the value of the released model, as is the next one."""
REPETITIONS = 2
"""A code that is that often in the window is drawn again."""
NO_CODE = -1
"""In a window: begin or end of stream, or nothing yet."""
_LOWEST_TEMPERATURE = 1e-2
"""Logits are divided by the temperature; a lower one would overflow 16-bit floats."""


@dataclass(frozen=True)
class Sampling:
    """How codes are drawn. The defaults are those of the released model's examples."""

    temperature: float = 0.3
    """0 takes the likeliest code of each codebook; 1 samples from the model's distribution."""
    top_k: int = 50
    """Draw from this many likeliest codes of each codebook; 0: from all."""
    top_p: float = 0.95
    """Draw from the likeliest codes that reach this probability together; 1: from all."""

    def __post_init__(self) -> None:
        """Raises InputError for a number out of range."""
        if not (self.temperature == 0.0 or _LOWEST_TEMPERATURE <= self.temperature < math.inf):
            raise InputError(f"temperature {self.temperature:g}: must be 0, or {_LOWEST_TEMPERATURE:g} or more")
        if self.top_k < 0:
            raise InputError(f"top k {self.top_k}: must be 0 (all codes) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top p {self.top_p:g}: must be above 0 and at most 1")


def sampling(temperature: float | None = None, top_k: int | None = None, top_p: float | None = None) -> Sampling:
    """How codes are drawn; None: the default. Raises InputError for a number out of range."""
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return Sampling(**{name: value for name, value in options.items() if value is not None})


def allowed(logits_RKV: Tensor, may_end_R: Tensor, begin: int, end: int) -> Tensor:
    """Logits with -inf for the codes that no codebook may choose at this place: begin of stream in all of them, end of
    stream in all but the first, whose end the others follow, and in the first one where a row may not end."""
    allowed_RKV = logits_RKV.clone()
    allowed_RKV[:, :, begin] = -torch.inf
    allowed_RKV[:, 1:, end] = -torch.inf
    allowed_RKV[:, 0, end].masked_fill_(~may_end_R, -torch.inf)
    return allowed_RKV


def choose(logits_RKV: Tensor, options: Sequence[Sampling], draws_RK2: Tensor, recent_RWK: Tensor, end: int) -> Tensor:
    """One code (R, K) for each codebook of each row, independent of the other rows.

    Temperature, top k and top p apply to each codebook. A drawn code that is in the last frames `REPETITIONS` times is
    drawn again from the model's own distribution (repetition aware sampling; Chen et al. 2024,
    https://arxiv.org/abs/2406.05370), the end of stream excepted.

    Args:
        logits_RKV: What `allowed` returns, in fp32.
        options: Of each row.
        draws_RK2: Uniform numbers in [0, 1), for the first and for the second draw.
        recent_RWK: The last codes of each codebook, or `NO_CODE`.
        end: The end of stream.
    """
    likeliest_RK = logits_RKV.argmax(dim=-1)
    if all(one.temperature == 0.0 for one in options):
        return likeliest_RK
    device, size = logits_RKV.device, logits_RKV.shape[-1]
    temperature_R = torch.tensor([one.temperature for one in options], device=device)
    top_k_R = torch.tensor([one.top_k or size for one in options], device=device)
    top_p_R = torch.tensor([one.top_p for one in options], device=device)
    greedy_R1 = temperature_R[:, None] == 0.0
    scaled_RKV = logits_RKV / temperature_R.where(temperature_R > 0.0, 1.0)[:, None, None]
    drawn_RK = _draw(scaled_RKV, top_k_R, top_p_R, draws_RK2[..., 0])
    repeated_RK = (recent_RWK == drawn_RK[:, None]).sum(dim=1) >= REPETITIONS
    if bool(repeated_RK.any()):
        going_on_RKV = logits_RKV.clone()
        going_on_RKV[..., end] = -torch.inf
        every_R = torch.full_like(top_k_R, size)
        again_RK = _draw(going_on_RKV, every_R, torch.ones_like(top_p_R), draws_RK2[..., 1])
        drawn_RK = torch.where(repeated_RK, again_RK, drawn_RK)
    return torch.where(greedy_R1, likeliest_RK, drawn_RK)


def _draw(logits_RKV: Tensor, top_k_R: Tensor, top_p_R: Tensor, draws_RK: Tensor) -> Tensor:
    """Codes (R, K) by inversion: where the cumulative probability of the candidates, likeliest first, passes the draw.
    So a row's codes depend on its own draws alone, not on how many rows there are."""
    sorted_RKV, order_RKV = logits_RKV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(logits_RKV.shape[-1], device=logits_RKV.device)
    sorted_RKV = sorted_RKV.masked_fill(rank_V >= top_k_R[:, None, None], -torch.inf)
    probabilities_RKV = sorted_RKV.softmax(dim=-1)
    before_RKV = probabilities_RKV.cumsum(dim=-1) - probabilities_RKV
    candidate_RKV = (before_RKV < top_p_R[:, None, None]) & (probabilities_RKV > 0.0)
    candidate_RKV[..., 0] = True
    cumulative_RKV = (probabilities_RKV * candidate_RKV).cumsum(dim=-1)
    passed_RK1 = draws_RK[..., None] * cumulative_RKV[..., -1:]
    # rounding may leave the draw behind the last candidate
    index_RK = torch.minimum((cumulative_RKV <= passed_RK1).sum(dim=-1), candidate_RKV.sum(dim=-1) - 1)
    return order_RKV.gather(-1, index_RK[..., None])[..., 0]


# -------------------------- The delay pattern of one utterance as it is generated. Shapes: K codebooks


class DelayedStream:
    """The frames of an utterance: the model's choices go in, frames for the model and complete frames of codes come
    out."""

    def __init__(self, codebooks: int, begin: int, end: int, limit: int) -> None:
        """`begin`, `end`: ids of begin and end of stream; `limit`: frames of codes, at most."""
        self.codebooks, self.begin, self.end, self.limit = codebooks, begin, end, limit
        self.cut_short = False
        """Whether the limit ended the utterance, not the model."""
        self._frames: list[NDArray[np.int64]] = []
        """From frame 1 on, (K,) each."""
        self._ended: int | None = None
        """The frame in which the first codebook ended."""

    @property
    def may_end(self) -> bool:
        """Whether the first codebook may end now."""
        return self._ended is None

    @property
    def done(self) -> bool:
        """Whether all codes are there; the frames that would follow only say so."""
        if self._ended is None:
            return False
        return self._ended == 1 or len(self._frames) >= self._ended + self.codebooks - 2

    def accept(self, chosen_K: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int16] | None]:
        """Take the model's choice for the next frame.

        Returns:
            The frame (K,) as the model reads it next, and the codes (K,) that are complete with it; None: there are
            none.
        """
        number = len(self._frames) + 1
        frame_K = chosen_K.copy()
        if self._ended is None and frame_K[0] == self.end:
            self._ended = number
        elif self._ended is None and number > self.limit:
            self._ended, self.cut_short = number, True
        frame_K[number:] = self.begin
        if self._ended is not None:
            frame_K[: number - self._ended + 1] = self.end
        self._frames.append(frame_K)
        first = len(self._frames) - self.codebooks
        if first < 0 or (self._ended is not None and first >= self._ended - 1):
            return frame_K, None
        codes = [self._frames[first + book][book] for book in range(self.codebooks)]
        return frame_K, np.array(codes, dtype=np.int16)

    def recent(self) -> NDArray[np.int64]:
        """The last codes (W, K) of each codebook, `NO_CODE` in place of begin, end and nothing."""
        window = np.full((REPETITION_WINDOW, self.codebooks), NO_CODE, dtype=np.int64)
        last = self._frames[-REPETITION_WINDOW:]
        if last:
            window[-len(last) :] = np.stack(last)
        window[(window == self.begin) | (window == self.end)] = NO_CODE
        return window


# ----------------- Generating the codes of several utterances at once, with a cache of keys and values

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

    def stay(self) -> None:
        """Tell torch's compiler that the tensors stay where they are, so that CUDA graphs may write to them."""
        for held in (*self._keys, *self._values):
            torch._dynamo.mark_static_address(held)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for held in (*self._keys, *self._values):
            held[target, :, :length] = held[source, :, :length]


_FEWEST_KEYS = 256
"""That a compiled step reads. From there they double: five shapes for 4096 tokens."""


def _next_logits(model: Any, cache: SlotCache, frames_RK: Tensor, positions_R: Tensor, length: int) -> Tensor:
    """Logits (R, K V) after the next frame of every row, which reads the first `length` places of the cache."""
    body = model.model
    cache.decode(positions_R, length)
    visible_RL = torch.arange(length, device=positions_R.device) <= positions_R[:, None]
    hidden_R1H = body.embed_audio_tokens(frames_RK[:, None])
    turns = body.rotary_emb(hidden_R1H, positions_R[:, None])
    for layer in body.layers:
        hidden_R1H = layer(
            hidden_R1H, position_embeddings=turns, attention_mask=visible_RL[:, None, None], past_key_values=cache
        )
    logits: Tensor = model.audio_lm_head(body.norm(hidden_R1H)[:, 0]).float()
    return logits


class Decoder(Generic[OwnerT]):
    """A model with room for `slots` utterances of `length` tokens, prompt included. Not for several threads."""

    def __init__(
        self,
        model: nn.Module,
        slots: int,
        length: int,
        projector: WhisperProjector | None = None,
        compile_model: CompileModel = False,
    ) -> None:
        """
        Args:
            model: transformers' HiggsAudioV2ForConditionalGeneration, whose linear layers may have adapters.
            slots: Utterances.
            length: Tokens of an utterance.
            projector: For the features that prompts have, if the model was trained with them.
            compile_model: torch.compile the step of a frame, when it is first run; cuda_graphs: and replay its kernels.

        Raises InputError for CUDA graphs without CUDA.
        """
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
        mode = compile_mode(compile_model, self.device, "compile_model")
        self._next_logits, self._compiled = _next_logits, bool(compile_model)
        if compile_model:
            self._next_logits = torch.compile(_next_logits, fullgraph=True, dynamic=True, mode=mode)
        if compile_model == "cuda_graphs":
            self._cache.stay()

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
        steps, frames = [], []
        for row, chosen_K in zip(self._rows, self._chosen(), strict=True):
            frame, codes = row.stream.accept(chosen_K)
            frames.append(frame)
            steps.append(Step(row.job.owner, codes, row.stream.done, row.stream.cut_short))
        going = [index for index, row in enumerate(self._rows) if not row.stream.done]
        frames_RK = torch.from_numpy(np.stack(frames))[self._keep(going)]
        if self._rows:
            self._read(frames_RK.to(self.device))
        return steps

    def leave(self, owner: OwnerT) -> None:
        """Drop what is generated for `owner`."""
        self._keep([index for index, row in enumerate(self._rows) if row.job.owner is not owner])

    def _tokens(self, prompt: Prompt) -> NDArray[np.int64]:
        """(L, 2 + K): of a prompt and of the begin of its speech the ids, a hash of Whisper's features where they are
        heard, and the frames where they stand."""
        tokens = np.zeros((len(prompt.input_ids) + 1, 2 + self.codebooks), dtype=np.int64)
        tokens[:-1, 0] = prompt.input_ids
        if prompt.whisper is not None:
            tokens[prompt.whisper_positions, 1] = hash(prompt.whisper.tobytes())
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
        if self.projector is not None and prompt.whisper is not None:
            new = prompt.whisper_positions >= start
            positions_E = torch.from_numpy(prompt.whisper_positions[new] - start).to(device)
            features = self.projector(torch.from_numpy(prompt.whisper[new]).to(device))
            embedded_LH.index_add_(0, positions_E, features.to(embedded_LH.dtype))
        embedded_1LH = embedded_LH[None]
        visible = torch.ones(length, length, dtype=torch.bool, device=device).tril()[start:]
        mask = torch.zeros_like(visible, dtype=embedded_LH.dtype).masked_fill_(~visible, -torch.inf)
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
        codes_RK = choose(logits, options, draws.to(self.device), recent.to(self.device), self.end)
        chosen: NDArray[np.int64] = codes_RK.cpu().numpy()
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
        count, positions = len(self._rows), [row.position for row in self._rows]
        length = max(positions) + 1
        if self._compiled:  # all slots, and keys of few lengths: shapes return, so that graphs do
            idle = self.slots - count
            frames_RK = functional.pad(frames_RK, (0, 0, 0, idle), value=self.begin)
            positions += [self.length - 1] * idle  # which no prompt reaches, so that none is overwritten
            length = min(max(_FEWEST_KEYS, 1 << (length - 1).bit_length()), self.length)
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        positions_R = torch.tensor(positions, device=self.device)
        logits = self._next_logits(self.model, self._cache, frames_RK, positions_R, length)
        self._logits[:count] = logits[:count].view(count, self.codebooks, self.codebook_size)
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


_FIRST, _LONGEST = 4, 32
"""Frames of the first chunk, which is wanted soon, and of the later ones, which double up to here: each costs the codec
its context once more."""


# --------------------------------------- Frames of codes to chunks of sound, while the frames are made


def sound(frames: Iterable[NDArray[np.int16]], codec: CodecStream) -> Iterator[FloatArray]:
    """Chunks of samples (n,) of frames (K,), which may be none; joined they are what the codec makes of all frames."""
    held: list[NDArray[np.int16]] = []
    size, pushed = _FIRST, False
    for frame in frames:
        held.append(frame)
        if len(held) < size:
            continue
        chunk, pushed = codec.push(np.stack(held)), True
        held, size = [], min(_LONGEST, 2 * size)
        if len(chunk):
            yield chunk
    rest = [codec.push(np.stack(held))] if held else []
    if pushed or held:
        rest.append(codec.finish())
    if any(map(len, rest)):
        yield np.concatenate(rest)


# ------------------------------------------- Continuous batching: several callers at once, in a thread


class Generation:
    """The codes of one request, as they are made. `frames` is for one reader; the rest for any thread."""

    def __init__(self, pieces: Sequence[Piece], sampling: Sampling, seed: int) -> None:
        self.cut_short = False
        """Whether a piece reached its limit before the model ended it."""
        self.cancelled = threading.Event()
        self.jobs = deque(Job(piece, sampling, piece_seed(seed, number), self) for number, piece in enumerate(pieces))
        """The pieces that have not been begun."""
        self._frames: queue.SimpleQueue[NDArray[np.int16] | Exception | None] = queue.SimpleQueue()

    def cancel(self) -> None:
        """Stop working on it; `frames` ends."""
        self.cancelled.set()
        self._frames.put(None)

    def frames(self, timeout: float | None = None) -> Iterator[NDArray[np.int16]]:
        """Frames (K,) of codes.

        Raises:
            TimeoutError: None came for `timeout` seconds.
            PhonateError: The request can't be met, or something failed.
        """
        while True:
            try:
                frame = self._frames.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no speech was made for {timeout:g} seconds") from None
            if frame is None or self.cancelled.is_set():
                return
            if isinstance(frame, PhonateError):
                raise frame
            if isinstance(frame, Exception):
                raise PhonateError(f"the model failed: {type(frame).__name__}: {frame}") from frame
            yield frame

    def next_job(self) -> Job[Generation] | None:
        """The next piece; None: there is none."""
        return self.jobs.popleft() if self.jobs else None

    def add(self, step: Step[Generation]) -> None:
        """Take what a step made."""
        self.cut_short |= step.cut_short
        if step.codes is not None:
            self._frames.put(step.codes)

    def end(self, error: Exception | None = None) -> None:
        """There are no more frames, because of `error` if there is one."""
        self._frames.put(error)


class Engine:
    """Works on requests in a thread of its own, in the order in which they came, at most one new one between two
    frames, so that those that are being spoken do not wait long.

    An error of one request is raised by its `frames`; the others go on.
    """

    def __init__(self, decoder: Decoder[Generation]) -> None:
        self._decoder = decoder
        self._waiting: deque[Generation] = deque()
        self._begun: list[Generation] = []
        self._next_pieces: deque[Job[Generation]] = deque()
        """Of requests that were begun; they go before new requests."""
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="phonate-cloning", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Requests that are being worked on."""
        return len(self._begun)

    @property
    def waiting(self) -> int:
        """Requests that have not been begun."""
        return len(self._waiting)

    def submit(self, generation: Generation) -> None:
        """Work on `generation` as soon as there is room. Raises PhonateError after `close`."""
        with self._changed:
            if self._closed:
                raise PhonateError("the service is closed")
            self._waiting.append(generation)
            self._changed.notify()

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._wait():
                self._drop_cancelled()
                if self._decoder.free and (job := self._next()) is not None:
                    try:
                        self._decoder.join(job)
                    except Exception as error:  # noqa: BLE001  # raised in the request's thread
                        self._finish(job.owner, error)
                self._step()
        finally:  # nobody may wait for a thread that is gone
            with self._changed:
                self._closed = True
                for generation in (*self._begun, *self._waiting):
                    generation.end(PhonateError("the service stopped"))

    def _wait(self) -> bool:
        """Wait for something to do. False: it is closed, and there is nothing left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._begun or self._closed)
            return bool(self._waiting or self._begun)

    def _drop_cancelled(self) -> None:
        with self._changed:
            for one in [one for one in self._waiting if one.cancelled.is_set()]:
                self._waiting.remove(one)
        for one in [one for one in self._begun if one.cancelled.is_set()]:
            self._decoder.leave(one)
            self._finish(one)

    def _next(self) -> Job[Generation] | None:
        if self._next_pieces:
            return self._next_pieces.popleft()
        with self._changed:
            if not self._waiting:
                return None
            generation = self._waiting.popleft()
            self._begun.append(generation)
        job = generation.next_job()
        if job is None:
            self._finish(generation)
        return job

    def _step(self) -> None:
        try:
            steps = self._decoder.step()
        except Exception as error:  # noqa: BLE001  # raised in the threads of all requests it concerns
            for generation in self._decoder.owners:
                self._decoder.leave(generation)
                self._finish(generation, error)
            return
        for step in steps:
            step.owner.add(step)
            if step.done:
                job = step.owner.next_job()
                if job is None:
                    self._finish(step.owner)
                else:
                    self._next_pieces.append(job)

    def _finish(self, generation: Generation, error: Exception | None = None) -> None:
        self._begun.remove(generation)
        if any(job.owner is generation for job in self._next_pieces):
            self._next_pieces = deque(job for job in self._next_pieces if job.owner is not generation)
        generation.end(error)
