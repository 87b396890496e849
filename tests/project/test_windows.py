"""Every module can be imported without what only POSIX has, as on Windows, and a run keeps to its rules of files.

No machine of the tests runs Windows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parents[2] / "src" / "phonate" / "base" / "recordings"

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
signal.SIGBREAK, signal.CTRL_BREAK_EVENT = 21, 1
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


TOO_LATE = """
import shutil, signal, sys, time  # shutil looks where it runs
del signal.SIGALRM, signal.setitimer, signal.SIGHUP
signal.SIGBREAK = signal.CTRL_BREAK_EVENT = signal.SIGUSR1
sys.platform = "win32"
from phonate.compute.system import TIMEOUT_CODE, end_after

print(TIMEOUT_CODE, flush=True)
end_after(0.1)
time.sleep(60)
"""


def test_a_process_that_took_too_long_is_told_from_one_that_failed() -> None:
    """Where a signal ends none."""
    done = subprocess.run([sys.executable, "-c", TOO_LATE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (124, "124\n"), done.stderr


CTRL_BREAK = """
import os, signal, sys
import phonate.config.settings  # and with it pydantic, which looks where it runs
del signal.SIGHUP
signal.SIGBREAK = signal.CTRL_BREAK_EVENT = signal.SIGUSR1
sys.platform = "win32"
from phonate.config.errors import Interrupted
from phonate.training.signals import interruptible
from phonate.workflows.demo import training

try:
    with interruptible():
        os.kill(os.getpid(), training.STOP_EVENT)
except Interrupted as error:
    sys.exit(128 + error.signal_number != training._STOPPED)
"""


def test_the_demo_stops_its_training_by_a_signal_that_saves() -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_BREAK], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


RULES = """
import os, sys
from pathlib import Path

USED = {"os.rename": 2, "os.remove": 1}

def refuse(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and arguments[2] & os.O_CREAT:
        name = Path(arguments[0]).name
        if set('<>:"|?*') & set(name) or name.endswith((" ", ".")):
            raise OSError(22, "no name for a file", name)
    for path in map(os.path.realpath, arguments[:USED.get(event, 0)]):
        here = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
        here += [line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")]
        if any(one == path or one.startswith(f"{path}/") for one in here):
            raise PermissionError(13, "a file that is open is renamed, replaced or removed", path)

def rename(source, target):
    if os.path.exists(target):
        raise FileExistsError(17, "renamed to one that is there", target)
    os_rename(source, target)

os_rename, os.rename = os.rename, rename
sys.addaudithook(refuse)
"""

A_RUN = """
from phonate.cli import main

recordings = sys.argv[1]
more = ["size=tiny", "data.judged=0", "training.validation.interval=1", "training.checkpoint.interval=1"]
for command in (
    ["train", "speech", f"data.path={recordings}", *more, "training.max_steps=4", "--output", "run"],
    ["train", "run", "training.max_steps=5", "--resume", "auto"],
    ["speak", "run", "Hello.", "-o", "said.wav"],
    ["speak", "run", "Hello.", "-o", "said.wav"],
    ["checkpoints", "prune", "run", "--keep", "1"],
    ["checkpoints", "export", "run", "-o", "exported"],
    ["report", "run"],
):
    code = main(command)
    assert code == 0, (code, command)
"""


LOCK = """
import shutil  # looks where it runs
import filelock, signal
signal.SIGBREAK = signal.CTRL_BREAK_EVENT = signal.SIGUSR1
sys.platform = "win32"
from phonate.compute.system import ProcessLock

lock = ProcessLock(Path("lock"))
lock.release(remove=True)
lock.release()
assert not Path("lock").exists()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_lock_is_removed_once_it_is_released(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RULES + LOCK], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_that_is_open_is_renamed_or_removed(tmp_path: Path) -> None:
    """Nor is one renamed to another that is there, nor has a name that Windows forbids."""
    shutil.copytree(RECORDINGS, tmp_path / "voice")
    command = [sys.executable, "-c", RULES + A_RUN, "voice"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
