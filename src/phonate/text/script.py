"""From the parts of an SSML document to sentences of words, each with its delivery and the silence after it."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from phonate.config.errors import InputError
from phonate.text.phonemes import NothingToSay, Phonemizer, Word
from phonate.text.pronunciations import phones_of
from phonate.text.say_as import say_as
from phonate.text.sentences import sentences
from phonate.text.ssml import Delivery, Part


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
    """A sentence as it is read."""

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
    found: list[list[ScriptWord]] = []
    for sentence in _sentences(parts, phonemizer.language):
        silence, words = _words(sentence, phonemizer)
        if found:
            last = found[-1][-1]
            found[-1][-1] = replace(last, silence=last.silence + silence)
        else:
            before += silence
        found += _cut(words, longest)
    if not found:
        raise InputError("nothing of this SSML can be spoken")
    return before, found


def _cut(words: list[ScriptWord], longest: int) -> list[list[ScriptWord]]:
    """A sentence in pieces of at most `longest` characters: cut behind the last mark, or else behind the last word."""
    pieces: list[list[ScriptWord]] = []
    while words:
        ends = list(itertools.accumulate(len(one.word.text) + 1 for one in words))
        most = max(1, bisect_right(ends, longest + 1))  # no space behind the last
        marked = [number for number in range(most, 0, -1) if words[number - 1].word.mark]
        at = len(words) if most == len(words) else next(iter(marked), most)
        pieces.append(words[:at])
        words = words[at:]
    return pieces


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
    if part.said_as is None:
        return part
    kind, order = part.said_as
    try:
        return replace(part, text=say_as(kind, part.text, code, order))
    except InputError as error:
        raise InputError(f"SSML, line {part.line}: <say-as interpret-as={kind!r}>{part.text}: {error}") from None


def _pieces(text: str, code: str) -> list[str]:
    """The sentences of a text, with the space around them that separates words."""
    found = sentences(text, max(1, len(text)), code)
    if found and text[:1].isspace():
        found[0] = f" {found[0]}"
    if found and text[-1:].isspace():
        found[-1] = f"{found[-1]} "
    return found or ([" "] if text else [])


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
    found: list[ScriptWord] = []
    for number, (part, own) in enumerate(zip(sentence.parts, alone, strict=True), start=1):
        words = [next(context) for _ in own] if same else own
        if part.phones is not None:
            said = phones_of(f'SSML, line {part.line}: <phoneme ph="{part.phones}">', part.phones.split(), phonemizer)
            ending = words[-1] if words else Word(part.text.strip(), ())
            words = [replace(ending, text=" ".join(word.text for word in words) or ending.text, phones=said)]
        found += [ScriptWord(word, part.delivery) for word in words]
        silence = sentence.silences.get(number, 0.0)
        if silence and found:
            last = found[-1]
            paused = replace(last.word, mark=last.word.mark or ",")
            found[-1] = ScriptWord(paused, last.delivery, last.silence + silence)
        else:
            before += silence
    return before, found


def _phonemized(text: str, phonemizer: Phonemizer) -> Sequence[Word]:
    try:
        return phonemizer(text)
    except NothingToSay:
        return []  # punctuation between two parts
