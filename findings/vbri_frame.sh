#!/usr/bin/env bash
# Guess: an MP3 of one of Fraunhofer's encoders, whose first frame counts the others (VBRI), is decoded like one whose first
# frame is Xing's or Info.
# What happens: libsndfile (libmpg123) decodes the frame that counts as sound, so all is a frame late (36 ms at 16 kHz), and
# gives a length that is guessed from the size of the file. FFmpeg leaves it out.
# Why a phonate user meets it: times of words and speakers are off, and files are called cut short, or read half.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY' 2>/dev/null
import struct
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
rate = 16_000
sound = (0.3 * np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate)).astype(np.float32)
with av.open("plain.mp3", "w", format="mp3", options={"write_xing": "0", "id3v2_version": "0"}) as file:
    stream = file.add_stream("libmp3lame", rate=rate, layout="mono")
    frame = av.AudioFrame.from_ndarray(sound[None], "fltp", "mono")
    frame.sample_rate, frame.pts = rate, 0
    for part in av.AudioResampler(stream.format.name, "mono", rate, 576).resample(frame):
        file.mux(stream.encode(part))
    file.mux(stream.encode(None))
content, length = open("plain.mp3", "rb").read(), 108
tag = b"VBRI" + struct.pack(">HHHII", 1, 0, 75, len(content) + length, len(content) // length)
open("vbri.mp3", "wb").write((content[:4] + bytes(32) + tag).ljust(length, b"\0") + content)
def by_av(name):
    with av.open(name) as file:
        return np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
first = lambda samples: int(np.argmax(np.abs(samples) > 0.05)) / rate
found = {name: (first(soundfile.read(name)[0]), first(by_av(name))) for name in ("plain.mp3", "vbri.mp3")}
for name, (theirs, ffmpeg) in found.items():
    print(name, f"begins at: soundfile {theirs:.4f} s, av {ffmpeg:.4f} s")
assert found["plain.mp3"][0] == found["plain.mp3"][1] == found["vbri.mp3"][1]
assert round((found["vbri.mp3"][0] - found["vbri.mp3"][1]) * rate) == 576
PY
