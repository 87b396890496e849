#!/usr/bin/env bash
# Guess: soundfile reads an MP3 of variable bit rate to its end, whether or not a header counts the frames.
# What happens: without that count (encoders that write into a pipe can't go back to fill it in) libsndfile takes all
# frames to be about as long as the first ones and reads no further than that estimate: of 8 s, fewer than 7, without an error.
# Why a phonate user meets it: recordings by `lame - -` or `ffmpeg -f mp3 -` are ordinary; a corpus read by soundfile or
# librosa loses their ends, with texts whose last words are not heard. phonate reads such files by FFmpeg.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
from fractions import Fraction
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
rate = 16_000
sound = np.random.default_rng(0).normal(0, 0.2, 8 * rate).astype(np.float32)
sound[rate:] = 0.3 * np.sin(2 * np.pi * 440 * np.arange(7 * rate) / rate)
read = {}
for counted in ("1", "0"):
    with av.open("a.mp3", "w", format="mp3", options={"write_xing": counted}) as file:
        stream = file.add_stream("libmp3lame", rate=rate, layout="mono", options={"abr": "1", "b": "96000"})
        frame = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    with av.open("a.mp3") as file:
        decoded = sum(frame.samples for frame in file.decode(audio=0)) / rate
    read[counted] = len(soundfile.read("a.mp3")[0]) / rate
    words = "counted" if counted == "1" else "not counted"
    print(f"frames {words}: soundfile reads {read[counted]:.2f} s, PyAV {decoded:.2f} s")
    assert decoded > 7.9
if not read["1"] > 7.9 or not read["0"] < 7.5:
    raise SystemExit("soundfile reads it otherwise now")
PY
