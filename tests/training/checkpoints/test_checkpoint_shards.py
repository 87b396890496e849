"""Tensors in parts: whatever is cut comes back; parts that do not fit end in one clear error and take no memory."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from phonate.training.checkpoints.files import COMPRESSED, FileProblemError, shard_name, shards_in
from phonate.training.checkpoints.snapshot import PARTS, Snapshot, read_shards

WEIGHTS = "weights.safetensors"


@given(rows=st.integers(1, 9), cuts=st.lists(st.integers(0, 9), max_size=3), compress=st.booleans())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_cut_comes_back(tmp_path, rows, cuts, compress):
    whole = torch.randn(rows, 3)
    edges = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    names = []
    for rank, (start, stop) in enumerate(itertools.pairwise(edges)):
        name = shard_name(WEIGHTS, rank, len(edges) - 1) + (COMPRESSED if compress else "")
        parts = {"w": whole[start:stop]} if stop > start else {}
        snapshot = Snapshot()
        snapshot.take(parts, {"w": (start, 0)} if parts else {})
        snapshot.write(tmp_path / name, compress)
        names.append(name)
    assert shards_in(names, WEIGHTS) == names
    assert len(names) == 1 or not shards_in(names[1:], WEIGHTS)
    assert torch.equal(read_shards([tmp_path / name for name in names])["w"], whole)


@pytest.mark.parametrize(
    "begins",
    [
        [10**15, 0],  # more than there is memory
        [0, 1],
        [-1, 0],
        [0],
        [0, 0, 0],
        ["x", 0],
        None,
    ],
)
def test_parts_that_do_not_fit_are_refused_before_memory_is_taken(begins, tmp_path):
    about = None if begins is None else {PARTS: json.dumps({"w": {"saved_offsets": begins}})}
    save_file({"w": torch.ones(2, 3)}, tmp_path / "w.safetensors", metadata=about)
    with pytest.raises(FileProblemError):
        read_shards([tmp_path / "w.safetensors"])


@pytest.mark.parametrize("names", [["weights-00001-of-00000.safetensors"], ["weights-00002-of-00002.safetensors"], []])
def test_parts_that_are_not_all_there_are_none(names):
    assert shards_in(names, WEIGHTS) == []
