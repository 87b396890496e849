#!/usr/bin/env bash
# One would guess that the converter in Home Assistant's own library for voice (wyoming.audio.AudioChunkConverter) makes of
# a microphone's sound what a recogniser needs: 48 kHz to 16 kHz without what 16 kHz can't carry, and one channel that is
# the mean of two. It leaves out samples without a filter, so that 11 kHz is heard at 5 kHz, as loud as it was; and it adds
# the channels up: what is louder than half in both is clipped.
# A phonate user meets it whose satellite has a microphone of 48 kHz, or two of them, and speaks to `phonate serve --wyoming`:
# what arrives is distorted already.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check wyoming==1.10.2 numpy==2.4.6 \
    "audioop-lts==0.2.2; python_version >= '3.13'"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
from wyoming.audio import AudioChunk, AudioChunkConverter


def converted(rate, channels):
    converter = AudioChunkConverter(rate=16_000, width=2, channels=1)
    size = 1024 * len(channels)
    samples = np.stack(channels, axis=1).astype("<i2").reshape(-1)
    chunks = (AudioChunk(rate, 2, len(channels), samples[i : i + size].tobytes()) for i in range(0, len(samples), size))
    return np.frombuffer(b"".join(converter.convert(chunk).audio for chunk in chunks), "<i2").astype(float)


print("wyoming", version("wyoming"))
tone = 10_000 * np.sin(2 * np.pi * 11_000 * np.arange(48_000) / 48_000)
lower = converted(48_000, [tone])
spectrum = np.abs(np.fft.rfft(lower * np.hanning(len(lower))))
heard = np.argmax(spectrum) * 16_000 / len(lower)
level = np.std(lower) / np.std(tone)
print(f"11 kHz from 48 kHz to 16 kHz: heard at {heard:.0f} Hz, {20 * np.log10(level):+.1f} dB")
loud = 20_000 * np.sin(2 * np.pi * 200 * np.arange(16_000) / 16_000)
mono = converted(16_000, [loud, loud])
print(f"20000 in both channels: {np.abs(mono).max():.0f} in one; {100 * np.mean(np.abs(mono) >= 32_767):.0f} % of the samples clipped")
if not (abs(heard - 5000) < 5 and level > 0.9):
    raise SystemExit("the converter filters now")
if np.mean(np.abs(mono) >= 32_767) < 0.1:
    raise SystemExit("the converter takes the mean of the channels now")
PY
