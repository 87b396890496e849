"""The evaluation: who is converted and compared with whom, and figures that the traps can't fool."""

from __future__ import annotations

import numpy as np
import pytest

from phonate.config.errors import InputError
from phonate.evaluation.tables import Evaluation
from phonate.tasks.conversion import evaluation
from phonate.tasks.conversion.evaluation import Clip, Judges, Source, _divided, _judge, centre


class NamedTarget:
    """As much of a converter as dividing a corpus needs."""

    target = "anna"


def clips(*counts: tuple[str, int]) -> list[Clip]:
    return [Clip(f"{name}{n}", name, np.zeros(100, np.float32)) for name, count in counts for n in range(count)]


def test_as_many_speakers_as_there_are_are_converted() -> None:
    target, sources, rest = _divided(NamedTarget(), clips(("ben", 5), ("anna", 40), ("cleo", 2), ("dora", 1)))
    assert len(target) == evaluation.MOST_REFERENCES
    assert [source.clip.id for source in sources] == [
        "ben0", "cleo0", "dora0", "ben1", "cleo1", "ben2", "ben3", "ben4",
    ]  # fmt: skip
    assert rest["ben"] == []
    many = clips(*((f"speaker{n}", 2) for n in range(20)), ("anna", 3))
    _, sources, rest = _divided(NamedTarget(), many)
    assert len({source.clip.speaker for source in sources}) == len(sources) == evaluation.MOST_SOURCES
    assert all(len(left) in {1, 2} for left in rest.values())


def test_a_corpus_that_can_not_be_judged_on_is_refused() -> None:
    with pytest.raises(InputError, match="no clip of the target 'anna'"):
        _divided(NamedTarget(), clips(("ben", 3)))
    with pytest.raises(InputError, match="only 'anna'"):
        _divided(NamedTarget(), clips(("anna", 3)))


class FakeJudges(Judges):
    """Hears a waveform's first three samples as its voice, and always the same words."""

    def __init__(self) -> None:
        self.rate = 22050
        self.target = [self.embed(np.array([1.0, 0.1, 0.0])), self.embed(np.array([1.0, -0.1, 0.0]))]
        self.others = {"ben": [self.embed(np.array([0.0, 1.0, 0.0]))], "cleo": [self.embed(np.array([0.0, 0.0, 1.0]))]}

    def embed(self, waveform: np.ndarray, name: str = "") -> np.ndarray:
        vector = np.asarray(waveform[:3], dtype=np.float32)
        return vector / np.linalg.norm(vector)

    def transcribe(self, waveform: np.ndarray) -> str:
        return "some words"


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
    source = Source(Clip("b0", "ben", np.zeros(2000, np.float32)), own=judges.others["ben"])
    converted = np.zeros(2000, dtype=np.float32)
    converted[:3] = voice
    metrics, items = _judge(judges, [converted], [source], ["some worlds"])
    assert (metrics["closer"], metrics["first"]) == (closer, first)
    assert metrics["cer"] == pytest.approx(1 / 11)
    assert items["b0"]["heard"] == "some words"


def test_a_profile_has_unit_length() -> None:
    assert np.linalg.norm(centre([np.array([1.0, 0.0]), np.array([0.0, 1.0])])) == pytest.approx(1.0)


def test_a_table_shows_missing_figures_as_dashes() -> None:
    found = Evaluation("conversion", {"a": {"pair": 0.5, "cer": 0.1}, "b": {"pair": 0.75}}, focus="a")
    assert found.header() == ["system", "pair", "cer"]
    assert found.rows() == [["a", "0.500", "0.100"], ["b", "0.750", "-"]]
    assert found.document()["focus"] == "a"
