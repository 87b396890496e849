#!/usr/bin/env bash
# One would guess that soundfile.read("a.mp3", start=n) gives the samples from n on, as it gives them where the whole file is
# read: it does so in WAV and FLAC, and in many MP3. A frame of MP3 may use bits that frames before it left over. Behind a seek
# libsndfile goes back by a few frames; where the bits lie further back, as in quiet, clean or strongly compressed speech,
# the first 20 to 70 ms are silence or a part of the sound, and after pure tones more. Only libmpg123 remarks it on standard error.
# A phonate user meets it who cuts clips or random excerpts from audio books and podcasts by soundfile or librosa (offset=): clips
# begin without their first phone. phonate decodes MP3 from the beginning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > seek.py <<'PY'
import os

import numpy as np
import soundfile

RATE, SECONDS, LENGTH = 22_050, 6, 4000
times = np.arange(RATE * SECONDS) / RATE
phase = 2 * np.pi * np.cumsum(150 * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * times))) / RATE
voice = sum(np.sin(k * phase) / k for k in range(1, 25)) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * times))
voice = 0.3 * voice / np.abs(voice).max() + 1e-4 * np.random.default_rng(0).standard_normal(len(times))
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__)
wrong = {}
for name, options in (
    ("a.flac", {}),
    ("high.mp3", {"bitrate_mode": "CONSTANT", "compression_level": 0.1}),
    ("low.mp3", {"bitrate_mode": "VARIABLE", "compression_level": 0.9}),
):
    soundfile.write(name, voice, RATE, **options)
    whole, places, late = soundfile.read(name)[0], range(1000, len(voice) - LENGTH, 1777), []
    for start in places:
        part = soundfile.read(name, start=start, frames=LENGTH)[0]
        off = np.flatnonzero(np.abs(part - whole[start : start + LENGTH]) > 0.01)
        late += [off[-1] / RATE] if len(off) else []
    rate = os.path.getsize(name) * 8 / SECONDS / 1000
    print(f"{name}, {rate:.0f} kbit/s: {len(late)} of {len(places)} places begin wrong, for up to {max(late, default=0):.3f} s")
    wrong[name] = len(late)
assert wrong["a.flac"] == wrong["high.mp3"] == 0
if wrong["low.mp3"] == 0:
    raise SystemExit("what is behind a seek in an MP3 is right now")
PY
venv/bin/python seek.py 2>/dev/null
