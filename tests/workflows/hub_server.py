"""A hub on this machine that speaks as much of the Hugging Face Hub's protocol as pushing and loading a model take."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = r"([^/]+/[^/]+)"


class Hub(ThreadingHTTPServer):
    """Models in memory: {OWNER/NAME: {path: content}}. `with Hub() as hub: ... hub.url`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, name: str) -> str:
        """The id of the state of a model."""
        content = b"".join(path.encode() + data for path, data in sorted(self.models[name].items()))
        return hashlib.sha1(content).hexdigest()

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, content: Any) -> None:
        self._answer(200, json.dumps(content).encode(), Content_Type="application/json")

    def _missing(self, code: str = "RepoNotFound") -> None:
        self._answer(404, b"{}", X_Error_Code=code)

    def _path(self) -> str:
        self.server.tokens.add(self.headers.get("Authorization"))
        self.server.requests.append(f"{self.command} {self.path}")
        return self.path.partition("?")[0]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self._path()
        if found := re.fullmatch(rf"/{NAME}/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[3])
        elif found := re.fullmatch(rf"/api/models/{NAME}(?:/(revision|tree)/([^/]+))?", path):
            self._model(found[1], found[2], found[3])
        else:
            self._missing()

    def _model(self, name: str, what: str | None, revision: str | None) -> None:
        files = self.server.models.get(name)
        if files is None:
            self._missing()
        elif revision not in (None, "main", self.server.commit(name)):
            self._missing("RevisionNotFound")
        elif what == "tree":
            self._json(
                [{"type": "file", "path": path, "size": len(data), "oid": _oid(data)} for path, data in files.items()]
            )
        else:
            siblings = [{"rfilename": path} for path in files]
            self._json({"id": name, "sha": self.server.commit(name), "siblings": siblings, "tags": []})

    def _file(self, name: str, path: str) -> None:
        content = self.server.models.get(name, {}).get(path)
        if content is None:
            self._missing("EntryNotFound")
        else:
            self._answer(200, content, ETag=f'"{_oid(content)}"', X_Repo_Commit=self.server.commit(name))

    def do_POST(self) -> None:
        path, body = self._path(), self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/repos/create":
            self.server.created.append(wish := json.loads(body))
            name = f"{wish['organization']}/{wish['name']}"
            self.server.models.setdefault(name, {})
            self._json({"url": f"{self.server.url}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif re.fullmatch(rf"/api/models/{NAME}/preupload/main", path):
            files = [one["path"] for one in json.loads(body)["files"]]
            self._json({"files": [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in files]})
        elif found := re.fullmatch(rf"/api/models/{NAME}/commit/main", path):
            self._commit(found[1], body)
        else:
            self._missing()

    def _commit(self, name: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.server.models[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        commit = self.server.commit(name)
        self._json({"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit, "success": True})


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
