import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.fft

from phonate.audio import fourier
from phonate.audio.processor import AudioProcessor


@pytest.mark.parametrize("shape", [(1, 2), (3, 400), (5, 1024), (129, 1024), (2, 551)])
def test_the_bits_are_those_of_scipy(shape):
    frames = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    spectra = fourier.rfft(frames)
    assert spectra.dtype == np.complex64
    np.testing.assert_array_equal(spectra, scipy.fft.rfft(frames))
    np.testing.assert_array_equal(fourier.rfft(frames[:, ::2]), scipy.fft.rfft(frames[:, ::2]))


def test_spectra_leave_the_buffers_of_numpy_as_they_were():
    waveform = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    usual = np.getbufsize()
    with fourier.small_buffers():
        assert np.getbufsize() < 400
        few = AudioProcessor().mel(waveform)
    np.testing.assert_array_equal(AudioProcessor().mel(waveform), few)
    with pytest.raises(ValueError, match="broadcast"), fourier.small_buffers():
        waveform * np.ones(3)
    assert np.getbufsize() == usual


def test_threads_that_begin_together_load_it_once(monkeypatch):
    loaded, calls, together = fourier._loaded, [], threading.Barrier(4)

    def slowly():
        calls.append(1)
        time.sleep(0.05)
        return loaded()

    def transform(_):
        together.wait()
        return fourier.rfft(np.zeros((2, 8), np.float32)).shape

    monkeypatch.setattr(fourier, "_loaded", slowly)
    fourier._transform.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(transform, range(4))) == [(2, 5)] * 4
    assert len(calls) == 1


def test_a_scipy_that_is_built_otherwise_transforms_itself(monkeypatch):
    monkeypatch.setattr(fourier, "_MODULES", {"pypocketfft": "fft/elsewhere"})
    fourier._transform.cache_clear()
    try:
        assert fourier._transform() is scipy.fft.rfft
    finally:
        fourier._transform.cache_clear()


def test_mels_wait_for_neither_scipy_nor_torch():
    code = (
        "import sys, numpy as np; from phonate.audio.processor import AudioProcessor\n"
        "assert AudioProcessor().mel(np.ones(999)).shape == (4, 80)\n"
        "assert not {'torch', 'scipy.fft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
