#!/usr/bin/env bash
# One would guess that a romaniser writes what is said in Latin letters. uroman writes words for numbers as digits, in Chinese
# and Japanese also within words that count nothing: "unify" (tongyi) is tong1, the surname of Zhang San is zhang3, Chiba is
# 1000ye. So it is no longer known how they are said, and aligners of many languages, whose models know the letters a to z,
# leave digits out: a spoken syllable has no letter.
# A phonate user meets it who cuts recordings by the aligners of MMS or ctc-forced-aligner, or trains on uroman's letters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check uroman==1.3.1.1
"$folder/venv/bin/python" - <<'PY'
import re
from importlib.metadata import version

from uroman import Uroman

print("uroman", version("uroman"))
romanise = Uroman().romanize_string
words = {"统一": ("zho", "tongyi"), "张三": ("zho", "zhangsan"), "三国": ("zho", "sanguo")}
words |= {"千葉": ("jpn", "chiba"), "一緒": ("jpn", "issho")}
lost = 0
for word, (language, said) in words.items():
    written = romanise(word, lcode=language)
    letters = re.sub("[^a-z']", "", written.lower())
    print(f"{word} ({language}), said {said}: {written}; with the letters a to z alone: {letters}")
    lost += bool(re.search(r"\d", written))
if lost < len(words):
    raise SystemExit("numbers within words are letters now")
PY
