"""Dialogues as tokens: what is learnt, and what can't be told apart and is refused."""

from __future__ import annotations

import pytest

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[language]'", allow_module_level=True)

import numpy as np

from phonate.config.errors import DataError, InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.data.dialogues import Audio, Dialogue, Text, Turn, dialogue_of

PLAIN = [Dialogue.plain(str(i), f"The {colour} hen saw {i} more.") for i, colour in enumerate(["red", "blue", "green"])]
PAIR = Dialogue.pair("x", "What is it?", "It is red.")
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATION = [
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "It is red."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


def conversation(*messages: dict[str, object]) -> Dialogue:
    return dialogue_of("rows.jsonl:7", {"messages": list(messages)})


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(PLAIN, 320)


@pytest.fixture(scope="module")
def without_template(tokenizer: TextTokenizer) -> TextTokenizer:
    return TextTokenizer.from_exported({**tokenizer.export(), "chat_template": None})


def learnt(tokenizer: TextTokenizer, dialogue: Dialogue) -> list[str]:
    """The text of each run of learnt tokens."""
    tokens = tokenizer.encode(dialogue)
    edges = np.flatnonzero(np.diff(tokens.learnt, prepend=False, append=False))
    return [str(tokenizer.tokenizer.decode(tokens.ids[a:b])) for a, b in edges.reshape(-1, 2)]


def test_the_response_and_its_end_are_learnt(tokenizer: TextTokenizer, without_template: TextTokenizer) -> None:
    assert learnt(tokenizer, PAIR) == ["It is red.<|end|>"]
    tokens = tokenizer.encode(PAIR)
    assert tokenizer.tokenizer.decode(tokens.ids) == "<|begin|><|user|>What is it?<|assistant|>It is red.<|end|>"
    assert tokenizer.encode_prompt("What is it?", chat=True) == tokens.ids[~tokens.learnt].tolist()
    assert learnt(without_template, PAIR) == ["It is red.<|end|>"]
    assert without_template.tokenizer.decode(without_template.encode(PAIR).ids) == (
        "<|begin|>What is it?\nIt is red.<|end|>"
    )
    assert learnt(tokenizer, Dialogue.plain("x", "It is red.")) == ["It is red.<|end|>"]
    for one in (tokenizer, without_template):
        assert one.encode(PAIR).characters.sum() == len("It is red.")
        assert one.encode(Dialogue.plain("x", "Grüße مرحبا 👍🏽")).characters.sum() == len("Grüße مرحبا 👍🏽")


def test_all_learnt_turns_of_a_conversation_are(tokenizer: TextTokenizer) -> None:
    dialogue = conversation(*CONVERSATION)
    assert learnt(tokenizer, dialogue) == ["It is red.<|end|>", "Yes.<|end|>"]
    tokens = tokenizer.encode(dialogue)
    assert tokenizer.tokenizer.decode(tokens.ids) == (
        "<|begin|><|user|>What is it?<|assistant|>It is red.<|end|><|user|>Sure?<|assistant|>Yes.<|end|>"
    )
    assert tokens.characters.sum() == len("It is red.") + len("Yes.")
    context = tokenizer.encode_context(dialogue)
    assert context == tokens.ids[: len(context)].tolist()
    assert tokenizer.tokenizer.decode(context).endswith("Sure?<|assistant|>")
    context_only = conversation(*CONVERSATION[:1], {**CONVERSATION[1], "weight": 0}, *CONVERSATION[2:])
    assert learnt(tokenizer, context_only) == ["Yes.<|end|>"]
    unanswered = conversation(*CONVERSATION, {"role": "user", "content": "Thanks."})
    assert np.array_equal(tokenizer.encode(unanswered).ids, tokens.ids)


def test_system_messages_are_context(tokenizer: TextTokenizer) -> None:
    """A tokenizer trained on conversations with system messages has a template for them."""
    dialogue = conversation(SYSTEM, *CONVERSATION[:2])
    trained = TextTokenizer.train([dialogue], 320)
    assert trained.tokenizer.decode(trained.encode(dialogue).ids) == (
        "<|begin|>Be brief.<|user|>What is it?<|assistant|>It is red.<|end|>"
    )
    assert learnt(trained, dialogue) == ["It is red.<|end|>"]
    assert TextTokenizer.train([PAIR], 320).tokenizer.chat_template == tokenizer.tokenizer.chat_template


def test_a_conversation_needs_a_template(without_template: TextTokenizer) -> None:
    for messages in (CONVERSATION, [SYSTEM, *CONVERSATION[:2]]):
        with pytest.raises(DataError, match=r"rows\.jsonl:7: .*chat template"):
            without_template.encode(conversation(*messages))


def test_audio_is_refused_by_name(tokenizer: TextTokenizer, without_template: TextTokenizer) -> None:
    user = Turn("user", (Text("Say this"), Audio("wavs/one.flac")), learnt=False)
    dialogue = Dialogue("rows.json:3", (user, Turn("assistant", (Text("It is."),), learnt=True)))
    for one in (tokenizer, without_template):
        with pytest.raises(DataError, match=r"^rows\.json:3: message 1 .*wavs/one\.flac"):
            one.encode(dialogue)


def test_special_tokens_are_text_in_texts_and_refused_in_conversations(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode(Dialogue.plain("x", "<|end|> is a mark")).ids
    assert (ids == tokenizer.end).sum() == 1
    with pytest.raises(DataError, match=r"^p\.jsonl:3: .*<\|end\|>"):
        tokenizer.encode(Dialogue.pair("p.jsonl:3", "is <|end|> one?", "yes"))
    with pytest.raises(InputError, match=r"<\|end\|>"):
        tokenizer.encode_prompt("is <|end|> one?", chat=True)
    assert tokenizer.end not in tokenizer.encode_prompt("is <|end|> one?", chat=False)
    for chat in (True, False):
        with pytest.raises(InputError, match="UTF-8"):
            tokenizer.encode_prompt("half \udcff", chat)


def test_a_template_that_changes_earlier_messages_is_refused(tokenizer: TextTokenizer) -> None:
    template = "{% for m in messages %}{{ loop.length }}{{ m['content'] }}{% endfor %}"
    changing = TextTokenizer.from_exported({**tokenizer.export(), "chat_template": template})
    with pytest.raises(DataError, match=r"^x: .*chat template"):
        changing.encode(PAIR)


def test_a_conversation_that_the_template_refuses_is_named(tokenizer: TextTokenizer) -> None:
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    strict = TextTokenizer.from_exported({**tokenizer.export(), "chat_template": template})
    with pytest.raises(DataError, match=r"rows\.jsonl:7: .*No system role"):
        strict.encode(conversation(SYSTEM, *CONVERSATION[:2]))
