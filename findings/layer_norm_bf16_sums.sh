#!/usr/bin/env bash
# Under autocast, a layer norm on a processor is given bf16 by the layer before it, while its weights are fp32, and so are
# their gradients. One would guess that these are sums of a few thousand rows as exact as other layers' sums, which torch
# computes in fp32. It adds the rows up in bf16, one by one: once a sum is 256 times as large as what a row adds, nothing
# is added any more. In phonate 64 % of the gradient of the biases of a ConvNeXt block was wrong after 2,100 frames: its
# layer norms add up in fp32 by themselves.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1

cat > "$folder/sums.py" <<'CODE'
import torch


def error(rows, wide):
    """How far the gradient of the biases is from the sum over rows that it should be, as a share of it."""
    torch.manual_seed(0)
    x, of_output = torch.randn(rows, 64).bfloat16(), torch.rand(rows, 64).bfloat16()
    norm = torch.nn.LayerNorm(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = norm(x.float() if wide else x)
    output.backward(of_output.to(output.dtype))
    total = of_output.double().sum(0)
    return float((norm.bias.grad.double() - total).norm() / total.norm())


print("torch", torch.__version__)
for rows in (100, 1_000, 10_000):
    print(f"{rows:6d} rows: wrong by {error(rows, False):.4f}; of fp32, by {error(rows, True):.7f}")
assert error(10_000, True) < 1e-5
if error(10_000, False) < 1e-3:
    raise SystemExit("gradients of layer norms are added up in fp32 now")
CODE
"$folder/venv/bin/python" "$folder/sums.py"
