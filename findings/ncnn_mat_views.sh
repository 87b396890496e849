#!/usr/bin/env bash
# One would guess that ncnn.Mat, made of an array of numpy, holds that array, or refuses it. It takes the shape and the
# address and no strides: features that were transposed (frames by bands to bands by frames, as convolutions want them) have the
# right shape and the values in the wrong order, and each second frame is the first half of all frames.
# A phonate user meets it who runs an exported network in ncnn from Python: it answers without an error, and badly.
# numpy.ascontiguousarray mends it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir ncnn==1.0.20261020 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import ncnn
import numpy as np

print("ncnn", version("ncnn"))
features = np.arange(12, dtype=np.float32).reshape(4, 3)
views = {"as it is": features, "transposed": features.T, "each second frame": features[::2]}
views["without the first band"] = features[:, 1:]
wrong = set()
for name, view in views.items():
    held = np.array(ncnn.Mat(view))
    print(f"{name}: {view.astype(int).tolist()} is held as {held.astype(int).tolist()}")
    assert held.shape == view.shape
    assert np.array_equal(np.array(ncnn.Mat(np.ascontiguousarray(view))), view)
    if not np.array_equal(held, view):
        wrong.add(name)
assert "as it is" not in wrong
if len(wrong) != 3:
    raise SystemExit("views are held rightly, or refused, now")
PY
