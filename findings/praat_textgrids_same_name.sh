#!/usr/bin/env bash
# In Praat two tiers may have one name: two speakers with a tier "words" each are ordinary. One would guess that a reader of
# TextGrids gives both, as Praat does, or refuses the file, as praatio does. praat-textgrids keeps tiers in a dict: the last
# one replaces all others of its name, and what it writes has only that one, in a file that Praat opens.
# A phonate user meets it who cleans or shifts transcripts of conversations by it: all but one speaker are lost without a word.
# phonate reads every tier.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir praat-textgrids==1.4.0 praat-parselmouth==0.4.7 numpy==2.4.6
cd "$folder"
cat > tiers.py <<'PY'
from importlib.metadata import version
from pathlib import Path

import parselmouth
import textgrids
from parselmouth.praat import call

print(*(f"{name} {version(name)}" for name in ("praat-textgrids", "praat-parselmouth")))
grid = call("Create TextGrid", 0.0, 2.0, "words words", "")
for tier, text in ((1, "good morning"), (2, "hello")):
    call(grid, "Set interval text", tier, 1, text)
call(grid, "Save as text file", "two.TextGrid")
read = textgrids.TextGrid("two.TextGrid")
Path("again.TextGrid").write_text(read.format(), encoding="utf-8")
for name in ("two.TextGrid", "again.TextGrid"):
    grid = parselmouth.read(name)
    tiers = int(call(grid, "Get number of tiers"))
    print(f"{name}: Praat sees {tiers} tiers:", [call(grid, "Get label of interval", tier + 1, 1) for tier in range(tiers)])
print("praat-textgrids sees", {name: [interval.text for interval in tier] for name, tier in read.items()})
if len(read) != 1 or tiers != 1:
    raise SystemExit("both tiers are read now")
PY
venv/bin/python tiers.py
