"""Codes of recordings on disk, memory-mapped: one entry for each audio, found by the digest of its samples.

A folder belongs to one codec. It holds parts, each written whole and then renamed, so that what was encoded before an
interruption is kept, and several processes may add to it at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.data.codes.locks import lock
from phonate.data.progress import report_progress
from phonate.data.store.folders import damaged, new_folder, verify

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
                raise damaged(part, error) from error
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
        wanted = sorted(set(digests))
        shares = max(1, -(-len(wanted) // _SHARE))
        of_share = [[digest for digest in wanted if int(digest, 16) % shares == share] for share in range(shares)]
        left = [share for share in range(shares) if any(digest not in self for digest in of_share[share])]
        try:
            for wait in (False, True):  # first what nobody works on, then what others have not finished
                for share in list(left):
                    with lock(self.folder / f"lock-{shares}-{share}", wait) as locked:
                        if locked:
                            self._encode(of_share[share], wanted, encode, threads)
                            left.remove(share)
        except OSError as error:
            raise DataError(_explained(error, self.folder)) from error

    def _encode(self, digests: Sequence[str], wanted: Sequence[str], encode: Encode, threads: int) -> None:
        self.refresh()
        made: dict[str, Codes] = {}
        started = time.monotonic()
        done = sum(digest in self for digest in wanted)
        missing = [digest for digest in digests if digest not in self]
        with ThreadPoolExecutor(threads) as pool:
            for digest, codes in zip(missing, pool.map(encode, missing), strict=True):
                made[digest] = self._checked(codes)
                done += 1
                report_progress(WHAT, done, len(wanted))
                if time.monotonic() - started > _PART_SECONDS:
                    self._write(made)
                    made, started = {}, time.monotonic()
        if made:
            self._write(made)

    def _checked(self, codes: Codes) -> Codes:
        fits = codes.ndim == 2 and codes.shape[1] == self.codebooks and bool(len(codes))
        assert fits, codes.shape
        assert 0 <= codes.min() <= codes.max() < self.codebook_size
        return codes.astype(np.int16, copy=False)

    def _write(self, made: Mapping[str, Codes]) -> None:
        name = hashlib.blake2b("".join(made).encode(), digest_size=12).hexdigest()
        with new_folder(self.folder / f"{_PART}{name}") as beside:
            raw = b"".join(bytes.fromhex(digest) for digest in made)
            np.save(beside / "digests.npy", np.frombuffer(raw, dtype=np.uint8).reshape(len(made), -1))
            np.save(beside / "starts.npy", np.cumsum([0, *map(len, made.values())], dtype=np.int64))
            np.save(beside / "codes.npy", np.concatenate(list(made.values())))
        self.refresh()


def _explained(error: OSError, folder: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{folder}: the disk is full; free space there, or name another folder by data.cache_dir"
    return f"{folder}: can't write the codes ({error.strerror}); name another folder by data.cache_dir"
