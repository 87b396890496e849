#!/usr/bin/env bash
# One would guess that `import scipy.fft` brings Fourier transforms. It copies every name of numpy, and so imports numpy's
# generator of Fortran wrappers and its tests, beside scipy's special functions; what transforms loads in a hundredth of
# that. So phonate loads it by itself (`phonate/audio/fourier.py`).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1

cat > "$folder/imports.py" <<'CODE'
import sys
import time
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

import numpy

begun = time.process_time()
folders = [f"{folder}/fft/_pocketfft" for folder in find_spec("scipy").submodule_search_locations]
spec = PathFinder.find_spec("pypocketfft", folders)
spec.loader.exec_module(module_from_spec(spec))
loaded = time.process_time()
import scipy.fft

alone, whole = loaded - begun, time.process_time() - loaded
print(f"scipy {scipy.__version__}: pypocketfft takes {alone:.4f} s of processor time, import scipy.fft {whole:.4f}")
names = ("numpy.f2py", "numpy.testing", "scipy.special")
print("it imports", ", ".join(name for name in names if name in sys.modules))
sys.exit(not all(name in sys.modules for name in names))
CODE
"$folder/venv/bin/python" "$folder/imports.py"
