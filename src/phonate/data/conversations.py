"""Simulated conversations: speakers and turns drawn at random, mixed with room, noise and level.

Turns are arranged to statistics: each starts after a pause, or overlaps the previous speech. The amount of overlap is
controlled by feedback: if the conversation has less than its target so far, the next turn starts earlier. Or turns are
taken from real conversations: real speakers say "yes" and "mhm" into each other's turns, which random pauses and
overlaps don't produce. Landini et al. 2022, "From Simulated Mixtures to Simulated Conversations as Training Data for
End-to-End Neural Diarization", draw pauses and overlaps from real conversations; here whole parts of them are used.

Shapes: P sources (speakers), N samples, R samples of an impulse response, K segments of speech.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, write_audio
from phonate.config.errors import DataError
from phonate.config.randomness import generator
from phonate.data.annotations import SpeakerTurn, write_rttm
from phonate.data.clips import ClipBank, Utterance, joined
from phonate.data.labels import read_turns
from phonate.data.prepared import PreparedCorpus
from phonate.data.settings import AcousticSettings, SimulationSettings

# ------------------------------------------------ Arrangement of the turns of a simulated conversation

_FRAME_SECONDS = 0.01
OWN_PAUSE = 0.1
"""Minimum pause between two turns of one speaker, in seconds."""
SHORTEST_TURN = 0.3
"""Seconds."""
_TURN_SHAPE = 1.3
"""Shape of the gamma distribution of turn lengths: many are short, such as "yes" and "right"."""
_PAUSE_SHAPE = 0.6
"""Shape of the gamma distribution of pauses: most are short, a few are long."""
_OVERLAP_SPREAD = 12.0
"""Sum of the parameters of the beta distribution of the overlap; larger values vary less between conversations."""
_MOST_OVERLAP = 0.85
_AHEAD = 0.8
"""Lookahead of the overlap control, in mean turn lengths."""
_EVENNESS = 3.0
"""Concentration of the Dirichlet distribution of the speakers' shares of turns; larger values are more even."""


@dataclass(frozen=True)
class Turn:
    """A turn of a speaker. `start` is a sample of the conversation, and may be negative."""

    speaker: int
    start: int
    utterance: Utterance

    @property
    def end(self) -> int:
        """The end sample (exclusive)."""
        return self.start + len(self.utterance.waveform_N)


Draw = Callable[[int, int], Utterance]
"""`draw(speaker, samples)`: an utterance of the speaker of about `samples` samples."""


class _Overlap:
    """Counts the frames of speech and of overlapping speech in the turns so far."""

    def __init__(self, frames: int, samples: int) -> None:
        self._talking = np.zeros(frames, dtype=np.int16)
        self._samples = samples
        self.speech = 0
        self.overlapped = 0

    def add(self, turn: Turn) -> None:
        """Count the speech of a turn."""
        for begin, end in turn.utterance.segments.tolist():
            first = max(0, (turn.start + begin) // self._samples)
            part = self._talking[first : max(first, (turn.start + end) // self._samples)]
            self.speech += int(np.count_nonzero(part == 0))
            self.overlapped += int(np.count_nonzero(part == 1))
            part += 1


def arrange(
    settings: SimulationSettings, speakers: int, samples: int, sample_rate: int, draw: Draw, rng: np.random.Generator
) -> list[Turn]:
    """The turns of a conversation of `speakers` speakers and `samples` samples, sorted by start.

    The first turn may start before the conversation and the last one end after it, as in a part of a longer one.
    """
    overlap = _drawn_overlap(settings.overlap, speakers, rng)
    frame = round(_FRAME_SECONDS * sample_rate)

    def pause() -> int:
        return round(rng.gamma(_PAUSE_SHAPE, settings.pause_seconds * sample_rate / _PAUSE_SHAPE))

    often = max(0.5, min(2.0 * overlap, 0.95))
    counts = _Overlap(-(-samples // frame), frame)
    share = rng.dirichlet(np.full(speakers, _EVENNESS))
    unheard, turns = list(rng.permutation(speakers)), list[Turn]()
    own_end, latest = [-samples] * speakers, 0  # samples
    while latest < samples:
        turns_left = (samples - latest) / sample_rate / settings.turn_seconds
        holder = int(np.argmax(own_end)) if turns else None
        speaker = _next_speaker(holder, unheard, share, turns_left, rng)
        seconds = max(SHORTEST_TURN, rng.gamma(_TURN_SHAPE, settings.turn_seconds / _TURN_SHAPE))
        utterance = draw(speaker, round(seconds * sample_rate))
        length = len(utterance.waveform_N)
        # Look ahead, as more speech follows before the next overlap.
        ahead = length / frame + _AHEAD * settings.turn_seconds / _FRAME_SECONDS
        missing = frame * (overlap * (counts.speech + ahead) - counts.overlapped) / (1.0 + overlap)
        if not turns:
            start = -int(rng.integers(length)) if rng.random() < 0.5 else pause()
        elif missing > 0.0 and (missing > 0.6 * length or rng.random() < often):
            earliest = max(own_end[speaker] + round(OWN_PAUSE * sample_rate), turns[-1].start, -length // 2)
            start = max(latest - round(missing * rng.uniform(0.6, 1.4)), earliest)
        else:
            start = latest + pause()
        if start >= samples:
            break
        turn = Turn(speaker, start, utterance)
        turns.append(turn)
        counts.add(turn)
        own_end[speaker], latest = turn.end, max(latest, turn.end)
    return turns


def _drawn_overlap(mean: float, speakers: int, rng: np.random.Generator) -> float:
    if mean == 0.0 or speakers == 1:
        return 0.0
    return min(float(rng.beta(_OVERLAP_SPREAD * mean, _OVERLAP_SPREAD * (1.0 - mean))), _MOST_OVERLAP)


def _next_speaker(
    holder: int | None, unheard: list[int], share: np.ndarray, turns_left: float, rng: np.random.Generator
) -> int:
    """A speaker without turns so far if the remaining time is just enough for all of them; otherwise drawn from
    `share`, excluding the `holder`, whose speech ends last."""
    if unheard and (holder is None or turns_left <= len(unheard) + 1.0):
        return int(unheard.pop())
    weights = share.copy()
    if holder is not None and len(share) > 1:
        weights[holder] = 0.0
    speaker = int(rng.choice(len(share), p=weights / weights.sum()))
    if speaker in unheard:
        unheard.remove(speaker)
    return speaker


# --------------------------------- Turns of real conversations, for simulated ones with other speakers

_DRAWS = 1000
_BEYOND = 1.0
"""Seconds of a turn before the beginning and after the end of a part that are kept, so that words are cut there."""


@dataclass(frozen=True)
class PartTurn:
    """A turn in a part of a conversation."""

    start: float
    """Seconds from the beginning of the part; may be negative."""
    end: float
    """Seconds."""
    speaker: int
    """Index among the speakers of the part."""


class RecordedTurns:
    """The turns of the conversations in an RTTM file."""

    def __init__(self, path: str, speakers: tuple[int, int]) -> None:
        """`speakers`: minimum and maximum number of speakers of a part.

        Raises DataError if the file can't be read, or has no turns.
        """
        self._path, self._speakers = path, speakers
        self._conversations = [turns for turns in read_turns(path).values() if turns]
        if not self._conversations:
            raise DataError(f"data.simulation.turns_from: {path} has no turns; name an RTTM file with some")
        self._seconds = np.array([max(turn.end for turn in turns) for turns in self._conversations])

    def part(self, seconds: float, rng: np.random.Generator) -> list[PartTurn]:
        """The turns of a random part of `seconds` seconds, sorted by start; longer conversations are drawn more often.

        Raises DataError if no part has a suitable number of speakers.
        """
        least, most = self._speakers
        for _ in range(_DRAWS):
            number = int(rng.choice(len(self._conversations), p=self._seconds / self._seconds.sum()))
            start = rng.uniform(0.0, max(0.0, float(self._seconds[number]) - seconds))
            inside = [one for one in self._conversations[number] if one.end > start and one.start < start + seconds]
            names = sorted({one.speaker for one in inside})
            if least <= len(names) <= most:
                return [
                    PartTurn(
                        max(one.start - start, -_BEYOND),
                        min(one.end - start, seconds + _BEYOND),
                        names.index(one.speaker),
                    )
                    for one in inside
                ]
        raise DataError(
            f"data.simulation.turns_from: of {_DRAWS} parts of {seconds:g} s of {self._path}, none has {least} to "
            f"{most} speakers; change data.simulation.speakers, or name another file"
        )


def arrange_as(part: list[PartTurn], samples: int, sample_rate: int, draw: Draw) -> list[Turn]:
    """The turns of a conversation of `samples` samples, with those of `part`; sorted by start.

    An utterance is only about as long as the turn that it stands for, so that the speaker's next turn may begin later
    than in `part`, and one that should reach into the conversation may end before it; it is left out.
    """
    turns, free = list[Turn](), dict[int, int]()
    for one in part:
        start = max(round(one.start * sample_rate), free.get(one.speaker, -samples))
        if start >= samples:
            continue
        length = round(max(one.end - one.start, SHORTEST_TURN) * sample_rate)
        turn = Turn(one.speaker, start, draw(one.speaker, length))
        if turn.end <= 0:
            continue
        turns.append(turn)
        free[one.speaker] = turn.end + round(OWN_PAUSE * sample_rate)
    return sorted(turns, key=lambda turn: turn.start)


# -------------------------------------- Noise for conversations: recorded, or synthetic coloured noise

_BANK_SAMPLES = 1 << 19
_SLOPES = (0.0, 1.0, 2.0)
"""Exponents a of a power spectrum 1 / f^a: white, pink and brown noise."""


class Noise(Protocol):
    """A source of noise."""

    def __call__(self, samples: int, rng: np.random.Generator) -> FloatArray:
        """(samples,) float32 with an RMS of 1, or zeros if the recording is silent."""
        ...


class ColouredNoise:
    """A random mixture of white, pink and brown Gaussian noise, cut from long periodic signals that are computed once
    per process."""

    def __call__(self, samples: int, rng: np.random.Generator) -> FloatArray:
        """See `Noise`."""
        weights = rng.dirichlet(np.full(len(_SLOPES), 0.5))
        mixed = np.zeros(samples, dtype=np.float32)
        for slope, weight in zip(_SLOPES, weights, strict=True):
            mixed += np.float32(np.sqrt(weight)) * _looped(_bank(slope), samples, rng)
        return mixed


class RecordedNoise:
    """Random parts of the recordings of a prepared corpus; short recordings are repeated."""

    def __init__(self, prepared: PreparedCorpus, positions: Sequence[int]) -> None:
        self._cache = prepared.cache
        starts = np.asarray(prepared.index.sample_start)
        self._lengths = [(int(position), int(starts[position + 1] - starts[position])) for position in positions]

    def __call__(self, samples: int, rng: np.random.Generator) -> FloatArray:
        """See `Noise`."""
        position, length = self._lengths[int(rng.integers(len(self._lengths)))]
        if length >= samples:
            start = int(rng.integers(length - samples + 1))
            piece = self._cache.waveform(position, start, start + samples)
        else:
            piece = _looped(self._cache.waveform(position), samples, rng)
        level = float(np.sqrt(np.dot(piece, piece) / samples))
        return piece / np.float32(level) if level > 0.0 else piece


def _looped(waveform_N: FloatArray, samples: int, rng: np.random.Generator) -> FloatArray:
    """`samples` samples from a random position on, wrapping around at the end."""
    start = int(rng.integers(len(waveform_N)))
    pieces, missing = [waveform_N[start : start + samples]], samples - min(samples, len(waveform_N) - start)
    while missing > 0:
        pieces.append(waveform_N[:missing])
        missing -= len(pieces[-1])
    return np.concatenate(pieces)


@cache
def _bank(slope: float) -> FloatArray:
    """Periodic noise with a power spectrum 1 / f^slope above 20 Hz (at 16 kHz) and an RMS of 1."""
    rng = generator("noise", str(slope))
    bins = _BANK_SAMPLES // 2 + 1
    frequencies = np.maximum(np.arange(bins) / bins, 20.0 / 8000.0)
    spectrum = (rng.standard_normal(bins) + 1j * rng.standard_normal(bins)) * frequencies ** (-slope / 2.0)
    spectrum[0] = 0.0
    waveform = np.fft.irfft(spectrum, n=_BANK_SAMPLES)
    return np.asarray(waveform / np.sqrt(np.mean(waveform**2)), dtype=np.float32)


# --------------------------------------------------- Room acoustics, noise and level at the microphone

_SMALLEST_FFT = 1 << 15
_ONSET_SECONDS = 0.003
"""Seconds between the direct sound and the first reflection."""
_DAMPING = 0.6
"""Coefficient of the one-pole low-pass of the reverberation: walls and air absorb high frequencies first."""
_QUIET = 1e-4
"""Signals with a lower RMS are not scaled."""


class Acoustics:
    """Applies `settings` to waveforms at `sample_rate` Hz, with noise from `noise`."""

    def __init__(self, settings: AcousticSettings, sample_rate: int, noise: Noise) -> None:
        self.settings = settings
        self.sample_rate = sample_rate
        self.noise = noise

    def __call__(self, sources_PN: FloatArray, speech_samples: int, rng: np.random.Generator) -> FloatArray:
        """The signal (N,) at the microphone, of sources (P, N) that each have their own room impulse response.

        `speech_samples`: the number of samples that contain speech, over which levels are measured. If it is 0, the
        level is not changed.
        """
        settings = self.settings
        if rng.random() < settings.reverberation:
            seconds = rng.uniform(*settings.rt60)
            responses = [self._response(seconds, rng) for _ in sources_PN]
            mixed_N = convolved(sources_PN, np.stack(responses))
        else:
            mixed_N = sources_PN.sum(axis=0, dtype=np.float32) if len(sources_PN) != 1 else sources_PN[0].copy()
        level = np.sqrt(float(np.dot(mixed_N, mixed_N)) / (speech_samples or len(mixed_N)))
        if settings.level_db is not None:
            target = 10.0 ** (rng.uniform(*settings.level_db) / 20.0)
            if speech_samples and level > _QUIET:
                mixed_N *= np.float32(target / level)
                level = target
        if rng.random() < settings.noise:
            snr = rng.uniform(*settings.snr_db)
            mixed_N += np.float32(level * 10.0 ** (-snr / 20.0)) * self.noise(len(mixed_N), rng)
        return mixed_N

    def _response(self, rt60: float, rng: np.random.Generator) -> FloatArray:
        ratio = rng.uniform(*self.settings.direct_to_reverberant_db)
        longest = round(self.settings.rt60[1] * self.sample_rate)
        return np.pad(room_response(rt60, ratio, self.sample_rate, rng), (0, longest))[:longest]


def room_response(
    rt60: float, direct_to_reverberant_db: float, sample_rate: int, rng: np.random.Generator
) -> FloatArray:
    """A synthetic room impulse response (R,) of `rt60` seconds: the direct sound, 1 at sample 0, and low-pass filtered
    noise that decays by 60 dB in `rt60` seconds (Moorer 1979)."""
    length, onset = max(2, round(rt60 * sample_rate)), round(_ONSET_SECONDS * sample_rate)
    tail = rng.standard_normal(length + 32, dtype=np.float32)
    kernel = np.float32(_DAMPING) ** np.arange(32, dtype=np.float32)
    tail = np.convolve(tail, kernel)[31 : 31 + length]
    tail *= 10.0 ** (-3.0 * np.arange(length, dtype=np.float32) / length)
    tail[:onset] = 0.0
    energy = float(np.dot(tail, tail))
    response = tail * np.float32(np.sqrt(10.0 ** (-direct_to_reverberant_db / 10.0) / max(energy, 1e-12)))
    response[0] = 1.0
    return np.asarray(response, dtype=np.float32)


def convolved(sources_PN: FloatArray, responses_PR: FloatArray) -> FloatArray:
    """The sum (N,) of sources (P, N), each convolved with its response (R,) and truncated to N samples.

    Computed by overlap-add; blocks in which a source is silent are skipped.
    """
    sources, samples = sources_PN.shape
    n_fft = max(_SMALLEST_FFT, 1 << (2 * responses_PR.shape[1] - 1).bit_length())
    step = n_fft - responses_PR.shape[1] + 1
    blocks = -(-samples // step)
    padded = torch.zeros(sources, blocks * step)
    padded[:, :samples] = torch.from_numpy(sources_PN)
    pieces_PBN = padded.view(sources, blocks, step)
    source_A, block_A = pieces_PBN.ne(0.0).any(-1).nonzero(as_tuple=True)
    responses_PF = torch.fft.rfft(torch.from_numpy(responses_PR), n=n_fft)
    spectra_AF = torch.fft.rfft(pieces_PBN[source_A, block_A], n=n_fft) * responses_PF[source_A]
    summed_BF = torch.zeros(blocks, n_fft // 2 + 1, dtype=torch.complex64).index_add_(0, block_A, spectra_AF)
    sounds_BN = torch.fft.irfft(summed_BF, n=n_fft)
    mixed = torch.zeros(blocks * step + n_fft)
    mixed[: blocks * step] = sounds_BN[:, :step].reshape(-1)
    for block in range(blocks):
        end = (block + 1) * step
        mixed[end : end + n_fft - step] += sounds_BN[block, step:]
    return np.ascontiguousarray(mixed[:samples].numpy())


# -------------- Simulation of conversations: random speakers and turns, mixed with simulated acoustics

_GAP_SECONDS = 0.3
"""Mean pause between two clips of one turn."""
_ENOUGH = 0.7
"""Clips are added to a turn until they fill this fraction of its length."""

_SHORTEST_SECONDS = 0.4
"""Minimum length of an added clip, about one word."""


@dataclass(frozen=True)
class Conversation:
    """A simulated conversation."""

    waveform_N: FloatArray
    segments_K2: NDArray[np.int64]
    """First and end samples of the segments of speech; they may extend beyond the waveform."""
    speaker_K: NDArray[np.int64]
    """The speaker of each segment, a number in the bank."""
    turns: list[Turn]
    """Turns, whose speakers are indices into `speakers`."""
    speakers: NDArray[np.int64]
    """(P,) numbers of the speakers in the bank."""


class ConversationSimulator:
    """Simulates conversations from the clips of a bank."""

    def __init__(self, settings: SimulationSettings, bank: ClipBank, acoustics: Acoustics) -> None:
        """Raises DataError if the bank has fewer speakers than a conversation may have, or for an invalid file
        `settings.turns_from`."""
        most = settings.speakers[1]
        if len(bank.speakers) < most:
            raise DataError(
                f"conversations of {most} speakers can't be simulated from clips of {len(bank.speakers)}; lower "
                "data.simulation.speakers, or add corpora to data.simulation.path"
            )
        self.settings = settings
        self.bank = bank
        self._acoustics = acoustics
        self._recorded = RecordedTurns(settings.turns_from, settings.speakers) if settings.turns_from else None

    def conversation(self, samples: int, rng: np.random.Generator) -> Conversation:
        """A conversation of `samples` samples. Equal generators give equal conversations."""
        settings, rate = self.settings, self.bank.sample_rate
        recorded = self._recorded
        if recorded is not None and settings.turns_from_share < 1.0 and rng.random() >= settings.turns_from_share:
            recorded = None
        part_turns = None if recorded is None else recorded.part(samples / rate, rng)
        least, most = settings.speakers
        count = int(rng.integers(least, most + 1)) if part_turns is None else max(one.speaker for one in part_turns) + 1
        speakers = rng.choice(len(self.bank.speakers), count, replace=False)
        gain = 10.0 ** (rng.normal(0.0, settings.gain_db, count) / 20.0)
        speed = np.ones(count) if settings.speed is None else rng.uniform(*settings.speed, count)

        def draw(speaker: int, length: int) -> Utterance:
            return self._turn(int(speakers[speaker]), length, float(speed[speaker]), rng)

        if part_turns is None:
            turns = arrange(settings, count, samples, rate, draw, rng)
        else:
            turns = arrange_as(part_turns, samples, rate, draw)
        sources_PN = np.zeros((count, samples), dtype=np.float32)
        for turn in turns:
            begin, end = max(0, turn.start), min(samples, turn.end)
            part = turn.utterance.waveform_N[begin - turn.start : end - turn.start]
            sources_PN[turn.speaker, begin:end] += np.float32(gain[turn.speaker]) * part
        segments_K2 = np.concatenate([turn.utterance.segments + turn.start for turn in turns])
        of_turn = np.repeat(np.arange(len(turns)), [len(turn.utterance.segments) for turn in turns])
        speaker_K = speakers[np.array([turn.speaker for turn in turns])[of_turn]]
        mixed_N = self._acoustics(sources_PN, _covered(segments_K2, samples), rng)
        return Conversation(mixed_N, segments_K2, speaker_K.astype(np.int64), turns, speakers)

    def _turn(self, speaker: int, length: int, speed: float, rng: np.random.Generator) -> Utterance:
        """About `wanted` samples of a speaker: a clip or a part of one, or several clips with pauses in between."""
        utterance = self._utterance(speaker, length, speed, rng)
        while len(utterance.waveform_N) < _ENOUGH * length:
            gap = round(rng.exponential(_GAP_SECONDS) * self.bank.sample_rate)
            missing = max(length - len(utterance.waveform_N), round(_SHORTEST_SECONDS * self.bank.sample_rate))
            more = self._utterance(speaker, missing, speed, rng)
            silence = np.zeros(gap, dtype=np.float32)
            shift = len(utterance.waveform_N) + gap
            utterance = Utterance(
                np.concatenate([utterance.waveform_N, silence, more.waveform_N]),
                np.concatenate([utterance.segments, more.segments + shift]),
            )
        pause = round(self.settings.label_pauses_from * self.bank.sample_rate)
        return Utterance(utterance.waveform_N, joined(utterance.segments, pause))

    def _utterance(self, speaker: int, length: int, speed: float, rng: np.random.Generator) -> Utterance:
        utterance = self.bank.utterance(speaker, round(length * speed), rng)
        if speed == 1.0:
            return utterance
        rate = self.bank.sample_rate
        waveform = soxr.resample(utterance.waveform_N, rate * speed, rate, quality="LQ")
        segments = np.minimum(np.round(utterance.segments / speed).astype(np.int64), len(waveform))
        return Utterance(np.asarray(waveform, dtype=np.float32), segments)


def _covered(segments_K2: NDArray[np.int64], samples: int) -> int:
    """The number of samples in [0, samples) that lie in at least one segment."""
    inside = np.clip(segments_K2[np.argsort(segments_K2[:, 0])], 0, samples)
    reached = np.concatenate([[0], np.maximum.accumulate(inside[:, 1])[:-1]])
    return int(np.maximum(0, inside[:, 1] - np.maximum(inside[:, 0], reached)).sum())


# -------------------------------------- Writes simulated conversations as recordings with an RTTM file

RTTM = "ref.rttm"


def write_conversations(
    folder: str | Path, simulator: ConversationSimulator, count: int, seconds: float, seed: int = 0
) -> dict[str, list[SpeakerTurn]]:
    """Write `folder`/NNNN.wav and `folder`/ref.rttm, a corpus for `data.path`, and return the turns of each recording.

    Args:
        count: Number of conversations.
        seconds: Length of each.
        seed: Equal seeds give equal conversations.
    """
    folder, rate = Path(folder), simulator.bank.sample_rate
    turns: dict[str, list[SpeakerTurn]] = {}
    for number in range(count):
        name = f"{number:04d}"
        conversation = simulator.conversation(round(seconds * rate), generator(seed, "written", number))
        write_audio(folder / f"{name}.wav", conversation.waveform_N, rate)
        turns[name] = turns_of(conversation, simulator)
    write_rttm(folder / RTTM, turns)
    return turns


def turns_of(conversation: Conversation, simulator: ConversationSimulator) -> list[SpeakerTurn]:
    """The turns of a conversation in seconds, sorted by start; pauses within turns separate them."""
    rate, speakers = simulator.bank.sample_rate, simulator.bank.speakers
    seconds_K2 = conversation.segments_K2.clip(0, len(conversation.waveform_N)) / rate
    return sorted(
        SpeakerTurn(float(start), float(end), speakers[int(speaker)])
        for (start, end), speaker in zip(seconds_K2, conversation.speaker_K, strict=True)
        if end > start
    )
