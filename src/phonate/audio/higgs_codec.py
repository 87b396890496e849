"""The codec of Higgs Audio v2: speech as codes, at once or while the codes are still being made.

The model is transformers' `HiggsAudioV2TokenizerModel`, a DAC codec (Kumar et al. 2023,
https://arxiv.org/abs/2306.06546) whose codes also hold the features of HuBERT. Shapes: T frames, K codebooks, N = T *
hop samples.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phonate.audio.augmentation import sinc_resample
from phonate.audio.decoding import FloatArray, resample
from phonate.compute.remote import missing_model
from phonate.config.errors import (
    InputError,
    load_copy,
    optional_package,
    quiet_transformers,
    tolerate_broken_torchaudio,
)

# ------------------------------------------------- Codes -> sound while the codes are still being made


class CodecStream:
    """Decodes frames as they come. The pieces, joined, are what decoding all frames at once gives.

    The decoder is a stack of convolutions, so that the sound of a frame depends on a few frames before and after it: a
    piece is decoded with these, and is given out when the frames after it are there.
    """

    def __init__(self, decode: Callable[[NDArray[Any]], FloatArray], hop: int, before: int, after: int) -> None:
        """`decode`: (T, K) -> (T * hop,). `before`, `after`: frames that the sound of a frame depends on."""
        self._decode = decode
        self._hop, self._before, self._after = hop, before, after
        self._frames: NDArray[Any] | None = None  # those to come, and `_context` ones before them
        self._context = 0

    def push(self, codes: NDArray[Any]) -> FloatArray:
        """Add frames (n, K), n may be 0. Returns the samples (m,) that no later frame can change."""
        self._frames = codes if self._frames is None else np.concatenate([self._frames, codes])
        return self._give(len(self._frames) - self._context - self._after)

    def finish(self) -> FloatArray:
        """The samples (m,) of the last frames. A new stream may then begin."""
        rest = 0 if self._frames is None else len(self._frames) - self._context
        samples = self._give(rest)
        self._frames, self._context = None, 0
        return samples

    def _give(self, count: int) -> FloatArray:
        if count <= 0 or self._frames is None:
            return np.zeros(0, np.float32)
        start, stop = self._context, self._context + count
        samples = self._decode(self._frames)[start * self._hop : stop * self._hop]
        dropped = max(0, stop - self._before)
        self._frames, self._context = self._frames[dropped:], stop - dropped
        return samples


def decoder_context(decoder: nn.Module) -> tuple[int, int]:
    """How many frames before and after a frame its samples depend on, for a decoder whose convolutions follow each
    other in the order they are registered in (the shortcuts around them see less)."""
    layers = list(_convolutions(decoder))
    hop = 1
    for layer in layers:
        hop *= layer.stride[0] if isinstance(layer, nn.ConvTranspose1d) else 1
    first, last = 0, hop - 1  # the samples of frame 0, followed back to the frames they are computed from
    for layer in reversed(layers):
        padding, stride = int(layer.padding[0]), layer.stride[0]
        reach = (layer.kernel_size[0] - 1) * layer.dilation[0]
        if isinstance(layer, nn.ConvTranspose1d):
            first, last = -((reach - first - padding) // stride), (last + padding) // stride
        else:
            first, last = first - padding, last - padding + reach
    return -first, last


def _convolutions(module: nn.Module) -> Iterator[nn.Conv1d | nn.ConvTranspose1d]:
    return (layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d))


# ------------------------------------------------------------------------- The codec of Higgs Audio v2

CODEC = "bosonai/higgs-audio-v2-tokenizer"
"""The released codec, in the format of transformers."""
Codes = NDArray[np.int16]
"""(T, K), each from 0 up to the size of a codebook."""
_MODULE = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
_COPY = "phonate.audio._higgs_audio_v2_tokenizer"
_LOCK = threading.Lock()


class HiggsCodec:
    """A codec that was loaded. Its methods may be called from several threads."""

    def __init__(self, model: Any, source: str = "codec") -> None:
        """`model`: transformers' HiggsAudioV2TokenizerModel. `source`: what error messages call it."""
        self.model = model.eval().requires_grad_(False)
        self.source = source
        config = self.model.config
        self.sample_rate = int(config.sample_rate)
        """Hz."""
        self.hop = int(config.hop_length)
        """Samples of a frame."""
        self.codebooks = int(config.num_quantizers)
        """K: codes of a frame."""
        self.codebook_size = int(config.codebook_size)
        """Codes that a codebook holds."""

    @classmethod
    def load(cls, source: str | Path, *, device: torch.device | None = None) -> HiggsCodec:
        """The codec in a folder or on the hub, in fp32.

        Raises:
            InputError: There is no such codec, or its files are damaged or lack weights.
            MissingPackageError: transformers is not installed.
        """
        optional_package("transformers", "the codec of Higgs Audio", "'phonate[cloning]'")
        if why := missing_model(str(source)):
            raise InputError(f"{source}: the codec can't be loaded ({why})")
        with quiet_transformers():
            try:
                model, report = codec_class().from_pretrained(
                    str(source), use_safetensors=True, output_loading_info=True, dtype=torch.float32
                )
            except Exception as error:  # damaged files: each reader raises its own errors
                why = " ".join(str(error).split())
                raise InputError(
                    f"{source}: the codec can't be loaded ({why}); give a folder or a name on the hub with "
                    f"transformers' HiggsAudioV2TokenizerModel in safetensors, such as {CODEC}"
                ) from error
        if missing := sorted(report["missing_keys"]):
            raise InputError(f"{source}: no codec of Higgs Audio: {len(missing)} weights are missing ({missing[0]})")
        return cls(model.to(device or torch.device("cpu")), str(source))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return cast(torch.device, self.model.fc2.weight.device)

    def to(self, device: str | torch.device) -> None:
        """Move the weights to `device`."""
        self.model.to(device)

    @property
    def frame_rate(self) -> float:
        """Frames per second."""
        return self.sample_rate / self.hop

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights and of the configuration that codes depend on."""
        digest = hashlib.sha256()
        config = self.model.config
        facts = [self.sample_rate, self.hop, self.codebooks, self.codebook_size, config.semantic_sample_rate]
        digest.update(json.dumps([*facts, config.semantic_downsample_factor]).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            values = tensor.detach().contiguous().cpu()
            digest.update(f"{name}{values.dtype}{tuple(values.shape)}".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def require(self, codebooks: int, codebook_size: int) -> None:
        """Raise InputError unless the codec has as many codebooks, and codes in each, as a network expects."""
        if (self.codebooks, self.codebook_size) != (codebooks, codebook_size):
            raise InputError(
                f"{self.source}: the codec has {self.codebooks} codebooks of {self.codebook_size} codes, the model "
                f"needs {codebooks} of {codebook_size}; give the model's own, such as {CODEC}"
            )

    @torch.no_grad()
    def encode(self, waveform: FloatArray, sample_rate: int) -> Codes:
        """Samples (N,) -> codes (T, K). A recording is encoded alone and at its own length: in a batch with padding,
        HuBERT's group norm, which is over time, would change the codes.

        Raises InputError for samples that are not one row of finite floats, or too few.
        """
        samples = np.asarray(waveform, dtype=np.float32)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            raise InputError(f"the codec takes mono samples (N,) that are finite, not an array {samples.shape}")
        if sample_rate != self.sample_rate:
            samples = resample(samples, sample_rate, self.sample_rate)
        if len(samples) < self.hop:
            raise InputError(f"{len(waveform)} samples at {sample_rate} Hz are less than one frame of the codec")
        values = torch.from_numpy(np.ascontiguousarray(samples))[None, None].to(self.device)
        codes = self.model.encode(values, return_dict=False)
        return cast(Codes, codes[0].T.to("cpu", torch.int16).numpy())

    @torch.no_grad()
    def decode(self, codes: NDArray[Any]) -> FloatArray:
        """Codes (T, K) -> samples (N,). Raises InputError for codes of another shape or out of range."""
        indices = torch.from_numpy(self._checked(codes)).to(self.device)
        values = self.model.decode(indices.T[None], return_dict=False)
        return cast(FloatArray, values[0, 0].float().cpu().numpy())

    def stream(self) -> CodecStream:
        """A decoder for codes that come piece by piece; its joined pieces equal `decode` up to rounding."""
        before, after = decoder_context(self.model.acoustic_decoder)
        return CodecStream(self.decode, self.hop, before, after)

    def soft_decode(self, probabilities: Tensor) -> Tensor:
        """Probabilities of codes (B, T, K, codebook size) -> samples (B, N), differentiable. A code's vector is the
        mean of the codebook, weighted by probability; probabilities of 0 and 1 give what `decode` gives."""
        model = self.model
        embedded_BTC = sum(
            quantizer.project_out(probabilities[:, :, index] @ quantizer.codebook.embed)
            for index, quantizer in enumerate(model.quantizer.quantizers)
        )
        values: Tensor = model.acoustic_decoder(model.fc2(embedded_BTC).transpose(1, 2))
        return values[:, 0]

    def _checked(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        indices = np.asarray(codes)
        if indices.ndim != 2 or indices.shape[1] != self.codebooks or not len(indices):
            raise InputError(f"codes must be (T, {self.codebooks}) with at least one frame, not {indices.shape}")
        if not np.issubdtype(indices.dtype, np.integer) or indices.min() < 0 or indices.max() >= self.codebook_size:
            raise InputError(f"codes must be integers from 0 to {self.codebook_size - 1}")
        return indices.astype(np.int64)


@lru_cache(maxsize=1)
def _loaded_class() -> Any:
    # transformers imports torchaudio at the top of this module, for `functional.resample` alone, and offers a
    # placeholder for the class where torchaudio is absent. Where it is present, it may not match torch: importing it
    # then raises OSError. So the module's code is executed here once more, as a module of ours which gets our
    # resampler (the same filter) by the name of torchaudio. Nothing else sees this: torchaudio, where it is installed,
    # and transformers' own copy of the class are as they were.
    tolerate_broken_torchaudio()
    resampler = SimpleNamespace(functional=SimpleNamespace(resample=sinc_resample))
    return load_copy(_MODULE, _COPY, {"torchaudio": resampler}).HiggsAudioV2TokenizerModel


def codec_class() -> Any:
    """transformers' HiggsAudioV2TokenizerModel, whether torchaudio is installed or not."""
    with _LOCK:  # lru_cache alone may run it twice
        return _loaded_class()
