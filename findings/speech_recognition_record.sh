#!/usr/bin/env bash
# One would guess that record(duration=1) of the package SpeechRecognition gives a second of the file, and that calling it
# again and again gives all of it: the calls share the open file. It reads pieces of 4096 samples, and what would go beyond the
# duration is read and thrown away as a whole: at 16 kHz a second has 0.77 s, and of a recording read second by second
# a quarter is missing, with a gap before each next second. An offset is moved in the same way, to the piece before it.
# A phonate user meets it who cuts a long recording into pieces of some seconds by it, for a recogniser or as training clips:
# words at each cut are gone, and times computed from the number of pieces are off, more so the longer the recording is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir SpeechRecognition==3.17.0 numpy==2.4.6
cd "$folder"
cat > record.py <<'PY'
import wave
from importlib.metadata import version

import numpy as np
import speech_recognition

print("SpeechRecognition", version("SpeechRecognition"))
rate, seconds = 16_000, 60
spoken = np.random.default_rng(0).integers(-9000, 9000, rate * seconds).astype("<i2")
with wave.open("a.wav", "wb") as file:
    file.setparams((1, 2, rate, 0, "NONE", ""))
    file.writeframes(spoken.tobytes())
recognizer, pieces = speech_recognition.Recognizer(), []
with speech_recognition.AudioFile("a.wav") as source:
    while len(piece := np.frombuffer(recognizer.record(source, duration=1).frame_data, "<i2")):
        pieces.append(piece)
with speech_recognition.AudioFile("a.wav") as source:
    later = np.frombuffer(recognizer.record(source, offset=1, duration=1).frame_data, "<i2")
whole = sum(map(len, pieces))
print(f"{seconds} s are {len(pieces)} pieces of {len(pieces[0]) / rate:.3f} s, together {whole / rate:.1f} s")
for number in (0, 1, 10):
    place = next(at for at in range(len(spoken)) if np.array_equal(spoken[at : at + 20], pieces[number][:20]))
    print(f"piece {number} begins at {place / rate:.3f} s")
start = next(at for at in range(len(spoken)) if np.array_equal(spoken[at : at + 20], later[:20]))
print(f"offset=1 begins at {start / rate:.3f} s")
assert len(pieces[0]) > 0.5 * rate
if whole == len(spoken) or len(pieces[0]) == rate:
    raise SystemExit("nothing is thrown away now")
PY
venv/bin/python record.py
