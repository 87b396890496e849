#!/usr/bin/env bash
# In RTTM a field that is not known is <NA>, so a speaker may be called NA. One would guess that a reader gives the name as
# it stands. pyannote.database reads the file with pandas, to which NA without brackets is a missing value too: the label is
# the number nan, which is equal to nothing, not even to itself, and sorts with no name.
# A phonate user whose speakers have initials meets this when another program reads what `phonate diarize` wrote; phonate
# keeps the name.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check pyannote.database==6.1.1 pyannote.core==6.0.1 pandas==2.3.3

cat > "$folder/names.rttm" <<'RTTM'
SPEAKER meeting 1 0.000 1.500 <NA> <NA> NA <NA> <NA>
SPEAKER meeting 1 2.000 1.500 <NA> <NA> MB <NA> <NA>
RTTM
cat > "$folder/names.py" <<'CODE'
import sys
from importlib.metadata import version

from pyannote.database.util import load_rttm

labels = [label for _, _, label in load_rttm(sys.argv[1])["meeting"].itertracks(yield_label=True)]
print("pyannote.database", version("pyannote.database"), "pandas", version("pandas"))
print("speakers NA and MB are read as", labels)
if labels[0] == "NA":
    raise SystemExit("the name is kept now")
assert labels[0] != labels[0], labels
assert labels[1] == "MB"
CODE
"$folder/venv/bin/python" "$folder/names.py" "$folder/names.rttm"
