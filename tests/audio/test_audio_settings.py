import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from phonate.audio.processor import AudioProcessor
from phonate.audio.settings import AudioConfig, AugmentationSettings


def test_defaults_are_the_documented_ones():
    config = AudioConfig()
    assert (config.sample_rate, config.n_fft, config.hop_length, config.win_length) == (
        22050,
        1024,
        256,
        1024,
    )
    assert (config.n_mels, config.fmin, config.fmax, config.preemphasis) == (80, 0.0, 8000.0, 0.97)
    assert (config.ref_level_db, config.min_level_db) == (20.0, -100.0)
    augmentation = AugmentationSettings()
    assert augmentation.time_stretch == (0.8, 1.2)
    assert augmentation.pitch_shift == (-2.0, 2.0)
    assert augmentation.noise == 0.02
    assert augmentation.spec_augment is not None
    assert (augmentation.spec_augment.freq, augmentation.spec_augment.time) == (8, 10)


def test_lengths_are_seconds_whatever_the_rate():
    """8192 applied to samples made crops of 0.37 s: a length here is seconds, and says so when it is not."""
    assert AudioConfig().max_seconds * AudioConfig().frames_per_second == pytest.approx(8192, rel=0.01)
    assert AudioConfig().min_seconds * AudioConfig().sample_rate >= 1024
    for name in ("min_audio_length", "max_audio_length"):
        with pytest.raises(ValidationError, match=r"give m.._seconds"):
            AudioConfig.model_validate({name: 8192})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"win_length": 2048}, "win_length 2048"),
        ({"hop_length": 1025}, "hop_length 1025"),
        ({"sample_rate": 8000}, "fmax 8000 Hz .*sample_rate"),
        ({"n_mels": 400}, "n_mels 400 .*47 bands .*; lower n_mels or raise n_fft"),
        ({"fmin": 9000}, "under fmax"),
        ({"min_seconds": 100}, "under max_seconds"),
        ({"n_mells": 80}, "Extra inputs"),
        ({"preemphasis": 1.0}, "less than 1"),
    ],
)
def test_mistakes_are_explained(values, message):
    with pytest.raises(ValidationError, match=message):
        AudioConfig.model_validate(values)


@pytest.mark.parametrize("name", ["time_stretch", "pitch_shift"])
def test_limits_in_the_wrong_order_are_refused(name):
    with pytest.raises(ValidationError, match="lowest, highest"):
        AugmentationSettings.model_validate({name: [1.2, 0.8]})


def test_settings_import_no_torch():
    code = "import sys, json, phonate.audio.settings; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"torch", "numpy", "soundfile", "librosa"} & set(loaded)


CHANGED = {
    "sample_rate": 24000,
    "n_fft": 2048,
    "hop_length": 128,
    "win_length": 512,
    "n_mels": 40,
    "fmin": 50.0,
    "fmax": 7000.0,
    "preemphasis": 0.9,
    "ref_level_db": 26.0,
    "min_level_db": -80.0,
}


@pytest.mark.parametrize("name", sorted(AudioConfig.model_fields))
def test_fingerprint_covers_every_setting_that_changes_features(name):
    """By construction: a setting added later is in the fingerprint unless it is excluded on purpose."""
    plain = AudioProcessor(AudioConfig()).fingerprint
    if name in CHANGED:
        changed = AudioProcessor(AudioConfig.model_validate({name: CHANGED[name]}))
        assert changed.fingerprint != plain
    else:
        changed = AudioProcessor(AudioConfig.model_validate({name: 1.0}))
        assert changed.fingerprint == plain
    assert AudioProcessor(AudioConfig()).fingerprint == plain
