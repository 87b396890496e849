"""Texts and codes as the token sequences that Higgs Audio v2 was trained on.

A sample is five turns: system; user: what the reference says; assistant: the reference; user: the text to speak;
assistant: the speech. Ids are those that the released chat template and processor give, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError
from phonate.data.dialogues.rows import SURROGATE
from phonate.data.dialogues.tokenizer import TextTokenizer
from phonate.tasks.cloning.sequences.sequence import CODEBOOKS, Ints, delayed

SYSTEM = "Generate audio following instruction."
"""The system message where there is no other; the model's template demands one."""
_NAMES = {
    "begin": "<|begin_of_text|>",
    "header": "<|start_header_id|>",
    "header_end": "<|end_header_id|>",
    "turn_end": "<|eot_id|>",
    "audio_start": "<|audio_out_bos|>",
    "audio_end": "<|audio_eos|>",
    "frame": "<|AUDIO_OUT|>",
    "delay": "<|reserved_special_token_6|>",
}


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that are no text."""

    begin: int
    """<|begin_of_text|>"""
    header: int
    """<|start_header_id|>"""
    header_end: int
    """<|end_header_id|>"""
    turn_end: int
    """<|eot_id|>"""
    audio_start: int
    """<|audio_out_bos|>"""
    audio_end: int
    """<|audio_eos|>"""
    frame: int
    """<|AUDIO_OUT|>: stands where a frame of codes is read."""
    delay: int
    """<|reserved_special_token_6|>: the same for the last K - 1 frames of an audio."""


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
    heard: FloatArray | None = None
    """(T, C) Whisper's features of the reference, for models that were trained with them."""

    @property
    def heard_positions(self) -> Ints:
        """(T,): where `heard` is added: at the frames with a code in the first codebook."""
        count = 0 if self.heard is None else len(self.heard)
        return self.frame_positions[1 : count + 1]


class CloningTokenizer:
    """The tokenizer of a Higgs Audio v2 model, and how samples are written with it.

    Raises InputError if one of the special tokens is missing.
    """

    def __init__(self, text: TextTokenizer, codebooks: int = CODEBOOKS) -> None:
        self.text = text
        self.codebooks = codebooks
        vocabulary = text.tokenizer.get_vocab()
        for token in _NAMES.values():
            if token not in vocabulary:
                raise InputError(
                    f"model.name: {text.tokenizer.name_or_path}: its tokenizer has no token {token}; a model of Higgs "
                    "Audio v2 is expected"
                )
        self.specials = SpecialTokens(**{name: int(vocabulary[token]) for name, token in _NAMES.items()})
        self._never_text = tuple({*text.tokenizer.get_added_vocab(), *text.tokenizer.all_special_tokens})

    @classmethod
    def load(cls, name: str, codebooks: int = CODEBOOKS) -> CloningTokenizer:
        """The tokenizer of the model in a folder or on the hub. Raises InputError if there is none, or another one."""
        return cls(TextTokenizer.load(name), codebooks)

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
        heard: FloatArray | None = None,
    ) -> Prompt:
        """The prompt that makes the model speak a text in the voice of a reference, whose codes (T, K) are not delayed.
        For the texts see `script`; `heard`: Whisper's features (T, C) of the reference."""
        return replace(self.fill(self.script(reference_text, target_text, system), reference_codes), heard=heard)

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
        special, delay = self.specials, self.codebooks - 1
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
        found = self.text.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        return [int(one) for one in found["input_ids"]], [int(end) for _, end in found["offset_mapping"]]
