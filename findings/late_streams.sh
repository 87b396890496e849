#!/usr/bin/env bash
# Guess: PyAV's demux(stream) gives the packets of a stream, whatever else the file holds.
# What happens: where another stream begins within the file, as a camera that is switched on during a call, IndexError is
# raised behind the last packet: streams are counted again there, and Python's list of them is that of the beginning.
# Why a phonate user meets it: FLV of calls and live streams, and such files that are cut short.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import av, numpy as np
print("av", av.__version__)
rate = 44_100
with av.open("call.flv", "w", format="flv") as file:
    stream = file.add_stream("aac", rate=rate, layout="mono")
    sound = (0.3 * np.sin(2 * np.pi * 440 * np.arange(10 * rate) / rate)).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(sound[None], "fltp", "mono")
    frame.sample_rate, frame.pts = rate, 0
    file.mux([*stream.encode(frame), *stream.encode(None)])
def packets():
    count = 0
    with av.open("call.flv") as file:
        for packet in file.demux(file.streams.audio[0]):
            count += packet.size > 0
    return count
print("packets", packets())
picture = b"\x13" + bytes(20)
tag = b"\x09" + len(picture).to_bytes(3, "big") + (10_050).to_bytes(3, "big") + bytes(4) + picture
with open("call.flv", "ab") as file:
    file.write(tag + len(tag).to_bytes(4, "big"))
try:
    packets()
    raise SystemExit("no error: has it been mended?")
except IndexError as error:
    print("with a picture at the end:", repr(error))
PY
