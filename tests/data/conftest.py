from __future__ import annotations

import pytest


@pytest.fixture
def folder(tmp_path):
    """A corpus with three tones of each of two speakers."""
    from small_corpora import wav

    for speaker in ("ann", "bob"):
        for number in range(3):
            wav(tmp_path / "corpus" / speaker / f"{number}.wav", hertz=200 + 10 * number)
    return tmp_path / "corpus"
