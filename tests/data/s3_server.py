"""As much of S3's protocol as reading, listing and writing objects needs, on loopback, with objects in memory."""

from __future__ import annotations

import hashlib
import mimetypes
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    reads: list[tuple[str, str | None]]
    ranges: bool

    def log_message(self, *_):
        pass

    def _key(self):
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _send(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[self._key()] = data
        self._send(200, ETag=f'"{hashlib.md5(data).hexdigest()}"')

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._list(self._key().strip("/"), query)
        data = self.objects.get(self._key())
        if data is None:
            return self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        facts = {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "Last_Modified": _DATE}
        facts["Content_Type"] = mimetypes.guess_type(self._key())[0] or "application/octet-stream"
        asked = self.headers.get("Range")
        self.reads.append((self._key(), asked))
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if match is None or not self.ranges:
            return self._send(200, data, **facts)
        first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
        part = data[first : last + 1]
        return self._send(206, part, Content_Range=f"bytes {first}-{last}/{len(data)}", **facts)

    def _list(self, bucket, query):
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        contents, folders = [], set()
        for name, data in sorted(self.objects.items()):
            key = name.removeprefix(f"{bucket}/")
            if not name.startswith(f"{bucket}/") or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            etag = hashlib.md5(data).hexdigest()
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size></Contents>"
            )
        parts = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
        body = (
            f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>'
            f"<IsTruncated>false</IsTruncated>{''.join(contents)}{parts}</ListBucketResult>"
        )
        self._send(200, body.encode(), Content_Type="application/xml")


@contextmanager
def s3_server(ranges=True):
    """Yields the address, the objects by "bucket/key", and the reads so far as (bucket/key, range). `ranges`: whether
    parts of objects are sent."""
    objects: dict[str, bytes] = {}
    reads: list[tuple[str, str | None]] = []
    handler = type("Handler", (_Handler,), {"objects": objects, "reads": reads, "ranges": ranges})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", objects, reads
    finally:
        server.shutdown()
        server.server_close()
