#!/usr/bin/env bash
# Guess: pydub gives the samples of any WAV file that it opens.
# What happens: it takes each file whose header is of the extensible form for whole numbers. Floats in it, which FFmpeg and
# others write for more than two channels or rates above 48 kHz, are read by their bits as 32-bit numbers: a quiet tone is a
# loud noise, and mu-law in it is noise as well. The same samples with the short header are read rightly by way of ffmpeg.
# Why a phonate user meets it: microphone arrays and recorders of 96 kHz write such files, and scripts that cut corpora by
# pydub give noise without an error. phonate reads them by libsndfile.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pydub==0.25.1 soundfile==0.14.0 numpy==2.4.6 av==18.1.0 \
    "audioop-lts==0.2.2; python_version >= '3.13'"
cd "$folder"
venv/bin/python -W ignore - <<'PY'
from fractions import Fraction
from importlib.metadata import version
import av, numpy as np, soundfile
from pydub import AudioSegment
print("pydub", version("pydub"), "soundfile", soundfile.__version__, "av", av.__version__)
rate = 96_000
tone = (0.1 * np.sin(2 * np.pi * 200 * np.arange(rate) / rate)).astype(np.float32)
with av.open("ffmpeg.wav", "w") as file:
    stream = file.add_stream("pcm_f32le", rate=rate, layout="mono")
    frame = av.AudioFrame.from_ndarray(tone[None], format="flt", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    file.mux(stream.encode(frame) + stream.encode(None))
for subtype in ("FLOAT", "ULAW", "PCM_16", "PCM_24"):
    soundfile.write(f"{subtype}.wav", tone, rate, format="WAVEX", subtype=subtype)
for name, noise in (("ffmpeg", True), ("FLOAT", True), ("ULAW", True), ("PCM_16", False), ("PCM_24", False)):
    expected, info = soundfile.read(f"{name}.wav")[0], soundfile.info(f"{name}.wav")
    segment = AudioSegment.from_file(f"{name}.wav")
    samples = np.array(segment.get_array_of_samples()) / segment.max_possible_amplitude
    peak = np.abs(samples).max()
    print(f"{name}.wav ({info.format} {info.subtype}): peak {np.abs(expected).max():.2f}, by pydub {peak:.2f}")
    if info.format != "WAVEX" or (peak > 0.7) != noise:
        raise SystemExit("it is read otherwise now")
PY
