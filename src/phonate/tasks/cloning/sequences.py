"""Pairs as the model reads them: tokens, frames under the delay pattern, and labels.

Shapes: T code frames of an audio, K codebooks, F = T + K + 1 frames under the delay pattern, L tokens of a sequence.

A sample is five turns: system; user: what the reference says; assistant: the reference; user: the text to speak;
assistant: the speech. Ids are those that the released chat template and processor give, token by token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.data.dialogues import SURROGATE
from phonate.nn.losses import IGNORED
from phonate.tasks.cloning.settings import CODEBOOK_SIZE as CODEBOOK_SIZE
from phonate.tasks.cloning.settings import CODEBOOKS as CODEBOOKS

# --------------- Codes <-> frames under the delay pattern, and samples as the model is trained on them

Ints = NDArray[np.int64]

BOS, EOS = CODEBOOK_SIZE, CODEBOOK_SIZE + 1
"""What stands before and after the codes of every codebook."""
NO_POOL, REFERENCE, TARGET = -1, 0, 1
"""Which voice a frame belongs to; none: the frames around the codes."""


def delayed(codes: NDArray[np.integer]) -> Ints:
    """Codes (T, K) as frames (T + K + 1, K) under the delay pattern (Copet et al. 2023,
    https://arxiv.org/abs/2306.05284): codebook k holds BOS k + 1 times, its T codes, and EOS K - k times."""
    length, codebooks = codes.shape
    frames = np.full((length + codebooks + 1, codebooks), EOS, dtype=np.int64)
    for k in range(codebooks):
        frames[: k + 1, k] = BOS
        frames[k + 1 : k + 1 + length, k] = codes[:, k]
    return frames


def undelayed(frames: NDArray[np.integer]) -> Ints:
    """Codes (T, K) of frames (T + K + 1, K), whatever their first and last frame hold."""
    length, codebooks = len(frames) - frames.shape[1] - 1, frames.shape[1]
    assert length >= 0, "fewer frames than the delay pattern has"
    return np.stack([frames[k + 1 : k + 1 + length, k] for k in range(codebooks)], axis=1).astype(np.int64)


def audio_labels(codes: NDArray[np.integer]) -> Ints:
    """What is to be predicted at each frame of `delayed(codes)` but the last: (T + K, K).

    The codes and, once for each codebook, the EOS after them; `IGNORED` elsewhere. BOS is never a label: generation
    writes it without asking the model. Labels are shifted: row f is of frame f + 1.
    """
    length, codebooks = codes.shape
    labels = np.full((length + codebooks, codebooks), IGNORED, dtype=np.int64)
    for k in range(codebooks):
        labels[k : k + length, k] = codes[:, k]
        labels[k + length, k] = EOS
    return labels


@dataclass(frozen=True)
class TrainingSequence:
    """A sample as the model reads it, and what it is to predict. Labels are shifted already: `*_labels[i]` is what
    comes after `*_positions[i]`."""

    id: str
    speaker: str | None
    input_ids: Ints
    """(L,)"""
    frames: Ints
    """(A, K): of the reference, then of the target."""
    frame_positions: Ints
    """(A,) where they stand in `input_ids`."""
    text_positions: Ints
    """(M,)"""
    text_labels: Ints
    """(M,)"""
    audio_positions: Ints
    """(P,): the frames of the target but the last."""
    audio_labels: Ints
    """(P, K), `IGNORED` where a codebook has none."""
    pools: Ints
    """(A,): REFERENCE or TARGET for frames with a code in the first codebook, else NO_POOL."""

    def __len__(self) -> int:
        """L."""
        return len(self.input_ids)


@dataclass(frozen=True)
class Example:
    """A sample: its texts as tokens, and its codes."""

    id: str
    speaker: str | None
    script: Script
    reference_codes: NDArray[np.integer]
    """(T, K)"""
    target_codes: NDArray[np.integer]
    """(T, K)"""
    whisper: Path | None = None
    """A .npy file with Whisper's features of the reference (T, C), if they are wanted."""

    def __len__(self) -> int:
        """Tokens of its sequence, L."""
        codes = (self.reference_codes, self.target_codes)
        # frames, <|audio_eos|> and <|eot_id|>
        spoken = sum(len(one) + one.shape[1] + 3 for one in codes)
        length: int = len(self.script.before) + len(self.script.after) + spoken
        return length


def training_sequence(tokenizer: CloningTokenizer, example: Example, learn_text: bool = False) -> TrainingSequence:
    """The sequence of a sample.

    Audio labels are those of the target; nothing of the prompt, the reference included, has any. Text labels are what
    the model writes in its own turn: <|audio_out_bos|> after the header, <|audio_eos|> after the last frame, <|eot_id|>
    after that; with `learn_text` also the tokens of the target's text and the <|eot_id|> that ends it, although they
    are the user's.
    """
    prompt = tokenizer.fill(example.script, example.reference_codes)
    frames = delayed(example.target_codes)
    start = len(prompt.input_ids)
    end = start + len(frames)
    input_ids = np.concatenate([prompt.input_ids, tokenizer.response_ids(len(frames))])
    positions = [start - 2, end - 1, end]
    if learn_text:
        script = example.script
        offset = start - len(script.after)
        positions = [*range(offset + script.target_text.start - 1, offset + script.target_text.stop), *positions]
    text_positions = np.array(positions, dtype=np.int64)
    return TrainingSequence(
        id=example.id,
        speaker=example.speaker,
        input_ids=input_ids,
        frames=np.concatenate([prompt.frames, frames]),
        frame_positions=np.concatenate([prompt.frame_positions, np.arange(start, end)]),
        text_positions=text_positions,
        text_labels=input_ids[text_positions + 1],
        audio_positions=np.arange(start, end - 1),
        audio_labels=audio_labels(example.target_codes),
        pools=np.concatenate([_pools(example.reference_codes, REFERENCE), _pools(example.target_codes, TARGET)]),
    )


def _pools(codes: NDArray[np.integer], pool: int) -> Ints:
    """(T + K + 1,): `pool` where the first codebook of the frames holds a code."""
    length, codebooks = codes.shape
    pools = np.full(length + codebooks + 1, NO_POOL, dtype=np.int64)
    pools[1 : length + 1] = pool
    return pools


# --------------------------- Texts and codes as the token sequences that Higgs Audio v2 was trained on

SYSTEM = "Generate audio following instruction."
"""The system message where there is no other; the model's template demands one."""
_SPECIAL_TOKENS = {
    "begin": "<|begin_of_text|>",
    "header": "<|start_header_id|>",
    "header_end": "<|end_header_id|>",
    "turn_end": "<|eot_id|>",
    "audio_start": "<|audio_out_bos|>",
    "audio_end": "<|audio_eos|>",
    "frame": "<|AUDIO_OUT|>",
    "delay": "<|reserved_special_token_6|>",
}
"""`frame` stands where a frame of codes is read, `delay` in its place for the last K - 1 frames of an audio."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that are no text, as `_SPECIAL_TOKENS` writes them."""

    begin: int
    header: int
    header_end: int
    turn_end: int
    audio_start: int
    audio_end: int
    frame: int
    delay: int


@dataclass(frozen=True)
class Script:
    """The tokens of a prompt without those of its reference."""

    before: Ints
    """Up to and including the <|audio_out_bos|> of the reference."""
    after: Ints
    """The user's turn with the text to speak, up to and including the <|audio_out_bos|> of the speech."""
    target_text: slice
    """Where in `after` the tokens of the text itself stand."""


@dataclass(frozen=True)
class Prompt:
    """What generation starts from: all up to and including <|audio_out_bos|> of the speech to write."""

    input_ids: Ints
    """(L,)"""
    frames: Ints
    """(A, K): the reference's, under the delay pattern."""
    frame_positions: Ints
    """(A,) where they stand in `input_ids`."""
    whisper: FloatArray | None = None
    """(T, C) Whisper's features of the reference, for models that were trained with them."""

    @property
    def whisper_positions(self) -> Ints:
        """(T,): where `whisper` is added: at the frames with a code in the first codebook."""
        count = 0 if self.whisper is None else len(self.whisper)
        return self.frame_positions[1 : count + 1]


class CloningTokenizer:
    """The tokenizer of a Higgs Audio v2 model, and how samples are written with it.

    Raises InputError if one of the special tokens is missing.
    """

    def __init__(self, text: TextTokenizer) -> None:
        self.text = text
        vocabulary = text.tokenizer.get_vocab()
        for token in _SPECIAL_TOKENS.values():
            if token not in vocabulary:
                raise InputError(
                    f"model.name: {text.tokenizer.name_or_path}: its tokenizer has no token {token}; a model of Higgs "
                    "Audio v2 is expected"
                )
        self.specials = SpecialTokens(**{name: int(vocabulary[token]) for name, token in _SPECIAL_TOKENS.items()})
        self._never_text = tuple({*text.tokenizer.get_added_vocab(), *text.tokenizer.all_special_tokens})

    @classmethod
    def load(cls, name: str) -> CloningTokenizer:
        """The tokenizer of the model in a folder or on the hub. Raises InputError if there is none, or another one."""
        return cls(TextTokenizer.load(name))

    @property
    def fingerprint(self) -> str:
        """A hash of the vocabulary and the special tokens."""
        return self.text.fingerprint

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self.text)

    def prompt(
        self,
        reference_text: str | None,
        reference_codes: NDArray[np.integer],
        target_text: str,
        system: str | None = None,
        whisper: FloatArray | None = None,
    ) -> Prompt:
        """The prompt that makes the model speak a text in the voice of a reference, whose codes (T, K) are not delayed.
        For the texts see `script`; `whisper`: Whisper's features (T, C) of the reference."""
        return replace(self.fill(self.script(reference_text, target_text, system), reference_codes), whisper=whisper)

    def script(self, reference_text: str | None, target_text: str, system: str | None = None) -> Script:
        """The texts of a prompt as tokens.

        Args:
            reference_text: What the reference says; None: unknown, its turn is left out.
            target_text: What is to be spoken.
            system: The system message; None: `SYSTEM`.

        Raises InputError for a text that is empty, not UTF-8, or holds a special token.
        """
        before = [self.specials.begin, *self._text_turn("system", system or SYSTEM)[0]]
        if reference_text is not None:
            before += self._text_turn("user", reference_text)[0]
        before += self._speech_header()
        turn, text = self._text_turn("user", target_text)
        after = [*turn, *self._speech_header()]
        return Script(np.array(before, dtype=np.int64), np.array(after, dtype=np.int64), text)

    def fill(self, script: Script, reference_codes: NDArray[np.integer]) -> Prompt:
        """The prompt of a script and the codes (T, K) of its reference."""
        frames = delayed(reference_codes)
        input_ids = np.concatenate([script.before, self.response_ids(len(frames)), script.after])
        return Prompt(input_ids, frames, len(script.before) + np.arange(len(frames)))

    def response_ids(self, frames: int) -> Ints:
        """(F + 2,): the tokens of an assistant's turn after <|audio_out_bos|>: a place for each frame, <|audio_eos|>
        and <|eot_id|>."""
        special, delay = self.specials, CODEBOOKS - 1
        return np.array(
            [special.frame] * (frames - delay) + [special.delay] * delay + [special.audio_end, special.turn_end],
            dtype=np.int64,
        )

    def _speech_header(self) -> list[int]:
        """An assistant's header, with <|audio_out_bos|>."""
        return [*self._header("assistant"), *self._encode("\n\n")[0], self.specials.audio_start]

    def _header(self, role: str) -> list[int]:
        return [self.specials.header, *self._encode(role)[0], self.specials.header_end]

    def _text_turn(self, role: str, text: str) -> tuple[list[int], slice]:
        """A turn of text, and where in it the tokens of the text itself stand."""
        text = self._checked(text)
        header = self._header(role)
        # In one piece with the line breaks, as the template's output is tokenised
        ids, ends = self._encode(f"\n\n{text}")
        start = len(header) + next(i for i, end in enumerate(ends) if end > 2)
        return [*header, *ids, self.specials.turn_end], slice(start, len(header) + len(ids))

    def _checked(self, text: str) -> str:
        """`text` as the template writes it. Raises InputError for one that can't be written."""
        stripped = text.strip()
        if not stripped:
            raise InputError("a text is empty")
        if SURROGATE.search(stripped):
            raise InputError("a text is not UTF-8")
        if (token := next((one for one in self._never_text if one in stripped), None)) is not None:
            raise InputError(f"a text holds {token!r}, a special token of the model; take it out")
        return stripped

    def _encode(self, text: str) -> tuple[list[int], Sequence[int]]:
        """Ids of a text, and where in it each of them ends."""
        encoding = self.text.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        return [int(one) for one in encoding["input_ids"]], [int(end) for _, end in encoding["offset_mapping"]]


# ------------------- The files from which transformers' `AutoProcessor` makes the processor of a model

_AUDIO = "<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>"
CHAT_TEMPLATE = (
    "<|begin_of_text|>"
    "{%- for message in messages -%}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>{{ '\\n\\n' }}"
    "{%- if message['content'] is string -%}"
    "{{ message['content'] | trim }}"
    "{%- else -%}"
    "{%- for part in message['content'] -%}"
    f"{{%- if part['type'] == 'audio' -%}}{_AUDIO}{{%- else -%}}{{{{ part['text'] | trim }}}}{{%- endif -%}}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "<|eot_id|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}<|audio_out_bos|>"
    "{%- endif -%}"
)
"""For models whose files have none: each message is a turn, an audio part the audio of it."""


def write_processor(folder: Path, tokenizer: Any, codec: str) -> None:
    """Write `tokenizer` (of transformers) with its chat template, and the configuration of the processor.

    `codec`: a folder, absolute, or a name on the hub.
    """
    tokenizer.chat_template = tokenizer.chat_template or CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    content = {
        "processor_class": "HiggsAudioV2Processor",
        "feature_extractor": {
            "feature_extractor_type": "DacFeatureExtractor",
            "feature_size": 1,
            "sampling_rate": 24000,
            "hop_length": 1,  # the codec pads by itself
        },
        "audio_tokenizer": {
            "audio_tokenizer_class": "HiggsAudioV2TokenizerModel",
            "audio_tokenizer_name_or_path": codec,
        },
    }
    (folder / "processor_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
