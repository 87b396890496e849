#!/usr/bin/env bash
# A UEM file says which parts of a recording are scored, and NIST's often name several parts of one recording. One would
# guess that MeetEval, which has a class for UEM and a command that takes one, reads such a file. It raises a ValueError,
# because it keeps one region a recording.
# Anyone who scores the output of `phonate diarize` against several regions meets this; `phonate score --uem` takes them.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check meeteval==0.4.3 numpy==2.4.6 scipy==1.17.1

printf 'meeting 1 0.000 10.000\nmeeting 1 20.000 30.000\n' > "$folder/two.uem"
printf 'meeting 1 0.000 10.000\n' > "$folder/one.uem"
cat > "$folder/regions.py" <<'CODE'
import sys

import meeteval

print("meeteval", meeteval.__version__)
print("one region:", meeteval.io.UEM.load(sys.argv[1]))
try:
    two = meeteval.io.UEM.load(sys.argv[2])
except ValueError as error:
    print("two regions of one recording: ValueError:", error)
else:
    raise SystemExit(f"two regions are read now: {two}")
CODE
"$folder/venv/bin/python" "$folder/regions.py" "$folder/one.uem" "$folder/two.uem"
