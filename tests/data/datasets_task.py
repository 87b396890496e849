"""A task whose recipes have `global_config` and `datasets`, with nothing behind it."""

from __future__ import annotations

from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, TaskEntry, TaskInfo
from phonate.data.settings import KALDI_SECTIONS, KaldiData


class NoModel(Settings):
    """Nothing."""


def register() -> None:
    """Add the task `meetings`."""
    TASKS.register("meetings", TaskEntry(KaldiData, NoModel, None, info=TaskInfo(sections=KALDI_SECTIONS)))
