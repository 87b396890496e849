"""What takes long in imports, those of torch above all, and can be left out."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.abc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from threading import RLock
from types import CodeType, FrameType, ModuleType
from typing import Any


@contextmanager
def lasting() -> Iterator[None]:
    """Within, nothing is looked through for garbage, and what is made is not looked through later either. What imports
    make stays: to look through it again and again takes a sixth of the time of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def aside() -> Iterator[None]:
    """Within, garbage is sought only in what is made meanwhile: Python's first look through what imports made takes
    as long as to prepare ten recordings."""
    if gc.get_freeze_count():  # it is aside for good, or until another thread is done
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def faster_import() -> Iterator[None]:
    """Within, to import torch takes a tenth less processor time."""
    with _lazily_bound(), _lazily_executed(), _modules_by_name(), _methods_compiled_once():
        yield
    kernels = sys.modules.get(_META_KERNELS)
    if kernels is not None and _META_KERNELS in _lazy_modules() and "torch._decomp" not in sys.modules:
        sys.meta_path.insert(0, _MetaKernels(kernels))


@contextmanager
def _lazily_bound() -> Iterator[None]:
    """The loader looks up a library's functions when they are first called. By itself Python has it look up all of them
    at once: torch's libraries have 48,000, of which a training calls few."""
    if sys.platform == "win32":
        yield
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


_META_KERNELS = "torch._meta_registrations"
_UNUSED = frozenset(
    (
        *(f"torch.{name}" for name in ("distributions", "export", "masked", "quantization")),
        *(f"torch.nn.{name}" for name in ("intrinsic", "qat", "quantizable", "quantized")),
        "pynvml",
        _META_KERNELS,
    )
)
"""What torch imports, 190 modules with theirs, and a training does not use, or only on a GPU."""
_KNOWN = (2, 14)
"""The newest torch with which its kernels for tensors without data may wait; in a later one they are not deferred, as
it may rely on them elsewhere."""


def _lazy_modules() -> frozenset[str]:
    from importlib import metadata  # takes long

    version = tuple(int(number) for number in metadata.version("torch").split(".")[:2])
    return _UNUSED if version <= _KNOWN else _UNUSED - {_META_KERNELS}


class _LazyFinder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._lazy = _lazy_modules()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._lazy else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _lazily_executed() -> Iterator[None]:
    """Modules that are rarely used are executed when something of them is first asked for."""
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _MetaKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has torch register its kernels for tensors without data when the first such tensor is made, or before a module is
    imported that builds on them, the compiler's above all. To register them takes an eighth of the import of torch."""

    _BUILT_ON = frozenset(
        f"torch.{name}" for name in ("_decomp", "_dynamo", "_inductor", "_prims", "_refs", "utils._content_store")
    )

    def __init__(self, kernels: ModuleType) -> None:
        import torch

        self._kernels, self._one = kernels, RLock()
        if hasattr(torch._C, "_set_generator_metaclass"):  # by one of them, before any generator
            # its name before torch 2.14 warns of itself in later ones
            base = "_custom_class_base" if importlib.util.find_spec("torch._custom_class_base") else "_opaque_base"
            torch._C._set_generator_metaclass(importlib.import_module(f"torch.{base}").OpaqueBaseMeta)
        self._first = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for create in (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default):
            self._first.impl(create, functools.partial(self._create, create), "Meta")  # type: ignore[no-untyped-call]

    def _create(self, create: Callable[..., object], *args: object, **options: object) -> object:
        with self._one:  # others wait until all kernels are there
            self._register()
        return create(*args, **options)

    def _register(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            vars(self._kernels)  # executes the module
        vars(self).pop("_first", None)  # puts torch's own functions back

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self._BUILT_ON else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._register()  # imports some of these modules by itself
        module = importlib.import_module(spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module was executed as it was created; what is left is to name its own origin."""
        module.__spec__ = module.__spec__ and module.__spec__.loader_state


@contextmanager
def _modules_by_name() -> Iterator[None]:
    """`inspect` tells the module of a frame by its name. By itself it resolves the paths of all modules to compare them
    with the frame's, and torch asks for frames of its own as it registers operators."""
    by_path = inspect.getmodule

    def by_name(object: object, _filename: str | None = None) -> ModuleType | None:
        module = sys.modules.get(object.f_globals.get("__name__", "")) if isinstance(object, FrameType) else None
        return module or by_path(object, _filename)

    inspect.getmodule = by_name
    try:
        yield
    finally:
        inspect.getmodule = by_path


@contextmanager
def _methods_compiled_once() -> Iterator[None]:
    """The methods of data classes, which are written as text, are compiled once for all that have the same. torch makes
    a class for each of many operators, and nearly half of its 1,020 methods are like others."""

    @functools.cache
    def compiled(text: str) -> CodeType:
        return compile(text, "<string>", "exec", dont_inherit=True)

    def execute(text: str, variables: dict[str, Any] | None, names: dict[str, Any]) -> None:
        exec(compiled(text), variables, names)

    vars(dataclasses)["exec"] = execute  # found before the built-in one
    try:
        yield
    finally:
        del vars(dataclasses)["exec"]
