#!/usr/bin/env bash
# One would guess that what is read behind a seek is what stands at that place when the file is read from its beginning. In
# pedalboard it is, for WAV, FLAC and Ogg. In an MP3 most places give other samples, up to a burst of noise twenty times as
# loud as the recording, without an error. soundfile gives the same samples of these either way.
# A phonate user meets it who augments by pedalboard and cuts excerpts from MP3 by it, as from Common Voice; phonate reads
# MP3 by soundfile or FFmpeg.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pedalboard==0.9.26 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > seek.py <<'PY'
import numpy as np
import pedalboard
import soundfile
from pedalboard.io import AudioFile

RATE, SECONDS = 16_000, 12
times = np.arange(SECONDS * RATE) / RATE
noise = np.random.default_rng(0).standard_normal(len(times))
sound = 0.2 * np.sin(2 * np.pi * (200 + 20 * times) * times) + 0.02 * noise
print("pedalboard", pedalboard.__version__, "soundfile", soundfile.__version__)
worst = {}
for name in ("a.wav", "a.flac", "a.ogg", "a.mp3"):
    soundfile.write(name, sound, RATE)
    with AudioFile(name) as file:
        whole, differences = file.read(file.frames)[0], []
        for place in range(1000, len(sound) - RATE, 7001):
            file.seek(place)
            differences.append(np.abs(file.read(2000)[0] - whole[place : place + 2000]).max())
    by_soundfile = soundfile.read(name)[0]
    other = max(np.abs(soundfile.read(name, start=s, frames=2000)[0] - by_soundfile[s : s + 2000]).max() for s in (50_001, 100_000))
    worst[name] = max(differences)
    bad = sum(one > 0.01 for one in differences)
    print(f"{name}: loudest {np.abs(whole).max():.2f}; {bad} of {len(differences)} places differ, by up to {worst[name]:.2f}; soundfile {other:.0e}")
assert max(worst["a.wav"], worst["a.flac"], worst["a.ogg"]) == 0.0
if worst["a.mp3"] < 0.01:
    raise SystemExit("what is behind a seek in an MP3 is right now")
PY
venv/bin/python seek.py 2>/dev/null
