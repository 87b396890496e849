#!/usr/bin/env bash
# NIST's references in STM have marks: segments called IGNORE_TIME_SEGMENT_IN_SCORING, labels such as <o,f0,male> before the
# text, words in either of two spellings, { color / colour }, and words that may be left out, (uh). One would guess that a
# scorer which reads and writes STM knows them. MeetEval takes all of them for words that were said: a transcript without a
# mistake has eight errors of eleven words, where three were said.
# A phonate user who scores against NIST's references in both meets it; `phonate score --words` leaves the marks and the
# ignored segments out, and takes the first of two spellings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check meeteval==0.4.3 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PY'
import meeteval
from meeteval.io import STM

print("meeteval", meeteval.__version__)
reference = STM.parse(
    "rec 1 ann 0 2 <o,f0,male> hello { color / colour } (uh) world\n"
    "rec 1 ann 2 3 <o,f0,male> IGNORE_TIME_SEGMENT_IN_SCORING\n"
)
hypothesis = STM.parse("rec 1 x 0 2 hello color world\n")
for line in reference:
    print("words:", line.transcript.split())
score = meeteval.wer.cpwer(reference, hypothesis)["rec"]
print(f"{score.errors} errors of {score.length} words")
if score.errors < 8:
    raise SystemExit("MeetEval knows some of the marks now")
PY
