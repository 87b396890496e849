#!/usr/bin/env bash
# One would guess that AudioFileClip("a.wav").to_soundarray(fps=16000) gives the samples of the recording. In clips shorter
# than 50,000 samples (1.1 s at 44.1 kHz, 3.1 s at 16 kHz) moviepy takes its list of which times lie in the file for the times
# themselves, and True for one second: each sample is the one at 1 s, and clips shorter than that raise an OSError. Longer
# ones are right.
# A phonate user meets it who cuts films into clips of words and short sentences by moviepy: each is a constant.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check moviepy==2.2.1 imageio-ffmpeg==0.6.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > sounds.py <<'PY'
from importlib.metadata import version

import numpy as np
import soundfile
from moviepy import AudioFileClip

print("moviepy", version("moviepy"))
for rate, seconds in ((44_100, 0.8), (44_100, 1.1), (16_000, 2), (16_000, 4)):
    tone = 0.5 * np.sin(2 * np.pi * 300 * np.arange(int(seconds * rate)) / rate)
    soundfile.write("a.wav", np.stack([tone, tone], 1), rate)
    try:
        samples = AudioFileClip("a.wav", fps=rate).to_soundarray(fps=rate)[:, 0]
    except OSError as error:
        print(f"{seconds} s at {rate} Hz: {type(error).__name__}")
        wrong = True
    else:
        print(f"{seconds} s at {rate} Hz: {len(samples)} samples, from {samples.min():.3f} to {samples.max():.3f}")
        wrong = np.ptp(samples) == 0
    if wrong != (len(tone) < 50_000):
        raise SystemExit("other samples now")
PY
venv/bin/python -W ignore sounds.py
