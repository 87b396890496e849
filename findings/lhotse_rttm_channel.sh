#!/usr/bin/env bash
# One would guess that cuts trimmed to the supervisions of an RTTM file play these stretches of a mono recording. They
# can't be loaded at all: SupervisionSet.from_rttm takes the channel of the RTTM, which counts from 1, Recording.from_file
# counts from 0, and trim_to_supervisions gives the cut the supervision's channel. The whole cut loads, so it goes
# unnoticed until training. A phonate user meets it with a manifest of such cuts; phonate reads the one channel there is,
# and says so.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet --disable-pip-version-check \
  lhotse==1.33.0 torch==2.13.0 urllib3==2.8.0 soundfile==0.14.0 numpy==2.4.6

cd "$folder"
"$python" - <<'CODE'
from pathlib import Path

import lhotse
import numpy as np
import soundfile
from lhotse import CutSet, Recording, RecordingSet, SupervisionSet

soundfile.write("talk.wav", np.zeros(32000), 16000)
Path("talk.rttm").write_text("SPEAKER talk 1 0.5 1.0 <NA> <NA> ann <NA> <NA>\n")
recordings = RecordingSet.from_recordings([Recording.from_file("talk.wav")])
(cut,) = CutSet.from_manifests(recordings=recordings, supervisions=SupervisionSet.from_rttm("talk.rttm"))
(trimmed,) = cut.trim_to_supervisions()
print("lhotse", lhotse.__version__)
print("the whole cut: channel", cut.channel, "of", cut.recording.channel_ids, "samples", cut.load_audio().shape)
print("trimmed: channel", trimmed.channel)
try:
    trimmed.load_audio()
except AssertionError as error:
    print("load_audio:", str(error).splitlines()[0])
    assert "channel that does not exist" in str(error), error
else:
    raise SystemExit("trimmed cuts load now")
CODE
