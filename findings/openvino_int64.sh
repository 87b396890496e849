#!/usr/bin/env bash
# One would guess that a runtime whose outputs are int64 computes them as int64. OpenVINO's plugin for processors computes
# all whole numbers as int32, and gives the result as int64, without an error or a warning. A graph that turns positions of
# samples into milliseconds, samples * 1000 / 16000, is right for two minutes and wrong from then on, negative or not.
# onnxruntime computes int64.
# A phonate user meets it who runs an exported model (`phonate checkpoints export RUN --format onnx`) in OpenVINO and lets
# the graph compute times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cd "$folder"
cat > times.py <<'PY'
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

print(*(f"{name} {version(name)}" for name in ("openvino", "onnxruntime")), sep=", ")
constants = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("thousand", 1000), ("rate", 16_000))]
nodes = [
    helper.make_node("Mul", ["samples", "thousand"], ["thousands"]),
    helper.make_node("Div", ["thousands", "rate"], ["milliseconds"]),
]
inputs = [helper.make_tensor_value_info("samples", TensorProto.INT64, ["turns"])]
outputs = [helper.make_tensor_value_info("milliseconds", TensorProto.INT64, ["turns"])]
graph = helper.make_graph(nodes, "times", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
onnx.checker.check_model(model, full_check=True)
samples = {"samples": np.array([60, 130, 140, 3600], np.int64) * 16_000}
(right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, samples)
compiled = openvino.Core().compile_model(openvino.Core().read_model(model.SerializeToString()), "CPU")
given = compiled(samples)[0]
print("onnxruntime:", right.dtype, right.tolist())
print("OpenVINO:   ", given.dtype, given.tolist())
assert right.tolist() == [60_000, 130_000, 140_000, 3_600_000]
assert given.dtype == np.int64 and given.tolist()[:2] == right.tolist()[:2]
if given.tolist() == right.tolist():
    raise SystemExit("OpenVINO computes int64 now")
PY
venv/bin/python times.py
