#!/usr/bin/env bash
# One would guess that the mel-cepstral distortion (MCD) of a recording and the same recording at half the volume is 0: it
# compares the shapes of spectra, and by its definition leaves c0, the level, out. pymcd counts c0 in: 6 dB, what papers give
# as the distance of a good conversion from its target.
# A phonate user meets it who compares MCD of papers and other programs that come from pymcd with `phonate evaluate`, whose
# MCD has no c0: a voice that is only louder than its reference looks far away.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pymcd==0.2.1 pyworld==0.3.5 pysptk==1.0.1 fastdtw==0.3.4 \
    librosa==0.11.0 setuptools==80.9.0 soundfile==0.14.0 scipy==1.17.1 numpy==2.4.6
cd "$folder"
cat > volume.py <<'PY'
from importlib.metadata import version

import numpy as np
import soundfile
from pymcd.mcd import Calculate_MCD

print("pymcd", version("pymcd"))
rate = 22_050
times = np.arange(2 * rate) / rate
phase = 2 * np.pi * np.cumsum(150 + 10 * np.sin(9 * times)) / rate
voice = 0.05 * sum(np.sin(k * phase) / k for k in range(1, 20)) + 0.002 * np.random.default_rng(0).standard_normal(len(times))
soundfile.write("voice.wav", voice, rate, subtype="FLOAT")
soundfile.write("half.wav", voice / 2, rate, subtype="FLOAT")
for mode in ("plain", "dtw"):
    score = Calculate_MCD(MCD_mode=mode).calculate_mcd
    itself, half = score("voice.wav", "voice.wav"), score("voice.wav", "half.wav")
    print(f"{mode}: {itself:.2f} dB from itself, {half:.2f} dB from itself at half the volume")
    if half < 3:
        raise SystemExit("the level is left out now")
PY
venv/bin/python -W ignore volume.py
