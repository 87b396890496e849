"""From recordings to text: symbol probabilities, the search through them with a language model, and whole recordings.

Shapes: B batch, T mel frames, M mel bands, U = ceil(T / 4) frames, S symbols (0 is the blank), N samples.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
import math
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, overload
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import Audio, AudioT, FloatArray, as_waveform, windows
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import InputError, option
from phonate.config.language_codes import primary
from phonate.data.batches import padded
from phonate.data.corpora.rows import one_line
from phonate.data.progress import Stage, progress_in
from phonate.data.transcripts import Alignment, Speakers, Transcription
from phonate.tasks.recognition.alignment import align_as_heard
from phonate.tasks.recognition.data import BLANK, Symbols, Wording, letters_of, standardised
from phonate.tasks.recognition.model import SUBSAMPLING, CtcModel, build_model, reduced
from phonate.tasks.recognition.settings import RecognitionRecipe
from phonate.text.captions import TimedWord
from phonate.training.checkpoints.listing import located
from phonate.training.checkpoints.loading import open_trained, recipe_of
from phonate.training.inference import Demonstration, Device, Inference

START, END = -1, 0
"""Markers before the first and after the last symbol. END is the id of the blank, which texts do not contain."""

# ---------------------------------- An n-gram language model of symbols, counted in the training texts

_MOST = 300_000
"""Number of most frequent sequences kept."""

History = tuple[int, ...]


class SymbolModel:
    """Probabilities of the next symbol, or of the end, given the last `order - 1` symbols.

    Counts of all orders are interpolated with Witten-Bell weights, down to a uniform distribution (Chen and
    Goodman 1999, "An empirical study of smoothing techniques for language modeling", section 2.7).
    """

    def __init__(self, order: int, symbols: int, counts: Mapping[History, int]) -> None:
        """`symbols`: number of symbols, without END. `counts`: counts of sequences of up to `order` symbols."""
        self.order, self.symbols, self.counts = order, symbols, dict(counts)
        self._totals: dict[History, int] = defaultdict(int)
        self._kinds: dict[History, int] = defaultdict(int)
        for sequence, count in self.counts.items():
            self._totals[sequence[:-1]] += count
            self._kinds[sequence[:-1]] += 1
        self.probability = lru_cache(maxsize=1 << 18)(self._probability)
        """Probability of a symbol, or END, after a history: `probability(history, symbol)`."""

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], order: int, symbols: int) -> SymbolModel:
        """Train the model on `texts`, each a sequence of symbol ids."""
        counts: Counter[History] = Counter()
        for text in texts:
            whole = (START, *text, END)
            for end in range(2, len(whole) + 1):
                counts.update(whole[start:end] for start in range(max(0, end - order), end))
        return cls(order, symbols, dict(counts.most_common(_MOST)))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> SymbolModel:
        """Read the model written by `document()`."""
        counts = {tuple(map(int, key.split())): count for key, count in document["counts"].items()}
        return cls(document["order"], document["symbols"], counts)

    def document(self) -> dict[str, Any]:
        """The model as plain JSON, for `read`."""
        counts = {" ".join(map(str, sequence)): count for sequence, count in self.counts.items()}
        return {"order": self.order, "symbols": self.symbols, "counts": counts}

    def begin(self) -> History:
        """The history before the first symbol."""
        return (START,)[: self.order - 1]

    def after(self, history: History, symbol: int) -> History:
        """The history after `symbol`."""
        return (*history, symbol)[-(self.order - 1) :] if self.order > 1 else ()

    def log_probability(self, text: Sequence[int]) -> float:
        """Of a whole text and its end."""
        history, total = self.begin(), 0.0
        for symbol in (*text, END):
            total += math.log(self.probability(history, symbol))
            history = self.after(history, symbol)
        return total

    def _probability(self, history: History, symbol: int) -> float:
        probability = 1.0 / (self.symbols + 1)
        for start in range(len(history), -1, -1):
            context = history[start:]
            kinds = self._kinds.get(context, 0)
            if not kinds:  # an unseen longer context has no influence
                break
            count = self.counts.get((*context, symbol), 0)
            probability = (count + kinds * probability) / (self._totals[context] + kinds)
        return probability


# ------------------------------------------------------------ Decoding of symbol probabilities to text

_NEVER = -math.inf
LEAST = math.log(1e-4)
"""Symbols with a lower log probability at a frame are not tried."""


@dataclass(frozen=True)
class LanguageModelFusion:
    """Scores added to the network's probabilities in the search."""

    model: SymbolModel | None = None
    weight: float = 0.0
    """Weight of the language model's log probabilities."""
    bonus: float = 0.0
    """Bonus for each symbol."""

    def of(self, history: History, symbol: int) -> float:
        """Score of a symbol, or END, after a history."""
        score = 0.0 if self.model is None else self.weight * math.log(self.model.probability(history, symbol))
        return score + (self.bonus if symbol != END else 0.0)


class _Prefix:
    """A prefix of a text: its last symbol, and the preceding prefix."""

    __slots__ = ("__weakref__", "before", "history", "number", "symbol", "wished")

    def __init__(self, number: int, before: _Prefix | None, symbol: int, history: History, wished: float) -> None:
        self.number, self.before, self.symbol = number, before, symbol
        self.history, self.wished = history, wished

    def ids(self) -> list[int]:
        symbols: list[int] = []
        prefix = self
        while prefix.before is not None:
            symbols.append(prefix.symbol)
            prefix = prefix.before
        return symbols[::-1]


class _Prefixes:
    """Each prefix exists once, as long as the search or a longer prefix refers to it."""

    def __init__(self, fusion: LanguageModelFusion) -> None:
        self.fusion = fusion
        self.root = _Prefix(0, None, BLANK, fusion.model.begin() if fusion.model else (), 0.0)
        self._known: WeakValueDictionary[tuple[int, int], _Prefix] = WeakValueDictionary()
        self._count = 0

    def longer(self, before: _Prefix, symbol: int) -> _Prefix:
        prefix = self._known.get((before.number, symbol))
        if prefix is None:
            self._count += 1
            model = self.fusion.model
            history = model.after(before.history, symbol) if model else ()
            wished = before.wished + self.fusion.of(before.history, symbol)
            prefix = _Prefix(self._count, before, symbol, history, wished)
            self._known[before.number, symbol] = prefix
        return prefix


def greedy(log_probs_US: FloatArray) -> list[int]:
    """The likeliest symbol of each frame (U, S), repetitions merged and blanks removed: "best path decoding" (Graves
    et al. 2006, section 3.2); returns symbol ids."""
    best_U = log_probs_US.argmax(axis=1)
    first_U = np.flatnonzero(np.diff(best_U, prepend=-1))
    return [int(symbol) for symbol in best_U[first_U] if symbol != BLANK]


def beam_search(
    log_probs_US: FloatArray, beam: int, fusion: LanguageModelFusion | None = None, least: float = LEAST
) -> list[int]:
    """The text with the highest score: log probability over all its alignments plus `fusion`.

    Args:
        log_probs_US: Log probabilities (U, S) of the symbols at each frame.
        beam: Number of prefixes kept at each frame.
        fusion: Language model and bonus, if any.
        least: Symbols with a lower log probability are not tried.

    Returns:
        Symbol ids.

    Prefix beam search (Hannun et al. 2014, "First-pass large vocabulary continuous speech recognition using
    bi-directional recurrent DNNs", algorithm 1), with a language model of symbols instead of words.
    The `beam` best prefixes are kept at each frame.
    """
    fusion = fusion or LanguageModelFusion()
    prefixes = _Prefixes(fusion)
    # Log probabilities of a prefix whose last frame was a blank, and of one whose last frame was its last symbol.
    beams: dict[_Prefix, tuple[float, float]] = {prefixes.root: (0.0, _NEVER)}
    for row_S in np.asarray(log_probs_US, dtype=np.float64):
        tried = np.flatnonzero(row_S >= min(least, float(row_S.max())))
        beams = _best(_step(prefixes, beams, list(zip(tried.tolist(), row_S[tried].tolist(), strict=True))), beam)
    ends = {prefix: _sum(*logs) + prefix.wished + fusion.of(prefix.history, END) for prefix, logs in beams.items()}
    return max(ends, key=ends.__getitem__).ids()


def frames_of(log_probs_US: FloatArray, ids: Sequence[int]) -> list[int]:
    """The frame of each of `ids`: where it is likeliest on the best alignment of all of them with log probabilities
    (U, S) (Viterbi search)."""
    if not ids:
        return []
    states = [BLANK, *(one for symbol in ids for one in (symbol, BLANK))]
    # From two states before, unless that skips the blank between two equal symbols.
    skips_Z = np.array(
        [place > 1 and place % 2 == 1 and states[place] != states[place - 2] for place in range(len(states))]
    )
    best_Z = np.full(len(states), -np.inf)
    best_Z[0] = 0.0
    steps_UZ = np.zeros((len(log_probs_US), len(states)), dtype=np.int8)
    for frame, row_S in enumerate(np.asarray(log_probs_US, dtype=np.float64)):
        one_Z = np.concatenate([[-np.inf], best_Z[:-1]])
        two_Z = np.where(skips_Z, np.concatenate([[-np.inf, -np.inf], best_Z[:-2]]), -np.inf)
        options_3Z = np.stack([best_Z, one_Z, two_Z])
        steps_UZ[frame] = options_3Z.argmax(axis=0)
        best_Z = options_3Z.max(axis=0) + row_S[states]
    state = len(states) - 1 if best_Z[-1] >= best_Z[-2] else len(states) - 2
    frames = [0] * len(ids)
    likeliest = [-np.inf] * len(ids)
    for frame in range(len(log_probs_US) - 1, -1, -1):
        if state % 2:
            own, value = state // 2, float(log_probs_US[frame, states[state]])
            if value >= likeliest[own]:
                frames[own], likeliest[own] = frame, value
        state -= int(steps_UZ[frame, state])
    return frames


def _step(
    prefixes: _Prefixes, beams: dict[_Prefix, tuple[float, float]], tried: list[tuple[int, float]]
) -> dict[_Prefix, tuple[float, float]]:
    """All prefixes after one more frame."""
    candidates: dict[_Prefix, tuple[float, float]] = {}

    def add(prefix: _Prefix, blank: float, symbol: float) -> None:
        before = candidates.get(prefix, (_NEVER, _NEVER))
        candidates[prefix] = _sum(before[0], blank), _sum(before[1], symbol)

    for prefix, (blank, last) in beams.items():
        either = _sum(blank, last)
        for symbol, log in tried:
            if symbol == BLANK:
                add(prefix, either + log, _NEVER)
            elif symbol == prefix.symbol:
                add(prefix, _NEVER, last + log)  # the same symbol continues
                add(prefixes.longer(prefix, symbol), _NEVER, blank + log)  # repeated after a blank
            else:
                add(prefixes.longer(prefix, symbol), _NEVER, either + log)
    return candidates


def _best(candidates: dict[_Prefix, tuple[float, float]], beam: int) -> dict[_Prefix, tuple[float, float]]:
    best = heapq.nlargest(beam, candidates, key=lambda prefix: _sum(*candidates[prefix]) + prefix.wished)
    return {prefix: candidates[prefix] for prefix in best}


def _sum(one: float, two: float) -> float:
    """Log of the sum of two probabilities given as logs."""
    high, low = (one, two) if one > two else (two, one)
    return high if low == _NEVER else high + math.log1p(math.exp(low - high))


# ---------------------------------------------------- What recognises words: a run, or what comes trained

PRETRAINED = "whisper"
"""`whisper` is the best model that is installed, whisper/small one by its name in faster-whisper."""
_CHECKPOINTS = ("checkpoints", "manifest.json")
"""One of these is in a run's folder or in a checkpoint's."""


class Recogniser(Inference):
    """Tells what is said in recordings."""

    languages: Sequence[str]
    """Codes of the languages that it knows."""

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None, base: str | Path | None = None) -> Self:
        """The recogniser of a run, of one checkpoint, or of what comes trained: whisper, whisper/NAME, the folder of a
        Whisper model, or its name on the hub. Errors are those of the classes' `load`.

        `base`: of a fine-tuned Whisper the model that its adapters were trained on; None: where it was in training."""
        path = located(Path(source))
        trained = any((path / name).exists() for name in _CHECKPOINTS)
        chosen: type[Any] = Transcriber
        if not trained or recipe_of(path).model.kind == "whisper":
            whisper = importlib.import_module("phonate.tasks.recognition.whisper")
            chosen = whisper.FineTunedWhisper if trained else whisper.WhisperTranscriber
        recogniser: Self = chosen.load(source, device=device, base=base)
        return recogniser

    @overload
    def transcribe(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: None = None,
    ) -> str: ...

    @overload
    def transcribe(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers,
    ) -> Transcription: ...

    @overload
    def transcribe(
        self,
        audio: list[AudioT] | tuple[AudioT, ...],
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: None = None,
    ) -> list[str]: ...

    def transcribe(
        self,
        audio: Audio | list[AudioT] | tuple[AudioT, ...],
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers | None = None,
    ) -> str | list[str] | Transcription:
        """What is said in a recording, or in each of a list; "" for silence. With `speakers`, as `timed`.

        Arguments and errors are those of `timed`.
        """
        if isinstance(audio, list | tuple):
            return self._texts(audio, beam, sample_rate, language)
        if speakers is None:
            return self._texts([audio], beam, sample_rate, language)[0]
        return self.timed(audio, beam, sample_rate=sample_rate, language=language, speakers=speakers)

    def _texts(
        self, audios: Sequence[Audio], beam: int | None, sample_rate: int | None, language: str | None
    ) -> list[str]:
        return [self.timed(one, beam, sample_rate=sample_rate, language=language).text for one in audios]

    @abstractmethod
    def timed(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers | None = None,
    ) -> Transcription:
        """The words of a recording with their times, confidences and speakers.

        Args:
            audio: The path of a recording of any format, rate and length; or samples (N,).
            beam: Hypotheses that the search keeps; 1 is the fastest. None: the model's own choice.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.
            language: Such as "de"; None: the model's.
            speakers: Who speaks when, or a diarizer, which tells it; None: no speakers.

        Raises InputError for a beam under 1 and a language that the model does not know, DataError for audio that can't
        be read.
        """

    @abstractmethod
    def forced(self, samples: FloatArray, words: Sequence[str], language: str) -> list[TimedWord]:
        """When `words` are said in samples (N,) at `self.sample_rate` Hz of up to half a minute, whatever is
        said there, and how probable each of them is."""

    def align(
        self, audio: Audio, text: str, *, sample_rate: int | None = None, language: str | None = None
    ) -> Alignment:
        """When the words of `text` are said in a recording, and which are not, or are said and not in it.

        Arguments and errors are those of `timed`; InputError also where no words of the text are heard."""
        return align_as_heard(self, audio, text, language, sample_rate=sample_rate)

    @abstractmethod
    def stream(
        self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None, language: str | None = None
    ) -> Iterator[str]:
        """As `transcribe` for one long recording, part by part; parts end in pauses."""


def require_no_base(source: str | Path, base: str | Path | None) -> None:
    """Raise InputError for a base where there are no adapters."""
    if base is not None:
        raise InputError(f"{option('base')}: {source} has no adapters to a Whisper; leave it out")


# ----------------------------------------------------------------------------- Transcribing recordings

_WINDOW_SECONDS = 30.0
_BATCH = 8
"""Windows that the model reads at once."""
_PAUSE_SECONDS = 0.3
"""A stream is cut where the model has been silent for so long."""


class Transcriber(Recogniser):
    """Transcribes recordings with a model of this task."""

    sample_rate: int

    def __init__(
        self,
        model: CtcModel,
        recipe: RecognitionRecipe,
        symbols: Symbols,
        language: SymbolModel | None,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`recipe`: that the model was trained with; `language`: counted in the training texts; `inference_metadata`:
        what the task saved with the checkpoint."""
        self.model = model.eval()
        self.recipe = recipe
        self.languages = (recipe.data.language,)
        self.symbols = symbols
        self.inference_metadata = dict(inference_metadata or {})
        self.processor = AudioProcessor(recipe.data.audio)
        self.sample_rate = recipe.data.audio.sample_rate
        settings = recipe.model
        self.fusion = (
            LanguageModelFusion(language, settings.language_weight, settings.symbol_bonus)
            if language
            else LanguageModelFusion()
        )
        """What the beam search adds to the network's probabilities."""
        self.window = round(_WINDOW_SECONDS * recipe.data.audio.frames_per_second)
        """Mel frames of a long recording that are read at once, beside the model's context around them."""

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None, base: str | Path | None = None) -> Self:
        """The transcriber of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Args:
            source: A run's folder or a checkpoint's.
            device: Such as "cuda:0"; None: cpu.
            base: None: there is none.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
        """
        require_no_base(source, base)
        trained = open_trained(source, "recognition", RecognitionRecipe)
        recipe, metadata = trained.recipe, trained.inference_metadata
        trained.require_features(AudioProcessor(recipe.data.audio).fingerprint)
        symbols = Symbols.read(metadata["symbols"])
        model = build_model(recipe.model, recipe.data.audio.n_mels, len(symbols))
        trained.load_into(model)
        language = SymbolModel.read(metadata["language_model"]) if metadata["language_model"] else None
        return cls(model, recipe, symbols, language, metadata).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The acoustic model."""
        return (self.model,)

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`recording`, transcribed."""
        if recording is None:
            return None
        summary = f'It hears "{self.transcribe(recording)}" in {one_line(recording.name)}'
        return Demonstration(summary, "phonate transcribe {run} in.wav")

    def _texts(
        self, audios: Sequence[Audio], beam: int | None, sample_rate: int | None, language: str | None
    ) -> list[str]:
        """In batches."""
        beam = self._beam(beam)
        self._require_language(language)
        waveforms = [as_waveform(one, self.sample_rate, sample_rate) for one in audios]
        audible = [index for index, waveform in enumerate(waveforms) if waveform.any()]
        mels = [standardised(self.processor.mel(waveforms[index])) for index in audible]
        texts = [""] * len(waveforms)
        for index, log_probs_US in zip(audible, self.log_probs(mels), strict=True):
            texts[index] = self.text(log_probs_US, beam)
        return texts

    def timed(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers | None = None,
    ) -> Transcription:
        """As `Recogniser.timed`. `beam` None: the recipe's `model.beam`.

        A word lasts from its first letter to its last, as the network places them; its confidence is the geometric mean
        of the probabilities of its letters."""
        beam = self._beam(beam)
        self._require_language(language)
        waveform = as_waveform(audio, self.sample_rate, sample_rate)
        heard, words = progress_in(Stage.TRANSCRIBING, audio), list[TimedWord]()
        for start, log_probs_US in self._parts(waveform):
            words += self._words(start, log_probs_US, beam)
            heard((start + len(log_probs_US)) / self._frames_per_second)
        transcription = Transcription(words, len(waveform) / self.sample_rate, self.symbols.language)
        return transcription.spoken_by(speakers, waveform, self.sample_rate)

    def forced(self, samples: FloatArray, words: Sequence[str], language: str) -> list[TimedWord]:
        """As `Recogniser.forced`: on the likeliest alignment of the words' letters (CTC). Letters that the model does
        not know count as improbable."""
        self._require_language(language)
        wording = Wording(self.symbols.language)
        (log_probs_US,) = self.log_probs([standardised(self.processor.mel(samples))])
        ids: list[int] = []
        places: list[tuple[int, int, int]] = []  # of each word its symbols in ids, and how many letters it has
        for word in words:
            try:
                letters = letters_of(wording(word))
            except InputError:  # nothing to be said
                letters = ""
            own = self.symbols.ids("".join(letter for letter in letters if letter in self.symbols.letters))
            ids += self.symbols.ids(" ") if ids and own else []
            places.append((len(ids), len(ids) + len(own), len(letters)))
            ids += own
        if len(ids) + sum(one == two for one, two in itertools.pairwise(ids)) > len(log_probs_US):
            return [TimedWord(word, 0.0, 0.0, 0.0) for word in words]  # nobody speaks as fast
        frames = frames_of(log_probs_US, ids)
        timed: list[TimedWord] = []
        end = 0.0
        for word, (first, last, count) in zip(words, places, strict=True):
            start, log = end, LEAST * (count - (last - first))
            if last > first:
                start, end = frames[first] / self._frames_per_second, (frames[last - 1] + 1) / self._frames_per_second
                log += sum(float(log_probs_US[frames[place], ids[place]]) for place in range(first, last))
            timed.append(TimedWord(word, start, end, math.exp(log / max(1, count))))
        return timed

    def stream(
        self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None, language: str | None = None
    ) -> Iterator[str]:
        """As `Recogniser.stream`, in parts of half a minute or so."""
        beam = self._beam(beam)
        self._require_language(language)
        for _, log_probs_US in self._parts(as_waveform(audio, self.sample_rate, sample_rate)):
            if text := self.text(log_probs_US, beam):
                yield text

    def _parts(self, waveform: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """The recording in parts that end in pauses: the first frame of each, and log probabilities (U, S)."""
        if not waveform.any():
            return
        mel_TM = standardised(self.processor.mel(waveform))
        pause = max(1, round(_PAUSE_SECONDS * self._frames_per_second))
        rest_US: FloatArray | None = None
        done = 0
        for start, end in windows(len(mel_TM), self._window_frames, 0):
            read_US = self._read([mel_TM], [(0, start, end)])[0]
            rest_US = read_US if rest_US is None else np.concatenate([rest_US, read_US])
            cut = len(rest_US) if end == len(mel_TM) else _last_pause(rest_US, pause)
            if cut:
                yield done, rest_US[:cut]
                done, rest_US = done + cut, rest_US[cut:]

    def _words(self, start: int, log_probs_US: FloatArray, beam: int) -> Iterator[TimedWord]:
        """The words of a part that begins at frame `start`."""
        ids = greedy(log_probs_US) if beam == 1 else beam_search(log_probs_US, beam, self.fusion)
        frames = frames_of(log_probs_US, ids)
        space = self.symbols.ids(" ")[0]
        word: list[tuple[int, int]] = []
        for symbol, place in [*zip(ids, frames, strict=True), (space, -1)]:
            if symbol != space:
                word.append((symbol, place))
            elif word:
                log_probs = [float(log_probs_US[at, one]) for one, at in word]
                yield TimedWord(
                    self.symbols.text([one for one, _ in word]),
                    (start + word[0][1]) / self._frames_per_second,
                    (start + word[-1][1] + 1) / self._frames_per_second,
                    round(math.exp(sum(log_probs) / len(log_probs)), 4),
                )
                word = []

    @property
    def _frames_per_second(self) -> float:
        return self.recipe.data.audio.frames_per_second / SUBSAMPLING

    def _require_language(self, language: str | None) -> None:
        if language is not None and primary(language) != primary(self.symbols.language):
            raise InputError(f"this model recognises {self.symbols.language}, not {language}; leave the language out")

    def _beam(self, beam: int | None) -> int:
        beam = self.recipe.model.beam if beam is None else beam
        if beam < 1:
            raise InputError(f"beam {beam}: must be 1 or more; 1 is the fastest, 16 a good value")
        return beam

    def text(self, log_probs_US: FloatArray, beam: int) -> str:
        """The likeliest text, from log probabilities (U, S)."""
        ids = greedy(log_probs_US) if beam == 1 else beam_search(log_probs_US, beam, self.fusion)
        return self.symbols.text(ids)

    def log_probs(self, mels: Sequence[FloatArray]) -> list[FloatArray]:
        """Log probabilities (U, S) of the symbols for each mel (T, M).

        Long ones are read in windows with the model's context around them, which gives the same as reading them at
        once; windows of like length are read together.
        """
        places = [(index, *cut) for index, mel in enumerate(mels) for cut in windows(len(mel), self._window_frames, 0)]
        order = sorted(range(len(places)), key=lambda i: places[i][2] - places[i][1])
        read: dict[int, FloatArray] = {}
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            read |= zip(chosen, self._read(mels, [places[i] for i in chosen]), strict=True)
        parts: list[list[FloatArray]] = [[] for _ in mels]
        for number, (index, _, _) in enumerate(places):
            parts[index].append(read[number])
        return [np.concatenate(part) for part in parts]

    @property
    def _window_frames(self) -> int:
        """A whole number of the model's frames, so that each window is cut at the same places as the whole."""
        return SUBSAMPLING * -(-self.window // SUBSAMPLING)

    @torch.no_grad()
    def _read(self, mels: Sequence[FloatArray], places: Sequence[tuple[int, int, int]]) -> list[FloatArray]:
        """Log probabilities (U, S) for the windows (number of the mel, start, end), in one forward pass."""
        margin = SUBSAMPLING * -(-self.model.context // SUBSAMPLING)
        cuts = [(max(0, start - margin), min(len(mels[index]), end + margin)) for index, start, end in places]
        inputs = [mels[index][first:last] for (index, _, _), (first, last) in zip(places, cuts, strict=True)]
        lengths_B = torch.tensor([len(one) for one in inputs], device=self.device)
        logits_BUS, _ = self.model(padded(inputs).to(self.device), lengths_B)
        log_probs_BUS = logits_BUS.float().log_softmax(-1).cpu().numpy()
        parts = []
        for row_US, (_, start, end), (first, _) in zip(log_probs_BUS, places, cuts, strict=True):
            begin = (start - first) // SUBSAMPLING
            parts.append(row_US[begin : begin + reduced(end - start)])
        return parts


def _last_pause(log_probs_US: FloatArray, least: int) -> int:
    """Where the last run of `least` frames or more of blanks begins (U, S), in its middle; 0 where there is none."""
    silent_U = np.concatenate([[0], log_probs_US.argmax(axis=1) == BLANK, [0]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(silent_U)).reshape(-1, 2)
    long = edges[edges[:, 1] - edges[:, 0] >= least]
    return int(long[-1].mean()) if len(long) else 0
