"""Characters of any script -> ASCII that English normalisation understands."""

from __future__ import annotations

import functools
import re
import unicodedata

from phonate.text.left_out import report

_BEFORE_NFKC = {
    **dict.fromkeys("‘’‚‛`´ʼʻ′＇", "'"),
    **dict.fromkeys("“”„‟«»″〝〞", '"'),
    **dict.fromkeys("—―⸺⸻", " - "),
    **dict.fromkeys("‐‑‒–⁃", "-"),
    **dict.fromkeys("[{", "("),
    **dict.fromkeys("]}", ")"),
    **dict.fromkeys("™®℠", " "),
    **dict.fromkeys("•‣·*|_^~¿¡", " "),
    "…": "...", "⁄": "/", "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l",
    "Ł": "L", "đ": "d", "Đ": "D", "ð": "th", "Ð": "Th", "þ": "th", "Þ": "Th", "ı": "i", "×": " times ", "−": " minus ",
    "÷": " divided by ", "±": " plus or minus ", "≠": " is not equal to ",
    "§": " section ", "©": " copyright ", "≈": " about ",
    "≤": " at most ", "≥": " at least ", "№": " No. ", "µ": "u", "。": ". ", "、": ", ",
}  # fmt: skip

_IN_CONTEXT = (
    (re.compile(r"(?<=[0-9)])²"), " squared "),  # behind letters, units of area
    (re.compile(r"(?<=[0-9)])³"), " cubed "),
    (re.compile(r"(?<![a-zA-Zα-ω])(?!km|cm|dm|mm|nm|ft|yd|mi)([a-zα-ω])(?=[a-z]²)"), r"\1 "),  # mc²
    (re.compile(r"(?<=\b[a-ln-rt-zA-Z])²"), " squared "),  # not m² and s²
    (re.compile(r"(?<=\b[a-ln-rt-zA-Z])³"), " cubed "),
    (re.compile(r"(?<=[\w)])\^2(?![\w.])"), " squared "),
    (re.compile(r"(?<=[\w)])\^3(?![\w.])"), " cubed "),
    (re.compile(r"(?<=[\w)])\^(?=[\w(-])"), " to the power of "),
    (re.compile(r"(?<=\d)\*(?=\d)|(?<=[\w)] )\*(?= [\w(])"), " times "),
    (re.compile(r"~(?=\d)"), "about "),
    (re.compile(r"&&"), " and "),
    (re.compile(r"\|\|"), " or "),
    (re.compile(r"[-=]>|[→⇒➔➜]"), " to "),
    (re.compile(r"(?<=\b[A-G])[#♯](?!\w)"), " sharp"),  # C#
)
"""What a character means depends on what stands around it."""
_NOT = "\N{COMBINING LONG SOLIDUS OVERLAY}"
_SAYABLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,!?;:-'\"()&@+=#%/$<>£€¥₹¢°\\")
_GREEK = {
    character: f" {name.split(' LETTER ')[1].split()[0].lower()} "
    for character in map(chr, range(0x370, 0x400))
    if " LETTER " in (name := unicodedata.name(character, "")) and name.startswith("GREEK")
}
"""Without accents; those with an accent are letters of these with a mark."""


def plain(text: str) -> str:
    """`text` in ASCII (and £ € ¥ ₹ ¢ °): without accents, quotes and dashes unified, Greek letters by their names.

    Characters without an English pronunciation are dropped, and logged the first time.
    """
    for pattern, said in _IN_CONTEXT:
        text = pattern.sub(said, text)
    report((character for character in text if _known(character) is None), "without an English pronunciation")
    return "".join(" " if (known := _known(character)) is None else known for character in text)


@functools.lru_cache(maxsize=4096)
def _known(character: str) -> str | None:
    """The replacement of `character`; None if there is none."""
    if character in _BEFORE_NFKC:
        return _BEFORE_NFKC[character]
    if character in _SAYABLE:
        return character
    if character.isspace() or unicodedata.category(character) in {"Cf", "Mn", "Me", "Cc"}:
        return "" if unicodedata.category(character) in {"Cf", "Mn", "Me"} else " "
    if (digit := unicodedata.digit(character, None)) is not None and unicodedata.category(character) == "Nd":
        return str(digit)
    compatible = unicodedata.normalize("NFKD", character)
    if _NOT in compatible:  # without the mark it would mean the opposite
        return None
    if unicodedata.category(character) == "No" and "⁄" in compatible:
        return " " + compatible.replace("⁄", "/")  # "3½" is three and a half
    if compatible != character:
        pieces = [_known(piece) for piece in compatible]
        return None if any(piece is None for piece in pieces) else "".join(piece or "" for piece in pieces)
    return _GREEK.get(character)
