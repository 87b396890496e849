#!/usr/bin/env bash
# Guess: soundfile gives as many samples of a WAV in GSM 6.10 as its header says, or as its blocks have.
# What happens: a block has 65 bytes, and WAV fills up an odd length with one byte more. libsndfile takes that byte for a block
# that was cut off and decodes it: behind each second recording are 40 ms of noise, louder than the call. FFmpeg gives
# what the header says.
# Why a phonate user meets it: Asterisk and other telephone systems record calls so (wav49). phonate reads them by FFmpeg.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 soundfile==0.14.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
import av, numpy as np, soundfile
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__, "av", av.__version__)
for blocks in (48, 49, 50, 51):
    soundfile.write("call.wav", 0.1 * np.sin(np.arange(320 * blocks) / 5), 8000, subtype="GSM610")
    header = open("call.wav", "rb").read(60)
    said = int.from_bytes(header[header.find(b"fact") + 8:][:4], "little")
    samples = soundfile.read("call.wav")[0]
    with av.open("call.wav") as file:
        by_av = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)]) / 32_768
    print(f"header {said} samples, PyAV {len(by_av)}, soundfile {len(samples)}; peak of the last 40 ms {np.abs(samples[-320:]).max():.2f}")
    assert said == len(by_av) == 320 * blocks and np.array_equal(samples[:said], by_av)
    if len(samples) != said + 320 * (blocks % 2):
        raise SystemExit("soundfile gives another length now")
PY
