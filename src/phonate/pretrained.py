"""Models that come trained: a transcriber (Whisper), a voice activity detector (Silero), a speaker encoder
(resemblyzer), a predictor of listeners' scores (distillmos), and an aligner (pocketsphinx).

Each has packages that phonate does not require, named in one table, and computes on the device that it is given. All
but the speaker encoder, whose pieces are short, take one recording at a time, whose windows are one batch: on a CPU
batches of recordings give the same values in no less time (Whisper tiny.en: 16 clips in 30.0 s, in batches of 8 in
33.0 s; distillmos: 6 clips in 2.2 s and 2.5 s).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import itertools
import logging
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.mel_filters import mel_filters
from phonate.audio.processor import MelSpectrum
from phonate.audio.whisper import SAMPLE_RATE, load_whisper
from phonate.config.errors import DataError, InputError, all_packages, not_installed, optional_package, require_modules
from phonate.text.phonemes import Word

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("phonate")

T = TypeVar("T")

# --------------------------------------------------------------------- Packages that may be missing


@dataclass(frozen=True)
class Extra:
    """Packages that a helper needs and phonate does not require."""

    packages: tuple[str, ...]
    """As they are imported."""
    install: str = "'phonate[eval]'"
    """What pip installs for them."""


TRANSCRIPTION = Extra(("faster_whisper",))
WORD_ERRORS = Extra(("jiwer", "rapidfuzz", "whisper_normalizer"))
SPEAKERS = Extra(("resemblyzer",))
MOS = Extra(("distillmos", "xls_r_sqa"), "--no-deps distillmos xls-r-sqa")


def missing(*extras: Extra) -> list[str]:
    """The packages of `extras` that are not installed."""
    return not_installed(*(name for extra in extras for name in extra.packages))


def require(purpose: str, *extras: Extra, otherwise: str = "") -> None:
    """Raise MissingPackageError, naming all that is missing of `extras`, before any work for `purpose` is done.
    `otherwise`: as for `require_modules`."""
    with all_packages():
        for extra in extras:
            require_modules(purpose, *extra.packages, install=extra.install, otherwise=otherwise)


def judge_of(columns: str, make: Callable[[], T]) -> T | None:
    """What `make` returns; None where its package or model is not installed: a warning says which columns are left out,
    and what to install for them."""
    try:
        return make()
    except InputError as error:
        logger.warning("not judged: %s: %s", columns, error)
        return None


@contextmanager
def stand_in(name: str) -> Iterator[None]:
    """Context in which packages can be imported that import the module `name`, where it is absent, without needing more
    of it than we do.

    webrtcvad, which resemblyzer uses, and pyworld only ask pkg_resources (removed from setuptools) for
    `get_distribution(name).version`, on import. distillmos only uses torchaudio, of which there is none for every torch
    version, to read files in its command line tool.
    """
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].get_distribution = importlib.metadata.distribution  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules[name]


# ------------------------------------------------------------- Words: Whisper (faster-whisper) and Silero


_LEAST_LOG_PROBABILITY, _MOST_COMPRESSION = -1.0, 2.4


@dataclass(frozen=True)
class Transcript:
    """The words recognised in a waveform, with the two measures by which Whisper tells failed transcripts (Radford et
    al. 2022, section 4.5)."""

    text: str
    log_probability: float
    """Mean of the log probabilities of the tokens, of the least certain stretch of up to 30 s."""
    compression: float
    """How many times smaller gzip makes the text, at most; of words that are repeated over and over, many times."""

    @property
    def is_reliable(self) -> bool:
        """Whether both are within Whisper's own limits."""
        return self.log_probability >= _LEAST_LOG_PROBABILITY and self.compression <= _MOST_COMPRESSION


class Transcriber:
    """Whisper (faster-whisper) with greedy decoding, so that results are reproducible."""

    def __init__(
        self, model: str = "tiny.en", language: str = "en", threads: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        """`model`: see `phonate.audio.whisper.whisper_model`. `threads`: on the CPU; 0 for all cores.

        Raises the errors of `load_whisper`.
        """
        self.name, self.language = model, language
        self._model = load_whisper(model, "transcription", threads, str(device))

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model knows, such as "de"."""
        return tuple(self._model.supported_languages)

    def transcribe(self, waveform: FloatArray, sample_rate: int) -> str:
        """The words recognised in a waveform (samples,) at `sample_rate` Hz."""
        return self.transcript(waveform, sample_rate).text

    def transcript(self, waveform: FloatArray, sample_rate: int) -> Transcript:
        """The words recognised in a waveform (samples,) at `sample_rate` Hz, and how sure the model is of them."""
        segments = list(
            self._model.transcribe(
                _resampled(waveform, sample_rate),
                language=self.language,
                beam_size=1,
                temperature=0.0,
                condition_on_previous_text=False,
                without_timestamps=True,
            )[0]
        )
        return Transcript(
            " ".join(segment.text.strip() for segment in segments),
            min((float(segment.avg_logprob) for segment in segments), default=0.0),
            max((float(segment.compression_ratio) for segment in segments), default=0.0),
        )

    def detect(self, waveform: FloatArray, sample_rate: int) -> str:
        """The language spoken in a waveform (samples,) at `sample_rate` Hz, such as "ar"; a multilingual model's
        guess."""
        return str(self._model.detect_language(_resampled(waveform, sample_rate))[0])


def speech_spans(waveform: FloatArray, sample_rate: int, shortest_pause_ms: int) -> list[tuple[float, float]]:
    """Start and end, in seconds, of each stretch of speech in a waveform (samples,), by Silero's voice activity
    detector.

    Raises MissingPackageError without faster-whisper, which includes the detector.
    """
    vad = optional_package("faster_whisper.vad", "finding speech")
    samples = _resampled(waveform, sample_rate)
    options = vad.VadOptions(min_silence_duration_ms=shortest_pause_ms, speech_pad_ms=0)
    return [
        (span["start"] / SAMPLE_RATE, min(span["end"], len(samples)) / SAMPLE_RATE)
        for span in vad.get_speech_timestamps(samples, options)
    ]


def webrtc_detector(aggressiveness: int) -> Any:
    """WebRTC's voice activity detector, which resemblyzer requires. `aggressiveness`: 0 to 3; 3 rejects most
    non-speech.

    Raises MissingPackageError without webrtcvad.
    """
    with stand_in("pkg_resources"):
        return optional_package("webrtcvad", "voice activity").Vad(aggressiveness)


def _resampled(waveform: FloatArray, sample_rate: int) -> FloatArray:
    import soxr

    samples = np.asarray(waveform, dtype=np.float32)
    return samples if sample_rate == SAMPLE_RATE else np.asarray(soxr.resample(samples, sample_rate, SAMPLE_RATE))


# --------------- Voices: resemblyzer's d-vectors (Wan et al. 2018, "Generalized end-to-end loss"; Apache 2.0)

Embedding = npt.NDArray[np.float32]
EMBEDDING_WIDTH = 256
SPEAKER_RATE = 16000
"""Hz."""
SPEAKER_LEVEL = -30.0
"""dB of full scale (root mean square) that every recording is brought to before its voice is embedded: to the encoder a
louder recording is another voice. resemblyzer itself raises quiet ones to it, and leaves loud ones as they are."""


_PIECE, _PIECE_FFT, _PIECE_HOP, _PIECE_BANDS = 25600, 400, 160, 40
"""The encoder's input: samples of a piece; of a window of its spectrum, and between two; mel bands."""
_PIECES_PER_BATCH = 48
"""One core takes 2.0 ms for each piece of 48 that it embeds together, 4.1 ms of three, 7.4 ms of a single one."""


def _at_speaker_level(waveform: FloatArray) -> FloatArray:
    samples = np.asarray(waveform, dtype=np.float32)
    level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
    return samples if level == 0.0 else np.asarray(samples * (10 ** (SPEAKER_LEVEL / 20) / level), dtype=np.float32)


def load_voice_encoder(purpose: str = "comparing voices", device: str | torch.device = "cpu") -> tuple[Any, Any]:
    """resemblyzer, and its encoder with pretrained weights, a torch module. Raises MissingPackageError."""
    with stand_in("pkg_resources"):
        package = optional_package("resemblyzer", purpose)
    return package, package.VoiceEncoder(str(device), verbose=False)


class SpeakerEncoder:
    """Embeds voices with resemblyzer's pretrained encoder."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        """Raises MissingPackageError if resemblyzer is not installed."""
        self._package, self._encoder = load_voice_encoder(device=device)
        filters = mel_filters(SPEAKER_RATE, _PIECE_FFT, _PIECE_BANDS, 0.0, SPEAKER_RATE / 2)
        self._spectrum = MelSpectrum(filters, _PIECE_FFT, _PIECE_HOP, _PIECE_FFT, power=2)

    def speech(self, waveform: FloatArray, sample_rate: int, name: str = "a recording") -> FloatArray:
        """(N,) a recording at 16 kHz without its silences, which lower the level of a whole: speech has that of others.

        Raises DataError with the recording's `name` if it has no speech.
        """
        speech = self._package.preprocess_wav(_at_speaker_level(waveform), source_sr=sample_rate)
        if len(speech) == 0:
            raise DataError(f"{name}: the speaker judge finds no speech in it")
        return _at_speaker_level(speech)

    def embed(self, waveform: FloatArray, sample_rate: int, name: str = "a recording") -> Embedding:
        """(256,) unit-length embedding of the speech of a recording. Raises DataError as `speech` does."""
        speech = self.speech(waveform, sample_rate, name)
        return np.asarray(self._encoder.embed_utterance(speech), dtype=np.float32)

    def embed_pieces(self, speeches: Sequence[FloatArray], per_second: float = 1.3) -> list[Embedding]:
        """For each speech (N,) at 16 kHz, (P, 256) unit-length embeddings of pieces of 1.6 s, so many in a second; none
        (P = 0) where all samples are zero. Pieces of all speeches are computed in common batches.

        The mean of their cosines to the pieces of other speech does not depend on how long the two are, which cosines
        of whole recordings do. Speech that is shorter than a piece is repeated: of 0.8 s of speakers of LibriSpeech
        98 % are told apart then, 92 % where it is filled up with silence.
        """
        filled = [np.tile(one, -(-_PIECE // len(one)))[:_PIECE] if 0 < len(one) < _PIECE else one for one in speeches]
        return self._embed([(one, self._places(len(one), per_second) if np.any(one) else []) for one in filled])

    def embed_continuously(self, waveform: FloatArray, per_second: float) -> tuple[Embedding, FloatArray]:
        """(P, 256) unit-length embeddings of pieces of 1.6 s of a recording (N,) at 16 kHz, so many in a second, and
        (P,) the seconds of their middles; none where all samples are zero."""
        places = self._places(len(waveform), per_second) if np.any(waveform) else []
        middles = np.array([(place.start + place.stop) / 2 / SPEAKER_RATE for place in places], dtype=np.float32)
        return self._embed([(waveform, places)])[0], middles

    def _places(self, samples: int, per_second: float) -> list[slice]:
        """The samples of each piece; the last one may end after the recording."""
        return list(self._encoder.compute_partial_slices(samples, per_second, min_coverage=0.75)[0])

    def _embed(self, speeches: Sequence[tuple[FloatArray, list[slice]]]) -> list[Embedding]:
        """Embeddings (P, 256) of the pieces at P places of each speech, in batches."""
        import torch

        counts = [len(places) for _, places in speeches]
        pieces = (piece_TM for speech, places in speeches for piece_TM in self._spectra(speech, places))
        embedded = [np.zeros((0, EMBEDDING_WIDTH), dtype=np.float32)]
        while batch := list(itertools.islice(pieces, _PIECES_PER_BATCH)):
            with torch.no_grad():
                embedded.append(self._encoder(torch.stack(batch).to(self._encoder.device)).cpu().numpy())
        return np.split(np.concatenate(embedded), np.cumsum(counts)[:-1]) if counts else []

    def _spectra(self, speech: FloatArray, places: list[slice]) -> Iterator[torch.Tensor]:
        """The mel spectrum (160, 40) of each piece, as resemblyzer's own function computes it, up to rounding."""
        import torch

        if not places:
            return
        levelled = _at_speaker_level(speech)
        padded = np.pad(levelled, (0, max(0, places[-1].stop - len(levelled))))
        mel_TM = torch.from_numpy(self._spectrum(padded))
        for place in places:
            yield mel_TM[place.start // _PIECE_HOP : place.stop // _PIECE_HOP]


# --------------------------------------------------- Naturalness: predicted mean opinion scores (MOS)

LOWEST_MOS = 1.0
_LEAST_SECONDS = 0.25
_SILENCE = 1e-4  # a peak 80 dB below full scale


class MosPredictor:
    """Predicts mean opinion scores, independent of level; on the CPU deterministically.

    distillmos (Stahl and Gamper 2025, "Distillation and pruning for scalable self-supervised representation-based
    speech quality assessment"; MIT, weights in its wheel) rates the sound alone, without a reference. It is sensitive
    to noise, distortion and bandwidth, but was not designed to detect wrong words or flat prosody.
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        """Raises MissingPackageError if distillmos or xls-r-sqa is not installed."""
        require("predicting naturalness", MOS)
        with stand_in("torchaudio"):
            package = importlib.import_module("distillmos")
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the path of its weights
            self._model = package.ConvTransformerSQAModel()
        self._model.eval().to(device)
        self._device = device

    def score(self, waveform: FloatArray, sample_rate: int, name: str = "a recording") -> float:
        """Predicted mean opinion score of a waveform (samples,), from 1 (bad) to 5 (excellent).

        Waveforms longer than 7.68 s are scored in windows of that length, and the scores are averaged. Raises DataError
        with the recording's `name` for silence, for less than a quarter of a second, and for non-finite samples.
        """
        import torch

        samples = np.asarray(waveform, dtype=np.float32)
        if not np.isfinite(samples).all():
            raise DataError(f"{name}: has non-finite samples, so its naturalness can't be judged")
        if reason := _not_audible(samples, sample_rate):
            raise DataError(f"{name}: {reason}")
        waveform_BN = torch.from_numpy(_resampled(samples, sample_rate))[None].to(self._device)
        with torch.no_grad():
            return float(self._model(waveform_BN))

    def score_synthesised(self, waveform: FloatArray, sample_rate: int, name: str) -> float:
        """Like `score`, but returns the lowest score for a synthesised waveform that is silent or too short."""
        samples = np.asarray(waveform, dtype=np.float32)
        if np.isfinite(samples).all() and _not_audible(samples, sample_rate):
            return LOWEST_MOS
        return self.score(samples, sample_rate, name)


def _not_audible(samples: FloatArray, sample_rate: int) -> str:
    """The reason why a waveform can't be judged; "" if there is none."""
    if len(samples) < _LEAST_SECONDS * sample_rate:
        return (
            f"{len(samples) / sample_rate:.2f} s is too short to be judged; the naturalness judge needs "
            f"{_LEAST_SECONDS} s or more"
        )
    return "is silent, so its naturalness can't be judged" if np.abs(samples).max() < _SILENCE else ""


# ------------------------------------------------------------------------- What an evaluation was judged by


def judge_notes(recogniser: Transcriber | None, naturalness: MosPredictor | None) -> dict[str, str]:
    """The judges of an evaluation for its notes, or what is missing in its table without them."""
    return {
        "recogniser": f"{recogniser.name}, {recogniser.language}" if recogniser else "none, so no WER and CER",
        "naturalness": "distillmos" if naturalness else "none, so no MOS",
    }


def speaker_note(speakers: SpeakerEncoder | None) -> dict[str, str]:
    """The same of what compared voices."""
    return {"speaker_judge": "resemblyzer" if speakers else "none, so no similarity"}


# ------------------------------- Times of words and phones: pocketsphinx, with the English models in its wheel

_RATE = 16000
_FRAME_SECONDS = 0.010
_OFFSET_SECONDS = 0.0078
"""Offset of a boundary from the start of its frame, measured on speech with known phones."""
_HISS = 1e-3  # 60 dB below full scale
_SILENCES = {"<s>", "</s>", "<sil>", "(NULL)", "[NOISE]", "[SPEECH]", "++NOISE++"}
_SKIPPED = 0.01
"""Probability that a word which may be missing is."""
_OTHER = "other"
_OTHER_PHONES = ("AA", "IY", "UW", "S", "T", "N", "K", "M", "L", "ER", "AH", "D")
"""One of each kind, of which anything that is not in the text is made, ..."""
_OTHER_PROBABILITY = 1e-3
_STRIDE = 6
"""... between so many words at least."""
_JUMP = 1e-8
"""Probability that nothing more of the text is said."""


@dataclass(frozen=True)
class WordTimes:
    """What `Pocketsphinx.word_times` finds."""

    words: dict[int, tuple[float, float]]
    """Number of a word -> its start and end, in seconds."""
    others: list[tuple[float, float]]
    """When something else is said."""


def _others(state: int) -> list[tuple[Any, ...]]:
    """The transitions of a state in which something else may be said."""
    return [(state, state, _OTHER_PROBABILITY, _OTHER + phone) for phone in _OTHER_PHONES]


class Pocketsphinx:
    """Aligns English words, given as phones of ARPAbet, with recordings of them."""

    def __init__(self, vocabulary: Iterable[Word]) -> None:
        """`vocabulary`: the words of all recordings to be aligned."""
        self._names: dict[tuple[str, ...], str] = {}
        for word in vocabulary:
            self._names.setdefault(_unstressed(word.phones), f"w{len(self._names)}")
        self._grammars = 0
        self._numbered: set[str] = set()
        # otherwise the second pass fails for one recording in six
        self._decoder = self._opened(bestpath=False)

    def _opened(self, **settings: Any) -> Any:
        import pocketsphinx

        with tempfile.TemporaryDirectory() as folder:
            dictionary = Path(folder) / "words.dict"
            dictionary.write_text("".join(f"{name} {' '.join(phones)}\n" for phones, name in self._names.items()))
            model = pocketsphinx.get_model_path("en-us/en-us")
            return pocketsphinx.Decoder(hmm=model, dict=str(dictionary), lm=None, loglevel="FATAL", **settings)

    @cached_property
    def _patient(self) -> Any:
        """With wide beams, for the path that leaves words out is late to be the best."""
        decoder = self._opened(bestpath=False, beam=1e-100, wbeam=1e-80, pbeam=1e-100)
        for phone in _OTHER_PHONES:
            decoder.add_word(_OTHER + phone, phone, update=False)
        return decoder

    def __call__(self, waveform: FloatArray, sample_rate: int, words: Sequence[Word]) -> list[list[float]]:
        """The seconds at which the phones of each word begin, and at which its last one ends. Raises DataError if the
        words can't be found in the recording."""
        raw = _as_bytes(waveform, sample_rate)
        self._decoder.set_align_text(" ".join(self._names[_unstressed(word.phones)] for word in words))
        _decode(self._decoder, raw)
        return self._phones(raw, words)

    def word_times(
        self, waveform: FloatArray, sample_rate: int, words: Sequence[Word], *, cut: bool = False
    ) -> WordTimes:
        """Which of `words` are said, and when. Any of them may be missing, and before and behind words with a mark, and
        a few words after another, other things may be said. `cut`: the recording ends within the words, at any of them.

        Raises DataError if the words can't be found in the recording."""
        decoder = self._patient
        self._grammars += 1
        grammar, last = f"g{self._grammars}", len(words)
        transitions: list[tuple[Any, ...]] = []
        names = self._own_names(words)
        numbers = {name: number for number, name in enumerate(names)}
        since = _STRIDE
        for number, name in enumerate(names):
            since += 1
            if since > _STRIDE or words[number - 1].mark:
                since = 0
                transitions += _others(number)
            transitions += [(number, number + 1, _SKIPPED), (number, number + 1, 1.0, name)]
            if cut:
                transitions.append((number, last, _JUMP))
        transitions += _others(last)
        decoder.add_fsg(grammar, decoder.create_fsg(grammar, 0, last, transitions))
        decoder.activate_search(grammar)
        if self._grammars > 1:
            decoder.remove_search(f"g{self._grammars - 1}")
        _decode(decoder, _as_bytes(waveform, sample_rate))
        if decoder.hyp() is None:
            raise DataError("the aligner can't find these words in the recording")
        said: dict[int, tuple[float, float]] = {}
        others: list[tuple[float, float]] = []
        for one in decoder.seg():
            times = _seconds(one.start_frame), _seconds(one.end_frame + 1)
            if one.word in numbers:
                said[numbers[one.word]] = times
            elif one.word.startswith(_OTHER):
                if others and times[0] - others[-1][1] < _FRAME_SECONDS:
                    times = others.pop()[0], times[1]
                others.append(times)
        return WordTimes(said, others)

    def _own_names(self, words: Sequence[Word]) -> list[str]:
        """Names that tell which of several words alike is missing. They stay in the decoder; recordings share them."""
        alike: Counter[str] = Counter()
        names: list[str] = []
        for word in words:
            phones = _unstressed(word.phones)
            alike[shared := self._names[phones]] += 1
            names.append(name := f"{shared}n{alike[shared]}")
            if name not in self._numbered:
                self._numbered.add(name)
                self._patient.add_word(name, " ".join(phones), update=False)
        return names

    def _phones(self, raw: bytes, words: Sequence[Word]) -> list[list[float]]:
        """The second pass: times of phones."""
        if self._decoder.hyp() is None:
            raise DataError("the aligner can't find these words in the recording")
        self._decoder.set_alignment()
        _decode(self._decoder, raw)
        # Keep a reference and read in order: entries point into it, and become invalid with it or with the next entry.
        alignment = self._decoder.get_alignment()
        aligned: list[list[tuple[str, int, int]]] = []
        for entry in alignment:
            if entry.name not in _SILENCES:
                aligned.append([(phone.name, phone.start, phone.duration) for phone in entry])
        if len(aligned) != len(words):
            raise DataError(f"the aligner found {len(aligned)} of {len(words)} words")
        edges: list[list[float]] = []
        for word, phones in zip(words, aligned, strict=True):
            if [name for name, _, _ in phones] != list(_unstressed(word.phones)):
                raise DataError(f"the aligner found other phones in {word.text!r}")
            _, start, duration = phones[-1]
            edges.append([_seconds(start) for _, start, _ in phones] + [_seconds(start + duration)])
        return edges


def _decode(decoder: Any, raw: bytes) -> None:
    decoder.start_utt()
    decoder.process_raw(raw, no_search=False, full_utt=True)
    try:
        decoder.end_utt()
    except RuntimeError as error:  # the end of the text was not reached
        raise DataError("the aligner can't find these words in the recording") from error


def _as_bytes(waveform: FloatArray, sample_rate: int) -> bytes:
    """16-bit samples at full scale with faint noise: the aligner has no model of digital silence, which synthetic and
    gated recordings contain (without noise, four in ten of espeak's sentences fail)."""
    import soxr

    samples = soxr.resample(waveform, sample_rate, _RATE)
    hiss = _HISS * np.random.default_rng(0).standard_normal(len(samples))
    whole = np.rint(np.clip(samples / max(float(np.abs(samples).max()), 1e-6) + hiss, -1.0, 1.0) * 32767.0)
    return bytes(whole.astype("<i2").tobytes())


def _unstressed(phones: Sequence[str]) -> tuple[str, ...]:
    """The phone without stress, which the aligner's models do not have."""
    return tuple(phone.rstrip("012") for phone in phones)


def _seconds(frame: int) -> float:
    return frame * _FRAME_SECONDS + _OFFSET_SECONDS
