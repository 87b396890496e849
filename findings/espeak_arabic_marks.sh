#!/usr/bin/env bash
# One would guess that espeak speaks two spellings alike that Unicode calls canonically equivalent, and that text should be
# brought into NFC before it is spoken. In Arabic the doubling mark (shadda) and a vowel mark stand on one letter: people
# type the shadda first, NFC and NFD both put the vowel first. The espeak of piper-tts 1.8.0 then drops the vowel:
# mudarris, "teacher", becomes "mudarrs". A phonate user who exports an Arabic voice to Piper, and normalises the texts as
# is usual before they are spoken there, loses a vowel in each doubled syllable.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check piper-tts==1.8.0

"$folder/venv/bin/python" - <<'CODE'
import importlib.metadata
import unicodedata

from piper.phonemize_espeak import EspeakPhonemizer

FATHA, DAMMA, KASRA, SHADDA, TANWIN = "\u064e", "\u064f", "\u0650", "\u0651", "\u064c"
SPELLINGS = {  # marks in the order in which they are typed
    "mudarris": "\u0645" + DAMMA + "\u062f" + FATHA + "\u0631" + SHADDA + KASRA + "\u0633" + TANWIN,
    "kassara": "\u0643" + FATHA + "\u0633" + SHADDA + FATHA + "\u0631" + FATHA,
    "muallim": "\u0645" + DAMMA + "\u0639" + FATHA + "\u0644" + SHADDA + KASRA + "\u0645" + TANWIN,
}
espeak = EspeakPhonemizer()


def vowels(text):
    phones = "".join(phone for sentence in espeak.phonemize("ar", text) for phone in sentence)
    return phones, sum(phone in "aiu" for phone in phones)


print("piper-tts", importlib.metadata.version("piper-tts"))
for name, typed in SPELLINGS.items():
    composed = unicodedata.normalize("NFC", typed)
    assert composed != typed and unicodedata.normalize("NFD", typed) == composed
    (as_typed, with_all), (as_nfc, left) = vowels(typed), vowels(composed)
    print(f"{name}: typed {as_typed} ({with_all} vowels), NFC {as_nfc} ({left} vowels)")
    assert left == with_all - 1, "espeak speaks both alike now"
CODE
