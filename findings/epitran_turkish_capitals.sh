#!/usr/bin/env bash
# One would guess that a grapheme-to-phoneme converter with rules of its own for Turkish and Azerbaijani knows their two
# letters i: I is the capital of the dotless one, and the capital of i has a dot. epitran lowers letters by the rules of
# English before it applies its own: a word that begins with I gets another vowel, and the dotted capital an i with a
# combining dot behind it, which no inventory of phones has.
# A phonate user who compares with, or trains on, phones of epitran meets it in every text, at the beginnings of sentences
# and in names such as that of Istanbul; phonate takes the phones of espeak, which knows both letters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check epitran==1.35.3 panphon==0.22.2
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import epitran

print("epitran", version("epitran"))
turkish, azerbaijani = epitran.Epitran("tur-Latn"), epitran.Epitran("aze-Latn")
DOTLESS, DOTTED = "\u0131", "\u0130"
differ = 0
for converter, small, capital in (
    (turkish, f"{DOTLESS}\u015f{DOTLESS}k", f"I\u015f{DOTLESS}k"),  # light
    (turkish, "istanbul", f"{DOTTED}stanbul"),
    (azerbaijani, f"{DOTLESS}\u015f{DOTLESS}q", f"I\u015f{DOTLESS}q"),
):
    phones = converter.transliterate(small), converter.transliterate(capital)
    print(f"{small}: {phones[0]}; {capital}: {phones[1]} ({len(phones[1])} characters)")
    differ += phones[0] != phones[1]
assert "\u0307" in turkish.transliterate(f"{DOTTED}stanbul"), "the combining dot is gone now"
assert differ == 3, "capitals are read like small letters now"
PY
