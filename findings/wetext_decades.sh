#!/usr/bin/env bash
# One would guess that a normaliser of texts for speech reads "the 1990s" as a decade, in English at least. wetext, the
# grammars of WeTextProcessing without their compiler, takes the s for seconds: "the one thousand nine hundred and ninety
# seconds", in Chinese and in English. 1,000 is read as "thousand", without its one.
# A phonate user whose texts were normalised by it, as recipes of Chinese and English voices do, trains on words that nobody
# said. phonate reads decades and thousands in English itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check wetext==0.1.8 kaldifst==1.8.3
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

from wetext import Normalizer

print("wetext", version("wetext"))
english, chinese = Normalizer(lang="en", operator="tn"), Normalizer(lang="zh", operator="tn")
for text in ("the 1990s", "1,000 people"):
    print(f"{text}: {english.normalize(text)}")
print("1990s, in Chinese:", chinese.normalize("1990s"))
assert english.normalize("the 1990s").endswith("seconds"), "decades are read as decades now"
assert chinese.normalize("1990s").endswith("\u79d2"), "decades are read as decades in Chinese now"  # "second"
assert english.normalize("1,000 people") == "thousand people", "a thousand has its one now"
PY
