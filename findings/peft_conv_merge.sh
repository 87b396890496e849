#!/usr/bin/env bash
# One would guess that an adapter (LoRA) which peft lays over a convolution is the same function after it is merged into the
# weights, or that merging is refused, as peft does for groups. Three kinds of convolution that vocoders and encoders of
# speech consist of become other ones, without an error. The adapter has neither the dilation of its layer (with
# padding="same"; with padding in numbers the first call fails) nor its padding mode (reflect), but the merged weights have
# both. Into weights under torch's weight_norm nothing is merged: they are computed anew from their two parts.
# A phonate user meets it who fine-tunes a HiFi-GAN, a codec or a wav2vec by peft, merges and exports it: it sounded right in
# training. phonate lays adapters over linear layers alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir peft==0.21.2 torch==2.13.0 transformers==5.23.0 \
  numpy==2.4.6
CUDA_VISIBLE_DEVICES="" "$folder/venv/bin/python" - <<'PY'
import copy
from collections import OrderedDict
from importlib.metadata import version

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

print(*(f"{name} {version(name)}" for name in ("peft", "torch")), sep=", ")
torch.manual_seed(0)
x = torch.randn(1, 8, 20)
layers = {
    "plain": nn.Conv1d(8, 8, 3, padding=1),
    "dilated": nn.Conv1d(8, 8, 3, padding="same", dilation=3),
    "reflecting": nn.Conv1d(8, 8, 3, padding=1, padding_mode="reflect"),
    "under weight_norm": weight_norm(nn.Conv1d(8, 8, 3, padding=1)),
}
wrong = set()
for name, layer in layers.items():
    without = layer(x)
    # not zero at the start, as an adapter is that was trained
    config = LoraConfig(r=4, target_modules=["conv"], init_lora_weights=False)
    model = get_peft_model(nn.Sequential(OrderedDict(conv=copy.deepcopy(layer))), config).eval()
    adapted = model(x)
    merged = model.merge_and_unload()(x)
    changed = (adapted - without).norm()
    off = (merged - adapted).abs().amax((0, 1)) > 1e-4
    print(f"{name}: of what the adapter changes, wrong when merged {(merged - adapted).norm() / changed:.0%}", end="; ")
    print(f"frames {off.nonzero().flatten().tolist()}; the merged layer is that without: {torch.equal(merged, without)}")
    if off.any():
        wrong.add(name)
assert "plain" not in wrong
if wrong != set(layers) - {"plain"}:
    raise SystemExit("more convolutions are merged rightly now")
PY
