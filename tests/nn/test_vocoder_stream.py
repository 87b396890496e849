"""The vocoder in blocks: what was made of frames so far is what all frames at once give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phonate.audio.processor import AudioProcessor
from phonate.nn.vocoder import Vocoder, VocoderStream

FRAMES = 60


@pytest.fixture(scope="module")
def inputs():
    """A mel (1, T, M) and a pitch (1, T) with voiced and unvoiced parts."""
    generator = torch.Generator().manual_seed(1)
    mel = torch.rand(1, FRAMES, 80, generator=generator)
    f0 = 120.0 + 60.0 * torch.rand(1, FRAMES, generator=generator)
    f0[:, :3] = f0[:, 20:27] = f0[:, -4:] = 0.0
    return mel, f0


def causal(lookahead: int, seed: int = 0) -> Vocoder:
    """An untrained vocoder whose head has some effect."""
    torch.manual_seed(seed)
    vocoder = Vocoder.of(AudioProcessor(), width=32, layers=2, lookahead=lookahead).eval()
    torch.nn.init.normal_(vocoder.head.weight, std=0.1)
    torch.nn.init.normal_(vocoder.shape_head.weight, std=0.1)
    return vocoder


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_blocks_joined_are_the_whole(inputs, lookahead, seed):
    mel, f0 = inputs
    vocoder, rng = causal(lookahead), np.random.default_rng(seed)
    stream, parts, start = VocoderStream(vocoder), [], 0
    while start < FRAMES:
        end = start + int(rng.integers(0, 9))
        parts.append(stream.push(mel[:, max(0, start - 3) : max(0, end - 3)], f0[:, start:end]))
        start = end
    parts.append(stream.push(mel[:, max(0, start - 3) :], f0[:, FRAMES:]))
    parts.append(stream.finish())
    with torch.no_grad():
        whole = vocoder(mel, f0)
    made = torch.cat(parts, dim=1)
    assert made.shape == whole.shape
    assert (made - whole).abs().max() < 1e-5 * whole.abs().max()
    assert whole.abs().max() > 1e-4


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_later_frames_change_nothing_before_the_stated_delay(inputs, lookahead):
    mel, f0 = inputs
    vocoder, changed = causal(lookahead), 40
    other_mel, other_f0 = mel.clone(), f0.clone()
    other_mel[:, changed:] = 0.5
    other_f0[:, changed:] = 300.0
    with torch.no_grad():
        difference = (vocoder(mel, f0) - vocoder(other_mel, other_f0))[0].abs()
    half, hop = vocoder.fourier.n_fft // 2, vocoder.hop_length
    first = int(torch.nonzero(difference > 1e-9)[0])
    stated = (changed - max(lookahead, vocoder.source_lookahead)) * hop - half
    assert stated <= first < stated + 2 * hop


def test_a_centred_vocoder_is_refused():
    with pytest.raises(ValueError, match="incrementally"):
        VocoderStream(Vocoder.of(AudioProcessor(), width=32, layers=1))


def test_weights_of_a_centred_vocoder_fit():
    centred = Vocoder.of(AudioProcessor(), width=32, layers=2)
    causal(1).load_state_dict(centred.state_dict())
