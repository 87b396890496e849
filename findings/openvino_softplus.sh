#!/usr/bin/env bash
# Softplus, log(1 + exp(x)), is above 0 for each x: networks end with it where they give a spread, a duration or a step of time.
# One would guess that a runtime gives at least 0. OpenVINO's plugin for processors gives -0.0000019 for some x between -29
# and -18, and 0 for many others. A logarithm or a root behind it is NaN. onnxruntime gives what is about exp(x).
# A phonate user meets it who runs an exported model in OpenVINO: a NaN in the rare frame of which the network is most certain.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.31.1 \
  numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper

print(*(f"{name} {version(name)}" for name in ("openvino", "onnxruntime")), sep=", ")
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["frames"]) for name in ("x", "spread", "root")]
nodes = [helper.make_node("Softplus", ["x"], ["spread"]), helper.make_node("Sqrt", ["spread"], ["root"])]
model = helper.make_model(
    helper.make_graph(nodes, "graph", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
)
onnx.checker.check_model(model, full_check=True)
model = model.SerializeToString()
x = np.linspace(-30, 0, 3001).astype(np.float32)
right, _ = onnxruntime.InferenceSession(model).run(None, {"x": x})
compiled = openvino.Core().compile_model(openvino.Core().read_model(model), "CPU")
given, root = (compiled([x])[index] for index in range(2))
for name, spread in (("onnxruntime", right), ("OpenVINO", given)):
    print(f"{name}: of {len(x)} from -30 to 0, {np.sum(spread < 0)} below 0 and {np.sum(spread == 0)} equal to 0", end="; ")
    print("least", spread.min(), "; of -20, -10 and -1:", *spread[[1000, 2000, 2900]])
print("roots that are NaN in OpenVINO:", np.isnan(root).sum())
assert (right > 0).all() and np.allclose(given, right, atol=1e-5)
if not ((given < 0).any() and np.isnan(root).any()):
    raise SystemExit("OpenVINO's softplus is not below 0 now")
PY
