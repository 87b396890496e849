#!/usr/bin/env bash
# One would guess that a table of some 6,000 segments of the IPA knows the vowels of American English, and that what it doesn't
# know is an error or counts as a segment of its own. panphon knows neither of the two vowels with an r (bird, butter), nor
# the letter g of the keyboard, nor the ligature for ch. It leaves them out, without a word: "bird" and "b d" are the same two
# segments, with a distance of 0.
# A phonate user meets it who scores phones by panphon's feature error rate or distances: phones of American
# English, as espeak writes them, have these vowels in most sentences, and a recogniser or a voice that leaves them out has no error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir panphon==0.22.2
cd "$folder"
cat > segments.py <<'PY'
from importlib.metadata import version

import panphon
import panphon.distance

print("panphon", version("panphon"))
table, distance = panphon.FeatureTable(), panphon.distance.Distance()
for word, phones, without in (
    ("bird", "bɝd", "bd"),
    ("butter", "bʌɾɚ", "bʌɾ"),
    ("go", "goʊ", "oʊ"),
    ("church", "ʧɝʧ", ""),
):
    known = table.ipa_segs(phones)
    measured = (distance.feature_edit_distance(phones, without), distance.weighted_feature_edit_distance(phones, without))
    print(f"{word}: {phones} has the segments {known}, and the distance from '{without}' is {measured}")
    if measured != (0.0, 0.0):
        raise SystemExit(f"{phones} is known now")
assert table.ipa_segs("bɜɹd") == ["b", "ɜ", "ɹ", "d"] and distance.feature_edit_distance("bɜɹd", "bd") > 0
PY
venv/bin/python segments.py
