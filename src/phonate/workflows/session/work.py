"""What the flows of a session share: progress for bar and log, training, and keeping what came of it."""

from __future__ import annotations

import errno
import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from phonate.config.errors import CheckpointError
from phonate.config.resolve import Resolved
from phonate.config.tasks import task_class
from phonate.data.parallel import Progress
from phonate.rendering.renderer import BESIDE, GRIFFIN_LIM, saved_beside
from phonate.training.checkpoints import best_or_latest, copies, files, manifest
from phonate.training.checkpoints.resolve import is_checkpoint
from phonate.workflows.pages.report import write_report
from phonate.workflows.session.config import SessionConfig
from phonate.workflows.session.demonstration import SAMPLE
from phonate.workflows.session.log import SessionLog
from phonate.workflows.train import Trained, train

MODEL, VOCODER = "model", "vocoder"
"""Names of runs."""
_LINES = 10
"""Lines of progress in a stage, about."""
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""What renaming a folder to a name that is taken fails with."""


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

    def export(self, name: str, vocoder: str | None = None) -> Path:
        """Copy what inference needs of the best checkpoint of the run, its vocoder's, and the voice's profile, to the
        session's folder `name`."""
        made = copies.export(best_or_latest(self.runs[-1]), self.folder / name)
        if vocoder not in (None, GRIFFIN_LIM):
            copies.export(best_or_latest(str(vocoder)), made / BESIDE)
        for extra in sorted(self.folder.glob("voice_profile.*")):
            shutil.copy2(extra, made)
        self.log.info(f"How it went: {write_report(self.runs[-1])}")
        return made

    def keep(self, made: Path) -> Path:
        """Move the model `made` to its name in the output, in the place of the one that is there, whose run has its
        checkpoints still. Whatever else is there is not deleted."""
        target = self.output / made.name
        for number in itertools.count(1):
            try:
                made.rename(target)
                break
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            self._clear(target, self.folder / f"earlier_{made.name}_{number}")
        return target

    def _clear(self, target: Path, earlier: Path) -> None:
        try:
            target.rename(earlier)
        except FileNotFoundError:  # a session that ends at the same moment has done so
            return
        if _is_saved(earlier):
            shutil.rmtree(earlier)
        else:
            self.log.warning(f"{target}: not only a session's model was there; it is kept as {earlier}")


def _is_saved(folder: Path) -> bool:
    """Whether what a session saved is in `folder`, and nothing else."""
    if folder.is_symlink() or not is_checkpoint(folder):
        return False
    try:
        names = {files.MANIFEST, SAMPLE, *manifest.read_manifest(folder)}
        if saved_beside(folder) is not None:
            names.add(BESIDE)
    except CheckpointError:  # a file of that name which is no manifest
        return False
    return all(entry.name in names or entry.match("voice_profile.*") for entry in folder.iterdir())
