"""Every module can be imported without what only POSIX has, as on Windows. No machine of the tests runs Windows."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, os, pkgutil, signal, socket, sys

# Others look after themselves; what they have imported here need not be imported under the disguise.
OTHERS = (
    "accelerate asyncio av ctypes.util fastapi faster_whisper filelock huggingface_hub.utils joblib "
    "joblib.externals.loky lhotse multiprocessing.popen_fork multiprocessing.popen_spawn_posix "
    "multiprocessing.resource_tracker numpy optuna psutil pydantic rich.console rich.progress scipy.signal soundfile "
    "soxr subprocess torch torch._dynamo transformers uvicorn"
)
for name in OTHERS.split():
    importlib.import_module(name)
ABSENT = {
    os: "fork forkpty getuid geteuid getgid getegid sched_getaffinity pread pwrite preadv posix_fadvise "
    "posix_fallocate mkfifo sysconf statvfs fchmod fchown O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_NONBLOCK killpg setsid "
    "register_at_fork",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGALRM alarm setitimer pthread_sigmask sigwaitinfo SIG_BLOCK "
    "SIG_UNBLOCK SIG_SETMASK sigwait",
    socket: "AF_UNIX",
}
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"

import phonate

names = [found.name for found in pkgutil.walk_packages(phonate.__path__, "phonate.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


@pytest.mark.slow
def test_every_module_is_imported_without_posix() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 100
