"""Weights of an ONNX model stored in fewer bits. They are read back as fp32 when a runtime loads the model, so that
speaking takes as long as before, in every runtime.

Shapes: I inputs, O outputs of a linear layer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, get_args

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Dtype = Literal["fp32", "fp16", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
_SMALLEST = 4096
"""Numbers of a tensor that is worth it. Below are biases, and the tables of the Fourier transform."""
_LARGEST_FP16 = float(np.finfo(np.float16).max)


def store(model: onnx.ModelProto, dtype: Dtype) -> None:
    """Store the fp32 tensors of `model` as `dtype`, in place.

    fp16: rounded. int8: the matrices (I, O) of linear layers are whole numbers from -127 to 127, with an fp32 scale for
    each output, by the largest weight of that output; the rest is fp16. Small tensors stay fp32.
    """
    if dtype == "fp32":
        return
    users: defaultdict[str, set[str]] = defaultdict(set)
    for node in model.graph.node:
        for name in node.input:
            users[name].add(node.op_type)
    tensors, readers = [], []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < _SMALLEST or np.abs(values).max() > _LARGEST_FP16:
            tensors.append(tensor)
            continue
        linear = values.ndim == 2 and users[tensor.name] == {"MatMul"}
        stored, nodes = _scaled(tensor.name, values) if dtype == "int8" and linear else _rounded(tensor.name, values)
        tensors += stored
        readers += nodes
    nodes = [*readers, *model.graph.node]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(tensors)
    model.graph.node.extend(nodes)


Stored = tuple[list[onnx.TensorProto], list[onnx.NodeProto]]
"""Tensors, and the nodes that read an fp32 tensor from them."""


def _rounded(name: str, values: NDArray[np.float32]) -> Stored:
    half = f"{name}.fp16"
    return [numpy_helper.from_array(values.astype(np.float16), half)], [_as_fp32(half, name)]


def _scaled(name: str, values_IO: NDArray[np.float32]) -> Stored:
    scale_O = np.maximum(np.abs(values_IO).max(axis=0), np.finfo(np.float32).tiny) / np.float32(127)
    whole, scale, wide = f"{name}.int8", f"{name}.scale", f"{name}.wide"
    tensors = [
        numpy_helper.from_array(np.round(values_IO / scale_O).astype(np.int8), whole),
        numpy_helper.from_array(scale_O.astype(np.float32), scale),
    ]
    # not DequantizeLinear: that runs at each call, while these two are computed once
    return tensors, [_as_fp32(whole, wide), helper.make_node("Mul", [wide, scale], [name])]


def _as_fp32(name: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [name], [result], to=TensorProto.FLOAT)
