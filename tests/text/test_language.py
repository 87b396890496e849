"""The data of languages: every file is read, and readings say what they are to say."""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path

import pytest

import phonate.text.language
from phonate.config.errors import InputError
from phonate.text.language import Language, language, seems_other
from phonate.text.phonemes import phonemizer
from phonate.text.sentences import sentences

FILES = [file.name.removesuffix(".yaml") for file in resources.files("phonate.text").joinpath("languages").iterdir()]
NEEDS_ESPEAK = pytest.mark.skipif(importlib.util.find_spec("espeakng_loader") is None, reason="needs phonate[espeak]")


@pytest.mark.parametrize("code", FILES)
def test_every_file_is_read_and_has_pauses_that_grow(code: str) -> None:
    pauses = language(code).pauses
    kinds = (",", ";", ":", "-", "(", "...", ".", "paragraph")
    assert [pauses[kind] for kind in kinds] == sorted(pauses[kind] for kind in kinds)


def test_a_language_without_a_file_has_the_pauses_of_all() -> None:
    assert language("xx").pauses == language("default").pauses
    assert language("xx").questions is None
    assert language("EN_US") == language("en-us") == language("en")
    assert language("../en") == language("default")


@pytest.mark.parametrize(
    ("text", "voice", "other"),
    [
        ("Guten Tag, wie geht es Ihnen?", "en-us", "de"),
        ("Le train pour Paris est en retard de vingt minutes.", "en-us", "fr"),
        ("El tren a Madrid llega con veinte minutos de retraso.", "en", "es"),
        ("Non so che cosa vuole dire con questo.", "en", "it"),
        ("Ik weet niet wat je bedoelt.", "de", "nl"),
        ("Eu não sei o que você quer dizer.", "es", "pt"),
        ("Hej, hur mår du i dag?", "en", "sv"),
        ("Hej, hvordan har du det i dag?", "en", "da"),
        ("Nie wiem, co to jest.", "en", "pl"),
        ("I have never been there, and you have not been there either.", "de", "en"),
        ("Guten Tag, wie geht es Ihnen?", "de-at", None),
        ("Guten Tag, wie geht es Ihnen?", "cs", None),  # whose words are not known here
        ("Guten Morgen.", "en", None),
        ("Die Welle and Der Untergang were made by the same people.", "en", None),
        ("Rio de Janeiro, Los Angeles, Las Vegas", "en", None),
        ("C'est la vie, as they say.", "en", None),
        ("", "en", None),
    ],
)
def test_a_text_that_is_clearly_in_another_language_is_known(text: str, voice: str, other: str | None) -> None:
    assert seems_other(text, voice) == other


def test_the_sentences_of_english_recordings_are_not_taken_for_others(recordings: Path) -> None:
    lists = [*recordings.glob("tts_en_*/**/*.csv"), *recordings.glob("tts_en_*/**/*.txt")]
    lines = [line for file in lists for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 500
    assert not [line for line in lines if seems_other(line, "en-us")]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Am 3. Mai 2024", "Am dritten Mai 2024"),
        ("Heute ist der 21. Juni.", "Heute ist der einundzwanzigste Juni."),
        ("vom 03.05.1945 an", "vom dritten Mai neunzehnhundert 45 an"),
        ("im 20. Jahrhundert", "im zwanzigsten Jahrhundert"),
        ("die 2. Frage", "die zweite Frage"),
        ("in der 2. Klasse, der 2. Teil", "in der zweiten Klasse, der zweite Teil"),
        ("10 %–20 %, 5 €-10 €", "10 Prozent bis 20 Prozent, 5 Euro bis 10 Euro"),
        ("20 °C – 25 °C, 100 m-Lauf", "20 Grad Celsius bis 25 Grad Celsius, 100 Meter-Lauf"),
        ("Nach der 3. bis 5. Woche", "Nach der dritten bis fünften Woche"),
        ("seit 1805", "seit achtzehnhundert 5"),
        ("um 14:30 Uhr", "um 14 Uhr 30"),
        ("um 8.00 Uhr", "um 8 Uhr"),
        ("ab 9:05", "ab 9 Uhr 5"),
        ("um 12:05:30 Uhr", "um 12 Uhr 5 und 30 Sekunden"),
        ("12,50 €", "12 Euro 50"),
        ("12,- €, 3 $", "12 Euro, 3 Dollar"),
        ("5% von 80kg", "5 Prozent von 80 Kilogramm"),
        ("120 km/h, 20 °C", "120 Kilometer pro Stunde, 20 Grad Celsius"),
        ("z. B. Dr. Lang, u.a.", "zum Beispiel Doktor Lang, unter anderem"),
        ("Äpfel usw.", "Äpfel und so weiter."),
        ("S. 5, Nr. 7, Karlstr. 9", "Seite 5, Nummer 7, Karlstraße 9"),
        ("Lang & Kurz", "Lang und Kurz"),
        ("Es steht 3:2.", "Es steht 3 zu 2."),
        ("am 99. Mai", "am neunundneunzigsten Mai"),
        ("am 199. Mai", "am 199. Mai"),
        ("die 50. Sitzung, zum 100. Mal", "die fünfzigste Sitzung, zum hundertsten Mal"),
        ("2. Liga, 1. Weltkrieg, 19. Jahrhundert", "zweite Liga, erster Weltkrieg, neunzehntes Jahrhundert"),
        ("am 24.12. um 9", "am vierundzwanzigsten Dezember um 9"),
        ("der 1.5. war kalt", "der erste Mai war kalt"),
        ("am 24.13.", "am 24.13."),
        ("in den 1990er Jahren", "in den neunzehnhundert 90er Jahren"),
        ("1990–1995 und 1805-2010", "neunzehnhundert 90 bis neunzehnhundert 95 und achtzehnhundert 5 bis 2010"),
        ("1900-1910", "neunzehnhundert bis neunzehnhundert 10"),
        ("Losnummern 1990-19951", "Losnummern 1990 bis 19951"),
        ("von 10:30–11:00 Uhr, 09.30-12.15 Uhr", "von 10 Uhr 30 bis 11 Uhr, 9 Uhr 30 bis 12 Uhr 15"),
        ("um 1 Uhr, 1 €, 1 km, 21 €", "um ein Uhr, ein Euro, ein Kilometer, 21 Euro"),
        ("1 h, 1 Mio. Leute, 30 min", "eine Stunde, eine Million Leute, 30 Minuten"),
        ("1/2 Stunde, 1/2 Jahr, 1/2", "eine halbe Stunde, ein halbes Jahr, einhalb"),
        ("Kapitel IV, Teil X.", "Kapitel 4, Teil 10."),
        ("2 Std. 5 Min. nach 30 Sek.", "2 Stunden 5 Minuten nach 30 Sekunden."),
        ("10^6, www.haus.de, an lena@haus.org", "10 hoch 6, www Punkt haus Punkt de, an lena ät haus Punkt org"),
        ("1/2 Liter, 3/4 Stunde, 1/3, 1 1/2 Kilo", "ein halber Liter, 3 Viertel Stunde, ein Drittel, eineinhalb Kilo"),
        ("9/11, 1/2024, 030/12345", "9/11, 1/2024, 0 3 0, 1 2 3 4 5"),
        ("10⁶, 10⁻⁵ m, 6,02·10²³", "10 hoch 6, 10 hoch minus 5 Meter, 6,02 mal 10 hoch 23"),
        ("x² und 5 m², 10¹² Bytes", "x hoch 2 und 5 Quadratmeter, 10 hoch 12 Bytes"),
        (
            "0171/2345678, 3 < 5, 2>1, a ≤ b",
            "0 1 7 1, 2 3 4 5 6 7 8, 3 kleiner als 5, 2 größer als 1, a kleiner gleich b",
        ),
        ("max.de, info@ca.de, max. 5", "max Punkt de, info ät ca Punkt de, maximal 5"),
        ("3 x 4 = 12, 5 - 3 = 2", "3 mal 4 gleich 12, 5 minus 3 gleich 2"),
        ("10 : 2 = 5, es steht 3 : 2", "10 geteilt durch 2 gleich 5, es steht 3 zu 2"),
        ("Franz X. Huber, unter Karl V.", "Franz X. Huber, unter Karl der Fünfte."),
        ("Das war am 24.12.", "Das war am vierundzwanzigsten Dezember."),
        ("USA, EU, NATO, Die AfD", "U-S-A, E-U, NATO, Die A-F-D"),
        ("Ludwig XIV. und Elisabeth II. lebten", "Ludwig der Vierzehnte und Elisabeth die Zweite lebten"),
        ("nach 150 Metern, vor 175 Jahren", "nach 150 Metern, vor 175 Jahren"),
        ("um 180 Grad drehen, bis 110", "um 180 Grad drehen, bis 110"),
        ("150–2000 Euro, 199-2500 €", "150 bis 2000 Euro, 199 bis 2500 Euro"),
        ("in 1150, nach 1900, von 1805 an", "in elfhundert 50, nach neunzehnhundert, von achtzehnhundert 5 an"),
        ("Der 24.12.2024 war kalt.", "Der vierundzwanzigste Dezember 2024 war kalt."),
        ("2024-05-03, am 1945-05-08", "dritten Mai 2024, am achten Mai neunzehnhundert 45"),
        ("2024-13-03, 2023-24", "2 0 2 4, 1 3, 0 3, 2023 bis 24"),
        ("Am 24.12.24. Der 1.5.24. 01.05.24", "Am vierundzwanzigsten Dezember 24. Der erste Mai 24. ersten Mai 24"),
        ("Python 3.10.12 kam", "Python 3.10.12 kam"),
        ("24:00, 23:59, 10:30 h", "24 Uhr, 23 Uhr 59, 10 Uhr 30"),
        ("2.-4. Klasse, im 2.–4. Jahr", "zweite bis vierte Klasse, im zweiten bis vierten Jahr"),
        ("die 3. bis 5. Frage, 1.-3. Platz", "die dritte bis fünfte Frage, erster bis dritter Platz"),
        ("vom 3.-5. Mai", "vom dritten bis fünften Mai"),
        ("am 24.12.–6.1. zu", "am vierundzwanzigsten Dezember bis sechsten Januar zu"),
        ("Haus 12, 0151-1234567.", "Haus 12, 0 1 5 1, 1 2 3 4 5 6 7."),
        ("Tel. 030/123 45, Fax: +49 30-12", "Telefon 0 3 0, 1 2 3, 4 5, Fax: +4 9, 3 0, 1 2"),
        ("Tel. 030 12345 10:30 Uhr", "Telefon 0 3 0, 1 2 3 4 5 10 Uhr 30"),
        ("ISBN 978-3-16-148410-0", "I-S-B-N 9 7 8, 3, 1 6, 1 4 8 4 1 0, 0"),
        ("ISBN 3-16-148410-X, 4-4-2", "I-S-B-N 3, 1 6, 1 4 8 4 1 0, X, 4, 4, 2"),
        ("Boeing 737-800 und Airbus A320-200", "Boeing 737, 800 und Airbus A320, 200"),
        ("Seiten 120-150, 737-800 Leute, 08-12 Uhr", "Seiten 120 bis 150, 737 bis 800 Leute, 08 bis 12 Uhr"),
        ("Die 100-150 alten, Boeing 747-8 fliegt", "Die 100 bis 150 alten, Boeing 747, 8 fliegt"),
        ("etwa 100-150 alte, 2,5-3 kg, Anna 2-3", "etwa 100 bis 150 alte, 2,5 bis 3 Kilogramm, Anna 2 bis 3"),
        ("2 1/2 Stunden, 20 1/2 Liter", "zweieinhalb Stunden, 20 einhalb Liter"),
        ("1/2 kg, 1/4 l, 1/2 t, 3/4 h", "ein halbes Kilogramm, ein Viertel Liter, eine halbe Tonne, 3 Viertel Stunde"),
        ("½ l, 3½ Tage, ¼", "ein halber Liter, dreieinhalb Tage, ein Viertel"),
        ("50 kWh, 5 Hz, 5 t, 10h, 30min", "50 Kilowattstunden, 5 Hertz, 5 Tonnen, 10 Stunden, 30 Minuten"),
        ("1 kWh, 1 t, 1h, 1 MHz", "eine Kilowattstunde, eine Tonne, eine Stunde, ein Megahertz"),
        ("9 m/s, 50 m2, 12 V, 5 µm", "9 Meter pro Sekunde, 50 Quadratmeter, 12 Volt, 5 Mikrometer"),
        ("30 min. warten, 5 h. Die 5 W-Fragen, 80s", "30 Minuten warten, 5 Stunden. Die 5 W-Fragen, 80s"),
        ("5 kWh/Tag, 5%ige", "5 kWh/Tag, 5%ige"),
        ("Ein Satz ohne alles.", "Ein Satz ohne alles."),
    ],
)
def test_german_is_read(written: str, read: str) -> None:
    assert language("de").read(written) == read
    assert language("de").read(read) == read


def test_arabic_is_read() -> None:
    assert language("ar").read("د. أحمد، ص ٥، ٢٠٪") == "دكتور أحمد، صفحة ٥، ٢٠ بالمئة"
    assert language("ar").read("في 4/03/2021") == "في 4 مَارِس 2021"
    assert language("ar").read("200 كتاب و2000 رجل") == "مئتا كتاب و2000 رجل".replace("2000", "ألفا")
    assert language("ar").read("2 كتاب، ٢ سيارة") == "كتابان، سيارتان"
    assert language("ar").read("قرأت 2 كتاب في 2 ساعة") == "قرأت كتابين في ساعتين"
    for other in ("الفصل 2 يبدأ", "2 مارس", "2 من الكتب", "12 كتاب", "في الساعة 2 ظهرا", "2.5 كتاب"):
        assert language("ar").read(other) == other
    assert language("ar").read("عام 2000 كان، 200 من الكتب، 1200 كتاب") == "عام 2000 كان، 200 من الكتب، 1200 كتاب"


@NEEDS_ESPEAK
def test_a_greek_question_ends_with_its_own_mark() -> None:
    text = "Τι κάνεις; Καλά."
    assert sentences(text, code="el") == ["Τι κάνεις;", "Καλά."]
    assert [word.mark for word in phonemizer("espeak", "el")(text)] == ["", "?", "."]
    assert sentences("Good; fine. Yes.") == ["Good; fine.", "Yes."]


def test_german_sentences_do_not_end_at_abbreviations_and_ordinals() -> None:
    text = "Am 3. Mai kam z. B. Dr. Huber. Er ging bzw. lief. Und der 2. Teil?"
    assert sentences(text, code="de") == [
        "Am 3. Mai kam z. B. Dr. Huber.",
        "Er ging bzw. lief.",
        "Und der 2. Teil?",
    ]


@NEEDS_ESPEAK
def test_phonemizers_say_what_is_read() -> None:
    german = phonemizer("espeak", "de")
    assert german("Am 3. Mai, z. B.") == german("Am dritten Mai, zum Beispiel")
    letters = phonemizer("characters", "de")
    assert [word.text for word in letters("Am 3. Mai")] == ["am", "dritten", "mai"]


@NEEDS_ESPEAK
def test_what_sets_words_off() -> None:
    for name, code in (("english", "en-us"), ("espeak", "en-us"), ("espeak", "de"), ("characters", "fr")):
        words = phonemizer(name, code)("Vier (drei) zwei... ein - no; so, da.")
        assert [(word.mark, word.pause) for word in words] == [
            ("", "("), ("", "("), (".", "..."), ("-", ""), (";", ""), (",", ""), (".", ""),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"readings": [["(", "x"]]}, "regular expression"),
        ({"readings": [["a", "{b}"]]}, "'{b}' .*'a'"),
        ({"questions": {"tags": ["["]}}, "regular expression"),
        ({"pauses": {",": -1}}, "pauses"),
        ({"question": {}}, "question"),
    ],
)
def test_mistakes_in_a_file_are_named(values: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Language.of(values)


def test_what_is_read_instead_of_the_files_is_what_they_say() -> None:
    folder = Path(phonate.text.language.__file__).parent / "languages"
    assert (folder / "parsed.json").read_text(encoding="utf-8") == phonate.text.language.renewed()
