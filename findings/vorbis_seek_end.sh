#!/usr/bin/env bash
# One would guess that soundfile.read("a.ogg", start=n) gives the samples from n on, wherever n is. An Ogg Vorbis file ends with a
# page whose mark says how many of its last samples are sound. libsndfile takes that mark for the end of all samples of the page:
# what is read from a place in the last page, half a second long and more, is late by what is cut off, here 8 ms, and ends with
# samples that lie behind the end of the recording. Before the last page, and where the whole file is read, all is right.
# A phonate user meets it who cuts the last word of a recording, or random excerpts, by soundfile or librosa (offset=): the
# beginning of the word is gone, and times and pitch marks are off. phonate decodes the last page from a place before it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > end.py <<'PY'
import numpy as np
import soundfile

RATE, LAST = 24_000, 2400
print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__)
noise, lags = np.random.default_rng(0), {}
for seconds in (3.0, 10.0, 60.0):
    soundfile.write("a.ogg", 0.1 * noise.standard_normal(round(seconds * RATE)), RATE)
    whole = soundfile.read("a.ogg")[0]
    wrong = []
    for start in range(0, len(whole) - LAST, 1201):
        part = soundfile.read("a.ogg", start=start, frames=LAST)[0]
        if not np.allclose(part, whole[start : start + LAST]):
            wrong.append(start)
    end = soundfile.read("a.ogg", start=len(whole) - LAST)[0]
    lags[seconds] = next((lag for lag in range(LAST // 2) if np.allclose(end[:1000], whole[len(whole) - LAST + lag :][:1000])), -1)
    first = f"from {(len(whole) - wrong[0]) / RATE:.2f} s before the end on" if wrong else "nowhere"
    print(f"{seconds} s: excerpts are wrong {first}; the last {LAST / RATE} s are late by {lags[seconds]} samples")
if not any(lag > 0 for lag in lags.values()):
    raise SystemExit("the end of Vorbis is in time now")
PY
venv/bin/python end.py
