"""Settings: the base class, the options that a class describes, and mistakes in them as one line each."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from phonate.config.documents import SHIPPED, Key, Place, parse_value
from phonate.config.errors import InputError, RecipeError, in_command
from phonate.config.registry import Named, load, nearest

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _OneLineErrors(ModelMetaclass):
    """Makes a call of the class raise InputError, one line for each mistake. Validation of documents is not a call."""

    if not TYPE_CHECKING:  # type checkers see pydantic's signature

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise InputError("\n".join(call_mistake_lines(error, cls, values))) from None


class Settings(BaseModel, metaclass=_OneLineErrors):
    """Frozen, typed settings. Unknown keys are mistakes; the docstring under a field is its documentation.

    One class feeds the YAML recipe, dotted overrides, the reference page and the JSON schema. Modules that
    define settings import no torch, so that a mistake in a recipe is reported in well under a second.
    Calling the class with a mistake raises InputError.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        defer_build=True,  # most classes are parts of a recipe's, which is built whole
    )

    @classmethod
    def documentation(cls) -> Mapping[str, str]:
        """The docstring under each field, inherited ones included.

        The source is read when this is asked for, as that takes longer than to resolve a recipe.
        """
        return _documentation(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema, with the docstrings as descriptions."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in cls.documentation().items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema

    refused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that other projects have here -> why there is no such option, and what to use instead."""

    inherits: ClassVar[Mapping[str, str]] = {}
    """Sections -> the section whose options they have where their own are not written."""


@functools.cache
def _documentation(cls: type[Settings]) -> dict[str, str]:
    """Field -> the string that follows its annotation in the body of the class, or of the nearest class above it."""
    texts: dict[str, str] = {}
    for one in cls.__mro__[::-1]:
        if not issubclass(one, Settings) or one.__pydantic_generic_metadata__["origin"] is not None:
            continue
        try:
            source = textwrap.dedent(inspect.getsource(one))
        except (OSError, TypeError):  # made by a call, not written
            continue
        body = getattr(ast.parse(source).body[0], "body", [])
        for field, after in itertools.pairwise(body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = inspect.cleandoc(text)
    return texts


# ------------------ The options of settings classes, for error messages, the reference and `explain`


@dataclass(frozen=True)
class Option:
    """One option of a recipe."""

    path: tuple[str, ...]
    field: FieldInfo
    owner: type[Settings]
    """The settings class of the field."""

    @property
    def key(self) -> str:
        """Its dotted path."""
        return ".".join(self.path)

    @property
    def description(self) -> str:
        """The docstring under the field, on one line."""
        text = self.field.description or self.owner.documentation().get(self.path[-1], "")
        return " ".join(text.split())


def section(annotation: Any) -> type[Settings] | None:
    """The settings class that a field holds: of `X`, `X | None` or `Annotated[X, ...]`, but not of lists."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    origin = get_origin(annotation)
    if origin in (list, tuple, dict, set, frozenset):
        return None
    return next((inner for part in get_args(annotation) if (inner := section(part))), None)


def _sections(annotation: Any) -> list[type[Settings]]:
    """All settings classes in a type, including those of list items and mapping values."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [inner for part in get_args(annotation) for inner in _sections(part)]


def options(settings: type[Settings], prefix: tuple[str, ...] = ()) -> Iterator[Option]:
    """Every option under `settings`, depth first in the order of declaration; sections are not listed."""
    for name, info in settings.model_fields.items():
        inner = section(info.annotation)
        if inner is None:
            yield Option((*prefix, name), info, settings)
        else:
            yield from options(inner, (*prefix, name))


def _classes_at(settings: type[Settings], path: tuple[str, ...]) -> list[type[Settings]]:
    """The settings classes whose options may stand under `path`."""
    classes: list[type[Settings]] = [settings]
    for part in path:
        fields = [one.model_fields[part] for one in classes if part in one.model_fields]
        if fields:
            classes = [inner for info in fields for inner in _sections(info.annotation)]
    return classes


def names_at(settings: type[Settings], path: tuple[str, ...]) -> list[str]:
    """The option names that may stand under `path`."""
    return sorted({name for one in _classes_at(settings, path) for name in one.model_fields})


def refusal(settings: type[Settings], path: tuple[str, ...]) -> str | None:
    """Why there is no option at `path`, where a settings class says so (`Settings.refused_keys`)."""
    return next(
        (one.refused_keys[path[-1]] for one in _classes_at(settings, path[:-1]) if path[-1] in one.refused_keys),
        None,
    )


def option_at(settings: type[Settings], path: tuple[str, ...]) -> Option | None:
    """The option at `path`, or none."""
    option: Option | None = None
    current: type[Settings] | None = settings
    for part in path:
        if current is None or part not in current.model_fields:
            return None
        option = Option(path, current.model_fields[part], current)
        current = section(option.field.annotation)
    return option


def takes_text(settings: type[Settings], path: tuple[str, ...]) -> bool:
    """Whether the option at `path` is a text, or null, and nothing else."""
    option = option_at(settings, path)
    return option is not None and _is_text(option.field.annotation)


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    members = [part for part in get_args(annotation) if part is not NoneType]
    return annotation is str or (get_origin(annotation) in (Union, UnionType) and all(map(_is_text, members)))


def describe(settings: type[Settings], path: tuple[str, ...]) -> str:
    """The docstring of the option at `path`, or nothing."""
    option = option_at(settings, path)
    return option.description if option else ""


def unknown_names(settings: Settings, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str, str]]:
    """Path, kind, name and hint of each name in `settings` that is not in its registry (see `Named`)."""
    for key, info in type(settings).model_fields.items():
        value, path = getattr(settings, key), (*prefix, key)
        if isinstance(value, Settings):
            yield from unknown_names(value, path)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if isinstance(item, Settings):
                    yield from unknown_names(item, (*path, str(index)))
        for mark in info.metadata:
            if isinstance(mark, Named):
                registry = load(mark.registry)
                for name, place in _names(value, path):
                    if name not in registry.names():
                        yield place, registry.kind, name, nearest(name, registry.names())


def _names(value: Any, path: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The names that a `Named` field holds, and their paths: its text, or the keys of its mapping."""
    if isinstance(value, dict):
        return [(name, (*path, name)) for name in value]
    return [(value, path)] if isinstance(value, str) else []


# ------------------------- Other projects' names for our options: each is refused with the name to use

ELSEWHERE = {
    "learning_rate": "training.optimizer.lr",
    "lr": "training.optimizer.lr",
    "optimizer_type": "training.optimizer.type",
    "scheduler_type": "training.scheduler.type",
    "lr_scheduler_type": "training.scheduler.type",
    "warmup_steps": "training.scheduler.warmup_steps",
    "weight_decay": "training.optimizer.weight_decay",
    "num_epochs": "training.epochs",
    "num_train_epochs": "training.epochs",
    "num_steps": "training.max_steps",
    "steps": "training.max_steps",
    "seed": "training.random_seed",
    "gradient_clip": "training.gradient_clipping",
    "max_grad_norm": "training.gradient_clipping",
    "accumulation_steps": "training.gradient_accumulation_steps",
    "use_amp": "training.mixed_precision",
    "use_mixed_precision": "training.mixed_precision",
    "precision": "training.mixed_precision",
    "fp16": "training.mixed_precision",
    "bf16": "training.mixed_precision",
    "per_device_train_batch_size": "training.batch_size",
    "batch_size": "training.batch_size",
    "num_workers": "training.performance.num_workers",
    "dataloader_num_workers": "training.performance.num_workers",
    "save_interval": "training.checkpoint.interval",
    "save_every": "training.checkpoint.interval",
    "save_steps": "training.checkpoint.interval",
    "checkpoint_dir": "training.checkpoint.save_dir",
    "max_checkpoints": "training.checkpoint.save_total_limit",
    "save_total_limit": "training.checkpoint.save_total_limit",
    "log_interval": "training.logging.interval",
    "logging_steps": "training.logging.interval",
    "use_wandb": "training.logging.wandb",
    "validate_interval": "training.validation.interval",
    "validate_every": "training.validation.interval",
    "eval_steps": "training.validation.interval",
    "early_stopping_patience": "training.early_stopping.patience",
    "early_stopping_min_delta": "training.early_stopping.min_delta",
    "loss_weights": "training.loss.weights",
    "loss_type": "training.loss.main",
    "corpus": "data.path",
    "data": "data.path",
    "data_dir": "data.path",
    "dataset": "data.path",
    "language": "data.language",
    "path": "data.path",
    "target": "data.target",
    "target_speaker": "data.target",
    "validation_split": "data.validation",
    "val_split": "data.validation",
    "test_mode": "data.limit",
    "model_size": "size",
    "enable_profiling": "training.performance.profile_batches",
    "hardware": "training.performance",
    "monitoring": "training.logging",
    "wandb_run_name": "training.logging.wandb_name",
    "log_level": "training.logging.verbosity",
    "model_path": "model.name",
    "audio_tokenizer_path": "model.codec",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "r": "model.lora.rank",
    "lora_alpha": "model.lora.alpha",
    "lora_dropout": "model.lora.dropout",
    "target_modules": "model.lora.targets",
    "target_modules_mode": "model.lora.mode",
    "use_rslora": "model.lora.rslora",
    "use_dora": "model.lora.dora",
    "chatml_file": "data.path",
    "data_path": "data.path",
    "min_audio_duration": "data.min_seconds",
    "max_audio_duration": "data.max_seconds",
    "min_text_length": "data.min_characters",
    "max_text_length": "data.max_tokens",
    "enable_curriculum_learning": "training.loss.curriculum_steps",
}
"""Their last key -> our path."""


# --------------------- Pydantic's errors as one line each: place, option, what is wrong, how to fix it

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "literal_error": "{expected}",
    "greater_than": "a number > {gt}",
    "greater_than_equal": "a number >= {ge}",
    "less_than": "a number < {lt}",
    "less_than_equal": "a number <= {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "string_pattern_mismatch": "text like {pattern}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
}
"""Pydantic's error types -> what was expected, filled in from the error's context."""

_ABSENT = {"missing", "extra_forbidden"}


def mistake_lines(
    error: ValidationError, root: type[Settings], values: Any, places: Mapping[Key, Place], name: str
) -> list[str]:
    """One line for each mistake, in the order in which they were written.

    `root` is the settings class that refused `values`; `places` says where each path was written and `name`
    is the document's, for options that are missing altogether.
    """
    by_path: dict[Key, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_path.setdefault(path_in(detail, values), []).append(detail)
    for path in [path for path, details in by_path.items() if details[0]["type"] == "extra_forbidden"]:
        for meant in _meant(path, root):
            if any(one["type"] == "missing" for one in by_path.get(meant, ())):  # written, but misspelt
                del by_path[meant]
    order = {path: position for position, path in enumerate(places)}
    written = sorted(by_path.items(), key=lambda item: order.get(item[0], order.get(item[0][:-1], len(order))))
    return [_line(path, details, root, places, name) for path, details in written]


def call_mistake_lines(error: ValidationError, root: type[Settings], values: Mapping[str, Any]) -> list[str]:
    """One line for each mistake in `root(**values)`, such as `AudioConfig.hop: no such option; did you mean ...?`."""
    by_path: dict[Key, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_path.setdefault(path_in(detail, dict(values)), []).append(detail)
    return [_call_line(path, details, root) for path, details in by_path.items()]


def _call_line(path: Key, details: list[ErrorDetails], root: type[Settings]) -> str:
    key = ".".join([root.__name__, *path])
    kinds = {detail["type"] for detail in details}
    if "missing" in kinds:
        return f"{key}: missing required option"
    if "extra_forbidden" in kinds:
        return f"{key}: {refusal(root, path) or f'no such option; {instead(path, root)}'}"
    return f"{key}: {refused(details)}"


def refused(details: list[ErrorDetails], written: str | None = None) -> str:
    """What is wrong with a value, and what was given. `written`: a number as it was written."""
    value = details[0]["input"]
    shown = written or _quoted(value)
    got = f", got {shown}"
    own = [str(detail["ctx"]["error"]) for detail in details if detail["type"] == "value_error"]
    if own:
        return own[0] + ("" if isinstance(value, dict) else got)
    return f"expected {_expected(details)}{got}{_remedy(value, shown, {detail['type'] for detail in details})}"


def path_in(detail: ErrorDetails, values: Any) -> Key:
    """The path in the document. Pydantic mixes the tried members of unions into it; those are left out."""
    path: list[str] = []
    location = detail["loc"]
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(values, dict) and str(part) in values:
            values = values[str(part)]
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        elif not (last and detail["type"] in _ABSENT):
            continue
        path.append(str(part))
    return tuple(path)


def _line(path: Key, details: list[ErrorDetails], root: type[Settings], places: Mapping[Key, Place], name: str) -> str:
    kinds = {detail["type"] for detail in details}
    place = places[path] if path in places else Place.of(name)
    key = place.written or ".".join(path)
    if "missing" in kinds:
        meaning = re.split(r"[.;:](?: |$)", describe(root, path))[0]
        above = [path[:length] for length in range(len(path) - 1, 0, -1)]
        nearest_key = next((places[upper].key for upper in above if upper in places), name)
        if path[-1].isdecimal():
            return f"{nearest_key} {key}: missing, the list is too short"
        meant = f" ({meaning})" if meaning else ""
        if name.startswith(SHIPPED):  # nobody can write it there
            recipe = name.removeprefix(SHIPPED).removesuffix(".yaml")
            call = (
                f"phonate train {recipe} {key}=..." if in_command() else f'phonate.train("{recipe}", {{"{key}": ...}})'
            )
            return f"{key}: missing; give it as in {call}{meant}"
        return f"{nearest_key} {key}: missing required option; give {key}=...{meant}"
    if "extra_forbidden" in kinds:
        in_file = place.key != place.value  # elsewhere, the option is written with those above it
        return f"{place.key} {key}: {refusal(root, path) or f'no such option; {instead(path, root, short=in_file)}'}"
    where = f"{place.value} {key}".rstrip()
    given = details[0]["input"]
    takes_path = isinstance(given, str) and "path" in names_at(root, path)
    below = f"; did you mean {shlex.quote(f'{key}.path={given}')}?" if takes_path else ""
    return f"{where}: {refused(details, place.text)}{below}"


def _meant(path: Key, root: type[Settings]) -> list[Key]:
    """The options that one that does not exist may stand for."""
    known = names_at(root, path[:-1])
    last = path[-1]
    if elsewhere := _called_elsewhere(path, root):
        return [elsewhere]
    synonyms = [name for name in known if last in ELSEWHERE and ELSEWHERE.get(name) == ELSEWHERE[last]]
    near = synonyms or difflib.get_close_matches(last, known, n=1, cutoff=0.6)
    near = near or [name for name in known if name.startswith(f"{last}_") or name.endswith(f"_{last}")]
    if near:
        return [(*path[:-1], name) for name in near]
    paths = [option.path for option in options(root) if last in option.path]
    return list(dict.fromkeys(path_of_option[: path_of_option.index(last) + 1] for path_of_option in paths))


def _called_elsewhere(path: Key, root: type[Settings]) -> Key:
    """The option that other projects call as the last part of `path`; empty where there is none."""
    *above, name = ELSEWHERE.get(path[-1], "").split(".")
    known = path[-1] not in names_at(root, path[:-1]) and name in names_at(root, tuple(above))
    return (*above, name) if known else ()  # some belong to tasks with recordings


def instead(path: Key, root: type[Settings], *, short: bool = True) -> str:
    """What to write instead of an option that does not exist. `short`: without the sections that it is in, too."""
    if elsewhere := _called_elsewhere(path, root):
        return f"phonate calls it {'.'.join(elsewhere)}"
    if meant := _meant(path, root):
        names = (one[-1] if short and one[:-1] == path[:-1] else ".".join(one) for one in meant)
        return f"did you mean {' or '.join(names)}?"
    known = names_at(root, path[:-1])
    return "the options are " + ", ".join(known) if known else "nothing can be set here"


def _expected(details: list[ErrorDetails]) -> str:
    phrases = []
    for detail in details:
        template = _EXPECTED.get(detail["type"])
        message = detail["msg"].removeprefix("Input should be ").replace("Input should ", "")
        phrases.append(template.format(**detail.get("ctx", {})) if template else message)
    return ", or ".join(dict.fromkeys(phrases))


def _quoted(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _remedy(value: Any, shown: str, kinds: set[str]) -> str:
    """How to fix common slips: quoted numbers, YAML 1.1's booleans, 2.0 for 2."""
    if isinstance(value, str) and kinds & {"int_type", "float_type"} and _is_number(value):
        return f"; write {value.strip()} without quotes"
    if isinstance(value, (int, float)) and kinds == {"string_type"}:
        return f"; put it in quotes, as in '\"{shown}\"'"
    if isinstance(value, str) and "bool_type" in kinds and value.lower() in {"yes", "no", "on", "off"}:
        return f"; write {'true' if value.lower() in {'yes', 'on'} else 'false'}"
    if isinstance(value, float) and "int_type" in kinds and value.is_integer():
        return f"; write {int(value)}"
    return ""


def _is_number(text: str) -> bool:
    """Whether a YAML value is a number when it is written without quotes."""
    try:
        value = parse_value(text, "")
    except RecipeError:
        return False
    return isinstance(value, (int, float)) and not isinstance(value, bool)
