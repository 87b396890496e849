"""What will be trained: a recipe as it was written, then with what it leaves to its data, each value with its origin.

Training, its dry run, searches, sessions, the demo, `explain` and `data` ask a `Plan`.
Imports no torch before a decision or a check needs it, so that a mistake in a recipe is reported at once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.compute.resources import Mode
from phonate.config.documents import Document, Key, read, shipped, value_at
from phonate.config.errors import DataError, InputError, PhonateError, RecipeError, all_packages
from phonate.config.registry import load_plugin, nearest
from phonate.config.resolve import (
    EPOCHS,
    MAX_STEPS,
    REQUIRED,
    Override,
    Overrides,
    Recipe,
    Resolved,
    gives,
    parse_overrides,
    resolve,
    resolve_document,
)
from phonate.config.tasks import Start, Traits, referred, task_class, task_info
from phonate.training.checkpoints.files import RECIPE
from phonate.training.checkpoints.listing import (
    checkpoints_folder,
    is_checkpoint,
    naming_plugins,
    newest_first,
    no_run,
    run_of,
    run_with,
    scan,
)

if TYPE_CHECKING:
    import torch

    from phonate.training.callbacks import Callback
    from phonate.training.settings import TrainingSettings
    from phonate.training.task import Task


TRIALS = "trials.csv"
"""File in the folder of a search with its runs."""
_INIT_FROM: Key = ("training", "init_from")
_OPTION = re.compile(r"(?:data|model|training)(?:\.\w+)+")
_WITHOUT: Mapping[Key, str] = {
    _INIT_FROM: "training starts from random weights",
    ("data", "vocoder"): "Griffin-Lim renders its mels",
}
"""Options that name what comes trained with phonate in some shipped recipes, and what holds where they are left out."""


def plan(
    source: str | Path | Document,
    overrides: Overrides = (),
    *,
    base: str | None = None,
    resume: str | bool | None = None,
    mode: Mode = "mixed",
    device: str | None = None,
    output: str | Path | None = None,
    plugins: tuple[Path, ...] = (),
    incomplete: bool = False,
    corpus: bool = True,
) -> Plan:
    """The plan of the recipe `source` (a file, a run's folder, a shipped name, or a document) with `overrides`.

    Args:
        base: A recipe under that of `source`.
        resume, mode, device, output: See `phonate.workflows.train.train`.
        plugins: Files of Python to run first.
        incomplete: Required options may be missing; what depends on the corpus is left open then.
        corpus: Whether the corpus is there already; if not, what depends on it is left open.

    Raises RecipeError for mistakes in the recipe, InputError for a plug-in that fails.
    """
    records = tuple(load_plugin(path) for path in plugins)
    document = source if isinstance(source, Document) else _read(source)
    under = None if base is None else read(base)
    changes = tuple(parse_overrides(overrides))
    with contextlib.nullcontext() if document.path is None else naming_plugins(document.path.parent):
        written = resolve_document(document, changes, under, incomplete=incomplete)
    is_there = corpus and REQUIRED not in written.origins.values()
    asked = ("auto" if resume else None) if isinstance(resume, bool) else resume
    planned = Plan(source, written, changes, under, asked, mode, device, output, records, is_there)
    return planned.but(then) if (then := planned.as_resumed) else planned


def _read(source: str | Path) -> Document:
    """Read a recipe. The error of a damaged one of a run says where there is a copy."""
    try:
        return read(source)
    except RecipeError as error:
        folder = Path(source) if Path(source).is_dir() else Path(source).parent
        saved = newest_first(scan(checkpoints_folder(folder))) if (folder / RECIPE).is_file() else []
        copies = [one.path / RECIPE for one in saved if (one.path / RECIPE).is_file()]
        if not copies:
            raise
        raise RecipeError(f"{error}; its copy is in {copies[0]}") from None


def earlier_options(recipe: Document) -> dict[str, Any]:
    """What stood for options that the recipe of a run does not have, in the version that wrote it."""
    try:
        options = task_info(str(recipe.values.get("task"))).earlier
    except InputError:  # an unknown task: resolving the recipe says so, and where
        return {}
    return {path: value for path, value in options.items() if not _has(recipe.values, path.split("."))}


def _has(values: Any, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


@dataclass(frozen=True)
class Plan:
    """What will be trained, where, and on what. Decisions are made once, when they are first needed."""

    source: str | Path | Document
    written: Resolved
    """The recipe as it was written."""
    overrides: tuple[Override, ...]
    base: Document | None = None
    asked_resume: str | None = None
    mode: Mode = "mixed"
    asked_device: str | None = None
    output: str | Path | None = None
    plugins: tuple[dict[str, str], ...] = ()
    """Path and SHA-256 of each plug-in."""
    corpus: bool = True
    """Whether the corpus is there, so that decisions can depend on it."""

    def but(self, changes: Mapping[str, Any]) -> Plan:
        """The plan with further overrides."""
        overrides = (*self.overrides, *parse_overrides(changes))
        document = self.written.document
        written = resolve_document(document, overrides, self.base, incomplete=not self.corpus)
        return replace(self, written=written, overrides=overrides)

    @cached_property
    def decisions(self) -> tuple[Start, ...]:
        """What the recipe leaves to its data, decided by its task; without a corpus as far as they need none.

        Raises DataError where the recordings can't be listed.
        """
        info = task_info(self.written.recipe.task)
        if info.start is None:
            return ()
        decided = []
        try:
            for one in referred(info.start)(self.written.recipe):
                decided.append(one)
        except DataError:
            if self.corpus:
                raise
        return tuple(one for one in decided if one.changes)

    @cached_property
    def decided(self) -> dict[Key, Override]:
        """Every option that was decided, with its value and what decided."""
        changes = [
            Override(tuple(name.split(".")), value, one.origin)
            for one in self.decisions
            for name, value in one.changes.items()
        ]
        return {change.path: change for change in changes}

    @cached_property
    def resolved(self) -> Resolved:
        """The recipe with what was decided."""
        if not self.decided:
            return self.written
        below = [change for path, change in self.decided.items() if path not in {*self._own, _INIT_FROM}]
        above = [change for path, change in self.decided.items() if path == _INIT_FROM]
        changes = [*below, *self.overrides, *above]
        return resolve_document(self.written.document, changes, self.base, incomplete=not self.corpus)

    @property
    def recipe(self) -> Recipe[Any, Any, Any]:
        """What is trained."""
        return self.resolved.recipe

    @property
    def settings(self) -> TrainingSettings:
        """Its section `training`."""
        settings: TrainingSettings = self.recipe.training
        return settings

    @property
    def reason(self) -> str:
        """The lines of `reasons`; "" where there is none."""
        return "\n".join(self.reasons())

    def reasons(self, begins: bool = True) -> list[str]:
        """What was decided, in a line for each decision that holds; of where training starts, and what was decided with
        that, only if it `begins`."""
        holding = {
            change.source + ".".join(path)
            for path, change in self.decided.items()  # not decided otherwise later
            if path not in self._own or self.written.value(path) == change.value
        }
        start = ".".join(_INIT_FROM)
        told = (one for one in self.decisions if holding & {one.origin + name for name in one.changes})
        earlier = set[str]() if begins else {one.origin for one in self.decisions if start in one.changes}
        untrained = [self._untrained] if begins and self._untrained else []
        return untrained + [one.reason for one in told if one.reason and one.origin not in earlier]

    @cached_property
    def _untrained(self) -> str:
        """What a recipe of one's own leaves out of what comes trained with phonate, and a shipped recipe takes; "" for
        nothing."""
        task, origins = self.written.recipe.task, self.written.origins
        open_ones = [path for path in _WITHOUT if origins.get(path) == "default"]
        if self.written.document.path is None or not open_ones:
            return ""
        lacking: dict[str, list[Key]] = {}
        for path in open_ones:
            if recipe := next((one for one in _recipes_of(task) if value_at(read(one).values, path)), None):
                lacking.setdefault(recipe, []).append(path)
        told = []
        for recipe, paths in lacking.items():
            taken = " and ".join(f"{'.'.join(path)}={value_at(read(recipe).values, path)}" for path in paths)
            told.append(f"{' and '.join(_WITHOUT[path] for path in paths)}; the recipe {recipe} has {taken}")
        return f"{self.written.document.name}: {'; '.join(told)}" if told else ""

    @cached_property
    def _own(self) -> set[Key]:
        """Decided options that overrides set, or a recipe of one's own unlike the shipped recipe of its task."""
        own = {
            path
            for path in (*self.decided, EPOCHS)
            if any(gives(change, path) for change in self.overrides) or _is_own(self.written, path)
        }
        if EPOCHS in own:
            own.add(MAX_STEPS)
        return (own & self.decided.keys()) - {_INIT_FROM}

    @cached_property
    def task(self) -> Task:
        """The task, which refuses what it can't train before the corpus is read. Raises InputError."""
        task: Task = task_class(self.recipe.task)(self.recipe)
        return task

    @cached_property
    def traits(self) -> Traits:
        """The task's, without torch where they need none. Raises InputError where the task can't train the recipe."""
        return self.task.traits if self._known_traits is None else self._known_traits

    @cached_property
    def _known_traits(self) -> Traits | None:
        """Those that are known without the task. Raises MissingPackageError with all that the recipe lacks."""
        from phonate.data.settings import RecordingData
        from phonate.training.trackers import check_trackers

        reference = task_info(self.recipe.task).traits
        with all_packages():
            if isinstance(self.recipe.data, RecordingData):
                self.recipe.data.require_packages()
            check_trackers(self.settings.logging)
            known: Traits | None = None if reference is None else referred(reference)(self.recipe)
        return known

    @cached_property
    def device(self) -> torch.device:
        """The device to train on. Raises InputError where there is none such."""
        from phonate.compute import device as devices

        if self.asked_device:
            return devices.choose(self.mode, self.asked_device)
        with self.placed("training.device: "):
            return devices.choose(self.mode, self.written.recipe.training.device)

    def require_files(self) -> None:
        """Refuse data that are not there, without reading them and without torch. What is to be downloaded is left to
        training. Raises DataError."""
        from phonate.data.corpora.manifest import require_corpora  # which import numpy
        from phonate.data.settings import RecordingData

        data = self.written.recipe.data
        with self.placed("data.path: "):
            if isinstance(data, RecordingData):
                require_corpora(data)
            elif hasattr(data, "require_files"):  # a task of one's own may leave it to its data set
                data.require_files()

    @property
    def resume(self) -> str | None:
        """`auto`, a run or a checkpoint to continue from; None: a new run."""
        settings: TrainingSettings = self.written.recipe.training
        return self.asked_resume or settings.checkpoint.resume

    @property
    def is_search(self) -> bool:
        """Whether the recipe describes a search for hyperparameters, not one run."""
        return self.written.recipe.training.tuning.library is not None

    @property
    def run(self) -> Path:
        """The folder to write to: `output`, or else the run that is resumed, or runs/<recipe>.

        With "auto", a recipe that is a run's or a search's own names that one.

        Raises InputError and CheckpointError where `resume` names nothing that can be resumed.
        """
        if self.output is not None:
            return Path(self.output)
        if self.resume in (None, "auto"):
            return self._own_run
        source = Path(self.resume)
        if self.is_search:
            return source
        if is_checkpoint(source):
            return run_of(source.parent)
        if not source.is_dir():
            what = f"no such run or checkpoint, nor auto, which goes on with {self._own_run}"
            raise no_run(self.resume, what, None if self.is_search else self.written.recipe.task)
        return source if checkpoints_folder(source) != source else run_of(source)

    @property
    def _own_run(self) -> Path:
        """The run that the recipe is of, where one is resumed; else the one that is called after it."""
        own = None if self.resume is None else self._run_of_recipe()
        return own or Path("runs") / self.written.name

    @property
    def as_resumed(self) -> dict[str, Any]:
        """Options that the resumed run does not have, as it was trained; but those that overrides set."""
        if self.resume is None or self.is_search:
            return {}
        try:
            folders = (self.run, *([] if self.resume == "auto" else [Path(self.resume)]))
        except PhonateError:  # nothing to resume: training says so
            return {}
        file = next((one / RECIPE for one in folders if (one / RECIPE).is_file()), None)
        options = {} if file is None else earlier_options(_read(file))
        own = {".".join(change.path) for change in self.overrides}
        return {path: value for path, value in options.items() if path not in own}

    def _run_of_recipe(self) -> Path | None:
        """The run or the search that wrote the recipe; None for any other recipe."""
        recipe = self.written.document.path
        if self.is_search:
            return recipe.parent if recipe is not None and (recipe.parent / TRIALS).is_file() else None
        return run_with(recipe)

    def check(self, world_size: int = 1, begins: bool | None = None, callbacks: Sequence[Callback] = ()) -> None:
        """Refuse what training would refuse before it reads the corpus, in its words. Raises InputError.

        `begins`: whether no checkpoint is resumed; None: as the plan says. `callbacks`: see `train`.
        """
        from phonate.training.checks import check_settings
        from phonate.training.metrics import direction_of

        with self.placed():
            _check_search_space(self.written)
            if self.is_search:
                direction_of(self.settings, task_info(self.recipe.task).metrics)
            begins = self.resume is None and self.corpus if begins is None else begins
            check_settings(self.traits, self.settings, world_size, begins, callbacks)

    @contextlib.contextmanager
    def placed(self, about: str = "") -> Iterator[None]:
        """Within this block an InputError that begins with an option, or is `about` one, also begins with the place in
        the recipe's file where that is set, if it is."""
        try:
            yield
        except InputError as error:
            message = str(error) if _OPTION.match(str(error)) else f"{about}{error}"
            document, option = self.written.document, _OPTION.match(message)
            path = tuple(option[0].split(".")) if option else ("",)
            section = document.places.get(path)
            place = self.written.origins.get(path, section.key if section else "")
            if document.path is not None and place.startswith(f"{document.name}:"):
                error.args = (f"{place} {message}", *error.args[1:])
            raise


def _check_search_space(resolved: Resolved) -> None:
    known = {".".join(path) for path in resolved.origins if path[:2] != ("training", "tuning")}
    for path in resolved.recipe.training.tuning.search_space:
        if path not in known and not any(one.startswith(f"{path}.") for one in known):
            ends = sorted(one for one in known if one.endswith(f".{path}"))
            hint = f"did you mean {' or '.join(ends)}?" if ends else nearest(path, sorted(known))
            raise RecipeError(f"training.tuning.search_space: no option {path!r}; {hint}")


def _is_own(resolved: Resolved, path: Key) -> bool:
    """Whether a recipe of one's own sets this option unlike the shipped recipe of its task."""
    task, is_written = resolved.recipe.task, path in resolved.document.places
    if not is_written or task not in shipped():
        return is_written
    return bool(_usual(task, resolved.recipe.size).value(path) != resolved.value(path))


@lru_cache(maxsize=16)
def _recipes_of(task: str) -> tuple[str, ...]:
    """The shipped recipes of a task, the one of its name first."""
    return tuple(
        sorted((one for one in shipped() if read(one).values.get("task") == task), key=lambda one: one != task)
    )


@lru_cache(maxsize=4)
def _usual(task: str, size: str) -> Resolved:
    return resolve(task, {"size": size}, incomplete=True)
