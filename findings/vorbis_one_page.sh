#!/usr/bin/env bash
# Guess: PyAV decodes an Ogg Vorbis file to as many samples as were written.
# What happens: of clips so short that all sound is on one Ogg page, as soundfile writes them, FFmpeg takes the first
# frame for one block later than it is, so that it drops the last 256 samples, or keeps some that only fill the last block.
# libsndfile gives the length that was written; the samples that both have are the same.
# Why a phonate user meets it: corpora of single words are such clips, and what decodes by FFmpeg or torchcodec cuts or
# lengthens them by 16 ms and more at 16 kHz. phonate reads Vorbis by libsndfile.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
rate, differ = 16_000, []
for length in (16_000, 24_000):
    sound = (0.3 * np.sin(2 * np.pi * 300 * np.arange(length) / rate)).astype(np.float32)
    soundfile.write("a.ogg", sound, rate, format="OGG", subtype="VORBIS")
    by_soundfile = soundfile.read("a.ogg", dtype="float32")[0]
    with av.open("a.ogg") as file:
        frames = list(file.decode(audio=0))
    by_av = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    both = min(len(by_av), len(by_soundfile))
    apart = np.abs(by_av[:both] - by_soundfile[:both]).max()
    print(f"{length} written: soundfile {len(by_soundfile)}, PyAV {len(by_av)}, first pts {frames[0].pts}, samples apart {apart:.0e}")
    assert len(by_soundfile) == length and apart < 1e-5
    differ.append(len(by_av) - length)
if not (differ[0] < 0 < differ[1]):
    raise SystemExit("PyAV gives another length now")
PY
