"""Samples that a run leaves out because they can't be loaded: RUN/quarantine.jsonl."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from phonate.config.errors import DataError, TrainingError
from phonate.data.loading import LeftOut

logger = logging.getLogger(__name__)

FILE = "quarantine.jsonl"
"""One JSON object a line: id, reason, and the step at which the sample was first left out."""


class Quarantine:
    """The samples that a run leaves out.

    Args:
        path: The file, RUN/quarantine.jsonl. Each rank adds what it meets itself.
        most: How many there may be.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._samples = read(path)

    @property
    def samples(self) -> dict[str, str]:
        """Why each is left out, by id."""
        return dict(self._samples)

    def add(self, left_out: Iterable[LeftOut], step: int) -> list[LeftOut]:
        """Note samples that were left out of step `step`; returns those that are new. Raises DataError where they are
        too many."""
        new = [one for one in left_out if one.id not in self._samples]
        for one in new:
            if len(self._samples) >= self._most:
                raise DataError(
                    f"{_line(one)}; {len(self._samples)} samples are left out already, no more than "
                    f"training.quarantine allows; they are in {self._path}"
                )
            self._samples[one.id] = one.reason
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"id": one.id, "reason": one.reason, "step": step}) + "\n")
            except OSError as error:
                raise TrainingError(f"{self._path}: can't write: {error.strerror}; fix this, then resume") from error
            logger.warning("%s; left out, as %d of at most %d", _line(one), len(self._samples), self._most)
        return new


def read(path: Path) -> dict[str, str]:
    """The samples in RUN/quarantine.jsonl, and why; none where there is no file."""
    samples: dict[str, str] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            samples[str(line["id"])] = str(line["reason"])
        except (ValueError, LookupError, TypeError):  # the process was killed while it wrote, or somebody changed it
            logger.warning("%s: a line without id and reason is passed over: %.80s", path, text)
    return samples


def _line(one: LeftOut) -> str:
    return one.reason if one.id in one.reason else f"sample {one.id}: {one.reason}"
