#!/usr/bin/env bash
# Guess: soundfile gives the same samples of an Ogg Opus file whether or not seek(0) comes before read().
# What happens: where the stream begins a little after 0 (here by the 312 samples that PyAV's encoder puts before the
# sound, since its frames have no times), read() is late by as much and its last samples are lost; after seek(0) it is
# right. Players and FFmpeg agree with the latter.
# Why a phonate user meets it: servers that encode Opus by PyAV without times, phonate's own until now, send such files.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
rate = 48_000
sound = np.zeros(rate, np.int16)
sound[rate // 2 :] = (10_000 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)).astype(np.int16)
with av.open("a.opus", "w", format="ogg", options={"page_duration": "100000"}) as file:
    stream = file.add_stream("libopus", rate=rate, layout="mono")
    for part in np.split(sound, 10):
        frame = av.AudioFrame.from_ndarray(part[None], "s16", "mono")
        frame.sample_rate = rate
        file.mux(stream.encode(frame))
    file.mux(stream.encode(None))
def onset(samples): return int(np.argmax(np.abs(samples) > 0.1))
with soundfile.SoundFile("a.opus") as file: plain = file.read(dtype="float32")
with soundfile.SoundFile("a.opus") as file:
    file.seek(0)
    sought = file.read(dtype="float32")
print("samples", len(plain), len(sought), "onset", onset(plain), "after seek(0)", onset(sought))
assert len(plain) == len(sought) and onset(plain) - onset(sought) == 312
PY
