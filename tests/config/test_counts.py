from __future__ import annotations

import pytest

from phonate.config.words import number_of, that_many


@pytest.mark.parametrize(("count", "told"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1200, "1,200 rows")])
def test_one_is_told_in_the_singular(count: int, told: str) -> None:
    assert number_of(count, "row") == told


@pytest.mark.parametrize(
    ("predicate", "of_one"),
    [
        ("are too short for their texts, and are left out", "1 file is too short for its text, and is left out"),
        ("are of speakers who are not in training", "1 file is of speakers who are not in training"),
        ("can't be judged by their words", "1 file can't be judged by its words"),
        ("hold sound", "1 file holds sound"),
    ],
)
def test_what_is_said_of_one_has_its_verb(predicate: str, of_one: str) -> None:
    assert that_many(1, "file", predicate) == of_one
    assert that_many(2, "file", predicate) == f"2 files {predicate}"
