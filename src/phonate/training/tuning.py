"""Settings of the search for hyperparameters: the recipe's `training.tuning`. It is carried out by
`phonate.workflows.tuning`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Choice = bool | int | float | str | None | list[Any] | dict[str, Any]


class RangeSettings(Settings):
    """A range of numbers; whole numbers give whole numbers."""

    low: int | float
    """Lowest value."""
    high: int | float
    """Highest value, included."""
    log: bool = False
    """Draw evenly in the logarithm, as suits learning rates."""
    step: PositiveInt | PositiveFloat | None = None
    """Distance of the values. Null: any number, or any whole number."""

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low:g} must be above 0 for log")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other")
        return self


class TuningSettings(Settings):
    """Hyperparameter search. With a `library`, `phonate train` runs `n_trials` runs in RUN/trials instead of one."""

    library: Literal["optuna", "raytune"] | None = None
    """What proposes the values: optuna (needs phonate[tuning]) or raytune (needs phonate[raytune]). Null: no search."""
    search_space: dict[str, Annotated[list[Choice], Field(min_length=1)] | RangeSettings] = Field(default_factory=dict)
    """Path of an option, such as training.optimizer.lr -> list of its values, or a range {low, high, log, step}."""
    n_trials: PositiveInt = 20
    """Number of runs, those stopped early included."""
    metric: str = "val_loss"
    """The metric of validation to optimise; the best value of each run counts."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Whether lower or higher is better."""
    pruning: bool = True
    """Stop a run at a validation where it is worse than the median of the earlier runs was there (after 5 runs)."""

    @model_validator(mode="after")
    def _has_something_to_search(self) -> Self:
        if self.library is not None and not self.search_space:
            raise ValueError("search_space is empty; give it options with their values or ranges")
        own = [path for path in self.search_space if path.startswith("training.tuning")]
        if own:
            raise ValueError(f"search_space: {own[0]} is an option of the search itself")
        return self
