#!/usr/bin/env bash
# A step that a GradScaler leaves out, because a scaled gradient overflowed, should leave no trace. One would guess that
# this holds for torch.optim.SGD(fused=True), too. If the first step is left out, as usual with the first loss scale,
# fused SGD keeps a momentum that nothing has written, and its first real step adds whatever was in that memory.
# A phonate user who repeats a run of training.optimizer.type=sgd in a plain loop of torch meets this: phonate writes the
# momentum itself before the first step.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1

cat > "$folder/steps.py" <<'CODE'
import torch

SIZE = 1000


def first_step(fused):
    """The weight after the first step that is not left out; every gradient that is not infinite is 1."""
    weight = torch.nn.Parameter(torch.ones(SIZE))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    for slope in (1e6, 1.0):  # the first one overflows once it is scaled
        scaler.scale((weight * slope).sum()).backward()
        used = [torch.full((SIZE,), 7.0) for _ in range(20)]  # memory that was used before, as after any training
        del used
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weight.detach().mean().item()


print("torch", torch.__version__)
plain, fused = first_step(False), [first_step(True) for _ in range(5)]
print(f"after the first step: {plain:.3f}; fused: {', '.join(f'{one:.3f}' for one in fused)}; 1 - 0.1 * 1 = 0.900")
assert abs(plain - 0.9) < 1e-6
if all(abs(one - 0.9) < 1e-6 for one in fused):
    raise SystemExit("fused SGD begins from no momentum now")
CODE
"$folder/venv/bin/python" "$folder/steps.py"
