"""The codec of Higgs Audio v2: without torchaudio, exact, in pieces as a whole, differentiable."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from higgs_codec import small_codec_folder
from phonate.audio import higgs_codec
from phonate.audio.augmentation import sinc_resample
from phonate.audio.higgs_codec import CodecStream, HiggsCodec, codec_class, decoder_context
from phonate.config.errors import InputError
from sounds import voiced_tone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_codec_folder(tmp_path_factory.mktemp("codec"))


@pytest.fixture(scope="module")
def codec(folder: Path) -> HiggsCodec:
    return HiggsCodec.load(folder)


def speech(seconds: float, rate: int = 24000, seed: int = 0) -> np.ndarray:
    sound = voiced_tone(seconds + 0.1, 140.0, (600.0, 1500.0, 2500.0), seed=seed)
    return np.asarray(sound[: round(seconds * rate)], dtype=np.float32)


def random_codes(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1024, (frames, 8)).astype(np.int16)


def summed_sinc(x: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """The definition, a sum over all input samples for each output sample."""
    cutoff = 0.99 * min(rate, new_rate)
    times = np.arange(len(x))[None] / rate - np.arange(-(-len(x) * new_rate // rate))[:, None] / new_rate
    phase = times * cutoff
    window = np.where(np.abs(phase) < 6, np.cos(np.pi * phase / 12) ** 2, 0.0)
    return (np.sinc(phase) * window * cutoff / rate) @ x


@pytest.mark.parametrize(("rate", "new_rate"), [(24000, 16000), (16000, 24000), (44100, 16000), (16000, 16000)])
def test_the_resampler_is_torchaudios_windowed_sinc(rate: int, new_rate: int) -> None:
    for length in (1, 2, 7, 400, 961):
        x = np.random.default_rng(length).normal(size=length)
        ours = sinc_resample(torch.from_numpy(x)[None, None], rate, new_rate)[0, 0].numpy()
        wanted = x if rate == new_rate else summed_sinc(x, rate, new_rate)
        assert ours.shape == wanted.shape
        assert np.abs(ours - wanted).max() < 1e-11
    x32 = torch.randn(1, 1, 961, generator=torch.Generator().manual_seed(0))
    exact = sinc_resample(x32.double(), rate, new_rate)
    assert float((sinc_resample(x32, rate, new_rate) - exact).abs().max()) < 1e-5


BROKEN = "raise OSError('libc10_cuda.so: cannot open shared object file')\n"


def test_torchaudio_is_neither_needed_nor_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: HiggsCodec
) -> None:
    broken = BROKEN
    other = "class functional:\n    @staticmethod\n    def resample(*_): raise AssertionError('not ours')\n"
    waveform = speech(0.5)
    wanted = codec.encode(waveform, 24000)
    for text in (broken, other):
        (tmp_path / "torchaudio.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
        if text is other:
            import torchaudio  # the installed one, whatever it is, stays in place

            assert sys.modules["torchaudio"] is torchaudio
        made = higgs_codec._loaded_class.__wrapped__()
        model = made(codec.model.config)
        model.load_state_dict(codec.model.state_dict())
        np.testing.assert_array_equal(HiggsCodec(model).encode(waveform, 24000), wanted)
    assert Path(sys.modules["torchaudio"].__file__ or "").parent == tmp_path
    del sys.modules["torchaudio"]  # monkeypatch would put it back at the end


@pytest.mark.slow
def test_a_torchaudio_that_cant_be_loaded_ends_nothing(tmp_path: Path, folder: Path, codec: HiggsCodec) -> None:
    """transformers by itself could then load no model at all."""
    (tmp_path / "torchaudio.py").write_text(BROKEN, encoding="utf-8")
    first, second = (
        "import transformers.models.llama.modeling_llama",
        "from phonate.audio.higgs_codec import HiggsCodec",
    )
    then = f"print(HiggsCodec.load({str(folder)!r}).fingerprint, 'torchaudio' in sys.modules)"

    def run(*lines: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        command = [sys.executable, "-c", "\n".join(("import sys", *lines))]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    alone = run(first)
    assert "OSError: libc10_cuda.so" in alone.stderr
    ran = run(second, then, first)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [codec.fingerprint, "False"]
    assert "torchaudio is installed, but can't be loaded (libc10_cuda.so" in ran.stderr


def test_threads_share_one_class() -> None:
    higgs_codec._loaded_class.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: codec_class(), range(8)))) == 1


def test_shapes_rates_and_what_the_codec_says_of_itself(codec: HiggsCodec) -> None:
    assert (codec.sample_rate, codec.hop, codec.codebooks, codec.codebook_size) == (24000, 960, 8, 1024)
    assert codec.frame_rate == 25.0
    codes = codec.encode(speech(1.0), 24000)
    assert codes.dtype == np.int16
    assert codes.shape == (25, 8)
    assert all(len(np.unique(codes[:, k])) > 5 for k in range(8))
    assert codec.encode(np.repeat(speech(1.0), 2), 48000).shape == (25, 8)
    decoded = codec.decode(codes)
    assert decoded.dtype == np.float32
    assert decoded.shape == (25 * 960,)
    assert 0.01 < decoded.std() < 1.0


@settings(max_examples=8)
@given(st.integers(960, 6000))
def test_any_length_is_encoded(codec: HiggsCodec, samples: int) -> None:
    codes = codec.encode(speech(0.25)[:samples], 24000)
    assert abs(len(codes) - min(samples, 6000) / 960) < 1.0


def test_recordings_are_encoded_alone(codec: HiggsCodec) -> None:
    """In a padded batch a recording has other codes, since HuBERT's group norm sees the padding."""
    short, long = speech(1.0), speech(2.0, seed=1)
    padded = np.zeros((2, 1, len(long)), np.float32)
    padded[0, 0, : len(short)], padded[1, 0] = short, long
    with torch.no_grad():
        batch = codec.model.encode(torch.from_numpy(padded), return_dict=False)
    alone = codec.encode(short, 24000)
    np.testing.assert_array_equal(codec.encode(short, 24000), alone)
    assert np.mean(batch[0, :, : len(alone)].T.numpy() == alone) < 0.95
    np.testing.assert_array_equal(batch[1].T.numpy(), codec.encode(long, 24000))


def in_pieces(stream: CodecStream, codes: np.ndarray, sizes: list[int]) -> tuple[np.ndarray, list[int]]:
    pieces, at = [], 0
    for size in [*sizes, len(codes)]:
        pieces.append(stream.push(codes[at : at + size]))
        at += size
    pieces.append(stream.finish())
    return np.concatenate(pieces), [len(piece) for piece in pieces]


@settings(max_examples=10)
@given(st.integers(1, 60), st.lists(st.integers(0, 25), max_size=6))
def test_pieces_are_what_the_whole_is(codec: HiggsCodec, frames: int, sizes: list[int]) -> None:
    codes = random_codes(frames, seed=frames)
    joined, lengths = in_pieces(codec.stream(), codes, sizes)
    whole = codec.decode(codes)
    assert sum(lengths) == len(whole)
    assert np.abs(joined - whole).max() < 1e-5


def test_the_context_is_as_long_as_it_must_be(codec: HiggsCodec) -> None:
    """With one frame less on either side the pieces are another sound."""
    before, after = decoder_context(codec.model.acoustic_decoder)
    assert (before, after) == (10, 10)
    codes = random_codes(40)
    changed = codes.copy()
    changed[20] = (changed[20] + 512) % 1024
    touched = np.flatnonzero(np.abs(codec.decode(changed) - codec.decode(codes)) > 0.0) // 960
    assert 20 - after <= touched.min() < 20 < touched.max() <= 20 + before
    whole = codec.decode(codes)
    for fewer in ((5, 10), (10, 5)):
        joined, _ = in_pieces(CodecStream(codec.decode, codec.hop, *fewer), codes, [7] * 6)
        assert np.abs(joined - whole).max() > 1e-4


def test_a_stream_gives_sound_as_early_as_it_can(codec: HiggsCodec) -> None:
    stream = codec.stream()
    codes = random_codes(30)
    assert len(stream.push(codes[:10])) == 0
    assert len(stream.push(codes[10:11])) == 960
    assert len(stream.push(codes[:0])) == 0
    assert len(stream.push(codes[11:])) == 19 * 960
    assert len(stream.finish()) == 10 * 960
    assert len(stream.finish()) == 0


def test_soft_codes(codec: HiggsCodec) -> None:
    codes = random_codes(12)
    hot = torch.nn.functional.one_hot(torch.from_numpy(codes.astype(np.int64)), 1024).float()[None]
    assert float((codec.soft_decode(hot)[0] - torch.from_numpy(codec.decode(codes))).abs().max()) < 1e-6
    logits = torch.randn(2, 5, 8, 1024, generator=torch.Generator().manual_seed(0), requires_grad=True)
    sound = codec.soft_decode(logits.softmax(-1))
    assert sound.shape == (2, 5 * 960)
    sound.square().mean().backward()
    assert logits.grad is not None
    assert bool((logits.grad.abs().amax(dim=(1, 3)) > 0).all())
    assert not any(parameter.requires_grad for parameter in codec.model.parameters())


def test_fingerprints(codec: HiggsCodec, folder: Path, tmp_path: Path) -> None:
    assert HiggsCodec.load(folder).fingerprint == codec.fingerprint
    other = HiggsCodec.load(folder)
    other.model.quantizer.quantizers[7].codebook.embed[5, 3] += 1e-4
    assert other.fingerprint != codec.fingerprint


def test_the_default_configuration_is_not_the_released_codec(codec: HiggsCodec) -> None:
    from transformers import HiggsAudioV2TokenizerConfig

    codec.require(8, 1024)
    model = torch.nn.Module()
    model.config = HiggsAudioV2TokenizerConfig()
    default = HiggsCodec(model, "some/folder")
    assert (default.frame_rate, default.codebooks, default.hop) == (75.0, 5, 320)
    with pytest.raises(InputError, match=r"^some/folder: .*5 codebooks of 1024 .*8 of 1024"):
        default.require(8, 1024)
    with pytest.raises(InputError, match="8 of 1026"):
        codec.require(8, 1026)


def test_mistakes_are_said_in_one_line(codec: HiggsCodec, folder: Path, tmp_path: Path) -> None:
    for source, why in (
        ("bosonai/higgs-audio-v2-tokenizer", "HF_HUB_OFFLINE forbids"),  # the tests have no network
        (str(tmp_path / "nothing"), "nothing"),
        (str(tmp_path), "model.safetensors"),
    ):
        with pytest.raises(InputError, match=why) as raised:
            HiggsCodec.load(source)
        assert "\n" not in str(raised.value)
        assert str(raised.value).startswith(f"{source}: the codec can't be loaded (")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_bytes((folder / "config.json").read_bytes())
    (damaged / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(InputError, match=r"damaged: .*can't be loaded"):
        HiggsCodec.load(damaged)
    for samples in (np.zeros((2, 960), np.float32), np.full(2000, np.nan, np.float32)):
        with pytest.raises(InputError, match=r"\(N,\)"):
            codec.encode(samples, 24000)
    with pytest.raises(InputError, match="500 samples at 24000 Hz"):
        codec.encode(np.zeros(500, np.float32), 24000)
    for codes in (np.zeros((3, 7), np.int16), np.zeros((0, 8), np.int16), np.full((3, 8), 1024), np.zeros((3, 8))):
        with pytest.raises(InputError, match=r"\(T, 8\)|0 to 1023"):
            codec.decode(codes)


def test_real_speech(codec: HiggsCodec, recordings: Path) -> None:
    from phonate.audio.decoding import read_audio

    path = sorted((recordings / "voice_ar_commands" / "wavs").glob("*.flac"))[0]
    waveform, rate = read_audio(path)
    codes = codec.encode(waveform, rate)
    assert len(codes) == pytest.approx(len(waveform) / rate * 25, abs=1.5)
    joined, _ = in_pieces(codec.stream(), codes, [4] * 40)
    assert np.abs(joined - codec.decode(codes)).max() < 1e-5
