#!/usr/bin/env bash
# Guess: of recordings that were joined end to end (cat a.mp3 b.mp3, chained Ogg, cat a.flac b.flac), which players play
# whole, a decoder gives all or an error.
# What happens: soundfile gives the first part of MP3 (with an Info tag), Ogg Vorbis, Ogg Opus and FLAC without a word.
# PyAV gives all of some, but raises on MP3 files with ID3 tags (as FFmpeg's own encoder writes them) where the ffmpeg
# command skips the tag, and on chained Vorbis of another rate.
# Why a phonate user meets it: joined MP3 and Ogg files come from recorders, radio and messengers.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - 2>/dev/null <<'PY'
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
def tone(seconds, rate): return (0.3 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)
def join(name, *files): open(name, "wb").write(b"".join(open(file, "rb").read() for file in files))
def by_av(name):
    try:
        with av.open(name) as file: return round(sum(f.samples / f.sample_rate for f in file.decode(audio=0)), 2)
    except av.error.FFmpegError as error: return type(error).__name__
found = {}
for kind, form, subtype in (("mp3", "MP3", None), ("ogg", "OGG", "VORBIS"), ("opus", "OGG", "OPUS"), ("flac", "FLAC", None)):
    for name, seconds, rate in (("a", 2.0, 24_000), ("b", 3.0, 24_000), ("c", 3.0, 16_000)):
        soundfile.write(f"{name}.{kind}", tone(seconds, rate), rate, format=form, subtype=subtype)
    for second in "bc":
        join("joined", f"a.{kind}", f"{second}.{kind}")
        found[kind, second] = (len(soundfile.read("joined")[0]) / 24_000, by_av("joined"))
        print(kind, "of", "one rate" if second == "b" else "two rates", "soundfile", found[kind, second][0], "av", found[kind, second][1])
with av.open("tagged.mp3", "w", format="mp3") as file:
    file.metadata["title"] = "a title"
    stream = file.add_stream("libmp3lame", rate=24_000, layout="mono")
    frame = av.AudioFrame.from_ndarray((tone(2.0, 24_000) * 32767).astype(np.int16)[None], "s16", "mono")
    frame.sample_rate = 24_000
    file.mux(stream.encode(frame)); file.mux(stream.encode(None))
join("joined", "tagged.mp3", "tagged.mp3")
print("tagged mp3", "soundfile", len(soundfile.read("joined")[0]) / 24_000, "av", by_av("joined"))
assert all(length == 2.0 for length, _ in found.values())
assert found["ogg", "c"][1] == "PatchWelcomeError" and by_av("joined") == "InvalidDataError"
PY
