"""Speaker segmentation from the waveform."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import phonate
from phonate.audio.decoding import read_audio
from phonate.nn.sincnet import AFTER, BEFORE, HOP, SAMPLE_RATE, SincNet, band_pass_filters, normalised
from phonate.tasks.diarization.model import WaveformActivityModel
from phonate.training.checkpoints.files import RECORDINGS

SEGMENTATION = Path(__file__).with_name("segmentation.json")
"""What onnxruntime computes of pyannote's graph with the packaged weights (scripts/convert_segmentation.py --check)."""


def packaged() -> WaveformActivityModel:
    """The network of the packaged diarizer."""
    model = phonate.load("base/diarizer", "diarization").model
    assert isinstance(model, WaveformActivityModel)
    return model


@torch.no_grad()
def test_the_packaged_network_is_the_published_one() -> None:
    """By another implementation, onnxruntime's, of the published graph."""
    expected = json.loads(SEGMENTATION.read_text(encoding="utf-8"))
    samples_N, _ = read_audio(RECORDINGS / expected["recording"], SAMPLE_RATE)
    model, samples_BN = packaged(), torch.from_numpy(samples_N)[None]
    lengths_B = torch.tensor([samples_BN.shape[1]])
    hidden_BTC = model.front_end.filtered(normalised(samples_BN[:, None], lengths_B), lengths_B)
    scores_BTP = model.head(model.lstm(hidden_BTC, torch.tensor([hidden_BTC.shape[1]])))
    assert hidden_BTC.shape[1] == expected["frames"]
    own = scores_BTP.log_softmax(-1)[0, :: expected["every"]]
    np.testing.assert_allclose(own.numpy(), np.array(expected["log_probabilities"]), atol=2e-3)


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    model = packaged()
    long_BN, short_BN = 0.1 * torch.randn(1, 170 * HOP), 0.01 * torch.randn(1, 50 * HOP)
    both_BN = torch.cat([long_BN, torch.nn.functional.pad(short_BN, (0, 120 * HOP))])
    both = model(both_BN.view(2, -1, HOP), torch.tensor([170, 50])).scores_BUC
    alone = model(short_BN.view(1, -1, HOP), torch.tensor([50])).scores_BUC
    torch.testing.assert_close(both[1:, :50], alone, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("frames", [1, 2, 59, 593])
def test_there_is_a_frame_for_every_hop(frames: int) -> None:
    assert SincNet()(torch.randn(1, frames * HOP), torch.tensor([frames])).shape == (1, frames, SincNet.width)


@torch.no_grad()
def test_frames_are_centred_on_their_samples() -> None:
    """What a frame depends on reaches as far to the left as to the right."""
    network = SincNet()
    sound_B1N = torch.randn(1, 1, 41 * HOP + BEFORE + AFTER)
    sound_B1N.requires_grad_(True)
    with torch.enable_grad():
        network.filtered(sound_B1N, torch.tensor([sound_B1N.shape[2]]))[0, 20].sum().backward()
    # the norms spread a little to everywhere
    strength_N = sound_B1N.grad[0, 0].abs()
    reached = torch.nonzero(strength_N > 0.01 * strength_N.max())[:, 0]
    middle = BEFORE + 20 * HOP + HOP / 2
    assert middle - int(reached.min()) == pytest.approx(int(reached.max()) - middle, abs=HOP / 2)


def test_filters_are_bands_from_low_to_high() -> None:
    spectra_FH = torch.fft.rfft(band_pass_filters()[:, 0], n=4096).abs()
    peaks_F = spectra_FH.argmax(1).float() * SAMPLE_RATE / 4096
    cosines_F = peaks_F[:40]
    assert (cosines_F.diff() >= 0).all()
    assert cosines_F[0] < 100.0
    assert cosines_F[-1] > 7000.0
