"""Codes on disk: encoded once, by whoever comes first, and never read when damaged."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from phonate.config.errors import DataError
from phonate.data import codes as store_module
from phonate.data.codes import Codes, CodeStore
from phonate.data.parallel import progress_listener

DIGESTS = [hashlib.blake2b(str(i).encode(), digest_size=16).hexdigest() for i in range(600)]


def codes_of(digest: str) -> Codes:
    """Codes that depend on the digest."""
    rng = np.random.default_rng(int(digest[:8], 16))
    return rng.integers(0, 1024, (int(rng.integers(1, 20)), 8)).astype(np.int16)


def opened(folder: Path) -> CodeStore:
    return CodeStore(folder, 8, 1024)


def never(digest: str) -> Codes:
    raise AssertionError(f"{digest} was encoded again")


def test_what_was_added_is_read_and_not_encoded_again(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    store = opened(tmp_path / "codes")
    with progress_listener(lambda what, done, total: reported.append((done, total))):
        store.add(DIGESTS[:300], codes_of)
    assert reported == [(i, 300) for i in range(1, 301)]
    again = opened(tmp_path / "codes")
    again.add(DIGESTS[:300], never)
    for one in (store, again, pickle.loads(pickle.dumps(store))):
        assert len(one) == 300
        for digest in DIGESTS[:300:37]:
            np.testing.assert_array_equal(one[digest], codes_of(digest))
            assert one[digest].dtype == np.int16
            assert one.frames(digest) == len(codes_of(digest))
    assert DIGESTS[300] not in again
    with pytest.raises(KeyError):
        again[DIGESTS[300]]
    encoded: list[str] = []
    again.add(DIGESTS[290:310], lambda digest: encoded.append(digest) or codes_of(digest))  # type: ignore[func-returns-value]
    assert sorted(encoded) == sorted(DIGESTS[300:310])
    with pytest.raises(ValueError, match="read-only"):
        again[DIGESTS[0]][0, 0] = 1
    assert len(pickle.dumps(store)) < 500


def _add(folder: Path, log: Path, pause: float) -> None:
    def encode(digest: str) -> Codes:
        time.sleep(pause)
        with log.open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {digest}\n")
        return codes_of(digest)

    store = opened(folder)
    store.add(DIGESTS, encode)
    assert len(store) == len(DIGESTS)


def start(folder: Path, log: Path, pause: float) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=_add, args=(folder, log, pause))
    process.start()
    return process


def test_processes_share_the_work(tmp_path: Path) -> None:
    folder, log = tmp_path / "codes", tmp_path / "log"
    processes = [start(folder, log, 0.002) for _ in range(2)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    lines = [line.split() for line in log.read_text(encoding="ascii").splitlines()]
    assert sorted(digest for _, digest in lines) == sorted(DIGESTS)  # each once
    assert len({pid for pid, _ in lines}) == 2
    assert len(opened(folder)) == len(DIGESTS)


def test_a_killed_process_leaves_its_work_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PART_SECONDS", 0.1)
    folder, log = tmp_path / "codes", tmp_path / "log"
    process = start(folder, log, 0.01)
    deadline = time.monotonic() + 30
    while not list(folder.glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    kept = len(opened(folder))
    assert 0 < kept < len(DIGESTS)
    store, encoded = opened(folder), []
    store.add(DIGESTS, lambda digest: encoded.append(digest) or codes_of(digest))  # type: ignore[func-returns-value]
    assert len(encoded) == len(DIGESTS) - kept
    assert not list(folder.glob(".part*"))


def test_an_interruption_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PART_SECONDS", 0.0)
    done: list[str] = []

    def encode(digest: str) -> Codes:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(digest)
        return codes_of(digest)

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path).add(DIGESTS[:10], encode)
    assert len(opened(tmp_path)) == 5


@pytest.mark.parametrize("name", ["codes.npy", "starts.npy", "digests.npy"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damage_is_found(tmp_path: Path, name: str, damage: str) -> None:
    opened(tmp_path).add(DIGESTS[:20], codes_of)
    (part,) = tmp_path.glob("part-*")
    opened(tmp_path)
    content = bytearray((part / name).read_bytes())
    content[-3] ^= 4
    (part / name).unlink()
    if damage != "gone":
        (part / name).write_bytes(content if damage == "flipped" else content[:-40])
    with pytest.raises(DataError, match=f"{part}: damaged .*delete this folder"):
        opened(tmp_path)


def test_codes_of_another_codec_are_refused(tmp_path: Path) -> None:
    opened(tmp_path).add(DIGESTS[:5], codes_of)
    with pytest.raises(DataError, match="damaged"):
        CodeStore(tmp_path, 4, 1024)
    for wrong in (np.full((3, 8), 1024), np.full((3, 8), -1), np.zeros((0, 8)), np.zeros((3, 7))):
        with pytest.raises(AssertionError):
            opened(tmp_path).add(DIGESTS[5:6], lambda _, codes=wrong: codes)  # type: ignore[misc]


def test_a_folder_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(DataError, match=r"can't write .*data\.cache_dir"):
        opened(tmp_path / "file").add(DIGESTS[:3], codes_of)
