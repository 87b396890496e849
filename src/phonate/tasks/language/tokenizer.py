"""Texts <-> tokens: the tokenizer of a pretrained model, or one that is learnt from the texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError, InputError
from phonate.tasks.language.documents import HALF, Document

BEGIN, END, PAD, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% else %}<|assistant|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LEARNT_FROM = 50_000_000
"""Characters, at most, that a tokenizer is learnt from."""


@dataclass(frozen=True)
class Tokens:
    """A document as the model sees it."""

    ids: NDArray[np.int32]
    """(L,)"""
    scored: NDArray[np.bool_]
    """(L,): which tokens are learnt."""
    characters: NDArray[np.int32]
    """(L,): letters that each learnt token stands for. 0 for the end of a document."""


class TextTokenizer:
    """A fast tokenizer of transformers, with the one way in which a document becomes tokens.

    Plain text: begin, text, end, where the tokenizer has such tokens. A prompt with its response: by the chat
    template, or else the prompt, a line break, the response.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises InputError for a tokenizer that can't say which letters a token stands for."""
        if not getattr(tokenizer, "is_fast", False):
            raise InputError(f"{tokenizer.name_or_path}: its tokenizer has no fast form (tokenizer.json)")
        self.tokenizer = tokenizer

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> TextTokenizer:
        """Byte-pair encoding of bytes (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909), `size` tokens at
        most."""
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
        tokenizer.train_from_iterator(_first(texts, LEARNT_FROM), trainer)
        specials = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
        return cls.read({"tokenizer": tokenizer.to_str(), "specials": specials, "chat_template": _TEMPLATE})

    @classmethod
    def load(cls, name: str) -> TextTokenizer:
        """The tokenizer of the model in a folder or on the hub. Raises InputError where there is none: for some models
        transformers then makes one that knows no text."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as error:  # of a damaged file: each kind of tokenizer has errors of its own
            why = " ".join(str(error).split())
            raise InputError(f"model.name: {name}: no tokenizer can be loaded ({why})") from error
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            raise InputError(f"model.name: {name}: no tokenizer is there (tokenizer.json); save it with the model")
        return cls(tokenizer)

    @classmethod
    def read(cls, exported: Mapping[str, Any]) -> TextTokenizer:
        """What `export` gave."""
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        make: Any = PreTrainedTokenizerFast  # without types
        tokenizer = make(tokenizer_object=Tokenizer.from_str(exported["tokenizer"]), **exported["specials"])
        tokenizer.chat_template = exported["chat_template"]
        return cls(tokenizer)

    def export(self) -> dict[str, Any]:
        """All that `read` needs, as JSON."""
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        specials = {name: str(token) for name in names if (token := getattr(self.tokenizer, name)) is not None}
        template = self.tokenizer.chat_template
        return {"tokenizer": self.tokenizer.backend_tokenizer.to_str(), "specials": specials, "chat_template": template}

    @property
    def fingerprint(self) -> str:
        """Changes with every token."""
        return hashlib.sha256(repr(sorted(self.export().items())).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self.tokenizer)

    @property
    def pad(self) -> int:
        """What fills a batch up. Nothing sees it."""
        found = self.tokenizer.pad_token_id
        return int(found if found is not None else self.tokenizer.eos_token_id or 0)

    @property
    def end(self) -> int | None:
        """The token after which nothing follows."""
        return None if self.tokenizer.eos_token_id is None else int(self.tokenizer.eos_token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def prompt(self, text: str, answered: bool) -> list[int]:
        """What a model is to continue: a prompt that is to be `answered`, or the beginning of a text.

        Raises InputError for what is no text, or where it can't be told from the chat template's own marks.
        """
        if HALF.search(text):
            raise InputError("the prompt is not UTF-8")
        if not answered:
            return [*self._begin, *self._encode(text)[0]]
        if self.tokenizer.chat_template is not None:
            if (mark := self._mark_in(text)) is not None:
                raise InputError(f"the prompt holds {mark!r}, which the chat template means as a mark")
            return self._marked(self._written([{"role": "user", "content": text}], generate=True))
        return [*self._begin, *self._encode(text + "\n")[0]]

    def tokens(self, document: Document) -> Tokens:
        """`document` as tokens. Raises DataError, naming it, where it can't be told from the chat template's own
        marks."""
        if document.prompt is None:
            return _joined(self._begin, *self._encode(document.response), self._finish)
        if self.tokenizer.chat_template is None:
            before = self.prompt(document.prompt, answered=True)
            return _joined(before, *self._encode(document.response), self._finish)
        if (mark := self._mark_in(document.prompt, document.response)) is not None:
            raise DataError(f"{document.id}: holds {mark!r}, which the chat template means as a mark")
        turns = [{"role": "user", "content": document.prompt}, {"role": "assistant", "content": document.response}]
        whole, asked = self._written(turns, generate=False), self._written(turns[:1], generate=True)
        if not whole.startswith(asked) or whole == asked:
            raise InputError(
                "the tokenizer's chat template writes a prompt otherwise when its answer follows, so the two can't be "
                'told apart; give it another template, or write each as one text, {"text": ...}'
            )
        answer = self._marked(whole[len(asked) :])
        # only ever summed over a document, so one token may stand for all letters
        characters = np.array([len(document.response)] + [0] * (len(answer) - 1), dtype=np.int32)
        return _joined(self._marked(asked), answer, characters, [])

    def _mark_in(self, *texts: str) -> str | None:
        """A special token that is written in one of `texts`."""
        return next((mark for mark in self.tokenizer.all_special_tokens if any(mark in text for text in texts)), None)

    @property
    def _begin(self) -> list[int]:
        return [] if self.tokenizer.bos_token_id is None else [int(self.tokenizer.bos_token_id)]

    @property
    def _finish(self) -> list[int]:
        return [] if self.end is None else [self.end]

    def _encode(self, text: str) -> tuple[list[int], NDArray[np.int32]]:
        """Tokens of `text` alone, in which the names of special tokens are text like any other, and the letters that
        each stands for."""
        found = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
        # Several tokens of one letter (the bytes of an Arabic one, say) share its place: the last one counts it.
        ends = np.array([end for _, end in found["offset_mapping"]], dtype=np.int32)
        ends = np.maximum.accumulate(ends) if len(ends) else ends
        return [int(one) for one in found["input_ids"]], np.diff(ends, prepend=np.int32(0)).astype(np.int32)

    def _written(self, turns: list[dict[str, str]], generate: bool) -> str:
        """Turns as the chat template writes them, and with `generate` the mark of the answer to come."""
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generate))
        except TemplateError as error:
            raise InputError(f"the tokenizer's chat template refuses a prompt and a response: {error}") from error

    def _marked(self, text: str) -> list[int]:
        """Tokens of what a chat template wrote, its marks being special tokens."""
        return [int(one) for one in self.tokenizer(text, add_special_tokens=False)["input_ids"]]


def _joined(before: Sequence[int], ids: Sequence[int], characters: NDArray[np.int32], after: Sequence[int]) -> Tokens:
    """A text between what is not learnt and its end, which is."""
    return Tokens(
        np.array([*before, *ids, *after], dtype=np.int32),
        np.array([False] * len(before) + [True] * (len(ids) + len(after))),
        np.concatenate([np.zeros(len(before), np.int32), characters, np.zeros(len(after), np.int32)]),
    )


def _first(texts: Iterable[str], characters: int) -> Iterable[str]:
    """Texts, until there are so many characters."""
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return
