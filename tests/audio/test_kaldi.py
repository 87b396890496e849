"""Kaldi's features: equal to kaldi-native-fbank, the same bits in blocks, in parts and in one piece."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

import kaldi_native_fbank as knf
import numpy as np
import pytest
import torch
from lhotse import MfccConfig
from lhotse.features.kaldi.extractors import Fbank, FbankConfig, Mfcc, Spectrogram, SpectrogramConfig

from phonate.audio.decoding import read_audio
from phonate.audio.kaldi import FeatureStream, KaldiFeatures, mel_filters, window
from phonate.audio.settings import KaldiSettings
from phonate.config.errors import InputError

RATE = 16000


def noise(seconds=3.0, seed=0, rate=RATE):
    """Noise whose level moves, with an offset."""
    rng = np.random.default_rng(seed)
    count = round(seconds * rate)
    level = 10 ** rng.uniform(-2.5, -1, 8).repeat(-(-count // 8))[:count]
    return (level * rng.standard_normal(count) + 0.01).astype(np.float32)


@pytest.fixture(scope="module")
def speech(recordings):
    """Real recordings at 16 kHz."""
    files = sorted((recordings / "asr_en_an4").rglob("*.flac"))[:4]
    return [read_audio(file, RATE)[0] for file in files]


def kaldi(waveform, settings):
    """What kaldi-native-fbank computes."""
    options = knf.MfccOptions() if settings.feature_type == "mfcc" else knf.FbankOptions()
    frames, mel = options.frame_opts, options.mel_opts
    frames.samp_freq, frames.dither = settings.sampling_rate, 0.0
    frames.frame_length_ms, frames.frame_shift_ms = 1000 * settings.frame_length, 1000 * settings.frame_shift
    for name in ("window_type", "snip_edges", "preemph_coeff", "remove_dc_offset", "round_to_power_of_two"):
        setattr(frames, name, getattr(settings, name))
    mel.num_bins, mel.low_freq, mel.high_freq = settings.mel_bands, settings.low_freq, settings.high_freq
    for name in ("use_energy", "raw_energy", "energy_floor"):
        setattr(options, name, getattr(settings, name))
    if settings.feature_type == "mfcc":
        options.num_ceps, options.cepstral_lifter = settings.num_ceps, settings.cepstral_lifter
        computer = knf.OnlineMfcc(options)
    else:
        options.use_power = not settings.use_fft_mag
        computer = knf.OnlineFbank(options)
    computer.accept_waveform(settings.sampling_rate, waveform.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


OPTIONS = [
    {},
    {"snip_edges": True},
    {"window_type": "hanning"},
    {"window_type": "hamming"},
    {"window_type": "blackman"},
    {"window_type": "rectangular"},
    {"use_energy": True},
    {"use_energy": True, "raw_energy": False},
    {"use_energy": True, "energy_floor": 0.1},
    {"use_fft_mag": True},
    {"preemph_coeff": 0.0},
    {"round_to_power_of_two": False},
    {"low_freq": 0.0, "high_freq": 0.0, "num_mel_bins": 23},
    {"low_freq": 100.0, "high_freq": 7000.0, "num_filters": 40},
    {"frame_length": 0.032, "frame_shift": 0.008},
    {"sampling_rate": 44100, "frame_length": 0.0251},
    {"sampling_rate": 8000},
    {"feature_type": "mfcc"},
    {"feature_type": "mfcc", "use_energy": True},
    {"feature_type": "mfcc", "num_filters": 40, "num_ceps": 20, "cepstral_lifter": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_features_equal_those_of_kaldi(options):
    settings = KaldiSettings(**options)
    waveform = noise(rate=settings.sampling_rate)
    mine, theirs = KaldiFeatures(settings)(waveform), kaldi(waveform, settings)
    assert mine.dtype == np.float32
    assert mine.shape == theirs.shape == (KaldiFeatures(settings).frames(len(waveform)), settings.width)
    assert np.abs(mine - theirs).max() < 1e-3


@pytest.mark.parametrize("options", [{}, {"feature_type": "mfcc"}, {"snip_edges": True}], ids=str)
def test_features_of_speech_equal_those_of_kaldi(speech, options):
    settings = KaldiSettings(**options)
    for waveform in speech:
        assert np.abs(KaldiFeatures(settings)(waveform) - kaldi(waveform, settings)).max() < 1e-3


def exact(waveform, settings):
    """Filter banks in double precision, as the formulas are written."""
    features = KaldiFeatures(settings)
    length, hop, count = settings.window_length, settings.hop_length, features.frames(len(waveform))
    after = max(0, (count - 1) * hop - features.before + length - len(waveform))
    padded = np.pad(waveform.astype(np.float64), (features.before, after), mode="symmetric")
    frames = np.stack([padded[t * hop : t * hop + length] for t in range(count)])
    if settings.remove_dc_offset:
        frames = frames - frames.mean(1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames = (frames - settings.preemph_coeff * before) * window(settings.window_type, length)
    power = np.abs(np.fft.rfft(frames, settings.n_fft)) ** 2
    return np.log(np.maximum(power @ mel_filters(settings).astype(np.float64).T, np.finfo(np.float32).eps))


@pytest.mark.parametrize("options", [{}, {"remove_dc_offset": False}], ids=str)
def test_quiet_bands_beside_loud_ones_are_exact(speech, options):
    """In single precision, as in kaldi-native-fbank, they are off by up to 0.002."""
    settings = KaldiSettings(**options)
    for waveform in speech:
        assert np.abs(KaldiFeatures(settings)(waveform) - exact(waveform, settings)).max() < 1e-5


@pytest.mark.parametrize(
    "options", [{}, {"raw_energy": False}, {"energy_floor": 0.1}, {"feature_type": "mfcc"}], ids=str
)
def test_silence_has_the_energy_that_it_has_in_kaldi(options):
    settings, silence = KaldiSettings(use_energy=True, **options), np.zeros(RATE, dtype=np.float32)
    np.testing.assert_allclose(KaldiFeatures(settings)(silence), kaldi(silence, settings), atol=1e-4)


LHOTSE = {"fbank": (Fbank, FbankConfig), "mfcc": (Mfcc, MfccConfig), "spectrogram": (Spectrogram, SpectrogramConfig)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_filters": True, "torchaudio_compatible_mel_scale": False, "num_filters": 40},
        {"torchaudio_compatible_mel_scale": False, "num_filters": 40},
        {"feature_type": "mfcc"},
        {"feature_type": "spectrogram"},
        {"feature_type": "spectrogram", "use_fft_mag": True},
        {"feature_type": "spectrogram", "use_energy": True, "raw_energy": False},
    ],
    ids=str,
)
def test_features_equal_those_of_lhotse(options):
    settings = KaldiSettings(**options)
    waveform = noise()
    extractor, config = LHOTSE[settings.feature_type]
    theirs = extractor(config(**{key: value for key, value in options.items() if key != "feature_type"}))
    mine = KaldiFeatures(settings)(waveform)
    expected = np.asarray(theirs.extract(torch.from_numpy(waveform)[None], RATE))
    if settings.feature_type == "spectrogram":
        first = int(settings.use_energy)
        np.testing.assert_allclose(mine[:, :first], expected[:, :first], atol=1e-3)
        mine, expected = np.log(mine[:, first:] + 1e-6), np.log(expected[:, first:] + 1e-6)
    assert np.abs(mine - expected).max() < 1e-3


def test_energy_takes_the_place_of_the_first_cepstrum():
    """Lhotse 1.33 writes it over the first frame instead, and fails."""
    waveform = noise()
    plain = KaldiFeatures(KaldiSettings(feature_type="mfcc"))(waveform)
    with_energy = KaldiFeatures(KaldiSettings(feature_type="mfcc", use_energy=True))(waveform)
    np.testing.assert_array_equal(plain[:, 1:], with_energy[:, 1:])
    assert (plain[:, 0] != with_energy[:, 0]).all()
    with pytest.raises(RuntimeError):
        Mfcc(MfccConfig(use_energy=True)).extract(torch.from_numpy(waveform)[None], RATE)


def test_norm_filters_divides_each_filter_by_its_sum():
    filters = mel_filters(KaldiSettings(norm_filters=True, num_mel_bins=40))
    np.testing.assert_allclose(filters.sum(axis=1), 1.0, rtol=1e-6)


ALL = [
    {},
    {"snip_edges": True},
    {"feature_type": "mfcc", "use_energy": True},
    {"feature_type": "spectrogram"},
    {"dither": 1e-4},
    {"sampling_rate": 44100, "frame_length": 0.0251, "frame_shift": 0.0249},
    {"round_to_power_of_two": False, "frame_length": 0.01, "frame_shift": 0.01, "num_mel_bins": 20},
]


@pytest.mark.parametrize("options", ALL, ids=str)
def test_blocks_and_parts_have_the_bits_of_the_whole(options):
    features = KaldiFeatures(KaldiSettings(**options), seed=5)
    waveform = noise(7.3, rate=features.settings.sampling_rate)
    whole = features(waveform)
    rng = np.random.default_rng(1)
    for size in (1, 999, 16000, len(waveform)):
        if size == 1:  # sizes of all kinds, among them none
            cuts = np.sort(rng.integers(0, len(waveform), 60))
            blocks = np.split(waveform, cuts)
        else:
            blocks = [waveform[i : i + size] for i in range(0, len(waveform), size)]
        np.testing.assert_array_equal(np.concatenate(list(features.blocks(blocks))), whole)
    for _ in range(30):
        first = int(rng.integers(0, len(whole)))
        last = int(rng.integers(first, len(whole) + 50))
        part = features.part(lambda start, stop: waveform[start:stop], len(waveform), first, last)
        np.testing.assert_array_equal(part, whole[first:last])


@pytest.mark.parametrize(
    "options", [{}, {"snip_edges": True}, {"sampling_rate": 44100, "frame_shift": 0.0249}], ids=str
)
def test_recordings_of_every_length_are_mirrored_as_kaldi_does(options):
    settings = KaldiSettings(**options)
    features = KaldiFeatures(settings)
    waveform = noise(0.2, rate=settings.sampling_rate)
    for count in (0, 1, 2, 7, 79, 80, 81, 119, 120, 121, 240, 279, 280, 281, 399, 400, 401, 520, 560, 1102, 1500):
        mine = features(waveform[:count])
        assert mine.shape == (features.frames(count), 80)
        blocks = [waveform[i : min(i + 50, count)] for i in range(0, count, 50)]
        in_blocks = list(features.blocks(blocks))
        assert sum(map(len, in_blocks)) == len(mine)
        if len(mine):
            np.testing.assert_array_equal(np.concatenate(in_blocks), mine)
            theirs = kaldi(waveform[:count], settings)
            assert theirs.shape == mine.shape
            assert np.abs(mine - theirs).max() < 1e-3


def test_a_stream_gives_frames_as_soon_as_their_samples_are_there():
    features, waveform = KaldiFeatures(KaldiSettings()), noise(2.0)
    stream, given, counts = FeatureStream(features), [], []
    for start in range(0, len(waveform), 160):
        given.append(stream.push(waveform[start : start + 160]))
        counts.append(sum(map(len, given)))
    given.append(stream.end())
    # Frame t needs the samples up to 160 t + 280.
    assert counts == [max(0, (160 * (i + 1) - 280) // 160 + 1) if i >= 2 else 0 for i in range(len(counts))]
    whole = features(waveform)
    assert np.abs(np.concatenate(given) - whole).max() < 1e-5


def test_dither_is_that_of_the_recording():
    features = KaldiFeatures(KaldiSettings(dither=1e-3))
    silence = np.zeros(RATE, dtype=np.float32)
    one, same, other = (features.of_recording(name)(silence) for name in ("a", "a", "b"))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.9
    level = np.exp(features.of_recording("a")(np.zeros(60 * RATE, dtype=np.float32))).mean(0)
    white = np.exp(kaldi(1e-3 * np.random.default_rng(0).standard_normal(60 * RATE), features.settings)).mean(0)
    np.testing.assert_allclose(level, white, rtol=0.1)
    plain = KaldiFeatures(KaldiSettings())
    assert plain.of_recording("a") is plain


CHANGES = {
    "frame_length": 0.02,
    "frame_shift": 0.02,
    "sampling_rate": 8000,
    "num_mel_bins": 40,
    "num_filters": 40,
    "low_freq": 100.0,
    "high_freq": 0.0,
    "window_type": "hamming",
    "preemph_coeff": 0.9,
    "remove_dc_offset": False,
    "dither": 0.01,
    "snip_edges": True,
    "round_to_power_of_two": False,
    "use_energy": True,
    "use_fft_mag": True,
    "norm_filters": True,
    "torchaudio_compatible_mel_scale": False,
}
OF_ENERGY = {"raw_energy": False, "energy_floor": 10.0}
OF_MFCC = {"num_ceps": 20, "cepstral_lifter": 0, "num_filters": 30, "num_mel_bins": 30, "use_energy": True}


@pytest.mark.parametrize(
    ("common", "change"),
    [({"num_mel_bins": 23}, {key: value}) for key, value in CHANGES.items() if key != "num_filters"]
    + [({}, {"num_filters": 40}), ({}, {"feature_type": "mfcc"}), ({}, {"feature_type": "spectrogram"})]
    + [({"use_energy": True}, {key: value}) for key, value in OF_ENERGY.items()]
    + [({"feature_type": "mfcc"}, {key: value}) for key, value in OF_MFCC.items()],
    ids=str,
)
def test_every_option_has_an_effect(common, change):
    """Of an earlier pipeline's 25 options 6 had one."""
    waveform = noise(1.0)
    usual, changed = (KaldiFeatures(KaldiSettings(**options))(waveform) for options in (common, common | change))
    assert usual.shape != changed.shape or np.abs(usual - changed).max() > 1e-3


def test_features_survive_pickling():
    features, waveform = KaldiFeatures(KaldiSettings(feature_type="mfcc", dither=1e-4), seed=3), noise()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(features))(waveform), features(waveform))


def test_every_option_but_the_lengths_is_in_the_fingerprint():
    changed = {
        "feature_type": "mfcc", "sampling_rate": 8000, "frame_length": 0.02, "frame_shift": 0.02, "num_mel_bins": 40,
        "num_filters": 41, "num_ceps": 12, "cepstral_lifter": 0, "low_freq": 30.0, "high_freq": 0.0,
        "window_type": "hanning", "preemph_coeff": 0.9, "remove_dc_offset": False, "dither": 0.1, "snip_edges": True,
        "round_to_power_of_two": False, "use_energy": True, "raw_energy": False, "energy_floor": 0.0,
        "use_fft_mag": True, "norm_filters": True, "torchaudio_compatible_mel_scale": False,
    }  # fmt: skip
    others = {"min_seconds", "max_seconds", "whisper_model", "whisper_with_fbank", "whisper_with_voices"}
    assert changed.keys() == KaldiSettings.model_fields.keys() - others
    usual = KaldiFeatures(KaldiSettings(num_mel_bins=23)).fingerprint
    found = {
        KaldiFeatures(KaldiSettings(**{"num_mel_bins": 23, key: value})).fingerprint for key, value in changed.items()
    }
    assert len(found | {usual}) == len(changed) + 1
    assert KaldiFeatures(KaldiSettings(num_mel_bins=23, min_seconds=1.0, max_seconds=9.0)).fingerprint == usual


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frame_length": 25}, "<= 1"),
        ({"frame_shift": 0.03}, "frame_shift 0.03"),
        ({"frame_shift": 1e-6}, "frame_shift 1e-06"),
        ({"low_freq": 8000.0}, "half the sampling_rate"),
        ({"high_freq": 9000.0}, "half the sampling_rate"),
        ({"sampling_rate": 500}, "half the sampling_rate"),
        ({"feature_type": "mfcc", "num_ceps": 24}, "23 mel bands"),
        ({"min_seconds": 2.0, "max_seconds": 1.0}, "below max_seconds"),
        ({"window_type": "kaiser"}, "povey"),
        ({"num_mel_bins": 300}, "contain no frequency"),
        ({"num_mel_bins": 80, "frame_length": 0.01}, "contain no frequency"),
        ({"num_mel_bin": 3}, "did you mean num_mel_bins"),
        ({"feature_type": "samples", "frame_shift": 0.01}, "samples needs frame_shift 0.016875"),
        ({"feature_type": "samples", "preemph_coeff": 0.9}, "preemph_coeff has no effect with feature_type samples"),
        ({"feature_type": "samples", "num_mel_bins": 40}, "num_mel_bins has no effect"),
        ({"feature_type": "whisper", "window_type": "hanning"}, "window_type has no effect with feature_type whisper"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        KaldiSettings(**options)


def test_samples_are_those_of_the_recording_in_frames():
    """However it is cut, with the last incomplete frame."""
    features = KaldiFeatures(KaldiSettings(feature_type="samples"))
    sound = np.random.default_rng(0).standard_normal(270 * 300 + 200).astype(np.float32)
    frames = features(sound)
    assert frames.shape == (301, 270)
    np.testing.assert_array_equal(frames.ravel()[: len(sound)], sound)
    np.testing.assert_array_equal(np.concatenate(list(features.blocks(np.array_split(sound, 7)))), frames)


def test_bands_are_called_num_mel_bins_or_num_filters():
    assert KaldiSettings().mel_bands == 80
    assert KaldiSettings(num_filters=40).width == 40
    assert KaldiSettings(num_mel_bins=40, num_filters=23).width == 40
    assert KaldiSettings(feature_type="mfcc").mel_bands == 23
    assert KaldiSettings(feature_type="mfcc", num_mel_bins=40).mel_bands == 40
    both = KaldiSettings(feature_type="mfcc", num_mel_bins=80, num_filters=23)
    assert (both.mel_bands, both.width) == (23, 13)
    assert KaldiSettings(feature_type="spectrogram").width == 257
    assert KaldiSettings(use_energy=True).width == 81


@pytest.mark.slow
def test_hours_are_computed_in_little_memory():
    """Two hours in blocks: 460 MB as floats, 230 MB of features."""
    script = textwrap.dedent("""
        import resource
        import numpy as np
        from phonate.audio.kaldi import KaldiFeatures
        from phonate.audio.settings import KaldiSettings
        features = KaldiFeatures(KaldiSettings())
        block = np.random.default_rng(0).standard_normal(480000).astype(np.float32)
        list(features.blocks([block]))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        frames = sum(len(values) for values in features.blocks(block for _ in range(240)))
        assert frames == 720000, frames
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 100
