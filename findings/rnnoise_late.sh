#!/usr/bin/env bash
# One would guess that a denoiser which gives a frame for each frame, and a recording of the length that came, gives the
# sound at its times, or 10 ms late, as RNNoise is known for. What pyrnnoise gives is 20 ms late: silence stands before it,
# and the last 20 ms are gone.
# A phonate user meets it who denoises recordings that have labels, such as times of words and turns, or the source side
# alone of parallel recordings. phonate's own denoiser (data.denoise) gives sound at its times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pyrnnoise==0.4.5 numpy==2.4.6
cd "$folder"
cat > late.py <<'PY'
from importlib.metadata import version

import numpy as np
from pyrnnoise import RNNoise

RATE = 48_000
print("pyrnnoise", version("pyrnnoise"))
times = np.arange(3 * RATE) / RATE
phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * times)) / RATE  # a voice whose pitch moves
loudness = np.clip(np.sin(2 * np.pi * 3.1 * times) + 0.3 * np.sin(2 * np.pi * 1.3 * times), 0, 1)
voice = 0.12 * loudness * sum(np.sin(k * phase) / k for k in range(1, 25))
samples = np.rint(32_767 * voice).astype(np.int16)
denoised = np.concatenate([frame.reshape(-1) for _, frame in RNNoise(RATE).denoise_chunk(samples)]) / 32_767
spectrum = np.conj(np.fft.rfft(voice, 2 * len(voice))) * np.fft.rfft(denoised, 2 * len(voice))
late = int(np.argmax(np.fft.irfft(spectrum)[: RATE // 10]))
print(f"{len(voice)} samples in, {len(denoised)} out, {late} late: {1000 * late / RATE:.1f} ms")
assert len(denoised) == len(voice)
if late < 480:
    raise SystemExit("sound is at its times now")
PY
venv/bin/python late.py
