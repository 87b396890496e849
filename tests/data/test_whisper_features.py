"""The output of a Whisper encoder as features: on real speech, in windows, blocks, parts and other processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil

import numpy as np
import pytest
import soundfile

from phonate.audio.decoding import read_audio
from phonate.audio.kaldi import KaldiFeatures
from phonate.audio.settings import KaldiSettings
from phonate.audio.whisper import WhisperEncoder, whisper_model
from phonate.config import errors
from phonate.config.errors import InputError, MissingPackageError
from phonate.data import features as kinds
from phonate.data.features import FEATURES, WINDOW
from phonate.data.prepared import prepare
from phonate.data.settings import KaldiData

RATE, HOP = 16000, 320
SECONDS_30 = 30 * RATE

needs_whisper = pytest.mark.usefixtures("whisper")


def features(**audio):
    settings = KaldiSettings(feature_type="whisper", **audio)
    return FEATURES.get("whisper")(KaldiData(audio=settings))


def noise(samples, seed=0):
    rng = np.random.default_rng(seed)
    return (0.1 * rng.standard_normal(samples)).astype(np.float32)


def in_blocks(of, waveform, size):
    return np.concatenate(
        list(of.compute_blocks(lambda: [waveform[at : at + size] for at in range(0, len(waveform), size)]))
    )


@pytest.fixture
def fake_encoder(monkeypatch):
    """Features by which one sees of which samples a window was made, instead of a model's."""
    monkeypatch.setattr(kinds, "optional_package", lambda *_: None)

    def encode(waveform, rate):
        assert rate == RATE
        assert len(waveform) <= SECONDS_30 + HOP // 2, "the encoder would cut this into several windows"
        frames = (len(waveform) + HOP // 2) // HOP
        facts = [waveform[0], waveform[-1], len(waveform), waveform.sum(dtype=np.float64)]
        return np.array([[frame, *facts] for frame in range(frames)], dtype=np.float32).reshape(frames, 5)

    monkeypatch.setattr(kinds, "_encoder", lambda process, name: encode)


def test_frames_are_those_of_the_encoder_unless_another_number_is_asked_for():
    settings = KaldiSettings(feature_type="whisper")
    assert (settings.frame_shift, settings.frames_per_second, settings.hop_length) == (0.02, 50.0, HOP)
    assert KaldiSettings(**settings.model_dump()) == settings
    assert KaldiSettings().frame_shift == 0.01


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frame_shift": 0.01}, "whisper .*frame_shift 0.02"),
        ({"sampling_rate": 8000}, "whisper .*sampling_rate 16000"),
        ({"snip_edges": True}, "whisper .*snip_edges false"),
        ({"feature_type": "fbank", "whisper_with_fbank": True}, "whisper_with_fbank .*feature_type whisper"),
        ({"feature_type": "fbank", "whisper_with_voices": True}, "whisper_with_voices .*feature_type whisper"),
        ({"feature_type": "wisper"}, "whisper"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InputError, match=said) as caught:
        KaldiSettings(**{"feature_type": "whisper", **options})
    assert "\n" not in str(caught.value)


def test_they_are_not_computed_as_other_features_by_mistake():
    with pytest.raises(ValueError, match="whisper"):
        KaldiFeatures(KaldiSettings(feature_type="whisper"))


def test_caches_of_other_features_stay_valid():
    """Their fingerprints are those from before there was Whisper."""
    assert KaldiFeatures(KaldiSettings()).fingerprint == "f4e89fdbd67a9a76"
    assert KaldiFeatures(KaldiSettings(whisper_model="base")).fingerprint == "f4e89fdbd67a9a76"


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    there = importlib.util.find_spec
    absent = {"faster_whisper"}
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None if name in absent else there(name))
    with pytest.raises(
        MissingPackageError, match=r"feature_type whisper needs .* pip install 'phonate\[eval\]'"
    ) as caught:
        features()
    assert "\n" not in str(caught.value)


def test_a_model_that_is_not_there_is_one_line():
    pytest.importorskip("faster_whisper")
    with pytest.raises(InputError, match=r"feature_type whisper: .*'/nowhere'"):
        _ = features(whisper_model="/nowhere").width


EDGES = [159, 160, 480, SECONDS_30 - 160, SECONDS_30, SECONDS_30 + 159, SECONDS_30 + 160, 2 * SECONDS_30 + 159]


@pytest.mark.parametrize("samples", [*EDGES, 75 * RATE + 77])
@pytest.mark.parametrize("options", [{}, {"whisper_with_fbank": True, "num_mel_bins": 40, "dither": 1e-3}])
def test_blocks_and_parts_have_the_frames_of_the_whole(fake_encoder, samples, options):
    found, waveform = features(**options).of_recording("one"), noise(samples)
    whole = found.compute(waveform)
    assert whole.shape == (found.frames(samples), found.width)
    assert len(whole) == (samples + 160) // HOP
    for size in (4801, SECONDS_30, 1 << 20):
        if len(whole):
            np.testing.assert_array_equal(in_blocks(found, waveform, size), whole)
        else:
            assert not list(found.compute_blocks(lambda: [waveform]))
    total = len(whole)
    for first, last in [
        (0, total),
        (0, 1),
        (total // 3, total // 2),
        (WINDOW - 3, WINDOW + 4),
        (max(0, total - 1), total + 9),
    ]:
        part = found.part(lambda start, stop: waveform[start:stop], samples, first, last)
        np.testing.assert_array_equal(part, whole[first:last])


def test_the_last_window_is_as_long_as_the_others(fake_encoder):
    """Half a second alone would be encoded without anything around it."""
    samples = SECONDS_30 + RATE // 2
    whole = features().compute(noise(samples))
    assert set(whole[:, 3]) == {SECONDS_30}
    assert (whole[:WINDOW, 0] == np.arange(WINDOW)).all()
    assert (whole[WINDOW:, 0] == np.arange(WINDOW - 25, WINDOW)).all()


def test_long_recordings_are_encoded_as_they_are_read(fake_encoder):
    read, at = 0, []

    def blocks():
        nonlocal read
        for number in range(60):
            read += 1
            yield noise(5 * RATE, number)

    for block in features().compute_blocks(blocks):
        at.append(read)
        assert len(block) == WINDOW
    assert at == [7 + 6 * window for window in range(9)] + [60], "a window is given as soon as more frames follow"


@needs_whisper
@pytest.mark.parametrize("with_fbank", [False, True])
def test_values_are_those_of_the_encoder(recordings, with_fbank):
    """Real speech of 10 s; fbank beside it at the same frames."""
    waveform, rate = read_audio(recordings / "tts_en_kathleen" / "wavs" / "kathleen_a0003.flac", RATE)
    waveform = np.resize(waveform, 10 * RATE)
    found = features(**({"whisper_with_fbank": True, "num_mel_bins": 40} if with_fbank else {}))
    values = found.compute(waveform)
    assert values.dtype == np.float32
    assert values.shape == (500, found.width) == (500, 424 if with_fbank else 384)
    np.testing.assert_array_equal(values[:, :384], WhisperEncoder("tiny.en", threads=1)(waveform, rate))
    if with_fbank:
        fbank = KaldiFeatures(KaldiSettings(frame_shift=0.02, num_mel_bins=40))(waveform)
        np.testing.assert_array_equal(values[:, 384:], fbank)


@needs_whisper
@pytest.mark.skipif(importlib.util.find_spec("resemblyzer") is None, reason="needs resemblyzer: phonate[eval]")
def test_voices_are_those_around_each_frame(recordings):
    """After the encoder's values: of two speakers in turn, the voice of whoever speaks; none in digital silence."""
    folder = recordings / "spk_en_librispeech" / "test-other"
    turns = [read_audio(sorted(one.iterdir())[0], RATE)[0][: 4 * RATE] for one in sorted(folder.iterdir())[:2]]
    found = features(whisper_with_voices=True)
    values = found.compute(np.concatenate([turns[0], turns[1], turns[0]]))
    assert values.shape == (600, found.width) == (600, 640)
    np.testing.assert_array_equal(values[:, :384], features().compute(np.concatenate([*turns, turns[0]])))
    first, second, again = (values[start : start + 100, 384:].mean(axis=0) for start in (50, 250, 450))
    assert first @ again > 0.1 + first @ second
    np.testing.assert_array_equal(found.compute(np.zeros(RATE, dtype=np.float32))[:, 384:], 0.0)
    assert found.fingerprint != features().fingerprint


@pytest.mark.slow
@needs_whisper
def test_each_window_is_encoded_alone():
    waveform = noise(35 * RATE)
    encode, values = WhisperEncoder("tiny.en", threads=1), features().compute(waveform)
    np.testing.assert_array_equal(values[:WINDOW], encode(waveform[:SECONDS_30], RATE))
    np.testing.assert_array_equal(values[WINDOW:], encode(waveform[-SECONDS_30:], RATE)[-250:])
    np.testing.assert_array_equal(in_blocks(features(), waveform, 100_000), values)


@needs_whisper
def test_the_fingerprint_is_that_of_the_weights(tmp_path):
    """Whatever the model is called; fbank's settings count where fbank is there."""
    usual, both = features(), features(whisper_with_fbank=True)
    assert usual.fingerprint == features(min_seconds=1.0).fingerprint
    assert len({one.fingerprint for one in (usual, both, features(whisper_with_fbank=True, num_mel_bins=40))}) == 3
    model = tmp_path / "model"
    shutil.copytree(whisper_model("tiny.en"), model)
    assert features(whisper_model=str(model)).fingerprint == usual.fingerprint
    weights = bytearray((model / "model.bin").read_bytes())
    weights[-1] ^= 1
    (model / "model.bin").write_bytes(weights)
    assert features(whisper_model=str(model)).fingerprint != usual.fingerprint


def test_waveforms_are_prepared_once_for_whisper_and_fbank(fake_encoder):
    fbank = FEATURES.get("fbank")(KaldiData(audio=KaldiSettings(frame_shift=0.02)))
    assert features().framing == fbank.framing
    assert not features().normalises_level
    assert features().stream() is None


def _in_a_worker(found, waveform, answers):
    answers.put((os.getpid(), found.compute(waveform)))


@pytest.mark.slow
@needs_whisper
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_loads_its_own_model(method):
    """A forked process has no threads of the model that it inherits, and would wait for them for ever."""
    found, waveform = features(), noise(2 * RATE)
    here = found.compute(waveform)
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    worker = context.Process(target=_in_a_worker, args=(found, waveform, answers))
    worker.start()
    try:
        process, there = answers.get(timeout=120)
        worker.join(60)
        assert worker.exitcode == 0
    finally:
        worker.kill()
    assert process != os.getpid()
    np.testing.assert_array_equal(there, here)


@needs_whisper
@pytest.mark.slow
def test_what_is_stored_is_what_is_computed(tmp_path):
    """By two threads, and block by block for a recording of more than two minutes; parts of it too."""
    (tmp_path / "corpus").mkdir()
    for number, seconds in enumerate((3, 125, 4, 5)):
        soundfile.write(tmp_path / "corpus" / f"{number}.wav", noise(seconds * RATE, number), RATE, subtype="PCM_16")
    common = {"path": str(tmp_path / "corpus"), "cache_dir": str(tmp_path / "cache"), "num_jobs": 2}
    audio = KaldiSettings(feature_type="whisper", whisper_with_fbank=True)
    stored, computed = (
        prepare(KaldiData(**common, audio=audio, storage_type=kind)).cache for kind in ("disk", "on_the_fly")
    )
    for position in range(4):
        np.testing.assert_array_equal(stored.features(position), computed.features(position))
    assert len(stored.features(1)) == 125 * 50
    for first, last in [(1490, 1510), (5900, 6250), (6000, 6010)]:
        np.testing.assert_array_equal(computed.features(1, first, last), stored.features(1)[first:last])
