"""Nested state goes through JSON and safetensors and comes back bit for bit."""

from __future__ import annotations

import collections
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

import phonate
from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import CheckpointManager, files, snapshot
from phonate.training.checkpoints import snapshot as tree

DTYPES = list(snapshot.DTYPES)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
arrays = np_st.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint32, np.bool_]), np_st.array_shapes(min_dims=0)
)
numpy_scalars = st.sampled_from([np.float32(1 / 3), np.float64("-inf"), np.int8(-3), np.bool_(True), np.uint64(2**63)])
keys = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2)) | st.just("$tensor")
trees = st.recursive(
    scalars | tensors() | arrays | numpy_scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type and in every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = (a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


@given(value=trees)
@settings(max_examples=200)
def test_any_tree_comes_back_bit_for_bit(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    document, found = tree.encode(value)
    copy = snapshot.Snapshot()
    copy.take(found)
    path = tmp_path_factory.getbasetemp() / "tree.safetensors"
    path.write_bytes(b"".join(copy.content()))
    text = files.render(document, indent=None)
    (path.parent / "tree.json").write_bytes(text)
    back = tree.decode(files.read_json(path.parent / "tree.json"), snapshot.read_tensors(path))
    assert same(back, value)


def test_a_whole_training_state_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1 / 3)
    model(torch.randn(5, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    state = {
        "optimizer": optimizer.state_dict(),
        "python": random.getstate(),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "legacy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save_checkpoint(step=1, epoch=0, weights=model.state_dict(), state=state)
        loaded = manager.load_checkpoint(1)
    assert same(loaded.state, state)
    assert same(dict(sorted(loaded.weights.items())), dict(sorted(model.state_dict().items())))
    random.setstate(loaded.state["python"])
    optimizer.load_state_dict(loaded.state["optimizer"])


def test_what_cannot_be_stored_is_named_by_its_key_path() -> None:
    with pytest.raises(CheckpointError, match=r"state\['callbacks'\]\[1\]\['seen'\]: .*builtins\.set"):
        tree.encode({"callbacks": [0, {"seen": {1, 2}}]})
    with pytest.raises(CheckpointError, match=r"state\['a'\]: .*object"):
        tree.encode({"a": np.array([None])})
    with pytest.raises(CheckpointError, match="frozenset"):
        tree.encode({frozenset(): 1})
    with pytest.raises(CheckpointError, match="can't be stored"):
        snapshot.Snapshot().take({"sparse": torch.eye(2).to_sparse()})
    circular: dict[str, Any] = {}
    circular["self"] = circular
    with pytest.raises(CheckpointError, match="itself"):
        tree.encode(circular)


def test_dict_kinds_and_colliding_names() -> None:
    value = {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}, "__metadata__": torch.ones(2)}
    document, found = tree.encode(collections.OrderedDict(value))
    assert len(found) == 3
    assert "__metadata__" not in found
    assert same(tree.decode(document, found), value)


def test_a_strided_or_shared_tensor_is_stored_by_its_values(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    weights = {"transposed": base.T, "slice": base[:, 1], "same": base, "gradient": torch.nn.Parameter(base)}
    with CheckpointManager(tmp_path) as manager:
        manager.save_checkpoint(step=1, epoch=0, weights=weights, state={})
        loaded = manager.load_checkpoint("latest").weights
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_the_package_never_unpickles() -> None:
    source = Path(phonate.__file__).parent
    # joblib's processes are welcome, its files are pickles
    by_joblib = r"\bjoblib\.(?:load|dump)\b|from joblib import [^\n]*\b(?:load|dump)\b"
    for path in source.rglob("*.py"):
        found = re.findall(rf"torch\.load\(|\bpickle\b|allow_pickle=True|{by_joblib}", _code(path))
        assert not found, f"{path} uses {found}"


def _code(path: Path) -> str:
    """The file without docstrings and comments."""
    text = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text(encoding="utf-8"))
    return re.sub(r"#.*", "", text)
