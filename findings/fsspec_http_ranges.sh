#!/usr/bin/env bash
# One would guess that cat_file(address, start, end) returns the bytes from start to end, or raises. From a web server
# that ignores ranges, as Python's own does, fsspec returns the whole file, without a word. A user of phonate meets this
# with shards on a web server: each recording would be read from the first byte of its shard on, and the shard would be
# downloaded once for each.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check fsspec==2026.9.0 aiohttp==3.14.5
cat > "$folder/ranges.py" <<'PYTHON'
import functools
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec

folder = Path(sys.argv[1]) / "files"
folder.mkdir()
(folder / "shard.tar").write_bytes(bytes(range(256)) * 40)
handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}/shard.tar"
data = fsspec.filesystem("http").cat_file(address, start=100, end=110)
print(f"fsspec {fsspec.__version__}: {len(data)} bytes for a part of 10; the first is {data[0]}, at 100 it is 100")
assert len(data) == 10240 and data[0] == 0, "fsspec returns the part that was asked for now, or raises"
PYTHON
"$folder/venv/bin/python" "$folder/ranges.py" "$folder" 2> /dev/null
