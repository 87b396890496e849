"""Mels that a model predicted for the recordings of a corpus (teacher-forced, aligned with the recorded mels).

Training a vocoder on them as well matches its input at inference: predicted mels are smoother than recorded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from phonate.config.errors import DataError
from phonate.data.store.cache import FloatArray
from phonate.data.store.derived import DerivedFeatures, open_derived

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
