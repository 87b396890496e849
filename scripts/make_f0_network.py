"""Writes src/phonate/audio/swift_f0.safetensors: the weights of SwiftF0 (MIT), from the ONNX model in its wheel.

    pip install onnx swift-f0==0.3.0
    python scripts/make_f0_network.py

The package computes the network with numpy: onnxruntime would add 78 MB to every installation for 17,000 weights.
"""

from __future__ import annotations

import argparse
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

FILE = Path(__file__).parents[1] / "src/phonate/audio/swift_f0.safetensors"
VERSION = "0.3.0"


def main() -> None:
    """Convert the model."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    import onnx

    package = distribution("swift-f0")
    if package.version != VERSION:
        raise SystemExit(f"swift-f0 {package.version} is installed; pip install swift-f0=={VERSION}")
    graph = onnx.load(str(package.locate_file("swift_f0/model.onnx"))).graph
    values = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    tensors: dict[str, np.ndarray] = {}
    for number, node in enumerate(node for node in graph.node if node.op_type == "Conv"):
        weight, bias = (values[name] for name in node.input[1:])
        if weight.shape[-1] == 3 and not np.array_equal(weight[..., 0], weight[..., 2]):
            raise SystemExit("a filter is not symmetric in time, which the package relies on")
        tensors[f"{number:02d}.weight"], tensors[f"{number:02d}.bias"] = np.ascontiguousarray(weight), bias.copy()
    licence = next(file for file in package.files or [] if file.name.startswith("LICENSE"))
    notice = {"source": f"swift-f0 {VERSION}", "licence": licence.read_text()}
    save_file(tensors, FILE, metadata=notice)
    print(f"{FILE}: {sum(one.size for one in tensors.values()):,} weights, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
