"""What the model is given: the speaker is gone from it, the words are not, and chance is the given generator's."""

from __future__ import annotations

import numpy as np
import pytest

from phonate.audio.mel_filters import band_edges
from phonate.audio.settings import AudioConfig
from phonate.tasks.conversion.features import Content, Prosody, Register, cosine_basis, transposed
from phonate.tasks.conversion.settings import PerturbationSettings

AUDIO = AudioConfig()


def vowels(rng: np.random.Generator, frames: int = 200) -> np.ndarray:
    """A smooth, moving spectrum (T, 80) like an utterance's, with pauses."""
    orders = rng.normal(size=(12, 8))
    time = np.cos(np.pi * np.outer(np.linspace(0, 1, frames), np.arange(8) * 3))
    shape = (time @ orders.T) @ cosine_basis(80)[:12] * 0.1 + 0.5
    shape[80:100] = 0.05
    return np.clip(shape, 0.0, 1.0).astype(np.float32)


def test_a_constant_colouring_is_normalised_away() -> None:
    """Another microphone, or another timbre, is a constant on the decibel scale."""
    mel = vowels(np.random.default_rng(0)) * 0.5 + 0.2
    colour = 0.1 * np.cos(np.linspace(0, 3, 80)).astype(np.float32)
    content = Content(AUDIO, 20, normalise=True)
    np.testing.assert_allclose(content(mel + colour), content(mel), atol=0.1)
    raw = Content(AUDIO, 20, normalise=False)
    assert np.abs(raw(mel + colour) - raw(mel)).mean() > 0.05


def test_smoothing_removes_harmonics_and_keeps_formants() -> None:
    envelope = vowels(np.random.default_rng(1))
    harmonics = (0.08 * np.cos(np.pi * np.arange(80) / 2.5)).astype(np.float32)  # a voice of about 190 Hz
    smooth = Content(AUDIO, 20, normalise=False)
    assert np.abs(smooth(envelope + harmonics) - smooth(envelope)).max() < 0.03  # of 0.08; less away from the edges
    np.testing.assert_allclose(smooth(envelope)[:70], envelope[:70], atol=0.03)


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_warp_moves_formants_by_its_factor(factor: float) -> None:
    content = Content(AUDIO, None, normalise=False)
    centres = np.array(band_edges(80, 0.0, 8000.0)[1:-1])
    formant = np.exp(-0.5 * ((centres - 1500.0) / 200.0) ** 2).astype(np.float32)[None]
    fixed = PerturbationSettings(formants=(factor, factor), equaliser_db=0.0, noise_probability=0.0)
    moved = content.perturbed(np.repeat(formant, 5, axis=0), fixed, np.random.default_rng(0))
    assert centres[moved[0].argmax()] == pytest.approx(1500.0 * factor, rel=0.05)


def test_all_chance_comes_from_the_given_generator() -> None:
    mel, settings = vowels(np.random.default_rng(2)), PerturbationSettings(noise_probability=1.0)
    content = Content(AUDIO, 20, normalise=True)
    first, again, other = (content.perturbed(mel, settings, np.random.default_rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).mean() > 0.05
    assert np.abs(first - content(mel)).mean() > 0.05


def test_each_part_of_the_perturbation_changes_the_content() -> None:
    mel = vowels(np.random.default_rng(3))
    content = Content(AUDIO, 20, normalise=False)
    nothing = {"formants": (1.0, 1.0), "equaliser_db": 0.0, "noise_probability": 0.0}
    plain = content.perturbed(mel, PerturbationSettings(**nothing), np.random.default_rng(0))
    for part in ({"formants": (1.2, 1.2)}, {"equaliser_db": 6.0}, {"noise_probability": 1.0}):
        changed = content.perturbed(mel, PerturbationSettings(**{**nothing, **part}), np.random.default_rng(0))
        assert np.abs(changed - plain).mean() > 0.005, part


def test_a_melody_is_moved_to_the_register_of_the_target() -> None:
    melody = 0.2 * np.sin(np.linspace(0, 9, 120))
    man, woman = (np.float32(base) * np.exp(melody).astype(np.float32) for base in (110.0, 210.0))
    man[40:50] = woman[40:50] = 0.0
    register = Register.of(woman)
    assert register is not None
    np.testing.assert_allclose(transposed(man, register), woman, rtol=1e-3)
    silent = np.zeros(9, np.float32)
    np.testing.assert_array_equal(transposed(silent, register), silent)


def test_prosody_draws_harmonics_where_the_mel_has_them() -> None:
    from phonate.audio.processor import AudioProcessor

    time = np.arange(22050) / 22050
    sound = sum(np.sin(2 * np.pi * 200.0 * k * time) for k in range(1, 30)).astype(np.float32)
    mel = AudioProcessor(AudioConfig(preemphasis=0.0)).mel(sound)[40]
    drawn = Prosody(AUDIO)(np.full(3, 200.0, np.float32))
    assert drawn.shape == (3, 82)
    assert np.corrcoef(drawn[0, 2:32], mel[:30])[0, 1] > 0.9
    other = Prosody(AUDIO)(np.full(3, 230.0, np.float32))
    assert np.corrcoef(other[0, 2:32], mel[:30])[0, 1] < 0.6
    unvoiced = Prosody(AUDIO)(np.zeros(3, np.float32))
    assert unvoiced[:, 1].tolist() == [-1.0] * 3
    assert not unvoiced[:, 2:].any()
