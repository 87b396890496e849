from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.text.english import arpabet, derivation, lexicon
from phonate.text.english import phonemizer as english
from phonate.text.phonemes import Word, phonemizer

ROOT = Path(__file__).parents[2]

WORDS = """
hello HH AH0 L OW1
cat K AE1 T
bird B ER1 D
water W AO1 T ER0
nature N EY1 CH ER0
button B AH1 T AH0 N
fire F AY1 ER0
power P AW1 ER0
near N IH1 R
square S K W EH1 R
cure K Y UH1 R
north N AO1 R TH
hurry HH ER1 IY0
around ER0 AW1 N D
sing S IH1 NG
finger F IH1 NG G ER0
believe B IH0 L IY1 V
remain R IH0 M EY1 N
situation S IH2 CH UW0 EY1 SH AH0 N
mention M EH1 N SH AH0 N
which W IH1 CH
roses R OW1 Z IH0 Z
cats K AE1 T S
dogs D AO1 G Z
lived L IH1 V D
baked B EY1 K T
wanted W AA1 N T IH0 D
carrying K EH1 R IY0 IH0 NG
Philip's F IH1 L AH0 P S
James's JH EY1 M Z IH0 Z
dogs' D AO1 G Z
rockin' R AA1 K IH0 N
don't D OW1 N T
I'm AY1 M
we'll W IY1 L
they've DH EY1 V
that's DH AE1 T S
steamboats S T IY1 M B OW2 T S
YouTube Y UW1 T UW2 B
MacDonald M AH0 K D AA1 N AH0 L D
BBC B IY1 B IY1 S IY1
NASA N AE1 S AH0
U.S. Y UW1 EH1 S
CDs S IY1 D IY1 Z
sooooo S OW1
Missus M IH1 S IH0 Z
Polish P OW1 L IH0 SH
"""

CONTEXTS = """
the cat => DH AH0
the apple => DH IY0
a cat => AH0
to go => T AH0
to. => T UW1
read it => R IY1 D
live show => L AY1 V
"""


def phones(text: str) -> list[str]:
    return [" ".join(word.phones) for word in phonemizer("english")(text)]


@pytest.mark.parametrize("line", WORDS.strip().splitlines())
def test_words_are_said_as_in_a_dictionary(line: str) -> None:
    word, said = line.split(" ", 1)
    assert " ".join(english.pronounce(word)) == said


@pytest.mark.parametrize("line", CONTEXTS.strip().splitlines())
def test_the_first_word_takes_the_form_its_place_asks_for(line: str) -> None:
    text, said = line.split(" => ")
    assert phones(text)[0] == said


def test_homographs_follow_their_neighbours() -> None:
    assert phones("I want to record a record")[3:6:2] == ["R IH0 K AO1 R D", "R EH1 K ER0 D"]
    assert phones("I have read it")[2] == "R EH1 D"
    assert phones("a live show")[1] == phones("live music tonight")[0] == "L AY1 V"
    assert phones("They live here")[1] == "L IH1 V"
    assert phones("He used to use it, no use") == [
        "HH IY1", "Y UW1 S T", "T AH0", "Y UW1 Z", "IH1 T", "N OW1", "Y UW1 S",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("Close the window.", 0, "K L OW1 Z"),
        ("OK, close the curtains.", 1, "K L OW1 Z"),
        ("Then close it.", 1, "K L OW1 Z"),
        ("Please record this call.", 1, "R IH0 K AO1 R D"),
        ("Separate the eggs.", 0, "S EH1 P ER0 EY2 T"),
        ("Please present your ticket.", 1, "P R IY0 Z EH1 N T"),
        ("Close friends came.", 0, "K L OW1 S"),
        ("Record sales were reported.", 0, "R EH1 K ER0 D"),
        ("It is made of lead.", 4, "L EH1 D"),
        ("Lead the way.", 0, "L IY1 D"),
    ],
)
def test_imperatives_are_verbs(text: str, at: int, said: str) -> None:
    assert phones(text)[at] == said


def test_prefixes_before_a_hyphen() -> None:
    phones = [word.phones for word in phonemizer("english")("Re-elect him, de-ice it, do re mi.")]
    assert (phones[0], phones[3]) == (("R", "IY1"), ("D", "IY1"))
    assert phones[7] == ("R", "EY1")


def test_words_carry_the_marks_that_follow_them() -> None:
    words = phonemizer("english")('"Hello," she said (softly) — why?! Well… thirty-four; yes: no!')
    assert [(word.text, word.mark) for word in words] == [
        ("Hello", ","), ("she", ""), ("said", ""), ("softly", "-"), ("why", "?"), ("Well", "."), ("thirty", ""),
        ("four", ";"), ("yes", ":"), ("no", "!"),
    ]  # fmt: skip


def test_shouting_is_read_and_not_spelt() -> None:
    assert phones("STOP RIGHT THERE") == ["S T AA1 P", "R AY1 T", "DH EH1 R"]
    assert phones("in the US")[2] == "Y UW1 EH1 S"


def test_every_entry_of_the_lexicon_becomes_phones() -> None:
    known = set(arpabet.PHONES)
    without_a_vowel = []
    for word in lexicon.words():
        for said in lexicon.entry(word).values():
            assert said, word
            assert known.issuperset(said), (word, said)
            stressed = sum(phone.endswith("1") for phone in said)
            if not any(map(arpabet.is_vowel, said)):
                without_a_vowel.append(word)
            elif set(arpabet.without_stress(said)) & set(arpabet.VOWELS) - {"AH", "ER", "IH"}:
                assert stressed, (word, said)
    assert len(without_a_vowel) < 40, without_a_vowel  # "hm", "'s", "psst"


def test_the_phones_are_the_39_of_cmudict() -> None:
    assert len(set(arpabet.without_stress(arpabet.PHONES))) == 39
    assert len(arpabet.PHONES) == 69
    assert phonemizer("english").symbols == arpabet.PHONES
    assert (arpabet.PHONES[0], arpabet.PHONES[-1]) == ("AA0", "ZH")


def test_the_lexicon_is_the_one_of_version_0_1() -> None:
    """All 275,244 pronunciations, which voices of that version were trained with."""
    digest = hashlib.sha256()
    for word in lexicon.words():
        for checked in (True, False):
            for tag, said in lexicon.entry(word, checked).items():
                digest.update(f"{word} {checked} {tag} {' '.join(said)}\n".encode())
    assert digest.hexdigest() == "c519c2c2ce2df32bae50b7d9186c44984b1b4b9db96607b6c7edf92797e5c578"


@pytest.mark.slow
def test_the_lexicon_can_be_built_again() -> None:
    pytest.importorskip("misaki", reason="the lexicon is built from misaki's data: pip install misaki==0.9.4")
    spec = importlib.util.spec_from_file_location("build_lexicon", ROOT / "scripts" / "build_lexicon.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.build() == script.OUT.read_bytes()
    with pytest.raises(ValueError, match=r"'kʘt': .*'ʘ' \(U\+0298\)"):
        script.from_ipa("kʘt")


def test_acronyms_that_are_words_too_are_spelt_in_capitals_only() -> None:
    assert phones("LA")[0] == "EH1 L EY1"
    assert phones("IT is")[0] == phones("it is")[0]


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=14))
@settings(max_examples=300)
def test_letters_give_one_primary_stress(word: str) -> None:
    said = derivation.pronounce_by_rules(word)
    assert set(arpabet.PHONES).issuperset(said)
    vowels = [phone for phone in said if arpabet.is_vowel(phone)]
    assert sum(phone.endswith("1") for phone in vowels) == bool(vowels)
    if set(word) & set("aeiouy"):
        assert vowels or not said


def test_invented_words_are_said_from_their_letters() -> None:
    assert " ".join(english.pronounce("blick")) == "B L IH1 K"
    assert " ".join(english.pronounce("Whittemore")[:4]) == "W IH1 T AH0"


@given(st.one_of(st.text(max_size=30), st.text("abeistxz'-.A B,", max_size=20)))
@settings(max_examples=200)
def test_any_text_gives_known_phones_or_says_that_there_is_nothing_to_say(text: str) -> None:
    phonemize = phonemizer("english")
    try:
        words = phonemize(text)
    except InputError as error:
        refused = str(error)
        assert "can be spoken" in refused
        return
    assert words
    for word in words:
        assert word.phones
        assert set(phonemize.symbols).issuperset(word.phones)
        assert word.mark in ("", ",", ".", "!", "?", ";", ":", "-")


def test_nothing_to_say_quotes_the_text() -> None:
    with pytest.raises(InputError, match=r"'\.\.\. !'"):
        phonemizer("english")("... !")


def test_it_imports_no_model_library() -> None:
    code = (
        "import sys, json; from phonate.text.phonemes import phonemizer; phonemizer('english')('a first sentence');"
        "print(json.dumps([m for m in ('torch', 'numpy', 'spacy', 'misaki.en') if m in sys.modules]))"
    )
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) == []


def test_a_thousand_words_are_all_said() -> None:
    words = phonemizer("english")("The quick brown fox jumps over the lazy dog. " * 111)
    assert len(words) == 999
    assert words[0] == Word("The", ("DH", "AH0"), "")
