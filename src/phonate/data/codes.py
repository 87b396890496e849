"""Recordings as codes of a neural codec: measured, encoded once, and kept on disk.

A folder belongs to one codec. It holds parts, each written whole and then renamed, so that what was encoded before an
interruption is kept, and several processes may add to it at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.quality import AudioQuality
from phonate.compute.resources import cores
from phonate.compute.system import lock, why_unwritten
from phonate.config.errors import DataError
from phonate.data.cache import damaged_cache, new_folder, verify
from phonate.data.corpora.rows import Row, unwritable_cache
from phonate.data.corpora.validation import (
    CRASHED,
    Inspection,
    Unusable,
    content_digest,
    decoding,
    inspect,
    recording_of,
    require_length,
    require_part,
)
from phonate.data.dialogues import Audio
from phonate.data.parallel import Stage, Threads, report_progress

# ------------ What is known of recordings and their parts: length, quality and a digest of the samples

VERSION = 1
"""Raise it when facts are measured otherwise."""
_SLACK_SECONDS = 0.05  # as read_audio: times in lists are rounded


Measurement = Inspection | Unusable


def measure(
    audios: Sequence[Audio], max_seconds: float, remembered: Path | None = None, threads: int = 0
) -> dict[Audio, Measurement]:
    """Decode every audio that is not remembered, all samples of it.

    Raises DataError if `remembered` can't be written.

    Args:
        audios: Each is measured once.
        max_seconds: Longer ones are not decoded, and unusable.
        remembered: A file of what was measured before, which is updated; None: measure all.
        threads: 0: one for each core.
    """
    distinct = list(dict.fromkeys(audios))
    if remembered is None:
        measurements = _measured_all(distinct, max_seconds, threads, None)
    else:
        try:
            with lock(remembered.with_suffix(".lock")):  # of several processes one measures
                measurements = _remembered(distinct, max_seconds, remembered, threads)
        except OSError as error:
            why = f"can't be written ({why_unwritten(remembered, error)}); name another folder by data.cache_dir"
            raise DataError(f"{remembered}: {why}") from error
    return {audio: _limited(facts, max_seconds) for audio, facts in measurements.items()}


def _remembered(audios: Sequence[Audio], max_seconds: float, file: Path, threads: int) -> dict[Audio, Measurement]:
    """What was measured before, of any length since the limit may have been another, and the rest measured now."""
    known, stamps = _read(file), {audio: _stamp(audio) for audio in audios}
    measurements: dict[Audio, Measurement] = {
        audio: known[stamp] for audio, stamp in stamps.items() if stamp is not None and stamp in known
    }
    if missing := [audio for audio in audios if audio not in measurements]:
        measurements |= _measured_all(missing, max_seconds, threads, file.parent)
        _write(file, [(stamps[audio], facts) for audio, facts in measurements.items()])
    return measurements


def _measured_all(
    audios: Sequence[Audio], max_seconds: float, threads: int, notes: Path | None
) -> dict[Audio, Measurement]:
    measurements: dict[Audio, Measurement] = {}
    executor = Threads(threads or cores(), lambda one: os.path.abspath(one.path), notes)
    measured = executor.map(partial(_measured, max_seconds), audios, _crashed)
    for audio, facts in zip(audios, measured, strict=True):
        measurements[audio] = facts
        report_progress(Stage.CHECKING, len(measurements), len(audios))
    return measurements


def _limited(facts: Measurement, max_seconds: float) -> Measurement:
    try:
        if isinstance(facts, Inspection):
            require_length(facts.seconds, "data", most=max_seconds)
    except Unusable as why:
        return why
    return facts


def _crashed(audio: Audio) -> Measurement:
    return Unusable("unreadable", CRASHED)


def _measured(max_seconds: float, audio: Audio) -> Measurement:
    path = Path(audio.path)
    try:
        with recording_of(path) as recording:
            with decoding():
                info = recording.info()
            end = require_part(audio.start, audio.end, info.duration, _SLACK_SECONDS)
            require_length(end - audio.start, "data", most=max_seconds)
            row = Row(audio.path, path, (), audio.path, start=audio.start, end=audio.end)
            return inspect(row, recording, info, content_digest())[0]
    except Unusable as why:
        return why


def _stamp(audio: Audio) -> str | None:
    """What identifies an audio as long as its file is not changed; None: there is no file."""
    try:
        status = os.stat(audio.path)
    except (OSError, ValueError):  # ValueError: a name with a null byte
        return None
    path = os.path.abspath(audio.path)
    return json.dumps([path, audio.start, audio.end, status.st_size, status.st_mtime_ns])


def _read(file: Path) -> dict[str, Inspection]:
    """What was remembered. Lines that can't be read, of other versions for instance, are measured again."""
    inspections = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):
                row: dict[str, Any] = json.loads(line)
                if row["version"] == VERSION:
                    inspections[str(row["stamp"])] = Inspection(
                        digest=str(row["digest"]),
                        quality=AudioQuality(**row["quality"]),
                        remarks=tuple(row.get("remarks", ())),
                    )
    return inspections


def _write(file: Path, measurements: Sequence[tuple[str | None, Measurement]]) -> None:
    """Remember what can be used; the file is replaced at once."""
    rows = [
        {"version": VERSION, "stamp": stamp, **asdict(facts)}
        for stamp, facts in measurements
        if stamp is not None and isinstance(facts, Inspection)
    ]
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


# ---------------------------------------------------------- Codes of recordings on disk, memory-mapped

Codes = NDArray[np.int16]
"""(T, K): frames by codebooks."""
Encode = Callable[[str], Codes]
"""Encodes the audio with a digest."""

WHAT = "encoding recordings"
_PART = "part-"
_SHARE = 256
"""Audios that a process takes on at a time; others encode the rest meanwhile."""
_PART_SECONDS = 60.0
"""An interruption loses no more than this."""


class CodeStore:
    """The codes in a folder, by digest. `CodeStore.add` writes what is missing."""

    def __init__(self, folder: Path, codebooks: int, codebook_size: int) -> None:
        """Raises DataError if a file was damaged since it was written."""
        self.folder = folder
        self.codebooks = codebooks
        self.codebook_size = codebook_size
        self._open()

    def _open(self) -> None:
        self._places: dict[str, tuple[Codes, int, int]] = {}
        self._parts: set[Path] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read the parts that other processes have written meanwhile."""
        for part in sorted(set(self.folder.glob(f"{_PART}*")) - self._parts):
            verify(part)
            try:
                self._places.update(self._read(part))
            except (OSError, ValueError, EOFError) as error:
                raise damaged_cache(part, error) from error
            self._parts.add(part)

    def _read(self, part: Path) -> Mapping[str, tuple[Codes, int, int]]:
        digests = np.load(part / "digests.npy")
        starts = np.load(part / "starts.npy").tolist()
        values = np.asarray(np.load(part / "codes.npy", mmap_mode="r"))
        if values.dtype != np.int16 or values.shape != (starts[-1], self.codebooks) or len(digests) + 1 != len(starts):
            raise ValueError(f"codes {values.dtype} {values.shape}, and {len(digests)} audios")
        rows = zip(digests, starts, starts[1:], strict=False)
        return {bytes(digest).hex(): (values, start, stop) for digest, start, stop in rows}

    def __getstate__(self) -> dict[str, Any]:
        """Workers map the files themselves; a pickled memmap would copy them."""
        return {name: value for name, value in vars(self).items() if name not in ("_places", "_parts")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, digest: str) -> Codes:
        """The codes (T, K) of an audio, which must not be written to. Raises KeyError for one that was not added."""
        values, start, stop = self._places[digest]
        return values[start:stop]

    def frames(self, digest: str) -> int:
        """T of an audio."""
        _, start, stop = self._places[digest]
        return stop - start

    def add(self, digests: Sequence[str], encode: Encode, threads: int = 1) -> None:
        """Encode what is missing, in `threads`. Processes that do this at the same time, such as the ranks of a
        training, share the work; each returns when all codes are there.

        Raises DataError where the folder can't be written.
        """
        required = sorted(set(digests))
        shares = max(1, -(-len(required) // _SHARE))
        of_share = [[digest for digest in required if int(digest, 16) % shares == share] for share in range(shares)]
        left = [share for share in range(shares) if any(digest not in self for digest in of_share[share])]
        try:
            for wait in (False, True):  # first what nobody works on, then what others have not finished
                for share in list(left):
                    with lock(self.folder / f"lock-{shares}-{share}", wait) as locked:
                        if locked:
                            self._encode(of_share[share], required, encode, threads)
                            left.remove(share)
        except OSError as error:
            raise unwritable_cache(self.folder, error) from error

    def _encode(self, digests: Sequence[str], required: Sequence[str], encode: Encode, threads: int) -> None:
        self.refresh()
        codes_of: dict[str, Codes] = {}
        started = time.monotonic()
        done = sum(digest in self for digest in required)
        missing = [digest for digest in digests if digest not in self]
        with ThreadPoolExecutor(threads) as pool:
            for digest, codes in zip(missing, pool.map(encode, missing), strict=True):
                codes_of[digest] = self._checked(codes)
                done += 1
                report_progress(WHAT, done, len(required))
                if time.monotonic() - started > _PART_SECONDS:
                    self._write(codes_of)
                    codes_of, started = {}, time.monotonic()
        if codes_of:
            self._write(codes_of)

    def _checked(self, codes: Codes) -> Codes:
        fits = codes.ndim == 2 and codes.shape[1] == self.codebooks and bool(len(codes))
        assert fits, codes.shape
        assert 0 <= codes.min() <= codes.max() < self.codebook_size
        return codes.astype(np.int16, copy=False)

    def _write(self, codes_of: Mapping[str, Codes]) -> None:
        name = hashlib.blake2b("".join(codes_of).encode(), digest_size=12).hexdigest()
        with new_folder(self.folder / f"{_PART}{name}") as beside:
            raw = b"".join(bytes.fromhex(digest) for digest in codes_of)
            np.save(beside / "digests.npy", np.frombuffer(raw, dtype=np.uint8).reshape(len(codes_of), -1))
            np.save(beside / "starts.npy", np.cumsum([0, *map(len, codes_of.values())], dtype=np.int64))
            np.save(beside / "codes.npy", np.concatenate(list(codes_of.values())))
        self.refresh()
