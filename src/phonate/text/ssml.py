"""SSML: texts with instructions on how to say them, down to sentences of words with their delivery.

Understood: speak, p, s, break, prosody (rate, pitch, volume), emphasis, say-as, phoneme, sub. Another element is an
error, for leaving it out would say something else than what was asked for.
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from xml.parsers import expat

from phonate.config.errors import InputError
from phonate.config.language_codes import is_english, primary
from phonate.config.registry import nearest
from phonate.text.language import language
from phonate.text.phonemes import NothingToSay, Phonemizer, Word
from phonate.text.sentences import cut_words, sentences

# --------------------------------------------------------------- What a text is read as: SSML's say-as


def say_as(kind: str, text: str, code: str, order: str | None = None) -> str:
    """`text` in the language `code` as what is read for it. `kind` is one of `KINDS`, `order` the format of a date.

    Raises InputError for a text that can't be read so.
    """
    if kind == "date":
        return _dated(text, code, order)
    return KINDS[kind](text, code)


def _spelt(text: str, code: str) -> str:
    """Each letter, digit and sign by itself. A single letter has a pause after it, for "A" would be an article."""
    runs = re.findall(r"[^\W\d_]+|\d|[^\w\s]|_", "".join(map(_capital, unicodedata.normalize("NFC", text))))
    return " ".join(_run(run, code) for run in runs)


def _capital(character: str) -> str:
    """The capital of a letter, if it is one letter: that of ß is not."""
    return character.upper() if len(character.upper()) == 1 else character


def _run(run: str, code: str) -> str:
    """Letters, or one digit or sign."""
    if run.isdigit():
        return run
    if run.isalpha():
        return f"{run}," if len(run) == 1 else ".".join(run) + "."
    signs = language(code).signs
    if run not in signs:
        raise InputError(f"no name of the character {run!r} is known in {code}; write it as a word")
    return signs[run]


def _digits(text: str, code: str) -> str:
    """Each digit by itself, with a pause between groups."""
    if not re.fullmatch(r"\d+(?:[\s-]+\d+)*", text):
        raise InputError("must be digits, in groups with spaces or hyphens between them")
    return _grouped(text)


def _grouped(text: str) -> str:
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", text))


def _telephone(text: str, code: str) -> str:
    """Digits in groups; capitals, as in 1-800-FLOWERS, are spelt, other words are read."""
    runs = re.findall(r"[\d\s().\-/]*\d|[^\W\d_]+\.?", text)
    words = [_grouped(run) if run[-1].isdigit() else _spelt(run, code) if run.isupper() else run for run in runs]
    return ("+ " if text.startswith("+") else "") + ", ".join(words)


def _ordinal(text: str, code: str) -> str:
    if not text.isdecimal():
        raise InputError("must be digits, such as 21")
    if is_english(code):
        from phonate.text.english.numbers import ordinal

        return ordinal(text)
    words = language(code).tables.get("ordinal", {})
    number = "".join(str(int(digit)) for digit in text)  # keys have Western digits
    if number not in words:
        raise InputError(f"this ordinal is not known in {code}; write it as a word")
    return words[number]


def _cardinal(text: str, code: str) -> str:
    """A whole number is no year: "2021" is two thousand twenty-one."""
    if is_english(code) and text.isdecimal():
        from phonate.text.english.numbers import cardinal

        return cardinal(text)
    return text


def _dated(text: str, code: str, order: str | None) -> str:
    """A date, as the language writes it, if `order` says which number is its day, month and year; or else as it is."""
    if order is None:
        return text
    order = re.sub(r"(.)\1+", r"\1", order.lower())  # yyyymmdd is ymd
    if sorted(order) != ["d", "m", "y"]:
        raise InputError(f"format {order!r} must be mdy, dmy, ymd or another order of day, month and year")
    numbers = re.findall(r"\d+", text)
    if len(numbers) != 3:
        raise InputError(f"with format {order!r} must be three numbers, such as 3/14/2021")
    day, month, year = (numbers[order.index(part)] for part in "dmy")
    if len(year) == 2:
        year = ("20" if int(year) < _TURN else "19") + year
    try:
        datetime.date(int(year), int(month), int(day))
    except ValueError as error:
        raise InputError(f"with format {order!r} is no date ({error})") from None
    return language(code).date.format(year=year, month=int(month), day=int(day))


_TURN = 70
"""Years of two digits from here on are of the twentieth century, as in texts."""


def _as_written(text: str, code: str) -> str:
    """The phonemizer reads numbers, dates, times and amounts by itself."""
    return text


KINDS: dict[str, Callable[[str, str], str]] = {
    "characters": _spelt,
    "spell-out": _spelt,
    "digits": _digits,
    "telephone": _telephone,
    "ordinal": _ordinal,
    "cardinal": _cardinal,
    "number": _cardinal,
    **dict.fromkeys(("date", "time", "currency", "unit", "address"), _as_written),
}


# ---------------------------------------------------- SSML: texts with instructions on how to say them

PARAGRAPH_SECONDS = 0.5
"""Silence after a paragraph, beyond that after a sentence."""
_BREAKS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.8, "x-strong": 1.5}
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.6}
_PITCHES = {"x-low": -6.0, "low": -3.0, "medium": 0.0, "default": 0.0, "high": 3.0, "x-high": 6.0}
_VOLUMES = {"silent": -120.0, "x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 4.0, "x-loud": 8.0}
SLOWEST, FASTEST, MOST_SEMITONES, MOST_DECIBELS = 0.2, 5.0, 24.0, 40.0
_XML = "http://www.w3.org/XML/1998/namespace}"
_LANG = f"{_XML}lang"
_DEEPEST = 50
"""Elements in each other."""
_ENTITIES = "; & and < in a text are written &amp; and &lt;"
_ADVICE = {
    expat.errors.XML_ERROR_INVALID_TOKEN: _ENTITIES,
    expat.errors.XML_ERROR_UNDEFINED_ENTITY: _ENTITIES,
    expat.errors.XML_ERROR_TAG_MISMATCH: "; end tags close the element that was opened last",
    expat.errors.XML_ERROR_NO_ELEMENTS: "; </speak> is missing",
}
"""What to do about an error of the parser."""
_NUMBER = r"([+-]?\d+(?:\.\d+)?)"
_COMMENTS = r"(?:<!--(?:(?!-->).)*-->\s*)*"
_SPEAK = re.compile(
    rf"\ufeff?\s*(<\?xml[^>]*>\s*)?{_COMMENTS}(<!DOCTYPE[^>]*>\s*)?{_COMMENTS}<speak[\s>/]", re.DOTALL | re.IGNORECASE
)
_STRAY = re.compile(
    r"<(?:break(?=\s*/)|(?:break|prosody|say-as|phoneme|emphasis)(?=\s[^<>]*=)|emphasis(?=>)"
    r"|sub(?=\s[^<>]*\balias\s*=)|/(?:speak|prosody|say-as|phoneme|emphasis)(?=>))",
    re.IGNORECASE,
)


def check_delivery(speed: float, semitones: float = 0.0) -> None:
    """Raise InputError for a speed, or a change of pitch, that can't be spoken."""
    if not SLOWEST <= speed <= FASTEST:
        raise InputError(f"speed {speed:g} must be from {SLOWEST:g} to {FASTEST:g}; 1.2 is a fifth faster")
    if not -MOST_SEMITONES <= semitones <= MOST_SEMITONES:
        raise InputError(f"semitones {semitones:g} must be from -{MOST_SEMITONES:g} to {MOST_SEMITONES:g}")


@dataclass(frozen=True)
class Delivery:
    """How something is said."""

    speed: float = 1.0
    """1.2 is a fifth faster."""
    semitones: float = 0.0
    """Added to the pitch."""
    decibels: float = 0.0
    """Added to the level."""

    def with_(self, other: Delivery) -> Delivery:
        """Both together, within what can be heard: elements in each other may multiply a speed to nothing."""
        speed, semitones = self.speed * other.speed, self.semitones + other.semitones
        return Delivery(
            min(max(speed, SLOWEST), FASTEST),
            min(max(semitones, -MOST_SEMITONES), MOST_SEMITONES),
            min(self.decibels + other.decibels, MOST_DECIBELS),
        )


_EMPHASIS = {
    "strong": Delivery(0.8, 2.0, 3.0),
    "moderate": Delivery(0.88, 1.0, 2.0),
    "none": Delivery(),
    "reduced": Delivery(1.1, -1.0, -2.0),
}


@dataclass(frozen=True)
class Part:
    """Something to say, or a silence."""

    text: str = ""
    delivery: Delivery = Delivery()
    phones: str | None = None
    """How all of the text is pronounced, as written in the markup."""
    seconds: float | None = None
    """Of silence, in the place of a text."""
    ends: bool = False
    """Whether the sentence ends here, whatever its punctuation."""
    read_as: tuple[str, str | None] | None = None
    """How the text is to be read (see `phonate.text.ssml`), and the format of a date."""
    line: int = 0
    """Of the document, for messages about its phones and how it is read."""


def is_ssml(text: str) -> bool:
    """Whether a text is SSML: begins with <speak, after a byte order mark, an XML declaration and comments at most.

    Raises InputError for a text with elements of SSML that is none.
    """
    ssml = _SPEAK.match(text) is not None
    if not ssml and (stray := _STRAY.search(text)):
        raise InputError(f"{stray[0]}...: SSML must stand in one <speak> element: <speak>...</speak>")
    return ssml


def parse(markup: str, voice_language: str | None = None) -> list[Part]:
    """The parts of a document in their order, for a voice of the language `voice_language`; None: of any.

    Raises InputError, naming the line, for what is not well-formed, for elements and values not understood, and for a
    document in another language.
    """
    if "<!" in re.sub(r"<!--.*?-->", "", markup, flags=re.DOTALL):
        raise InputError("SSML: declarations (<!DOCTYPE, <!ENTITY, <![CDATA[) are not read; leave them out")
    markup = markup.removeprefix("\ufeff")
    root = _root(markup.strip(), 1 + markup[: len(markup) - len(markup.lstrip())].count("\n"))
    if root.tag != "speak":
        raise InputError(f"SSML: begins with <{root.tag}>; it must be one <speak> element")
    written_in = root.attributes.get(_LANG)
    if written_in is not None and voice_language is not None and primary(written_in) != primary(voice_language):
        raise InputError(
            f"SSML, line {root.line}: <speak xml:lang={written_in!r}>, but the voice speaks {voice_language}; choose "
            "a voice of that language, or correct xml:lang"
        )
    stray = [name for name in root.attributes if name != "version" and "}" not in name]
    if stray:
        raise InputError(f"SSML, line {root.line}: <speak {stray[0]}=...> is not understood; it has xml:lang")
    _check_language(root, written_in or voice_language)
    return list(_inside(root, Delivery()))


class _Mistake(ValueError):
    """What is wrong with an element, without its line."""


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    line: int
    """Where it begins."""
    text: str = ""
    """In front of its first child."""
    tail: str = ""
    """Behind it."""
    children: list[_Element] = field(default_factory=list)


def _root(markup: str, first_line: int) -> _Element:
    """The tree of a document that begins in the line `first_line`."""
    document = _Element("", {}, 0)
    open_elements = [document]
    parser = expat.ParserCreate(namespace_separator="}")  # names in a namespace are written uri}name

    def start(name: str, attributes: dict[str, str]) -> None:
        line = first_line + parser.CurrentLineNumber - 1
        if len(open_elements) > _DEEPEST:
            raise InputError(f"SSML, line {line}: elements nested more than {_DEEPEST} deep; close some first")
        element = _Element(name.rpartition("}")[2], attributes, line)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def text(data: str) -> None:
        inside = open_elements[-1]
        if inside.children:
            inside.children[-1].tail += data
        else:
            inside.text += data

    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: open_elements.pop()
    try:
        parser.Parse(markup, True)
    except expat.ExpatError as error:
        line = first_line + error.lineno - 1
        what = expat.ErrorString(error.code).removeprefix("not well-formed (").removesuffix(")")
        advice = _ADVICE.get(expat.ErrorString(error.code), "")
        raise InputError(f"SSML, line {line}: is not well-formed ({what}){advice}") from error
    except UnicodeEncodeError as error:
        raise InputError("SSML: has half of a surrogate pair, which is no character; leave it out") from error
    return document.children[0]


def _inside(element: _Element, delivery: Delivery) -> Iterator[Part]:
    if element.text:
        yield Part(element.text, delivery)
    for child in element.children:
        name = child.tag
        try:
            if name not in _ELEMENTS:
                raise _Mistake(f"<{name}> is not understood; {nearest(name, list(_ELEMENTS))}")
            _check_attributes(child)
            yield from _ELEMENTS[name](child, delivery)
        except _Mistake as mistake:
            raise InputError(f"SSML, line {child.line}: {mistake}") from None
        if child.tail:
            yield Part(child.tail, delivery)


def _check_attributes(element: _Element) -> None:
    """Raises _Mistake for an attribute that would change nothing; those of XML itself, such as xml:lang, may stand."""
    attributes = _ATTRIBUTES[element.tag]
    for name in element.attributes:
        if name not in attributes and not name.startswith(_XML):
            names = " and ".join(filter(None, (", ".join(attributes[:-1]), *attributes[-1:])))
            has = f"it has {names}" if attributes else "it has none"
            raise _Mistake(f"<{element.tag} {name}=...> is not understood; {has}")


def _check_language(element: _Element, code: str | None) -> None:
    """Raises InputError for an element in another language than that of the document."""
    for child in element.children:
        own = child.attributes.get(_LANG)
        if code is not None and own is not None and primary(own) != primary(code):
            raise InputError(
                f"SSML, line {child.line}: <{child.tag} xml:lang={own!r}> among words in {code}: a voice speaks one "
                "language; leave it out"
            )
        _check_language(child, own or code)


def _sentence(element: _Element, delivery: Delivery) -> Iterator[Part]:
    yield from _inside(element, delivery)
    yield Part(ends=True)


def _paragraph(element: _Element, delivery: Delivery) -> Iterator[Part]:
    yield from _sentence(element, delivery)
    yield Part(seconds=PARAGRAPH_SECONDS)


def _break(element: _Element, delivery: Delivery) -> Iterator[Part]:
    if element.children or element.text.strip():
        raise _Mistake("<break> holds a text, which would not be spoken; write <break/>")
    time = element.attributes.get("time")
    if time is None:
        yield Part(seconds=_number_of("break", "strength", element.attributes.get("strength", "medium"), _BREAKS))
        return
    match = re.fullmatch(r"\+?(\d+(?:\.\d+)?|\.\d+)(ms|s)", time.strip())
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else math.inf
    if seconds > 60:
        raise _Mistake(f"<break time={time!r}>: must be such as 500ms or 1.5s, and at most 60s")
    yield Part(seconds=seconds)


def _prosody(element: _Element, delivery: Delivery) -> Iterator[Part]:
    own = Delivery(
        _rate(element.attributes.get("rate", "default")),
        _pitch(element.attributes.get("pitch", "default")),
        _volume(element.attributes.get("volume", "default")),
    )
    yield from _inside(element, delivery.with_(own))


def _rate(value: str) -> float:
    if value in _RATES:
        return _RATES[value]
    number, unit = _number_and_unit("rate", value, "%?", _RATES, "120% and 1.2")
    share = number / 100 if unit else number
    speed = 1 + share if unit and value.strip()[0] in "+-" else share
    if not SLOWEST <= speed <= FASTEST:
        raise _Mistake(f"<prosody rate={value!r}>: must be from 20% to 500%")
    return speed


def _pitch(value: str) -> float:
    if value in _PITCHES:
        return _PITCHES[value]
    number, unit = _number_and_unit("pitch", value, "st|%", _PITCHES, "+2st and +10%")
    semitones = number if unit == "st" else 12 * math.log2(max(1 + number / 100, 1e-3))
    if not -MOST_SEMITONES <= semitones <= MOST_SEMITONES:
        raise _Mistake(f"<prosody pitch={value!r}>: must be from -24st to +24st")
    return semitones


def _volume(value: str) -> float:
    if value in _VOLUMES:
        return _VOLUMES[value]
    decibels, _ = _number_and_unit("volume", value, "dB", _VOLUMES, "-6dB")
    if decibels > MOST_DECIBELS:
        raise _Mistake(f"<prosody volume={value!r}>: must be at most +{MOST_DECIBELS:g}dB")
    return decibels


def _number_and_unit(
    attribute: str, value: str, units: str, choices: dict[str, float], others: str
) -> tuple[float, str]:
    """A number and its unit, one of the pattern `units`. Raises _Mistake with the choices."""
    match = re.fullmatch(f"{_NUMBER}({units})", value.strip())
    if match is None:
        raise _unknown("prosody", attribute, value, [*choices, f"or such as {others}"])
    return float(match[1]), match[2]


def _number_of(element: str, attribute: str, value: str, choices: dict[str, float]) -> float:
    """The value's number. Raises _Mistake with the choices."""
    if value not in choices:
        raise _unknown(element, attribute, value, list(choices))
    return choices[value]


def _unknown(element: str, attribute: str, value: str, choices: list[str]) -> _Mistake:
    return _Mistake(f"<{element} {attribute}={value!r}>: must be {', '.join(choices)}")


def _emphasis(element: _Element, delivery: Delivery) -> Iterator[Part]:
    level = element.attributes.get("level", "moderate")
    _number_of("emphasis", "level", level, dict.fromkeys(_EMPHASIS, 0.0))
    yield from _inside(element, delivery.with_(_EMPHASIS[level]))


def _phoneme(element: _Element, delivery: Delivery) -> Iterator[Part]:
    phones, text = element.attributes.get("ph", "").strip(), _text_of(element)
    if not phones or not text.strip():
        raise _Mistake("<phoneme> needs ph=..., and the text that it stands for between its tags")
    alphabet = element.attributes.get("alphabet", "ipa")
    if alphabet not in _ALPHABETS:
        raise _unknown("phoneme", "alphabet", alphabet, list(_ALPHABETS))
    yield Part(text, delivery, phones=phones, line=element.line)


def _sub(element: _Element, delivery: Delivery) -> Iterator[Part]:
    if not element.attributes.get("alias"):
        raise _Mistake("<sub> needs alias=..., what is said in the place of its text")
    yield Part(element.attributes.get("alias", ""), delivery)


def _say_as(element: _Element, delivery: Delivery) -> Iterator[Part]:
    kind, text = element.attributes.get("interpret-as", ""), _text_of(element).strip()
    if kind not in KINDS:
        raise _Mistake(f"<say-as interpret-as={kind!r}>: must be {', '.join(KINDS)}")
    order = element.attributes.get("format")
    if order is not None and kind != "date":
        raise _Mistake("<say-as format=...> is for dates alone; leave it out")
    yield Part(text, delivery, read_as=(kind, order), line=element.line)


def _text_of(element: _Element) -> str:
    """The text of an element that may hold nothing else."""
    if element.children:
        raise _Mistake(f"<{element.tag}> holds <{element.children[0].tag}>; it may hold text only")
    return element.text


_ALPHABETS = ("ipa", "x-arpabet", "cmu-arpabet")
"""Told apart by the phones themselves."""
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "p": (),
    "s": (),
    "break": ("time", "strength"),
    "prosody": ("rate", "pitch", "volume"),
    "emphasis": ("level",),
    "say-as": ("interpret-as", "format"),
    "phoneme": ("ph", "alphabet"),
    "sub": ("alias",),
}
_ELEMENTS: dict[str, Callable[[_Element, Delivery], Iterator[Part]]] = {
    "p": _paragraph,
    "s": _sentence,
    "break": _break,
    "prosody": _prosody,
    "emphasis": _emphasis,
    "say-as": _say_as,
    "phoneme": _phoneme,
    "sub": _sub,
}


# -------------------------------------------- From the parts of an SSML document to sentences of words


@dataclass(frozen=True)
class ScriptWord:
    """A word to say."""

    word: Word
    delivery: Delivery
    silence: float = 0.0
    """Seconds of silence after it, at least."""


def plainly(words: Sequence[Word] | Sequence[ScriptWord]) -> list[ScriptWord]:
    """Words with their delivery, by default the plain one."""
    return [word if isinstance(word, ScriptWord) else ScriptWord(word, Delivery()) for word in words]


@dataclass
class _Sentence:
    parts: list[Part] = field(default_factory=list)
    silences: dict[int, float] = field(default_factory=dict)
    """After so many parts -> seconds."""

    def add_silence(self, seconds: float) -> None:
        """After what was read so far."""
        self.silences[len(self.parts)] = self.silences.get(len(self.parts), 0.0) + seconds


def script(parts: Iterable[Part], phonemizer: Phonemizer, longest: int) -> tuple[float, list[list[ScriptWord]]]:
    """Seconds of silence before the first word, and the sentences, cut where they have more than `longest` characters.

    Raises InputError where nothing can be spoken, or for a phone that the phonemizer does not have.
    """
    before: float = 0.0
    ordered: list[list[ScriptWord]] = []
    for sentence in _sentences(parts, phonemizer.language):
        silence, words = _words(sentence, phonemizer)
        if ordered:
            last = ordered[-1][-1]
            ordered[-1][-1] = replace(last, silence=last.silence + silence)
        else:
            before += silence
        ordered += _cut(words, longest)
    if not ordered:
        raise InputError("nothing of this SSML can be spoken")
    return before, ordered


def _cut(words: list[ScriptWord], longest: int) -> list[list[ScriptWord]]:
    """A sentence in pieces of at most `longest` characters."""
    sizes = [len(one.word.text) + 1 for one in words]  # no space behind the last
    return cut_words(words, sizes, [bool(one.word.mark) for one in words], longest + 1)


def _sentences(parts: Iterable[Part], code: str) -> Iterator[_Sentence]:
    """Cut at the ends of sentences, wherever the markup is."""
    current = _Sentence()
    for part in (_read(part, code) for part in parts):
        if part.seconds is not None:
            current.add_silence(part.seconds)
        pieces = [part.text] if part.phones is not None else _pieces(part.text, code)
        for number, piece in enumerate(pieces):
            current.parts.append(replace(part, text=piece))
            if number + 1 < len(pieces) or _ends(piece, code):
                yield current
                current = _Sentence()
        if part.ends:
            yield current
            current = _Sentence()
    yield current


def _read(part: Part, code: str) -> Part:
    """A part with what its text is read as. Raises InputError."""
    if part.read_as is None:
        return part
    kind, order = part.read_as
    try:
        return replace(part, text=say_as(kind, part.text, code, order))
    except InputError as error:
        raise InputError(f"SSML, line {part.line}: <say-as interpret-as={kind!r}>{part.text}: {error}") from None


def _pieces(text: str, code: str) -> list[str]:
    """The sentences of a text, with the space around them that separates words."""
    pieces = sentences(text, max(1, len(text)), code)
    if pieces and text[:1].isspace():
        pieces[0] = f" {pieces[0]}"
    if pieces and text[-1:].isspace():
        pieces[-1] = f"{pieces[-1]} "
    return pieces or ([" "] if text else [])


def _ends(piece: str, code: str) -> bool:
    """Whether a sentence ends with this piece: not with "Dr."."""
    continued = f"{piece.strip()} Next"
    return bool(piece.strip()) and len(sentences(continued, len(continued), code)) > 1


def _words(sentence: _Sentence, phonemizer: Phonemizer) -> tuple[float, list[ScriptWord]]:
    """Seconds of silence before a sentence, and its words; pronounced in the context of all of it, where its parts are
    the same words."""
    whole = _phonemized("".join(part.text for part in sentence.parts), phonemizer)
    alone = [_phonemized(part.text, phonemizer) for part in sentence.parts]
    same = [word.text for word in whole] == [word.text for words in alone for word in words]
    context = iter(whole)
    before = sentence.silences.get(0, 0.0)
    words_so_far: list[ScriptWord] = []
    for number, (part, own) in enumerate(zip(sentence.parts, alone, strict=True), start=1):
        words = [next(context) for _ in own] if same else own
        if part.phones is not None:
            from phonate.text.pronunciations import phones_of  # which few ask for

            phones = phones_of(f'SSML, line {part.line}: <phoneme ph="{part.phones}">', part.phones.split(), phonemizer)
            ending = words[-1] if words else Word(part.text.strip(), ())
            words = [replace(ending, text=" ".join(word.text for word in words) or ending.text, phones=phones)]
        words_so_far += [ScriptWord(word, part.delivery) for word in words]
        silence = sentence.silences.get(number, 0.0)
        if silence and words_so_far:
            last = words_so_far[-1]
            paused = replace(last.word, mark=last.word.mark or ",")
            words_so_far[-1] = ScriptWord(paused, last.delivery, last.silence + silence)
        else:
            before += silence
    return before, words_so_far


def _phonemized(text: str, phonemizer: Phonemizer) -> Sequence[Word]:
    try:
        return phonemizer(text)
    except NothingToSay:
        return []  # punctuation between two parts
