"""Collators of other packages: what makes a batch of a data set's items, in place of the task's own.

An entry is a subclass of `Collator`, named by `data.collator`, from an entry point of group `phonate.collators` or a
plug-in file that says `COLLATORS.register("mine", MyCollator)`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from phonate.config.registry import Registry
from phonate.data.batches.dataset import Batch, Dataset

Data = TypeVar("Data", bound=Dataset)


class Collator:
    """Makes batches of the items of `dataset`; as it stands, as the data set itself does."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __call__(self, items: list[Any]) -> Batch:
        """The batch of `items`, which `dataset.get` returned."""
        return type(self.dataset).collate(self.dataset, items)


COLLATORS: Registry[type[Collator]] = Registry("collator", group="phonate.collators")


def with_collator(dataset: Data, name: str | None) -> Data:
    """`dataset`, whose `collate` is now the collator called `name`. Raises InputError for an unknown name."""
    if name is not None:
        # on the instance, so that training, validation and previews all use it
        dataset.collate = COLLATORS.get(name)(dataset)  # type: ignore[method-assign]
    return dataset
