"""Evaluation of a voice on a file of sentences: mistakes are found before anything is spoken."""

from __future__ import annotations

from pathlib import Path

import pytest

from phonate.config.errors import DataError
from phonate.tasks.speech.evaluation import evaluate


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("café".encode("latin-1"), r"sentences\.txt: .*UTF-8 .*; convert it"),
        (b"Hello.\n...\n", r"sentences\.txt: sentence 2, '\.\.\.', .*leave it out"),
    ],
)
def test_a_file_that_cannot_be_spoken_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        evaluate(Path("base/voice"), str(tmp_path / "sentences.txt"))
