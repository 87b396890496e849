#!/usr/bin/env bash
# The frames of an MP3 begin with silence that the encoder put there; the first of them says how much, and players, FFmpeg, libsndfile
# and miniaudio take it off. One would guess that Praat does so, too: times are what it is for. It plays all of it, so that all sound
# is late, by 66 ms at 16 kHz and 34 ms at 48 kHz, and the recording is longer; as a LongSound as well.
# A phonate user meets it whose TextGrids were drawn over MP3 in Praat, or who takes pitch by parselmouth from the MP3 and the sound
# by something else: words are cut a phone late, and pitch marks lie beside the sound. Drawn over a WAV of the same recording
# they are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir praat-parselmouth==0.4.7 soundfile==0.14.0 \
    miniaudio==1.71 av==18.1.0 numpy==2.4.6
cd "$folder"
cat > late.py <<'PY'
from importlib.metadata import version

import av
import miniaudio
import numpy as np
import parselmouth
import soundfile

print("praat-parselmouth", version("praat-parselmouth"), "Praat", parselmouth.PRAAT_VERSION, "soundfile", soundfile.__version__)


def by_pyav(name):
    with av.open(name) as file:
        return np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])


readers = {
    "soundfile": lambda name: soundfile.read(name)[0],
    "PyAV": by_pyav,
    "miniaudio": lambda name: np.array(miniaudio.mp3_read_file_f32(name).samples),
    "Praat": lambda name: parselmouth.Sound(name).values[0],
    "Praat (LongSound)": lambda name: parselmouth.praat.call(
        parselmouth.praat.call("Open long sound file...", name), "Extract part", 0, 2, "yes").values[0],
}
for rate in (16_000, 22_050, 44_100, 48_000):
    sound = np.zeros(2 * rate)
    burst = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate // 100) / rate) * np.hanning(rate // 100)
    sound[rate : rate + len(burst)] = burst
    soundfile.write("burst.mp3", sound, rate)
    for reader, read in readers.items():
        decoded = read("burst.mp3")
        late = (np.argmax(np.correlate(decoded, burst, "valid")) - rate) / rate
        print(f"{rate} Hz by {reader}: {len(decoded)} samples of {len(sound)}, {1000 * late:.0f} ms late")
        if (late > 0.03) != reader.startswith("Praat") or abs(late) > 0.07:
            raise SystemExit("it is in time, or late, otherwise now")
PY
venv/bin/python -W ignore late.py
