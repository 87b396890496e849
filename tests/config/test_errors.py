"""Errors that people can act on."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from phonate.config.errors import (
    Interrupted,
    MissingPackageError,
    NoRunError,
    PhonateError,
    all_packages,
    require_modules,
)
from phonate.config.registry import UnknownVoiceError
from phonate.text.phonemes import NothingToSay
from phonate.training.checkpoints.files import DamagedCheckpointError


@pytest.mark.parametrize(
    "error",
    [
        UnknownVoiceError("ana", ["anna"]),
        NoRunError("x: no such run", "x", "no such run"),
        Interrupted("stopped", 15, step=3),
        NothingToSay("***"),
        DamagedCheckpointError("step-1", []),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: PhonateError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_what_one_thread_gathers_is_refused_at_once_in_another() -> None:
    def gather() -> None:
        with all_packages(), ThreadPoolExecutor(1) as pool:
            with all_packages():
                assert not require_modules("mine", "absent_1")
            refusal = pool.submit(require_modules, "theirs", "absent_2").exception()
            assert str(refusal).startswith("theirs needs the package absent_2, which is not installed")

    with pytest.raises(MissingPackageError, match="mine needs the package absent_1, which is not installed"):
        gather()
