#!/usr/bin/env bash
# One would guess that with log_to_driver=False and configure_logging=False Ray writes nothing to the standard output of
# the process that uses it. When a worker dies, it prints a paragraph there, from a thread, in colours. A user of phonate
# meets this with `--json` or any other command whose output another program reads: one lost worker makes it unreadable.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
cat > "$folder/worker.py" <<'PYTHON'
import json
import os
import signal
import time

import ray

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)


@ray.remote(max_retries=0)
def work(die):
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


try:
    ray.get(work.remote(True))
except ray.exceptions.WorkerCrashedError:
    result = ray.get(work.remote(False))
time.sleep(3)
print(json.dumps({"version": ray.__version__, "result": result}))
ray.shutdown()
PYTHON
"$folder/venv/bin/python" "$folder/worker.py" > "$folder/out.json" 2> "$folder/err.txt"
cat "$folder/out.json"
grep -q '"result": "done"' "$folder/out.json"
if "$folder/venv/bin/python" -m json.tool "$folder/out.json" > "$folder/parsed.json" 2>&1; then
  echo "the standard output is the program's own now" && exit 1
fi
grep -q raylet "$folder/out.json"
