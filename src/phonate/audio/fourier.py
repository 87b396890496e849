"""The Fourier transform of frames of real sound, by scipy's FFT library, which transforms several at once.

`import scipy.fft` takes a tenth of a second, as long as to prepare two minutes of sound: it imports special functions,
and numpy's Fortran compiler. So what it transforms with is loaded by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MODULES = {"pyduccfft": "fft/_duccfft", "pypocketfft": "fft/_pocketfft"}
"""The compiled module, since scipy 1.18 and before -> its folder."""
_ONE = Lock()
_SMALLEST_BUFFER = 16


@contextmanager
def small_buffers() -> Iterator[None]:
    """Within, numpy's buffers are smaller than a frame. As long as they hold several, it copies frames that overlap
    there before it multiplies them by a window, which takes twice as long as the product."""
    with np.errstate():  # restores the size, too
        np.setbufsize(_SMALLEST_BUFFER)
        yield


def rfft(frames_TN: NDArray[np.float32]) -> NDArray[np.complex64]:
    """Frames (T, N) -> spectra (T, N // 2 + 1), as `scipy.fft.rfft` gives them, to the bit."""
    with _ONE:  # loaded by two threads at once, it has nothing in the second
        transform = _transform()
    return transform(frames_TN)


@cache
def _transform() -> Callable[[NDArray[np.float32]], NDArray[np.complex64]]:
    module = _loaded()
    if module is None:  # a scipy that is built otherwise
        import scipy.fft

        return scipy.fft.rfft  # type: ignore[no-any-return]
    forward: Callable[..., NDArray[np.complex64]] = module.r2c
    return lambda frames_TN: forward(frames_TN, (-1,), True, 0, None, 1)


def _loaded() -> Any:
    """The module, or None where scipy has it not."""
    scipy = find_spec("scipy")
    for name, location in _MODULES.items():
        folders = [f"{folder}/{location}" for folder in (scipy and scipy.submodule_search_locations) or ()]
        spec = PathFinder.find_spec(name, folders)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None
