"""Features that are derived from a prepared corpus once: pitch, Whisper's encodings, predicted mels.

Training a vocoder on them as well matches its input at inference: predicted mels are smoother than recorded ones.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.settings import AudioConfig, F0Method
from phonate.compute.system import SpaceWatch
from phonate.config.errors import DataError
from phonate.data.cache import DIGESTS, FeatureCache, damaged_cache, new_folder, verify
from phonate.data.cluster import executor_of
from phonate.data.corpora.rows import unwritable_cache
from phonate.data.parallel import Executor, Here, Processes, report_progress
from phonate.data.prepared import PreparedCorpus
from phonate.data.streaming import open_waveforms

logger = logging.getLogger("phonate")

# -------------------- F0 of a prepared corpus's recordings, computed in worker processes without torch


def pitch_of(folder: Path, audio: AudioConfig, method: F0Method, position: int) -> FloatArray:
    """F0 (T, 1) in Hz of recording number `position` of the corpus in `folder`, at the frames of its mel."""
    return f0(_waveforms(folder, audio).waveform(position), audio.sample_rate, audio.hop_length, method)[:, None]


@lru_cache(maxsize=1)
def _waveforms(folder: Path, audio: AudioConfig) -> FeatureCache:
    return open_waveforms(folder, audio)


# -------------------------------------------- Features that are too expensive to compute in each epoch

Values = npt.NDArray[Any]

_SAID_EVERY = 500
_PITCH_FOLDERS: dict[F0Method, str] = {"swift": "f0-swift-v1", "yin": "f0-v2"}
"""Raise the number when F0 is computed otherwise."""


class DerivedFeatures:
    """One array (frames, width) for each recording, in one file. `open_derived` makes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts: list[int] = np.load(folder / "starts.npy").tolist()
        self._values = np.load(folder / "values.npy", mmap_mode="r")

        if self._starts[-1] != len(self._values):
            raise ValueError(f"{len(self._values)} of {self._starts[-1]} frames are there")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getstate__(self) -> dict[str, Path]:
        """Workers map the file themselves; a pickled memmap would copy it."""
        return {"folder": self._folder}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """The array (frames, width) of recording number `index`: integers as they are stored, else float32."""
        values = self._values[self._starts[index] : self._starts[index + 1]]
        if values.dtype == np.float16:
            import torch  # which takes a twentieth of numpy's time for these

            widened: FloatArray = torch.from_numpy(np.array(values)).float().numpy()
            return widened
        return np.asarray(values, dtype=values.dtype if values.dtype.kind in "iu" else np.float32)

    @property
    def width(self) -> int:
        """Values of a frame."""
        return int(self._values.shape[1])


def open_derived(
    folder: Path,
    count: int,
    compute: Callable[[int], Any],
    dtype: npt.DTypeLike = np.float32,
    executor: Executor | None = None,
    what: str = "computing features",
    then: Callable[[int, Any], Values] | None = None,
) -> DerivedFeatures:
    """`compute(i)`, (frames, width), for i from 0 to count - 1, read from `folder` if they were computed before.

    The folder's name must identify everything that the values depend on. It is created only when complete.
    `executor`: where to compute, by default here; `what` describes the work in logs and progress reports. `then(i,
    result)` makes the array, here and in order, of another result than one.
    Raises DataError if a file was damaged since.
    """
    if not folder.is_dir():
        try:
            with new_folder(folder) as beside:
                results = (executor or Here()).map(compute, range(count), file=lambda _: folder.parent)
                _write(beside, what, count, results if then is None else map(then, range(count), results), dtype)
        except OSError as error:
            raise unwritable_cache(folder, error) from error
    if (folder / DIGESTS).is_file():  # earlier versions wrote none
        verify(folder)
    try:
        derived = DerivedFeatures(folder)
        if len(derived) != count:
            raise ValueError(f"features of {len(derived)} recordings, the corpus has {count}")
    except (OSError, ValueError, EOFError) as error:
        raise damaged_cache(folder, error) from error
    return derived


def open_pitch(prepared: PreparedCorpus, audio: AudioConfig, method: F0Method) -> DerivedFeatures:
    """F0 (T, 1) in Hz of each recording of a prepared corpus at the frames of its mel, the same for all tasks."""
    return open_derived(
        prepared.folder / _PITCH_FOLDERS[method],
        len(prepared.index),
        partial(pitch_of, prepared.folder, audio, method),
        executor=executor_of(prepared.executor, Processes()),
        what="computing pitch",
    )


def _write(folder: Path, what: str, count: int, arrays: Iterable[Values], dtype: npt.DTypeLike) -> None:
    """Each array goes to the disk as it comes: together they may be larger than the memory."""
    starts, width = [0], None
    space = SpaceWatch(folder, [1.0] * count)
    with (folder / "values.npy").open("wb") as file:
        for index, array in enumerate(arrays):
            values = np.ascontiguousarray(array, dtype=dtype)
            if width is None:
                width = values.shape[1]
                _write_header(file, dtype, 0, width)
            if values.shape[1:] != (width,):
                raise ValueError(f"{what}: recording {index} has features {values.shape}, others are {width} wide")
            file.write(values.tobytes())
            space.add(index, values.nbytes)
            starts.append(starts[-1] + len(values))
            report_progress(what, index + 1, count)
            if (index + 1) % _SAID_EVERY == 0:
                logger.info("%s: %d of %d recordings", what, index + 1, count)
        file.seek(0)
        _write_header(file, dtype, starts[-1], width or 0)
    np.save(folder / "starts.npy", np.array(starts, dtype=np.int64))


def _write_header(file: BinaryIO, dtype: npt.DTypeLike, frames: int, width: int) -> None:
    """The header of a .npy file. NumPy leaves room in it for any number of `frames`, so it can be written again."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": (frames, width)}
    np.lib.format.write_array_header_1_0(file, header)


# ------------------------------------------ Mels that a model predicted for the recordings of a corpus

_FACTS = "predicted.json"


def write_predicted(folder: Path, features: str, ids: Sequence[str], predict: Callable[[int], FloatArray]) -> None:
    """Write `predict(i)`, (frames, bands), for each of `ids`; `features` is the fingerprint of the mels.

    Raises DataError when `folder` is there already.
    """
    if folder.exists():
        raise DataError(f"{folder}: exists already; choose another folder, or remove it")
    open_derived(folder, len(ids), predict, np.float16, what="predicting mels")
    (folder / _FACTS).write_text(json.dumps({"features": features, "ids": list(ids)}), encoding="utf-8")


class TeacherForcedMels:
    """Reads what `write_predicted` wrote, by the recording's id."""

    def __init__(self, folder: str | Path, features: str) -> None:
        """Raises DataError for a folder without mels, or with mels of other features than `features`."""
        path = Path(folder).expanduser()
        try:
            facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
            self._mels = DerivedFeatures(path)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: no predicted mels here ({error}); phonate predict writes them") from error
        if facts["features"] != features:
            raise DataError(
                f"{path}: mels of features {facts['features']}, data.audio makes {features}; use the same one"
            )
        self._places = {name: place for place, name in enumerate(facts["ids"])}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def example(self) -> str | None:
        """A recording that there is a mel of."""
        return next(iter(self._places), None)

    def get(self, name: str, frames: int) -> FloatArray | None:
        """The mel (frames, bands) predicted for the recording `name`; None where there is none.

        Raises DataError when it is of another length than the recording's.
        """
        if name not in self._places:
            return None
        mel = self._mels[self._places[name]]
        if len(mel) != frames:
            raise DataError(
                f"the mel predicted for {name} has {len(mel)} frames, its recording {frames}: another corpus?"
            )
        return mel
