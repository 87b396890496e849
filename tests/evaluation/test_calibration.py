"""Calibrated speaker similarity."""

from __future__ import annotations

import numpy as np
import pytest

from phonate.config.errors import DataError
from phonate.evaluation.speakers import calibrate


def voices(spread: float, speakers: int = 6, recordings: int = 5, shared: float = 1.0) -> dict[str, list[np.ndarray]]:
    """Unit vectors around a centre for each speaker; the centres have a part in common, as voices of a language do."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=256)
    found = {}
    for number in range(speakers):
        centre = shared * common + rng.normal(size=256)
        own = [centre + spread * rng.normal(size=256) for _ in range(recordings)]
        found[str(number)] = [(one / np.linalg.norm(one)).astype(np.float32) for one in own]
    return found


def test_speakers_that_are_far_apart_are_told_apart() -> None:
    made = calibrate(voices(0.3))
    assert made.pairs == (60, 375)
    assert made.error == 0.0
    assert made.other < made.threshold <= made.same
    assert made.scaled(made.other) == pytest.approx(0.0)
    assert made.scaled(made.same) == pytest.approx(1.0)


def test_the_scale_takes_out_what_all_voices_share() -> None:
    few, much = calibrate(voices(0.5, shared=0.5)), calibrate(voices(0.5, shared=3.0))
    assert much.other > few.other + 0.3  # the same cosine would say another thing
    assert much.scaled(much.other) == pytest.approx(few.scaled(few.other))


def test_errors_are_equal_where_voices_overlap() -> None:
    made = voices(2.5)
    found = calibrate(made)
    assert 0.0 < found.error < 0.5
    same = [float(a @ b) for own in made.values() for i, a in enumerate(own) for b in own[:i]]
    assert np.mean(np.array(same) < found.threshold) == pytest.approx(found.error, abs=0.02)


@pytest.mark.parametrize("speakers", [{}, {"a": 3}, {"a": 1, "b": 1}])
def test_too_little_to_calibrate_by(speakers: dict[str, int]) -> None:
    made = {name: [np.eye(256, dtype=np.float32)[i] for i in range(count)] for name, count in speakers.items()}
    with pytest.raises(DataError, match=r"two speakers.*two recordings"):
        calibrate(made)


def test_names_that_mean_nothing() -> None:
    first, second = np.eye(256, dtype=np.float32)[:2]
    with pytest.raises(DataError, match="alike"):
        calibrate({"a": [first, second], "b": [first, second]})
