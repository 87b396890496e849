#!/usr/bin/env bash
# silero-vad takes pieces of 512 samples at 16 kHz and of 256 at 8 kHz: its Python class refuses others. One would guess that
# the ONNX file in the same wheel takes such pieces, too, or refuses them. It was made for 576 and 288, since the class puts
# the end of the piece before, 64 and 32 samples, in front, and it names no length for its input. With 512 it hears nothing in
# a voice that it is sure of otherwise, with 256 nearly nothing, without an error.
# A phonate user meets it who runs the file without Python, in a browser or on a telephone, to find speech before a recogniser:
# all is silence.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir onnxruntime==1.31.1 scipy==1.17.1 numpy==2.4.6
# the file is enough: the class would bring torch
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps silero-vad==6.2.3
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import distribution, version

import numpy as np
import onnxruntime
from scipy.signal import lfilter

print(*(f"{name} {version(name)}" for name in ("silero-vad", "onnxruntime")), sep=", ")
file = distribution("silero-vad").locate_file("silero_vad/data/silero_vad.onnx")
session = onnxruntime.InferenceSession(str(file))
print("inputs", [(one.name, one.shape) for one in session.get_inputs()])


def vowels(rate):
    """Three seconds of a voice that says vowels: pulses through three resonances, a fifth of a second each."""
    t, noise = np.arange(3 * rate) / rate, np.random.default_rng(0)
    cycles = np.cumsum(120 + 25 * np.sin(8 * t)) / rate
    source = np.diff(np.floor(cycles), prepend=0) + 0.01 * noise.standard_normal(t.size)
    formants = [(700, 1200, 2500), (300, 2200, 3000), (400, 800, 2400), (500, 1800, 2500)]
    said = []
    for index, vowel in enumerate(np.array_split(source, 15)):
        for hertz in formants[index % 4]:
            radius = np.exp(-np.pi * 90 / rate)
            vowel = lfilter([1 - radius], [1, -2 * radius * np.cos(2 * np.pi * hertz / rate), radius**2], vowel)
        said.append(0.4 * vowel / np.abs(vowel).max() * np.hanning(vowel.size) ** 0.5)
    return np.concatenate(said).astype(np.float32)


def heard(samples, rate, size, before):
    """The probability of speech for each piece."""
    state, padded, probabilities = np.zeros((2, 1, 128), np.float32), np.pad(samples, (before, 0)), []
    for start in range(0, samples.size - size + 1, size):
        piece = padded[None, start : start + before + size]
        given, state = session.run(None, {"input": piece, "state": state, "sr": np.array(rate)})
        probabilities.append(given.item())
    return np.array(probabilities)


deaf = []
for rate, size, before in ((16_000, 512, 64), (8_000, 256, 32)):
    for context in (before, 0):
        found = heard(vowels(rate), rate, size, context)
        print(f"{rate} Hz, {size} samples behind {context}: speech in {np.mean(found > 0.5):.0%} of pieces, at most {found.max():.4f}")
        if context:
            assert np.mean(found > 0.5) > 0.5
        else:
            deaf.append(np.mean(found > 0.5) < 0.1)
if not all(deaf):
    raise SystemExit("pieces without context are heard now")
PY
