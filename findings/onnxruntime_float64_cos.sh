#!/usr/bin/env bash
# One would guess that a runtime which computes the sine of float64 also computes its cosine, and that a model which
# onnx.checker accepts can be loaded. onnxruntime before 1.29 has Sin for float64 and no Cos: such a model is valid
# ONNX, and is refused at loading with NOT_IMPLEMENTED. A model with IR version 10 is refused by 1.17, too, although
# its opset 18 is supported. Who exports a voice meets it when the voice is loaded by a program that carries an older
# runtime, such as sherpa-onnx (1.28).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for pair in "1.17.0 numpy==1.26.4" "1.28.0 numpy==2.0.2" "1.31.1 numpy==2.0.2"; do
  read -r version numpy <<<"$pair"
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q --disable-pip-version-check "onnxruntime==$version" "$numpy" onnx==1.17.0
  "$folder/$version/bin/python" - "$folder/model.onnx" <<'PYTHON'
import sys

import onnx
import onnxruntime
from onnx import TensorProto, helper

version = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def answer(operator, kind, ir_version):
    ends = [helper.make_tensor_value_info(name, kind, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "graph", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=ir_version)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, sys.argv[1])
    try:
        onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    except Exception as error:
        return "refused: " + str(error).splitlines()[0][-110:]
    return "loaded"


print("onnxruntime", onnxruntime.__version__)
for operator, kind, ir_version, expected in (
    ("Sin", TensorProto.DOUBLE, 8, True),
    ("Cos", TensorProto.FLOAT, 8, True),
    ("Cos", TensorProto.DOUBLE, 8, version >= (1, 29)),
    ("Cos", TensorProto.FLOAT, 10, version >= (1, 18)),
):
    said = answer(operator, kind, ir_version)
    print(f"  {operator} of {TensorProto.DataType.Name(kind)}, IR version {ir_version}: {said}")
    assert (said == "loaded") == expected, "the behaviour has changed"
PYTHON
done
