#!/usr/bin/env bash
# Guess: libraries that read tags know how long a recording is; lists of corpora have their `duration` from them.
# What happens: they believe the header or the last time stamp. A WAV that was written into a pipe lasts half a day for
# mutagen and tinytag, a fragmented MP4 no time at all, such an MP3 of variable bit rate 4.6 s of 8 for mutagen, and an
# Ogg Opus of 8 s whose clock begins at 100 s, as in a piece of a live stream, 108 s.
# Why a phonate user meets it: manifests with these durations cut recordings or fail filters by length. phonate measures.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 mutagen==1.48.1 tinytag==2.3.2 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import io
from fractions import Fraction
from importlib.metadata import version
import av, mutagen, numpy as np, tinytag

print("mutagen", version("mutagen"), "tinytag", version("tinytag"), "av", av.__version__)
rate = 48_000
sound = np.random.default_rng(0).normal(0, 0.2, 8 * rate).astype(np.float32)


class Pipe(io.RawIOBase):
    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def seekable(self):
        return False

    def write(self, data):
        return self.file.write(data)


def write(name, container, codec, late=0, options={}, codec_options={}):
    with open(name, "wb") as target:
        with av.open(Pipe(target), "w", format=container, options=options) as file:
            stream = file.add_stream(codec, rate=rate, layout="mono", options=codec_options)
            resampler = av.AudioResampler(stream.format.name, "mono", rate, stream.codec_context.frame_size or 1024)
            frame = av.AudioFrame.from_ndarray(sound[None], format="flt", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
            packets = [p for part in [*resampler.resample(frame), *resampler.resample(None)] for p in stream.encode(part)]
            for packet in [*packets, *stream.encode(None)]:
                packet.pts += round(late / packet.time_base)
                packet.dts = packet.pts
                file.mux(packet)


write("piped.wav", "wav", "pcm_s16le")
write("fragments.m4a", "mp4", "aac", options={"movflags": "frag_keyframe+empty_moov"})
write("piped.mp3", "mp3", "libmp3lame", codec_options={"abr": "1", "b": "96000"})
write("late.opus", "ogg", "libopus", late=100)
says = {}
for name in ("piped.wav", "fragments.m4a", "piped.mp3", "late.opus"):
    with av.open(name) as file:
        decoded = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    says[name] = mutagen.File(name).info.length, tinytag.TinyTag.get(name).duration or 0.0
    print(f"{name}: decoded {decoded:.2f} s, mutagen {says[name][0]:.2f}, tinytag {says[name][1]:.2f}")
    assert 7.9 < decoded < 8.1
by_mutagen = {name: length for name, (length, _) in says.items()}
if not (
    by_mutagen["piped.wav"] > 40_000
    and by_mutagen["fragments.m4a"] == 0
    and by_mutagen["piped.mp3"] < 5
    and by_mutagen["late.opus"] > 100
):
    raise SystemExit("mutagen gives other lengths now")
PY
