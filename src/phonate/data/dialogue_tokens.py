"""Dialogues <-> tokens: the tokenizer of a pretrained model, or one trained on the texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.compute.remote import missing_model
from phonate.config.errors import DataError, InputError, tolerate_broken_torchaudio
from phonate.data.dialogues import SURROGATE, Dialogue

BEGIN, END, PAD, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% else %}<|assistant|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# A separate template, used only for corpora with system messages: the template is part of the fingerprint, and runs
# on prompts and responses are to keep theirs.
_SYSTEM_TEMPLATE = _TEMPLATE.replace(
    "{% if message['role'] == 'user' %}",
    "{% if message['role'] == 'system' %}{{ message['content'] }}{% elif message['role'] == 'user' %}",
)
TRAINING_CHARACTERS = 50_000_000
"""Characters that a tokenizer is trained on, at most."""


@dataclass(frozen=True)
class Tokens:
    """A dialogue as token ids."""

    ids: NDArray[np.int32]
    """(L,)"""
    learnt: NDArray[np.bool_]
    """(L,): which tokens are training targets."""
    characters: NDArray[np.int32]
    """(L,): characters that each learnt token stands for; 0 for markers. A turn written by a chat template has all of
    its characters on its first token."""


class TextTokenizer:
    """A fast tokenizer of transformers, and how a dialogue becomes tokens.

    Plain text: begin, text, end, where the tokenizer has such tokens. A conversation: by the chat template. Without a
    template, a prompt and its response are the prompt, a line break and the response.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises InputError for a slow tokenizer, which can't map tokens to characters."""
        if not getattr(tokenizer, "is_fast", False):
            raise InputError(f"{tokenizer.name_or_path}: its tokenizer has no fast form (tokenizer.json)")
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, dialogues: Sequence[Dialogue], size: int) -> TextTokenizer:
        """Train byte-level byte-pair encoding (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909) with at most
        `size` tokens."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[BEGIN, END, PAD, USER, ASSISTANT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        texts = (turn.text for dialogue in dialogues for turn in dialogue.turns)
        tokenizer.train_from_iterator(_first(texts, TRAINING_CHARACTERS), trainer)
        specials = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
        has_system = any(turn.role == "system" for dialogue in dialogues for turn in dialogue.turns)
        template = _SYSTEM_TEMPLATE if has_system else _TEMPLATE
        return cls.from_exported({"tokenizer": tokenizer.to_str(), "specials": specials, "chat_template": template})

    @classmethod
    def load(cls, name: str) -> TextTokenizer:
        """The tokenizer of the model in a folder or on the hub.

        Raises InputError if there is none; for some models transformers would then make an empty one.
        """
        tolerate_broken_torchaudio()
        from transformers import AutoTokenizer

        if why := missing_model(name):
            raise InputError(f"model.name: {name}: no tokenizer can be loaded ({why})")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as error:  # damaged files: each kind of tokenizer raises its own errors
            why = " ".join(str(error).split())
            raise InputError(f"model.name: {name}: no tokenizer can be loaded ({why})") from error
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            raise InputError(f"model.name: {name}: no tokenizer (tokenizer.json); save it with the model")
        return cls(tokenizer)

    @classmethod
    def from_exported(cls, exported: Mapping[str, Any]) -> TextTokenizer:
        """The tokenizer that `export` described."""
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        make: Any = PreTrainedTokenizerFast  # untyped
        tokenizer = make(tokenizer_object=Tokenizer.from_str(exported["tokenizer"]), **exported["specials"])
        tokenizer.chat_template = exported["chat_template"]
        return cls(tokenizer)

    def export(self) -> dict[str, Any]:
        """What `from_exported` needs, as JSON."""
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        specials = {name: str(token) for name in names if (token := getattr(self.tokenizer, name)) is not None}
        template = self.tokenizer.chat_template
        return {"tokenizer": self.tokenizer.backend_tokenizer.to_str(), "specials": specials, "chat_template": template}

    @property
    def fingerprint(self) -> str:
        """A hash of the vocabulary, the special tokens and the template."""
        return hashlib.sha256(repr(sorted(self.export().items())).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self.tokenizer)

    @property
    def pad(self) -> int:
        """The id used for padding."""
        id = self.tokenizer.pad_token_id
        return int(id if id is not None else self.tokenizer.eos_token_id or 0)

    @property
    def end(self) -> int | None:
        """The id of the end-of-sequence token, if there is one."""
        return None if self.tokenizer.eos_token_id is None else int(self.tokenizer.eos_token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def encode_prompt(self, text: str, chat: bool) -> list[int]:
        """The ids that generation starts from: a user's message (`chat`), or the beginning of a text.

        Raises InputError for invalid text, or text that holds one of the chat template's special tokens.
        """
        if SURROGATE.search(text):
            raise InputError("the prompt is not UTF-8")
        if not chat:
            return [*self._begin, *self._encode(text)[0]]
        if self.tokenizer.chat_template is not None:
            if (token := self._special_token_in(text)) is not None:
                raise InputError(f"the prompt holds {token!r}, a special token of the chat template")
            return self._encode_template(self._apply_template([{"role": "user", "content": text}], generate=True))
        return [*self._begin, *self._encode(text + "\n")[0]]

    def encode_context(self, dialogue: Dialogue) -> list[int]:
        """The ids that generation of a conversation's last learnt turn starts from. Raises DataError as `encode`."""
        self._check(dialogue)
        if self.tokenizer.chat_template is None:
            return self.encode_prompt(dialogue.turns[0].text, chat=True)
        messages = _messages(dialogue)[: len(dialogue.prompt)]
        return self._encode_template(self._written(dialogue, messages, generate=True))

    def encode(self, dialogue: Dialogue) -> Tokens:
        """`dialogue` as tokens, up to its last learnt turn.

        Raises:
            DataError: It holds audio or special tokens of the chat template, it needs a template and there is none, or
                the template can't write it.
        """
        self._check(dialogue)
        texts = [turn.text for turn in dialogue.turns]
        if dialogue.is_plain:
            return _concatenated([_context(self._begin), _target(*self._encode(texts[0]), self._finish)])
        if self.tokenizer.chat_template is not None:
            return self._encode_conversation(dialogue)
        prompt = self.encode_prompt(texts[0], chat=True)
        return _concatenated([_context(prompt), _target(*self._encode(texts[1]), self._finish)])

    def _check(self, dialogue: Dialogue) -> None:
        """Raise DataError for a dialogue that can't be tokens."""
        for number, turn in enumerate(dialogue.turns, start=1):
            if turn.audio:
                raise DataError(f"{dialogue.id}: message {number} holds audio ({turn.audio[0].path}); text is expected")
        if dialogue.is_plain:
            return
        if self.tokenizer.chat_template is None:
            if [turn.role for turn in dialogue.turns] != ["user", "assistant"]:
                raise DataError(
                    f"{dialogue.id}: a conversation of more than a prompt and a response needs a chat template, and "
                    "the tokenizer has none"
                )
        elif (token := self._special_token_in(*(turn.text for turn in dialogue.turns))) is not None:
            raise DataError(f"{dialogue.id}: holds {token!r}, a special token of the chat template")

    def _encode_conversation(self, dialogue: Dialogue) -> Tokens:
        """Turns as the chat template writes them. Every stretch of text is tokenised by itself, so that targets do not
        depend on what follows them."""
        messages = _messages(dialogue)
        parts: list[Tokens] = []
        prefix = ""
        for index, turn in enumerate(dialogue.turns):
            if not turn.learnt:
                continue
            before = self._written(dialogue, messages[:index], generate=True)
            after = self._written(dialogue, messages[: index + 1], generate=False)
            if not before.startswith(prefix) or not after.startswith(before) or after == before:
                raise DataError(
                    f"{dialogue.id}: the tokenizer's chat template changes a message when another one follows; use "
                    'another template, or write the dialogue as one text, {"text": ...}'
                )
            parts.append(_context(self._encode_template(before[len(prefix) :])))
            target = self._encode_template(after[len(before) :])
            # characters are only ever summed over a document, so the first token may count them all
            characters = np.array([len(turn.text)] + [0] * (len(target) - 1), dtype=np.int32)
            parts.append(_target(target, characters, []))
            prefix = after
        return _concatenated(parts)

    def _written(self, dialogue: Dialogue, messages: list[dict[str, str]], generate: bool) -> str:
        """As `_apply_template`, with a DataError that names the dialogue."""
        try:
            return self._apply_template(messages, generate)
        except InputError as error:
            raise DataError(f"{dialogue.id}: {error}") from error

    def _special_token_in(self, *texts: str) -> str | None:
        """A special token that is written out in one of `texts`."""
        tokens = self.tokenizer.all_special_tokens
        return next((token for token in tokens if any(token in text for text in texts)), None)

    @property
    def _begin(self) -> list[int]:
        return [] if self.tokenizer.bos_token_id is None else [int(self.tokenizer.bos_token_id)]

    @property
    def _finish(self) -> list[int]:
        return [] if self.end is None else [self.end]

    def _encode(self, text: str) -> tuple[list[int], NDArray[np.int32]]:
        """Ids of `text`, in which special tokens are text like any other, and the characters each stands for."""
        encoding = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        # Tokens that share a character (the bytes of an Arabic letter, say) share its offsets: the last one counts it.
        ends = np.array([end for _, end in encoding["offset_mapping"]], dtype=np.int32)
        ends = np.maximum.accumulate(ends) if len(ends) else ends
        return [int(one) for one in encoding["input_ids"]], np.diff(ends, prepend=np.int32(0)).astype(np.int32)

    def _apply_template(self, messages: list[dict[str, str]], generate: bool) -> str:
        """Messages as the chat template writes them; with `generate`, followed by the header of an answer."""
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))
        except TemplateError as error:
            raise InputError(f"the tokenizer's chat template refuses a conversation: {error}") from error

    def _encode_template(self, text: str) -> list[int]:
        """Ids of text that the chat template wrote, special tokens recognised."""
        return [int(one) for one in self.tokenizer(text, add_special_tokens=False)["input_ids"]]


def _messages(dialogue: Dialogue) -> list[dict[str, str]]:
    return [{"role": str(turn.role), "content": turn.text} for turn in dialogue.turns]


def _context(ids: Sequence[int]) -> Tokens:
    """Tokens that are not learnt."""
    return Tokens(np.array(ids, dtype=np.int32), np.zeros(len(ids), bool), np.zeros(len(ids), np.int32))


def _target(ids: Sequence[int], characters: NDArray[np.int32], end: Sequence[int]) -> Tokens:
    """Tokens that are learnt, with the end-of-sequence token."""
    length = len(ids) + len(end)
    return Tokens(
        np.array([*ids, *end], dtype=np.int32),
        np.ones(length, bool),
        np.concatenate([characters, np.zeros(len(end), np.int32)]),
    )


def _concatenated(parts: Sequence[Tokens]) -> Tokens:
    return Tokens(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.learnt for part in parts]),
        np.concatenate([part.characters for part in parts]),
    )


def _first(texts: Iterable[str], characters: int) -> Iterable[str]:
    """Texts until they add up to so many characters."""
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return
