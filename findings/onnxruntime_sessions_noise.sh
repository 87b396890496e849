#!/usr/bin/env bash
# One would guess that a graph with random noise and no seed, as torch exports randn_like, draws other noise whenever it is
# loaded. onnxruntime draws one seed for a process, at its start: each session of one model begins with the same noise, and
# goes on with the same. Runs of one session differ, and so do processes, which is why nobody sees it when trying it out.
# A phonate user meets it with voices of Piper, whose graphs draw noise for rhythm and sound: a server that loads the voice
# for each request, or in several workers of one process, speaks a sentence the same way each time, and several takes to choose
# from are one take.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/noise.py" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

graph = helper.make_graph(
    [helper.make_node("RandomNormalLike", ["x"], ["noise"])],
    "graph",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["samples"])],
    [helper.make_tensor_value_info("noise", TensorProto.FLOAT, ["samples"])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
onnx.checker.check_model(model, full_check=True)
zeros = {"x": np.zeros(4, np.float32)}
print("onnxruntime", onnxruntime.__version__, "in a process:")
takes = []
for name in ("first", "second"):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    takes.append([session.run(None, zeros)[0].tolist() for run in range(2)])
    for run, noise in enumerate(takes[-1], start=1):
        print(f"  {name} session, run {run}:", *(f"{one:.4f}" for one in noise))
assert takes[0][0] != takes[0][1]
np.save(sys.argv[1], takes[0])
if takes[0] != takes[1]:
    raise SystemExit("sessions draw noise of their own now")
PY
"$folder/venv/bin/python" "$folder/noise.py" "$folder/one.npy"
"$folder/venv/bin/python" "$folder/noise.py" "$folder/two.npy"
if cmp -s "$folder/one.npy" "$folder/two.npy"; then
  echo "processes draw the same noise now"
  exit 1
fi
