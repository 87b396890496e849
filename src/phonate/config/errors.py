"""Errors a person can act on: each says in one line what went wrong, where, and how to fix it."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import json
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

logger = logging.getLogger("phonate")

# --------- Errors a person can act on. Each says in one line what went wrong, where, and how to fix it


class PhonateError(Exception):
    """Base of all errors that phonate raises deliberately. Exit code 1 unless a subclass sets another."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes, also those whose classes take more than a message."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[PhonateError], args: tuple[Any, ...], values: Mapping[str, Any]) -> PhonateError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


class InputError(PhonateError, ValueError):
    """Invalid input: a recipe, a recording, an option. Exit code 2."""

    exit_code = 2


class RecipeError(InputError):
    """A mistake in a recipe or an override; the message begins with `file:line:column key`."""


class DataError(InputError):
    """A corpus, a manifest or a recording can't be used; the message names the file or the row."""


class MissingPackageError(InputError):
    """An optional package is missing; the message has the command that installs it."""


class CheckpointError(PhonateError):
    """A checkpoint can't be written, found, verified or loaded."""


class WrongTaskError(InputError, CheckpointError):
    """A checkpoint holds a model of another task than the one that was asked for."""


class NoRunError(InputError, CheckpointError):
    """A folder that was given as a run holds no checkpoints.

    Args:
        message: For people.
        path: What was given.
        what: What is wrong with it.
    """

    def __init__(self, message: str, path: str | Path, what: str) -> None:
        super().__init__(message)
        self.path, self.what = path, what


class TrainingError(PhonateError):
    """Training can't continue (a loss that is not finite, a full disk, ...)."""


class Interrupted(PhonateError):
    """A signal ended the work, after saving where there was anything to save.

    Args:
        message: For people.
        signal_number: 1 (SIGHUP), 2 (Ctrl-C) or 15 (SIGTERM).
        step: The optimizer step at which training stopped. None: it had not begun.
        checkpoint: The checkpoint of that step. None: nothing was saved.
        command: The command line that resumes the run. None: there is no recipe to resume it from.
    """

    def __init__(
        self,
        message: str,
        signal_number: int,
        *,
        step: int | None = None,
        checkpoint: Path | None = None,
        command: str | None = None,
    ) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.step = step
        self.checkpoint = checkpoint
        self.command = command
        self.exit_code = 128 + signal_number


_command: tuple[str, ...] | None = None
"""The words behind `phonate`, where a command is what the user gave, not a call of Python."""


@contextlib.contextmanager
def command_line(words: Sequence[str] = ()) -> Iterator[None]:
    """Within this block the user gave the command `phonate WORDS`, and errors name its options."""
    global _command
    before, _command = _command, tuple(words)
    try:
        yield
    finally:
        _command = before


def in_command() -> bool:
    """Whether the user gave a command, not a call of Python."""
    return _command is not None


def same_command(called: str, name: str, value: str) -> str | None:
    """The command `called` that the user gave, with the option `name` set to `value`, as it can be pasted into a shell.
    None where it was another, or a launcher started it, whose own words are not known."""
    if called not in (_command or ()) or "RANK" in os.environ:
        return None
    assert _command is not None
    flag = f"--{name}"
    own = re.compile(rf"{flag}=")
    kept = [
        word
        for before, word in zip(("", *_command), _command, strict=False)
        if word != flag and before != flag and not own.match(word)
    ]
    at = kept.index("--") if "--" in kept else len(kept)
    return shlex.join(["phonate", *kept[:at], flag, value, *kept[at:]])


def given_options(*names: str) -> list[str]:
    """Those of the options `names` that the user gave on the command line, with their values."""
    flags, words = tuple(f"--{name}" for name in names), _command or ()
    return [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before in flags or word.partition("=")[0] in flags
    ]


_OPTIONS = {"form": "format", "target": "output"}
"""Arguments of functions that are called otherwise on the command line."""


def option(name: str, value: str | bool | None = None) -> str:
    """How the user sets what a command and a function have in common: `--resume auto`, or in Python `resume="auto"`;
    without a value `--output`, or `output=`; a switch `--no-tune`, or `tune=False`."""
    if _command is not None:
        flag = _OPTIONS.get(name, name).replace("_", "-")
        return f"--no-{flag}" if value is False else f"--{flag}" + (f" {value}" if isinstance(value, str) else "")
    return f"{name}=" + ("" if value is None else str(value) if isinstance(value, bool) else f'"{value}"')


def to_plug_in(paths: Sequence[str]) -> str:
    """How the user gives plug-in files: `--plugin FILE`, or the call that loads them in Python."""
    if _command is not None:
        return " ".join(option("plugin", shlex.quote(path)) for path in paths)
    return ", ".join(f"phonate.config.registry.load_plugin({path!r})" for path in paths)


_fixed = False
"""Whether the recipe is given, so that the user can set no options of it."""


@contextlib.contextmanager
def fixed_recipe() -> Iterator[None]:
    """Within this block advice names no options of the recipe."""
    global _fixed
    before, _fixed = _fixed, True
    try:
        yield
    finally:
        _fixed = before


def to_set(options: str, otherwise: str) -> str:
    """The advice to set `options`, or where the recipe is given, what is to be done `otherwise`."""
    return otherwise if _fixed else f"set {options}"


def json_mistake(error: Exception) -> str:
    """Why a text is no JSON, with the place as editors count it: the column, and the line where there are several."""
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if "\n" in error.doc else ""
        return f"{error.msg.lower()} at {line}column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else unreadable(error)


def unreadable(error: Exception) -> str:
    """Why a file can't be read or written, in words alone: Python's own repeat the file's name and have numbers."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def plain_file(path: Path) -> Path:
    """`path`, where a file can be put in place whole: nothing is there, or a plain file. Raises InputError for a pipe
    or a device, which would be replaced, and what reads it would wait for ever."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a folder, a pipe or a device; give the name of a file")
    return path


# ----------------------------------------------------- Imports of optional packages, with clear errors

_AUDIO_UTILS = "transformers.audio_utils"
_LOCK = threading.Lock()


class _Missing(NamedTuple):
    purpose: str
    packages: Sequence[str]
    install: str
    otherwise: str = ""


_OWN = re.compile(r"'phonate\[([\w,]+)\]'")
_missing: ContextVar[list[_Missing] | None] = ContextVar("missing", default=None)
"""Of the outermost `all_packages`, in this thread."""


def install_command(*installs: str) -> str:
    """The command that installs all of `installs`, as pip takes them: one for the extras of phonate."""
    own = [match[1] for one in installs if (match := _OWN.fullmatch(one))]
    together = [f"'phonate[{','.join(dict.fromkeys(own))}]'"] * bool(own)
    others = [one for one in installs if not _OWN.fullmatch(one)]
    return " && ".join(f"pip install {one}" for one in dict.fromkeys([*together, *others]))


def not_installed(*names: str) -> list[str]:
    """Those of the modules `names` whose package is not installed."""
    return [name for name in names if importlib.util.find_spec(name.partition(".")[0]) is None]


def _lacking(missing: Sequence[_Missing]) -> MissingPackageError:
    """The error that names all that is missing."""
    packages: dict[str, dict[str, None]] = {}
    for one in missing:
        packages.setdefault(one.purpose, {}).update(dict.fromkeys(one.packages))
    several = sum(map(len, packages.values())) > 1
    needs = "; ".join(
        f"{purpose} needs {'' if several else 'the package '}{', '.join(names)}" for purpose, names in packages.items()
    )
    command = install_command(*(one.install for one in missing))
    otherwise = missing[0].otherwise if len(packages) == 1 else ""
    return MissingPackageError(f"{needs}, which {'are' if several else 'is'} not installed; {command}{otherwise}")


@contextlib.contextmanager
def all_packages() -> Iterator[None]:
    """Within this block `require_modules` only notes what is missing. The end raises MissingPackageError, which names
    all of it, with one command that installs it."""
    if _missing.get() is not None:  # an outer block raises it
        yield
        return
    missing: list[_Missing] = []
    token = _missing.set(missing)
    try:
        yield
    finally:
        _missing.reset(token)
    if missing:
        raise _lacking(missing)


def require_modules(purpose: str, *names: str, install: str = "'phonate[eval]'", otherwise: str = "") -> bool:
    """Whether the modules `names` are installed. Raises MissingPackageError where not, except within `all_packages`.

    Args:
        purpose: What needs them, for the error message.
        install: What to install, for the error message.
        otherwise: What can be done instead, such as ", or set it to false".
    """
    if not (lacking := not_installed(*names)):
        return True
    one = _Missing(purpose, lacking, install, otherwise)
    if (missing := _missing.get()) is None:
        raise _lacking([one])
    missing.append(one)
    return False


def optional_package(name: str, purpose: str, install: str = "'phonate[eval]'") -> Any:
    """Import the module `name`. Raises MissingPackageError if it is absent; see `require_modules`."""
    if not_installed(name):
        raise _lacking([_Missing(purpose, [name], install)])
    return importlib.import_module(name)


def load_copy(name: str, copy: str, stand_ins: Mapping[str, Any]) -> Any:
    """Execute the code of the module `name` as the module `copy`, where `import X` gives `stand_ins[X]`.

    The copy has an `__import__` of its own, so that nothing else sees the stand-ins: `sys.modules` has none of them,
    and `name`, imported or not, stays as it is. Raises MissingPackageError if there is no such module.
    """
    spec = importlib.util.find_spec(name)
    loader: Any = None if spec is None else spec.loader
    if spec is None or loader is None:
        package = name.partition(".")[0]
        raise MissingPackageError(f"this version of {package} has no {name}; pip install --upgrade {package}")
    code = loader.get_code(name)

    def import_module(module_name: str, *rest: Any, **keywords: Any) -> Any:
        return (
            stand_ins[module_name] if module_name in stand_ins else builtins.__import__(module_name, *rest, **keywords)
        )

    module: Any = importlib.util.module_from_spec(spec)
    module.__name__ = copy
    module.__builtins__ = {**vars(builtins), "__import__": import_module}
    sys.modules[copy] = module  # dataclasses and transformers look up a class's module by its name
    try:
        exec(code, vars(module))
    except BaseException:
        del sys.modules[copy]
        raise
    return module


def tolerate_broken_torchaudio() -> None:
    """Let transformers load models where torchaudio is installed and broken; call this before importing a model.

    A torchaudio that was built for another torch raises OSError when it is imported. All models of transformers import
    `transformers.audio_utils`, which imports torchaudio wherever it is installed, so none could be loaded. That module
    is then loaded without torchaudio, which it needs only to read files with it.
    """
    with _LOCK:
        if {_AUDIO_UTILS, "torchaudio"} & sys.modules.keys() or importlib.util.find_spec("torchaudio") is None:
            return
        try:
            importlib.import_module("torchaudio")
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            logger.warning("torchaudio is installed, but can't be loaded (%s); it is not used", error)
            load_copy(_AUDIO_UTILS, _AUDIO_UTILS, {"torchaudio": SimpleNamespace()})


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No warnings and progress bars of transformers on the console."""
    from transformers.utils import logging as transformers_logging

    settings = cast(Any, transformers_logging)  # untyped
    verbosity, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if bars:
            settings.enable_progress_bar()
