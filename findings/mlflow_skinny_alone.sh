#!/usr/bin/env bash
# One would guess that mlflow-skinny, the light client of MLflow, records a run by its own defaults, into ./mlruns or
# its default address. Its default address is a SQLite file, which it has no code to open: the first call ends in
# UnsupportedModelRegistryStoreURIException. A folder (file:...) is refused, too, unless MLFLOW_ALLOW_FILE_STORE is set.
# A phonate user meets it with training.logging.mlflow on a machine with the light client: it needs a server, whose
# address MLFLOW_TRACKING_URI names, or the whole package.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check mlflow-skinny==3.17.2
cd "$folder"
unset MLFLOW_TRACKING_URI MLFLOW_ALLOW_FILE_STORE

"$folder/venv/bin/python" - <<'PY'
import os
import sys

import mlflow


def outcome(address):
    if address is not None:
        mlflow.set_tracking_uri(address)
    try:
        with mlflow.start_run(run_name="one"):
            mlflow.log_metric("loss", 1.0, step=1)
    except Exception as error:
        return type(error).__name__
    return "recorded"


default = mlflow.get_tracking_uri()
found = {"default": outcome(None), "folder": outcome(f"file://{os.getcwd()}/runs")}
print("mlflow-skinny", mlflow.__version__)
print("default address:", default.partition(":")[0])
print(found)
expected = {"default": "UnsupportedModelRegistryStoreURIException", "folder": "MlflowException"}
sys.exit(0 if default.startswith("sqlite") and found == expected else "the behaviour has changed")
PY
