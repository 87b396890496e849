"""A run is a folder: the names of its files, and what is written when it begins."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.compute.system import ProcessLock, free_bytes, is_full, megabytes, write_whole
from phonate.config.documents import value_at
from phonate.config.errors import InputError, TrainingError, given_options, option, same_command
from phonate.config.words import number_of
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.files import folder_lock

if TYPE_CHECKING:
    from phonate.config.tasks import TaskInfo

_ID = "run_id"
_LOCK = ".lock"
SUMMARY = "model_summary.txt"
"""The parts of the model with their parameters."""
_BEFORE_TRAINING = frozenset(
    {
        _LOCK,
        _ID,
        "events",
        "hyperparameters.json",
        "init_from.txt",
        "logs",
        files.METRICS,
        SUMMARY,
        files.PLUGINS,
        "previews",
        "profile",
        "quarantine.jsonl",
        files.RECIPE,
        files.SYSTEM,
        "time.jsonl",
        "wandb",
    }
)
"""Files and folders that are there before the first step is done."""
_WRITING = re.compile(r"\.(.+)\.\d+|(?<=\.jsonl)\.new")
"""What a process that was killed while it wrote a file leaves."""


@dataclass(frozen=True)
class Run:
    """The folder of one training run."""

    path: Path
    resumed_by: str = ""
    """What the user sets to resume it, where that is neither the option nor the argument `resume`."""
    placed_by: str = ""
    """What the user sets to choose another folder, where that is neither the option nor the argument `output`."""

    @property
    def resume_option(self) -> str:
        """What the user sets to resume the run, for errors."""
        return self.resumed_by or option("resume", "auto")

    @property
    def resumed_with(self) -> str:
        """How the user resumes the run: the whole command, where one was given."""
        command = self.resume_command() if same_command("train", "resume", "auto") is not None else None
        if command is not None:  # the device is no part of a run
            command = shlex.join([*shlex.split(command), *given_options("mode", "device")])
        return self.resumed_by or command or self.resume_option

    @property
    def folder_option(self) -> str:
        """What the user sets to choose another folder, for errors."""
        return self.placed_by or option("output")

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / files.RECIPE

    @property
    def metrics(self) -> Path:
        """One JSON object a line: step, split, and metrics by name."""
        return self.path / files.METRICS

    @property
    def logs(self) -> Path:
        """Text logs."""
        return self.path / "logs"

    @property
    def log(self) -> Path:
        """What is told while it trains."""
        return self.logs / "training.log"

    @property
    def previews(self) -> Path:
        """Latest sounds and pictures of the task."""
        return self.path / "previews"

    def resume_command(self) -> str | None:
        """The command line that resumes this run. None where it has no recipe (it was started from Python)."""
        return listing.resume_command(self.path)

    def use(self, info: TaskInfo, recipe: Mapping[str, Any]) -> str:
        """The command that uses a model of its task, trained with `recipe`; what it is to say, if anything, in its
        language."""
        from phonate.text import language as languages

        commands = (
            command
            for options, command in info.use_with.items()
            if all(value_at(recipe, option.split(".")) for option in options)
        )
        said = languages.language(value_at(recipe, ("data", "language")) or "en").greeting
        return next(commands, info.use).format(run=shlex.quote(str(self.path)), text=shlex.quote(said))

    def create(self, resuming: bool) -> None:
        """Make the folder. One that holds a run is refused unless it is resumed; one of a run that failed before its
        first checkpoint and its first metrics is used again."""
        try:
            if not resuming and self.path.is_dir() and any(self.path.iterdir()) and not self._never_trained():
                raise self.taken()
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def taken(self) -> InputError:
        """The error for a new run in a folder that has one."""
        saved = listing.scan(self.path / listing.save_dir(self.path))
        steps = max((one.step for one in saved), default=0)
        number = next(number for number in count(2) if not self.path.with_name(f"{self.name}-{number}").exists())
        another = self.placed_by or option("output", str(self.path.with_name(f"{self.name}-{number}")))
        what = f"holds a run of {number_of(steps, 'step')}; continue it" if saved else "is not empty; continue its run"
        return InputError(f"{self.path} {what} with {self.resume_option}, or begin another with {another}")

    def _never_trained(self) -> bool:
        """Whether the folder holds what a run writes before it trains, and nothing else."""
        names = {_WRITING.sub(r"\1", entry.name) for entry in self.path.iterdir()}
        if not self.logs.is_dir() or not names <= {*_BEFORE_TRAINING, *Path(listing.save_dir(self.path)).parts[:1]}:
            return False
        if self.recipe.exists() and not (self.path / files.SYSTEM).exists():  # somebody's own recipe
            return False
        trained = self.metrics.exists() and self.metrics.stat().st_size > 0
        return not trained and not listing.has_checkpoint(self.path)

    def _unwritable(self, error: OSError) -> InputError:
        shown = str(self.path) if len(str(self.path)) <= 200 else f"{str(self.path)[:200]}..."
        return InputError(
            f"{shown}: can't make the run's folder ({error.strerror}); choose another with {self.folder_option}"
        )

    @contextlib.contextmanager
    def opened(self, resuming: bool) -> Iterator[None]:
        """Make the folder, and keep other processes from training into it within this block.

        Raises InputError as `create` does, CheckpointError when another process trains into it.
        """
        # of a name that is too long pathlib would raise, and `create` says it better
        missing = [folder for folder in (self.path, *self.path.parents) if not os.path.exists(folder)]
        self.create(resuming)
        try:
            lock = folder_lock(self.path)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if not listing.has_checkpoint(self.path):
                (self.path / _ID).unlink(missing_ok=True)  # of a start that failed
            yield
        except InputError:
            self._unmake(missing, lock)
            raise
        finally:
            lock.release()

    def _unmake(self, folders: Sequence[Path], lock: ProcessLock) -> None:
        """Remove the `folders` made for a training that was refused, unless there is more than its log in them."""
        begun = (files.PLUGINS, files.RECIPE, files.SYSTEM)
        own = {_LOCK, self.logs.name, *begun}
        with contextlib.suppress(OSError):  # what another has put there stays
            if not folders or {entry.name for entry in self.path.iterdir()} - own:
                return
            for file in (self.log, *(self.path / name for name in begun)):
                file.unlink(missing_ok=True)
            lock.release(remove=True)
            for folder in (self.logs, *folders):
                folder.rmdir()

    def full_disk_error(self, error: BaseException, step: int) -> TrainingError | None:
        """The error for a disk that was found full outside of a save, when `step` steps were done; else None."""
        if not (isinstance(error, OSError) and is_full(error)):
            return None
        where, elsewhere = (f"{error.filename}: ", "") if error.filename else ("", "; caches may be on another disk")
        free = f"{megabytes(free_bytes(self.path))} free in {self.path}{elsewhere}"
        return TrainingError(
            f"{where}disk full after step {step} ({free}); make room, then continue with: {self.resumed_with}"
        )

    def write(self, name: str, content: str) -> None:
        """Write a text file of the run, whole or not at all."""
        target = self.path / name
        try:
            write_whole(target, content.encode())
        except OSError as error:
            raise TrainingError(f"{target}: can't be written: {error.strerror}") from error

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file of the run."""
        self.write(name, json.dumps(content, indent=2, default=str) + "\n")

    def begin(self, recipe_yaml: str) -> None:
        """Write what a run resumes from that is stopped while its data are prepared, before it is described whole."""
        self.write_json(files.SYSTEM, system_info())
        if recipe_yaml:
            self.write(files.RECIPE, recipe_yaml)

    def describe(self, hyperparameters: Mapping[str, Any], recipe_yaml: str, model_summary: str) -> None:
        """Write what this run is: recipe, hyperparameters, model and machine."""
        self.begin(recipe_yaml)
        self.write_json("hyperparameters.json", hyperparameters)
        self.write(SUMMARY, model_summary)


def parameter_counts(run: Run) -> tuple[int, int] | None:
    """How many parameters the model of `run` has, and how many of them are trained, by the first line of its
    model_summary.txt; None where there is none."""
    path = run.path / SUMMARY
    line = path.read_text(encoding="utf-8").partition("\n")[0] if path.is_file() else ""
    counts = re.search(r"([\d,]+) parameters, ([\d,]+) trainable", line)
    return None if counts is None else (int(counts[1].replace(",", "")), int(counts[2].replace(",", "")))


def run_id(folder: Path, default: str | None = None) -> str:
    """The id of the run in `folder`: made once, when it is first asked for, and kept in the file `run_id`.

    `default` is taken instead of a new one where there is none yet.
    """
    file = folder / _ID
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        Run(folder).write(_ID, (default or secrets.token_hex(8)) + "\n")
    return file.read_text(encoding="utf-8").strip()


def _matmul_precision() -> str:
    """How fp32 matrix products are computed, by whichever of torch's two switches it was set: torch refuses to read
    the older one once the newer one was used."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return str(torch.backends.cuda.matmul.fp32_precision)


def system_info() -> dict[str, Any]:
    """What machine and software a run used."""
    import torch

    info: dict[str, Any] = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "hostname": platform.node(),
        "cpu_count": os.cpu_count(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "matmul_precision": _matmul_precision(),
        "cuda": torch.version.cuda,
        "command": sys.argv,
    }
    if torch.cuda.is_available():
        info["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return info
