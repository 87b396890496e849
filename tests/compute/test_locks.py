"""The lock of a process on a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phonate.compute.system import ProcessLock

WAITS = """
from pathlib import Path
from phonate.compute.system import ProcessLock

class Lock(ProcessLock):
    def _open(self):
        descriptor = super()._open()
        print("open", flush=True)
        return descriptor

lock = Lock(Path("lock"), patience=60)
print("locked", flush=True)
input()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no file is removed there that another process has open")
def test_who_waits_for_a_lock_that_is_removed_locks_a_new_one(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "lock")
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        lock.release(remove=True)
        assert [other.stdout.readline() for _ in range(2)] == ["open\n", "locked\n"]
        assert lock.file.read_text() == str(other.pid)
        other.kill()
