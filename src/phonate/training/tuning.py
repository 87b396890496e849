"""Settings of hyperparameter search: the recipe's `training.tuning`, carried out by `phonate.workflows.tuning`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Choice = bool | int | float | str | None | list[Any] | dict[str, Any]


class RangeSettings(Settings):
    """A range of numbers. If all its options are integers, so are the values."""

    low: int | float
    """Lowest value."""
    high: int | float
    """Highest value, included."""
    log: bool = False
    """Sample on a logarithmic scale, for example for learning rates."""
    step: PositiveInt | PositiveFloat | None = None
    """The values are low, low + step, low + 2 step, ... Null: any number, or any integer."""

    @property
    def whole(self) -> bool:
        """Whether the values are integers."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    @property
    def grid(self) -> list[int | float]:
        """The values of a range with a step."""
        assert self.step is not None
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return [self.low + self.step * number for number in range(count)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low:g} must be above 0 for log")
        if self.log and self.step is not None:
            raise ValueError("log and step can't be combined; leave one out")
        return self


class TuningSettings(Settings):
    """Hyperparameter search. With a `library`, `phonate train` trains `n_trials` runs in RUN/trials instead of one."""

    library: Literal["optuna", "raytune"] | None = None
    """The search library: optuna (needs phonate[tuning]) or raytune (needs phonate[raytune]). Null: no search."""
    search_space: dict[str, Annotated[list[Choice], Field(min_length=1)] | RangeSettings] = Field(default_factory=dict)
    """Path of an option, such as training.optimizer.lr -> list of its values, or a range {low, high, log, step}."""
    n_trials: PositiveInt = 20
    """Number of runs, including those stopped early."""
    metric: str = "val_loss"
    """The validation metric to optimise; the best value of each run counts."""
    direction: Literal["minimize", "maximize"] | None = None
    """Whether lower or higher is better. Null: as the task declares; losses are better when lower."""
    pruning: bool = True
    """Stop a run when its metric is worse than the median of earlier runs at the same step (from the 6th run on)."""

    @model_validator(mode="after")
    def _has_something_to_search(self) -> Self:
        if self.library is not None and not self.search_space:
            raise ValueError("search_space is empty; add options with their values or ranges")
        own = [path for path in self.search_space if path.startswith("training.tuning")]
        if own:
            raise ValueError(f"search_space: {own[0]} is an option of the search itself")
        return self
