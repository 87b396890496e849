"""Transformers from settings: every kind hears its masks, keeps the future out, streams, and learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from phonate.config.errors import InputError
from phonate.nn.linear_attention import RandomFeatures
from phonate.nn.sequences import RotaryPositions
from phonate.nn.settings import LayerSettings, TransformerSettings
from phonate.nn.transformer import (
    FrameTransformer,
    LayerShape,
    Stack,
    StackState,
    build_decoder,
    build_encoder,
    build_transformer,
)

SMALL = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 2, "nb_features": 24}
KINDS: dict[str, dict[str, Any]] = {
    "encoder": {"model_type": "encoder"},
    "linear encoder": {"encoder": {"attention_type": "linear"}},
    "causal encoder": {"encoder": {"attention_type": "causal_linear"}},
    "decoder": {"model_type": "decoder"},
    "linear decoder": {"model_type": "decoder", "decoder": {"attention_type": "causal_linear"}},
    "encoder_decoder": {"model_type": "encoder_decoder"},
    "linear encoder_decoder": {
        "model_type": "encoder_decoder",
        "encoder": {"attention_type": "linear"},
        "decoder": {"attention_type": "causal_linear"},
    },
}
CAUSAL = ["causal encoder", "decoder", "linear decoder"]
POSITIONS = ["rope", "sinusoidal", "learnable", "none"]
NORMS: dict[str, dict[str, bool]] = {
    "pre": {},
    "scale": {"use_scalenorm": True},
    "rezero": {"use_rezero": True},
    "both": {"use_scalenorm": True, "use_rezero": True},
}
ACTIVATIONS = ["GELU", "relu", "Silu", "geglu", "REGLU", "swiglu"]


def build(kind: str = "encoder", **options: Any) -> FrameTransformer:
    """A small model in float64 whose branches, with ReZero too, do something."""
    torch.manual_seed(0)
    settings = TransformerSettings(**KINDS[kind], global_config={**SMALL, **options})
    model = build_transformer(settings, input_dim=7).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gain"):
                parameter.fill_(0.7)
    return model


def frames(batch: int = 2, count: int = 40) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, count, 7, dtype=torch.float64)


def padding_change(model: FrameTransformer) -> float:
    """By how much loud padding after 23 of 40 frames moves the output of the real ones."""
    x = frames()
    mask = torch.arange(40) < torch.tensor([[40], [23]])
    x[1, 23:] = 30.0
    with torch.no_grad():
        return float((model(x, mask)[1, :23] - model(x[1:, :23])[0]).abs().max())


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_real_frame(kind: str, positions: str) -> None:
    assert padding_change(build(kind, positional_encoding=positions)) < 1e-6


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["linear encoder", "linear encoder_decoder"])
def test_padding_changes_no_real_frame_whatever_the_norm(kind: str, norm: str) -> None:
    assert padding_change(build(kind, **NORMS[norm])) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_padding_reaches_no_convolution(kind: str) -> None:
    assert padding_change(build(kind, conv_kernel=7)) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_in_the_mask_hides_its_frames(kind: str) -> None:
    model, x = build(kind), frames()
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1, 5:9] = False
    other = x.clone()
    other[1, 5:9] = 9.0
    with torch.no_grad():
        assert float((model(x, mask) - model(other, mask))[mask].abs().max()) < 1e-9
        assert float((model(x) - model(other))[mask].abs().max()) > 1e-3


@pytest.mark.parametrize("kernel", [None, 7])
@pytest.mark.parametrize("loudness", [1.0, 3.0, 1000.0])
@pytest.mark.parametrize("kind", CAUSAL)
def test_no_later_frame_changes_an_earlier_one(kind: str, loudness: float, kernel: int | None) -> None:
    model, x = build(kind, conv_kernel=kernel), frames()
    other = x.clone()
    other[:, 20:] = loudness * torch.randn(2, 20, 7, dtype=torch.float64)
    with torch.no_grad():
        before, after = model(x), model(other)
    assert torch.equal(before[:, :20], after[:, :20])
    assert float((before - after)[:, 20:].abs().max()) > 1e-3


@pytest.mark.parametrize("kernel", [None, 7])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", CAUSAL)
def test_streaming_equals_offline(kind: str, positions: str, kernel: int | None) -> None:
    model = build(kind, positional_encoding=positions, conv_kernel=kernel).float()
    x = frames(count=300).float()
    assert model.causal
    with torch.no_grad():
        state, parts = model.initial_state(2), []
        for chunk in x.split([1, 1, 7, 100, 191], dim=1):
            out, state = model.step(chunk, state)
            parts.append(out)
        assert torch.allclose(torch.cat(parts, dim=1), model(x), atol=1e-5)


@pytest.mark.parametrize(("kind", "grows"), [("linear decoder", False), ("decoder", True)])
def test_the_state_of_linear_attention_has_a_constant_size(kind: str, grows: bool) -> None:
    model, x = build(kind), frames(count=400)

    def size(state: StackState) -> int:
        tensors = [tensor for layer in state.layers for tensor in vars(layer.past).values()]
        return sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor))

    with torch.no_grad():
        state = model.initial_state(2)
        model.step(x[:, :1], state)
        before = size(state)
        model.step(x[:, 1:], state)
    assert (size(state) > before) == grows


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_real_frame_in_float32(kind: str) -> None:
    model, x = build(kind).float(), frames().float()
    mask = torch.arange(40) < torch.tensor([[40], [23]])
    x[1, 23:] = 30.0
    with torch.no_grad():
        wanted = model(x[1:, :23])[0]
        assert float((model(x, mask)[1, :23] - wanted).norm() / wanted.norm()) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_computes_the_same(kind: str) -> None:
    model, x = build(kind), frames(count=3000)
    mask = torch.arange(3000) < torch.tensor([[3000], [1700]])
    parameters = list(model.parameters())
    wanted = model(x, mask)
    gradients = torch.autograd.grad(wanted[mask].square().sum(), parameters)
    model.cuda()
    got = model(x.cuda(), mask.cuda())
    assert torch.allclose(got.cpu()[mask], wanted[mask], atol=1e-8)
    found = torch.autograd.grad(got[mask.cuda()].square().sum(), list(model.parameters()))
    for one, other in zip(gradients, found, strict=True):
        assert torch.allclose(other.cpu(), one, rtol=1e-6, atol=1e-8)


def test_only_causal_models_stream() -> None:
    for kind in KINDS:
        model = build(kind)
        assert model.causal == (kind in CAUSAL)
        if kind not in CAUSAL:
            with pytest.raises(ValueError, match="later frames"):
                model.initial_state()


@pytest.mark.parametrize(
    "choice",
    [
        *({"positional_encoding": positions} for positions in POSITIONS),
        *NORMS.values(),
        *({"activation": activation} for activation in ACTIVATIONS),
        {"attention_type": "linear"},
        {"attention_type": "causal_linear"},
        {"conv_kernel": 5, "attention_type": "linear"},
    ],
    ids=str,
)
def test_every_choice_learns(choice: dict[str, Any]) -> None:
    """The output follows an input that came two frames earlier, which needs attention and all of the layer."""
    torch.manual_seed(0)
    settings = TransformerSettings(global_config={**SMALL, "dropout": 0.0, **choice})
    model = build_transformer(settings, input_dim=7)
    x = frames(count=4).float()
    target = x.roll(2, dims=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    losses = []
    for _ in range(20):
        loss = (model(x)[..., :7] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_without_positions_the_order_is_unknown_and_with_them_it_is_not() -> None:
    x, order = frames(), torch.randperm(40)
    for positions in POSITIONS:
        model = build("linear encoder", positional_encoding=positions)
        with torch.no_grad():
            same = torch.allclose(model(x)[:, order], model(x[:, order]), atol=1e-9)
        assert same == (positions == "none")


def test_the_encoder_reaches_the_decoder_through_the_mask() -> None:
    torch.manual_seed(0)
    for kind in ("softmax", "causal_linear"):
        decoder = build_decoder(LayerSettings(**SMALL, attention_type=kind), memory=True).double().eval()
        x, memory = torch.randn(2, 2, 9, 32, dtype=torch.float64)
        mask = torch.arange(9) < torch.tensor([[9], [4]])
        other = memory.clone()
        other[1, 4:] = 50.0
        with torch.no_grad():
            assert torch.equal(decoder(x, None, memory, mask), decoder(x, None, other, mask))
            assert not torch.allclose(decoder(x, None, memory), decoder(x, None, other), atol=1e-3)
            state, steps = decoder.initial_state(2, memory, mask), []
            steps = [decoder.step(x[:, t : t + 1], state) for t in range(9)]
            assert torch.allclose(torch.cat(steps, dim=1), decoder(x, None, memory, mask), atol=1e-9)


@pytest.mark.parametrize("kernel", [None, 3])
@pytest.mark.parametrize("kind", ["softmax", "causal_linear"])
def test_rows_of_a_state_can_be_chosen(kind: str, kernel: int | None) -> None:
    torch.manual_seed(0)
    settings = LayerSettings(**SMALL, attention_type=kind, conv_kernel=kernel)
    decoder = build_decoder(settings, memory=True).double().eval()
    x, memory = torch.randn(2, 3, 9, 32, dtype=torch.float64)
    rows = torch.tensor([2, 0, 0])
    with torch.no_grad():
        state = decoder.initial_state(3, memory)
        decoder.step(x[:, :8], state)
        chosen = state.select(rows)
        decoder.step(x[:, 8:], state)  # must not touch the copy
        assert torch.allclose(decoder.step(x[rows, 8:], chosen), decoder(x, None, memory)[rows, 8:], atol=1e-9)


def test_cross_attention_needs_its_memory() -> None:
    decoder = build_decoder(LayerSettings(**SMALL), memory=True)
    with pytest.raises(ValueError, match="memory"):
        decoder(torch.randn(1, 3, 32))
    with pytest.raises(ValueError, match="memory"):
        build_encoder(LayerSettings(**SMALL))(torch.randn(1, 3, 32), None, torch.randn(1, 3, 32))


def test_segments_keep_less_for_the_backward_pass_and_change_no_gradient() -> None:
    def run(segments: int | None) -> tuple[int, list[Tensor]]:
        torch.manual_seed(0)
        options = {**SMALL, "num_layers": 4, "attention_type": "causal_linear", "checkpoint_segments": segments}
        model = build_transformer(TransformerSettings(encoder=options), input_dim=7).train()
        held: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            out = model(frames(count=200).float())
        return sum(held.values()), list(torch.autograd.grad(out.square().sum(), list(model.parameters())))

    (all_bytes, wanted), (fewer, found) = run(None), run(4)
    assert fewer < 0.4 * all_bytes
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_the_documents_translator_trains_on_80_bands() -> None:
    """Its settings as they stand. A width of 512 from 80 bands needs the input projection."""
    torch.manual_seed(0)
    settings = TransformerSettings(
        model_type="encoder_decoder",
        name="performer_translator",
        global_config={"dropout": 0.1, "batch_size": 32, "d_ff": 4},
        encoder={"d_model": 512, "num_layers": 6, "num_heads": 8, "attention_type": "linear"},
        decoder={"d_model": 512, "num_layers": 6, "num_heads": 8, "attention_type": "causal_linear"},
    )
    model = build_transformer(settings, input_dim=80)
    features = [module for module in model.modules() if isinstance(module, RandomFeatures)]
    assert len(features) == 6 + 2 * 6  # cross-attention is linear too
    assert {tuple(one.projection_ME.shape) for one in features} == {(266, 64)}
    mask = torch.arange(30) < torch.tensor([[30], [11]])
    model(torch.randn(2, 30, 80), mask)[mask].square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_learnt_positions_end() -> None:
    with pytest.raises(ValueError, match=r"40 frames.*max_seq_len"):
        build("encoder", positional_encoding="learnable", max_seq_len=39)(frames())


def test_component_beats_global_beats_default() -> None:
    settings = TransformerSettings(
        model_type="encoder_decoder",
        global_config={"dropout": 0.2, "d_ff": 2},
        encoder={"d_ff": 3},
        decoder={"attention_type": "causal_linear", "activation": "GEGLU"},
    )
    assert settings.encoder is not None
    assert settings.decoder is not None
    assert (settings.encoder.dropout, settings.encoder.d_ff, settings.encoder.num_layers) == (0.2, 3, 6)
    assert (settings.decoder.dropout, settings.decoder.d_ff, settings.decoder.activation) == (0.2, 2, "geglu")
    assert settings.decoder.features == 266
    assert TransformerSettings(**settings.model_dump()) == settings
    assert TransformerSettings.model_validate_json(settings.model_dump_json(), strict=True) == settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"encoder": {"attention_type": "fast"}}, "encoder.attention_type: .*'softmax', 'linear'"),
        ({"global_config": {"dropout": 3}}, "global_config.dropout: .*< 1.0"),
        ({"encoder": {"d_ff": 2048}}, "encoder.d_ff: .*<= 64"),
        ({"encoder": {"num_heads": 7}}, "d_model 512 .*num_heads 7"),
        ({"encoder": {"conv_kernel": 8}}, "conv_kernel 8 .*odd"),
        ({"encoder": {"d_model": 24}}, "rope .*even"),
        ({"model_type": "decoder", "encoder": {}}, "decoder has no encoder"),
        ({"model_type": "decoder", "decoder": {"attention_type": "linear"}}, "use causal_linear or softmax"),
        ({"model_type": "decoder", "decoder": {"use_cross_attention": True}}, "remove it"),
        ({"model_type": "encoder_decoder", "decoder": {"use_cross_attention": False}}, "remove it"),
        ({"encoder": {"use_cross_attention": True}}, "decoder of an encoder_decoder"),
        ({"model_type": "encoder_decoder", "encoder": {"d_model": 256}}, "must be equal"),
        ({"model_type": "encoder_decoder", "encoder": {"num_classes": 3}}, "outputs"),
    ],
)
def test_mistakes_in_settings(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        TransformerSettings(**wrong)
    assert "\n" not in str(error.value)


def test_dropout_of_attention_weights_is_that_of_the_layer_unless_said() -> None:
    def rates(**options: Any) -> tuple[float, float]:
        model = build("encoder_decoder", dropout=0.3, **options)
        layer: Any = model.decoder.layers[0]  # type: ignore[union-attr]
        assert layer.dropout.p == 0.3
        return layer.attention.dropout, layer.cross_attention.dropout

    assert rates() == (0.3, 0.3)
    assert rates(attention_dropout=0.0) == (0.0, 0.0)


def test_attention_with_a_window_reaches_no_further_back() -> None:
    """In parallel and in blocks, however long the stream has been."""
    shape = LayerShape(d_model=16, n_heads=2, d_ff=32, dropout=0.0, norm="pre", causal=True, window=6)
    torch.manual_seed(0)
    stack = Stack(shape, 2, RotaryPositions(8)).eval()
    frames = torch.randn(1, 300, 16)
    with torch.no_grad():
        whole = stack(frames)
        state = stack.initial_state(1)
        sizes = [1, 2, 97, 6, *[1] * 40, 154]
        blocks = torch.cat([stack.step(part, state) for part in torch.split(frames, sizes, dim=1)[:-1]], dim=1)
        rows = state.select(torch.tensor([0, 0]))
        rest = stack.step(frames[:, -154:], state)
        copied = stack.step(frames[:, -154:].expand(2, -1, -1), rows)
        blocks = torch.cat((blocks, rest), dim=1)
        other = frames.clone()
        other[:, 100] = torch.randn(16)
        changed = (stack(other) - whole).abs().amax(dim=(0, 2)) > 1e-6
    assert torch.allclose(blocks, whole, atol=1e-5)
    assert torch.allclose(copied, rest.expand(2, -1, -1), atol=1e-5)
    assert changed.nonzero()[0] == 100
    assert changed.nonzero()[-1] == 100 + 2 * (6 - 1)
