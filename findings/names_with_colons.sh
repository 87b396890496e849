#!/usr/bin/env bash
# Guess: av.open of the name of a file that is there opens that file.
# What happens: 10:30:00.m4a in the current folder is taken for an address of a protocol called 10 ("Protocol not found"),
# and file:x.m4a opens x.m4a beside it. With "file:" in front, each name is a name.
# Why a phonate user meets it: recorders and messengers call recordings by the time of day.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import os
import av, numpy as np
print("av", av.__version__)
def write(name, seconds):
    with av.open("file:" + name, "w", format="ipod") as file:
        stream = file.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, seconds * 16_000), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = 16_000, 0
        file.mux([*stream.encode(frame), *stream.encode(None)])
def seconds(name):
    try:
        with av.open(name) as file:
            return file.duration / 1e6
    except (av.error.FFmpegError, OSError) as error:
        return error.strerror
write("10:30:00.m4a", 1), write("x.m4a", 2), write("file:x.m4a", 3)
found = {name: (seconds(name), seconds("file:" + name)) for name in ("10:30:00.m4a", "file:x.m4a")}
for name, (plain, prefixed) in found.items():
    print(name, "as it is:", plain, '| with "file:":', prefixed)
assert sorted(os.listdir()) == ["10:30:00.m4a", "file:x.m4a", "venv", "x.m4a"]
assert found == {"10:30:00.m4a": ("Protocol not found", 1.0), "file:x.m4a": (2.0, 3.0)}, found
PY
