"""Convolutions over frames and bands of spectra, as fast as a processor can.

Shapes: B batch, T frames, K bands, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from phonate.nn import kernels
from phonate.nn.convolution import in_format
from phonate.nn.sequences import on_processor

SLOPE = 0.1
"""Of leaky ReLUs below 0."""


def judged(
    layers: Sequence[nn.Conv2d], last: nn.Conv2d, inputs_BTCK: Sequence[Tensor], cond_BTK: Tensor | None = None
) -> list[tuple[Tensor, list[Tensor]]]:
    """What the `last` of centred convolutions, to one channel, makes of each (B, T, C, K): (B, T', K'); and what those
    before it make, with leaky ReLUs: (B, C, T', K') each. All have `cond`, where it is given, as one more channel.

    Steps along bands become channels, in the layout of channels last: oneDNN is slow where there are few channels and
    such steps. In bf16 forward and backward passes of a discriminator of spectra take a third of the time.
    """
    kind, (bands,) = inputs_BTCK[0].device.type, {one.shape[3] for one in inputs_BTCK}
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs_BTCK[0].dtype
    before, after = _ends(layers[0], bands)
    first = None if cond_BTK is None else _of_pairs_by_kernels(layers[0], inputs_BTCK, cond_BTK, dtype)
    if first is None:
        if cond_BTK is not None:
            inputs_BTCK = [torch.cat([one, cond_BTK[:, :, None]], dim=2) for one in inputs_BTCK]
        padded = [_Padded.apply(x, before, after, dtype) for x in inputs_BTCK]  # type: ignore[no-untyped-call]
    outputs: list[list[Tensor]] = [[] for _ in inputs_BTCK]
    for layer, following in zip(layers, [*layers[1:], last], strict=True):
        input_bands, bands = bands, _outputs(layer, bands)
        goes_on = following is not last or _has_kernels(last, bands, dtype)
        ends = _ends(following, bands) if goes_on else (0, 0)
        if first is not None:
            made, first = first(*ends), None
        else:
            convolve = _by_kernels(layer, input_bands, dtype) or _by_torch(layer)
            made = [convolve(one, *ends) for one in padded]
        padded = [one for one, _ in made]
        for of_one, (_, output_BTKC) in zip(outputs, made, strict=True):
            of_one.append(output_BTKC.permute(0, 3, 1, 2))
    score = _by_kernels(last, bands, dtype, slope=1.0)
    if score is not None:
        return [(score(one, 0, 0)[1][..., 0], of_one) for one, of_one in zip(padded, outputs, strict=True)]
    return list(zip(_scored(last, [one[-1] for one in outputs]), outputs, strict=True))


Convolve = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
"""What a layer makes of padded bands (B, T, K, C): (B, T', K', O), with so many zeros before and after the bands; and
the bands of it."""


def _by_torch(layer: nn.Conv2d) -> Convolve:
    weight_OCIJ = _folded_weight(layer)

    def convolve(padded_BTKC: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
        out_BTKC = _folded(layer, weight_OCIJ, padded_BTKC)
        both: tuple[Tensor, Tensor] = _LeakyReLU.apply(out_BTKC, before, after)  # type: ignore[no-untyped-call]
        return both

    return convolve


def _has_kernels(layer: nn.Conv2d, bands: int, dtype: torch.dtype) -> bool:
    """Whether the kernels have this convolution of so many bands."""
    fast = kernels.of(dtype)
    if fast is None or layer.bias is None or layer.bias.dtype is not torch.float32:
        return False
    return fast.convolves(_shape(layer, bands, 1), bands)


def _by_kernels(layer: nn.Conv2d, bands: int, dtype: torch.dtype, slope: float = SLOPE) -> Convolve | None:
    """None: they don't have it. Without leaky ReLUs, few channels have others after them, which are 0."""
    fast, others = kernels.of(dtype), kernels.outputs(layer.out_channels) - layer.out_channels
    if fast is None or layer.bias is None or not _has_kernels(layer, bands, dtype) or (others and slope != 1.0):
        return None
    ours = slice(_ends(layer, bands)[0], _ends(layer, bands)[0] + bands)
    weight_OCP, bias_O = layer.weight.flatten(2), layer.bias  # the former is no leaf of the graph
    if others:
        weight_OCP, bias_O = F.pad(weight_OCP, (0, 0, 0, 0, 0, others)), F.pad(bias_O, (0, others))

    def convolve(padded_BTKC: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
        given = (fast, _shape(layer, bands, padded_BTKC.shape[1]), ours, slope, before, after)
        both: tuple[Tensor, Tensor]
        both = _Convolution.apply(padded_BTKC, weight_OCP, bias_O, *given)  # type: ignore[no-untyped-call]
        return both

    return convolve


def _of_pairs_by_kernels(
    layer: nn.Conv2d, inputs_BTCK: Sequence[Tensor], cond_BTK: Tensor, dtype: torch.dtype
) -> Callable[[int, int], list[tuple[Tensor, Tensor]]] | None:
    """The same of several inputs of one channel and of `cond` as another. None: they don't have it."""
    _, frames, channels, bands = inputs_BTCK[0].shape
    fast, others = kernels.of(dtype), kernels.outputs(layer.out_channels) - layer.out_channels
    if fast is None or others or channels != 1 or inputs_BTCK[0].dtype is not torch.float32:
        return None
    if not _has_kernels(layer, bands, dtype):
        return None
    ours = slice(_ends(layer, bands)[0], _ends(layer, bands)[0] + bands)
    tensors = (layer.weight.flatten(2), layer.bias, cond_BTK.float(), *(one[:, :, 0] for one in inputs_BTCK))
    shape = _shape(layer, bands, frames)

    def convolve(before: int, after: int) -> list[tuple[Tensor, Tensor]]:
        made = _OfPairs.apply(*tensors, (fast, shape, ours, before, after))  # type: ignore[no-untyped-call]
        return list(zip(made[::2], made[1::2], strict=True))

    return convolve


def _shape(layer: nn.Conv2d, bands: int, frames: int) -> kernels.Bands:
    (taps, window), (stride, step), channels = layer.kernel_size, layer.stride, layer.in_channels
    out_frames = (frames + 2 * (taps // 2) - taps) // stride + 1
    columns = (bands + sum(_ends(layer, bands))) * channels
    sizes = (frames, columns, channels, taps, window, stride, step)
    return kernels.Bands(*sizes, out_frames, _outputs(layer, bands), kernels.outputs(layer.out_channels))


def _outputs(layer: nn.Conv2d, bands: int) -> int:
    """Bands of what a layer makes of so many."""
    size, step = layer.kernel_size[1], layer.stride[1]
    return (bands + 2 * (size // 2) - size) // step + 1


class _Convolution(torch.autograd.Function):
    """See `Convolve`; by the kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        padded_BTKC: Tensor,
        weight_OCP: Tensor,
        bias_O: Tensor,
        fast: kernels.Kernels,
        shape: kernels.Bands,
        ours: slice,
        slope: float,
        before: int,
        after: int,
    ) -> tuple[Tensor, Tensor]:
        made_BTKC = padded_BTKC.new_empty(
            len(padded_BTKC), shape.out_frames, before + shape.bands + after, shape.outputs
        )
        weight_OCP = weight_OCP.contiguous()
        fast.convolve(shape, padded_BTKC, weight_OCP, bias_O, slope, made_BTKC, before)
        results_BTKC = made_BTKC[:, :, before : before + shape.bands]
        ctx.save_for_backward(padded_BTKC, weight_OCP, results_BTKC)
        ctx.fast, ctx.sizes, ctx.before = fast, (shape, ours, slope), before
        ctx.set_materialize_grads(False)
        return made_BTKC, results_BTKC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_padded: Tensor | None, of_results: Tensor | None) -> tuple[Tensor | None, ...]:
        padded_BTKC, weight_OCP, results_BTKC = ctx.saved_tensors
        shape, ours, slope = ctx.sizes
        given = _given(of_padded, of_results, ctx.before, shape.bands)
        if not given:
            return (None,) * 9
        of_weights = ctx.needs_input_grad[2] if not ctx.needs_input_grad[1] else _needs_gradient(ctx, 1)
        needs, judged = (_needs_gradient(ctx, 0), of_weights), [(given, results_BTKC, padded_BTKC)]
        made = ctx.fast.convolve_backward(shape, ours, judged, slope, weight_OCP, needs)
        return *made, *[None] * 6


class _OfPairs(torch.autograd.Function):
    """`_Convolution` of pairs of channels, the second of which is the same for all: where its gradient alone is asked
    for, as by a discriminator, those of the results are summed up before they are convolved, not after."""

    @staticmethod
    def forward(
        ctx: Any, weight_OCP: Tensor, bias_O: Tensor, cond_BTK: Tensor, *inputs_and_settings: Any
    ) -> tuple[Tensor, ...]:
        *inputs_BTK, (fast, shape, ours, before, after) = inputs_and_settings  # tensors first: see `_needs_gradient`
        weight_OCP, held, made = weight_OCP.contiguous(), [weight_OCP], []
        batch, frames, _ = cond_BTK.shape
        for one_BTK in inputs_BTK:
            padded = one_BTK.new_empty(batch, frames, shape.columns // 2, 2, dtype=torch.bfloat16)
            fast.paired(torch.stack([one_BTK, cond_BTK], dim=2), padded, ours.start)
            room = padded.new_empty(batch, shape.out_frames, before + shape.bands + after, shape.outputs)
            fast.convolve(shape, padded, weight_OCP, bias_O, SLOPE, room, before)
            results = room[:, :, before : before + shape.bands]
            made += [room, results]
            held += [padded, results]
        ctx.save_for_backward(*held)
        ctx.fast, ctx.sizes, ctx.before = fast, (shape, ours), before
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        weight_OCP, *held = ctx.saved_tensors
        shape, ours = ctx.sizes
        judged = {}
        for i, (padded, results) in enumerate(zip(held[::2], held[1::2], strict=True)):
            if given := _given(gradients[2 * i], gradients[2 * i + 1], ctx.before, shape.bands):
                judged[i] = (given, results, padded)
        of_inputs: list[Tensor | None] = [None] * (len(held) // 2)
        apart = any(_needs_gradient(ctx, 3 + i) for i in range(len(of_inputs)))
        of_weights = ctx.needs_input_grad[1] if not ctx.needs_input_grad[0] else _needs_gradient(ctx, 0)
        needs, parts = (apart or _needs_gradient(ctx, 2), of_weights), []
        for group in [[i] for i in judged] if apart else [list(judged)] * bool(judged):
            of_padded, *others = ctx.fast.convolve_backward(
                shape, ours, [judged[i] for i in group], SLOPE, weight_OCP, needs
            )
            of_both = None if of_padded is None else ctx.fast.unpaired(of_padded[:, :, ours])
            if apart and of_both is not None:
                of_inputs[group[0]] = of_both[:, :, 0]
            parts.append((*others, None if of_both is None else of_both[:, :, 1]))
        sums = [_sum(one) for one in zip(*parts, strict=True)] or [None] * 3
        return *sums, *of_inputs, None


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Of those that there are."""
    tensors = [one for one in parts if one is not None]
    return sum(tensors[1:], start=tensors[0]) if tensors else None


def _ends(layer: nn.Conv2d, bands: int) -> tuple[int, int]:
    """How many zeros `layer` needs before and after so many bands, for a whole number of its steps."""
    size, step = layer.kernel_size[1], layer.stride[1]
    before = size // 2
    after = step * (_outputs(layer, bands) - 1 - (-size // step)) - before - bands
    assert after >= 0, f"kernels of {size} bands do not overlap in steps of {step}"
    return before, after


def _folded_weight(layer: nn.Conv2d) -> Tensor:
    """Its weights for bands of which a step is one: (O, S x C, I, J)."""
    step, size = layer.stride[1], layer.kernel_size[1]
    padded_OCIJ = F.pad(in_format(layer.weight), (0, -size % step))
    weight_OSCIJ = padded_OCIJ.view(*padded_OCIJ.shape[:3], -1, step).permute(0, 4, 1, 2, 3)
    return weight_OSCIJ.flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _folded(layer: nn.Conv2d, weight_OCIJ: Tensor, padded_BTKC: Tensor) -> Tensor:
    """The convolution of padded bands, (B, T', K', O)."""
    folded_BTKC = padded_BTKC.view(*padded_BTKC.shape[:2], -1, layer.stride[1] * padded_BTKC.shape[3])
    folded_BCTK, side = folded_BTKC.permute(0, 3, 1, 2), layer.kernel_size[0] // 2
    if layer.stride[0] == 1 and folded_BCTK.shape[1] <= _FEW:
        bias_O = None if layer.bias is None else in_format(layer.bias)
        made_BOTK: Tensor = _OfFewChannels.apply(folded_BCTK, weight_OCIJ, bias_O, side)  # type: ignore[no-untyped-call]
        return made_BOTK.permute(0, 2, 3, 1)
    return F.conv2d(folded_BCTK, weight_OCIJ, layer.bias, (layer.stride[0], 1), (side, 0)).permute(0, 2, 3, 1)


_FEW, _LANES = 8, 16
"""Channels: of few, oneDNN computes as many as a register has lanes."""


class _OfFewChannels(torch.autograd.Function):
    """A convolution (B, C, T, K) -> (B, O, T, K') with `side` zeros before the first and after the last frame.

    The gradient of its input takes oneDNN five times as long as the convolution itself, and half of that for pairs of
    bands as one band of twice the channels.
    """

    @staticmethod
    def forward(ctx: Any, x_BCTK: Tensor, weight_OCIJ: Tensor, bias_O: Tensor | None, side: int) -> Tensor:
        ctx.save_for_backward(x_BCTK, weight_OCIJ)
        ctx.side, ctx.biases = side, None if bias_O is None else [len(bias_O)]
        return F.conv2d(x_BCTK, weight_OCIJ, bias_O, padding=(side, 0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BOTK: Tensor) -> tuple[Tensor | None, ...]:
        x_BCTK, weight_OCIJ = ctx.saved_tensors
        of_x_BCTK = of_weight_OCIJ = of_bias_O = None
        if _needs_gradient(ctx, 0):
            of_x_BCTK = _of_input(grad_BOTK, weight_OCIJ, x_BCTK.shape[3], ctx.side)
        if _needs_gradient(ctx, 1):
            given = (
                ctx.biases,
                [1, 1],
                [ctx.side, 0],
                [1, 1],
                False,
                [0, 0],
                1,
                [False, True, ctx.needs_input_grad[2]],
            )
            _, of_weight_OCIJ, of_bias_O = torch.ops.aten.convolution_backward(grad_BOTK, x_BCTK, weight_OCIJ, *given)
        return of_x_BCTK, of_weight_OCIJ, of_bias_O, None


def _needs_gradient(ctx: Any, at: int) -> bool:
    """Whether this backward pass asks for the gradient of input number `at`, which is no leaf of the graph."""
    return ctx.needs_input_grad[at] and bool(torch._C._will_engine_execute_node(ctx.next_functions[at][0]))


def _of_input(grad_BOTK: Tensor, weight_OCIJ: Tensor, bands: int, side: int) -> Tensor:
    """The gradient of the input (B, C, T, bands) of a convolution, as a convolution over pairs of bands; of two frames
    at once, where all this is not more than what oneDNN computes anyway."""
    outputs, channels, frames, size = weight_OCIJ.shape
    pairs, before = -(-bands // 2), size // 2  # pairs of bands, and those that reach into the first one
    grad_BTKO = grad_BOTK.permute(0, 2, 3, 1)
    batch, steps, kept, _ = grad_BTKO.shape
    rows = 2 if 4 * channels <= _LANES else 1
    padded_BTKO = grad_BTKO.new_empty(batch, steps + steps % rows, 2 * (before + pairs), outputs)
    ours = slice(2 * before, 2 * before + kept)
    _zero_ends(padded_BTKO, ours)
    padded_BTKO[:, :steps, ours] = grad_BTKO
    padded_BTKO[:, steps:] = 0
    turned_CIJO = weight_OCIJ.flip(2, 3).permute(1, 2, 3, 0)
    weight_RPCIJO = weight_OCIJ.new_zeros(rows, 2, channels, frames + rows - 1, 2 * before + 2, outputs)
    for row in range(rows):
        for one in range(2):
            end = one + 2 * before + 1
            weight_RPCIJO[row, one, :, row : row + frames, end - size : end] = turned_CIJO
    paired_OCIJ = weight_RPCIJO.view(rows * 2 * channels, -1, before + 1, 2 * outputs).permute(0, 3, 1, 2)
    paired_BCTK = padded_BTKO.view(batch, -1, before + pairs, 2 * outputs).permute(0, 3, 1, 2)
    made_BCTK = F.conv2d(paired_BCTK, paired_OCIJ, stride=(rows, 1), padding=(frames - 1 - side, 0))
    made_BTKRC = made_BCTK.permute(0, 2, 3, 1).reshape(batch, -1, pairs, rows, 2 * channels)
    made_BTKC = made_BTKRC.transpose(2, 3).reshape(batch, -1, 2 * pairs, channels)
    return made_BTKC[:, :steps, :bands].permute(0, 3, 1, 2)


def _scored(layer: nn.Conv2d, inputs_BCTK: Sequence[Tensor]) -> list[Tensor]:
    """What a centred convolution to one channel makes of each (B, C, T, K): (B, T, K)."""
    weight_1CIJ, bias_1 = in_format(layer.weight), None if layer.bias is None else in_format(layer.bias)
    scores_B1TK = [_ToOneChannel.apply(x, weight_1CIJ, bias_1) for x in inputs_BCTK]  # type: ignore[no-untyped-call]
    return [one.squeeze(1) for one in scores_B1TK]


class _ToOneChannel(torch.autograd.Function):
    """A centred convolution to one channel. Its gradients are products with the windows of that of its output, which
    are few numbers; oneDNN takes 3 to 10 times as long for them."""

    @staticmethod
    def forward(ctx: Any, x_BCTK: Tensor, weight_1CIJ: Tensor, bias_1: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_BCTK, weight_1CIJ)
        return F.conv2d(x_BCTK, weight_1CIJ, bias_1, padding=(weight_1CIJ.shape[2] // 2, weight_1CIJ.shape[3] // 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_B1TK: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_BCTK, weight_1CIJ = ctx.saved_tensors
        batch, channels, frames, kept = x_BCTK.shape
        height, width = weight_1CIJ.shape[2:]
        padded_BTK = F.pad(grad_B1TK[:, 0], (width // 2, width // 2, height // 2, height // 2))
        parts = [
            padded_BTK[:, row : row + frames, column : column + kept]
            for row in reversed(range(height))
            for column in reversed(range(width))
        ]
        windows_NP = torch.stack(parts, -1).view(-1, len(parts))
        of_x_BCTK = of_weight_1CIJ = None
        if _needs_gradient(ctx, 0):
            of_x_NC = windows_NP @ weight_1CIJ.view(channels, -1).t()
            of_x_BCTK = of_x_NC.view(batch, frames, kept, channels).permute(0, 3, 1, 2)
        if _needs_gradient(ctx, 1):
            of_weight_CP = x_BCTK.permute(0, 2, 3, 1).reshape(-1, channels).t() @ windows_NP
            of_weight_1CIJ = of_weight_CP.view(weight_1CIJ.shape)
        return of_x_BCTK, of_weight_1CIJ, grad_B1TK.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None


class _Padded(torch.autograd.Function):
    """(B, T, C, K) -> (B, T, K', C) in a number format, with zeros before and after the bands."""

    @staticmethod
    def forward(ctx: Any, x_BTCK: Tensor, before: int, after: int, dtype: torch.dtype) -> Tensor:
        batch, frames, channels, bands = x_BTCK.shape
        ctx.ours, ctx.dtype = slice(before, before + bands), x_BTCK.dtype
        padded = x_BTCK.new_empty(batch, frames, before + bands + after, channels, dtype=dtype)
        ctx.fast = kernels.of(dtype) if channels == 2 and x_BTCK.dtype is torch.float32 else None
        if ctx.fast is not None:
            ctx.fast.paired(x_BTCK.contiguous(), padded, before)
            return padded
        _zero_ends(padded, ctx.ours)
        padded[:, :, ctx.ours] = x_BTCK.transpose(2, 3)
        return padded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTKC: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.fast is not None:
            return ctx.fast.unpaired(grad_BTKC[:, :, ctx.ours]), None, None, None
        of_x_BTCK = grad_BTKC[:, :, ctx.ours].transpose(2, 3)
        return of_x_BTCK.to(ctx.dtype, memory_format=torch.contiguous_format), None, None, None


class _LeakyReLU(torch.autograd.Function):
    """(B, T, K, C) -> (B, T, K', C), with zeros before and after the bands; and the bands of it."""

    @staticmethod
    def forward(ctx: Any, x_BTKC: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
        batch, frames, bands, channels = x_BTKC.shape
        padded = x_BTKC.new_empty(batch, frames, before + bands + after, channels)
        ours = padded[:, :, before : before + bands]
        if (fast := kernels.of(x_BTKC.dtype)) is not None:
            fast.leaky(x_BTKC.contiguous(), SLOPE, padded, before)
        else:
            _zero_ends(padded, slice(before, before + bands))
            torch._C._nn.leaky_relu(x_BTKC, SLOPE, out=ours)
        ctx.before = before
        ctx.save_for_backward(ours)
        ctx.set_materialize_grads(False)
        return padded, ours

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_padded: Tensor | None, of_ours: Tensor | None) -> tuple[Tensor | None, None, None]:
        (ours,) = ctx.saved_tensors
        given = _given(of_padded, of_ours, ctx.before, ours.shape[2])
        if not given:
            return None, None, None
        if (fast := kernels.of(ours.dtype)) is not None:
            return fast.leaky_backward(given[0], given[1] if len(given) > 1 else None, ours, SLOPE), None, None
        if len(given) > 1:
            return _of_both(given[1], given[0], ours), None, None
        return torch.ops.aten.leaky_relu_backward(given[0], ours, SLOPE, True), None, None


def _given(of_padded: Tensor | None, of_ours: Tensor | None, before: int, bands: int) -> list[Tensor]:
    """The gradients of the bands that there are."""
    given = [] if of_ours is None else [of_ours]
    return given if of_padded is None else [*given, of_padded[:, :, before : before + bands]]


def _of_both(one: Tensor, other: Tensor, result: Tensor) -> Tensor:
    """The gradient of leaky ReLUs with this `result` from two of it, item by item: each stays in the cache."""
    of_input = torch.empty_like(result)
    for room, *parts, output in zip(of_input, one, other, result, strict=True):
        torch.add(*parts, out=room)
        torch.ops.aten.leaky_relu_backward.grad_input(room, output, SLOPE, True, grad_input=room)
    return of_input


def _zero_ends(padded_BTKC: Tensor, ours: slice) -> None:
    padded_BTKC[:, :, : ours.start] = 0
    padded_BTKC[:, :, ours.stop :] = 0


class _Compressed(torch.autograd.Function):
    """Complex values x (B, T, 2, K) times (|x|^2 + floor)^power."""

    @staticmethod
    def forward(ctx: Any, x_BTCK: Tensor, floor: float, power: float) -> Tensor:
        real_BTK, imaginary_BTK = x_BTCK.unbind(2)
        squares_BTK = torch.addcmul(real_BTK.square(), imaginary_BTK, imaginary_BTK).add_(floor)
        size_BTK = squares_BTK.pow(power)
        slope_BTK = torch.div(size_BTK, squares_BTK, out=squares_BTK).mul_(2.0 * power)
        ctx.save_for_backward(x_BTCK, size_BTK, slope_BTK)
        return x_BTCK * size_BTK[:, :, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTCK: Tensor) -> tuple[Tensor, None, None]:
        x_BTCK, size_BTK, slope_BTK = ctx.saved_tensors
        along_BTK = (grad_BTCK[:, :, 0] * x_BTCK[:, :, 0]).addcmul_(grad_BTCK[:, :, 1], x_BTCK[:, :, 1])
        return (grad_BTCK * size_BTK[:, :, None]).addcmul_(x_BTCK, along_BTK.mul_(slope_BTK)[:, :, None]), None, None


def compressed(x_BTCK: Tensor, floor: float, power: float) -> Tensor:
    """Complex values x (B, T, 2, K) times (|x|^2 + floor)^power."""
    if on_processor(x_BTCK):
        out: Tensor = _Compressed.apply(x_BTCK, floor, power)  # type: ignore[no-untyped-call]
        return out
    return x_BTCK * (x_BTCK.square().sum(2, keepdim=True) + floor).pow(power)
