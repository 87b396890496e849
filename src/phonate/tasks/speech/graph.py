"""The graph that is exported, from the numbers of symbols to a waveform, and its weights in fewer bits.

Shapes: I numbers of Piper, or inputs of a linear layer, O its outputs, R rules, L tokens, T frames,
N = (T - 1) * hop samples.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.audio.processor import PEAK
from phonate.nn.convolution import ConvNeXtBlock
from phonate.nn.vocoder import Vocoder
from phonate.tasks.speech.arrays import noise_table
from phonate.tasks.speech.model import ParallelModel, hertz

if TYPE_CHECKING:
    import onnx

# ---- What is exported: from the numbers of symbols to a waveform, in one module that ONNX can express

_SILENT = 1e-8


class _Gelu(nn.Module):
    """GELU in its approximation by tanh, in the order of products that ONNX Runtime computes in one pass."""

    def forward(self, x: Tensor) -> Tensor:
        within = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return (0.5 * x) * (1.0 + torch.tanh(within))


class SpokenText(nn.Module):
    """Tokens (1, L) -> waveform (1, 1, N), its peak 0.95: what the networks of a voice give for one
    sentence, without the silences and rises that `Synthesiser.speak` adds by rules."""

    noise: Tensor

    def __init__(self, acoustic: ParallelModel, vocoder: Vocoder) -> None:
        super().__init__()
        self.acoustic = copy.deepcopy(acoustic).eval()
        self.vocoder = copy.deepcopy(vocoder).eval()
        self.vocoder.fourier.use_products()
        for block in self.modules():
            if isinstance(block, ConvNeXtBlock):
                block.feed_forward[1] = _Gelu()
        self.register_buffer("noise", torch.from_numpy(noise_table()), persistent=False)

    def forward(self, tokens_1L: Tensor, scales_3: Tensor, speaker_1: Tensor | None = None) -> Tensor:
        """Tokens (1, L) -> waveform (1, 1, N).

        `scales_3` (3,): how much noise the decoder is given (1: as in training), how long everything is (2: half as
        fast), and Piper's noise of durations, of which this model has none."""
        return self.timed(tokens_1L, scales_3, speaker_1)[0]

    def timed(self, tokens_1L: Tensor, scales_3: Tensor, speaker_1: Tensor | None) -> tuple[Tensor, Tensor]:
        """That waveform, and the frames of each token (1, L)."""
        waveform_1N, frames_1L, _ = self.synthesise(tokens_1L, scales_3, speaker_1)
        peak = waveform_1N.abs().amax(dim=1).clamp_min(_SILENT)
        scaled: Tensor = (PEAK / peak) * waveform_1N
        return scaled[:, None], frames_1L

    def synthesise(
        self, tokens_1L: Tensor, scales_3: Tensor, speaker_1: Tensor | None, octaves: float | Tensor = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The waveform (1, N) at the level of the mel, the frames of each token (1, L), and the mel (1, T, M)."""
        noise_TN = self.noise * scales_3[0]
        speed = 1.0 / scales_3[1]
        mel_1TM, melody_1T2, frames_1L = self.acoustic.synthesise(tokens_1L, speaker_1, noise_TN, speed, octaves)
        waveform_1N: Tensor = self.vocoder(mel_1TM, hertz(melody_1T2))
        return waveform_1N, frames_1L, mel_1TM


class SpokenPage(nn.Module):
    """As `SpokenText`, for a page, which says where the pitch rises, and puts silences in where it is quiet."""

    def __init__(self, spoken: SpokenText) -> None:
        super().__init__()
        self.spoken = spoken

    def forward(
        self, tokens_1L: Tensor, scales_3: Tensor, semitones_1L2: Tensor, speaker_1: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The waveform (1, N) at the level of the mel, the frames of each token (1, L), and the mel (1, T, M).
        `semitones_1L2` (1, L, 2): added to the pitch at the beginning and the end of each token."""
        octaves_1L2 = semitones_1L2 / 12.0
        output: tuple[Tensor, Tensor, Tensor] = self.spoken.synthesise(tokens_1L, scales_3, speaker_1, octaves_1L2)
        return output


class Rule(NamedTuple):
    """The number `sent` means `meant` (0: nothing) behind one of `behind` and before one of `before`."""

    sent: int
    meant: int
    behind: Collection[int]
    before: Collection[int]


class _Rules(nn.Module):
    """Numbers (I,) without pads -> what they mean (I,). Each place is changed by one rule at most."""

    sent_R1: Tensor
    meant_R1: Tensor
    behind_RS: Tensor
    before_RS: Tensor

    def __init__(self, rules: Sequence[Rule], numbers: int) -> None:
        super().__init__()
        self.register_buffer("sent_R1", torch.tensor([[rule.sent] for rule in rules]), persistent=False)
        self.register_buffer("meant_R1", torch.tensor([[rule.meant] for rule in rules]), persistent=False)
        for name in ("behind", "before"):
            beside = [[number in getattr(rule, name) for number in range(numbers)] for rule in rules]
            self.register_buffer(f"{name}_RS", torch.tensor(beside, dtype=torch.long), persistent=False)

    def forward(self, numbers_I: Tensor) -> Tensor:
        pad_1 = torch.zeros_like(numbers_I[:1])  # beside the ends
        behind_RI = self.behind_RS[:, torch.cat((pad_1, numbers_I[:-1]))]
        before_RI = self.before_RS[:, torch.cat((numbers_I[1:], pad_1))]
        holds_RI = (numbers_I == self.sent_R1).long() * behind_RI * before_RI
        return numbers_I + (holds_RI * (self.meant_R1 - numbers_I)).sum(dim=0)


class SpokenPiper(nn.Module):
    """As `SpokenText`, of the numbers that Piper sends: each symbol followed by a pad, each mark by a space."""

    tokens_S: Tensor
    weights_S: Tensor

    def __init__(
        self,
        spoken: SpokenText,
        tokens: Sequence[int],
        weights: Sequence[int],
        start: int | None = None,
        rules: Sequence[Sequence[Rule]] = (),
    ) -> None:
        """For each of Piper's S numbers, our token, and its weight: 0 for what is not said, 1 for a phone, more for a
        boundary. Of boundaries without a phone between them the weightiest is said, and of equals the first. `start`: a
        number that is put in front of them, where the program sends none. `rules`: what numbers mean beside others, one
        list applied after the other."""
        super().__init__()
        self.spoken, self.start = spoken, start
        self.register_buffer("tokens_S", torch.tensor(tokens), persistent=False)
        self.register_buffer("weights_S", torch.tensor(weights), persistent=False)
        self.rules = nn.ModuleList(_Rules(stage, len(tokens)) for stage in rules)

    def tokens(self, numbers_1I: Tensor, lengths_1: Tensor) -> Tensor:
        """The tokens (1, L) of the first `lengths_1` of Piper's numbers."""
        return self.placed(numbers_1I, lengths_1)[0]

    def placed(self, numbers_1I: Tensor, lengths_1: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens (1, L) of the first `lengths_1` of Piper's numbers, and which of these each stands for (L,)."""
        if self.start is not None:
            start_11 = torch.full((1, 1), self.start, dtype=numbers_1I.dtype, device=numbers_1I.device)
            numbers_1I, lengths_1 = torch.cat((start_11, numbers_1I), dim=1), lengths_1 + 1
        places_I = torch.arange(numbers_1I.shape[1], device=numbers_1I.device)
        numbers_I = numbers_1I[0] * (places_I < lengths_1)
        if self.rules:
            places_I = torch.nonzero(numbers_I)[:, 0]
            numbers_I = numbers_I[places_I]
        for rules in self.rules:
            numbers_I = rules(numbers_I)
        tokens_I, weights_I = self.tokens_S[numbers_I], self.weights_S[numbers_I]
        boundary_I = weights_I > 1
        phones_before_I = torch.cumsum((weights_I == 1).long(), dim=0)
        beside_II = boundary_I[:, None] & boundary_I & (phones_before_I[:, None] == phones_before_I)
        # no two are of the same rank: of two equal boundaries the earlier one ranks higher
        order_I = torch.cumsum(torch.ones_like(tokens_I), dim=0)
        rank_I = weights_I * (tokens_I.shape[0] + 1) - order_I
        best_I = torch.where(beside_II, rank_I, torch.zeros_like(rank_I)).amax(dim=1)
        said_I = (weights_I == 1) | (boundary_I & (rank_I == best_I))
        said_L = torch.nonzero(said_I)[:, 0]
        return tokens_I[said_L][None], places_I[said_L]

    def forward(
        self, numbers_1I: Tensor, lengths_1: Tensor, scales_3: Tensor, speaker_1: Tensor | None = None
    ) -> Tensor:
        """The waveform (1, 1, N)."""
        waveform: Tensor = self.spoken(self.tokens(numbers_1I, lengths_1), scales_3, speaker_1)
        return waveform


class AlignedPiper(SpokenPiper):
    """As `SpokenPiper`, with the lengths that Piper gives as `phoneme_alignments`."""

    def forward(  # type: ignore[override]  # with those
        self, numbers_1I: Tensor, lengths_1: Tensor, scales_3: Tensor, speaker_1: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The waveform (1, 1, N), and how many hops of it each number takes (1, 1, I): 0 where nothing is said."""
        tokens_1L, places_L = self.placed(numbers_1I, lengths_1)
        waveform_11N, frames_1L = self.spoken.timed(tokens_1L, scales_3, speaker_1)
        # of T frames are T - 1 hops: the last that is not empty has one fewer
        ends_L = torch.cumsum(frames_1L[0], dim=0)
        ends_L = torch.minimum(ends_L, (ends_L[-1:] - 1).clamp_min(1))
        hops_L = torch.diff(ends_L, prepend=torch.zeros_like(ends_L[:1]))
        hops_I = torch.zeros(numbers_1I.shape[1], device=hops_L.device)
        return waveform_11N, hops_I.scatter(0, places_L, hops_L.float())[None, None]


# ------------------------------------------------------- Weights of an ONNX model stored in fewer bits

Dtype = Literal["fp32", "fp16", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
_SMALLEST = 4096
"""Numbers of a tensor that is worth it. Below are biases, and the tables of the Fourier transform."""
_MULTIPLIED = 1 << 16
"""Numbers of a matrix whose products gain by whole numbers. Smaller ones are those of the mel filters, where small
errors of levels are heard."""
_LARGEST_FP16 = float(np.finfo(np.float16).max)


def store(model: onnx.ModelProto, dtype: Dtype) -> None:
    """Store the fp32 tensors of `model` as `dtype`, in place.

    fp16: rounded. int8: the matrices (I, O) of linear layers are whole numbers with an fp32 scale for each output, by
    the largest weight of that output; large ones are multiplied so, too, with inputs of 8 bits. The rest is fp16. Small
    tensors stay fp32.
    """
    from onnx import numpy_helper

    if dtype == "fp32":
        return
    users: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            users[name].add((node.op_type, place))
    tensors, readers, multiplied = [], [], set()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < _SMALLEST or np.abs(values).max() > _LARGEST_FP16:
            tensors.append(tensor)
        elif dtype == "int8" and values.ndim == 2 and users[tensor.name] == {("MatMul", 1)}:
            if values.size >= _MULTIPLIED:
                multiplied.add(tensor.name)
                tensors += _whole(tensor.name, values, 64)
            else:
                tensors += _whole(tensor.name, values, 127)
                readers += _read(tensor.name)
        else:
            half = f"{tensor.name}.fp16"
            tensors.append(numpy_helper.from_array(values.astype(np.float16), half))
            readers.append(_cast(half, tensor.name))
    nodes = [*readers, *(one for node in model.graph.node for one in _multiplied(node, multiplied))]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(tensors)
    model.graph.node.extend(nodes)


def _whole(name: str, values_IO: NDArray[np.float32], largest: int) -> list[onnx.TensorProto]:
    """`values_IO` as whole numbers from -largest to largest, and their scales."""
    from onnx import numpy_helper

    scale_O = np.maximum(np.abs(values_IO).max(axis=0), np.finfo(np.float32).tiny) / np.float32(largest)
    return [
        numpy_helper.from_array(np.round(values_IO / scale_O).astype(np.int8), f"{name}.int8"),
        numpy_helper.from_array(scale_O.astype(np.float32), f"{name}.scale"),
    ]


def _read(name: str) -> list[onnx.NodeProto]:
    """The fp32 tensor `name`. Not by DequantizeLinear: that runs at each call, while these two are computed once."""
    from onnx import helper

    return [_cast(f"{name}.int8", f"{name}.wide"), helper.make_node("Mul", [f"{name}.wide", f"{name}.scale"], [name])]


def _multiplied(node: onnx.NodeProto, names: Collection[str]) -> list[onnx.NodeProto]:
    """A product by one of the matrices `names`, of whole numbers; other nodes as they are.

    Such matrices hold 7 bits: two products by 8 bits then add up within the 16 that older processors have for them.
    """
    from onnx import helper

    if node.op_type != "MatMul" or node.input[1] not in names:
        return [node]
    (given, name), (result,) = node.input, node.output
    whole, step, zero, summed, wide, scale = (
        f"{result}.{part}" for part in ("input", "step", "zero", "sum", "wide", "scale")
    )
    return [  # in this order, which onnxruntime computes in one pass
        helper.make_node("DynamicQuantizeLinear", [given], [whole, step, zero]),
        helper.make_node("MatMulInteger", [whole, f"{name}.int8", zero], [summed]),
        _cast(summed, wide),
        helper.make_node("Mul", [step, f"{name}.scale"], [scale]),
        helper.make_node("Mul", [wide, scale], [result]),
    ]


def _cast(name: str, result: str) -> onnx.NodeProto:
    from onnx import TensorProto, helper

    return helper.make_node("Cast", [name], [result], to=TensorProto.FLOAT)
