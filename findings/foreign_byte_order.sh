#!/usr/bin/env bash
# A numpy array knows its byte order, and numpy computes with both. One would guess that what takes arrays converts the other
# order, as kaldi-native-fbank does, or refuses it, as PyAV, soxr and onnx do. soundfile looks at the name of the type, which is
# int16 for both, and writes the bytes as they lie: the file is loud noise. onnxruntime and ctranslate2 take them as they are,
# too: 0.5 is a number next to 0, and a network answers as if it heard nothing.
# A phonate user meets it with samples from the network (L16 of RTP), from SPHERE and AIFF read by numpy.frombuffer, and with
# embeddings that Java or a FITS file wrote: no error, and a corpus of noise. array.astype(array.dtype.newbyteorder("=")) mends it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir soundfile==0.14.0 onnxruntime==1.31.1 onnx==1.23.2 \
  ctranslate2==4.8.5 setuptools==80.9.0 numpy==2.4.6
cd "$folder"
cat > order.py <<'PY'
import sys
from importlib.metadata import version

import ctranslate2
import numpy as np
import onnxruntime
import soundfile
from onnx import TensorProto, helper

print(*(f"{name} {version(name)}" for name in ("soundfile", "onnxruntime", "ctranslate2", "numpy")))
assert sys.byteorder == "little"
wire = (8000 * np.sin(np.arange(16_000) / 8)).astype(">i2").tobytes()
samples = np.frombuffer(wire, ">i2")
rms = lambda values: float(np.sqrt(np.mean(np.square(values.astype(float)))))
soundfile.write("a.wav", samples, 16_000)
written = soundfile.read("a.wav", dtype="int16")[0]
print(f"soundfile: level of the array {rms(samples):.0f}, of the file {rms(written):.0f}")

features = np.array([0.5, 1.0, -2.0], ">f4")
assert np.array_equal(features * 2, [1.0, 2.0, -4.0])
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
heard = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": features})[0]
viewed = np.array(ctranslate2.StorageView.from_array(features))
print("features", features, "in onnxruntime", heard, "in ctranslate2", viewed)
wrong = [not np.array_equal(written, samples), not np.allclose(heard, features), not np.allclose(viewed, features)]
if not all(wrong):
    raise SystemExit(f"wrong in soundfile, onnxruntime, ctranslate2: {wrong}")
PY
venv/bin/python order.py
