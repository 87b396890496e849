"""A stopping signal that arrives where other code turns the interruption into an error of its own."""

from __future__ import annotations

import os
import signal

import pytest

from phonate.config.errors import Interrupted
from phonate.training.signals import interruptible


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
