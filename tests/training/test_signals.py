"""A stopping signal that arrives where other code turns the interruption into an error of its own."""

from __future__ import annotations

import os
import signal

import pytest

from phonate.config.errors import Interrupted
from phonate.training.signals import interruptible
from phonate_process import run_python


class Panic(BaseException):
    """As an extension in Rust raises when an exception passes through its imports."""


@pytest.mark.parametrize("raised", [Panic, ImportError, SystemExit])
def test_an_interruption_that_surfaces_as_another_error_is_still_one(raised):
    def compiled_import():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        except BaseException:  # noqa: BLE001 - as such a module does
            raise raised from None

    with pytest.raises(Interrupted, match="SIGTERM") as stopped, interruptible():
        compiled_import()
    assert stopped.value.exit_code == 143


@pytest.mark.parametrize("raised", [Panic, ImportError, SystemExit])
def test_without_a_signal_an_error_passes(raised):
    with pytest.raises(raised), interruptible():
        raise raised


def test_a_sigterm_that_comes_again_lets_the_run_save():
    """As where a scheduler signals all processes of a job, and torchrun among them signals its own once more."""
    code = (
        "import os, signal\nfrom phonate.training.signals import Signals\n"
        "with Signals() as signals:\n"
        "    for _ in range(3): os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('saves', int(signals.received))\n"
    )
    ended = run_python("-c", code)
    assert (ended.returncode, ended.stdout) == (0, "saves 15\n"), ended.stderr


def test_who_quits_before_the_first_checkpoint_is_told_how_to_begin_again(tmp_path):
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from phonate.config.errors import command_line\n"
        "from phonate.training.signals import Signals\n"
        f"with command_line(['train']), Signals(checkpoints=Path({str(tmp_path)!r})):\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = run_python("-c", code, timeout=60)
    assert ended.returncode == 130
    assert ended.stderr.endswith("there is no checkpoint: the same command with --resume auto begins again\n")
