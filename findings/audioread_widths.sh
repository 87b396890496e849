#!/usr/bin/env bash
# One would guess that a library which opens WAV, AIFF and AU by Python's own modules gives their samples as what it promises,
# 16 bits. audioread takes the bytes of 8-bit WAV for signed, which they are not: a quiet tone is full-scale noise. Of AIFF with
# 24 bits and AU with mu-law, Sun's form of telephone speech, it changes the order of bytes that are in order: noise as well. AIFF
# and AU with 8 bits are 1/40 as loud. 16 bits are right everywhere, and wider WAV.
# A phonate user meets it who reads archives of telephone speech or old dictionaries by audioread, or by what is built on it: no
# error, and a corpus of noise. phonate reads them by libsndfile.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir audioread==3.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > widths.py <<'PY'
from importlib.metadata import version

import audioread
import numpy as np
import soundfile

print("audioread", version("audioread"), "soundfile", soundfile.__version__)
rate = 16_000
tone = 0.3 * np.sin(2 * np.pi * 200 * np.arange(rate) / rate)
kinds = {
    ("WAV", "PCM_16"): "right",
    ("WAV", "PCM_24"): "right",
    ("WAV", "PCM_U8"): "noise",
    ("AIFF", "PCM_16"): "right",
    ("AIFF", "PCM_24"): "noise",
    ("AIFF", "PCM_S8"): "faint",
    ("AU", "PCM_16"): "right",
    ("AU", "ULAW"): "noise",
    ("AU", "PCM_S8"): "faint",
}
for (container, samples), expected in kinds.items():
    soundfile.write("a", tone, rate, format=container, subtype=samples)
    with audioread.audio_open("a") as file:
        sound = np.frombuffer(b"".join(file), "<i2") / 32768
    peak, likeness = np.abs(sound).max(), np.corrcoef(sound, soundfile.read("a")[0])[0, 1]
    print(f"{container} {samples}: peak {peak:.3f} of 0.3, correlation with soundfile's {likeness:.2f}")
    kind = "faint" if peak < 0.01 else "right" if likeness > 0.99 else "noise"
    if kind != expected:
        raise SystemExit("it is read otherwise now")
PY
venv/bin/python -W ignore widths.py
