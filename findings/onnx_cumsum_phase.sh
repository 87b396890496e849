#!/usr/bin/env bash
# A source of a voice's harmonics adds up f0 / sample rate and takes the sine. One would guess that an exported model adds up
# float32 as torch does. torch adds up in float64 on a processor and rounds each sum, so its float32 is right to a thousandth
# of a cycle; onnxruntime's and OpenVINO's CumSum add up in float32. Since the same error comes with each sample, it is no
# noise that averages out: the phase is cycles off after seconds, and the tone is out of tune, the more the longer it lasts.
# A phonate user meets it who exports a vocoder with such a source (NSF, as in RVC and so-vits-svc) and compares it with torch.
# phonate adds up cycles in float64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir torch==2.13.0 onnx==1.23.2 onnxruntime==1.31.1 \
  openvino==2026.4.1 numpy==2.4.6
CUDA_VISIBLE_DEVICES="" "$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
import openvino
import torch
from onnx import TensorProto, helper, numpy_helper

print(*(f"{name} {version(name)}" for name in ("torch", "onnxruntime", "openvino")), sep=", ")
graph = helper.make_graph(
    [helper.make_node("CumSum", ["x", "axis"], ["y"])],
    "graph",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["samples"])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["samples"])],
    [numpy_helper.from_array(np.array(0), "axis")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
onnx.checker.check_model(model, full_check=True)
model = model.SerializeToString()
rate, hertz = 24_000, 217.3
steps = np.full(60 * rate, hertz / rate, np.float32)
right = np.cumsum(steps.astype(np.float64))
sums = {
    "torch": torch.cumsum(torch.from_numpy(steps), 0).numpy(),
    "onnxruntime": onnxruntime.InferenceSession(model).run(None, {"x": steps})[0],
    "OpenVINO": openvino.Core().compile_model(openvino.Core().read_model(model), "CPU")([steps])[0],
}
for name, cycles in sums.items():
    errors = [cycles[seconds * rate - 1] - right[seconds * rate - 1] for seconds in (1, 10, 60)]
    heard = (cycles[-1] - cycles[-1 - rate]) / (right[-1] - right[-1 - rate]) * hertz
    print(f"{name}: cycles off after 1, 10 and 60 s: {', '.join(f'{one:.4f}' for one in errors)}; the last second: {heard:.2f} Hz")
assert np.abs(sums["torch"] - right).max() < 1e-3
if min(np.abs(sums[name] - right).max() for name in ("onnxruntime", "OpenVINO")) < 1:
    raise SystemExit("CumSum adds up exactly now")
PY
