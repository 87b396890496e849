"""The corpus of the diarization benchmark: made twice with the same bytes, and nobody is in two parts of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from phonate.data.annotations import read_rttm
from phonate.tasks.diarization.data import DiarizationCorpus
from phonate.tasks.diarization.settings import DiarizationData
from phonate_process import run_python

ROOT = Path(__file__).parents[2]


def make(folder: Path, cache: Path) -> str:
    """Make a small one; returns a digest of all files."""
    options = ["--speakers", "12", "--sentences", "2", "--conversations", "6", "--cache-dir", str(cache)]
    ran = run_python(ROOT / "benchmarks/diarization_speakers.py", folder, *options)
    assert ran.returncode == 0, ran.stderr
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_the_benchmark_corpus_is_the_same_each_time_and_tests_strangers(tmp_path: Path, espeak: None) -> None:
    first, again = (make(tmp_path / name, tmp_path / f"cache-{name}") for name in ("a", "b"))
    assert first == again
    data = DiarizationData(
        path=str(tmp_path / "a/speakers"),
        cache_dir=str(tmp_path / "cache-a"),
        simulation={"speakers": (2, 2), "overlap": 0.44},  # type: ignore[arg-type]
    )
    banks = {split: set(one.bank.speakers) for split, one in DiarizationCorpus(data).simulators.items()}
    tested = {turn.speaker for turns in read_rttm(tmp_path / "a/conversations/ref.rttm").values() for turn in turns}
    assert {split: len(names) for split, names in banks.items()} == {"train": 6, "validation": 2}
    assert len(tested) == 4
    assert not tested & (banks["train"] | banks["validation"])
