"""Weights of an exported graph in fewer bits: what is computed with them, and how near that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from installed import missing

if missing("onnx", "onnxscript"):
    pytest.skip("needs onnx, onnxscript: pip install 'phonate[onnx]'", allow_module_level=True)

LARGE, SMALL = (192, 576), (80, 80)


def stored(path: Path, shape: tuple[int, int], dtype: str) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """What a product by a matrix of `shape` should give, what it gives, and the operators of the graph."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    from phonate.tasks.speech.graph import store

    rng = np.random.default_rng(0)
    weight, given = (rng.standard_normal(size).astype(np.float32) for size in (shape, (50, shape[0])))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    store(model, dtype)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return given @ weight, session.run(None, {"x": given})[0], {one.op_type for one in model.graph.node}


def test_large_products_are_of_whole_numbers(tmp_path: Path) -> None:
    wanted, got, operators = stored(tmp_path / "large.onnx", LARGE, "int8")
    assert "MatMulInteger" in operators
    assert 0 < np.abs(got - wanted).mean() < 0.03 * np.abs(wanted).mean()


@pytest.mark.parametrize(("shape", "dtype"), [(SMALL, "int8"), (LARGE, "fp16")])
def test_others_are_computed_in_fp32(tmp_path: Path, shape: tuple[int, int], dtype: str) -> None:
    wanted, got, operators = stored(tmp_path / "other.onnx", shape, dtype)
    assert "MatMul" in operators
    assert 0 < np.abs(got - wanted).mean() < 0.015 * np.abs(wanted).mean()
