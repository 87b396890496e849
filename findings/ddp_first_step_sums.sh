#!/usr/bin/env bash
# One would guess that training on three processes with DistributedDataParallel, stopped after some steps and continued
# from its weights on the same data, ends with the same weights to the bit as training that was not stopped: each step is
# the same arithmetic, and gloo itself is deterministic. torch 2.13.0 arranges gradients anew after the first backward pass
# of a process, in the order in which they became ready, and the place of a gradient in its bucket decides in which order
# three summands are added. So the first step after a resume differs in the last bits. Two processes agree: a + b = b + a.
# phonate runs the first backward pass of a process twice, and uses the second. Its users, and everyone who compares a
# resumed run with an undisturbed one, meet this on three processes or more.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5

cat > "$folder/train.py" <<'CODE'
import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """Its layers are used in another order than the one in which they are made."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(37, 37) for _ in range(5))

    def forward(self, x):
        for number in (3, 0, 4, 1, 2):
            x = torch.tanh(self.layers[number](x))
        return x


def train(first, last, state):
    torch.manual_seed(0)
    model = Model()
    if state is not None:
        model.load_state_dict(state)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, last):
        torch.manual_seed(100 * step + dist.get_rank())
        ddp(torch.randn(8, 37)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


def digest(state):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()[:12]


torch.set_num_threads(1)
dist.init_process_group("gloo")
undisturbed = train(0, 6, None)
again = train(0, 6, None)
resumed = train(3, 6, train(0, 3, None))
if dist.get_rank() == 0:
    largest = max(float((resumed[name] - undisturbed[name]).abs().max()) for name in resumed)
    same = digest(undisturbed) == digest(again)
    print(f"undisturbed {digest(undisturbed)} (again: {same}), resumed {digest(resumed)}, difference up to {largest:.1e}")
    sys.exit(0 if same and (largest > 0) == (dist.get_world_size() > 2) else "this has changed")
dist.destroy_process_group()
CODE

"$folder/venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
for ranks in 2 3; do
  echo -n "$ranks processes: "
  OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run --standalone --nproc_per_node="$ranks" "$folder/train.py"
done
