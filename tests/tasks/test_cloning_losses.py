"""The losses of voice cloning: cross entropies, codebook weights, the likeness of the voice, the curriculum."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from phonate.config.errors import InputError
from phonate.tasks.cloning.sequences import EOS, audio_labels, delayed
from phonate.tasks.cloning.settings import CloningLoss
from phonate.tasks.cloning.task import (
    AdaptiveWeights,
    code_losses,
    contrastive_loss,
    correct_codes,
    curriculum_share,
    falling_weights,
)
from sounds import voiced_tone


def test_codes_are_scored_where_they_have_a_label() -> None:
    codes = np.random.default_rng(0).integers(0, 1024, (6, 8))
    labels = torch.from_numpy(audio_labels(codes))
    logits = torch.zeros(*labels.shape, 1026)
    assert code_losses(logits, labels).tolist() == pytest.approx([7 * math.log(1026)] * 8)
    logits.scatter_(-1, labels.clamp_min(0)[..., None], 30.0)
    assert code_losses(logits, labels).sum() < 1e-4
    assert int(correct_codes(logits, labels)) == 7 * 8
    # what has no label may be predicted as anything
    logits[labels < 0] = torch.randn(1026) * 50
    assert code_losses(logits, labels).sum() < 1e-4
    smoothed = code_losses(logits, labels, 0.1)
    likeliest = 30.0 * 0.1 * 1025 / 1026
    assert smoothed.tolist() == pytest.approx([7 * likeliest] * 8, rel=1e-3)


def test_the_end_has_a_gradient_once_in_each_codebook() -> None:
    codes = np.random.default_rng(0).integers(0, 1024, (6, 8))
    labels = torch.from_numpy(audio_labels(codes))
    logits = torch.zeros(*labels.shape, 1026, requires_grad=True)
    code_losses(logits, labels).sum().backward()
    assert logits.grad is not None
    pulled = (logits.grad[..., EOS] < 0).sum(0)
    assert pulled.tolist() == [1] * 8
    assert not (logits.grad[..., EOS - 1] < 0).any()  # never towards BOS
    # the rule of transformers' processor, which leaves all of them out
    faulty = torch.from_numpy(np.where(delayed(codes)[1:] >= 1024, -100, delayed(codes)[1:]))
    logits.grad = None
    code_losses(logits, faulty).sum().backward()
    assert not (logits.grad[..., EOS] < 0).any()


def test_weights_of_codebooks_are_one_on_average() -> None:
    falling = falling_weights(8)
    assert float(falling.mean()) == pytest.approx(1.0)
    assert float(falling[0] / falling[3]) == pytest.approx(4.0)


def test_adaptive_weights_follow_the_losses_between_steps_only() -> None:
    adaptive = AdaptiveWeights(4)
    assert adaptive.weights(0).tolist() == [1.0] * 4
    losses, counts = torch.tensor([2.0, 4.0, 6.0, 8.0]), torch.full((4,), 2)
    adaptive.observe(losses, counts)
    adaptive.observe(losses, counts)
    assert adaptive.weights(0).tolist() == [1.0] * 4  # the other micro-batches of the step
    assert adaptive.weights(1).tolist() == pytest.approx([0.4, 0.8, 1.2, 1.6])
    adaptive.observe(torch.tensor([8.0, 4.0, 6.0, 8.0]), counts)
    follows = adaptive.weights(2)
    assert 0.4 < float(follows[0]) < 0.45
    assert float(follows.mean()) == pytest.approx(1.0)
    resumed = AdaptiveWeights(4)
    adaptive.observe(losses, counts)
    resumed.restore(adaptive.state())  # saved between two steps
    assert torch.equal(resumed.weights(3), adaptive.weights(3))
    beginning = AdaptiveWeights(4)
    beginning.restore(None)  # of a run without them
    assert beginning.weights(3).tolist() == [1.0] * 4


def test_a_curriculum_rises_along_half_a_cosine() -> None:
    assert curriculum_share(0, 1000) == pytest.approx(0.1)
    assert curriculum_share(500, 1000) == pytest.approx(0.55)
    assert curriculum_share(250, 1000) == pytest.approx(0.1 + 0.9 * (1 - math.cos(math.pi / 4)) / 2)
    assert curriculum_share(1000, 1000) == curriculum_share(5000, 1000) == curriculum_share(0, None) == 1.0
    values = [curriculum_share(step, 1000) for step in range(1001)]
    assert values == sorted(values)


def test_a_consistency_term_is_refused_with_its_reason() -> None:
    with pytest.raises(InputError, match="consistency: "):
        CloningLoss(weights={"consistency": 0.05})


class Voices:
    """Hidden states of a reference and a target for each sample, around a large part that all share."""

    def __init__(self, speakers: list[int], seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.speakers = torch.tensor(speakers)
        voices = torch.randn(max(speakers) + 1, 16, generator=draw)
        self.pools = torch.tensor([pool for s in range(len(speakers)) for pool in (2 * s, 2 * s, -1, 2 * s + 1, -1)])
        noise = 0.1 * torch.randn(len(self.pools), 16, generator=draw)
        owners = self.speakers.repeat_interleave(5)
        self.frames = voices[owners] + noise
        self.frames[self.pools < 0] = 1000.0  # never looked at
        self.positions = 3 + 2 * torch.arange(len(self.pools))
        self.common = 20.0 * torch.randn(16, generator=draw)

    def hidden(self) -> torch.Tensor:
        hidden = torch.zeros(int(self.positions[-1]) + 4, 16)
        hidden[self.positions] = self.frames + self.common
        return hidden


def test_voices_that_agree_cost_less_than_voices_that_do_not() -> None:
    voices = Voices([0, 1, 2, 3, 4, 5])
    hidden = voices.hidden()
    arguments = (voices.positions, voices.pools, voices.speakers, 0.1)
    total, count = contrastive_loss(hidden, *arguments)
    assert int(count) == 12
    mixed = hidden.clone()
    targets = voices.positions[(voices.pools >= 0) & (voices.pools % 2 == 1)]
    mixed[targets] = hidden[targets.roll(1)]
    assert float(total / count) < 0.1 < 1.0 < float(contrastive_loss(mixed, *arguments)[0] / count)


def test_voices_of_one_speaker_are_no_negatives() -> None:
    one = Voices([0, 0, 0])
    total, _ = contrastive_loss(one.hidden(), one.positions, one.pools, torch.tensor([4, 4, 4]), 0.1)
    apart, _ = contrastive_loss(one.hidden(), one.positions, one.pools, torch.tensor([0, 1, 2]), 0.1)
    assert float(apart) > float(total) + 1.0
    alone = Voices([0])
    total, count = contrastive_loss(alone.hidden(), alone.positions, alone.pools, alone.speakers, 0.1)
    assert float(total) == pytest.approx(0.0, abs=1e-6)
    assert int(count) == 2


def test_the_gradient_reaches_the_hidden_states_and_brings_voices_together() -> None:
    torch.manual_seed(0)
    hidden = (torch.randn(40, 16) + 3.0).requires_grad_()
    pools = torch.arange(8).repeat_interleave(5)
    losses = []
    for _ in range(60):
        total, count = contrastive_loss(hidden, torch.arange(40), pools, torch.arange(4), 0.1)
        (gradient,) = torch.autograd.grad(total / count, hidden)
        losses.append(float(total.detach()) / float(count))
        with torch.no_grad():
            hidden -= 2.0 * gradient
    assert losses[-1] < 0.1 < 1.0 < losses[0]


# --- by ear ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    if importlib.util.find_spec("resemblyzer") is None:
        pytest.skip("needs the speaker encoder: pip install 'phonate[eval]'")
    from phonate.tasks.cloning.task import DifferentiableSpeakerEncoder

    return DifferentiableSpeakerEncoder()


def test_mel_energies_are_resemblyzers(encoder: nn.Module) -> None:
    from phonate.pretrained import stand_in

    with stand_in("pkg_resources"):
        from resemblyzer import audio
    waveform = voiced_tone(1.3, 140.0, (600.0, 1500.0, 2600.0), seed=1).astype(np.float32)
    theirs = audio.wav_to_mel_spectrogram(waveform)
    ours = encoder.mel(torch.from_numpy(waveform)[None])[0].numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4 * theirs.max()


@pytest.mark.parametrize("seconds", [0.7, 1.6, 3.3])
def test_embeddings_are_resemblyzers(encoder: nn.Module, seconds: float) -> None:
    from phonate.pretrained import stand_in

    with stand_in("pkg_resources"):
        from resemblyzer import audio, hparams
    quiet = 0.003 * voiced_tone(seconds, 140.0, (600.0, 1500.0, 2600.0), seed=1).astype(np.float32)
    waveform = torch.from_numpy(quiet).requires_grad_()
    ours = encoder(waveform)
    louder = audio.normalize_volume(quiet, hparams.audio_norm_target_dBFS, increase_only=True)
    theirs = encoder.network.embed_utterance(louder, rate=1 / 0.8, min_coverage=0.01)
    assert float(ours.detach() @ torch.from_numpy(theirs)) > 0.9999
    ours.max().backward()
    assert waveform.grad is not None
    assert float(waveform.grad.abs().sum()) > 0


def test_what_is_predicted_is_heard_beside_the_reference(encoder: nn.Module, tmp_path: Path) -> None:
    from higgs_codec import small_codec_folder
    from phonate.audio.higgs_codec import HiggsCodec
    from phonate.tasks.cloning.task import VoiceSimilarity

    codec = HiggsCodec.load(small_codec_folder(tmp_path / "codec"))
    similarity = VoiceSimilarity(codec, torch.device("cpu"))
    draw = np.random.default_rng(0)
    codes = [draw.integers(0, 1024, (length, 8)) for length in (12, 9)]
    labels = torch.from_numpy(np.concatenate([audio_labels(one) for one in codes])).clamp(0, 1025)
    certain = torch.zeros(*labels.shape, 1026).scatter_(-1, labels[..., None], 60.0)
    references = [torch.from_numpy(delayed(one)) for one in codes]
    total, count = similarity.loss(certain, [12, 9], references)
    assert count == 2.0
    assert float(total) == pytest.approx(0.0, abs=1e-4)  # it says what the references say
    unsure = torch.randn(certain.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    total, _ = similarity.loss(unsure, [12, 9], references)
    assert float(total.detach()) > 1e-3
    total.backward()
    assert unsure.grad is not None
    assert (unsure.grad[:, 0, :1024].abs().sum(-1) > 0).sum() == 21  # the frames with a code of the first codebook
    assert not unsure.grad[..., 1024:].any()
