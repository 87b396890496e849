"""Speaking SSML: each word at its own speed, pitch and level, with silences as they are asked for.

Shapes: L tokens, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import normalised_peak
from phonate.tasks.speech.inference import PAUSE_SECONDS, PEAK, Synthesiser, parallel
from phonate.tasks.speech.models.parallel import hertz, noise_table
from phonate.text.captions import TimedWord
from phonate.text.script import ScriptWord, script
from phonate.text.ssml import parse

_FADE_SECONDS = 0.005
"""By which a level changes, and sound ends where a silence is put in."""


def speak_ssml(
    synthesiser: Synthesiser, markup: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
) -> tuple[FloatArray, list[TimedWord]]:
    """Speak an SSML document; returns the sound (N,) and when each word is said.

    `speed` and `semitones` are added to what the document says. Raises InputError for a document that is not understood
    (see `phonate.text.ssml`), and for a model that does not predict durations and pitch (of kind autoregressive).
    """
    parallel(synthesiser, "follow SSML")
    before, sentences = script(parse(markup), synthesiser.phonemizer)
    rate = synthesiser.sample_rate
    sounds: list[FloatArray] = [np.zeros(round(before * rate), dtype=np.float32)]
    timed: list[TimedWord] = []
    for number, words in enumerate(sentences):
        if number:
            sounds.append(np.zeros(round(PAUSE_SECONDS * rate), dtype=np.float32))
        sound, times = _sentence(synthesiser, words, synthesiser.speaker(speaker), speed, semitones)
        begins = sum(map(len, sounds)) / rate
        timed += [TimedWord(one.text, round(one.start + begins, 3), round(one.end + begins, 3)) for one in times]
        sounds.append(sound)
    whole = np.concatenate(sounds)
    return (PEAK * normalised_peak(whole) if np.abs(whole).max() > 1 else whole), timed


@torch.no_grad()
def _sentence(
    synthesiser: Synthesiser, words: Sequence[ScriptWord], speaker: int, speed: float, semitones: float
) -> tuple[FloatArray, list[TimedWord]]:
    """One sentence at its own level, and its words' times from its beginning."""
    model, device = parallel(synthesiser, "follow SSML"), synthesiser.device
    plain = [one.word for one in words]
    tokens_1L = torch.tensor([synthesiser.inventory.ids(plain)], device=device)
    of_token = [words[0], *(one for one in words for _ in range(len(one.word.phones) + 1))]  # the start is the first's
    speed_1L = torch.tensor([[speed * one.delivery.speed for one in of_token]], device=device)
    octaves_1L = torch.tensor([[(semitones + one.delivery.semitones) / 12 for one in of_token]], device=device)
    speaker_1 = torch.tensor([speaker], device=device)
    mel_1TM, melody_1T2, frames_1L = model.spoken(tokens_1L, speaker_1, noise_table().to(device), speed_1L, octaves_1L)
    sound = synthesiser.render(mel_1TM[0].cpu().numpy(), hertz(melody_1T2)[0].cpu().numpy())
    sound = PEAK * normalised_peak(sound)
    times = list(synthesiser.word_times(plain, frames_1L[0].cpu().numpy(), 0.0))
    sound = _levelled(sound, words, times, synthesiser.sample_rate)
    return _with_silences(sound, words, times, synthesiser.sample_rate)


def _levelled(sound: FloatArray, words: Sequence[ScriptWord], times: Sequence[TimedWord], rate: int) -> FloatArray:
    """`sound` (N,) with the level of each word; it changes in the middle between two."""
    if not any(one.delivery.decibels for one in words):
        return sound
    gains = np.full(len(sound), 10 ** (words[-1].delivery.decibels / 20), dtype=np.float32)
    begins = 0
    for one, this, following in zip(words, times, times[1:], strict=False):
        ends = round((this.end + following.start) / 2 * rate)
        gains[begins:ends] = 10 ** (one.delivery.decibels / 20)
        begins = ends
    fade = np.ones(max(1, round(2 * _FADE_SECONDS * rate)), dtype=np.float32)
    padded = np.pad(gains, (len(fade) // 2, len(fade) - 1 - len(fade) // 2), mode="edge")
    return sound * np.convolve(padded, fade / len(fade), mode="valid").astype(np.float32)


def _with_silences(
    sound: FloatArray, words: Sequence[ScriptWord], times: Sequence[TimedWord], rate: int
) -> tuple[FloatArray, list[TimedWord]]:
    """`sound` (N,) with the silences after words made as long as they are to be, and the times after that."""
    fade_N = np.linspace(1.0, 0.0, round(_FADE_SECONDS * rate), dtype=np.float32)
    sound, pieces, shifted = sound.copy(), [], []
    begins, later = 0, 0.0
    for number, (one, this) in enumerate(zip(words, times, strict=True)):
        shifted.append(TimedWord(this.text, this.start + later, this.end + later))
        following = times[number + 1].start if number + 1 < len(times) else len(sound) / rate
        missing = one.silence - (following - this.end)
        if one.silence and missing > 0:
            cut = min(round((this.end + following) / 2 * rate), len(sound))
            left, right = sound[max(begins, cut - len(fade_N)) : cut], sound[cut : cut + len(fade_N)]
            left *= fade_N[len(fade_N) - len(left) :]
            right *= fade_N[::-1][: len(right)]
            pieces += [sound[begins:cut], np.zeros(round(missing * rate), dtype=np.float32)]
            begins, later = cut, later + missing
    return np.concatenate([*pieces, sound[begins:]]), shifted
