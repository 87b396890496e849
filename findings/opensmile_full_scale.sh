#!/usr/bin/env bash
# One would guess that openSMILE's features of floats are computed of these floats, and that what is louder than full scale
# is clipped at most. The Python package makes 16 bits of them without clipping: 1.0 and all above wraps round to the other
# end, -1. A voice that was normalised to a peak of 1 gets clicks at its loudest samples, and has a shimmer 12 % higher; of one
# that MP3 or resampling brought 1 dB above it, the ratio of harmonics to noise drops by 1.5 dB. Clipped, both keep it.
# A phonate user meets it who describes or compares voices by eGeMAPS or ComParE, before and after conversion: the loud voice
# is the hoarse one. numpy.clip to at most 32767 / 32768 mends it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir opensmile==2.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import opensmile

print("opensmile", opensmile.__version__)
rate = 16_000
t = np.arange(2 * rate) / rate
phase = 2 * np.pi * np.cumsum(130 * (1 + 0.05 * np.sin(4 * np.pi * t))) / rate
voice = sum(np.sin(k * phase) / k for k in range(1, 25)) * (1 + 0.1 * np.sin(6 * np.pi * t))
voice = (voice / voice.max()).astype(np.float32)
smile = opensmile.Smile(opensmile.FeatureSet.eGeMAPSv02, opensmile.FeatureLevel.Functionals)
top = np.float32(32_767 / 32_768)
loud = np.float32(10 ** (1 / 20)) * voice
sounds = {"peak 0.9": 0.9 * voice, "peak 1": voice, "peak 1, clipped": np.clip(voice, -1, top)}
sounds |= {"1 dB above": loud, "1 dB above, clipped": np.clip(loud, -1, top)}
names = ["shimmerLocaldB_sma3nz_amean", "HNRdBACF_sma3nz_amean"]
values = {}
for name, sound in sounds.items():
    values[name] = smile.process_signal(sound, rate)[names].to_numpy()[0]
    print(f"{name}: shimmer {values[name][0]:.4f} dB, harmonics to noise {values[name][1]:.2f} dB")
assert np.abs(values["1 dB above, clipped"] - values["peak 0.9"]).max() < 0.2
assert np.abs(values["peak 1, clipped"] - values["peak 0.9"]).max() < 0.01
off = np.abs(values["1 dB above"] - values["1 dB above, clipped"])
if np.array_equal(values["peak 1"], values["peak 1, clipped"]) or off[1] < 0.5:
    raise SystemExit("what is louder than full scale is clipped now")
PY
