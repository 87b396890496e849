"""VoiceTransformer seen from outside: it learns, it hears the speaker, padding never matters, ONNX agrees."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from phonate.models import VoiceTransformer
from phonate.nn import attention

SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 64}
VARIANTS = {
    "published": {},
    "recipe": {
        "norm": "pre", "activation": "gelu", "positions": "rotary", "stride": 2, "post_net_layers": 3,
        "prosody_dim": 2,
    },
}  # fmt: skip


def speech_like(batch: int, frames: int, features: int = 80) -> torch.Tensor:
    time, band = np.arange(frames)[:, None], np.arange(features)[None, :]
    clips = [0.5 + 0.4 * np.sin(time / (7 + b) + band / (5 + 2 * b)) for b in range(batch)]
    return torch.tensor(np.stack(clips), dtype=torch.float32)


def build(variant: str, **more: int) -> tuple[VoiceTransformer, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = VoiceTransformer(80, **SMALL, **VARIANTS[variant], **more).eval()
    return model, ({"prosody": torch.randn(2, 37, 2)} if model.prosody_dim else {})


def test_documented_defaults() -> None:
    model = VoiceTransformer(input_dim=80, d_model=512, n_heads=8, n_layers=6)
    layers = model.encoder.layers
    assert len(layers) == 6
    assert layers[0].feed_forward[0].out_features == 2048
    assert layers[0].attention.n_heads == 8
    assert model.positions is not None
    assert model.positions.table_TD.shape == (5000, 512)
    assert isinstance(layers[0].feed_forward[1], torch.nn.ReLU)
    assert layers[0].post_norm
    assert model(torch.rand(2, 33, 80)).shape == (2, 33, 80)


def losses_of_training(steps: int, frames: int) -> list[float]:
    """L1 of the published model on one input with two targets, which only the speaker tells apart."""
    torch.manual_seed(0)
    model = VoiceTransformer(input_dim=80, d_model=512, n_heads=8, n_layers=6, n_speakers=2).eval()
    source, target = speech_like(1, frames).repeat(2, 1, 1), speech_like(2, frames)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-4 * min(1.0, (step + 1) / 10)  # post-norm layers need the warm-up
        loss = F.l1_loss(model(source, torch.tensor([0, 1])), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_learns_at_full_size() -> None:
    losses = losses_of_training(steps=16, frames=12)
    assert losses[-1] < 0.4 * losses[0]


@pytest.mark.slow
def test_overfits_two_clips_at_full_size() -> None:
    target = speech_like(2, 24)
    unconditioned = F.l1_loss(target.mean(dim=0, keepdim=True).expand_as(target), target).item()
    # A model that does not hear the speaker can't get under the mean of the two targets.
    assert losses_of_training(steps=80, frames=24)[-1] < 0.4 * unconditioned


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_never_changes_real_frames(variant: str) -> None:
    model, extra = build(variant)
    features, lengths = speech_like(2, 37), torch.tensor([37, 20])
    expected = model(features, lengths=lengths, **extra)
    alone = model(features[1:, :20], **{k: v[1:, :20] for k, v in extra.items()})
    noisy, noisy_extra = features.clone(), {k: v.clone() for k, v in extra.items()}
    for tensor in (noisy, *noisy_extra.values()):
        tensor[1, 20:] = 1e3
    assert torch.equal(model(noisy, lengths=lengths, **noisy_extra)[1, :20], expected[1, :20])
    torch.testing.assert_close(expected[1:, :20], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mask_of_all_real_frames_is_no_mask(variant: str) -> None:
    model, extra = build(variant)
    features = speech_like(2, 37)
    everything = torch.ones(2, 37, dtype=torch.bool)
    torch.testing.assert_close(
        model(features, mask=everything, **extra), model(features, **extra), atol=1e-5, rtol=1e-4
    )


def test_the_mask_test_catches_an_inverted_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    right = F.scaled_dot_product_attention

    def inverted(query, key, value, attn_mask=None, **others):  # type: ignore[no-untyped-def]
        return right(query, key, value, attn_mask=None if attn_mask is None else ~attn_mask, **others)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", inverted)
    with pytest.raises(AssertionError):
        test_padding_never_changes_real_frames("published")
    with pytest.raises(AssertionError):
        test_a_mask_of_all_real_frames_is_no_mask("published")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_speaker_changes_the_output(variant: str) -> None:
    model, extra = build(variant, n_speakers=3)
    features = speech_like(1, 37).repeat(2, 1, 1)
    extra = {name: value[:1].repeat(2, 1, 1) for name, value in extra.items()}
    out = model(features, torch.tensor([0, 2]), **extra)
    assert (out[0] - out[1]).abs().mean() > 1e-3
    with pytest.raises(ValueError, match="speaker_id"):
        model(features, **extra)


def test_other_names_of_the_sizes() -> None:
    model = VoiceTransformer(hidden_size=32, num_layers=3, num_heads=2, max_sequence_length=50, vocab_size=11)
    assert len(model.encoder.layers) == 3
    tokens = torch.randint(0, 11, (2, 9))
    assert model(tokens).shape == (2, 9, 11)
    torch.testing.assert_close(model.eval()(tokens), model(F.one_hot(tokens, 11).float()))
    with pytest.raises(TypeError, match="hidden_sizes"):
        VoiceTransformer(hidden_sizes=3)


def test_too_long_a_sequence_is_named() -> None:
    with pytest.raises(ValueError, match="max_seq_len 50"):
        VoiceTransformer(**SMALL, max_seq_len=50)(torch.rand(1, 51, 80))


@pytest.mark.parametrize("variant", VARIANTS)
def test_onnx_agrees_at_several_lengths(variant: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, _ = build(variant, n_speakers=3)
    path = model.export_to_onnx(tmp_path / "model.onnx")
    assert onnx.load(path).opset_import[0].version == 17
    session = runtime.InferenceSession(path)
    for batch, frames in ((1, 64), (2, 17), (3, 128)):
        given = {"features": torch.rand(batch, frames, 80), "speaker_id": torch.arange(batch)}
        if model.prosody_dim:
            given["prosody"] = torch.rand(batch, frames, 2)
        (out,) = session.run(None, {name: value.numpy() for name, value in given.items()})
        with torch.no_grad():
            expected = model(**given).numpy()
        np.testing.assert_allclose(out, expected, atol=1e-4)


def test_a_speaker_that_the_model_has_no_use_for_is_reported():
    features, speaker = torch.rand(2, 5, 80), torch.tensor([0, 1])
    model = VoiceTransformer(80, 16, 2, 1)
    with pytest.warns(UserWarning, match="speaker_id .*n_speakers"):
        model(features, speaker_id=speaker)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(features)
        VoiceTransformer(80, 16, 2, 1, n_speakers=2)(features, speaker_id=speaker)
