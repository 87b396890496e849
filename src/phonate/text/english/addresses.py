"""E-mail and web addresses as they are read aloud."""

from __future__ import annotations

import re

_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_SCHEME = r"(?:https?|ftp)://"
_BEGIN = re.compile(rf"^{_SCHEME}", re.I)
_TOP = "com|org|net|edu|gov|io|co|uk|de|fr|eu|info|ai|dev|us|ca|au|nl|it|ch|at|tv|me"
_WEB = re.compile(rf"(?:{_SCHEME}|\bwww\.)[^\s<>\"')]+|\b[\w-]+(?:\.[\w-]+)*\.(?:{_TOP})\b(?:/[^\s<>\"')]*)?", re.I)
_NAMES = {
    ".": "dot", "@": "at", "/": "slash", "-": "dash", "_": "underscore", "+": "plus", "?": "question mark",
    "=": "equals", "&": "and", "#": "hash", "%": "percent", ":": "colon", "~": "tilde",
}  # fmt: skip


def _said(address: str) -> str:
    address = re.sub(r"(?i)^www\b", "w w w", address)
    pieces = re.findall(r"[A-Za-z]+|\d+|[^\w\s]|_|\s", address)
    said = [" ".join(piece) if piece.isdigit() else _NAMES.get(piece, piece) for piece in pieces]
    return re.sub(r"\s+", " ", " ".join(said)).strip()


def _web(found: re.Match[str]) -> str:
    address = _BEGIN.sub("", found[0])
    kept = address.rstrip(".,;:!?/")
    return _said(kept) + address[len(kept) :].lstrip("/")


def expand(text: str) -> str:
    """ "ann@example.com" -> "ann at example dot com"; "https://example.org/x" -> "example dot org slash x"."""
    return _WEB.sub(_web, _EMAIL.sub(lambda found: _said(found[0]), text))
