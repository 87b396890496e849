#!/usr/bin/env bash
# One would guess that a sound logged to Trackio sounds there as loud as it is. Of float samples Trackio makes the
# loudest full scale: a recording 12 dB below, and one 60 dB below, are stored alike, and noise of a silent model plays as
# loud as speech. Samples of 16 bits are stored as they are.
# A phonate user met it with training.logging.trackio, where a voice's samples before and after training are compared;
# phonate sends 16 bits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check trackio==0.43.0
cd "$folder"
TRACKIO_DIR="$folder/trackio" HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import sys
import wave
from importlib.metadata import version
from pathlib import Path

import numpy as np
import trackio

tone = np.sin(2 * np.pi * 300 * np.arange(8000) / 8000)
peaks = {}
for name, samples in {
    "float, -12 dB": 0.25 * tone,
    "float, -60 dB": 0.001 * tone,
    "16 bits, -12 dB": (0.25 * 32767 * tone).astype(np.int16),
}.items():
    file = Path("sound.wav")
    trackio.Audio(samples, sample_rate=8000).write_audio(samples, 8000, file)
    with wave.open(str(file)) as sound:
        stored = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    peaks[name] = round(float(np.abs(stored).max()) / 32767, 3)
print("trackio", version("trackio"))
print("loudest sample stored, of 1:", peaks)
expected = {"float, -12 dB": 1.0, "float, -60 dB": 1.0, "16 bits, -12 dB": 0.25}
sys.exit(0 if peaks == expected else "the behaviour has changed")
PY
