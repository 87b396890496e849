#!/usr/bin/env bash
# phonemizer 3.4 knows that the point in 3.5 is no full stop. One would guess that "It weighs 3.5 kilos." is one utterance with
# preserve_punctuation=True, as it is without, and as it is with "!" at its end. It finds the full stop at the end, and then cuts the
# text at the first "." that it meets, which is the one in the number: "it weighs three." and "five kilos" are two utterances, one
# text gives two lines, and in a list the marks of all texts that follow are moved to others.
# A phonate user meets it whose filelists of phones were made by it, as by most recipes of VITS, StyleTTS and their like: prices and
# measurements are read wrongly, and from the first such text on each line belongs to another recording. phonate takes the phones
# of espeak itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir phonemizer==3.4.0 espeakng-loader==0.2.4
cat > "$folder/decimals.py" <<'PY'
from importlib.metadata import version

import espeakng_loader
from phonemizer.backend import EspeakBackend
from phonemizer.backend.espeak.wrapper import EspeakWrapper

EspeakWrapper.set_library(espeakng_loader.get_library_path())
EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
print("phonemizer", version("phonemizer"), "espeakng-loader", version("espeakng-loader"))
texts = ["It weighs 3.5 kilos.", "Good morning.", "Well, yes."]
lines = {}
for punctuation in (False, True):
    backend = EspeakBackend("en-us", preserve_punctuation=punctuation)
    for end in "!.":
        lines[punctuation, end] = backend.phonemize([text[:-1] + end for text in texts], strip=True)
        print(f"{len(texts)} texts ending with {end}, marks {'kept' if punctuation else 'left out'}:", lines[punctuation, end])
assert [len(lines[key]) for key in ((False, "!"), (False, "."), (True, "!"))] == [3, 3, 3]
if len(lines[True, "."]) != 4 or not lines[True, "."][0].endswith("."):
    raise SystemExit("a number at which a text was cut is whole now")
PY
"$folder/venv/bin/python" "$folder/decimals.py"
