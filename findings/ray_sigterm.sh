#!/usr/bin/env bash
# One would guess that connecting to a Ray cluster for a while leaves the process as it was. ray.init replaces the
# handler of SIGTERM, and ray.shutdown does not give it back: the process then ends at once when it is asked to stop. A
# user of phonate meets this who prepares a corpus over Ray and trains in the same process: a trainer that saves on
# SIGTERM, as clusters send before they take a machine away, must set its handler again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
cat > "$folder/handler.py" <<'PYTHON'
import signal

import ray


def save(number, frame):
    print("saved")


signal.signal(signal.SIGTERM, save)
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
during = signal.getsignal(signal.SIGTERM)
ray.shutdown()
after = signal.getsignal(signal.SIGTERM)
print(f"ray {ray.__version__}: SIGTERM calls {during.__qualname__} while connected, {after.__qualname__} after shutdown")
assert during is not save and after is not save, "Ray leaves the handler of SIGTERM alone now, or gives it back"
PYTHON
"$folder/venv/bin/python" "$folder/handler.py"
