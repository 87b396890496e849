#!/usr/bin/env bash
# Guess: a block of silence in a VOC file (3, in the format's description) is played as silence.
# What happens: FFmpeg leaves it out, so that all behind it is early, without a word.
# Why a phonate user meets it: recorders of dictations wrote pauses so; times of words and turns would be off.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import struct
import av
print("av", av.__version__)
def block(kind, content): return bytes([kind]) + len(content).to_bytes(3, "little") + content
sound = block(1, bytes([131, 0]) + bytes([200]) * 8000)
silence = block(3, struct.pack("<HB", 3999, 131))
open("a.voc", "wb").write(b"Creative Voice File\x1a" + struct.pack("<HHH", 26, 0x10A, 0x1129) + sound + silence + sound + b"\0")
with av.open("a.voc") as file:
    frames = list(file.decode(audio=0))
end = float(frames[-1].pts * frames[-1].time_base) + frames[-1].samples / 8000
print(f"written 1 s, 0.5 s of silence, 1 s; decoded {sum(frame.samples for frame in frames) / 8000} s, the last ends at {end} s")
assert end == 2.0
PY
