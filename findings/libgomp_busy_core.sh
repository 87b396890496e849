#!/usr/bin/env bash
# One would guess that two threads of torch, on two cores of which another program keeps one busy, are at worst as fast
# as one thread, which has the free core to itself. They take almost twice as long: a thread that is done waits for the
# other by spinning (libgomp 300,000 times, as it knows of two cores and two threads), and the other has to share its
# core. With 1000 times, libgomp's own number where it has more threads than cores, most of the loss is gone.
# A phonate user who trains on a laptop and goes on working on it meets this; phonate sets GOMP_SPINCOUNT itself.
set -euo pipefail

folder="$(mktemp -d)"
busy=""
trap '[ -z "$busy" ] || kill "$busy"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
python="$folder/venv/bin/python"
unset OMP_NUM_THREADS OMP_WAIT_POLICY GOMP_SPINCOUNT
export CUDA_VISIBLE_DEVICES=""

cat > "$folder/steps.py" <<'CODE'
import sys
import time

import torch

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
parts = [part for _ in range(12) for part in (torch.nn.Conv1d(128, 128, 5, padding=2), torch.nn.GELU())]
network, inputs = torch.nn.Sequential(*parts), torch.randn(8, 128, 120)
started = 0.0
for step in range(30):
    if step == 5:
        started = time.perf_counter()
    network.zero_grad()
    network(inputs).square().mean().backward()
print(round((time.perf_counter() - started) / 25 * 1000, 1))
CODE

"$python" -c 'import torch; print("torch", torch.__version__)'
cores="$("$python" -c 'import os; print(",".join(map(str, sorted(os.sched_getaffinity(0))[:2])))')"
taskset -c "${cores#*,}" "$python" -c 'while True: pass' &
busy=$!
for round in 1 2 3; do
  taskset -c "$cores" "$python" "$folder/steps.py" 1 >> "$folder/one.txt"
  taskset -c "$cores" "$python" "$folder/steps.py" 2 >> "$folder/two.txt"
  GOMP_SPINCOUNT=1000 taskset -c "$cores" "$python" "$folder/steps.py" 2 >> "$folder/short.txt"
done
for name in one two short; do sort -n "$folder/$name.txt" | head -1 > "$folder/$name.best"; done
one="$(cat "$folder/one.best")" two="$(cat "$folder/two.best")" short="$(cat "$folder/short.best")"
echo "milliseconds a step on two cores, one of them busy: $one by one thread, $two by two, $short by two that spin less"
"$python" -c "import sys; one, two, short = $one, $two, $short; sys.exit(not (two > 1.3 * one and short < 0.9 * two))"
