#!/usr/bin/env bash
# One would guess from PyAV's metadata (BSD-3-Clause) and from its FFmpeg, which calls itself "LGPL version 3 or later",
# that the wheel holds nothing under the GPL: FFmpeg's configure demands --enable-gpl for x264 and x265. The wheel of av
# 18.1.0 has both, libavcodec links them, and av offers them as encoders. Metadata and FFmpeg's own word don't tell: who
# ships a program with av in it, such as phonate's image, has to look into the wheel.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check av==18.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import re
from importlib.metadata import distribution
from pathlib import Path

import av
from av._core import library_meta

wheel = distribution("av")
names = sorted(re.split(r"[-.]", Path(str(file)).name)[0] for file in wheel.files if re.search(r"libx26[45]", str(file)))
codec = library_meta["libavcodec"]
print("av", av.__version__, "metadata:", wheel.metadata["License-Expression"])
print("libavcodec calls itself:", codec["license"], "| --enable-gpl:", "--enable-gpl" in codec["configuration"])
print("in the wheel:", names)
encoders = {name: av.codec.Codec(name, "w").long_name for name in ("libx264", "libx265")}
print("encoders:", encoders)
assert wheel.metadata["License-Expression"] == "BSD-3-Clause"
assert codec["license"].startswith("LGPL") and "--enable-gpl" not in codec["configuration"]
assert names == ["libx264", "libx265"] and "--enable-libx264" in codec["configuration"]
PYTHON
