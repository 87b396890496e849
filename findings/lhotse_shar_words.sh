#!/usr/bin/env bash
# Lhotse keeps the times of words beside each utterance, and has forms that store only the sound of the utterance: Shar, its
# form for large corpora, save_audios and move_to_memory. One would guess that the words are where they are heard in what was
# stored. The utterance is moved to the beginning of the new recording, and its words keep the times of the old one: the word
# that trim_to_alignments cuts out is another one, or a pause, without an error. Before they were stored it is right.
# A phonate user meets it who brings a long recording with word times to phonate or a recogniser by way of Shar. phonate takes
# words' times from no Lhotse file, and aligns texts itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir lhotse==1.33.0 urllib3==2.8.0 torch==2.13.0 \
  soundfile==0.14.0 numpy==2.4.6
cd "$folder"
cat > words.py <<'PY'
from importlib.metadata import version
from pathlib import Path

import numpy as np
import soundfile
from lhotse import CutSet, Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem

print("lhotse", version("lhotse"))
RATE = 16_000
spoken = {"one": (0.6, 500), "two": (1.0, 1000), "three": (1.4, 2000), "four": (1.8, 3000)}  # at a time, a tone
sound = np.zeros(RATE * 4, np.float32)
for start, tone in spoken.values():
    sound[round(start * RATE) : round(start * RATE) + 4800] = 0.3 * np.sin(2 * np.pi * tone * np.arange(4800) / RATE)
soundfile.write("a.wav", sound, RATE)
words = [AlignmentItem(word, start, 0.3) for word, (start, _) in spoken.items()]
utterance = SupervisionSegment("u", "a", 0.4, 2.2, text=" ".join(spoken), alignment={"word": words})
cut = Recording.from_file("a.wav", recording_id="a").to_cut()
cut.supervisions = [utterance]
cuts = CutSet.from_cuts([cut]).trim_to_supervisions().to_eager()


def heard(stored):
    """The tone that sounds in the middle of what is cut out for each word."""
    tones = {}
    for one in stored.trim_to_alignments("word"):
        samples = one.load_audio()[0]
        middle = samples[len(samples) // 2 - 400 : len(samples) // 2 + 400]
        spectrum = np.abs(np.fft.rfft(middle))
        tones[one.supervisions[0].text] = int(spectrum.argmax() * RATE / len(middle)) if spectrum.max() > 1 else 0
    return tones


for name in ("shar", "saved"):
    Path(name).mkdir()
cuts.to_shar("shar", fields={"recording": "flac"})
seen = {
    "as cut": heard(cuts),
    "from Shar": heard(CutSet.from_shar(in_dir="shar")),
    "from save_audios": heard(cuts.save_audios("saved", progress_bar=False)),
    "from move_to_memory": heard(CutSet.from_cuts([one.move_to_memory(audio_format="wav") for one in cuts])),
}
for name, tones in seen.items():
    print(f"{name}: {tones}")
right = {word: tone for word, (_, tone) in spoken.items()}
assert seen["as cut"] == right
if any(tones == right for name, tones in seen.items() if name != "as cut"):
    raise SystemExit("words are where they are heard now")
PY
venv/bin/python words.py
