"""Rules of prosody in the voice that comes with phonate: heard in its sound, and where they do not apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import phonate
from phonate.audio.pitch import f0
from phonate.cli import main
from phonate.tasks.speech.inference import Synthesiser
from phonate.text.phonemes import Word, counted_marks, known_mark, learnt_marks, phonemizer

POLAR = ["Are you coming?", "Is it raining?", "Can we go now?", "Is this your brother?"]
FALLING = ["Where are you going?", "What did he find in the garden?", "Why is the teacher angry?"]


@pytest.fixture(scope="module")
def loaded() -> Synthesiser:
    return phonate.load("base/voice", "speech")


@pytest.fixture
def voice(loaded: Synthesiser) -> Iterator[Synthesiser]:
    yield loaded
    loaded.prosody_rules = True


def ending(sound: np.ndarray, rate: int) -> float:
    """Semitones of the last 200 ms of voice above the mean."""
    track = f0(sound, rate, rate // 200)
    voiced = np.flatnonzero(track > 0)
    return float(12 * (np.log2(track[voiced[voiced > voiced[-1] - 40]]).mean() - np.log2(track[voiced]).mean()))


def endings(voice: Synthesiser, texts: list[str]) -> np.ndarray:
    return np.array([ending(sound, voice.sample_rate) for sound in voice.speak(texts)])


def silence(voice: Synthesiser, text: str, words: int) -> float:
    """Seconds of silence after so many words."""
    sound, times = voice.timed(text)
    part = sound[round(times[words - 1].start * voice.sample_rate) : round(times[words].end * voice.sample_rate)]
    step = voice.sample_rate // 200
    loud = np.abs(part[: len(part) // step * step]).reshape(-1, step).max(axis=1) > 0.01 * np.abs(sound).max()
    edges = np.flatnonzero(np.diff(np.concatenate([[1], loud, [1]])))
    return float(np.diff(edges)[::2].max() / 200) if len(edges) else 0.0


def test_yes_no_questions_rise_and_others_fall(voice: Synthesiser) -> None:
    ruled, falling = endings(voice, POLAR), endings(voice, FALLING)
    voice.prosody_rules = False
    plain = endings(voice, POLAR)
    assert plain.mean() < -1.0
    assert (ruled - plain).min() > 2.0
    assert ruled.mean() > 1.0
    assert falling.mean() < -1.0


def test_a_question_that_follows_another_sentence_rises_in_a_batch_and_in_a_stream(voice: Synthesiser) -> None:
    text = "The old farmer sold the boat. Are you coming?"
    sound, words = voice.timed(text)
    own = sound[round(words[-3].start * voice.sample_rate) :]
    assert ending(own, voice.sample_rate) > 1.0
    streamed = np.concatenate(list(voice.stream(text)))
    assert len(streamed) == len(sound)
    assert ending(streamed[-len(own) :], voice.sample_rate) > 1.0
    marked = voice.speak(f"<speak>{text}</speak>")
    assert ending(marked[-len(own) :], voice.sample_rate) > 1.0


def test_a_voice_that_learnt_questions_is_left_alone(loaded: Synthesiser) -> None:
    facts = dict(loaded.inference_metadata)
    assert facts["marks"]["."] > 900
    for marks, raised in (({**facts["marks"], "?": 60}, False), ({**facts["marks"], "?": 3}, True), (None, False)):
        known = {**facts, "marks": marks} if marks else {key: facts[key] for key in facts if key != "marks"}
        voice = Synthesiser(loaded.model, loaded.data, loaded.inventory, loaded.speakers, known, "griffin_lim")
        assert voice.raises_questions is raised


def test_marks_that_were_hardly_heard_are_read_as_weaker_ones() -> None:
    words = phonemizer("english")("Oh! Well; yes, no: why - so?")
    learnt = learnt_marks({"marks": {",": 300, ".": 900, ";": 6}, "recordings": 911})
    assert [known_mark(word, learnt) for word in words] == [".", ",", ",", ",", ",", "."]
    assert [known_mark(word, frozenset()) for word in words] == [""] * 6
    assert [known_mark(word, None) for word in words] == ["!", ";", ",", ":", "-", "?"]
    assert known_mark(Word("a", ("EY1",), "", "("), learnt) == ","
    assert counted_marks([words, words]) == {"!": 2, ";": 2, ",": 2, ":": 2, "-": 2, "?": 2}
    assert learnt_marks({"marks": {".": 18, "?": 2}, "recordings": 18}) == {"."}  # a small corpus
    assert learnt_marks({"marks": {"?": 9}, "recordings": 18, "marks_of_start": [","]}) == {"?", ","}
    assert learnt_marks({"recordings": 18}) is None


def test_silences_grow_with_the_mark(voice: Synthesiser) -> None:
    pairs = [("The baker sold a yellow boat", "nobody knew why"), ("They bought the house", "it was cheap enough")]
    kinds = [", ", "; ", ": ", " - ", " (", "... ", ".\n\n"]
    found = [np.mean([silence(voice, f"{a}{kind}{b}.", len(a.split())) for a, b in pairs]) for kind in kinds]
    assert found == sorted(found), dict(zip(kinds, found, strict=True))
    assert found[0] > 0.02  # learnt, and left alone
    assert found[1] >= 0.2
    assert found[-1] > 0.85
    faster = np.mean([silence_at_double(voice, a, b) for a, b in pairs])
    assert faster < 0.7 * found[5]


def silence_at_double(voice: Synthesiser, one: str, two: str) -> float:
    said = voice.timed(f"{one}... {two}.", speed=2.0)[1]
    words = len(one.split())
    return said[words].start - said[words - 1].end


def test_times_of_words_are_those_of_the_sound_with_its_silences(voice: Synthesiser) -> None:
    sound, words = voice.timed("The baker (an old man) sold a boat... Nobody knew why.")
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert words[2].start - words[1].end > 0.3
    assert len(sound) / voice.sample_rate == pytest.approx(words[-1].end, abs=0.6)
    middle = round((words[1].end + words[2].start) / 2 * voice.sample_rate)
    assert np.abs(sound[middle - 500 : middle + 500]).max() < 0.02


def test_the_command_turns_rules_off(tmp_path: Path, voice: Synthesiser) -> None:
    files = [tmp_path / "with.wav", tmp_path / "without.wav"]
    text = "Wait; are you coming?"
    assert main(["speak", text, "-o", str(files[0])]) == 0
    assert main(["speak", text, "--no-prosody-rules", "-o", str(files[1])]) == 0
    lengths = [len(phonate.audio.decoding.read_audio(file)[0]) for file in files]
    assert lengths[0] == len(voice.speak(text))
    voice.prosody_rules = False
    assert lengths[1] == len(voice.speak(text)) < lengths[0]
