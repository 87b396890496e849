#!/usr/bin/env bash
# Guess: decoding a WebM or M4A file by PyAV gives the sound at the times that a player shows.
# What happens: decode() gives the frames one after the other: a pause of a recorder (no packets, the clock goes on) and
# a late start are left out, and everything behind is early. Only the frames' pts tell.
# Why a phonate user meets it: browsers' recorders leave pauses in WebM, and editors write late starts into M4A; times of
# turns and transcripts would be off in every player.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
from fractions import Fraction
import av, numpy as np
print("av", av.__version__)
rate = 48_000
sound = (10_000 * np.sin(2 * np.pi * 440 * np.arange(4 * rate) / rate)).astype(np.int16)
for name, form, codec in (("a.webm", "webm", "libopus"), ("a.m4a", "ipod", "aac")):
    with av.open(name, "w", format=form) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(sound[None], "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            at = float(packet.pts * packet.time_base)
            if form == "webm" and 1.0 <= at < 2.5:
                continue  # the recorder is paused
            if form == "ipod":
                packet.pts = packet.dts = packet.pts + round(1.5 / packet.time_base)
            file.mux(packet)
    with av.open(name) as file:
        frames = list(file.decode(audio=0))
    length = sum(frame.samples for frame in frames) / rate
    end = float(frames[-1].pts * frames[-1].time_base) + frames[-1].samples / rate
    print(name, f"decoded {length:.2f} s, ends at {end:.2f} s")
    assert end - length > 1.4
PY
