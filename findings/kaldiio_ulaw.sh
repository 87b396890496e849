#!/usr/bin/env bash
# One would guess that kaldiio, which refuses WAV of 24 bits and of floats with an error, decodes WAV of a telephone's 8-bit
# mu-law and A-law, or refuses it as well, as Kaldi's own reader does. It returns the codes as they are, as unsigned bytes:
# silence is 255 in one and 213 in the other.
# A phonate user meets it with a corpus of telephone speech in Kaldi's form, which another program reads by kaldiio: it
# trains on noise. phonate decodes such files.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check kaldiio==2.18.1 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > codes.py <<'PY'
from importlib.metadata import version
from pathlib import Path

import kaldiio
import numpy as np
import soundfile

print("kaldiio", version("kaldiio"))
sound = np.concatenate([np.zeros(4000), 0.5 * np.sin(2 * np.pi * 300 * np.arange(4000) / 8000)])


def read(subtype):
    soundfile.write("call.wav", sound, 8000, subtype=subtype)
    Path("wav.scp").write_text("call call.wav\n")
    return kaldiio.load_scp("wav.scp")["call"][1]


for subtype in ("PCM_24", "FLOAT"):
    try:
        read(subtype)
    except ValueError as error:
        print(f"{subtype}: ValueError: {error}")
    else:
        raise SystemExit(f"{subtype} is read now")
plain = read("PCM_16")
print(f"PCM_16: {plain.dtype}, silence {plain[0]}, the tone's level {np.std(plain[4000:]):.0f}")
for subtype, silence in (("ULAW", 255), ("ALAW", 213)):
    samples = read(subtype)
    decoded = soundfile.read("call.wav", dtype="int16")[0]
    print(f"{subtype}: {samples.dtype}, silence {samples[0]}, not {decoded[0]}; the tone from {samples[4000:].min()} to {samples.max()}")
    if samples.dtype != np.uint8 or samples[0] != silence:
        raise SystemExit(f"{subtype} is decoded now")
PY
venv/bin/python codes.py
