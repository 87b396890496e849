"""Loader workers on a corpus whose derived features have not been computed yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

import phonate_process
from phonate.data.parallel import FEW
from sounds import SAMPLE_RATE, voiced_tone


@pytest.fixture(scope="module")
def many_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More recordings than are worked on in one process."""
    folder = tmp_path_factory.mktemp("voices")
    for number in range(FEW + 6):
        file = folder / "ab"[number % 2] / f"{number}.wav"
        file.parent.mkdir(exist_ok=True)
        tone = voiced_tone(0.7, 120.0 + 60.0 * (number % 2), (500.0, 1500.0), seed=number)
        soundfile.write(file, tone, SAMPLE_RATE)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options"),
    [("conversion", ["data.augmentation={}"]), ("vocoder", []), ("conversion", ["data.validation=0"])],
    ids=["augmented conversion", "vocoder", "without validation"],
)
def test_a_fresh_cache_is_filled_before_workers_start(
    many_recordings: Path, tmp_path: Path, recipe: str, options: list[str]
) -> None:
    command = [
        "train", recipe, "size=tiny", f"data.path={many_recordings}",
        f"data.cache_dir={tmp_path / 'cache'}", "training.max_steps=1", "training.batch_size=2",
        "training.scheduler.warmup_steps=0",
        "training.performance.num_workers=2", "--device", "cpu", "--output", str(tmp_path / "run"), *options,
    ]  # fmt: skip
    done = phonate_process.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
