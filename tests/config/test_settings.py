"""Settings built in Python: a mistake is one InputError with a line for each, as for a recipe."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from phonate.audio.settings import AudioConfig
from phonate.config.errors import InputError
from phonate.config.settings import Settings
from phonate.training.settings import SchedulerSettings, TrainingConfig, TrainingSettings, ValidationSettings


@pytest.mark.parametrize(
    ("kind", "values", "line"),
    [
        (TrainingConfig, {"lr": 1}, "TrainingConfig.lr: no such option; did you mean learning_rate?"),
        (TrainingConfig, {"epochs": 3}, "TrainingConfig.epochs: no such option; did you mean num_epochs?"),
        (TrainingConfig, {"batch_size": "x"}, "TrainingConfig.batch_size: expected a whole number, got 'x'"),
        (AudioConfig, {"hop": 256}, "AudioConfig.hop: no such option; did you mean hop_length?"),
        (
            AudioConfig,
            {"win_length": 4000},
            "AudioConfig: win_length 4000 is over n_fft 1024: a window must fit into it",
        ),
        (
            TrainingSettings,
            {"optimizer": {"lrr": 1.0}},
            "TrainingSettings.optimizer.lrr: no such option; did you mean lr?",
        ),
        (
            SchedulerSettings,
            {"type": 3},
            "SchedulerSettings.type: expected text, got 3; put it in quotes, as in '\"3\"'",
        ),
        *(
            (
                ValidationSettings,
                {"interval": interval},
                "ValidationSettings.interval: an interval is a number of optimizer steps (500) or of epochs "
                f"('5 epochs'), at least 1, got {interval!r}",
            )
            for interval in (0, -3, "0 epochs", "0")
        ),
    ],
)
def test_a_mistake_is_one_line(kind: type[Settings], values: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        kind(**values)
    assert str(caught.value) == line


def test_each_mistake_has_its_line() -> None:
    with pytest.raises(InputError) as caught:
        TrainingConfig(batch_size=0, save_steps=3, num_epochs=2)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "TrainingConfig.batch_size",
        "TrainingConfig.save_steps",
    ]


def test_validation_of_a_document_keeps_pydantics_error() -> None:
    with pytest.raises(ValidationError, match="hop"):
        AudioConfig.model_validate({"hop": 256})
