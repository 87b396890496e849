#!/usr/bin/env bash
# Guess: PyAV reads every AMR recording, as FFmpeg has a decoder for it.
# What happens: telephones and recorders leave out pauses (discontinuous transmission: a few bytes of comfort noise stand
# for them). FFmpeg's own decoder, which PyAV takes, ends with "Not yet implemented" at the first such pause; the
# decoder libopencore_amrnb lies in the same wheel, reads all, and is taken only where it is asked for by name.
# Why a phonate user meets it: voice memos of older telephones and call recordings are .amr and .3gp with pauses, and
# what reads by PyAV or torchcodec loses them or their ends. phonate asks for the other decoder.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
from fractions import Fraction
import av, numpy as np

print("av", av.__version__)
rate = 8_000
sound = np.zeros(6 * rate)
for start in (0, 4):  # two tones, and a pause of two seconds
    time = np.arange(2 * rate) / rate
    sound[start * rate : (start + 2) * rate] = 8_000 * np.sin(2 * np.pi * 300 * time) * (1 + np.sin(2 * np.pi * 5 * time)) / 2
with av.open("a.amr", "w", format="amr") as file:
    stream = file.add_stream("libopencore_amrnb", rate=rate, layout="mono", options={"dtx": "1"})
    stream.bit_rate = 12_200
    frame = av.AudioFrame.from_ndarray(sound.astype(np.int16)[None], format="s16", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    resampler = av.AudioResampler("s16", "mono", rate, 160)
    for part in [*resampler.resample(frame), *resampler.resample(None)]:
        file.mux(stream.encode(part))
    file.mux(stream.encode(None))
seconds, raised = 0.0, ""
with av.open("a.amr") as file:
    print("decoder that PyAV takes:", file.streams.audio[0].codec_context.name)
    try:
        for frame in file.decode(audio=0):
            seconds += frame.samples / rate
    except av.FFmpegError as error:
        raised = str(error)
print(f"{seconds:.2f} of 6 s", raised)
named = av.AudioCodecContext.create("libopencore_amrnb", "r")
named.sample_rate, named.layout = rate, "mono"
with av.open("a.amr") as file:
    read = sum(frame.samples for packet in file.demux(audio=0) for frame in named.decode(packet if packet.size else None)) / rate
print(f"libopencore_amrnb: {read:.2f} s")
if not (raised and seconds < 5 and read > 5.9):
    raise SystemExit("they read it otherwise now")
PY
