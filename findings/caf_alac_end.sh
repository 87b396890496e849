#!/usr/bin/env bash
# Guess: a lossless recording has as many samples when it is decoded as when it was written: PyAV gives all of Apple
# Lossless in CAF, as soundfile does, which wrote it.
# What happens: the last packet says itself how many of its 4096 samples are sound, and CAF says how many are not. FFmpeg
# 8.1 takes these off a second time: up to a quarter of a second at 16 kHz is missing at the end, without an error (FFmpeg
# 5.1 gave all). And of recordings of a multiple of 4096 samples soundfile writes that none of the last 4096 is sound, and
# FFmpeg refuses them. M4A is read whole.
# Why a phonate user meets it: recorders on Macs and archives made by soundfile are such files, and the last words of clips
# are gone in all that decodes by FFmpeg or torchcodec. phonate tells FFmpeg to take off nothing.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__, "libavformat", av.library_versions["libavformat"])
def decoded(manual):
    with av.open("memo.caf") as file:
        if manual: file.streams.audio[0].codec_context.flags2 |= av.codec.context.Flags2.skip_manual
        return sum(frame.samples for frame in file.decode(audio=0))
for length in (40_000, 52_937, 40_960):
    soundfile.write("memo.caf", 0.3 * np.sin(np.arange(length) / 20), 16_000, subtype="ALAC_16")
    by_soundfile, rest = len(soundfile.read("memo.caf")[0]), -length % 4096
    try: by_av, whole = decoded(False), decoded(True)
    except av.error.InvalidDataError as error: by_av = whole = type(error).__name__
    print(f"{length} written: soundfile {by_soundfile}, PyAV {by_av}, with skip_manual {whole}")
    expected = (length - rest, length) if rest else ("InvalidDataError", "InvalidDataError")
    if (by_av, whole) != expected or by_soundfile != length: raise SystemExit("it is read otherwise now")
PY
