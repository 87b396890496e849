"""Samples that a run leaves out because they can't be loaded: RUN/quarantine.jsonl."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from phonate.compute.distributed import Ranks
from phonate.config.errors import DataError, TrainingError
from phonate.config.words import that_many
from phonate.data.loading import LeftOut

logger = logging.getLogger(__name__)

FILE = "quarantine.jsonl"
"""One JSON object a line: id, reason, and the step at which the sample was first left out."""


class Quarantine:
    """The samples that a run leaves out, the same on all ranks.

    Args:
        path: The file, RUN/quarantine.jsonl. The first rank reads and writes it.
        most: How many there may be.
        ranks: The processes of the run.
    """

    def __init__(self, path: Path, most: int, ranks: Ranks) -> None:
        self._path = path
        self._most = most
        self._ranks = ranks
        self._samples: dict[str, str] = ranks.gather(read(path) if ranks.is_main else {})[0]

    @property
    def samples(self) -> dict[str, str]:
        """Why each is left out, by id."""
        return dict(self._samples)

    def new(self, left_out: Iterable[LeftOut]) -> list[LeftOut]:
        """Those that were not left out before."""
        return [one for one in left_out if one.id not in self._samples]

    def add(self, new: Sequence[LeftOut], step: int) -> list[LeftOut]:
        """Note `new` samples that this rank left out of step `step`, and those of the other ranks; returns them all.
        All ranks call it together. Raises DataError, on all of them, where they are too many."""
        reasons = {
            name: why for rank in self._ranks.gather([(one.id, one.reason) for one in new]) for name, why in rank
        }
        added = [LeftOut(*one) for one in reasons.items()]
        for one in added:
            if len(self._samples) >= self._most:
                raise DataError(
                    f"{_line(one)}; {that_many(len(self._samples), 'sample', 'are left out already')}, no more than "
                    f"training.quarantine allows; they are in {self._path}"
                )
            self._samples[one.id] = one.reason
            if self._ranks.is_main:
                self._write(one, step)
        return added

    def _write(self, one: LeftOut, step: int) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"id": one.id, "reason": one.reason, "step": step}) + "\n")
        except OSError as error:
            raise TrainingError(f"{self._path}: can't write: {error.strerror}; fix this, then resume") from error
        logger.warning("%s; left out, as %d of at most %d", _line(one), len(self._samples), self._most)


def read(path: Path) -> dict[str, str]:
    """The samples in RUN/quarantine.jsonl, and why; none where there is no file."""
    samples: dict[str, str] = {}
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            samples[str(line["id"])] = str(line["reason"])
        except (ValueError, LookupError, TypeError):  # the process was killed while it wrote, or somebody changed it
            logger.warning("%s: a line without id and reason is passed over: %.80s", path, text)
    return samples


def _line(one: LeftOut) -> str:
    return one.reason if one.id in one.reason else f"sample {one.id}: {one.reason}"
