#!/usr/bin/env bash
# One would guess that -0.5 is read with its minus by a library that reads -1.5 with one. num2words takes the sign from the
# whole part, and -0 is 0: "zero point five", in English, German, Spanish, Japanese and most other languages. Some have more
# of it: in Bengali -5 is 5, in Bengali and Persian 1.05 is 1.5, in Polish, Czech and Slovak -1.5 raises an error.
# A phonate user meets it whose texts of weather, laboratories or stock markets were spelled out by it, as in many recipes:
# the recording says minus and the text doesn't. phonate reads such numbers in English itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check num2words==0.5.14
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

from num2words import CONVERTER_CLASSES, num2words

print("num2words", version("num2words"))
without = [name for name in CONVERTER_CLASSES if num2words(-0.5, lang=name) == num2words(0.5, lang=name)]
print(f"-0.5 is 0.5 in {len(without)} of {len(CONVERTER_CLASSES)}:", *without)
for language, number in (("en", -1.5), ("en", -0.5), ("de", -0.5), ("ja", -0.5), ("bn", -5), ("bn", 1.05), ("fa", 1.05), ("fa", 1.5)):
    print(language, number, num2words(number, lang=language))
for language in ("pl", "cs", "sk"):
    try:
        raise SystemExit(f"{language} reads {num2words(-1.5, lang=language)} now")
    except ValueError as error:
        print(f"{language} -1.5 ValueError: {error}")
assert {"en", "de", "es", "fr", "ja", "ru"} <= set(without), "-0.5 has its minus now"
assert num2words(-5, lang="bn") == num2words(5, lang="bn"), "Bengali has a minus now"
assert all(num2words(1.05, lang=language) == num2words(1.5, lang=language) for language in ("bn", "fa")), "zeros are read now"
PY
