#!/usr/bin/env bash
# One would guess that making a graph smaller leaves noise random, as onnxsim, onnxruntime and onnxscript's optimizer do: they
# compute beforehand what is constant, but not what is drawn. onnxslim draws once and stores the result: noise whose size is
# known (torch.randn of a fixed shape, RandomNormal, Bernoulli) is the same in each call and each process from then on. Noise
# in the shape of an input of any length (randn_like) remains.
# A phonate user meets it who slims an exported voice of fixed length, as a flow-matching or diffusion decoder that
# works in blocks: each block gets the same noise, and takes to choose from are one take.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir onnxslim==0.1.98 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cd "$folder"
cat > noise.py <<'PY'
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
import onnxslim
from onnx import TensorProto, helper

print(*(f"{name} {version(name)}" for name in ("onnxslim", "onnxruntime", "onnx")))


def graph(length, nodes):
    """x + noise"""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length]) for name in "xy"]
    nodes = [*nodes, helper.make_node("Add", ["x", "noise"], ["y"])]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random(model):
    """Whether two calls of it differ."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    first, second = (session.run(None, {"x": np.zeros((1, 8), np.float32)})[0] for _ in range(2))
    return not np.array_equal(first, second)


shape = [
    helper.make_node("Shape", ["x"], ["shape"]),
    helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
    helper.make_node("RandomNormalLike", ["zeros"], ["noise"]),
]
cases = {
    "torch.randn(1, 8)": graph(8, [helper.make_node("RandomNormal", [], ["noise"], shape=[1, 8])]),
    "noise in the shape of a block of 8": graph(8, shape),
    "noise in the shape of any length": graph("length", shape),
}
seen = {}
for name, model in cases.items():
    onnx.checker.check_model(model)
    small = onnxslim.slim(model)
    seen[name] = (random(model), random(small))
    print(f"{name}: random {seen[name][0]}, slimmed {seen[name][1]}: {[node.op_type for node in small.graph.node]}")
if list(seen.values()) != [(True, False), (True, False), (True, True)]:
    raise SystemExit("other noise is constant now")
PY
venv/bin/python noise.py
