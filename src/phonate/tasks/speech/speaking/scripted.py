"""Speaking SSML: each word at its own speed, pitch and level, with silences as they are asked for.

Shapes: N samples.
"""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import PEAK, normalised_peak
from phonate.tasks.speech.inference import LONGEST, Synthesiser, parallel
from phonate.text.captions import TimedWord
from phonate.text.script import ScriptWord, script
from phonate.text.ssml import parse


def sentences_of_ssml(synthesiser: Synthesiser, markup: str) -> tuple[float, list[list[ScriptWord]]]:
    """Seconds of silence before the first sentence of a document, and the words of each. Raises InputError."""
    parallel(synthesiser, "follow SSML")
    return script(parse(markup, synthesiser.phonemizer.language), synthesiser.phonemizer, LONGEST)


def speak_ssml(
    synthesiser: Synthesiser, markup: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
) -> tuple[FloatArray, list[TimedWord]]:
    """Speak an SSML document; returns the sound (N,) and when each word is said.

    `speed` multiplies the document's speeds, `semitones` are added to its pitches. Raises InputError for a document
    that is not understood (see `phonate.text.ssml`), and for a model that does not predict durations and pitch (of kind
    autoregressive).
    """
    before, sentences = sentences_of_ssml(synthesiser, markup)
    spoken = synthesiser.spoken(sentences, speaker, speed, semitones)
    sounds = [synthesiser.silence(before)]
    for one in spoken:
        plain = PEAK * normalised_peak(synthesiser.render(one.mel_TM, one.f0_T))
        sounds += [*one.shaping([plain]), synthesiser.silence(one.after)]
    whole = np.concatenate(sounds[:-1])
    whole = PEAK * normalised_peak(whole) if np.abs(whole).max() > 1 else whole  # what is to be quiet stays quiet
    return whole, synthesiser.times(sentences, spoken, before)
