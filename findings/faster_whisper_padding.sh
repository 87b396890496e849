#!/usr/bin/env bash
# Whisper hears thirty seconds, and a shorter recording is padded. One would guess with silence, as OpenAI's program and
# transformers do. faster-whisper pads the features with 0.0 instead, which is no silence but a level in the middle of their
# range. A fine-tuned model may write another text (other commas and full stops were seen) by faster-whisper than by
# transformers from the same weights and the same recording. phonate exports to both and transcribes with the first.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check faster-whisper==1.2.1 numpy==2.4.6
cat >"$folder/show.py" <<'PYTHON'
import importlib.metadata

import numpy as np
from faster_whisper.audio import pad_or_trim
from faster_whisper.feature_extractor import FeatureExtractor

print("faster-whisper", importlib.metadata.version("faster-whisper"))
extractor = FeatureExtractor()
second = (0.3 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)).astype(np.float32)
as_it_pads = pad_or_trim(extractor(second, padding=160))  # what its transcribe() gives the model
as_silence = pad_or_trim(extractor(np.pad(second, (0, 29 * 16000)), padding=160))
print("features after the end: faster-whisper's", as_it_pads[:, 200:].min(), as_it_pads[:, 200:].max())
print("features of silence:", as_silence[:, 200:].min(), as_silence[:, 200:].max())
assert as_it_pads.shape == as_silence.shape
assert not as_it_pads[:, 200:].any()
assert as_silence[:, 200:].max() < -0.1
PYTHON
"$folder/venv/bin/python" "$folder/show.py"
