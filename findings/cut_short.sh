#!/usr/bin/env bash
# Guess: a decoder refuses a recording whose end is missing, though its header says how long it is.
# What happens: soundfile refuses FLAC and CAF, but reads what is left of WAV, AIFF, AU, SPHERE and Ogg, and PyAV what is
# left of WMA and Matroska, without an error or a warning.
# Why a phonate user meets it: half-copied corpora would be trained on, with texts whose second half is not there.
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
sound = (0.3 * np.sin(2 * np.pi * 440 * np.arange(4 * rate) / rate)).astype(np.float32)
def cut(name):
    content = open(name, "rb").read()
    open("cut", "wb").write(content[: len(content) // 2])
silent = []
for kind in ("WAV", "AIFF", "AU", "NIST", "OGG", "FLAC", "CAF"):
    soundfile.write("whole", sound, rate, format=kind)
    cut("whole")
    try:
        length = len(soundfile.read("cut")[0]) / rate
        silent.append(kind)
    except soundfile.LibsndfileError as error:
        length = error
    print("soundfile", kind, length)
for form, codec in (("matroska", "flac"), ("asf", "wmav2")):
    with av.open("whole", "w", format=form) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        stream.bit_rate = 32_000
        frame = av.AudioFrame.from_ndarray((sound * 32767).astype(np.int16)[None], "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        file.mux(stream.encode(frame)); file.mux(stream.encode(None))
    cut("whole")
    try:
        with av.open("cut", format=form) as file:
            length = sum(frame.samples for frame in file.decode(audio=0)) / rate
            silent.append(form)
    except av.error.FFmpegError as error:
        length = error
    print("av", form, length)
assert silent == ["WAV", "AIFF", "AU", "NIST", "OGG", "matroska", "asf"], silent
PY
