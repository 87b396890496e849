"""What all tests share: recordings when there are any, a small corpus always, one thread, no network."""

from __future__ import annotations

import os

# before torch, huggingface_hub and numpy are imported by any test or by a process that a test starts
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("MPLBACKEND", "agg")

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import soundfile

SAMPLE_RATE = 22050


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests, with the reason, on machines without one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Results that depend on the number of threads are the same on every machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings that the environment variable PHONATE_TEST_DATA names."""
    folder = os.environ.get("PHONATE_TEST_DATA")
    if not folder:
        pytest.skip("needs real recordings: PHONATE_TEST_DATA is not set")
    path = Path(folder)
    assert path.is_dir(), f"PHONATE_TEST_DATA={folder} is not a folder"
    return path


@pytest.fixture(scope="session")
def espeak() -> None:
    """Skip where the espeak-ng library is not installed."""
    if importlib.util.find_spec("espeakng_loader") is None:
        pytest.skip("needs espeak-ng: pip install 'phonate[espeak]'")


def voiced_tone(seconds: float, pitch: float, formants: tuple[float, ...], seed: int) -> np.ndarray:
    """A vowel-like sound: harmonics of a gliding pitch under formant peaks, with breath noise.

    Returns float32 samples at 22,050 Hz with a peak of 0.5.
    """
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    glide = pitch * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(0.5, 2.0) * time + rng.uniform(0, 6)))
    phase = 2 * np.pi * np.cumsum(glide) / SAMPLE_RATE
    sound = np.zeros_like(time)
    for harmonic in range(1, int(5000 / pitch)):
        frequency = harmonic * pitch
        gain = sum(np.exp(-(((frequency - formant) / 250.0) ** 2)) for formant in formants) + 0.02
        sound += gain * np.sin(harmonic * phase)
    envelope = 0.3 + 0.7 * np.abs(np.sin(np.pi * rng.uniform(2, 4) * time))
    sound = sound * envelope + 0.01 * rng.standard_normal(len(time))
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


SPEAKERS = {
    "anna": (210.0, (700.0, 1800.0, 2900.0)),
    "ben": (110.0, (500.0, 1300.0, 2400.0)),
    "cleo": (160.0, (600.0, 1550.0, 2650.0)),
}


@pytest.fixture(scope="session")
def tone_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sub-folder for each of three speakers and six voiced sounds of 0.8 to 1.6 s in each."""
    folder = tmp_path_factory.mktemp("tones")
    for number, (speaker, (pitch, formants)) in enumerate(SPEAKERS.items()):
        (folder / speaker).mkdir()
        for clip in range(6):
            sound = voiced_tone(0.8 + 0.16 * clip, pitch, formants, seed=100 * number + clip)
            soundfile.write(folder / speaker / f"{clip:02d}.wav", sound, SAMPLE_RATE, subtype="PCM_16")
    return folder
