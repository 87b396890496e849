#!/usr/bin/env bash
# One would guess that compose(parse(text)) gives every cue of a SubRip file back. srt leaves out cues that end where they
# begin, and gives the others new numbers, without a warning (a line of logging at INFO says it).
# A phonate user meets it with captions of single words: recognisers such as Whisper give short words the same start and end,
# and these are gone from the text once another script has written the file by srt.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check srt==3.5.3
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import srt

print("srt", version("srt"))
text = "".join(
    f"{number}\n00:00:0{start},000 --> 00:00:0{end},000\n{word}\n\n"
    for number, (start, end, word) in enumerate([(1, 2, "Give"), (2, 2, "it"), (2, 3, "to"), (3, 3, "a"), (3, 4, "friend")], 1)
)
cues = list(srt.parse(text))
words = [cue.content for cue in srt.parse(srt.compose(cues))]
print("parsed:", [cue.content for cue in cues], "composed:", words)
if len(cues) != 5 or words != ["Give", "to", "friend"]:
    raise SystemExit("other cues are left out now")
PY
