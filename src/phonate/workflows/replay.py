"""One step of a run again: its loss to the bit, and what was in its batch, for whoever wonders why a loss jumped."""

from __future__ import annotations

import json
import logging
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from phonate.compute.resources import Mode
from phonate.config.documents import read
from phonate.config.errors import InputError
from phonate.data.batches import SamplePreview
from phonate.data.loading import BatchSource, MicroBatch
from phonate.training import quarantine
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.listing import save_dir
from phonate.training.checkpoints.loading import load_first_intact
from phonate.training.not_finite import NotFinite
from phonate.training.plan import Plan, plan
from phonate.training.run import Run
from phonate.training.step import weighted_loss
from phonate.training.task import Coupling, counted, move
from phonate.training.trainer import Trainer
from phonate.workflows.train import set_threads

logger = logging.getLogger("phonate")

_REPORTS = {"tensorboard": False, "wandb": False, "mlflow": False, "trackio": False, "system": False}
SAMPLES = "samples.json"
"""What was in the batch, beside its sounds."""


@dataclass(frozen=True)
class ReplayedSample:
    """A sample of the batch."""

    id: str
    micro_batch: int
    """Number of its micro-batch within the step, from 0."""
    loss: float | None
    """Its loss alone, with the weights that the step began with and without dropout. None: it depends on others."""
    preview: SamplePreview
    """Text, speaker and sound, as far as the task shows them: as augmented in this step, before any crop."""


@dataclass
class Replay:
    """A step that was computed again."""

    step: int
    """As in the log: 1 is the first."""
    epoch: int
    """Epochs done before it."""
    checkpoint: Path | None
    """Where it began. None: at the beginning of the run."""
    losses: dict[str, float] = field(default_factory=dict)
    """`loss` and its terms, means over the batch."""
    samples: list[ReplayedSample] = field(default_factory=list)
    problems: list[NotFinite] = field(default_factory=list)
    """What was not finite in this step."""
    compared: list[int] = field(default_factory=list)
    """Steps whose logged metrics were computed again."""
    differing: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Those of another loss, with the loss in the log and the one of now."""

    def document(self) -> dict[str, Any]:
        """Everything but the sounds, as JSON."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "losses": self.losses,
            "not_finite": [str(one) for one in self.problems],
            "compared_steps": self.compared,
            "differing": {str(step): {"logged": a, "now": b} for step, (a, b) in self.differing.items()},
            "samples": [
                {
                    "id": one.id,
                    "micro_batch": one.micro_batch,
                    "loss_alone": one.loss,
                    "speaker": one.preview.speaker,
                    "text": one.preview.text,
                    "seconds": seconds_of(one.preview),
                }
                for one in self.samples
            ],
        }

    def save(self, folder: str | Path) -> Path:
        """Write the sounds, named by number and id, and samples.json to `folder`; returns it."""
        from phonate.audio.decoding import write_audio

        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: can't make this folder: {error.strerror}") from error
        for number, one in enumerate(self.samples, 1):
            if one.preview.waveform is not None:
                name = re.sub(r"[^\w.-]+", "_", one.id)[-100:]
                write_audio(folder / f"{number:03d}-{name}.wav", one.preview.waveform, one.preview.sample_rate)
        Run(folder).write_json(SAMPLES, self.document())
        return folder


def seconds_of(preview: SamplePreview) -> float | None:
    """Length of a sample's sound; None where it has none."""
    return None if preview.waveform is None else len(preview.waveform) / preview.sample_rate


def replay(
    run: str | Path, step: int, *, device: str | None = None, mode: Mode = "mixed", plugins: Sequence[Path] = ()
) -> Replay:
    """Compute step `step` of a run again, from the nearest checkpoint before it; the run's folder is left as it is.

    The loss is the same to the bit on the same machine, with the torch version, device and number of threads of the
    run, and on one process, as which it is computed here. Losses that the run logged on the way are compared.

    Args:
        run: The run's folder.
        step: The step, as in the log, `metrics.jsonl` and errors: 1 is the first.
        device, mode: As in `train`.
        plugins: Files of Python to run first.

    Raises InputError, for a step that the run did not reach among others, TrainingError.
    """
    folder = Path(run)
    if not (folder / files.RECIPE).is_file():
        raise InputError(f"{folder}: is not the folder of a run: it has no {files.RECIPE}")
    if step < 1:
        raise InputError(f"step {step}: steps are counted from 1, as in the log")
    saved = listing.newest_first(listing.scan(folder / save_dir(folder)))
    # each checkpoint has the recipe of the process that wrote it, which may have been changed at a resume
    after = [one.path / files.RECIPE for one in saved if one.step >= step and (one.path / files.RECIPE).is_file()]
    recipe = after[-1] if after else folder / files.RECIPE
    planned = plan(read(recipe), resume=str(folder), mode=mode, device=device, plugins=tuple(plugins))
    checkpoint = load_first_intact([one for one in saved if one.step < step])
    set_threads(planned.settings)
    with tempfile.TemporaryDirectory(prefix="phonate-replay-") as temporary:
        copy = Run(Path(temporary) / "run")
        copy.create(resuming=False)
        trainer = _Trainer(planned, copy, step)
        trainer.left_out |= _left_out(folder, step)
        trainer.train_source.leave_out(quarantine.read(folder / quarantine.FILE))
        if trainer.total_steps < step:
            raise InputError(f"step {step}: the run has {trainer.total_steps}")
        if not trainer.scheduled_by_losses:
            trainer.validator = None  # it changes nothing of what is trained
        start = 0 if checkpoint is None else checkpoint.metadata.global_step
        steps = f"step {step}" if start + 1 == step else f"steps {start + 1} to {step}"
        logger.info("computing %s of %s again", steps, folder)
        try:
            trainer.fit(checkpoint)
        except _Replayed:
            pass
        else:
            raise InputError(f"step {step}: the run ended before it, at {trainer.step}")
        replayed = trainer.replayed
        replayed.checkpoint = None if checkpoint is None else checkpoint.path
        _compare(replayed, folder, copy.path, trainer.logged)
    return replayed


class _Replayed(BaseException):
    """The step is done. Not an Exception, so that no handler on the way takes it for an error."""


class _Trainer(Trainer):
    """Trains up to one step, notes it and saves nothing."""

    def __init__(self, planned: Plan, run: Run, step: int) -> None:
        settings = planned.settings
        quiet = settings.logging.model_copy(update={**_REPORTS, "verbosity": "quiet", "log_metrics": None})
        shown = settings.validation.model_copy(update={"previews": False})
        settings = settings.model_copy(update={"logging": quiet, "validation": shown, "init_from": settings.init_from})
        super().__init__(planned.task, settings, run, device=planned.device, recipe=planned.resolved)
        self.replayed_step = step
        self.replayed = Replay(step, 0, None)
        self.logged: dict[str, float] = {}
        """What is logged at the step, where it is a step of a log line."""

    @property
    def scheduled_by_losses(self) -> bool:
        """Whether anything of what is trained depends on validations."""
        waiting = any(schedule.metric is not None for schedule in self.schedules.values())
        return bool(waiting or self.callbacks.on_validation_end or self.callbacks.on_validation_begin)

    def save(self, is_best: bool = False) -> None:
        """Save nothing."""

    def _step(self, group: Sequence[MicroBatch]) -> None:
        if self.step + 1 != self.replayed_step:
            super()._step(group)
            return
        replayed, meter, finite = self.replayed, self.train_step.meter, self.train_step.finite
        replayed.epoch = self.epoch
        replayed.samples = self._samples(group)
        finite.skips, finite.report = True, replayed.problems.append  # it is told, not raised
        before = meter.copy()
        meter.clear()
        super()._step(group)
        finite.flush()
        means = meter.means(self.train_step.weights, self.ranks)
        if replayed.problems:
            means |= {name: math.nan for one in replayed.problems for name in one.terms} | {"loss": math.nan}
        replayed.losses = means
        before.absorb(meter)
        if self.settings.logging.due(self.replayed_step):
            self.logged = before.means(self.train_step.weights, self.ranks)
        raise _Replayed

    def _samples(self, group: Sequence[MicroBatch]) -> list[ReplayedSample]:
        source = self.train_source
        assert isinstance(source, BatchSource)
        return [
            ReplayedSample(name, number, self._alone(source, name), source.preview(name, self.epoch))
            for number, planned in enumerate(group)
            for name in planned.ids
        ]

    @torch.no_grad()
    def _alone(self, source: BatchSource, name: str) -> float | None:
        """The loss of one sample."""
        if self.task.coupling is not Coupling.NONE:
            return None
        own = self.train_step
        self.task.step = self.step
        planned = source.alone(name, self.epoch)
        batch = move(planned.batch, self.device)
        self.model.eval()
        try:
            with own.precision.autocast():
                returned = self.task.loss(self.model, batch, own.phases.due(self.step)[-1].name)
            terms = counted(returned, planned.counts)
            return float(weighted_loss(terms, {n: c for n, (_, c) in terms.items()}, own.loss_weights(self.step)))
        finally:
            self.model.train()


def _left_out(folder: Path, step: int) -> set[int]:
    """Steps before `step` (from 0) whose batches the run passed over after a return to a checkpoint."""
    rows = _rows(Run(folder).metrics)
    return {row["after"] - 1 for row in rows if row.get("event") == "rolled back" and row["after"] < step}


def _compare(replayed: Replay, folder: Path, copy: Path, logged: Mapping[str, float]) -> None:
    """Note which logged steps were computed again, and which of them are not the same."""
    now = {row["step"]: row for row in _rows(Run(copy).metrics) if row["split"] == "train"}
    if logged:
        now[replayed.step] = {"loss": logged["loss"]}
    for row in _rows(Run(folder).metrics):
        if row["split"] == "train" and row["step"] in now and "loss" in row:
            replayed.compared.append(row["step"])
            if row["loss"] != now[row["step"]]["loss"]:
                replayed.differing[row["step"]] = (row["loss"], now[row["step"]]["loss"])


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the process was killed while it wrote
            continue
    return rows
