#!/usr/bin/env bash
# Word errors of English are counted behind Whisper's normaliser, so that "five" and "5" are equal. One would guess that
# "minus five" and "-5" are, too, and differ from "5". It makes "-5" of the words, and drops the sign of "-5" where it was
# written: what is right is an error, and a recogniser that did not hear the minus has none. Of "minus five dollars" $5 is
# left. Likewise 10:05 is "10 5", as 10:5 would be, and "ten oh five" 1005; can't is "can not", and cannot is not.
# A phonate user meets it who compares word error rates of leaderboards on weather, money or times of day. phonate writes
# the minus and the "oh" of times out before it normalises.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir whisper-normalizer==0.1.15
cat > "$folder/signs.py" <<'PY'
from importlib.metadata import version

from whisper_normalizer.english import EnglishTextNormalizer

print("whisper-normalizer", version("whisper-normalizer"))
normal = EnglishTextNormalizer()
for text in ("it is minus five degrees", "it is -5 degrees", "it is 5 degrees", "it is five degrees", "minus five dollars",
             "at ten oh five", "at 10:05", "i can't", "i can not", "i cannot"):
    print(f"{text}: {normal(text)}")
assert normal("five degrees") == normal("5 degrees")
if not normal("-5 degrees") == normal("5 degrees") != normal("minus five degrees"):
    raise SystemExit("signs are treated otherwise now")
assert normal("minus five dollars") == normal("$5")
assert normal("ten oh five") != normal("10:05") == "10 5"
assert normal("can't") == normal("can not") != normal("cannot")
PY
"$folder/venv/bin/python" -W ignore "$folder/signs.py"
