#!/usr/bin/env bash
# One would guess that Harvest and DIO of WORLD (pyworld) find the pitch of a telephone recording: it is what everyone hears,
# by the distance of the harmonics. Both look for the wave of the fundamental itself, which a telephone (300 to 3400 Hz) does
# not carry. Of a voice at 100 Hz Harvest finds no pitch at all, and DIO finds 300 Hz, an octave and a fifth above. Praat
# finds 100 Hz.
# A phonate user meets it who converts or analyses calls: many tools of voice conversion take their pitch from WORLD.
# phonate's default (swift) hears 100 Hz.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pyworld==0.3.5 setuptools==80.9.0 \
    praat-parselmouth==0.4.7 numpy==2.4.6
cd "$folder"
cat > pitch.py <<'PY'
from importlib.metadata import version

import numpy as np
import parselmouth
import pyworld

RATE = 16_000
print(*(f"{name} {version(name)}" for name in ("pyworld", "praat-parselmouth")), sep=", ")


def voice(harmonics):
    times = np.arange(2 * RATE) / RATE
    return sum(0.2 / k * np.sin(2 * np.pi * 100 * k * times + k) for k in harmonics)


def found(sound):
    praat = parselmouth.Sound(sound, RATE).to_pitch().selected_array["frequency"]
    curves = {"Harvest": pyworld.harvest(sound, RATE)[0], "DIO": pyworld.dio(sound, RATE)[0], "Praat": praat}
    voiced = {name: curve[curve > 0] for name, curve in curves.items()}
    return {name: (100 * len(curve) // len(curves[name]), np.median(curve) if len(curve) else 0) for name, curve in voiced.items()}


room, telephone = found(voice(range(1, 40))), found(voice(range(3, 34)))
for place, pitches in (("whole voice", room), ("telephone", telephone)):
    print(f"{place}:", *(f"{name} {share} % voiced, {hertz:.0f} Hz;" for name, (share, hertz) in pitches.items()))
assert all(abs(hertz - 100) < 1 for _, hertz in room.values())
assert abs(telephone["Praat"][1] - 100) < 1
if not (telephone["Harvest"][0] < 5 and abs(telephone["DIO"][1] - 300) < 10):
    raise SystemExit("WORLD hears the voice on the telephone now")
PY
venv/bin/python pitch.py
