#!/usr/bin/env bash
# One would guess that decode() of WebDataset makes objects of what it knows by its form (JSON, arrays, text) and leaves the
# rest as bytes. It also takes the files .id, .index, .cls and some others for whole numbers: speakers or clips called 0007
# and 007 are both 7, and lists that call them by name find neither. A name with letters raises DecodingError. .speaker remains
# bytes, and .transcript is text.
# A phonate user meets it whose shards have a file .id beside each recording: speakers are one, and a join with a list of
# labels is empty. In .json a name remains a name; phonate reads that.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir webdataset==1.0.2 numpy==2.4.6
cd "$folder"
cat > read.py <<'PY'
from importlib.metadata import version

import webdataset

print("webdataset", version("webdataset"))
names = ["0007", "007"]
with webdataset.TarWriter("shard.tar") as shard:
    for name in names:
        sample = {one: name.encode() for one in ("id", "index", "count", "speaker", "transcript")}
        shard.write({"__key__": f"clip{name}", **sample, "json": {"id": name}})
read = list(webdataset.WebDataset("shard.tar", shardshuffle=False).decode())
for name, sample in zip(names, read, strict=True):
    print(f"{name} is", {key: value for key, value in sample.items() if not key.startswith("__")})
assert [sample["json"]["id"] for sample in read] == [sample["transcript"] for sample in read] == names
if [sample["id"] for sample in read] != [7, 7]:
    raise SystemExit("identifiers are no numbers now")
PY
venv/bin/python read.py
