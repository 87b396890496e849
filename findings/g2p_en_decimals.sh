#!/usr/bin/env bash
# One would guess that the numbers of English texts are read right by the code that many recipes of English voices have, Keith
# Ito's for Tacotron; g2p_en has a copy. It reads what is behind the point as a number of its own: 3.05 is "three point five", as 3.5
# is, and so is 3.005. Of $2.5 it makes "two dollars, five cents"; $2.50 is right.
# A phonate user meets it whose texts were spelled out by g2p_en or such cleaners: versions, prices in millions and
# measurements are other numbers than the recording says. phonate reads such numbers in English itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir inflect==7.6.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps g2p-en==2.1.0
cd "$folder"
cat > decimals.py <<'PY'
# The package itself loads a dictionary from the network when it is imported: its module for numbers is loaded alone.
from importlib.metadata import distribution, version
from importlib.util import module_from_spec, spec_from_file_location

path = distribution("g2p-en").locate_file("g2p_en/expand.py")
spec = spec_from_file_location("expand", path)
expand = module_from_spec(spec)
spec.loader.exec_module(expand)
print("g2p-en", version("g2p-en"), "inflect", version("inflect"))
texts = {
    "3.5 metres": "three point five metres",
    "3.05 metres": "three point five metres",
    "3.005 metres": "three point five metres",
    "$2.50": "two dollars, fifty cents",
    "$2.5 million": "two dollars, five cents million",
}
for text, expected in texts.items():
    spoken = expand.normalize_numbers(text)
    print(text, "->", spoken)
    if spoken != expected:
        raise SystemExit(f"{text} is read otherwise now")
PY
venv/bin/python decimals.py
