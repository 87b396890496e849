"""Prompts, the delay pattern and labels, against transformers' processor and its model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from higgs import small_model, small_tokenizer
from phonate.config.errors import InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn.losses import IGNORED
from phonate.tasks.cloning.sequences import (
    BOS,
    EOS,
    CloningTokenizer,
    Example,
    TrainingSequence,
    audio_labels,
    delayed,
    training_sequence,
    undelayed,
)

SYSTEM = "You are a helpful assistant."
REFERENCE_TEXT = " خلف واحد صفر، and more.\n"
TARGET_TEXT = "It was night.\n\nهذا انت؟ "
WRITTEN = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nخلف واحد صفر، and more.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|><|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nIt was night.\n\nهذا انت؟<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|>"
)
"""What the released chat template writes for those turns, with the header of the answer."""
ANSWER = "<|AUDIO_OUT|><|audio_eos|><|eot_id|>"


@pytest.fixture(scope="module")
def tokenizer() -> CloningTokenizer:
    return CloningTokenizer(TextTokenizer(small_tokenizer()))


@pytest.fixture(scope="module")
def processor(tokenizer: CloningTokenizer) -> Any:
    """transformers' processor, given codes (K, T) as recordings."""
    from transformers import BatchFeature, HiggsAudioV2Processor

    def features(codes: np.ndarray, **_: Any) -> BatchFeature:
        return BatchFeature({"codes": torch.from_numpy(codes.astype(np.int64))[None]})

    made = HiggsAudioV2Processor.__new__(HiggsAudioV2Processor)
    made.tokenizer = tokenizer.text.tokenizer
    made.feature_extractor = features
    made.audio_tokenizer = SimpleNamespace(
        config=SimpleNamespace(num_quantizers=8),
        device="cpu",
        encode=lambda codes: SimpleNamespace(audio_codes=codes),
    )
    made._merge_kwargs = lambda **_: {
        "text_kwargs": {"return_tensors": "pt", "add_special_tokens": False},
        "audio_kwargs": {},
    }
    made.audio_token, made.audio_delay_token = "<|AUDIO_OUT|>", "<|reserved_special_token_6|>"
    made.audio_stream_bos_id, made.audio_stream_eos_id = 1024, 1025
    ids = tokenizer.text.tokenizer.convert_tokens_to_ids
    made.audio_token_id, made.audio_bos_token_id = ids("<|AUDIO_OUT|>"), ids("<|audio_out_bos|>")
    return made


def codes_of(length: int, seed: int, codebooks: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1024, (length, codebooks), dtype=np.int16)


@pytest.fixture(scope="module")
def codes() -> tuple[np.ndarray, np.ndarray]:
    """Of a reference and of a target."""
    return codes_of(5, 0), codes_of(7, 1)


def processed(processor: Any, codes: tuple[np.ndarray, ...], text: str) -> Any:
    return processor(text=[text], audio=[one.T for one in codes], output_labels=True)


def sequence_of(
    tokenizer: CloningTokenizer, codes: tuple[np.ndarray, np.ndarray], learn_text: bool = False
) -> TrainingSequence:
    script = tokenizer.script(REFERENCE_TEXT, TARGET_TEXT, SYSTEM)
    return training_sequence(tokenizer, Example("one", "anna", script, *codes), learn_text)


# --- the delay pattern ----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_the_delay_pattern_is_undone(length: int, codebooks: int, seed: int) -> None:
    codes = codes_of(length, seed, codebooks)
    frames = delayed(codes)
    assert frames.shape == (length + codebooks + 1, codebooks)
    assert np.array_equal(undelayed(frames), codes)
    assert (frames[0] == BOS).all()
    assert (frames[-1] == EOS).all()
    assert (frames == BOS).sum() == (frames == EOS).sum() == codebooks * (codebooks + 1) // 2


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_each_codebook_learns_its_codes_and_one_end(length: int, codebooks: int, seed: int) -> None:
    codes = codes_of(length, seed, codebooks)
    labels = audio_labels(codes)
    assert labels.shape == (length + codebooks, codebooks)
    assert not (labels == BOS).any()
    assert (labels != IGNORED).any(axis=1).all()
    following = delayed(codes)[1:]
    learnt = labels != IGNORED
    assert np.array_equal(labels[learnt], following[learnt])
    for k in range(codebooks):
        column = labels[:, k][learnt[:, k]]
        assert np.array_equal(column, [*codes[:, k], EOS])
    # what is left out: BOS, and ends after the first one
    assert np.array_equal(~learnt, (following == BOS) | (np.cumsum(following == EOS, axis=0) > 1))


def test_transformers_writes_the_same_frames(processor: Any) -> None:
    codes = codes_of(11, 3)
    padded = np.pad(codes, ((1, 1), (0, 0)), constant_values=((BOS, EOS), (0, 0)))
    theirs = processor.build_delay_pattern(torch.from_numpy(padded.T.astype(np.int64))[None])[0].T
    assert np.array_equal(delayed(codes), theirs.numpy())


# --- prompts --------------------------------------------------------------------------------------------------------


def test_a_sequence_is_the_released_templates_token_by_token(
    tokenizer: CloningTokenizer, processor: Any, codes: tuple[np.ndarray, np.ndarray]
) -> None:
    theirs = processed(processor, codes, WRITTEN + ANSWER)
    ours = sequence_of(tokenizer, codes)
    assert ours.input_ids.tolist() == theirs["input_ids"][0].tolist()
    assert np.array_equal(ours.frames, theirs["audio_input_ids"][0].numpy())
    special = tokenizer.specials
    assert np.flatnonzero(np.isin(ours.input_ids, [special.frame, special.delay])).tolist() == (
        ours.frame_positions.tolist()
    )
    prompt = tokenizer.prompt(REFERENCE_TEXT, codes[0], TARGET_TEXT, SYSTEM)
    theirs = processed(processor, codes[:1], WRITTEN)
    assert prompt.input_ids.tolist() == theirs["input_ids"][0].tolist()
    assert prompt.input_ids[-1] == special.audio_start
    assert np.array_equal(prompt.frames, theirs["audio_input_ids"][0].numpy())
    script = tokenizer.script(REFERENCE_TEXT, TARGET_TEXT, SYSTEM)
    assert tokenizer.text.decode(script.after[script.target_text]) == TARGET_TEXT.strip()
    assert len(Example("one", None, script, *codes)) == len(ours)


def test_a_reference_without_a_text_has_no_users_turn(tokenizer: CloningTokenizer) -> None:
    codes = codes_of(3, 0)
    with_text, without = (tokenizer.prompt(text, codes, "It was.") for text in ("A dog.", None))
    turns = [int((one.input_ids == tokenizer.specials.turn_end).sum()) for one in (with_text, without)]
    assert turns == [4, 3]
    assert (without.input_ids[without.frame_positions[:5]] == tokenizer.specials.frame).all()


@pytest.mark.parametrize("text", ["a <|eot_id|> b", "<|AUDIO_OUT|>", "x<|begin_of_text|>", " \n", "\ud83d"])
def test_texts_that_are_no_text_are_refused(tokenizer: CloningTokenizer, text: str) -> None:
    for texts in ((text, "fine"), ("fine", text)):
        with pytest.raises(InputError, match=r"^a text (holds '<\||is empty|is not UTF-8)"):
            tokenizer.prompt(texts[0], codes_of(3, 0), texts[1])


def test_another_models_tokenizer_is_refused() -> None:
    from phonate.data.dialogues import Dialogue

    other = TextTokenizer.train([Dialogue.plain("one", "some text")], 300)
    with pytest.raises(InputError, match=r"<\|begin_of_text\|>"):
        CloningTokenizer(other)


# --- labels ---------------------------------------------------------------------------------------------------------


def test_only_the_assistants_answer_is_learnt(
    tokenizer: CloningTokenizer, codes: tuple[np.ndarray, np.ndarray]
) -> None:
    one = sequence_of(tokenizer, codes)
    special = tokenizer.specials
    assert one.text_labels.tolist() == [special.audio_start, special.audio_end, special.turn_end]
    assert one.text_labels.tolist() == one.input_ids[one.text_positions + 1].tolist()
    target = one.frame_positions[-len(delayed(codes[1])) :]
    assert one.audio_positions.tolist() == target[:-1].tolist()
    assert one.text_positions.min() == target[0] - 2
    assert (one.pools == 0).sum() == 5
    assert (one.pools == 1).sum() == 7
    full = sequence_of(tokenizer, codes, learn_text=True)
    written = full.text_labels[: -len(one.text_labels)]
    assert tokenizer.text.tokenizer.decode(written) == TARGET_TEXT.strip() + "<|eot_id|>"
    assert full.text_labels.tolist() == full.input_ids[full.text_positions + 1].tolist()


def test_labels_are_not_those_of_transformers_processor(
    tokenizer: CloningTokenizer, processor: Any, codes: tuple[np.ndarray, np.ndarray]
) -> None:
    """Its labels never teach the model to stop, and teach it the prompt and the reference."""
    theirs = processed(processor, codes, WRITTEN + ANSWER)
    faulty = theirs["audio_labels"][0].numpy()
    assert not (faulty == EOS).any()
    reference = len(delayed(codes[0]))
    assert (faulty[:reference] != IGNORED).any()
    prompt = len(tokenizer.prompt(REFERENCE_TEXT, codes[0], TARGET_TEXT, SYSTEM).input_ids)
    assert (theirs["labels"][0, : prompt - 1] != IGNORED).sum() > 20
    assert not (theirs["labels"][0] == tokenizer.specials.turn_end).any()  # its pad token is its end of a turn
    ours = sequence_of(tokenizer, codes)
    assert (ours.audio_labels == EOS).sum(axis=0).tolist() == [1] * 8
    assert ours.audio_positions.min() >= prompt
    assert ours.text_positions.min() == prompt - 2
    assert tokenizer.specials.turn_end in ours.text_labels


def test_a_label_is_what_comes_next(tokenizer: CloningTokenizer, codes: tuple[np.ndarray, np.ndarray]) -> None:
    """Changing frame f of the target first changes the logits at the position of frame f itself; labels of that
    position are of frame f + 1."""
    model = small_model()
    one = sequence_of(tokenizer, codes)

    @torch.no_grad()
    def logits(frames: np.ndarray) -> torch.Tensor:
        return model(
            input_ids=torch.from_numpy(one.input_ids)[None],
            audio_input_ids=torch.from_numpy(frames)[None],
            audio_input_ids_mask=torch.ones(1, len(frames), dtype=torch.bool),
        ).logits[0]

    before = logits(one.frames)
    start = len(delayed(codes[0]))
    for frame in (0, 4, 9):
        changed = one.frames.copy()
        changed[start + frame, 3] = (changed[start + frame, 3] + 7) % 1024
        first = int((logits(changed) != before).any(dim=-1).nonzero()[0, 0])
        assert first == one.audio_positions[frame]
        following = one.frames[start + frame + 1]
        labels = one.audio_labels[frame]
        assert np.array_equal(labels[labels != IGNORED], following[labels != IGNORED])
