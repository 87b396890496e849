#!/usr/bin/env bash
# noisereduce with stationary=True learns how loud the noise of each frequency is and leaves out what is not above it. One would guess
# that of two channels each is measured against its own noise. It takes the mean of the channels for one recording, and measures both
# against that: in a call one of whose sides is 20 dB quieter, its speech lies below what was learnt from the louder one, and is
# lowered by 38 dB; 26 dB quieter, and it is digital silence. Given alone, the same channel keeps its speech.
# A phonate user meets it who cleans calls or interviews, one speaker a channel, before recognition or diarization: the one
# far from the microphone is gone, without an error. Channel by channel it is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir noisereduce==3.0.3 scipy==1.17.1 numpy==2.4.6
cat > "$folder/channels.py" <<'PY'
from importlib.metadata import version

import numpy as np
from noisereduce import reduce_noise

print("noisereduce", version("noisereduce"))
rate, rng = 16_000, np.random.default_rng(0)
times = np.arange(20 * rate) / rate
turns = times.astype(int) // 2 % 2  # two speakers, two seconds each in turn


def side(number, gain):
    """A voice with harmonics and syllables in its turns, and noise 25 dB below it."""
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.9 * times + number)) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 25)) * (turns == number) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * times))
    return gain * (0.1 * voice / np.abs(voice).max() + 0.002 * rng.standard_normal(len(times)))


def level(sound):
    """Of the second speaker's turns, in dB."""
    return 10 * np.log10(np.mean(sound[turns == 1] ** 2) + 1e-24)


near = side(0, 1.0)
for gain in (1.0, 0.1, 0.05):
    far = side(1, gain)
    alone = level(reduce_noise(y=far, sr=rate, stationary=True))
    both = level(reduce_noise(y=np.stack([near, far]), sr=rate, stationary=True)[1])
    print(f"{-20 * np.log10(gain):.0f} dB quieter than the other side: speech of {level(far):.0f} dB is {alone:.0f} dB if its "
          f"channel is cleaned alone, {both:.0f} dB with the other")
    if (alone - both > 20) != (gain < 1):
        raise SystemExit("channels are measured otherwise now")
PY
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore "$folder/channels.py"
