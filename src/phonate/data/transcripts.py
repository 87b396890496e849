"""Transcripts of recordings: words with their times and speakers, in the files that other programs read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from phonate.audio.decoding import Audio
from phonate.compute.system import write_output
from phonate.config.errors import InputError, option
from phonate.data.annotations import SpeakerTurn, rttm_lines
from phonate.data.label_documents import Tier, textgrid_lines
from phonate.text.captions import TimedWord, captions


class _Diarization(Protocol):
    @property
    def turns(self) -> list[SpeakerTurn]: ...


class Diarizes(Protocol):
    """What tells who speaks when, such as `phonate.load("base/diarizer")`."""

    def diarize(self, audio: Audio, *, sample_rate: int | None = None) -> _Diarization:
        """The turns of a recording."""


Speakers = Diarizes | Sequence[SpeakerTurn]
"""Who speaks when, or what tells it."""


JOINED_PAUSE = 1.0
"""Seconds: words of one speaker with a shorter pause between them are one turn."""


@dataclass(frozen=True)
class Transcription:
    """What is said in a recording, word by word."""

    words: list[TimedWord]
    """Sorted by start."""
    seconds: float
    """Length of the recording."""
    language: str | None = None
    """Its code, such as "de", where the model tells it."""

    @property
    def text(self) -> str:
        """All words, in one line."""
        return " ".join(word.text for word in self.words)

    @property
    def speakers(self) -> list[str]:
        """In the order in which they first speak."""
        return list(dict.fromkeys(word.speaker for word in self.words if word.speaker is not None))

    def paragraphs(self) -> list[list[TimedWord]]:
        """The words of each stretch of one speaker."""
        return [list(words) for _, words in itertools.groupby(self.words, key=lambda word: word.speaker)]

    def segments(self) -> list[list[TimedWord]]:
        """The words of each sentence; a new one begins with another speaker, too, and after a long pause."""
        segments: list[list[TimedWord]] = []
        for word in self.words:
            before = segments[-1][-1] if segments else None
            if (
                before is None
                or before.speaker != word.speaker
                or word.start - before.end > JOINED_PAUSE
                or before.text.endswith((".", "!", "?", "。", "؟", "।"))
            ):
                segments.append([])
            segments[-1].append(word)
        return segments

    def tiers(self) -> list[Tier]:
        """A tier of words for each speaker."""
        names: list[str | None] = [*self.speakers] or [None]
        return [
            Tier(name or "words", [(word.start, word.end, word.text) for word in self.words if word.speaker == name])
            for name in names
        ]

    def document(self, recording: str) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "recording": recording,
            "seconds": round(self.seconds, 3),
            "language": self.language,
            "speakers": self.speakers,
            "text": self.text,
            "words": [word.document() for word in self.words],
        }

    def spoken_by(self, speakers: Speakers | None, audio: Audio, sample_rate: int) -> Transcription:
        """As `with_speakers`, where `speakers` may have to listen to `audio` first: a file, or samples (N,) at
        `sample_rate` Hz. None: nobody is named."""
        if speakers is None:
            return self
        if isinstance(speakers, Sequence):
            return self.with_speakers(speakers)
        rate = sample_rate if isinstance(audio, np.ndarray) else None
        return self.with_speakers(speakers.diarize(audio, sample_rate=rate).turns)

    def with_speakers(self, turns: Sequence[SpeakerTurn]) -> Transcription:
        """Each word with the speaker of `turns` who talks for most of it; where nobody does, with the one who talks
        nearest to it. Without turns nobody is named."""
        if not turns:
            return self
        start_T = np.array([turn.start for turn in turns])
        end_T = np.array([turn.end for turn in turns])

        def speaker(word: TimedWord) -> str:
            shared_T = np.minimum(end_T, word.end) - np.maximum(start_T, word.start)  # negative: the gap between them
            nearest = int(shared_T.argmax())
            if shared_T[nearest] <= 0:
                return turns[nearest].speaker
            seconds: dict[str, float] = {}
            for index in np.flatnonzero(shared_T > 0).tolist():
                name = turns[index].speaker
                seconds[name] = seconds.get(name, 0.0) + float(shared_T[index])
            return max(seconds, key=seconds.__getitem__)

        return replace(self, words=[replace(word, speaker=speaker(word)) for word in self.words])

    def turns(self) -> list[SpeakerTurn]:
        """When each speaker says words; pauses up to `JOINED_PAUSE` within are part of a turn."""
        turns: dict[str, list[SpeakerTurn]] = {}
        for word in self.words:
            if word.speaker is None:
                continue
            own = turns.setdefault(word.speaker, [])
            if own and word.start - own[-1].end <= JOINED_PAUSE:
                own[-1] = replace(own[-1], end=max(own[-1].end, word.end))
            elif word.end > word.start:
                own.append(SpeakerTurn(word.start, word.end, word.speaker))
        return sorted(turn for own in turns.values() for turn in own)


@dataclass(frozen=True)
class Alignment(Transcription):
    """When a given text is said in a recording. `words` are those of it that are said."""

    phones: list[TimedWord] = field(default_factory=list)
    """Their phones; none where the aligner knows none."""
    missing: list[TimedWord] = field(default_factory=list)
    """Words of the text that are not said; they begin and end where they would be."""
    extra: list[TimedWord] = field(default_factory=list)
    """What is said and not in the text, with its words where these were recognised."""

    def document(self, recording: str) -> dict[str, Any]:
        """As plain JSON."""
        parts = {"phones": self.phones, "missing": self.missing, "extra": self.extra}
        return {
            **super().document(recording),
            **{name: [one.document() for one in listed] for name, listed in parts.items()},
        }

    def tiers(self) -> list[Tier]:
        """`words` and `phones`, as the Montreal Forced Aligner calls them."""
        words = Tier("words", [(one.start, one.end, bare(one.text)) for one in self.words])
        phones = Tier("phones", [(one.start, one.end, one.text) for one in self.phones])
        return [words, phones] if self.phones else [words]


_AROUND = re.compile(r"^(?:(?![$€£¥])[\W_])+|(?:(?![%°#+])[\W_])+$")
"""Marks, but not those that are spoken: 50%, $5, C++."""
_SIGN = re.compile(r"[\W_]*?([%‰°§&#+=$€£¥])[\W_]*")
"""A mark that is spoken although it stands alone, as in `50 %,`. In CTM a lone `@` is no word."""


def bare(word: str) -> str:
    """A word without the marks around it."""
    sign = _SIGN.fullmatch(word)
    return sign[1] if sign else _AROUND.sub("", word) or word


def format_transcription(transcription: Transcription, recording: str, form: str) -> str:
    """The text of a file of the kind `form`, such as ".srt". Raises InputError for another one, and for RTTM where no
    speakers are known."""
    if form not in FORMS:
        raise InputError(f"transcripts are written as {', '.join(FORMS)}, not as {form or 'a file without a suffix'}")
    return FORMS[form](transcription, recording)


def write_transcription(path: str | Path, transcription: Transcription, recording: str) -> None:
    """Write what was said in the recording called `recording` in the form that the suffix of `path` names.

    Raises InputError for an unknown suffix, for RTTM where no speakers are known, and where it can't be written.
    """
    try:
        text = format_transcription(transcription, recording, Path(path).suffix)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    write_output(path, text.encode())


def _text(transcription: Transcription, _: str) -> str:
    """A line for each stretch of one speaker."""
    lines = []
    for words in transcription.paragraphs():
        speaker = words[0].speaker
        lines.append((f"{speaker}: " if speaker else "") + " ".join(word.text for word in words) + "\n")
    return "".join(lines)


def _rttm(transcription: Transcription, recording: str) -> str:
    if transcription.words and not transcription.speakers:
        raise InputError(f"RTTM says who speaks, which is not known here; transcribe with {option('speakers')}")
    return "".join(f"{line}\n" for line in rttm_lines(recording, transcription.turns()))


def _textgrid(transcription: Transcription, _: str) -> str:
    end = max([transcription.seconds, *(word.end for word in transcription.words)])
    return "".join(f"{line}\n" for line in textgrid_lines(transcription.tiers(), end))


def _ctm(transcription: Transcription, recording: str) -> str:
    """A line for each word: recording, channel, start, duration, word, and its confidence where it is known. Marks that
    stand alone and are not spoken are no words, which scorers would count."""
    name = "_".join(recording.split())
    lines = []
    for word in (one for one in transcription.words if _SIGN.fullmatch(one.text) or any(map(str.isalnum, one.text))):
        confidence = "" if word.confidence is None else f" {word.confidence:.4f}"
        times = f"{word.start:.3f} {word.end - word.start:.3f}"
        lines.append(f"{name} 1 {times} {'_'.join(bare(word.text).split())}{confidence}\n")
    return "".join(lines)


def _json(transcription: Transcription, recording: str) -> str:
    return json.dumps(transcription.document(recording), ensure_ascii=False, indent=1) + "\n"


FORMS: Mapping[str, Callable[[Transcription, str], str]] = {
    ".txt": _text,
    ".srt": lambda transcription, _: captions(transcription.words, ".srt", transcription.seconds),
    ".vtt": lambda transcription, _: captions(transcription.words, ".vtt", transcription.seconds),
    ".json": _json,
    ".rttm": _rttm,
    ".TextGrid": _textgrid,
    ".ctm": _ctm,
}
"""What transcripts are written as, by suffix."""
