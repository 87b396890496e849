#!/usr/bin/env bash
# One would guess that clustering speaker embeddings leaves them as they are. FastClustering of sherpa-onnx brings each
# row of the caller's own array to length 1, without a word. Arrays that are not contiguous it refuses.
# A phonate user meets it who clusters embeddings by it and then takes a speaker's mean, weights turns by length or writes the
# embeddings to a file: what is compared with embeddings of another day is not what the network gave, and means of a few
# loud and many weak embeddings differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir sherpa-onnx==2.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import sherpa_onnx

print("sherpa-onnx", sherpa_onnx.__version__)
embeddings = np.array([[3, 0, 0], [2, 0.1, 0], [0, 1, 0], [0, 5, 0.2]], np.float32)
before = embeddings.copy()
clustering = sherpa_onnx.FastClustering(sherpa_onnx.FastClusteringConfig(num_clusters=-1, threshold=0.5))
speakers = list(clustering(embeddings))
print("speakers", speakers)
print("lengths before", np.linalg.norm(before, axis=1).round(3).tolist(), "after", np.linalg.norm(embeddings, axis=1).round(3).tolist())
assert speakers == [0, 0, 1, 1]
if np.array_equal(embeddings, before):
    raise SystemExit("embeddings remain as they are now")
PY
