"""What training on a processor computes in C: in bf16 what stands beside matrix products, in one pass where torch takes
up to twelve; in fp32 causal attention, whose weights never leave the cache.

The machine's own compiler translates `kernels.c` for its own processor, in about a second; the user's cache keeps the
library. Without a compiler torch computes the same: results then differ by rounding, and dropout leaves out others.

Shapes: R and N rows, D columns, B items, T frames, K taps; H heads of size E, and G groups of them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phonate.compute.system import cache_folder, private_folder, write_whole
from phonate.nn.sequences import on_processor

logger = logging.getLogger("phonate")

_SOURCE = Path(__file__).with_name("kernels.c")
_OPTIONS = (
    *("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native"),
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared"),
)
_SECONDS = 60.0
_CACHE = "kernels"
"""The folder of compiled libraries within the user's cache."""
_NO_CACHE = (OSError, RuntimeError)
"""Of a folder that is full or open to others, a user without a home."""
_PART = 256
"""Rows of which gradients are summed up: PART in `kernels.c`."""
_TILE, _LANES = 10, 16
"""Rows that are multiplied at once: TILE in `kernels.c`; and columns."""


class Bands(ctypes.Structure):
    """`shape` in `kernels.c`: a convolution (B, T, padded bands x channels) -> (B, T', K', outputs)."""

    _fields_ = tuple(
        (name, ctypes.c_longlong)
        for name in (
            "frames",
            "columns",
            "channels",
            "taps",
            "window",
            "stride",
            "step",
            "out_frames",
            "bands",
            "outputs",
        )
    )


class _Judged(ctypes.Structure):
    """`judged` in `kernels.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("one", "other", "results", "x")),
        *((name, ctypes.c_longlong) for name in ("one_step", "other_step", "step")),
    )

    @classmethod
    def of(cls, rows: Sequence[tuple[Tensor, int]], x: Tensor) -> _Judged:
        """Of one gradient or two and the results, with their steps. They must outlive it."""
        one, *other, results = ((tensor.data_ptr(), step) for tensor, step in rows)
        (second, second_step), *_ = *other, (None, 0)
        assert x.is_contiguous()
        return cls(one[0], second, results[0], x.data_ptr(), one[1], second_step, results[1])


class Attention(ctypes.Structure):
    """`attention` in `kernels.c`."""

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("heads", "groups", "size", "sequences")),
        *((name, ctypes.c_void_p) for name in ("starts", "query", "key", "value", "cosines", "sines")),
        ("scale", ctypes.c_double),
    )

    @classmethod
    def of(cls, scale: float, *tensors: Tensor) -> Attention:
        """Tensors are the last six fields; they must outlive it."""
        starts, query_NHE, key_NGE = tensors[:3]
        assert all(one.is_contiguous() for one in tensors)
        assert [one.dtype for one in tensors] == [torch.int64, *[torch.float32] * 5]
        assert starts[[0, -1]].tolist() == [0, len(query_NHE)]
        _, heads, size = query_NHE.shape
        counts = (heads, key_NGE.shape[1], size, len(starts) - 1)
        return cls(*counts, *(one.data_ptr() for one in tensors), scale)


class Kernels:
    """The functions of `kernels.c`, for contiguous tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def gelu(self, x_RH: Tensor, seed: int, zeros: int, activated_RH: Tensor) -> None:
        """GELUs; 0 with a probability of `zeros` / 65,536, as `seed` draws them."""
        given, shape = (ctypes.c_uint64(seed), zeros), map(_count, x_RH.shape)
        self._library.gelu(*shape, _at(x_RH), *given, _at(activated_RH), _threads())

    def gelu_backward(self, x_RH: Tensor, seed: int, zeros: int, activated_RH: Tensor, grad_RH: Tensor) -> Tensor:
        """The same again, and multiplies a gradient by their derivatives; returns the sums of that over rows (H,)."""
        given, shape = (ctypes.c_uint64(seed), zeros), map(_count, x_RH.shape)
        parts_PH = torch.empty(-(-len(x_RH) // _PART), x_RH.shape[1])
        made = _at(activated_RH), _at(grad_RH), _at(parts_PH)
        self._library.gelu_backward(*shape, _at(x_RH), *given, *made, _threads())
        return parts_PH.sum(0)

    def tanh(self, x: Tensor) -> Tensor:
        """Hyperbolic tangents."""
        out = torch.empty_like(x)
        self._library.tanhs(_count(x.numel()), _at(x), _at(out), _threads())
        return out

    def added(self, before_RD: Tensor, change_RD: Tensor, out_RD: Tensor, real_R: Tensor | None = None) -> None:
        """The sum of fp32 and bf16, in fp32; of rows that are not `real`, the former alone."""
        shape, real = map(_count, before_RD.shape), None if real_R is None else _at(real_R)
        self._library.added(*shape, _at(before_RD), _at(change_RD), real, _at(out_RD), _threads())

    def narrowed(self, gradient_RD: Tensor) -> tuple[Tensor, Tensor]:
        """An fp32 gradient in bf16, and its sums over rows (D,)."""
        narrow_RD, sums_D = torch.empty_like(gradient_RD, dtype=torch.bfloat16), torch.empty(gradient_RD.shape[1])
        shape = map(_count, gradient_RD.shape)
        self._library.narrowed(*shape, _at(gradient_RD), _at(narrow_RD), _at(sums_D), _threads())
        return narrow_RD, sums_D

    def depthwise_backward(self, grad_BTD: Tensor, x_BTD: Tensor, past: int, later: int) -> tuple[Tensor, Tensor]:
        """The gradients of taps (K, D) and biases (D,) of `convolution.depthwise`, in bf16."""
        items, frames, columns = grad_BTD.shape
        taps = past + 1 + later
        parts_BKD = torch.empty(items, taps + 1, columns)
        sizes = map(_count, (items, frames, columns, taps, past))
        self._library.depthwise_backward(*sizes, _at(grad_BTD), _at(x_BTD), _at(parts_BKD), _threads())
        sums_KD = parts_BKD.sum(0).to(grad_BTD.dtype)
        return sums_KD[:taps], sums_KD[taps]

    def normed(self, x_RD: Tensor, weight_D: Tensor, bias_D: Tensor, least: float) -> tuple[Tensor, Tensor]:
        """Layer norms of rows in fp32 or bf16, in bf16; and their means and factors (2, R)."""
        out_RD, stats_2R = torch.empty_like(x_RD, dtype=torch.bfloat16), torch.empty(2, len(x_RD))
        wide, given = int(x_RD.dtype is torch.float32), (_at(weight_D), _at(bias_D), ctypes.c_double(least))
        shape, made = map(_count, x_RD.shape), (_at(out_RD), *map(_at, stats_2R))
        self._library.normed(*shape, _at(x_RD), wide, *given, *made, _threads())
        return out_RD, stats_2R

    def normed_backward(
        self, grad_RD: Tensor, x_RD: Tensor, weight_D: Tensor, stats_2R: Tensor, other_RD: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of x, plus `other` in its format; and those of weights and biases (D,)."""
        of_x_RD, wide = torch.empty_like(x_RD), int(x_RD.dtype is torch.float32)
        parts_P2D = torch.empty(-(-len(x_RD) // _PART), 2, x_RD.shape[1])
        given = (_at(weight_D), *map(_at, stats_2R), None if other_RD is None else _at(other_RD))
        shape, made = map(_count, x_RD.shape), (_at(of_x_RD), _at(parts_P2D))
        self._library.normed_backward(*shape, _at(grad_RD), _at(x_RD), wide, *given, *made, _threads())
        of_weight_D, of_bias_D = parts_P2D.sum(0)
        return of_x_RD, of_weight_D, of_bias_D

    def heads(
        self, packed_BTD: Tensor, rotation: tuple[Tensor, Tensor] | None, apart_3BHTE: Tensor, back: bool = False
    ) -> None:
        """Packed queries, keys and values (B, T, 3 D) in heads of their own, as attention needs them: rotated, and
        queries scaled; or `back`, their gradients."""
        _, batch, n_heads, frames, size = apart_3BHTE.shape
        sizes, turns = map(_count, (batch, frames, n_heads, size)), (None, None) if rotation is None else rotation
        angles = [None if one is None else _at(one) for one in turns]
        scale, apart = ctypes.c_double(size**-0.5), _at(apart_3BHTE)
        self._library.heads(*sizes, _at(packed_BTD), *angles, scale, apart, int(back), _threads())

    def softmax(self, scores_BHTS: Tensor, allowed: Tensor | None) -> None:
        """In place, of what is `allowed`, to be broadcast to the scores and the same for all heads."""
        sizes, mask, steps = map(_count, scores_BHTS.shape), None, (_count(0), _count(0))
        if allowed is not None:
            allowed = allowed.contiguous()
            item_step, _, frame_step, _ = allowed.expand_as(scores_BHTS).stride()
            mask, steps = _at(allowed), (_count(item_step), _count(frame_step))
        self._library.softmax(*sizes, _at(scores_BHTS), mask, *steps, _threads())

    def paired(self, x_BT2K: Tensor, padded_BTK2: Tensor, before: int) -> None:
        """Two channels of fp32 side by side, with zeros for so many bands before and the rest after them."""
        batch, frames, _, bands = x_BT2K.shape
        sizes, after = map(_count, (batch * frames, bands)), padded_BTK2.shape[2] - before - bands
        self._library.paired(*sizes, _at(x_BT2K), _at(padded_BTK2), _count(before), _count(after), _threads())

    def unpaired(self, padded_BTK2: Tensor) -> Tensor:
        """Back."""
        padded_BTK2, step = _in_rows(padded_BTK2)
        batch, frames, bands, _ = padded_BTK2.shape
        out_BT2K, given = torch.empty(batch, frames, 2, bands), ctypes.c_void_p(padded_BTK2.data_ptr())
        sizes = map(_count, (batch * frames, bands))
        self._library.unpaired(*sizes, given, _count(step), _at(out_BT2K), _threads())
        return out_BT2K

    def leaky(self, x_BTKC: Tensor, slope: float, padded_BTKC: Tensor, before: int) -> None:
        """Leaky ReLUs, with zeros for so many bands before and the rest after them."""
        batch, frames, bands, channels = x_BTKC.shape
        after = padded_BTKC.shape[2] - before - bands
        sizes, ends = (
            map(_count, (batch * frames, bands * channels)),
            map(_count, (before * channels, after * channels)),
        )
        self._library.leaky(*sizes, _at(x_BTKC), ctypes.c_double(slope), _at(padded_BTKC), *ends, _threads())

    def leaky_backward(self, one_BTKC: Tensor, other_BTKC: Tensor | None, results_BTKC: Tensor, slope: float) -> Tensor:
        """The gradient of leaky ReLUs with these results from one or the sum of two."""
        of_x_BTKC = torch.empty(results_BTKC.shape, dtype=results_BTKC.dtype)
        batch, frames, bands, channels = of_x_BTKC.shape
        held = [_in_rows(one) for one in (one_BTKC, other_BTKC, results_BTKC) if one is not None]
        one, *rest, results = [(ctypes.c_void_p(x.data_ptr()), _count(step)) for x, step in held]
        sizes, other = map(_count, (batch * frames, bands * channels)), rest[0] if rest else (None, _count(0))
        self._library.leaky_backward(*sizes, *one, *other, *results, ctypes.c_double(slope), _at(of_x_BTKC), _threads())
        return of_x_BTKC

    @property
    def multiplies(self) -> bool:
        """Whether there is `convolve`: the processor has products of bf16, and the compiler knows them."""
        return hasattr(self._library, "convolve")

    def convolves(self, shape: Bands, bands: int) -> bool:
        """Whether `convolve` and its backward pass take such a convolution of so many bands."""
        least = min(shape.bands, bands // max(shape.step, _LANES // shape.channels), shape.window * shape.channels)
        return shape.channels % 2 == 0 and least >= _TILE and self.multiplies

    def convolve(
        self,
        shape: Bands,
        x_BTKC: Tensor,
        weight_OCP: Tensor,
        bias_O: Tensor,
        slope: float,
        out_BTKC: Tensor,
        before: int,
    ) -> None:
        """Leaky ReLUs of a convolution of padded bands, with zeros for so many bands before and the rest after them."""
        ends = (size * shape.outputs for size in (before, out_BTKC.shape[2] - before - shape.bands))
        given = (_at(x_BTKC), _at(weight_OCP), _at(bias_O), ctypes.c_double(slope), _at(out_BTKC))
        self._library.convolve(_count(len(x_BTKC)), ctypes.byref(shape), *given, *map(_count, ends), _threads())

    def convolve_backward(
        self,
        shape: Bands,
        ours: slice,
        judged: Sequence[tuple[Sequence[Tensor], Tensor, Tensor]],
        slope: float,
        weight_OCP: Tensor,
        needs: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of x, of which `ours` are no padding, and of weights and biases, summed up over all `judged`:
        one gradient of the results or two to be summed up, the results, and x."""
        (_, _, x_BTKC), *_ = judged
        of_x_BTKC = torch.empty_like(x_BTKC) if needs[0] else None
        weights, count = shape.taps * shape.window * shape.channels, len(judged) * len(x_BTKC)
        parts_BWO = torch.empty(count, weights + 1, shape.outputs) if needs[1] else None
        in_rows = [([_in_rows(one) for one in (*both, results)], x) for both, results, x in judged]
        given = (_Judged * len(judged))(*(_Judged.of(*one) for one in in_rows))
        made = [None if one is None else _at(one) for one in (of_x_BTKC, parts_BWO)]
        sizes = _count(len(x_BTKC)), ctypes.byref(shape), _count(ours.start), _count(ours.stop - ours.start)
        given_all = (_count(len(judged)), given, ctypes.c_double(slope), _at(weight_OCP))
        self._library.convolve_backward(*sizes, *given_all, *made, _threads())
        if parts_BWO is None:
            return of_x_BTKC, None, None
        sums_WO = parts_BWO.sum(0)
        of_weight_OCP = sums_WO[:-1].view(-1, shape.channels, shape.outputs).permute(2, 1, 0)
        return of_x_BTKC, of_weight_OCP, sums_WO[-1]

    def attends(self, size: int) -> bool:
        """Whether `attend` and its backward pass take heads of this size."""
        return size % _LANES == 0 and hasattr(self._library, "attend")

    def attend(self, given: Attention, out_NHE: Tensor) -> Tensor:
        """Attention of each row to itself and those before it in its sequence; returns the logarithms of the sums of
        weights (N, H)."""
        logs_NH = torch.empty(out_NHE.shape[:2])
        self._library.attend(ctypes.byref(given), _at(out_NHE), _at(logs_NH), _threads())
        return logs_NH

    def attend_backward(self, given: Attention, out_NHE: Tensor, logs_NH: Tensor, grad_NHE: Tensor) -> list[Tensor]:
        """The gradients of queries, keys and values."""
        shapes = [(len(out_NHE), heads, given.size) for heads in (given.heads, given.groups, given.groups)]
        gradients = [torch.empty(shape) for shape in shapes]
        tensors = map(_at, (out_NHE, logs_NH, grad_NHE, *gradients))
        self._library.attend_backward(ctypes.byref(given), *tensors, _threads())
        return gradients

    def differences(self, one_BTKC: Tensor, other_BTKC: Tensor) -> tuple[Tensor, Tensor]:
        """The signs of differences (B, T, K, C), and the sum of their sizes of each item (B,)."""
        batch, frames, bands, channels = one_BTKC.shape
        signs_BTKC, sums_B = torch.empty(one_BTKC.shape, dtype=torch.int8), torch.empty(batch)
        held = [_in_rows(one) for one in (one_BTKC, other_BTKC)]
        given = [part for x, step in held for part in (ctypes.c_void_p(x.data_ptr()), _count(step))]
        sizes = map(_count, (batch, frames, bands * channels))
        self._library.differences(*sizes, *given, _at(signs_BTKC), _at(sums_B), _threads())
        return signs_BTKC, sums_B

    def signed_sizes(self, signs: Tensor, size: float) -> Tensor:
        """Signs times `size`, in bf16."""
        out = torch.empty(signs.shape, dtype=torch.bfloat16)
        self._library.signed_sizes(_count(signs.numel()), _at(signs), ctypes.c_double(size), _at(out), _threads())
        return out


def of(dtype: torch.dtype) -> Kernels | None:
    """The kernels, where this format has them and there is a compiler."""
    return _kernels() if dtype is torch.bfloat16 else None


def attending(query_NHE: Tensor) -> Kernels | None:
    """The kernels, where they attend with such queries."""
    if query_NHE.dtype is not torch.float32 or not on_processor(query_NHE):
        return None
    fast = _kernels()
    return fast if fast is not None and fast.attends(query_NHE.shape[2]) else None


def outputs(channels: int) -> int:
    """Channels of a convolution's output that `convolve` computes at least for so many."""
    return -(-channels // _LANES) * _LANES


def used() -> bool | None:
    """Whether this process computes with them. None: nothing has asked for them yet."""
    return compiled() if _kernels.cache_info().currsize else None


def compiled() -> bool:
    """Whether there is a compiler that works."""
    return _kernels() is not None


@functools.cache
def _kernels() -> Kernels | None:
    if sys.platform != "linux":
        return None
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        stem = _stem(compiler)
        if (library := _cached(stem)) is not None:
            return Kernels(library)
        # a file system in a network may keep the library, which is in use, for a while
        with tempfile.TemporaryDirectory(prefix="phonate-", ignore_cleanup_errors=True) as folder:
            file = Path(folder, "kernels.so")
            _run([*compiler, *_OPTIONS, str(_SOURCE), "-o", str(file), "-lm"])
            library = ctypes.CDLL(str(file))
            _cache(file.read_bytes(), stem)
        return Kernels(library)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[:1]
        logger.info("%s can't be compiled, so steps take longer (%s)", _SOURCE.name, *told)
        return None


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS).stdout


def _stem(compiler: Sequence[str]) -> str:
    """The first part of the library's name: a digest of the source, and of what the compiler says of itself and of this
    processor with these options."""
    predefined = _run([*compiler, *_OPTIONS, "-x", "c", "-E", "-dM", os.devnull])
    facts = repr((compiler, _OPTIONS, predefined)).encode("utf-8", "surrogateescape") + _SOURCE.read_bytes()
    return hashlib.sha256(facts).hexdigest()


def _cached(stem: str) -> ctypes.CDLL | None:
    """The library from the cache, where it is what its name says. None: it is not there."""
    with suppress(*_NO_CACHE):  # `_cache` says so
        for file in private_folder(cache_folder() / _CACHE).glob(f"{stem}-*.so"):
            if file.name != _name(stem, file.read_bytes()):
                continue
            try:
                return ctypes.CDLL(str(file))
            except OSError as error:  # a file system that executes nothing, or another system's libraries
                logger.info("the cached %s can't be used (%s)", _SOURCE.name, error)
    return None


def _cache(content: bytes, stem: str) -> None:
    """Write the library to the cache, for other processes."""
    try:
        write_whole(private_folder(cache_folder() / _CACHE) / _name(stem, content), content)
    except _NO_CACHE as error:
        logger.info("%s is compiled in each process, as it can't be cached (%s)", _SOURCE.name, error)


def _name(stem: str, content: bytes) -> str:
    return f"{stem}-{hashlib.sha256(content).hexdigest()}.so"


def _at(x: Tensor) -> Any:
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


def _in_rows(x_BTKC: Tensor) -> tuple[Tensor, int]:
    """Bands and channels of each frame in one piece, and the step from one frame to the next."""
    batch, frames, _, channels = x_BTKC.shape
    even = batch == 1 or x_BTKC.stride(0) == frames * x_BTKC.stride(1)
    if x_BTKC.stride(3) != 1 or x_BTKC.stride(2) != channels or not even:
        x_BTKC = x_BTKC.contiguous()
    return x_BTKC, x_BTKC.stride(1)


def _count(size: int) -> Any:
    return ctypes.c_longlong(size)


def _threads() -> int:
    return torch.get_num_threads()
