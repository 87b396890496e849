#!/usr/bin/env bash
# One would guess that an aligner's utterances begin and end with what is said in them. CTC marks letters by spikes, and
# ctc_segmentation ends an utterance 10 ms behind the spike of its last letter, which is where this letter begins to be heard,
# but lets it begin up to half a second before the spike of its first, as far as to the middle of the pause.
# A phonate user meets it who cuts long recordings into clips by it, as recipes of ESPnet and NeMo do: the last phone is cut
# off, and half a second of whatever stood before the first is in the clip. The times of single letters are those of spikes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check ctc-segmentation==1.7.5 numpy==2.4.6 setuptools==80.9.0
cat > "$folder/starts.py" <<'PY'
from importlib.metadata import version

import ctc_segmentation
import numpy as np

print("ctc-segmentation", version("ctc-segmentation"))
letters, words = ["<blank>", "a", "b", "c", "d"], ["ab", "cd", "ba"]
spikes = [(50, 60), (120, 130), (200, 210)]
log_probabilities = np.full((300, 5), np.log(1e-4), np.float32)
log_probabilities[:, 0] = np.log(0.9996)
for word, frames in zip(words, spikes, strict=True):
    for letter, frame in zip(word, frames, strict=True):
        log_probabilities[frame] = np.log(1e-4)
        log_probabilities[frame, letters.index(letter)] = np.log(0.9996)
settings = ctc_segmentation.CtcSegmentationParameters(char_list=letters, index_duration=0.02)
text, begins = ctc_segmentation.prepare_text(settings, words)
times, scores, _ = ctc_segmentation.ctc_segmentation(settings, log_probabilities, text)
for word, (first, last), (start, end, _) in zip(
    words, spikes, ctc_segmentation.determine_utterance_segments(settings, begins, scores, times, words), strict=True
):
    print(f"{word}: spikes at {0.02 * first:.2f} and {0.02 * last:.2f} s, utterance from {start:.2f} to {end:.2f} s")
    if abs(0.02 * first - start - 0.5) > 0.03 or abs(end - 0.02 * last - 0.01) > 0.015:
        raise SystemExit("utterances begin or end elsewhere now")
PY
"$folder/venv/bin/python" "$folder/starts.py"
