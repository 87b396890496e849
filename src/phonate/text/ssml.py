"""SSML: texts with instructions on how to say them (W3C, https://www.w3.org/TR/speech-synthesis11/).

Understood: speak, p, s, break, prosody (rate, pitch, volume), emphasis, say-as, phoneme, sub. Another element is an
error, for leaving it out would say something else than what was asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from phonate.config.errors import InputError
from phonate.config.registry import nearest

PARAGRAPH_SECONDS = 0.5
"""Silence after a paragraph, beyond that after a sentence."""
_BREAKS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.8, "x-strong": 1.5}
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.6}
_PITCHES = {"x-low": -6.0, "low": -3.0, "medium": 0.0, "default": 0.0, "high": 3.0, "x-high": 6.0}
_VOLUMES = {"silent": -120.0, "x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 4.0, "x-loud": 8.0}
_NUMBER = r"([+-]?\d+(?:\.\d+)?)"


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
        """Both together."""
        return Delivery(self.speed * other.speed, self.semitones + other.semitones, self.decibels + other.decibels)


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


def is_ssml(text: str) -> bool:
    """Whether a text is SSML: begins with <speak."""
    return re.match(r"\s*(<\?xml[^>]*>\s*)?<speak[\s>/]", text) is not None


def parse(markup: str) -> list[Part]:
    """The parts of a document in their order.

    Raises InputError for what is not well-formed, and for elements and values that are not understood.
    """
    if "<!" in re.sub(r"<!--.*?-->", "", markup, flags=re.DOTALL):
        raise InputError("SSML: declarations (<!DOCTYPE, <!ENTITY, <![CDATA[) are not read; leave them out")
    try:
        root = ElementTree.fromstring(markup.strip())
    except ElementTree.ParseError as error:
        raise InputError(f"SSML: is not well-formed ({error}); & in a text is written &amp;") from error
    if _tag(root) != "speak":
        raise InputError(f"SSML: begins with <{_tag(root)}>; it must be one <speak> element")
    return list(_inside(root, Delivery()))


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _inside(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    """What stands between the tags of an element."""
    if element.text:
        yield Part(element.text, delivery)
    for child in element:
        name = _tag(child)
        if name not in _ELEMENTS:
            raise InputError(f"SSML: <{name}> is not understood; {nearest(name, list(_ELEMENTS))}")
        yield from _ELEMENTS[name](child, delivery)
        if child.tail:
            yield Part(child.tail, delivery)


def _sentence(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    yield from _inside(element, delivery)
    yield Part(ends=True)


def _paragraph(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    yield from _sentence(element, delivery)
    yield Part(seconds=PARAGRAPH_SECONDS)


def _break(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    time = element.get("time")
    if time is None:
        yield Part(seconds=_chosen("break", "strength", element.get("strength", "medium"), _BREAKS))
        return
    found = re.fullmatch(r"\+?(\d+(?:\.\d+)?|\.\d+)(ms|s)", time.strip())
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1) if found else math.inf
    if seconds > 60:
        raise InputError(f"SSML: <break time={time!r}>: must be such as 500ms or 1.5s, and at most 60s")
    yield Part(seconds=seconds)


def _prosody(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    changed = Delivery(
        _rate(element.get("rate", "default")),
        _pitch(element.get("pitch", "default")),
        _volume(element.get("volume", "default")),
    )
    for name in element.keys():  # noqa: SIM118 - an element's iterator gives its children
        if name not in ("rate", "pitch", "volume"):
            raise InputError(f"SSML: <prosody {name}=...> is not understood; it has rate, pitch and volume")
    yield from _inside(element, delivery.with_(changed))


def _rate(value: str) -> float:
    if value in _RATES:
        return _RATES[value]
    number, unit = _measured("rate", value, "%?", _RATES, "120% and 1.2")
    share = number / 100 if unit else number
    speed = 1 + share if unit and value.strip()[0] in "+-" else share
    if not 0.2 <= speed <= 5:
        raise InputError(f"SSML: <prosody rate={value!r}>: must be from 20% to 500%")
    return speed


def _pitch(value: str) -> float:
    if value in _PITCHES:
        return _PITCHES[value]
    number, unit = _measured("pitch", value, "st|%", _PITCHES, "+2st and +10%")
    semitones = number if unit == "st" else 12 * math.log2(max(1 + number / 100, 1e-3))
    if not -24 <= semitones <= 24:
        raise InputError(f"SSML: <prosody pitch={value!r}>: must be from -24st to +24st")
    return semitones


def _volume(value: str) -> float:
    if value in _VOLUMES:
        return _VOLUMES[value]
    return min(_measured("volume", value, "dB", _VOLUMES, "-6dB")[0], 40.0)


def _measured(attribute: str, value: str, units: str, choices: dict[str, float], others: str) -> tuple[float, str]:
    """A number and its unit, one of the pattern `units`. Raises InputError with the choices."""
    found = re.fullmatch(f"{_NUMBER}({units})", value.strip())
    if found is None:
        raise _unknown("prosody", attribute, value, [*choices, f"or such as {others}"])
    return float(found[1]), found[2]


def _chosen(element: str, attribute: str, value: str, choices: dict[str, float]) -> float:
    """The value's number. Raises InputError with the choices."""
    if value not in choices:
        raise _unknown(element, attribute, value, list(choices))
    return choices[value]


def _unknown(element: str, attribute: str, value: str, choices: list[str]) -> InputError:
    return InputError(f"SSML: <{element} {attribute}={value!r}>: must be {', '.join(choices)}")


def _emphasis(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    level = element.get("level", "moderate")
    _chosen("emphasis", "level", level, dict.fromkeys(_EMPHASIS, 0.0))
    yield from _inside(element, delivery.with_(_EMPHASIS[level]))


def _phoneme(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    phones, text = element.get("ph", "").strip(), _text_of(element)
    if not phones or not text.strip():
        raise InputError("SSML: <phoneme> needs ph=..., and the text that it stands for between its tags")
    yield Part(text, delivery, phones=phones)


def _sub(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    if not element.get("alias"):
        raise InputError("SSML: <sub> needs alias=..., what is said in the place of its text")
    yield Part(element.get("alias", ""), delivery)


def _say_as(element: ElementTree.Element, delivery: Delivery) -> Iterator[Part]:
    kind, text = element.get("interpret-as", ""), _text_of(element).strip()
    if kind not in _READINGS:
        raise InputError(f"SSML: <say-as interpret-as={kind!r}>: must be {', '.join(_READINGS)}")
    yield Part(_READINGS[kind](text), delivery)


def _text_of(element: ElementTree.Element) -> str:
    """The text of an element that may hold nothing else."""
    if len(element):
        raise InputError(f"SSML: <{_tag(element)}> holds <{_tag(element[0])}>; it may hold text only")
    return element.text or ""


def _spelt(text: str) -> str:
    """Each letter and digit by itself. A single letter has a pause after it, for "A" would be an article."""
    runs = re.findall(r"[^\W\d_]+|\d", text.upper())
    return " ".join(run if run.isdigit() else f"{run}," if len(run) == 1 else ".".join(run) + "." for run in runs)


def _digits(text: str) -> str:
    """Each digit by itself, with a pause between groups."""
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", text)) or text


def _ordinal(text: str) -> str:
    import inflect

    if not text.isdecimal():
        raise InputError(f"SSML: <say-as interpret-as='ordinal'>{text}: must be digits, such as 21")
    return str(inflect.engine().ordinal(text))


def _as_written(text: str) -> str:
    """The phonemizer reads numbers, dates, times and amounts by itself."""
    return text


_READINGS: dict[str, Callable[[str], str]] = {
    "characters": _spelt,
    "spell-out": _spelt,
    "digits": _digits,
    "telephone": _digits,
    "ordinal": _ordinal,
    **dict.fromkeys(("cardinal", "number", "date", "time", "currency", "unit", "address"), _as_written),
}
_ELEMENTS: dict[str, Callable[[ElementTree.Element, Delivery], Iterator[Part]]] = {
    "p": _paragraph,
    "s": _sentence,
    "break": _break,
    "prosody": _prosody,
    "emphasis": _emphasis,
    "say-as": _say_as,
    "phoneme": _phoneme,
    "sub": _sub,
}
