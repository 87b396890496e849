"""What the flows of a session share; and the flow of texts -> a language model."""

from __future__ import annotations

import errno
import itertools
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from phonate.config.errors import CheckpointError, DataError
from phonate.data.dialogues import SUFFIXES, text_files
from phonate.data.parallel import Progress, Stage
from phonate.rendering import BESIDE, GRIFFIN_LIM, saved_beside
from phonate.training.checkpoints import best_or_latest, files, listing, manifest
from phonate.training.checkpoints.resolve import is_checkpoint
from phonate.training.plan import Plan
from phonate.workflows.pages.report import write_report
from phonate.workflows.session.config import SessionConfig, default_recipe
from phonate.workflows.session.log import SessionLog
from phonate.workflows.session.session import SAMPLE, SessionState, sample
from phonate.workflows.train import train_plan

MODEL, VOCODER = "model", "vocoder"
"""Names of runs."""
# --------- What the flows of a session share: progress for bar and log, training, and saving the model

_LINES = 10
"""Approximate number of log lines for the progress of a stage."""
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""Errors of renaming a folder to an existing name."""


@dataclass
class Work:
    """A session that is under way."""

    config: SessionConfig
    log: SessionLog
    state: SessionState
    device: str
    voice_data_dir: Path
    output: Path
    bar: Progress | None = None
    """Shown beside the log."""
    runs: list[Path] = field(default_factory=list)
    """The runs that were begun; the last one is being trained, or was trained last."""

    @property
    def folder(self) -> Path:
        """What this session makes, apart from the model that it leaves in `output`."""
        return self.log.folder

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar, and log about ten lines for a stage that takes a while."""
        if self.bar is not None:
            self.bar(what, done, total)
        if what == Stage.READING:
            return
        every = max(10, -(-total // (10 * _LINES)) * 10)
        if done == total or done % every == 0:
            verb = "Processed" if what == Stage.EXTRACTING else f"{what[:1].upper()}{what[1:]}:"
            self.log.add("INFO", [f"{verb} {done}/{total} samples..."], mirrored=self.bar is None)

    def train(self, plan: Plan, name: str) -> Path:
        """Train what was planned into the session's folder `name` on the session's device; returns the run.

        In a resumed session a finished run is not trained again, and one with checkpoints continues.
        """
        run = self.folder / name
        self.runs.append(run)
        if name in self.state.trained:
            return run
        recipe = self.folder / f"{name}.yaml"
        recipe.write_text(plan.resolved.to_yaml(), encoding="utf-8")
        resume = "auto" if run.is_dir() else None
        trained = train_plan(replace(plan, output=run, asked_device=self.device, asked_resume=resume))
        self.state.trained.append(name)
        self.state.write(self.folder)
        shown = "".join(f", {metric} {value:.4g}" for metric, value in sorted(trained.metrics.items()))
        self.log.success(f"Trained {trained.step} steps of {plan.recipe.task}{shown}")
        return run

    def export(self, name: str, vocoder: str | None = None) -> Path:
        """Copy what inference needs of the best checkpoint, its vocoder and the voice's profile to the session's
        folder `name`."""
        target = self.folder / name
        if target.is_dir():  # a session that was interrupted while it saved
            shutil.rmtree(target)
        made = listing.export(best_or_latest(self.runs[-1]), target)
        if vocoder not in (None, GRIFFIN_LIM):
            listing.export(best_or_latest(str(vocoder)), made / BESIDE)
        for extra in sorted(self.folder.glob("voice_profile.*")):
            shutil.copy2(extra, made)
        self.log.info(f"Report: {write_report(self.runs[-1])}")
        return made

    def keep(self, made: Path) -> Path:
        """Move the model `made` to its name in the output, and end the session's work.

        A model that an earlier session saved there is replaced; its run still has its checkpoints. Other files there
        are moved, never deleted.
        """
        target = self.output / made.name
        for number in itertools.count(1):
            try:
                made.rename(target)
                break
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            earlier = self.folder / f"earlier_{made.name}_{number}"
            if not earlier.exists():
                self._clear(target, earlier)
        self.state.done = True
        self.state.write(self.folder)
        return target

    def _clear(self, target: Path, earlier: Path) -> None:
        try:
            target.rename(earlier)
        except FileNotFoundError:  # another session that ends at this moment has done so
            return
        if _is_saved(earlier):
            shutil.rmtree(earlier)
        else:
            self.log.warning(f"{target} held other files than a session's model; they are kept as {earlier}")


def _is_saved(folder: Path) -> bool:
    """Whether `folder` holds what a session saved, and nothing else."""
    if folder.is_symlink() or not is_checkpoint(folder):
        return False
    try:
        names = {files.MANIFEST, SAMPLE, *manifest.read_manifest(folder)}
        if saved_beside(folder) is not None:
            names.add(BESIDE)
    except CheckpointError:  # a file of that name which is no manifest
        return False
    return all(entry.name in names or entry.match("voice_profile.*") for entry in folder.iterdir())


# ------------------------------- Texts -> a language model: check the configuration, load, train, save

SAMPLES = Path("datasets/samples")
SAVED = "text_model"


def train_text(work: Work) -> Path:
    """The whole flow; returns the model's folder.

    Raises RecipeError for mistakes in the configuration, DataError where there is no text, MissingPackageError
    without transformers.
    """
    log = work.log
    log.info("Starting text training")
    plan = _plan(work)
    written = plan.written
    log.success(f"Configuration: {written.document.name if work.config.exists else 'the recipe ' + written.name}")
    log.info(f"Training on the texts in {plan.recipe.data.path}, on {work.device}")
    work.train(plan, MODEL)
    made = work.export(SAVED)
    shown = sample(made, work.output / SAVED)
    model = work.keep(made)
    log.success(f"Text model saved to: {model}")
    if shown is not None:
        log.success(shown)
    return model


def _plan(work: Work) -> Plan:
    """The plan: a new model, or adapters where the configuration names a pretrained one."""
    config = work.config
    name = default_recipe("texts", pretrained=config.value("model", "name") is not None)
    overrides = {} if config.value("data", "path") is not None else {"data.path": str(_texts(work))}
    return config.plan(name, overrides)


def _texts(work: Work) -> Path:
    """The folder of texts where the configuration names none."""
    places = (work.voice_data_dir, SAMPLES)
    for folder in places:
        if folder.is_dir() and _has_texts(folder):
            return folder
    raise DataError(
        f"No texts found in: {' or '.join(map(str, places))}; put {', '.join(SUFFIXES)} files there, or set "
        f"data.path in {work.config.document.name}; recordings go into {work.voice_data_dir}"
    )


def _has_texts(folder: Path) -> bool:
    try:
        return bool(text_files(folder))
    except DataError:
        return False
