"""The corpus that espeak-ng speaks: deterministic, of several voices, and honest about what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from phonate.config.errors import InputError
from phonate.workflows.demo.embedded import SENTENCES, SPEAKERS, UNSEEN_SENTENCES, EmbeddedCorpus, make_corpus

pytestmark = pytest.mark.usefixtures("espeak")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedCorpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"), sentences=2)


def test_every_speaker_says_every_sentence(corpus: EmbeddedCorpus) -> None:
    found = sorted(path.relative_to(corpus.folder).as_posix() for path in corpus.folder.rglob("*.wav"))
    assert found == sorted(f"{speaker.name}/{n:02d}.wav" for speaker in SPEAKERS for n in range(2))
    for path in corpus.folder.rglob("*.wav"):
        samples, sample_rate = soundfile.read(path)
        assert sample_rate == 22050
        assert 1.5 < len(samples) / sample_rate < 8
        assert 0.2 < np.abs(samples).max() < 1.0, f"{path} is silent or clipped"


def test_speakers_differ_in_pitch(corpus: EmbeddedCorpus) -> None:
    import librosa

    def pitch(name: str) -> float:
        samples, sample_rate = soundfile.read(corpus.folder / name / "00.wav")
        return float(np.median(librosa.yin(samples, fmin=60, fmax=400, sr=sample_rate)))

    assert pitch("frank") < pitch("bert") < pitch("clara") < pitch("elsie")


def test_a_second_call_writes_the_same_bytes(corpus: EmbeddedCorpus, tmp_path: Path) -> None:
    again = make_corpus(tmp_path, sentences=2)
    for path in corpus.folder.rglob("*.wav"):
        assert (again.folder / path.relative_to(corpus.folder)).read_bytes() == path.read_bytes()


def test_the_guest_says_what_nobody_else_says(corpus: EmbeddedCorpus) -> None:
    assert len(corpus.unseen) == len(UNSEEN_SENTENCES)
    assert not set(UNSEEN_SENTENCES) & set(SENTENCES)
    assert not any(corpus.folder in path.parents for path in corpus.unseen)


def test_too_many_sentences_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 to 30 .*31"):
        make_corpus(tmp_path, sentences=31)


def test_without_espeak_the_install_command_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['espeakng_loader'] = None\n"
        "import importlib.util\n"
        "from phonate.workflows.demo.embedded import make_corpus\n"
        "from pathlib import Path\n"
        f"make_corpus(Path({str(tmp_path)!r}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "MissingPackageError" in ran.stderr or "is not installed" in ran.stderr
    assert ran.stderr.strip().endswith("pip install 'phonate[espeak]'")
