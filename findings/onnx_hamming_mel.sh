#!/usr/bin/env bash
# ONNX has operators for features: windows, and MelWeightMatrix. One would guess that a Hamming window is that of torch, scipy
# and Kaldi, 0.54 - 0.46 cos, and that the mel bands are triangles between their true edges, as HTK's and librosa's
# (htk=True, norm=None). HammingWindow is 25/46 - 21/46 cos, 0.087 at its ends instead of 0.08. MelWeightMatrix moves each edge
# to a line of the spectrum: of 80 bands at 16 kHz and 512 points 18 hear one line only, and two hear the same as the band
# below.
# A phonate user meets it who puts the features of a recogniser or a converter into the graph by these operators: the network
# gets other features than it was trained on, without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def run(operator, shape, *values):
    """What an operator gives for constants."""
    names = [f"input{index}" for index in range(len(values))]
    constants = [numpy_helper.from_array(value, name) for value, name in zip(values, names, strict=True)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"])], "graph", [], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {})[0]


def mel(hertz):
    return 2595 * np.log10(1 + hertz / 700)


print("onnxruntime", onnxruntime.__version__)
cosine = np.cos(2 * np.pi * np.arange(400) / 400)
given, usual = run("HammingWindow", [400], np.array(400)), 0.54 - 0.46 * cosine
print(f"Hamming window: ends {given[0]:.4f}, middle {given[200]:.4f}; the usual one {usual[0]:.4f}, {usual[200]:.4f}")
assert np.allclose(run("HannWindow", [400], np.array(400)), 0.5 - 0.5 * cosine, atol=1e-5)
sizes = [np.array(size) for size in (80, 512, 16_000)] + [np.array(edge, np.float32) for edge in (20, 8000)]
bands = run("MelWeightMatrix", [257, 80], *sizes).T
edges = 700 * (10 ** (np.linspace(mel(20), mel(8000), 82) / 2595) - 1)
lines = np.linspace(0, 8000, 257)
rising = (lines - edges[:-2, None]) / np.diff(edges)[:-1, None]
falling = (edges[2:, None] - lines) / np.diff(edges)[1:, None]
triangles = np.clip(np.minimum(rising, falling), 0, None)
for name, matrix in (("MelWeightMatrix", bands), ("triangles", triangles)):
    single = np.sum((matrix > 0).sum(1) == 1)
    twice = np.sum((np.diff(matrix, axis=0) == 0).all(1))
    print(f"{name}: {single} of 80 bands hear one line, {twice} the same as the band below; first bands", *matrix[:3, :5].round(2))
wrong = np.abs(bands.sum(1) / triangles.sum(1) - 1)
print(f"sums of bands differ by {wrong.max():.0%} at most, {np.median(wrong):.1%} in the middle")
if np.abs(given - usual).max() < 1e-3 or np.abs(bands - triangles).max() < 1e-2:
    raise SystemExit("the window or the bands are the usual ones now")
PY
