"""Sequences on a GPU: trained in half precision, written as on the CPU. Unproven wherever these tests were skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from installed import missing

if missing("transformers", "sacrebleu", "rouge_score"):
    pytest.skip(
        "needs transformers, sacrebleu, rouge_score: pip install 'phonate[language,eval]'", allow_module_level=True
    )

from sequence_rows import WORDS, settings, write_pairs

from phonate.tasks.sequence.inference import SequenceGenerator
from phonate.workflows.train import train

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pairs_are_memorised_and_written_as_on_the_cpu(tmp_path: Path, precision: str) -> None:
    rows = [(word, word[::-1]) for word in WORDS]
    path = write_pairs(tmp_path / "pairs.tsv", [*rows, *((f"{word} {word}", word) for word in WORDS)])
    changes = {"training.max_steps": 150, "training.batch_size": 8, "training.optimizer.lr": 1e-2}
    changes |= {"training.mixed_precision": precision, "training.checkpoint.interval": 150}
    changes |= {"training.validation.interval": 150}
    train("sequence", settings(path, **changes), output=tmp_path / "run", mode="gpu")
    sources = [source for source, _ in rows]
    there = SequenceGenerator.load(tmp_path / "run", device="cuda").generate(sources)
    here = SequenceGenerator.load(tmp_path / "run").generate(sources)
    assert there == here
    assert sum(text == target for text, (_, target) in zip(here, rows, strict=True)) >= 6
