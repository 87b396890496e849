#!/usr/bin/env bash
# Guess: FFmpeg makes one channel of two by their mean, and two of one by copying it, whatever the format of the samples.
# What happens: two equal channels become one that is as loud if the samples come out as whole numbers, and 3 dB louder if they
# come out as floats, beyond 1 where the recording is louder than 0.71. One channel becomes two that are 3 dB quieter.
# Why a phonate user meets it: what decodes to mono floats by FFmpeg (`ffmpeg -ac 1 -f f32le`, PyAV) hears stereo
# recordings otherwise than what decodes to 16 bits or takes the mean, and the level of a voice decides how alike two voices
# are to many speaker encoders. phonate takes the mean itself.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
from fractions import Fraction
import av, numpy as np
print("av", av.__version__, "libswresample", ".".join(map(str, av.library_versions["libswresample"])))
rate = 16_000
tone = 0.8 * np.sin(2 * np.pi * 300 * np.arange(rate) / rate)
def peak(before, given, after, wanted):
    samples = np.repeat(tone, {"mono": 1, "stereo": 2}[before])[None]
    samples = (samples * 32_768).astype(np.int16) if given == "s16" else samples.astype(np.float32)
    frame = av.AudioFrame.from_ndarray(samples, format=given, layout=before)
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    resampler = av.AudioResampler(format=wanted, layout=after, rate=rate)
    output = np.concatenate([part.to_ndarray().reshape(-1) for part in resampler.resample(frame) + resampler.resample(None)])
    return np.abs(output.astype(float)).max() / (32_768 if wanted == "s16" else 1)
for given in ("s16", "flt"):
    for before, after, wanted, expected in (
        ("stereo", "mono", "s16", 0.8), ("stereo", "mono", "flt", 0.8 * 2**0.5),
        ("mono", "stereo", "s16", 0.8 / 2**0.5), ("mono", "stereo", "flt", 0.8 / 2**0.5),
    ):
        result = peak(before, given, after, wanted)
        print(f"{before} {given} to {after} {wanted}: a peak of 0.80 becomes {result:.2f}")
        if abs(result - expected) > 0.01: raise SystemExit("the level is another one now")
PY
