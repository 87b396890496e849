"""Voices that are blended of several."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phonate.config.errors import InputError
from phonate.tasks.speech.arrays import ArrayVoice
from phonate.tasks.speech.inference import Synthesiser
from phonate.tasks.speech.model import ParallelModel
from phonate.tasks.speech.settings import SpeechModel

SETTINGS = SpeechModel(width=16, encoder_layers=1, decoder_layers=1, predictor_layers=1, dropout=0.0)
TOKENS = np.array([1, 4, 7, 2, 9, 3])
HOW = ([TOKENS], [np.ones(6, dtype=np.float32)], [np.zeros((6, 2), dtype=np.float32)])


@pytest.fixture(params=[False, True])
def model(request: pytest.FixtureRequest) -> ParallelModel:
    """Of three voices, none of which is trained, without and with a contour of the pitch."""
    torch.manual_seed(0)
    model = ParallelModel(SETTINGS.model_copy(update={"contour": request.param}), 12, 3, 80).eval()
    torch.nn.init.normal_(model.voices.weight)
    if model.contour is not None:
        torch.nn.init.normal_(model.contour.weight)
    torch.nn.init.constant_(model.prosody_head.bias, 1.5)
    return model


def speaker(name: str) -> int | np.ndarray:
    synthesiser = Synthesiser.__new__(Synthesiser)
    synthesiser.speakers = ["anna", "ben", "a:b+c"]
    return synthesiser.speaker(name)


def test_a_blend_is_said_with_the_mean_of_the_vectors(model: ParallelModel) -> None:
    shares = speaker("anna:3 + ben:1")
    assert np.allclose(shares, [0.75, 0.25, 0.0])
    tokens, speeds, semitones = HOW
    blended = model.say(tokens, shares, speeds, semitones)[0]
    own = [model.say(tokens, number, speeds, semitones)[0] for number in (0, 1)]
    with torch.no_grad():
        model.voices.weight[2] = 0.75 * model.voices.weight[0] + 0.25 * model.voices.weight[1]
    assert np.array_equal(blended.mel_TM, model.say(tokens, 2, speeds, semitones)[0].mel_TM)
    assert all(one.mel_TM.shape != blended.mel_TM.shape or not np.allclose(one.mel_TM, blended.mel_TM) for one in own)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    without_torch = ArrayVoice(weights).say(tokens, shares, speeds, semitones)[0]
    assert np.allclose(without_torch.mel_TM, blended.mel_TM, atol=1e-4)
    assert without_torch.f0_T is not None
    assert blended.f0_T is not None
    assert np.allclose(without_torch.f0_T, blended.f0_T, atol=0.2)


def test_names_come_before_blends() -> None:
    assert (speaker("a:b+c"), speaker("ben")) == (2, 1)


@pytest.mark.parametrize(
    "name",
    [
        "anna+ben",
        "anna:0+ben:1",
        "anna:x+ben:1",
        "anna:1+",
        "anna:-1+ben:2",
        "anna:nan+ben:1",
        "anna:1e39+ben:1",
        "anna:1e-50+ben:1e-50",
    ],
)
def test_what_is_no_blend_is_told(name: str) -> None:
    with pytest.raises(InputError, match=r"is no voice with its share; write two or more as in anna:0.6\+"):
        speaker(name)


def test_a_blend_of_unknown_voices_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'anne' is not in this model; did you mean anna"):
        speaker("anne:1+ben:1")
