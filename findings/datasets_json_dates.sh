#!/usr/bin/env bash
# JSON has strings, and no dates. One would guess that a list of recordings in JSON gives its strings back. Hugging Face's
# datasets takes a column for times if each string in it could be one: sessions named by their days, 2021-03-04, are
# datetimes, and to_json writes them as numbers. A single session with another name, and all are strings.
# A phonate user who brings a list of recordings to the form of datasets meets it: speakers and sessions called by the day
# of the recording are called otherwise in the list and in the data set made from it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6 pandas==3.1.1
cd "$folder"
export HF_HOME="$folder/home" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
cat > dates.py <<'PY'
import json
from pathlib import Path

import datasets
import pyarrow

datasets.disable_progress_bars()
print("datasets", datasets.__version__, "pyarrow", pyarrow.__version__)


def loaded(name, sessions):
    Path(name).write_text("".join(json.dumps({"file": f"{i}.wav", "session": s}) + "\n" for i, s in enumerate(sessions)))
    return datasets.load_dataset("json", data_files=name, split="train")


days = loaded("days.jsonl", ["2021-03-04", "2021-03-05"])
mixed = loaded("mixed.jsonl", ["2021-03-04", "pilot"])
days.to_json("again.jsonl")
print("all days:", days.features["session"], repr(days[0]["session"]))
print("written again:", Path("again.jsonl").read_text().splitlines()[0])
print("one has another name:", mixed.features["session"], repr(mixed[0]["session"]))
assert mixed[0]["session"] == "2021-03-04"
if days[0]["session"] == "2021-03-04":
    raise SystemExit("strings are strings now")
PY
venv/bin/python dates.py
