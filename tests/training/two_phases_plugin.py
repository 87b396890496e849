"""The small GAN as a task in a plug-in file, for tests that run real processes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from small_tasks import GanTask, Nothing

from phonate.config.tasks import TASKS, TaskEntry


class TwoPhasesTask(GanTask):
    """Its losses have counts of their own."""

    own_counts = True


TASKS.register("plugin", TaskEntry(data=Nothing, model=Nothing, task=TwoPhasesTask))
