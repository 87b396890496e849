"""Tasks by name: settings without torch first, the task's code only when it runs.

A task is a package with two modules: `settings`, free of torch, with the constants DATA and MODEL (Settings
classes), and, where they are needed, `SIZES: {size: {"model": {...}, "training": {...}}}`, `KINDS: {kind: SIZES}` for
values of `model.kind` with sizes of their own, TRAINING (a subclass of the trainer's settings), and
`INFO: TaskInfo`, which declares what the task offers to the rest of phonate; and `task`, with the class
`<Name>Task(recipe)`. Packages under `phonate.tasks` are found by their folder's name, those of other distributions by
an entry point of group `phonate.tasks` (`name = "package.module"`), and a single plug-in file calls
`TASKS.register("name", TaskEntry(...))`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Literal

from phonate.config.errors import InputError, option
from phonate.config.metrics import Metric
from phonate.config.registry import Registry, load, public_object
from phonate.config.settings import Settings

Sizes = Mapping[str, Mapping[str, Any]]

_TRAINING = "phonate.training.settings:TrainingSettings"


Reference = str | Callable[..., Any]
"""An object, or the `module:name` string of one that is imported when it is used."""


@dataclass(frozen=True)
class SessionInfo:
    """How `phonate session` trains a task."""

    data: Literal["recordings", "texts"]
    """What it is trained on."""
    needs_text: bool = False
    """Recordings without a text are of no use to it."""
    default_for: Literal["transcribed recordings", "recordings", "texts"] | None = None
    """The data for which a session chooses this task by itself."""
    pretrained_recipe: str | None = None
    """The shipped recipe for a configuration that names a pretrained model (`model.name`); None: the task's own."""
    defaults: Reference | None = None
    """`defaults(language) -> {"data.path": ..., ...}`: overrides for recordings in that language (en, de, ...), below
    what the configuration says."""


@dataclass(frozen=True)
class Start:
    """What a recipe left to its language, its recordings or this installation, as decided before training."""

    changes: Mapping[str, Any]
    """Options and their values, which overrides replace, except `training.init_from`."""
    reason: str
    """One line for the log."""
    origin: str = "data"
    """What decided, in a few words for `phonate explain`, such as `data: 8.0 minutes`."""


class Coupling(Enum):
    """What the loss of an item depends on besides the item itself."""

    NONE = "none"
    """Nothing. Batches may be spread over ranks, and halved when memory runs out."""
    MICRO_BATCH = "micro-batch"
    """The other items of its micro-batch (e.g. InfoNCE). Never halved. With several ranks, the loss sees the items of
    the others where it asks for them (`phonate.compute.distributed.of_all_ranks`)."""
    BATCH = "batch"
    """All items of the batch. Never halved, and refused with several ranks."""


@dataclass(frozen=True)
class Traits:
    """What training asks of a task before it reads the corpus; see the attributes of `phonate.training.task.Task`."""

    metrics: tuple[Metric, ...] | None
    """None: the task does not declare them."""
    terms: frozenset[str]
    """Names of the terms that have a weight."""
    coupling: Coupling = Coupling.NONE
    random_features: bool = False
    divides: bool = False
    """Whether its weights can be divided over ranks (`Task.blocks`)."""


@dataclass(frozen=True)
class TaskInfo:
    """What a task offers to the command line, sessions, reports and Python, all of it optional."""

    inference: Reference | None = None
    """The subclass of `phonate.training.inference.Inference` that `phonate.load` returns."""
    pretrained: tuple[str, ...] = ()
    """What its inference also loads, trained elsewhere: X for the names X and X/ANYTHING."""
    evaluation: Reference | None = None
    """`evaluate(run, data, *, device, **options) -> Evaluation`, for `phonate evaluate`."""
    tuning: Reference | None = None
    """`tune(run, *, device)`: chooses what inference decides with on validation data and writes it to the run,
    before `phonate evaluate --tune` evaluates."""
    export: Reference | None = None
    """`export(source, target, form, **options) -> [files]`, for `phonate checkpoints export --format`."""
    formats: tuple[str, ...] = ()
    """What `export` writes: onnx, for example."""
    export_options: tuple[str, ...] = ()
    """Names of the options that `export` takes as keywords, such as dtype."""
    merge: Reference | None = None
    """`merge(request: MergeRequest) -> MergeReport`, for `phonate checkpoints merge`: adapters added to their base."""
    options: tuple[str, ...] = ()
    """Names of the options that inference and evaluation take as keywords, such as vocoder."""
    session: SessionInfo | None = None
    """How a session trains it; None: sessions do not."""
    implied_by: tuple[str, ...] = ()
    """Options, such as training.eval_knobs.label_type, that make a recipe without `task` one of this task."""
    model_types: tuple[str, ...] = ()
    """`model_type` in the config.json of models, merged or pretrained, that its inference loads as they are."""
    model_keys: tuple[str, ...] = ()
    """Keys that tell such models by their config.json where that has no `model_type`, as CTranslate2's have none."""
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other top-level keys of its recipes -> the paths of the sections whose options may stand under them, such as
    `{"global_config": ("data.audio", "data")}`; or the path of one option, whose value it is."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Options that may also be written elsewhere, such as
    `{"model.global_config.batch_size": "training.batch_size"}`: the second takes the value of the first where it has
    none itself."""
    start: Reference | None = None
    """`start(recipe) -> Iterable[Start]`: options that a recipe leaves to the data, decided before training; first what
    needs no look at the corpus, which may not be there yet."""
    rehearsal: Reference | None = None
    """`rehearsal(recipe) -> Start`: what a dry run changes so that it takes no minutes to prepare, and what its
    estimate leaves out by that. None: nothing."""
    traits: Reference | None = None
    """`traits(recipe) -> Traits | None`: the task's traits as far as they need no torch, so that `phonate explain`
    answers at once. It raises InputError for a recipe that the task can't train. None: only the task itself knows."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Options that runs of earlier versions did not have, such as `{"data.f0_method": "yin"}`: what stood for them."""
    metrics: tuple[Metric, ...] | None = None
    """What its validation may report besides loss terms. None: not declared here (`Task.metrics` may)."""
    validation: str = ""
    """What its validation measures, where evaluation measures otherwise or not at all, in a sentence."""
    hub_task: str | None = None
    """What the Hugging Face Hub calls it: text-to-speech."""
    use: str = ""
    """The command that uses a trained model, for the last line of training, with `{run}` for the run's folder,
    and `{text}` for a sentence in its language."""
    use_with: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """Options -> the command for models of recipes that set all of them."""
    recipe: str = ""
    """The shipped recipe to begin with, which errors name. Empty: the one called as the task, if there is one."""
    previews: Mapping[str, str] = field(default_factory=dict)
    """Sounds and pictures that its validations show (`Task.previews`), in the order of a report -> what they are. The
    picture of a sound is not named: reports draw their own."""
    facts: Reference | None = None
    """`facts(inference_metadata) -> {label: text}`: rows of a report's table."""


@dataclass(frozen=True)
class TaskSettings:
    """The settings classes of a task."""

    data: type[Settings]
    model: type[Settings]
    training: type[Settings]
    sizes: Sizes
    """Preset by size: a part of a recipe."""
    kinds: Mapping[str, Sizes] = field(default_factory=dict)
    """The presets of those values of `model.kind` that have their own."""

    def sizes_of(self, kind: Any) -> Sizes:
        """The presets for a `model.kind`."""
        return self.kinds.get(kind, self.sizes) if isinstance(kind, str) else self.sizes


@dataclass(frozen=True)
class TaskEntry:
    """A task registered by a plug-in."""

    data: type[Settings]
    model: type[Settings]
    task: Any
    """The task's class, called with the recipe, or a `module:name` string."""
    sizes: Sizes = field(default_factory=dict)
    training: type[Settings] | None = None
    info: TaskInfo = TaskInfo()


class TaskRegistry(Registry[Any]):
    """The registry of tasks: every folder of `package` that has settings is one, so that the core names none."""

    def __init__(self, package: str, group: str | None = None) -> None:
        super().__init__("task", group=group)
        self.package = package

    def own(self) -> Mapping[str, str]:
        """The tasks in the package's folders."""
        return _tasks_in(self.package)


@cache
def _tasks_in(package: str) -> Mapping[str, str]:
    """A task and its package. One start asks for them 30 times, so the folders are read once."""
    spec = importlib.util.find_spec(package)
    folders = pkgutil.iter_modules(list(spec.submodule_search_locations or []) if spec else [])
    packages = {folder.name: f"{package}.{folder.name}" for folder in folders}
    return {name: own for name, own in packages.items() if _has_module(own, "settings")}


def _has_module(package: str, name: str) -> bool:
    spec = importlib.util.find_spec(package)
    return bool(spec and spec.submodule_search_locations and importlib.util.find_spec(f"{package}.{name}"))


TASKS = TaskRegistry("phonate.tasks", group="phonate.tasks")


def task_settings(name: str) -> TaskSettings:
    """The settings classes of task `name`, without its code. Raises InputError for unknown names."""
    entry = TASKS.find(name)
    if isinstance(entry, TaskEntry):
        return TaskSettings(entry.data, entry.model, entry.training or load(_TRAINING), entry.sizes)
    module = importlib.import_module(f"{entry}.settings")
    missing = [constant for constant in ("DATA", "MODEL") if not hasattr(module, constant)]
    if missing:
        raise InputError(f"{entry}.settings has no {' and no '.join(missing)}, so it describes no task")
    training = getattr(module, "TRAINING", None) or load(_TRAINING)
    sizes, kinds = getattr(module, "SIZES", {}), getattr(module, "KINDS", {})
    return TaskSettings(module.DATA, module.MODEL, training, sizes, kinds)


def task_class(name: str) -> Any:
    """The class of task `name`; calling it with a recipe gives the task."""
    entry = TASKS.find(name)
    if isinstance(entry, TaskEntry):
        return load(entry.task) if isinstance(entry.task, str) else entry.task
    return public_object(importlib.import_module(f"{entry}.task"), name, "task")


def task_info(name: str) -> TaskInfo:
    """What task `name` offers, without its code. Raises InputError for unknown names."""
    entry = TASKS.find(name)
    if isinstance(entry, TaskEntry):
        return entry.info
    info: TaskInfo = getattr(importlib.import_module(f"{entry}.settings"), "INFO", TaskInfo())
    return info


def require_options(task: str, options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Those of `given` that are not None. Raises InputError for one that is not in `known`, those of the task."""
    chosen = {name: value for name, value in options.items() if value is not None}
    for name in chosen:
        if name not in known:
            raise InputError(f"{option(name)}: the task {task} has no use for it; leave it out")
    return chosen


def referred(reference: Reference) -> Any:
    """The object of a reference, imported now."""
    return load(reference) if isinstance(reference, str) else reference


def shortened(names: Collection[str], most: int = 20) -> str:
    """The `names` for a table, or how many there are where they are more than `most`."""
    return ", ".join(names) if len(names) <= most else f"{len(names)}"
