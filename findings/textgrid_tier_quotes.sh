#!/usr/bin/env bash
# Praat writes a quotation mark within a string as two. One would guess that a reader of its TextGrids makes one of them
# everywhere. The package textgrid does so in labels, not in names of tiers: a tier called Ann "Doc" Lee comes back as
# Ann ""Doc"" Lee.
# A phonate user whose speakers are tiers with nicknames in quotation marks meets this when another script reads the file;
# phonate gives the names as Praat shows them.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check textgrid==1.6.1 praat-parselmouth==0.4.7 numpy==2.4.6

cat > "$folder/names.py" <<'CODE'
import sys
from importlib.metadata import version

import parselmouth
import textgrid

path = sys.argv[1]
made = parselmouth.TextGrid(0.0, 1.0, ["Ann"], [])
parselmouth.praat.call(made, "Set tier name", 1, 'Ann "Doc" Lee')
parselmouth.praat.call(made, "Set interval text", 1, 1, 'a "word"')
parselmouth.praat.call(made, "Save as text file", path)
tier = textgrid.TextGrid.fromFile(path)[0]
print("textgrid", version("textgrid"), "Praat", parselmouth.PRAAT_VERSION)
print("tier:", tier.name, "| label:", tier[0].mark)
assert tier[0].mark == 'a "word"', tier[0].mark
if tier.name == 'Ann "Doc" Lee':
    raise SystemExit("names of tiers are read as labels are now")
assert tier.name == 'Ann ""Doc"" Lee', tier.name
CODE
"$folder/venv/bin/python" "$folder/names.py" "$folder/names.TextGrid"
