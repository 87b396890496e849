#!/usr/bin/env bash
# In CHAT the time of an utterance stands behind it, between two characters U+0015. pylangacq writes CHAT as ELAN's XML,
# with the times where ELAN has them, and one would guess that the words are then without. It leaves the mark in the text,
# too, and U+0015 is not allowed in XML: no reader of XML opens a file that has one utterance with a time.
# Anyone who brings a CHAT corpus to phonate by way of ELAN meets this; phonate reads CHAT itself.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check pylangacq==0.23.0

cat > "$folder/elan.py" <<'CODE'
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pylangacq

CHAT = """@UTF8
@Begin
@Languages:\teng
@Participants:\tCHI Child
@ID:\teng|test|CHI|2;00.00||||Child|||
@Media:\ttalk, audio
*CHI:\tthe dog barks . \x15150_1500\x15
@End
"""

folder = Path(sys.argv[1])
(folder / "talk.cha").write_text(CHAT, encoding="utf-8")
(folder / "elan").mkdir()
pylangacq.read_chat(str(folder / "talk.cha")).to_elan_files(str(folder / "elan"))
(file,) = (folder / "elan").glob("*.eaf")
print("pylangacq", version("pylangacq"))
print(next(line.strip() for line in file.read_text(encoding="utf-8").split("\n") if "barks" in line).encode())
try:
    ElementTree.parse(file)
except ElementTree.ParseError as error:
    print("the file as XML:", error)
else:
    raise SystemExit("the file is XML now")
CODE
"$folder/venv/bin/python" "$folder/elan.py" "$folder"
