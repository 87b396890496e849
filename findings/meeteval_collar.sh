#!/usr/bin/env bash
# One would guess that MeetEval's tcpwer takes a collar of half a second as 0.5, as its command line suggests. It takes
# 5, but with times read from STM a float raises a TypeError: they are decimal.Decimal, from which no float is subtracted.
# Who compares `phonate score --words --collar 0.5` with MeetEval from Python meets it; Decimal("0.5") works.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q meeteval==0.4.3 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PY'
from decimal import Decimal

import meeteval
from meeteval.io import STM

print("meeteval", meeteval.__version__)
reference, hypothesis = STM.parse("rec 1 ann 0 1 hello\n"), STM.parse("rec 1 x 1.2 1.4 hello\n")
print("collar 5:", meeteval.wer.tcpwer(reference, hypothesis, collar=5)["rec"].errors, "errors")
print("collar Decimal('0.5'):", meeteval.wer.tcpwer(reference, hypothesis, collar=Decimal("0.5"))["rec"].errors, "errors")
try:
    meeteval.wer.tcpwer(reference, hypothesis, collar=0.5)
except TypeError as error:
    print("collar 0.5: TypeError:", error)
else:
    raise SystemExit("a float collar is taken now")
PY
