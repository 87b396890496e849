#!/usr/bin/env bash
# One would guess that compressing an array leaves the array as it is. lilcom, by which Lhotse stores features, rounds the
# caller's own array in place, without a word: in float32 and contiguous, as features of torch and numpy are. It leaves
# float64 and views with gaps alone. The steps are as wide for small values as for large ones, 1/256 by default; Lhotse
# asks for 1/32, by which a speaker embedding of 192 values and length 1 keeps a cosine of 0.99 to itself.
# A phonate user meets it who writes features or embeddings in Lhotse's form and goes on with them: what is compared,
# normalised or trained on in that process is not what was computed, and a run that reads no cache differs from one that does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check lilcom==1.8.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import lilcom
import numpy as np

print("lilcom", version("lilcom"))
embeddings = np.random.default_rng(0).standard_normal((50, 192))
embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
changes = {}
for steps, tick_power in (("1/256", -8), ("1/32", -5)):
    wide = np.zeros((50, 384), np.float32)
    wide[:, ::2] = embeddings
    for name, array in (("float32", embeddings.astype(np.float32)), ("float64", embeddings.copy()), ("view", wide[:, ::2])):
        stored = lilcom.decompress(lilcom.compress(array, tick_power=tick_power))
        changes[name, tick_power] = np.abs(array - embeddings).max()
        cosine = ((stored * embeddings).sum(1) / np.linalg.norm(stored, axis=1)).mean()
        changed = f"the argument is changed by {changes[name, tick_power]:.4f}"
        print(f"steps of {steps}, {name}: {changed}; cosine of what is stored {cosine:.3f}")
    if name == "view" and not np.array_equal(wide[:, ::2], embeddings.astype(np.float32)):
        raise SystemExit("views are changed, too, now")
if changes["float32", -8] < 0.001 or changes["float32", -5] < 0.01:
    raise SystemExit("the argument stays as it is now")
if changes["float64", -5] > 0:
    raise SystemExit("float64 is changed, too, now")
PY
