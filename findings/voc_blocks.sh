#!/usr/bin/env bash
# Guess: a VOC file that FFmpeg writes is read by libsndfile as by FFmpeg: it says that it reads VOC.
# What happens: FFmpeg writes blocks of 4096 bytes. libsndfile takes the headers of all but the first for samples, without an
# error: a click in each block, and more samples than were written.
# Why a phonate user meets it: old archives of dictations are VOC, and recordings with a click each eighth of a second train.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
rate = 16_000
sound = np.full((1, 3 * rate), 1000, np.int16)
with av.open("plain.voc", "w", format="voc") as file:
    stream = file.add_stream("pcm_s16le", rate=rate, layout="mono")
    for start in range(0, sound.size, 1024):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound[:, start : start + 1024]), "s16", "mono")
        frame.sample_rate, frame.pts = rate, start
        file.mux(stream.encode(frame))
    file.mux(stream.encode(None))
with av.open("plain.voc") as file:
    theirs = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
read, _ = soundfile.read("plain.voc", dtype="int16")
wrong = int((read != 1000).sum())
print(f"written {sound.size} samples; av reads {len(theirs)}; soundfile reads {len(read)}, of which {wrong} are not as written")
assert (theirs == 1000).all() and len(theirs) == sound.size
assert len(read) > sound.size and wrong > 40
PY
