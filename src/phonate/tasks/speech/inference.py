"""From a trained run to speech.

Shapes: T frames, M mel bands, L tokens, N samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import PEAK, FloatArray, normalised_peak
from phonate.audio.live import streamed
from phonate.audio.mel_filters import MelFacts
from phonate.config.errors import InputError
from phonate.config.registry import UnknownVoiceError
from phonate.rendering import Renderer, array_renderer, renderer, saved_beside
from phonate.tasks.speech.arrays import ArrayVoice, IntArray, SpokenSentence, Voice, Who
from phonate.text.captions import TimedWord
from phonate.text.intonation import rises
from phonate.text.language import PARAGRAPH, language
from phonate.text.phonemes import Inventory, NothingToSay, Phonemizer, Word, known_mark, learnt_marks
from phonate.text.sentences import PARAGRAPHS, cut_words, sentences
from phonate.text.ssml import (
    FASTEST,
    SLOWEST,
    Part,
    ScriptWord,
    check_delivery,
    is_ssml,
    parse,
    plainly,
    script,
)
from phonate.training.checkpoints.files import MEL, plain_facts, read_arrays
from phonate.training.inference import Demonstration, Device, Inference, SpeechService

if TYPE_CHECKING:
    import torch
    from torch import nn

    from phonate.audio.processor import AudioProcessor
    from phonate.tasks.speech.model import ParallelModel
    from phonate.tasks.speech.settings import SpeechData, SpeechRecipe
    from phonate.training.checkpoints.loading import TrainedDescription

# ---------------------------------------- What is done to the sound of a sentence while it is rendered

FADE_SECONDS = 0.01
"""By which sound ends where a silence is put in, and by which a level changes."""
SILENT_DB = -40.0
"""Of the loudest frame: what is below counts as silence."""
NEAR = 3
"""Frames around a boundary in which its silence is looked for, for durations are not exact."""


@dataclass(frozen=True)
class Pause:
    """A silence that is put in."""

    at: int
    """In front of this sample."""
    samples: int


@dataclass(frozen=True)
class Shaping:
    """The silences of a sentence, in their order, and the levels of its words."""

    rate: int
    pauses: Sequence[Pause] = ()
    levels: Sequence[tuple[int, float]] = ()
    """From which sample on -> decibels added."""

    def __call__(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """The chunks (n,) of the sentence with all that; none of them is empty."""
        yield from (chunk for chunk in self._shaped(chunks) if len(chunk))

    def _shaped(self, chunks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        if not self.pauses and not self.levels:
            yield from chunks
            return
        begins, left = 0, list(self.pauses)
        for chunk in chunks:
            shaped, ends = chunk * self._gains(begins, begins + len(chunk)), begins + len(chunk)
            while left and left[0].at < ends:
                pause = left.pop(0)
                cut = pause.at - (ends - len(shaped))
                yield from (shaped[:cut], np.zeros(pause.samples, dtype=np.float32))
                shaped = shaped[cut:]
            yield shaped
            begins = ends
        for pause in left:
            yield np.zeros(pause.samples, dtype=np.float32)

    def later(self, words: Iterable[TimedWord]) -> Iterator[TimedWord]:
        """Words at the times that they have after the silences were put in."""
        for word in words:
            begin, end = round(word.start * self.rate), round(word.end * self.rate)
            start = word.start + sum(one.samples for one in self.pauses if one.at <= begin) / self.rate
            stop = word.end + sum(one.samples for one in self.pauses if one.at < end) / self.rate
            yield TimedWord(word.text, round(start, 3), round(stop, 3))

    def _gains(self, begin: int, end: int) -> FloatArray:
        """Factors of the samples from `begin` to `end`."""
        fade = max(1, round(FADE_SECONDS * self.rate))
        gains = np.ones(end - begin, dtype=np.float32)
        samples = np.arange(begin, end) + 0.5
        if self.levels:
            places = [place for start, _ in self.levels[1:] for place in (start - fade / 2, start + fade / 2)]
            decibels = [value for _, value in self.levels for _ in range(2)][1:-1]
            first = self.levels[0][1]
            curve = np.interp(samples, places, decibels) if places else np.full(len(samples), first)
            gains = (10.0 ** (curve / 20.0)).astype(np.float32)
        for pause in self.pauses:
            gains *= np.minimum(np.abs(samples - pause.at) / fade, 1.0).astype(np.float32)
        return gains


def level(mel_TM: FloatArray, unit_db: float) -> NDArray[np.float64]:
    """Level of each frame (T,) in dB relative to the loudest; 1 of the mel is `unit_db`."""
    powers_TM = 10.0 ** (unit_db * mel_TM.astype(np.float64) / 10.0)
    decibels_T = 10.0 * np.log10(powers_TM.sum(axis=1))
    return np.asarray(decibels_T - decibels_T.max())


def silent_end(level_T: NDArray[np.float64]) -> int:
    """Silent frames at the end."""
    loud = np.flatnonzero(level_T >= SILENT_DB)
    return len(level_T) - 1 - int(loud[-1])


def shaping(
    words: Sequence[ScriptWord],
    pauses: Sequence[float],
    frames_L: NDArray[np.int64],
    level_T: NDArray[np.float64],
    hop: int,
    rate: int,
) -> Shaping:
    """How a sentence is shaped.

    Args:
        words: W words with their levels and silences, which last at least as long from one word to the next.
        pauses: Seconds of silence to be heard after each word (W,), at least; that after the last is not looked at.
        frames_L: Frames of each token.
        level_T: Level of each frame, see `level`.
        hop: Samples of a frame.
        rate: Samples a second.
    """
    ends_L = np.cumsum(frames_L)
    token, silences, middles = 0, [], [0]
    for number, (one, seconds) in enumerate(zip(words, pauses, strict=True), start=1):
        token += len(one.word.phones) + 1
        begin, end = int(ends_L[token - 1]), int(ends_L[token])
        middles.append((begin + end) * hop // 2)
        lacking = one.silence - (end - begin) * hop / rate if one.silence else 0.0
        if number < len(words):
            first, last = max(0, begin - NEAR), min(len(level_T), end + NEAR)
            lacking = max(lacking, seconds - _longest_run(level_T[first:last] < SILENT_DB) * hop / rate)
        if lacking > 0:
            place = (end * hop) if number == len(words) else _quietest(level_T, begin, end) * hop
            silences.append(Pause(place, round(lacking * rate)))
    decibels = [one.delivery.decibels for one in words]
    return Shaping(rate, silences, list(zip(middles, decibels, strict=False)) if any(decibels) else ())


def _longest_run(values: NDArray[np.bool_]) -> int:
    longest = run = 0
    for value in values:
        run = run + 1 if value else 0
        longest = max(longest, run)
    return longest


def _quietest(level_T: NDArray[np.float64], begin: int, end: int) -> int:
    """The quietest frame between two words, so that the silence in front of it is part of neither."""
    first, last = min(begin, len(level_T) - 1), min(len(level_T), end + 1)
    return first + int(np.argmin(level_T[first:last]))


# -------------------- From a trained run to speech. Shapes: L tokens, T frames, M mel bands, N samples

Sentence = Sequence[Word] | Sequence[ScriptWord]

PAUSE_SECONDS = 0.25
"""Of silence between two sentences, without rules of prosody."""
LONGEST = 400
"""Characters of a sentence that are spoken in one go."""
_MOST_PHONES = 400
"""Of a sentence. One of numbers has several times as many as one of as many letters; half a minute is long enough for
others to wait."""
_BATCH = 16
"""Sentences that the model reads at once."""


class SynthesisedSentence(NamedTuple):
    """A sentence as the model speaks it."""

    mel_TM: FloatArray
    f0_T: FloatArray | None
    frames_L: IntArray | None
    """Of each token."""
    shaping: Shaping
    """What is done to its sound."""
    after: float
    """Seconds of silence between it and the next sentence."""


def _cut(words: list[Word]) -> list[list[Word]]:
    """A sentence in pieces that are not too long."""
    return cut_words(words, [len(one.phones) for one in words], [bool(one.mark) for one in words], _MOST_PHONES)


class Synthesiser(Inference):
    """Speaks text in the voices of a run."""

    sample_rate: int
    _source: tuple[str | Path, str | Path | None]
    """What `load` was given."""

    def __init__(
        self,
        model: Voice,
        data: SpeechData | MelFacts,
        inventory: Inventory,
        speakers: Sequence[str],
        inference_metadata: Mapping[str, Any] | None = None,
        vocoder: str | Path | Renderer | None = None,
    ) -> None:
        """`data`: or what is known of the recipe's, where `load` sets its source; `inference_metadata`: what the task
        saved with the checkpoint; `vocoder`: a run to use instead of `data.vocoder`, or what renders."""
        self.model = model
        if not isinstance(data, MelFacts):
            self.__dict__["data"] = data
        self.audio = data if isinstance(data, MelFacts) else data.audio.facts
        """Of its mels."""
        self.inventory = inventory
        self.phonemizer: Phonemizer = inventory.phonemizer()
        self.speakers = list(speakers)
        """Names of the voices."""
        self.inference_metadata = dict(inference_metadata or {})
        self.sample_rate = self.audio.sample_rate
        self.render: Renderer = (
            renderer(vocoder or self.data.vocoder, self.processor)
            if vocoder is None or isinstance(vocoder, str | Path)
            else vocoder
        )
        """Mel spectrograms to waveforms."""
        self.language = language(inventory.language)
        self.prosody_rules = True
        """Whether questions rise that the training texts did not have, and silences are at least as long as the data of
        the language say."""
        self._learnt = learnt_marks(self.inference_metadata)

    @classmethod
    def load(cls, source: str | Path, vocoder: str | Path | None = None, *, device: Device | None = None) -> Self:
        """The synthesiser of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Args:
            source: A run's folder or a checkpoint's.
            vocoder: A run of the task vocoder, or griffin_lim; None: the one saved beside the model, or the recipe's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
        """
        if device is None or str(device) == "cpu":
            without_torch = cls._of_arrays(source, vocoder)
            if without_torch is not None:
                return without_torch
        return cls.load_torch(source, vocoder, device=device)

    @classmethod
    def load_torch(cls, source: str | Path, vocoder: str | Path | None = None, *, device: Device | None = None) -> Self:
        """As `load`, with networks of torch."""
        from phonate.tasks.speech.model import build_acoustic
        from phonate.tasks.speech.settings import SpeechRecipe
        from phonate.training.checkpoints.loading import open_trained

        trained = open_trained(source, "speech", SpeechRecipe)
        recipe, metadata = trained.recipe, trained.inference_metadata
        trained.require_features(recipe.data.audio.facts.fingerprint)
        inventory = Inventory.read(metadata["inventory"])
        model = build_acoustic(recipe.model, len(inventory), len(metadata["speakers"]), recipe.data.audio.n_mels)
        trained.load_into(model, "acoustic")
        vocoder = vocoder or saved_beside(trained.path)
        return cls(model.eval(), recipe.data, inventory, metadata["speakers"], metadata, vocoder).to(device)

    @classmethod
    def _of_arrays(cls, source: str | Path, vocoder: str | Path | None) -> Self | None:
        """As `load`, computed with NumPy; None for voices that need torch."""
        known = plain_facts(source)
        data: SpeechData | MelFacts
        if known is not None and "inventory" in known[1]:
            path, metadata = known
            data, beside = MelFacts(**metadata[MEL]), metadata["vocoder"]
        else:
            trained = _described(source)
            path, metadata, data = trained.path, trained.inference_metadata, trained.recipe.data
            beside = data.vocoder
        audio = data if isinstance(data, MelFacts) else data.audio.facts
        weights = read_arrays(path, "acoustic")
        render = array_renderer(vocoder or saved_beside(path) or beside, audio)
        if weights is None or render is None or metadata["features"] != audio.fingerprint:
            return None
        try:
            model = ArrayVoice(weights)
        except KeyError:  # another kind of model, or torch tells what is missing, or knows how it was called before
            return None
        voice = cls(model, data, Inventory.read(metadata["inventory"]), metadata["speakers"], metadata, render)
        voice._source = (source, vocoder)
        return voice

    @cached_property
    def data(self) -> SpeechData:
        """The part `data` of its recipe."""
        return _described(self._source[0]).recipe.data

    @cached_property
    def processor(self) -> AudioProcessor:
        """The feature extractor of the voice."""
        from phonate.audio.processor import AudioProcessor

        return AudioProcessor(self.data.audio)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The acoustic model, then the vocoder's network, where torch computes them."""
        model: Any = self.model
        return () if isinstance(model, ArrayVoice) else (model, *self.render.networks)

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`text`, spoken."""
        if not text:
            return None
        from phonate.data.corpora.rows import one_line

        summary, command = f'It says "{one_line(text)}"', 'phonate speak {run} "..." -o out.wav'
        return Demonstration(summary, command, self.speak(text))

    def speech_service(self, max_batch: int = 8) -> SpeechService:
        from phonate.tasks.speech.speaking import SynthesiserService  # which few ask for

        return SynthesiserService(self, max_batch)

    def pronounce(self, lexicon: str | Path) -> None:
        """Pronounce words as the file `lexicon` says (see `phonate.text.pronunciations`). Raises InputError."""
        from phonate.text.pronunciations import LexiconPhonemizer, read_lexicon  # which few ask for

        phonemizer = self.inventory.phonemizer()
        self.phonemizer = LexiconPhonemizer(phonemizer, read_lexicon(lexicon, phonemizer))

    def speaker(self, name: str | None) -> Who:
        """Number of a speaker, the first when none is named; of a blend ("anna:0.6+ben:0.4") the share (S,) of each.
        Raises InputError with the nearest name."""
        if name is None:
            return 0
        if name in self.speakers:
            return self.speakers.index(name)
        if "+" in name:
            return self._blend(name)
        raise UnknownVoiceError(name, self.speakers)

    def _blend(self, blend: str) -> FloatArray:
        shares_S = np.zeros(len(self.speakers))
        for one in blend.split("+"):
            name, _, share = one.strip().rpartition(":")
            number = self.speaker(name.strip()) if name else None
            try:
                weight = float(share)
            except ValueError:
                weight = 0.0
            if not isinstance(number, int) or not 1e-6 <= weight <= 1e6:
                raise InputError(
                    f"speaker {blend!r}: {one.strip()!r} is no voice with its share; write two or more as in "
                    f"{self.speakers[0]}:0.6+{self.speakers[-1]}:0.4"
                )
            shares_S[number] += weight
        return np.asarray(shares_S / shares_S.sum(), dtype=np.float32)

    @overload
    def speak(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> FloatArray: ...

    @overload
    def speak(
        self,
        text: list[str] | tuple[str, ...],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> list[FloatArray]: ...

    def speak(
        self,
        text: str | list[str] | tuple[str, ...],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> FloatArray | list[FloatArray]:
        """`text`, of any length, as sound (N,) at `sample_rate`, its peak 0.95.

        Args:
            text: A text or an SSML document, or a list of these; texts are synthesised in batches.
            speaker: Name of the voice, or of several with their shares: "anna:0.6+ben:0.4". None: the first.
            speed: 1.2 is a fifth faster.
            semitones: Added to the pitch.

        Raises InputError where a text has nothing that can be spoken.
        """
        if isinstance(text, str) and is_ssml(text):
            return self.timed(text, speaker, speed, semitones)[0]
        if isinstance(text, str):
            return self.joined(self.synthesise(list(self.sentences(text)), speaker, speed, semitones))
        if any(map(is_ssml, text)):
            return [self.speak(one, speaker, speed, semitones) for one in text]
        written = []
        for number, one in enumerate(text, start=1):
            try:
                written.append(list(self.sentences(one)))
            except InputError as error:
                raise InputError(f"text {number} of {len(text)}: {error}") from error
        spoken = iter(self.synthesise([words for one in written for words in one], speaker, speed, semitones))
        return [self.joined(itertools.islice(spoken, len(one))) for one in written]

    def timed(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> tuple[FloatArray, list[TimedWord]]:
        """As `speak` for one text, and when each of its words, as they are spoken, is said.

        Raises InputError for a model that does not keep to durations (of kind autoregressive).
        """
        if is_ssml(text):
            return self._speak_ssml(text, speaker, speed, semitones)
        self._require_durations("tell when words are said")
        written = list(self.sentences(text))
        spoken = self.synthesise(written, speaker, speed, semitones)
        return self.joined(spoken), self.times(written, spoken)

    def _speak_ssml(
        self, markup: str, speaker: str | None, speed: float, semitones: float
    ) -> tuple[FloatArray, list[TimedWord]]:
        """`timed` for a document, each word at its own speed, pitch and level, with the silences that it asks for.
        `speed` multiplies its speeds, `semitones` are added to its pitches."""
        before, sentences = self.sentences_of_ssml(markup)
        spoken = self.synthesise(sentences, speaker, speed, semitones)
        sounds = [self.silence(before)]
        for one in spoken:
            plain = PEAK * normalised_peak(self.render(one.mel_TM, one.f0_T))
            sounds += [*one.shaping([plain]), self.silence(one.after)]
        whole = np.concatenate(sounds[:-1])
        whole = PEAK * normalised_peak(whole) if np.abs(whole).max() > 1 else whole  # what is to be quiet stays quiet
        return whole, self.times(sentences, spoken, before)

    def sentences_of_ssml(self, document: str | Sequence[Part]) -> tuple[float, list[list[ScriptWord]]]:
        """Seconds of silence before the first sentence of a document, parsed or not, and the words of each. Raises
        InputError for one that is not understood (see `phonate.text.ssml`), and for a model that does not predict
        durations and pitch."""
        self._require_durations("follow SSML")
        parts = parse(document, self.phonemizer.language) if isinstance(document, str) else document
        return script(parts, self.phonemizer, LONGEST)

    def times(
        self, sentences: Sequence[Sentence], spoken: Sequence[SynthesisedSentence], begins: float = 0.0
    ) -> list[TimedWord]:
        """When the words of sentences are said, of which the first begins at `begins` seconds."""
        times: list[TimedWord] = []
        for words, one in zip(sentences, spoken, strict=True):
            own = one.shaping.later(self._word_times(words, one))
            times += [TimedWord(w.text, round(w.start + begins, 3), round(w.end + begins, 3)) for w in own]
            begins += self.seconds(one) + one.after
        return times

    def _word_times(self, words: Sentence, one: SynthesisedSentence) -> Iterator[TimedWord]:
        """When the words of a sentence are said, before silences are put in."""
        assert one.frames_L is not None
        # the sound ends in the middle of the last frame
        frames_L = np.minimum(np.cumsum(one.frames_L), len(one.mel_TM) - 1)
        ends = frames_L * self.audio.hop_length / self.sample_rate
        token = 0  # the last one before the word: the start, or the boundary of the word before
        for word in (said.word for said in plainly(words)):
            last = token + len(word.phones)
            mark = "..." if word.pause == "..." else word.mark
            if mark == "." and word.text.endswith("."):  # P.M.
                mark = ""
            yield TimedWord(word.text + mark, float(ends[token]), float(ends[last]))
            token = last + 1

    def seconds(self, one: SynthesisedSentence) -> float:
        """Seconds of a sentence."""
        samples = (len(one.mel_TM) - 1) * self.audio.hop_length + sum(each.samples for each in one.shaping.pauses)
        return samples / self.sample_rate

    def silence(self, seconds: float) -> FloatArray:
        """So many seconds of it (N,)."""
        return np.zeros(round(seconds * self.sample_rate), dtype=np.float32)

    def sound(self, one: SynthesisedSentence) -> FloatArray:
        """The sound (N,) of a sentence, at the level of its mel."""
        return np.concatenate(list(one.shaping([self.render(one.mel_TM, one.f0_T)])))

    def pieces(self, one: SynthesisedSentence) -> Iterator[FloatArray]:
        """The same in pieces (n,) as they are ready, at the level of streams."""
        return map(streamed, one.shaping(self.render.stream(one.mel_TM, one.f0_T)))

    def joined(self, spoken: Iterable[SynthesisedSentence]) -> FloatArray:
        """The sound (N,) of sentences, with pauses between them."""
        parts = [part for one in spoken for part in (self.sound(one), self.silence(one.after))]
        return PEAK * normalised_peak(np.concatenate(parts[:-1]))

    def stream(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """As `speak` for one text, in pieces (N,) as they are ready, sentence by sentence, at a fixed level."""
        after, written = self.sentences_of_ssml(text) if is_ssml(text) else (0.0, self.sentences(text))
        for words in written:
            if len(silence := self.silence(after)):
                yield silence
            (one,) = self.synthesise([words], speaker, speed, semitones)
            yield from self.pieces(one)
            after = one.after

    def sentences(self, text: str, continues: bool = False) -> Iterator[list[Word]]:
        """The words of each sentence with something to say. `continues`: the last paragraph goes on after `text`.

        Raises NothingToSay when there is none.
        """
        count = 0
        paragraphs = PARAGRAPHS.split(text)
        for at, paragraph in enumerate(paragraphs, start=1):
            pieces = [self._words(piece) for piece in sentences(paragraph, LONGEST, self.inventory.language)]
            speakable = [part for words in pieces for part in _cut(words)]
            for number, words in enumerate(speakable, start=1):
                if number == len(speakable) and not (continues and at == len(paragraphs)):
                    words[-1] = replace(words[-1], pause=PARAGRAPH)
                yield words
            count += len(speakable)
        if not count:
            raise NothingToSay(text)

    def mel(
        self, words: Sentence, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> tuple[FloatArray, FloatArray | None]:
        """The mel (T, M), from 0 to 1, of one sentence without the silences that are put in, and its pitch (T,) in Hz
        (0: unvoiced) where the model predicts it."""
        (one,) = self.synthesise([words], speaker, speed, semitones)
        return one.mel_TM, one.f0_T

    def _words(self, sentence: str) -> list[Word]:
        """The words of a sentence; none where it has nothing to say, such as a line of asterisks between paragraphs."""
        try:
            return self.phonemizer(sentence)
        except NothingToSay:
            return []

    def synthesise(
        self,
        sentences: Sequence[Sentence],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> list[SynthesisedSentence]:
        """Sentences of words, plain or with their delivery, as the model speaks them; those of like length are
        batched."""
        check_delivery(speed, semitones)
        number = self.speaker(speaker)
        scripts = [plainly(words) for words in sentences]
        tokens = [self._tokens([one.word for one in script]) for script in scripts]
        deliveries = [self._deliveries(script, speed, semitones) for script in scripts]
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        results: dict[int, SynthesisedSentence] = {}
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            speeds, changes = zip(*(deliveries[i] for i in chosen), strict=True)
            sentences_of_batch = self.model.say([tokens[i] for i in chosen], number, speeds, changes)
            results |= {
                i: self._shaped(scripts[i], one, speed) for i, one in zip(chosen, sentences_of_batch, strict=True)
            }
        return [results[i] for i in range(len(tokens))]

    def _tokens(self, words: Sequence[Word]) -> IntArray:
        """Token numbers (L,); a mark that was hardly in the training texts is read as a weaker one."""
        if self.prosody_rules:
            words = [replace(word, mark=known_mark(word, self._learnt)) for word in words]
        return np.array(self.inventory.ids(words), dtype=np.int64)

    def _deliveries(
        self, script: Sequence[ScriptWord], speed: float, semitones: float
    ) -> tuple[FloatArray, FloatArray]:
        """The speed of each token (L,), and the semitones at its beginning and its end (L, 2)."""
        of_token = [
            script[0],
            *(one for one in script for _ in range(len(one.word.phones) + 1)),
        ]  # the start: the first's
        speed_L = np.array([speed * one.delivery.speed for one in of_token], dtype=np.float32).clip(SLOWEST, FASTEST)
        semitones_L2 = np.array([2 * [semitones + one.delivery.semitones] for one in of_token], dtype=np.float32)
        if self.raises_questions and self.language.questions is not None:
            rising_L2 = rises([one.word for one in script], self.language.questions)
            if rising_L2 is not None:
                semitones_L2 += rising_L2
        return speed_L, semitones_L2

    @property
    def raises_questions(self) -> bool:
        """Whether the rises of questions are added by rules: where they were not learnt, as training had hardly any."""
        learns_none = self._learnt is not None and "?" not in self._learnt
        return self.prosody_rules and learns_none and self.model.keeps_durations

    def _shaped(self, script: Sequence[ScriptWord], one: SpokenSentence, speed: float) -> SynthesisedSentence:
        """What the model gave, with what is done to its sound."""
        mel_TM, f0_T, frames_L = one
        level_T = level(mel_TM, -self.audio.min_level_db)
        pauses = self.language.pauses if self.prosody_rules else {}
        seconds = [self._silence(one.word) / speed for one in script]
        hop, rate = self.audio.hop_length, self.sample_rate
        shape = Shaping(rate) if frames_L is None else shaping(script, seconds, frames_L, level_T, hop, rate)
        after = PAUSE_SECONDS
        if self.prosody_rules:
            last = script[-1].word
            silence = pauses.get(last.pause or last.mark, PAUSE_SECONDS) / speed
            after = max(0.0, silence - silent_end(level_T) * hop / rate)
        return SynthesisedSentence(mel_TM, f0_T, frames_L, shape, after)

    def _require_durations(self, purpose: str) -> None:
        """Raise InputError, naming the `purpose`, for a model that is not of kind parallel."""
        if not self.model.keeps_durations:
            raise InputError(f"only a model of kind parallel can {purpose}; this one is autoregressive")

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        if not isinstance(self.model, ArrayVoice):
            return super().device
        import torch

        return torch.device("cpu")

    def to(self, device: Device | None) -> Self:
        """See `Inference.to`; what NumPy computes is loaded into torch for other devices than the CPU."""
        if isinstance(self.model, ArrayVoice) and device is not None and str(device) != "cpu":
            moved = self.load_torch(*self._source, device=device)
            self.model, self.render = moved.model, moved.render
        return super().to(device) if self.networks else self

    def _silence(self, word: Word) -> float:
        """Seconds of silence after a word within a sentence, at least; 0 where what its mark means was learnt."""
        if not self.prosody_rules or self._learnt is None or (word.mark in self._learnt and not word.pause):
            return 0.0
        return self.language.pauses.get(word.pause or word.mark, 0.0)


def _described(source: str | Path) -> TrainedDescription[SpeechRecipe]:
    from phonate.tasks.speech.settings import SpeechRecipe
    from phonate.training.checkpoints.loading import describe_trained

    return describe_trained(source, "speech", SpeechRecipe, weights_intact=True)


def parallel(synthesiser: Synthesiser, purpose: str) -> ParallelModel:
    """The model, of kind parallel, of `Synthesiser.load_torch`. Raises InputError, naming the `purpose`, for one of
    another kind."""
    from phonate.tasks.speech.model import ParallelModel

    synthesiser._require_durations(purpose)
    assert isinstance(synthesiser.model, ParallelModel)
    return synthesiser.model


# -------------- The mels that a voice makes of its own corpus, frame by frame beside the recorded ones


def predict_corpus(run: str | Path, folder: Path) -> int:
    """Write the mels of all recordings of the run's corpus into `folder`; returns how many.

    They are said with the recorded durations, energy and pitch, so they fit the recordings frame by frame. Raises
    DataError when `folder` is there already.
    """
    import torch

    from phonate.data.derived import write_predicted
    from phonate.tasks.speech.data import SpeechCorpus, SpeechDataset
    from phonate.tasks.speech.model import Prosody

    synthesiser = Synthesiser.load_torch(run)
    model = parallel(synthesiser, "predict mels beside recordings")
    corpus = SpeechCorpus(synthesiser.data)
    splits = [SpeechDataset(corpus, split) for split in ("train", "validation")]
    places = [(samples, index) for samples in splits for index in range(len(samples.ids))]

    @torch.no_grad()
    def predict(place: int) -> FloatArray:
        samples, index = places[place]
        batch = samples.collate([samples.get(index, np.random.default_rng(place))])
        recorded = Prosody(batch["durations"], batch["energy"], batch["pitch"])
        output = model(
            batch["tokens"], batch["token_lengths"], recorded, batch["noise"], batch["lengths"], batch["speaker_id"]
        )
        return np.asarray(output.mel_BTM[0].float().clamp(0.0, 1.0))

    ids = [samples.ids[index] for samples, index in places]
    write_predicted(folder, synthesiser.processor.fingerprint, ids, predict)
    return len(ids)
