"""The phonemizers in JavaScript say what those in Python say, sentence by sentence, mark by mark. Runs them in node."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phonate.config.errors import InputError
from phonate.tasks.speech.export import sentence_ends
from phonate.text.browser import modules
from phonate.text.english.normalisation import normalise
from phonate.text.intonation import rises
from phonate.text.language import language as language_data
from phonate.text.phonemes import Inventory, known_mark, phonemizer
from phonate.text.sentences import sentences

NODE = shutil.which("node")
LONGEST = 60  # so that sentences are cut
RECORDED = ("en_ljspeech_sentences.txt", "en_cmu_arctic_prompts.txt")
Said = list[Any]

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node: apt-get install nodejs")

HARD = [
    "Dr. Smith lives at 12 Elm St. in St. Louis, and he paid $3.50 on Jan. 5th, 1984 at 3:45 p.m.",
    "The U.S. economy grew 2.5% in the 1990s; see www.example.com/a-b?x=1 or mail ann.lee@example.co.uk!",
    "Henry VIII, Louis XIV and Chapter IV. John V, too. And John I think. World War II ended in 1945.",
    "It's 5'11\" tall, weighs 70 kg, runs 10 km/h and 3 1/2 miles; call (555) 123-4567 or +44 20 7946 0958.",
    "ΑΒΓ αβγ ά ½ 3½ ３ ٣ 𝟟 ﬁne naïve café — “quoted” ‘single’ … № 5 ™ 東京 5 °C ±3 x\u200by\u00a0z",
    "USB, NASA, HTML5, iPhone, McDonald, MacArthur, sooooo, JavaScript, xyzzy, qwrtp, a US ID, CEOs, CEO's",
    "constructor, __proto__, toString, hasOwnProperty, prototype, valueOf",
    "Close the window. Please record this call, then close it. Separate rooms, a close friend. Pipes of lead; lead us.",
    "The code is 276983, card 4111 1111 1111 1111. See example.org/a_b?c=1 for snake_case.",
    "I read the book. I have read it. They live live. He lives. Close the close door at the close of day.",
    "I used to use it. She was used to it. A B C. Vitamin A. An apple, the end, the start, to a, to",
    "SHOUTING EVERYTHING HERE IN CAPITALS IS FINE.",
    "rock 'n' roll, 'twas the dogs' dinner, they'd've gone, should've, o'clock, runnin', the boys' toys'",
    'He said "no." She left. "Why?" asked I. What... then? A. B. Smith came. Vol. 3. The U.S. The end. P.M. He left.',
    "01/02/2003, 2003-04-05, 13/13/13, 10-12, $5-$10, 1,234,567.89, 1.2.3, 24/7, and/or, w/o, w/ him, #5, #hash",
    "<b>bold</b> 5% & @ + = / -7.5 +3, $1.5m, £20bn, 3€, 5¢, 1/0, 2/3, 7/101, 1st, 22nd, 1,000th, 007, 123456789012345",
    "the 80s, '80s, 1980's, '05, 1900, 2000, 2005, 1906, in 1914-18, 10:00, 00:00, 0:30, 12:00:05, 9 am, 9-5pm, 1:30-2",
    "unhappily, rebuilding, dogs, boxes, tried, flies, bigger, nicest, workmanlike, sunflowerless, toothbrushes",
    "Blorptastic fnargling zyzzogeton, Wrzesniewski, thwacketh, kvetchingly, Abernathyville",
    "CPU, GPU, USB, UK, USA, EU",
    "AI IS HERE AND EST. 1900",
    "the first line\n\nthe second one, without a stop\nand a third",
    "He came (late), left (early). Wait... what? Well… no [really]: yes {so}! (Good.) Or so - he said; fine, then.",
    "2^10 * 3 = 3072, x^2, 10³ m³, 3 - 2 = 1, 10-3=7, 1e-5, 2.5E+6, ~5, a && b || c, a -> b → c, C#, 1 000 000, 1/1000",
    "8 / 2 = 4, x² + 3², 9.8 m/s², 5 kg/m², vs a, a != b, a >= b == c, 2/3rds, ₹100, ₹2.50, 978-3-16-148410-0, Rm. 2",
    "é^2, ñ^3 x, ٣*٤ ~٣, é * ñ, éa² a² ≮ 5 ≯ 3 ≰ a ≱ b ≉ 1",
    "Re-elect him, de-ice it, do re mi. $-5, €-2.50, E = mc², 4πr², 5 ft², x + y - z, x - 2, 2 - x, a - b, plan B - C",
    "1/2 tsp, 3/4 lb of, 1 1/2 hr, 1/0 km, 3/4 oz, 13/7 m.",
    "He lives on 5th St. It closed at 5 p.m. EST. Tell Ed. He did.",
    "2024-03-15T10:30:00Z, 123-45-6789, 2024-03-15, 12-13-14, 1-2-3-4-5.",
    "node.js, v2.0.1, 31/12/2021, 32/12/2021, 9/11, 16:9, in 1066, in 1066 cases, In 1066, William came.",
    "To buy:\n- apples\n* two pears\n1. figs and dates of the year before the last one that anyone remembers",
    "Call 415-555-2671, 415.555.2671, 415 555-2671 or 1-800-555-1234 now; 12 345-6789, +1.415.555.2671.",
    "Appendix C, USB Type C, CLASS C, Table L, Charles L. Brown. In Part I think. World War I began. Class X, Act V",
    "The A/C is on. N/A, I/O, R/W. A/B/C",
    "1 500 000 people, 12 345 678 901, +44 207 946 095, 1:100, 1:25000, 1:25,000, 1:50, 2:255, 100 200 300 4000",
    "10k run, 100K, 4K TV, 4k, 401k, 401(k), 2k + 1, y = 2k, 2.5K, 5bn, 5 bn, 1.5B, 1 B, 4B, 5G, $5 m, $5 bn, 5 m €",
    "5½%, 5 1/2%, -3/4%, 1/2 %, -2 1/4%. 1/3rd, 2/3rds, 1/2nd. 5 ft. 2 in. tall, 6 ft 1 in, 5 ft. 2 in the box",
    "May 1–3, 2020, Sept. 10th-12th, 1-3 May, the 1st-3rd of May 2020, May 10-7, 12-25-2020, 31-12-2021, 99-99-2020",
    "Sat. 5 Oct. On Sun. he sat. Then in the sun. Sat. and Sun. 10-4, Sun., Oct. 6, Fri. Oct. 4. The Sun. HE SAT. O",
    "She said no. I left. No. 5, nos. 6, p. 7. See fig. B. See vol. II. He ate a fig. A man. Plan B. Then J. A. Smith.",
    "10 %–20 %, 10%-20%, 5 €–10 €, 5 £-10 £, 20 °C – 25 °C, 5kg-10kg, 4 g-2, 5 m-10 mm. Malcolm X. He read Malcolm IV.",
    "\ufeffA mark.\ufeff At the start, and\ufeff between.\ufeff",
    "😀😀 😀 of faces 😀😀😀😀😀😀😀😀😀😀😀😀😀😀, 😀😀😀😀😀😀😀😀😀😀😀😀 and 😀😀😀😀😀😀😀😀😀😀😀😀😀😀. 𝐀. 𝐁.",
    "𝐀. Smith and 😀😀😀😀😀😀😀😀😀😀😀😀Dr. Smith met." + "😀" * 150,
    "10¹² bytes, 10⁻⁵, x²³, y⁴, MP3s, F16s, GMT-5, UTC-03:30, IL 62704-1234, ZIP 02139, Call 911 or 999, Mark 1:2.",
    "He is 5'4. 1-800-FLOWERS. 「行こう。」彼は立った。 है। Ende। Co. KG is one. Co. Then more། And。",
    "* * *",
    "",
    "!?",
]
FORMS = (
    "{} {}", "${}", "{}%", "{} km", "in {}.", "{}/7", "-{}.5", "{}th", "{}:30 pm", "No. {}", "{}-2001", "£{}m", "1.{}",
    "Henry {}", "{}'s", "x{}y", "(555) 123-{}", "{}°C", "{} %–{} %", "{}, {}",
    "0{}",
)  # fmt: skip
NOISE = "abcXYZ0123456789.,'!?-:;/$%&@ \"()é…—’½№"


def recorded(count: int) -> list[str]:
    """Sentences that were read aloud; none where there are no recordings."""
    folder = Path(os.environ.get("PHONATE_TEST_DATA", "")) / "text"
    found = [
        line for name in RECORDED if (folder / name).is_file() for line in (folder / name).read_text().splitlines()
    ]
    return random.Random(0).sample(found, min(count, len(found)))


def numbers(count: int) -> list[str]:
    rng = random.Random(1)
    digits = ["".join(rng.choices("0123456789", k=rng.randint(1, 16))) for _ in range(count)]
    return [FORMS[n % len(FORMS)].format(one, one[::-1]) for n, one in enumerate(digits)]


def damaged(texts: list[str]) -> list[str]:
    """`texts` with some characters replaced by others."""
    rng = random.Random(2)
    return ["".join(rng.choice(NOISE) if rng.random() < 0.05 else character for character in text) for text in texts]


@pytest.fixture(scope="module")
def in_javascript(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any], Any]:
    """`run(source, given)`: what a script in which `given` is a name writes as JSON to `answer`."""
    folder = tmp_path_factory.mktemp("javascript")
    package = folder / "node_modules" / "phonate"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"type": "module", "exports": {"./*": "./*.js"}}')
    for name, source in modules().items():
        (package / f"{name}.js").write_text(source, encoding="utf-8")
    for name in ("lexicon", "letter_to_sound"):
        (folder / f"{name}.json").write_bytes((resources.files("phonate.text.english") / f"{name}.json").read_bytes())

    def run(source: str, given: Any) -> Any:
        (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
        read = "const read = name => JSON.parse(fs.readFileSync(new URL(`${name}.json`, import.meta.url)));\n"
        write = "fs.writeFileSync(new URL('answer.json', import.meta.url), JSON.stringify(answer));\n"
        start = f'import fs from "node:fs";\n{read}const given = read("given");\n'
        (folder / "script.mjs").write_text(f"{start}{source}\n{write}", encoding="utf-8")
        subprocess.run([NODE or "", str(folder / "script.mjs")], check=True, timeout=120)
        return json.loads((folder / "answer.json").read_text(encoding="utf-8"))

    return run


def words(say: Callable[[str], Any], text: str) -> Said:
    """The words of a text; none where nothing can be said."""
    try:
        return [[word.text, list(word.phones), word.mark, word.pause] for word in say(text)]
    except InputError:
        return []


ENGLISH = f"""
import {{setLetterToSound}} from "phonate/derivation";
import {{setLexicon}} from "phonate/lexicon";
import {{normalise}} from "phonate/normalisation";
import {{sentences}} from "phonate/sentences";
setLexicon(read("lexicon"));
setLetterToSound(read("letter_to_sound"));
const written = given.texts.map(text => [sentences(text, {LONGEST}, given.language), normalise(text)]);
"""
SAY = """
import {phonemizerOf, tokensOf} from "phonate/phonemizers";
const say = phonemizerOf(given.inventory);
const said = given.texts.map(say);
const listed = words => words.map(word => [word.text, word.phones, word.mark, word.pause]);
"""


@pytest.mark.slow
def test_english_is_pronounced_alike(in_javascript: Callable[[str, Any], Any]) -> None:
    texts = [*HARD, *recorded(600), *numbers(600)]
    texts += damaged([*HARD, *texts[len(HARD) : len(HARD) + 300]])
    english = phonemizer("english")
    inventory = Inventory.of(english)
    source = f"{ENGLISH}{SAY}const answer = said.map((words, n) => [...written[n], listed(words)]);"
    given = {"texts": texts, "inventory": inventory.document(), "language": sentence_ends("en-us")}
    theirs = in_javascript(source, given)
    assert sum(len(said) for *_, said in theirs) > 3000
    for text, (cut, written, said) in zip(texts, theirs, strict=True):
        assert cut == sentences(text, LONGEST), text
        assert written == normalise(text), text
        assert said == words(english, text), text


@pytest.mark.parametrize("language", ["en-us", "fr", "ru", "tr"])
def test_letters_are_the_same(language: str, in_javascript: Callable[[str, Any], Any]) -> None:
    texts = [
        *HARD,
        "Où est-ce? C'était l'été, “naïf”…",
        "Съешь ещё этих мягких булок, да выпей чаю!",
        "IŞIK, İstanbul, I\u0307zmir!",
        *recorded(50),
    ]
    letters = phonemizer("characters", language)
    source = f"{SAY}const answer = said.map(listed);"
    theirs = in_javascript(source, {"texts": texts, "inventory": Inventory.of(letters).document()})
    assert theirs == [words(letters, text) for text in texts]


@pytest.mark.parametrize("language", ["en-us", "de", "ar", "fr"])
def test_sentences_end_alike(language: str, in_javascript: Callable[[str, Any], Any]) -> None:
    texts = [*HARD, "Am 3. Mai kam Dr. Meier, z. B. um 7. Er blieb bis 1990. Dann ging er.", "د. سالم هنا. جاء اليوم."]
    source = f"""
import {{sentences}} from "phonate/sentences";
const answer = given.texts.map(text => sentences(text, {LONGEST}, given.language));
"""
    theirs = in_javascript(source, {"texts": texts, "language": sentence_ends(language)})
    assert theirs == [sentences(text, LONGEST, language) for text in texts]


def test_tokens_have_the_boundaries_of_the_inventory(in_javascript: Callable[[str, Any], Any]) -> None:
    text = "Well, it is - as they say; fine: yes! Isn't it?"
    letters = phonemizer("characters")
    inventory = Inventory.of(letters)
    source = f"{SAY}const answer = said.map(tokensOf);"
    (tokens,) = in_javascript(source, {"texts": [text], "inventory": inventory.document()})
    assert tokens == inventory.tokens(letters(text))


QUESTIONS = [
    "Did she sell the yellow boat? Yes! But why?", "Is it red, green or blue? Would you like tea or something?",
    "When he comes, will you stay? And so, do you?", "You like it, don't you? He's here, isn't he?", "Tea? Is it?",
    "In the morning, where did he go? For whom?", "It rains. Really? Are you (perhaps) sure... about us?", "Or? Or or?",
    "Can I trust him - or her? Is this the end of it, then?", "What? He left; did he? Not so: are the cats' baths hot?",
]  # fmt: skip


def test_questions_rise_alike(in_javascript: Callable[[str, Any], Any]) -> None:
    english, questions = phonemizer("english"), language_data("en-us").questions
    assert questions is not None
    source = f"""{ENGLISH}{SAY}
import {{rises}} from "phonate/intonation";
import {{knownMark}} from "phonate/marks";
const known = words => words.map(word => knownMark(word, given.learnt));
const answer = said.map(words => [[...rises(words, given.questions)], known(words)]);
"""
    texts = [*QUESTIONS, *(text for text in recorded(200) if words(english, text))]
    given = {"texts": texts, "inventory": Inventory.of(english).document(), "language": sentence_ends("en-us")}
    given |= {"questions": questions.document(), "learnt": [",", "."]}
    risen = 0
    for text, (semitones, marks) in zip(texts, in_javascript(source, given), strict=True):
        said = english(text)
        expected = rises(said, questions)
        risen += expected is not None
        wanted = np.zeros(len(semitones)) if expected is None else expected.ravel()
        assert np.allclose(semitones, wanted, atol=1e-5), text
        assert marks == [known_mark(word, {",", "."}) for word in said], text
    assert risen > len(QUESTIONS) / 2
