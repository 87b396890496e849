"""What the flows of a session share: progress for bar and log, training, and keeping what came of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from phonate.config.resolve import Resolved
from phonate.config.tasks import task_class
from phonate.data.parallel import Progress
from phonate.training.checkpoints import best_or_latest, copies
from phonate.workflows.report import write_report
from phonate.workflows.session_config import SessionConfig
from phonate.workflows.session_log import SessionLog
from phonate.workflows.train import Trained, train

MODEL, VOCODER = "model", "vocoder"
"""Names of runs."""
_LINES = 10
"""Lines of progress in a stage, about."""


@dataclass
class Work:
    """A session at work."""

    config: SessionConfig
    log: SessionLog
    device: str
    voice_data_dir: Path
    output: Path
    bar: Progress | None = None
    """Shown beside the log."""
    runs: list[Path] = field(default_factory=list)
    """The runs that were begun, the one that is trained now the last."""

    @property
    def folder(self) -> Path:
        """What this session makes, beside the model that it leaves in `output`."""
        return self.log.folder

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar; every tenth file or tenth of them goes to the log, but for what is done in a moment."""
        if self.bar is not None:
            self.bar(what, done, total)
        if what == "reading recordings":
            return
        every = max(10, -(-total // (10 * _LINES)) * 10)
        if done == total or done % every == 0:
            said = "Processed" if what == "extracting features" else f"{what[:1].upper()}{what[1:]}:"
            self.log.add("INFO", [f"{said} {done}/{total} samples..."], mirrored=self.bar is None)

    def check(self, resolved: Resolved) -> None:
        """Raise InputError for what the recipe's task can't do, before hours of other work."""
        task_class(resolved.recipe.task)(resolved.recipe)

    def train(self, resolved: Resolved, name: str) -> Trained:
        """Train a recipe into the session's folder `name`, on the session's device."""
        recipe = self.folder / f"{name}.yaml"
        recipe.write_text(resolved.to_yaml(), encoding="utf-8")
        self.runs.append(self.folder / name)
        trained = train(recipe, output=self.runs[-1], device=self.device)
        shown = "".join(f", {metric} {value:.4g}" for metric, value in sorted(trained.metrics.items()))
        self.log.success(f"Trained {trained.step} steps of {resolved.recipe.task}{shown}")
        return trained

    def keep(self, name: str) -> Path:
        """Put what inference needs of the best checkpoint of the run into the folder `name` of the output, in the
        place of an earlier session's, whose run has its checkpoints still."""
        run = self.runs[-1]
        target = self.output / name
        beside = self.output / f".{name}.{os.getpid()}"
        copies.export(best_or_latest(run), beside)
        for extra in sorted(self.folder.glob("voice_profile.*")):
            shutil.copy2(extra, beside)
        if target.exists():
            earlier = self.output / f".{name}.earlier.{os.getpid()}"
            target.replace(earlier)
            beside.replace(target)
            shutil.rmtree(earlier)
        else:
            beside.replace(target)
        self.log.info(f"How it went: {write_report(run)}")
        return target
