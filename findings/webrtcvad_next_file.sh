#!/usr/bin/env bash
# webrtcvad says of each 10 to 30 ms whether it is speech. One would guess that one Vad serves for a list of files, as it adapts to
# each within a second or two. It has no reset (set_mode changes thresholds alone), and keeps its picture of noise and speech: behind
# a loud recording the strictest mode hears next to nothing of a quiet one, and still nothing half a minute later. A new Vad hears
# most of it. The other modes recover in seconds.
# A phonate user meets it who cuts or filters a corpus by one Vad in a loop, or in a service: what is left of a recording depends on
# which was read before, and on how the list was sorted or divided among processes. A new Vad for each recording mends it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir webrtcvad-wheels==2.0.14.post1 scipy==1.17.1 \
    numpy==2.4.6
cat > "$folder/next.py" <<'PY'
from importlib.metadata import version

import numpy as np
import webrtcvad
from scipy.signal import lfilter

print("webrtcvad-wheels", version("webrtcvad-wheels"))
rate, rng = 16_000, np.random.default_rng(0)


def voice(seconds):
    """Pulses through three formants, three syllables a second."""
    times = np.arange(seconds * rate) / rate
    sound = np.diff(np.floor(np.cumsum(120 + 20 * np.sin(2 * np.pi * 0.7 * times)) / rate), prepend=0)
    for formant, width in ((500, 80), (1500, 100), (2500, 150)):
        radius = np.exp(-np.pi * width / rate)
        sound = lfilter([1], [1, -2 * radius * np.cos(2 * np.pi * formant / rate), radius**2], sound)
    sound *= np.sin(2 * np.pi * 3 * times) > -0.3
    return sound / np.abs(sound).max()


def speech(vad, sound):
    """How many pieces of 30 ms are speech."""
    samples = (np.clip(sound, -1, 1) * 32767).astype("<i2")
    return sum(vad.is_speech(piece.tobytes(), rate) for piece in samples[: len(samples) // 480 * 480].reshape(-1, 480))


def noisy(sound, noise):
    return sound + noise * rng.standard_normal(len(sound))


loud = noisy(np.concatenate([np.zeros(10 * rate), 0.3 * voice(10)]), 0.05)
quiet = noisy(np.concatenate([np.zeros(rate), 0.03 * voice(30)]), 0.0003)
for mode in range(4):
    used = webrtcvad.Vad(mode)
    speech(used, loud)
    used.set_mode(mode)
    new, after = speech(webrtcvad.Vad(mode), quiet), speech(used, quiet)
    print(f"mode {mode}: {new} of {len(quiet) // 480} pieces are speech to a new Vad, {after} behind a loud recording")
if after > new / 5:
    raise SystemExit("it forgets the recording before now")
PY
"$folder/venv/bin/python" "$folder/next.py"
