"""Nested state <-> a JSON document and a flat dict of tensors. Exact both ways, and nothing is pickled.

JSON has no tuples, no keys but strings, no NaN and no arrays; such values become one-key objects whose key
begins with `$`:

    {"$tensor": name}            a tensor, kept beside the document under `name`
    {"$array": name}             a numpy array, kept the same way
    {"$scalar": [dtype, hex]}    a numpy scalar, by its bytes
    {"$tuple": [...]}            a tuple
    {"$dict": [[key, value]]}    a dict with a key that is not a string, or that begins with `$`
    {"$float": "nan"}            a float that is not finite
    {"$bytes": base64}           bytes
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phonate.config.errors import CheckpointError

DEEPEST = 100
"""Most levels of nesting; a deeper tree is assumed to contain itself."""


def encode(tree: Any, root: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """A JSON document and the tensors of `tree`, not copied. OrderedDict and defaultdict come back as dict.

    Raises CheckpointError naming the key path of a value that can't be stored.
    """
    encoder = _Encoder(root)
    return encoder.encode(tree, ()), encoder.tensors


class _Encoder:
    def __init__(self, root: str) -> None:
        self.root = root
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEEPEST:
            raise CheckpointError(f"{self.where(path[:8])}...: nested too deeply; does it contain itself?")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind in (dict, OrderedDict, defaultdict):
            return self.encode_dict(value, path)
        if kind is list:
            return [self.encode(item, (*path, i)) for i, item in enumerate(value)]
        if kind is tuple or kind is torch.Size:
            return {"$tuple": [self.encode(item, (*path, i)) for i, item in enumerate(value)]}
        return self.encode_leaf(value, path)

    def encode_dict(self, value: Mapping[Any, Any], path: tuple[Any, ...]) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, (*path, key)) for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int, bool, float, type(None), tuple):
                kind = type(key).__name__
                raise CheckpointError(f"{self.where(path)}: a key of type {kind} can't be stored")
            pairs.append([self.encode(key, (*path, "key")), self.encode(item, (*path, key))])
        return {"$dict": pairs}

    def encode_leaf(self, value: Any, path: tuple[Any, ...]) -> Any:
        if type(value) in (Tensor, nn.Parameter, nn.Buffer):
            return {"$tensor": self.keep(value.detach(), path)}
        if type(value) is np.ndarray:
            try:
                tensor = torch.from_numpy(np.array(value, order="C"))
            except (
                TypeError,
                ValueError,
            ) as error:  # a dtype that torch does not have, or a foreign byte order
                message = f"{self.where(path)}: a numpy array of {value.dtype} can't be stored"
                raise CheckpointError(message) from error
            return {"$array": self.keep(tensor, path)}
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return {"$scalar": [value.dtype.str, value.tobytes().hex()]}
        if type(value) is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{self.where(path)}: a value of type {kind} can't be stored in a checkpoint; "
            "make it of numbers, strings, tensors, lists, tuples and dicts"
        )

    def keep(self, tensor: Tensor, path: tuple[Any, ...]) -> str:
        name = base = "/".join(str(key) for key in path) or self.root
        count = 1
        while name in self.tensors or name == "__metadata__":  # the name that safetensors keeps for itself
            count += 1
            name = f"{base}#{count}"
        self.tensors[name] = tensor
        return name

    def where(self, path: tuple[Any, ...]) -> str:
        return self.root + "".join(f"[{key!r}]" for key in path)


def decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `encode` was given. Raises CheckpointError for a document that it did not write."""
    try:
        return _decode(document, tensors)
    except RecursionError:
        raise CheckpointError("the state is nested too deeply") from None


def _decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(document, list):
        return [_decode(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    mark = next(iter(document), "")
    if not mark.startswith("$"):
        return {key: _decode(item, tensors) for key, item in document.items()}
    try:
        return _DECODERS[mark](document[mark], tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"the state holds a {mark[:20]} that can't be read ({type(error).__name__})") from error


def _dict(pairs: Any, tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    return {_decode(key, tensors): _decode(item, tensors) for key, item in pairs}


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tensor": lambda name, tensors: tensors[name],
    "$array": lambda name, tensors: tensors[name].numpy(),
    "$scalar": lambda pair, _: np.frombuffer(bytes.fromhex(pair[1]), dtype=pair[0])[0],
    "$tuple": lambda items, tensors: tuple(_decode(item, tensors) for item in items),
    "$dict": _dict,
    "$float": lambda text, _: float(text),
    "$bytes": lambda text, _: base64.b64decode(text),
}
