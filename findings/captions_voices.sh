#!/usr/bin/env bash
# Guess: libraries for captions keep who speaks in WebVTT (<v Anna>), at least those that have a field for the name.
# What happens: pysubs2 has such a field and leaves it empty; the names are gone, also from WebVTT that it writes.
# webvtt-py gives one name a cue, the first, where two people speak in it. Neither decodes `&amp;`: SubRip that they
# make of such files has it in the text.
# Why a phonate user meets it: meetings come as WebVTT from Teams and Zoom; converted by these, their speakers are lost,
# and "R&D" is learnt as "R&amp;D". phonate reads WebVTT itself.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pysubs2==1.8.1 webvtt-py==0.6.0
cd "$folder"
venv/bin/python - <<'PY'
from importlib.metadata import version
import pysubs2, webvtt

print("pysubs2", version("pysubs2"), "webvtt-py", version("webvtt-py"))
with open("a.vtt", "w") as file:
    file.write(
        "WEBVTT\n\n00:01.000 --> 00:02.500\n<v Anna>Good morning.</v>\n\n"
        "00:03.000 --> 00:04.000\n<v Ben>Ask R&amp;D.</v>\n<v Anna>I will.</v>\n"
    )
events = pysubs2.load("a.vtt")
print("pysubs2:", [(event.name, event.text) for event in events])
cues = webvtt.read("a.vtt")
print("webvtt-py:", [(cue.voice, cue.text) for cue in cues])
cues.save_as_srt("a.srt")
subrip = open("a.srt").read()
print("webvtt-py's SubRip:", subrip.split("\n")[-3:])
if not (
    all(event.name == "" for event in events)
    and [cue.voice for cue in cues] == ["Anna", "Ben"]
    and "&amp;" in events[1].text
    and "&amp;" in subrip
):
    raise SystemExit("they read it otherwise now")
PY
