from __future__ import annotations

from phonate.training.ledger import TimeLeft


def after(estimate: TimeLeft, steps: range, began: float = 0.0, each: float = 1.0) -> float:
    """Take steps of `each` seconds; returns when the last one was done."""
    now = began
    for step in steps:
        now += each
        estimate.step(step, now)
    return now


def test_nothing_is_told_of_a_few_steps() -> None:
    estimate = TimeLeft(1000)
    assert str(estimate) == "–"
    now = after(estimate, range(1, 2), each=60.0)  # the first warms up
    now = after(estimate, range(2, 6), now)
    assert str(estimate) == "–"
    after(estimate, range(6, 11), now)
    assert str(estimate) == "16.5 min", "of the 990 seconds that are left"


def test_validations_count_as_often_as_they_come() -> None:
    """Whether the last one was just now or a while ago: with 100 steps between them, each takes a minute."""
    estimate = TimeLeft(1000, validation_interval=100)
    now = after(estimate, range(1, 101))
    assert str(estimate) == "15.0 min without validation", "nobody knows yet how long the ten take"
    estimate.validated(60.0)
    now = after(estimate, range(101, 102), now + 60.0)
    assert str(estimate) == "24.0 min", "899 steps and nine validations"
    after(estimate, range(102, 200), now)
    assert str(estimate) == "22.4 min", "801 steps and nine validations"


def test_a_validation_of_unknown_length_after_the_last_step_is_not_told_as_nothing() -> None:
    estimate = TimeLeft(100, validation_interval=100)
    now = after(estimate, range(1, 101))
    assert str(estimate) == "–"
    estimate.validated(60.0)
    estimate = TimeLeft(100)
    after(estimate, range(1, 101), now)
    assert str(estimate) == "0 s", "nothing follows"


def test_another_validation_ends_the_run() -> None:
    estimate = TimeLeft(250, validation_interval=100)
    now = after(estimate, range(1, 101))
    estimate.validated(600.0)
    after(estimate, range(101, 151), now + 600.0)
    assert str(estimate) == "21.7 min", "100 steps, and validations at 200 and 250"


def test_steps_before_a_discriminator_joins_in_tell_their_own_speed() -> None:
    estimate = TimeLeft(1000, validation_interval=300, dearer_from=[500])
    now = after(estimate, range(1, 101))
    assert str(estimate) == "15.0 min at this speed without validation"
    now = after(estimate, range(101, 301), now)
    estimate.validated(60.0)
    now = after(estimate, range(301, 401), now + 60.0)
    assert str(estimate) == "13.0 min at this speed", "600 steps and three validations"
    now = after(estimate, range(401, 502), now)
    assert str(estimate) == "–", "the first of the dearer ones may be another warm-up"
    after(estimate, range(502, 601), now, each=3.0)
    assert str(estimate) == "23.0 min", "of the dearer ones alone"


def test_a_run_that_goes_back_is_measured_anew() -> None:
    estimate = TimeLeft(1000)
    now = after(estimate, range(1, 101))
    after(estimate, range(51, 101), now, each=2.0)
    assert str(estimate) == "30.0 min"
