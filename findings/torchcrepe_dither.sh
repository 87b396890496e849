#!/usr/bin/env bash
# One would guess that a network without dropout gives a recording the same pitch each time, the more so behind
# torch.manual_seed. torchcrepe adds noise of up to 20 cents to each frame on purpose, to hide that CREPE's steps are as wide:
# two calls differ by up to 30 cents and more, and a steady tone trembles. The noise is numpy's: numpy.random.seed repeats it,
# torch.manual_seed does not. Only the decoder weighted_argmax is without.
# A phonate user meets it who converts or scores by F0 of torchcrepe, as tools of voice conversion do: features computed
# twice differ, runs with fixed seeds differ, and a model learns a tremor that nobody sang.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# torchcrepe imports torchaudio, to open files, which is not done here: an empty module stands for it.
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 scipy==1.17.1 \
    librosa==0.11.0 resampy==0.4.3 tqdm==4.67.1
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps torchcrepe==0.0.24
mkdir "$folder/modules"
touch "$folder/modules/torchaudio.py"
cat > "$folder/twice.py" <<'PY'
from importlib.metadata import version

import numpy as np
import torch
import torchcrepe

print("torchcrepe", version("torchcrepe"), "torch", torch.__version__)
rate = 16_000
times = np.arange(rate // 2) / rate
tone = torch.tensor(0.1 * sum(np.sin(2 * np.pi * 150 * k * times) / k for k in range(1, 10)), dtype=torch.float32)[None]


def pitch(decoder, seed):
    seed(0)
    return torchcrepe.predict(tone, rate, 160, 50, 500, "tiny", decoder=decoder, batch_size=64)[0].numpy()


def cents(one, other):
    return 1200 * np.abs(np.log2(one / other)).max()


viterbi, mean = torchcrepe.decode.viterbi, torchcrepe.decode.weighted_argmax
for name, seed in (("torch.manual_seed", torch.manual_seed), ("numpy.random.seed", np.random.seed)):
    one, other = pitch(viterbi, seed), pitch(viterbi, seed)
    print(f"viterbi, the default, with {name}(0) twice: {cents(one, other):.1f} cents apart")
    if (cents(one, other) > 5) != (seed is torch.manual_seed):
        raise SystemExit("the noise is another one now")
print(f"a steady tone of 150 Hz: from {one[5:-5].min():.1f} to {one[5:-5].max():.1f} Hz")
print(f"weighted_argmax twice: {cents(pitch(mean, torch.manual_seed), pitch(mean, torch.manual_seed)):.1f} cents apart")
if cents(pitch(mean, torch.manual_seed), pitch(mean, torch.manual_seed)) > 0:
    raise SystemExit("weighted_argmax has noise now")
PY
PYTHONPATH="$folder/modules" OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES="" "$folder/venv/bin/python" -W ignore "$folder/twice.py"
