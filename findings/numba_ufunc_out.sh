#!/usr/bin/env bash
# One would guess that a ufunc made by numba.vectorize only writes to `out`, as NumPy's own ufuncs do. It first converts
# what `out` holds, where its type is narrower than that of the result: bits of np.empty that happen to be a signalling
# NaN give "RuntimeWarning: invalid value encountered in cast", now and then. The result is right.
# A phonate user met it in the evaluation of a converter with librosa 1.0, whose util.phasor (of pitch_shift) gives
# np.empty of complex64 to such a ufunc, which computes in complex128. phonate passes the warning on no more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check numba==0.68.1 numpy==2.4.6
cd "$folder"
cat > out.py <<'PY'
import warnings

import numba
import numpy as np

print("numba", numba.__version__, "numpy", np.__version__)
angles = np.linspace(0, 3, 100)
right = np.exp(1j * angles)


@numba.vectorize(nopython=True)
def phasor(angle):
    return np.cos(angle) + 1j * np.sin(angle)


def warned(compute, bits):
    """What is warned of while `compute` writes complex64 over memory that is full of `bits`."""
    out = np.empty(len(angles), np.complex64)
    out.view(np.uint32)[:] = bits
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compute(out)
    assert np.allclose(out, right, atol=1e-6)
    return [str(one.message) for one in said]


def by_numpy(out):
    np.exp(1j * angles, out=out, casting="same_kind")


def by_numba(out):
    phasor(angles.astype(np.float32), out)


told = {}
for bits, what in ((0, "zeros"), (0x7F800001, "signalling NaNs")):
    for by in (by_numpy, by_numba):
        told[what, by] = warned(by, bits)
        print(f"{by.__name__} over {what}: {told[what, by] or 'no warning'}")
print("computes", phasor.types)
assert not told["zeros", by_numba]
assert not told["signalling NaNs", by_numpy]
if told["signalling NaNs", by_numba] != ["invalid value encountered in cast"]:
    raise SystemExit("numba's ufunc leaves the content of out alone now")
PY
venv/bin/python out.py
