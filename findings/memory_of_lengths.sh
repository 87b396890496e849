#!/usr/bin/env bash
# A convolution computed without gradients should need no more memory after four hundred inputs of different lengths than
# after the longest of them. On an x86 processor torch keeps, for every length it has seen, the code that oneDNN compiled
# and what goes with it, for up to 1,024 shapes: 0.5 MB a length for a layer whose weights take 0.9 MB. That looks like a
# leak, and a network of a hundred layers meets the limit within a few batches, and compiles on from then on.
# A phonate user meets this in a loop of torch over recordings of any length; phonate trains speech and recognition in few
# lengths (training.performance.batch_shim).
set -euo pipefail
if [ "$(uname -m)" != x86_64 ]; then echo "needs an x86 processor"; exit 2; fi

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 psutil==7.1.3
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1

cat > "$folder/lengths.py" <<'CODE'
import psutil
import torch

LENGTHS = range(40, 840, 2)


def megabytes():
    return psutil.Process().memory_info().rss / 1e6


layer = torch.nn.Conv1d(192, 192, 7, padding=3)
with torch.no_grad():
    for _ in range(20):
        layer(torch.zeros(1, 192, max(LENGTHS)))
    before = megabytes()
    for length in LENGTHS:
        layer(torch.zeros(1, 192, length))
print(round(megabytes() - before))
CODE
"$folder/venv/bin/python" -c 'import torch; print("torch", torch.__version__, "oneDNN", torch.backends.mkldnn.is_available())'
kept="$("$folder/venv/bin/python" "$folder/lengths.py")"
few="$(ONEDNN_PRIMITIVE_CACHE_CAPACITY=8 "$folder/venv/bin/python" "$folder/lengths.py")"
echo "400 lengths after the longest: $kept MB more; with ONEDNN_PRIMITIVE_CACHE_CAPACITY=8: $few MB"
if [ "$kept" -lt 60 ]; then echo "lengths are no longer kept"; exit 1; fi
if [ "$few" -gt 40 ]; then echo "the limit no longer limits"; exit 1; fi
