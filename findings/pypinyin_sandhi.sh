#!/usr/bin/env bash
# One would guess that a converter to Pinyin with an option for tone sandhi gives the first of two third tones as second, the
# rule that every learner knows. pypinyin does so in words that stand in its dictionary, and only if they end with the two:
# 可以 changes, 领导 (not in it) and 展览会 (two third tones and a fourth) do not. Of "33" at the end of a longer
# word it changes the word's first third tone, wherever that stands: 你来我往 (3-2-3-3) becomes 2-2-3-3 instead of 3-2-2-3.
# A phonate user meets it who trains a Mandarin voice on Pinyin made with tone_sandhi=True: some words are as they are said,
# some as they are written, and some are neither.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pypinyin==0.55.0
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

from pypinyin import Style, lazy_pinyin

print("pypinyin", version("pypinyin"))


def tones(word, **options):
    return "".join(syllable[-1] for syllable in lazy_pinyin(word, style=Style.TONE3, neutral_tone_with_five=True, **options))


for word, said, given in (
    ("可以", "23", "23"), ("领导", "23", "33"), ("很好", "23", "33"), ("展览会", "234", "334"),
    ("许可证", "234", "334"), ("你来我往", "3223", "2233"), ("了如指掌", "3223", "2233"),
):
    result = tones(word, tone_sandhi=True)
    print(f"{word}: {tones(word)} in the dictionary, said {said}, with tone_sandhi=True {result}")
    if result != given:
        raise SystemExit("other tones now")
PY
