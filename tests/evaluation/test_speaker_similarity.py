"""The speaker judge on synthetic embeddings and on real voices."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from phonate.evaluation.speakers import similarity
from phonate.pretrained import SpeakerEncoder


def unit(*values: float) -> np.ndarray:
    vector = np.array(values, dtype=np.float32)
    return vector / np.linalg.norm(vector)


def test_similarity_is_the_mean_over_single_clips() -> None:
    clips = [unit(1, 0), unit(0, 1)]
    # Against the mean of the clips it would be 1: the reference would look like everybody.
    assert similarity(unit(1, 1), clips) == pytest.approx(np.sqrt(0.5))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="needs phonate[eval]")
def test_real_speakers_are_told_apart(recordings: Path) -> None:
    from phonate.audio.decoding import read_audio

    judge = SpeakerEncoder()
    folder = recordings / "spk_en_librispeech" / "test-other"
    voices = {
        speaker: [judge.embed(*read_audio(path)) for path in sorted((folder / speaker).glob("*.flac"))[:2]]
        for speaker in ("1998", "2414")
    }
    own, other = (similarity(voices["1998"][0], clips) for clips in (voices["1998"][1:], voices["2414"]))
    assert own > other + 0.1


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="needs phonate[eval]")
def test_a_voice_is_the_same_at_any_level(recordings: Path) -> None:
    """In every way of embedding it, and where voices are compared; the encoder itself gives a cosine of 0.84 for these
    two levels."""
    import torch

    from phonate.audio.decoding import read_audio, resample
    from phonate.tasks.cloning.evaluation import _Voices
    from phonate.tasks.cloning.task import DifferentiableSpeakerEncoder
    from phonate.tasks.diarization.identification import _voice
    from phonate.tasks.diarization.segmentation import Voices

    waveform, rate = read_audio(sorted((recordings / "spk_en_librispeech" / "test-other" / "1998").glob("*.flac"))[0])
    waveform = resample(waveform, rate, 16000)[:64000]
    waveform /= np.abs(waveform).max()
    judge, differentiable = SpeakerEncoder(), DifferentiableSpeakerEncoder()

    def of_window(sound: np.ndarray) -> np.ndarray:
        speakers = Voices(16000, segments=False, device=torch.device("cpu"))
        speakers.add(0, 0, np.ones((400, 1), dtype=np.uint8), sound, 160)
        return speakers.local_speakers(np.zeros((1, 1), dtype=np.int64))[0].embeddings_ND[0]

    for embed in (
        lambda sound: judge.embed(sound, 16000),
        lambda sound: judge.embed_pieces([sound])[0][0],
        lambda sound: judge.embed_continuously(sound, 1.3)[0][0],
        lambda sound: differentiable(torch.from_numpy(sound)).numpy(),
        lambda sound: _Voices(judge, 16000).of_speech(sound),
        lambda sound: _voice(sound, judge, "a known voice"),
        of_window,
    ):
        loud, quiet = (embed((peak * waveform).astype(np.float32)) for peak in (0.95, 0.1))
        assert float(loud @ quiet) > 0.9999 * np.linalg.norm(loud) * np.linalg.norm(quiet)


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="needs phonate[eval]")
def test_a_voice_is_the_same_with_silence_around_it(recordings: Path) -> None:
    """Which would lower the level of the whole, and so the cosine to 0.94 here."""
    from phonate.audio.decoding import read_audio
    from phonate.tasks.diarization.identification import _voice

    waveform, rate = read_audio(sorted((recordings / "tts_en_kathleen" / "wavs").glob("*.flac"))[40], 16000)
    padded = np.concatenate([waveform, np.zeros(5 * rate, np.float32)])
    judge = SpeakerEncoder()
    assert float(judge.embed(waveform, rate) @ judge.embed(padded, rate)) > 0.99
    alone, of_padded = (_voice(judge.speech(sound, rate), judge, "anna") for sound in (waveform, padded))
    assert float(alone @ of_padded) > 0.99 * np.linalg.norm(alone) * np.linalg.norm(of_padded)


def test_nothing_takes_the_stand_in_for_setuptools() -> None:
    if find_spec("resemblyzer") is None:
        pytest.skip("needs resemblyzer: pip install 'phonate[eval]'")
    SpeakerEncoder()
    assert "pkg_resources" not in sys.modules or find_spec("pkg_resources") is not None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="needs phonate[eval]")
def test_a_failed_import_before_does_no_harm() -> None:
    """It leaves resemblyzer.hparams imported, so that the next import of resemblyzer doesn't set that attribute."""
    code = """
import subprocess
import sys
sys.modules["webrtcvad"] = None
try:
    import resemblyzer
except ImportError:
    del sys.modules["webrtcvad"]
import numpy as np
from phonate.pretrained import SpeakerEncoder
noise = np.random.default_rng(0).normal(0, 0.1, 32000).astype(np.float32)
print(SpeakerEncoder().embed_pieces([noise])[0].shape)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.startswith("("), ran.stderr
