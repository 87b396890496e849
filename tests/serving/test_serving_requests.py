"""The requests that a server prints and shows do what they say, pasted into a shell as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
import soundfile
from fastapi.testclient import TestClient
from servers import STAND_IN, Serve, Server
from test_serving_transcriptions import Hears

from phonate.serving.server import Hosted, create_app
from phonate.serving.settings import ServingSettings
from phonate.serving.transcriptions import Recogniser

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def pasted(command: str, folder: Path) -> str:
    ran = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@needs_curl
@pytest.mark.parametrize("way", ["an own voice", "a recording", "a key"])
def test_what_a_server_prints_works_as_it_is(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"an own voice": [], "a recording": ["own="], "a key": ["key=secret"]}[way]
    monkeypatch.setenv("PHONATE_API_KEY", "secret")
    with Server(str(STAND_IN), str(tmp_path / "voices"), *words) as server:
        command = server.line_with("curl")
        assert ("printf" in command) is (way == "a recording")
        pasted(command, tmp_path)
    sound, _ = soundfile.read(tmp_path / "said.mp3")
    assert len(sound)


def test_the_page_of_a_server_that_speaks_nothing_shows_what_it_does(tmp_path: Path) -> None:
    hears = Hears()
    models = Hosted([], [Recogniser("a b's", lambda: hears, lambda: hears)])
    with TestClient(create_app(models, ServingSettings())) as client:
        page = client.get("/")
        assert page.status_code == 200
        assert "Transcribe a recording" in page.text
        assert "a b" in page.text
        assert re.findall(r"<form class=\"card\" id=\"(\w+)\"", page.text) == ["transcribe"]
        (command,) = re.findall(r"<pre>(.*?)</pre>", page.text)
        assert "response_format=diarized_json" in command
        assert "http://testserver/v1/audio/transcriptions" in unescape(command)


@pytest.mark.parametrize("keys", [(), ("secret",)])
def test_docs_lead_to_the_requests(serving: Serve, keys: tuple[str, ...]) -> None:
    client = serving(api_keys=keys)
    assert str(client.get("/docs").url).endswith("/#requests")
    page = client.get("/", headers={"Authorization": "Bearer secret"} if keys else {})
    assert page.status_code == 200
    assert 'id="requests"' in page.text
    assert ("$PHONATE_API_KEY" in page.text) is bool(keys)
    assert "secret" not in page.text
