#!/usr/bin/env bash
# One would guess that `accelerate launch --cpu --num_processes=2` starts two processes on the CPU. It starts one, and
# says nothing about the number; `--multi_gpu`, which sounds as if it needed GPUs, starts two on a machine that has none.
# A phonate user who runs `accelerate launch -m phonate train` on processors gets half the batch that was meant.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check accelerate==1.15.0 torch==2.13.0
python="$folder/venv/bin/python"
export HF_HOME="$folder/home" CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1

cat > "$folder/worker.py" <<'CODE'
import os

print("process", os.environ.get("RANK", "0"), "of", os.environ.get("WORLD_SIZE", "1"), flush=True)
CODE
"$python" -c 'import accelerate; print("accelerate", accelerate.__version__)'
for mode in --cpu --multi_gpu; do
  "$python" -m accelerate.commands.accelerate_cli launch "$mode" --num_processes=2 --num_machines=1 \
    --main_process_port=0 --mixed_precision=no --dynamo_backend=no "$folder/worker.py" >"$folder/$mode.txt" 2>"$folder/$mode.err"
  echo "accelerate launch $mode --num_processes=2:"
  sort "$folder/$mode.txt"
done
grep -qi "num_processes" "$folder/--cpu.err" && { echo "--cpu warns of the number now"; exit 1; }
[ "$(grep -c '^process' "$folder/--cpu.txt")" = 1 ]
[ "$(grep -c '^process' "$folder/--multi_gpu.txt")" = 2 ]
