"""Errors that people can act on."""

from __future__ import annotations

import pickle

import pytest

from phonate.config.errors import Interrupted, NoRunError, PhonateError
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
