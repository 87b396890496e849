"""The evaluation: who is converted and compared with whom, and figures that the traps can't fool."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError, InputError
from phonate.evaluation.held_out import Clip
from phonate.evaluation.speakers import profile, profiles
from phonate.evaluation.tables import Evaluation
from phonate.tasks.conversion import evaluation
from phonate.tasks.conversion import evaluation as judges
from phonate.tasks.conversion.evaluation import (
    Judges,
    Pair,
    Source,
    TargetVoice,
    _divided,
    _with_references,
    compared,
    judge,
    reference,
    references_of,
    speech_seconds,
    summary,
)


class NamedTarget:
    """As much of a converter as dividing a corpus needs."""

    target = "anna"


def clips(*counts: tuple[str, int]) -> list[Clip]:
    return [Clip(f"{name}{n}", name, "", np.zeros(100, np.float32)) for name, count in counts for n in range(count)]


def test_as_many_speakers_as_there_are_are_converted() -> None:
    (target,), sources, rest = _divided(NamedTarget(), clips(("ben", 5), ("anna", 40), ("cleo", 2), ("dora", 1)))
    assert len(target.clips) == evaluation.MOST_REFERENCES
    assert target.reference_clips == target.clips
    assert [source.clip.id for source in sources] == [
        "ben0", "cleo0", "dora0", "ben1", "cleo1", "ben2", "ben3", "ben4",
    ]  # fmt: skip
    assert rest["ben"] == []
    many = clips(*((f"speaker{n}", 2) for n in range(20)), ("anna", 3))
    _, sources, rest = _divided(NamedTarget(), many)
    assert len({source.clip.speaker for source in sources}) == len(sources) == evaluation.MOST_SOURCES
    assert all(len(left) in {1, 2} for left in rest.values())


def test_a_corpus_that_can_not_be_judged_on_is_refused() -> None:
    with pytest.raises(InputError, match=r"no clip of .*'anna'.*'ben'.*data=.*sub-folder"):
        _divided(NamedTarget(), clips(("ben", 3)))
    with pytest.raises(InputError, match=r"only 'anna'.*data="):
        _divided(NamedTarget(), clips(("anna", 3)))


def test_recordings_that_were_trained_on_stand_in_for_those_that_validation_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = [clip.id for clip in clips(("anna", 3), ("ben", 4), ("cleo", 2))]
    index = MagicMock(id=ids, speaker=[0] * 3 + [1] * 4 + [2] * 2)
    index.__len__.return_value = len(ids)
    prepared: Any = SimpleNamespace(index=index, speakers=["anna", "ben", "cleo"])
    assert evaluation._lacking(NamedTarget(), prepared, ["anna0", "ben0"]) == []
    assert evaluation._lacking(NamedTarget(), prepared, ["ben0"]) == ["anna0", "anna1", "anna2"]
    assert "anna" in caplog.text
    assert "too good" not in caplog.text
    assert set(evaluation._lacking(NamedTarget(), prepared, ["anna0"])) == set(ids[3:])
    assert "6 that were trained on are converted, so the figures are too good" in caplog.text


class FakeNaturalness:
    """Finds every sound fair, and can't judge silence."""

    def score(self, waveform: np.ndarray, sample_rate: int, name: str = "") -> float:
        if not np.abs(waveform).max() > 0:
            raise DataError("silent")
        return 3.0

    def score_synthesised(self, waveform: np.ndarray, sample_rate: int, name: str) -> float:
        return 3.0 if np.abs(waveform).max() > 0 else 1.0


class FakeJudges(Judges):
    """Hears a waveform's first three samples as its voice, and always the same words."""

    def __init__(self) -> None:
        self.rate = 22050
        self.naturalness = FakeNaturalness()
        self.profiles = {"ben": self.embed(np.array([0.0, 1.0, 0.0])), "cleo": self.embed(np.array([0.0, 0.0, 1.0]))}

    def embed(self, waveform: np.ndarray, name: str = "") -> np.ndarray:
        vector = np.asarray(waveform[:3], dtype=np.float32)
        return vector / np.linalg.norm(vector)

    def transcribe(self, waveform: np.ndarray) -> str:
        return "some words"


def metrics_of(judges: FakeJudges, waveform: np.ndarray, source: Source, text: str) -> dict[str, float]:
    """Of speech converted to anna's voice."""
    target = [judges.embed(np.array([1.0, 0.1, 0.0])), judges.embed(np.array([1.0, -0.1, 0.0]))]
    pair = Pair(source, text, TargetVoice("anna", [], [], "anna", target, target), source.clip.id)
    item = compared(judges, pair, judge(judges, waveform, source.share))
    assert item["heard"] == judges.transcribe(waveform)
    return summary([item])


@pytest.mark.parametrize(
    ("voice", "closer", "first"),
    [
        ([1.0, 0.2, 0.2], 1.0, 1.0),  # converted
        ([0.1, 1.0, 0.0], 0.0, 0.0),  # a copy of the source, as a model without perturbation makes it
        ([0.3, 0.2, 0.9], 1.0, 0.0),  # blur: no longer the source, and yet not the target
    ],
)
def test_figures_tell_conversion_from_copy_and_from_blur(voice: list[float], closer: float, first: float) -> None:
    judges = FakeJudges()
    source = Source(Clip("b0", "ben", "", np.zeros(2000, np.float32)), own=[judges.profiles["ben"]])
    converted = np.zeros(2000, dtype=np.float32)
    converted[:3] = voice
    metrics = metrics_of(judges, converted, source, "some worlds")
    assert (metrics["closer"], metrics["first"]) == (closer, first)
    assert metrics["cer"] == pytest.approx(1 / 11)


def test_judges_that_are_missing_leave_their_columns_out(monkeypatch: pytest.MonkeyPatch) -> None:
    judges = FakeJudges()
    judges.profiles = {}
    judges.recogniser = None
    monkeypatch.setattr(FakeJudges, "transcribe", Judges.transcribe)
    pair = Pair(Source(Clip("b0", "ben", "", np.zeros(4))), "", TargetVoice("anna", [], [], "anna"), "b0")
    item = compared(judges, pair, judge(judges, np.zeros(22050, np.float32), 1.0))
    assert summary([item]) == {"mos": 1.0}
    assert references_of(judges, [pair.source]) is None


def test_a_profile_has_unit_length() -> None:
    assert np.linalg.norm(profile([np.array([1.0, 0.0]), np.array([0.0, 1.0])], [1.0, 2.0])) == pytest.approx(1.0)


def unit(rng: np.random.Generator, *parts: np.ndarray) -> np.ndarray:
    vector = np.sum(parts, axis=0) + 0.06 * rng.standard_normal(256)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def test_profiles_are_of_equal_length_because_a_longer_one_lies_nearer_to_everybody() -> None:
    """A voice just between two speakers is nearer to the one who is known by thirty clips."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((256, 2)))[0].T
    target = [unit(rng, basis[0]) for _ in range(30)]
    wins_unequal, wins = [], []
    for _ in range(200):
        voice, rival = unit(rng, basis[0], basis[1]), unit(rng, basis[1])
        wins_unequal.append(float(voice @ profile(target, [3.0] * 30)) > float(voice @ rival))
        wins.append(np.mean([float(voice @ one) > float(voice @ rival) for one in profiles(target, [3.0] * 30, 3.0)]))
    assert np.mean(wins_unequal) > 0.9
    assert np.mean(wins) == pytest.approx(0.5, abs=0.15)


def test_groups_of_clips_are_long_enough() -> None:
    clips = [np.eye(7, dtype=np.float32)[i] for i in range(7)]
    made = profiles(clips, [3.0] * 7, 6.0)
    assert [np.count_nonzero(one) for one in made] == [2, 2, 3]
    assert len(profiles(clips, [3.0] * 7, 100.0)) == 1


class Silent(FakeJudges):
    """Finds no speech in silence, and hears no words in it."""

    def embed(self, waveform: np.ndarray, name: str = "") -> np.ndarray:
        if not np.any(waveform):
            raise DataError(f"{name}: no speech")
        return super().embed(waveform)

    def transcribe(self, waveform: np.ndarray) -> str:
        return "some words" if np.any(waveform) else ""


def test_a_converter_that_makes_silence_is_scored_and_a_silent_recording_refused() -> None:
    judges = Silent()
    source = Source(Clip("b0", "ben", "", np.ones(2000, np.float32)), own=[judges.profiles["ben"]])
    metrics = metrics_of(judges, np.zeros(2000, np.float32), source, "some words")
    assert (metrics["closer"], metrics["first"], metrics["cer"], metrics["mos"]) == (0.0, 0.0, 1.0, 1.0)
    with pytest.raises(DataError, match="b1: no words"):
        reference(judges, Clip("b1", "ben", "...", np.zeros(2000, np.float32)))


class CutShort(FakeJudges):
    """A recogniser that stops after the first words of every clip but one."""

    rate = 16000

    def transcribe(self, waveform: np.ndarray) -> str:
        return "chapter 29" if waveform[0] < 0.5 else "whatever was said in those six seconds"


def noise(first: float, seconds: float) -> np.ndarray:
    """Half of it noise, half of it silence."""
    sound = np.random.default_rng(0).uniform(-0.4, 0.4, int(16000 * seconds / 2))
    sound[0] = first
    return np.concatenate([sound, np.zeros_like(sound)]).astype(np.float32)


def test_references_too_short_for_the_speech_are_refused_counted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    assert speech_seconds(noise(0.0, 12.0), 16000) == pytest.approx(6.0, abs=0.2)
    sources = [
        Source(Clip("cut", "ben", "", noise(0.0, 12.0))),
        Source(Clip("whole", "ben", "", noise(0.9, 12.0))),
        Source(Clip("short", "ben", "", noise(0.0, 2.0))),
        Source(Clip("with a text", "ben", "Chapter 29.", noise(0.0, 12.0))),
    ]
    kept, texts, refused = _with_references(CutShort(), sources)
    assert [source.clip.id for source in kept] == ["whole", "short", "with a text"]
    assert texts[1:] == ["chapter 29", "Chapter 29."]
    assert refused == 1
    assert "1 recording can't be judged by its words, and is left out: cut: its transcript" in caplog.text
    with pytest.raises(DataError, match="the first: cut"):
        _with_references(CutShort(), sources[:1])


def test_the_judge_of_words_has_other_weights_than_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "weights_fingerprint", lambda name: f"sha of {name}")
    monkeypatch.setattr(judges, "best_included", lambda models: models[0])
    monkeypatch.setattr(judges, "Transcriber", lambda name, device: name)
    assert judges.independent_recogniser("sha of base") == "tiny.en"
    assert judges.independent_recogniser("sha of tiny.en") == "base"


def test_a_table_shows_missing_figures_as_dashes() -> None:
    found = Evaluation("conversion", {"a": {"pair": 0.5, "cer": 0.1}, "b": {"pair": 0.75}}, focus="a")
    assert found.header() == ["system", "similarity to target ↑", "CER % ↓"]
    assert found.rows() == [["a", "0.5", "10.0"], ["b", "0.75", "–"]]
    assert found.document()["focus"] == "a"


def test_the_pitch_shift_passes_on_no_warnings_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As librosa 1.0 warns, now and then."""

    def shift(waveform: np.ndarray, **_: object) -> np.ndarray:
        warnings.warn("The `n_fft` parameter is deprecated", FutureWarning, stacklevel=1)
        np.array([0x7FF0000000000001]).view(np.float64).astype(np.float32)  # a signalling NaN, as memory may hold
        return waveform

    monkeypatch.setattr("librosa.effects.pitch_shift", shift)
    processor = AudioProcessor()
    rate = processor.config.sample_rate
    low, high = (np.sin(2 * np.pi * f0 * np.arange(rate) / rate).astype(np.float32) for f0 in (120, 200))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(evaluation.Baseline(processor, [high])(low)) == pytest.approx(rate, rel=0.1)
