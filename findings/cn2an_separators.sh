#!/usr/bin/env bash
# cn2an.transform writes the numbers of a Chinese sentence in characters, as they are said; front ends of Chinese voices begin
# with it. One would guess that a number with separators is one number, that a date of digits is a date, and that it leaves
# alone what it doesn't know. Of 1,400,000 it makes three numbers, "one, four hundred, zero"; of 2023-01-05 "two thousand and
# twenty-three minus one minus five". The same number without commas and the same date with Chinese marks are right.
# A phonate user meets it whose texts went through cn2an before training or speaking: the recording says a million, the text
# doesn't, and a voice reads prices as lists.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir cn2an==0.5.24
cd "$folder"
cat > spoken.py <<'PY'
from importlib.metadata import version

import cn2an

print("cn2an", version("cn2an"))
texts = {
    "人口1400000": "人口一百四十万",
    "2023年1月5日": "二零二三年一月五日",
    "人口1,400,000": "人口一,四百,零",
    "3,500元": "三,五百元",
    "2023-01-05": "二千零二十三负一负五",
}
for text, expected in texts.items():
    spoken = cn2an.transform(text, "an2cn")
    print(text, "->", spoken)
    if spoken != expected:
        raise SystemExit(f"{text} is read otherwise now")
PY
venv/bin/python spoken.py
