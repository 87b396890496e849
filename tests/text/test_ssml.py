"""SSML: what is understood, what is refused, and the words that it becomes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.text.phonemes import phonemizer
from phonate.text.ssml import Delivery, ScriptWord, is_ssml, parse, say_as, script

ENGLISH = phonemizer("english")


def read(inside: str) -> list[list[ScriptWord]]:
    return script(parse(f"<speak>{inside}</speak>"), ENGLISH, 400)[1]


def said(inside: str) -> list[str]:
    return [" ".join(one.word.text + one.word.mark for one in sentence) for sentence in read(inside)]


def deliveries(inside: str) -> dict[str, Delivery]:
    return {one.word.text: one.delivery for sentence in read(inside) for one in sentence}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<speak>Hello.</speak>", True),
        ('\n<?xml version="1.0"?>\n<speak version="1.1">Hello.</speak>', True),
        ("<speak/>", True),
        ("\ufeff<speak>Hello.</speak>", True),
        ("<!-- a greeting --> <speak>Hello.</speak>", True),
        ("<Speak>Hello.</Speak>", True),
        ("<speaker>", False),
        ("I <speak>", False),
        ("H<sub>2</sub>O, <sub class='x'>2</sub>", False),  # HTML
    ],
)
def test_what_is_ssml(text: str, expected: bool) -> None:
    assert is_ssml(text) is expected


def test_a_byte_order_mark_and_comments_say_nothing() -> None:
    (sentence,) = script(parse("\ufeff<!-- a greeting --><speak>Hello.</speak>"), ENGLISH, 400)[1]
    assert [one.word.text for one in sentence] == ["Hello"]
    with pytest.raises(InputError, match=r"<Speak>; .*<speak>"):
        parse("<Speak>Hello.</Speak>")


def test_many_comments_take_no_time() -> None:
    """Each could end at any later mark, were it not for the look-ahead."""
    assert not is_ssml(30 * "<!---->" + "no markup")


def test_markup_does_not_cut_sentences() -> None:
    assert said("Dr. <emphasis>Lee</emphasis> came. <prosody rate='slow'>She</prosody>, of course, left.") == [
        "Doctor Lee came.",
        "She, of course, left.",
    ]


def test_words_are_pronounced_in_the_context_of_the_whole_sentence() -> None:
    """Weak forms depend on the next word, which may be in another element."""
    (marked,), (plain,) = read("the <emphasis>apple</emphasis> to eat"), read("the apple to eat")
    assert [one.word for one in marked] == [one.word for one in plain]


def test_instructions_add_up() -> None:
    found = deliveries(
        "plain <prosody rate='200%' pitch='+2st' volume='-6dB'>fast <prosody rate='slow' pitch='x-high'>both</prosody>"
        "</prosody> <emphasis level='reduced'>weak</emphasis>"
    )
    assert found["plain"] == Delivery()
    assert found["fast"] == Delivery(2.0, 2.0, -6.0)
    assert found["both"] == Delivery(1.5, 8.0, -6.0)
    assert found["weak"] == Delivery(1.1, -1.0, -2.0)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("rate='x-fast'", Delivery(speed=1.6)),
        ("rate='80%'", Delivery(speed=0.8)),
        ("rate='+20%'", Delivery(speed=1.2)),
        ("rate='1.5'", Delivery(speed=1.5)),
        ("pitch='low'", Delivery(semitones=-3.0)),
        ("pitch='+100%'", Delivery(semitones=12.0)),
        ("volume='loud'", Delivery(decibels=4.0)),
    ],
)
def test_values_of_prosody(attribute: str, expected: Delivery) -> None:
    assert deliveries(f"<prosody {attribute}>word</prosody>")["word"] == expected


def test_breaks_are_silences_after_words() -> None:
    before, (first, second) = script(
        parse(
            '<speak><break time="250ms"/>One <break time="1.5s"/><break strength="weak"/> two. <break time="1s"/> Three'
            "</speak>"
        ),
        ENGLISH,
        400,
    )
    assert before == 0.25
    assert [(one.word.text, one.word.mark, one.silence) for one in first] == [("One", ",", 1.7), ("two", ".", 1.0)]
    assert [one.silence for one in second] == [0.0]


@pytest.mark.parametrize("space", ["", " ", "\n    "])
def test_white_space_around_breaks_changes_nothing(space: str) -> None:
    document = '<break time="2s"/>#<s>One.</s>#<break time="1s"/>#<s>Two.</s>#<break time="3s"/>#'
    before, sentences = script(parse(f"<speak>{document.replace('#', space)}</speak>"), ENGLISH, 400)
    assert (before, [sentence[-1].silence for sentence in sentences]) == (2.0, [1.0, 3.0])


@pytest.mark.parametrize("attribute", ["strength='none'", "time='0ms'"])
def test_a_break_of_no_time_is_no_pause(attribute: str) -> None:
    (sentence,) = read(f"wait <break {attribute}/>here")
    assert [(one.word.mark, one.silence) for one in sentence] == [("", 0.0), ("", 0.0)]


def test_markup_within_a_long_sentence_does_not_end_it() -> None:
    long = "and this goes on " * 20
    (sentence,) = read(f"{long}<emphasis>very</emphasis> slowly.")
    assert len(sentence) == len(long.split()) + 2


@given(st.lists(st.sampled_from(["one", "two,", "three", "<emphasis>four</emphasis>;"]), min_size=1, max_size=60))
def test_sentences_are_cut_where_they_are_too_long(texts: list[str]) -> None:
    longest = 40
    parts = parse(f"<speak>{' '.join(texts)}.</speak>")
    _, pieces = script(parts, ENGLISH, longest)
    assert all(len(" ".join(one.word.text for one in piece)) <= longest for piece in pieces)
    assert [one for piece in pieces for one in piece] == script(
        parse(f"<speak>{' '.join(texts)}.</speak>"), ENGLISH, 1000
    )[1][0]
    for piece, following in itertools.pairwise(pieces):
        assert piece[-1].word.mark or not any(one.word.mark for one in piece)
        assert following


def test_a_word_with_its_phones_keeps_what_follows_it() -> None:
    (sentence,) = read("<phoneme ph='W IH1 N'>Win</phoneme>... and left")
    assert (sentence[0].word.phones, sentence[0].word.pause) == (("W", "IH1", "N"), "...")


def test_paragraphs_and_sentences_end_without_a_full_stop() -> None:
    sentences = read("<p>One</p><s>Two</s>Three")
    assert [[one.word.text for one in sentence] for sentence in sentences] == [["One"], ["Two"], ["Three"]]
    assert [sentence[-1].silence for sentence in sentences] == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("characters", "AB12", "A.B. one two"),
        ("spell-out", "a", "A,"),
        ("digits", "2025", "two zero two five"),
        ("telephone", "555-21", "five five five, two one"),
        ("telephone", "1-800-FLOWERS", "one, eight zero zero, F.L.O.W.E.R.S.."),
        ("telephone", "555-1234 ext. 5", "five five five, one two three four, extension, five"),
        ("telephone", "+44 20", "plus four four, two zero"),
        ("characters", "a-1@b", "A, dash one at B,"),
        ("ordinal", "21", "twenty first"),
        ("cardinal", "21", "twenty one"),
        ("cardinal", "2021", "two thousand twenty one"),
        ("number", "-3.5", "minus three point five"),
    ],
)
def test_say_as(kind: str, text: str, expected: str) -> None:
    assert said(f"<say-as interpret-as='{kind}'>{text}</say-as>") == [expected]


@pytest.mark.parametrize(
    ("order", "date"),
    [("dmy", "3/4/2021"), ("yyyymmdd", "2021 4 3"), ("mdy", "4.3.2021"), ("ymd", "2021-4-3"), ("mdy", "4/3/21")],
)
def test_a_date_is_read_in_its_order(order: str, date: str) -> None:
    assert said(f"<say-as interpret-as='date' format='{order}'>{date}</say-as>") == said("2021-04-03")


def test_a_letter_is_not_an_article() -> None:
    ((letter, *_),) = read("<say-as interpret-as='characters'>A7</say-as>")
    assert letter.word.phones == ("EY1",)


def test_phonemes_and_aliases() -> None:
    (words,) = read(
        "I use <phoneme alphabet='x-arpabet' ph='F OW1 N EY2 T'>phonate now</phoneme>, by the "
        "<sub alias='World Wide Web Consortium'>W3C</sub>."
    )
    assert (words[2].word.text, words[2].word.phones, words[2].word.mark) == (
        "phonate now",
        ("F", "OW1", "N", "EY2", "T"),
        ",",
    )
    ((tomato,),) = read("<phoneme alphabet='ipa' ph='təˈmeɪtoʊ'>tomato</phoneme>")
    assert tomato.word.phones == ("T", "AH0", "M", "EY1", "T", "OW0")
    assert [one.word.text for one in words[5:]] == ["World", "Wide", "Web", "Consortium"]


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("<brake time='1s'/>", "<brake> .*did you mean break"),
        ("<break time='1 minute'/>", "such as 500ms or 1.5s"),
        ("<break time='90s'/>", "at most 60s"),
        ("<break strength='huge'/>", "none, x-weak"),
        ("<prosody rate='quick'>a</prosody>", "x-slow, .*such as 120% and 1.2"),
        ("<prosody rate='1%'>a</prosody>", "from 20% to 500%"),
        ("<prosody pitch='high note'>a</prosody>", "such as \\+2st"),
        ("<prosody pitch='+40st'>a</prosody>", "from -24st"),
        ("<prosody volume='11'>a</prosody>", "such as -6dB"),
        ("<prosody volume='+60dB'>a</prosody>", "at most \\+40dB"),
        ("<prosody range='high'>a</prosody>", "rate, pitch and volume"),
        ("<emphasis level='huge'>a</emphasis>", "strong, moderate"),
        ("<say-as interpret-as='song'>a</say-as>", " characters"),
        ("<say-as interpret-as='date' format='dmx'>3/4/2021</say-as>", " mdy"),
        ("<say-as interpret-as='date' format='dmy'>3/4</say-as>", "three numbers"),
        ("<say-as interpret-as='ordinal' format='dmy'>3</say-as>", "dates alone"),
        ("<say-as interpret-as='characters'>a§</say-as>", "'§' .*en-us"),
        ("<break duration='1s'/>", "time and strength"),
        ("<s lang='de'>Hallo</s>", "it has none"),
        ("<say-as interpret-as='ordinal'>x</say-as>", "must be digits"),
        ("<say-as interpret-as='digits'>12a4</say-as>", "digits, in groups"),
        ("<say-as interpret-as='digits'>3.14</say-as>", "digits, in groups"),
        ("<say-as interpret-as='date' format='mdy'>31/12/2021</say-as>", "is no date"),
        ("<say-as interpret-as='digits'><s>1</s></say-as>", "text only"),
        ("<phoneme>a</phoneme>", "needs ph="),
        ("<phoneme ph='QQ'>a</phoneme>", "'QQ' .*phonemizer english"),
        ("<sub>a</sub>", "needs alias="),
        ("Black & white", "not well-formed"),
        ("...", "nothing "),
        ("<![CDATA[x]]>", "declarations"),
    ],
)
def test_mistakes_are_named(inside: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(inside)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("\n<speak>\nOne\n<brake/></speak>", "SSML, line 4: <brake>"),
        ("<speak>\n<p>One\n<prosody rate='1%'>a</prosody></p></speak>", "SSML, line 3: <prosody rate='1%'>"),
        ("<speak>\n<p>One & two</p></speak>", "SSML, line 2: .*&amp;"),
        ("\n\n<speak>\n<p>One</speak>", "SSML, line 4: .*mismatched tag"),
        ("<speak>One", "</speak> is missing"),
        ("<speak>\n<say-as interpret-as='date' detail='1'>a</say-as></speak>", "line 2: <say-as detail=...>"),
        ("<speak>\n<phoneme alphabet='x-sampa' ph='a'>a</phoneme></speak>", "line 2: .*ipa, x-arpabet"),
        ("<speak>\n<break>text</break></speak>", "line 2: <break> .*text"),
        ("\n<speak rate='slow'>Hi</speak>", "line 2: <speak rate=...>"),
        ("<speak>\n\n<phoneme ph='QQ'>a</phoneme></speak>", "SSML, line 3: <phoneme ph=\"QQ\">: 'QQ'"),
        ("<speak>a\ud800</speak>", "surrogate"),
        ("<speak>a\x00</speak>", "SSML, line 1: .*well-formed"),
        ("<speak>" + "<emphasis>" * 2000 + "a" + "</emphasis>" * 2000 + "</speak>", "more than 50 deep"),
    ],
)
def test_mistakes_name_their_line(document: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        script(parse(document), ENGLISH, 400)


def test_a_document_has_one_language() -> None:
    document = "<speak xml:lang='en-US'>\n<s xml:lang='{}'>Hi.</s></speak>"
    assert parse(document.format("en-us"))
    with pytest.raises(InputError, match=r"line 2: <s xml:lang='de'> .*en-US"):
        parse(document.format("de"))


def test_a_document_is_in_the_language_of_the_voice() -> None:
    document = "\n<speak xml:lang='en-GB'>Hi.</speak>"
    assert parse(document, "en-us")
    with pytest.raises(InputError, match=r"line 2: <speak xml:lang='en-GB'>, .*de"):
        parse(document, "de")


def test_a_language_of_its_own_writes_dates_as_it_reads_them() -> None:
    assert say_as("date", "4/3/21", "de", "mdy") == "3.4.2021"


def test_arabic_spells_signs_and_reads_ordinals_in_either_digits() -> None:
    assert say_as("characters", "٪", "ar") == "بِالْمِئَة"
    assert say_as("ordinal", "٣", "ar") == say_as("ordinal", "3", "ar") == "الثَّالِث"
    assert say_as("date", "4/3/21", "ar", "mdy") == "3/4/2021"
    with pytest.raises(InputError, match=r"ordinal .* ar"):
        say_as("ordinal", "9" * 5000, "ar")


def test_phones_may_stand_for_a_sign() -> None:
    (sentence,) = read("I <phoneme ph='L AH1 V'>😀</phoneme> it.")
    assert [" ".join(one.word.phones) for one in sentence] == ["AY1", "L AH1 V", "IH1 T"]


def test_a_document_type_is_refused_not_read() -> None:
    document = '<?xml version="1.0"?><!DOCTYPE speak PUBLIC "a" "b"><speak>Hello</speak>'
    assert is_ssml(document)
    with pytest.raises(InputError, match=r"declarations .*leave them out"):
        parse(document)


@pytest.mark.parametrize(
    "text",
    [
        "Wait <break time='1s'/> here.",
        "<break/>",
        "<prosody rate='slow'>x</prosody>",
        "Hello <emphasis>there</emphasis>",
        "Hello <sub alias='x'>y</sub>",
        "x <speak>Hi</speak>",
        "Hello <BREAK time='1s'/>",
    ],
)
def test_elements_outside_speak_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="<speak>"):
        is_ssml(text)
    assert not is_ssml("the <b>bold</b> one <break the ice> x = 1<break")


def test_german_has_words_of_its_own() -> None:
    assert say_as("ordinal", "21", "de") == "einundzwanzigste"
    assert say_as("characters", "a-b", "de") == "A, Strich B,"
    assert say_as("characters", "a\u0308Ö-ß", "de") == "Ä.Ö. Strich ß,"
    assert say_as("cardinal", "2021", "de") == "2021"
    with pytest.raises(InputError, match="not known in de"):
        say_as("ordinal", "145", "de")


def test_elements_in_each_other_stay_within_what_can_be_heard() -> None:
    slow = "<prosody rate='20%' pitch='x-high' volume='+30dB'>" * 40 + "word" + "</prosody>" * 40
    assert deliveries(slow)["word"] == Delivery(0.2, 24.0, 40.0)


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE speak [<!ENTITY a "b">]><speak>&a;</speak>'
    with pytest.raises(InputError, match="declarations"):
        parse(bomb)
    assert said("<!-- a comment --> Hello.") == ["Hello."]


def test_a_namespace_changes_nothing() -> None:
    document = '<speak xmlns="http://www.w3.org/2001/10/synthesis"><emphasis>Hi</emphasis> there.</speak>'
    assert [one.word.text for one in script(parse(document), ENGLISH, 400)[1][0]] == ["Hi", "there"]


_TEXTS = st.text(st.sampled_from("aAbI .,?!1$"), max_size=20)
_ELEMENTS = st.sampled_from(
    ["{}", "<s>{}</s>", "<p>{}</p>", "<emphasis>{}</emphasis>", "<prosody rate='fast'>{}</prosody>", "<break/>{}"]
)


@given(st.lists(st.tuples(_ELEMENTS, _TEXTS), max_size=8))
def test_any_document_is_read_or_refused(parts: list[tuple[str, str]]) -> None:
    inside = "".join(element.format(text) for element, text in parts)
    try:
        sentences = read(inside)
    except InputError:
        return
    assert all(sentences)
    assert all(one.word.phones for sentence in sentences for one in sentence)
