"""Imports of optional packages, with clear errors."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from phonate.config.errors import MissingPackageError

logger = logging.getLogger("phonate")

_AUDIO_UTILS = "transformers.audio_utils"
_LOCK = threading.Lock()


def optional_package(name: str, purpose: str, install: str = "'phonate[eval]'") -> Any:
    """Import the module `name`. Raises MissingPackageError if it is absent.

    Args:
        name: Name of the module; its top-level package is looked up.
        purpose: What needs it, for the error message.
        install: What to install, for the error message.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise MissingPackageError(f"{purpose} needs the package {name}, which is not installed; pip install {install}")
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

    def import_module(wanted: str, *rest: Any, **keywords: Any) -> Any:
        return stand_ins[wanted] if wanted in stand_ins else builtins.__import__(wanted, *rest, **keywords)

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
