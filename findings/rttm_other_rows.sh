#!/usr/bin/env bash
# RTTM, as NIST defined it, has rows of many types: beside SPEAKER there are words (LEXEME), laughs (NON-LEX), noise
# (NON-SPEECH) and stretches that are not scored (NOSCORE). One would guess that a reader of speakers' turns takes the
# SPEAKER rows. MeetEval's and spyder's take every row for a turn: noise has a speaker, called <NA>, and a perfect
# diarization has a DER of 44 %. pyannote.database takes the SPEAKER rows.
# A phonate user who scores against NIST's own references meets this; phonate takes the SPEAKER rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check meeteval==0.4.3 spy-der==0.4.1 numpy==2.4.6 scipy==1.17.1 \
    pyannote.database==6.1.1 pyannote.core==6.1.0 pandas==2.3.3
cd "$folder"
cat > reference.rttm <<'RTTM'
SPEAKER rec 1 0.0 5.0 <NA> <NA> ann <NA> <NA>
LEXEME rec 1 0.5 0.5 hello lex ann <NA> <NA>
NON-LEX rec 1 1.5 0.5 <NA> laugh ann <NA> <NA>
NON-SPEECH rec 1 6.0 2.0 <NA> noise <NA> <NA> <NA>
NOSCORE rec 1 9.0 2.0 <NA> <NA> <NA> <NA> <NA>
RTTM
grep SPEAKER reference.rttm > perfect.rttm
cat > rows.py <<'PY'
import subprocess
from importlib.metadata import version

import meeteval
import spyder
from pyannote.database.util import load_rttm

print(*(f"{name} {version(name)}" for name in ("meeteval", "spy-der", "pyannote.database")), sep=", ")
rows = [(r.speaker_id, float(r.begin_time), float(r.begin_time + r.duration)) for r in meeteval.io.RTTM.load("reference.rttm")]
tracks = load_rttm("reference.rttm")["rec"].itertracks(yield_label=True)
turns = [(label, segment.start, segment.end) for segment, _, label in tracks]
told = subprocess.run(["venv/bin/spyder", "reference.rttm", "perfect.rttm"], capture_output=True, text=True, check=True).stdout
print("MeetEval:", rows)
print("pyannote.database:", turns)
print("DER of the perfect diarization by spyder:", told.splitlines()[-2])
assert turns == [("ann", 0.0, 5.0)], "pyannote.database takes other rows, too"
assert len(rows) == 5, "MeetEval takes the SPEAKER rows alone now"
assert "44.44%" in told, "spyder takes the SPEAKER rows alone now"
PY
venv/bin/python rows.py
