#!/usr/bin/env bash
# One would guess that shifting all annotations of an ELAN file to the left, as where the beginning of a recording is cut off, moves
# each by as much, and that what then begins before 0 begins at 0. pympi's shift_annotations does the latter and leaves the end
# of such an annotation where it was: of a turn from 0.5 s to 3 s, shifted by 1 s, 2 s should remain, and it has 3 s, the last of
# which belongs to what is said next. Shifts to the right are right, and those by which nothing comes before 0.
# A phonate user meets it who trims recordings that have transcripts in ELAN: the first turn of each tier overlaps its
# followers, and a word spoken once is trained twice, in the wrong place. phonate reads ELAN itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir pympi-ling==1.71
cd "$folder"
cat > shift.py <<'PY'
from importlib.metadata import version

import pympi

print("pympi-ling", version("pympi-ling"))
turns = [(500, 3000, "good morning"), (3000, 4000, "how are you"), (5000, 6000, "fine")]


def shifted(by):
    file = pympi.Eaf(author="a")
    file.add_tier("Ann")
    for turn in turns:
        file.add_annotation("Ann", *turn)
    file.shift_annotations(by)
    return sorted(file.get_annotation_data_for_tier("Ann"))


for by in (1000, -400, -1000):
    print(f"shifted by {by} ms:", shifted(by))
for by in (1000, -400):
    assert shifted(by) == [(start + by, end + by, text) for start, end, text in turns]
if shifted(-1000) != [(0, 3000, "good morning"), (2000, 3000, "how are you"), (4000, 5000, "fine")]:
    raise SystemExit("the end of a turn that is cut is otherwise now")
PY
venv/bin/python shift.py
