#!/usr/bin/env bash
# SI-SDR says how much of an estimate is the target, in dB. One would guess that an estimate of nothing but zeros has none of
# it: minus infinity, or the least that the formula gives. torchmetrics adds a small number above and below, and gives 0 dB:
# noise as loud as the speech has -40 dB, a third of the speech within such noise -10 dB. Silence where the target is
# silence has 0 dB, too, where a perfect estimate of speech has 90.
# A phonate user meets it who scores a separator, a denoiser or a codec by torchmetrics and takes the mean, or chooses
# checkpoints by it: one that has collapsed to silence beats one that has begun to learn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
CUDA_VISIBLE_DEVICES="" "$folder/venv/bin/python" - <<'PY'
import torch
import torchmetrics
from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio as si_sdr
from torchmetrics.functional.audio import scale_invariant_signal_noise_ratio as si_snr

print("torchmetrics", torchmetrics.__version__)
torch.manual_seed(0)
speech, noise = 0.1 * torch.randn(2, 16_000)
silence = torch.zeros(16_000)
estimates = {"silence": silence, "noise": noise, "noise at -100 dB": 1e-5 * noise, "a third speech, and noise": speech / 3 + noise}
values = {}
for name, estimate in estimates.items():
    values[name] = [float(metric(estimate, speech)) for metric in (si_sdr, si_snr)]
    print(f"{name}: SI-SDR {values[name][0]:.1f} dB, SI-SNR {values[name][1]:.1f} dB")
rightly, perfect = float(si_sdr(silence, silence)), float(si_sdr(speech, speech))
print(f"silence for silence: SI-SDR {rightly:.1f} dB; speech for the same speech: {perfect:.1f} dB")
assert perfect > 60 and max(values["noise"]) < -20 and max(values["a third speech, and noise"]) < -5
if values["silence"] != [0, 0] or rightly != 0:
    raise SystemExit("silence has another value than 0 dB now")
PY
