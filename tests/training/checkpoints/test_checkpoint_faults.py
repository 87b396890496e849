"""Full disks, read-only folders, and what the next save says about them."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_checkpoints import assert_whole, save

from phonate.compute import system
from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import CheckpointManager, files, manager
from phonate.training.settings import CheckpointConfig


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_too_small_for_the_first_save_is_said_at_once(small_disk: Path) -> None:
    with CheckpointManager(small_disk / "checkpoints") as store:
        message = rf"{small_disk}/checkpoints: disk full: a checkpoint needs 9.0 MB, 4.\d MB more than is free"
        with pytest.raises(CheckpointError, match=message):
            save(store, 1, numel=1_000_000)


def test_a_disk_that_fills_while_saving_loses_nothing(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CheckpointConfig(save_total_limit=1)
    with CheckpointManager(small_disk / "checkpoints", config) as store:
        save(store, 1, numel=100_000)
        store.flush()
        filler = small_disk / "filler"
        filler.write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize - 500_000))
        with monkeypatch.context() as patch:  # as if the disk filled between the check and the write
            patch.setattr(manager, "free_bytes", lambda _: 10**12)
            save(store, 2, numel=100_000)
            with pytest.raises(CheckpointError, match=r"disk full: .*0\.8 MB"):
                store.flush()
        assert not list((small_disk / "checkpoints").glob(".step-*")), "the failed attempt still fills the disk"
        assert_whole(store.load_checkpoint("latest"))
        filler.unlink()
        save(store, 3, numel=100_000)
        assert store.load_checkpoint("latest").metadata.global_step == 3


def test_where_the_disk_gets_full_the_oldest_go_and_nothing_that_is_needed(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = small_disk / "checkpoints"
    with CheckpointManager(folder, CheckpointConfig(save_total_limit=9)) as store:
        for step in range(1, 9):
            save(store, step, numel=60_000, best_metric=("val_loss", 1.0), is_best=step == 1)
            store.flush()
        names = sorted(path.name for path in folder.glob("step-*"))
        assert "step-00000001" in names, "the best"
        assert "step-00000008" in names
        assert "step-00000002" not in names
        assert len(names) < 8
        assert caplog.text.count("the disk is nearly full; the oldest checkpoint") == 8 - len(names)
        # the newest is damaged: the one before it is what a resume would take, and stays
        weights = folder / "step-00000008" / files.WEIGHTS
        weights.write_bytes(b"x" + weights.read_bytes()[1:])
        for step in (9, 10):
            save(store, step, numel=60_000)
            store.flush()
            assert store.load_checkpoint("latest").metadata.global_step == step
        (small_disk / "filler").write_bytes(b"x" * system.free_bytes(small_disk))
        before = sorted(path.name for path in folder.glob("step-*"))
        with pytest.raises(CheckpointError, match="disk full"):
            save(store, 11, numel=1_000_000)
        after = sorted(path.name for path in folder.glob("step-*"))
        assert after == ["step-00000001", "step-00000010"] != before, "the best and the newest are never removed"


def test_a_failed_save_is_told_by_the_next_one(tmp_path: Path) -> None:
    """A limit on file sizes stands in for the full disk where tests don't run as root."""
    with CheckpointManager(tmp_path) as store:
        save(store, 1)
        store.flush()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        try:
            save(store, 2, numel=1_000_000)
            with pytest.raises(CheckpointError, match="this size"):
                save(store, 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.load_checkpoint("latest").metadata.global_step == 1
        save(store, 4)
        assert store.load_checkpoint("latest").metadata.global_step == 4


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with (
        CheckpointManager(tmp_path / "checkpoints") as store,
        pytest.raises(CheckpointError, match="a folder should be"),
    ):
        save(store, 1)


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if os.geteuid() == 0:  # permissions don't bind root; a read-only mount does
        bind = ["mount", "--bind", str(folder), str(folder)]
        again = ["mount", "-o", "remount,ro,bind", str(folder)]
        if any(subprocess.run(command, capture_output=True, check=False).returncode for command in (bind, again)):
            pytest.skip("mounting is not allowed here")
    else:
        folder.chmod(0o500)
    try:
        with CheckpointManager(folder) as store, pytest.raises(CheckpointError, match=rf"{folder}: "):
            save(store, 1)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(folder)], check=True)
        folder.chmod(0o700)


def test_a_disk_that_returns_other_bytes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read-back: what was renamed into place is what was in memory."""
    with CheckpointManager(tmp_path) as store:
        save(store, 1)
        store.flush()

        def spoil(path: Path) -> None:
            if path.name == "weights.safetensors":
                content = bytearray(path.read_bytes())
                content[-1] ^= 1
                path.write_bytes(content)

        monkeypatch.setattr("phonate.training.checkpoints.snapshot.drop_from_memory", spoil)
        save(store, 2)
        with pytest.raises(CheckpointError, match="read back"):
            store.flush()
        assert [item.step for item in store.list_checkpoints()] == [1]
