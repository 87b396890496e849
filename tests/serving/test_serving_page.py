"""The page: one file, usable without a mouse, and its script is valid."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from servers import Serve

from pages import Page


def script(text: str) -> str:
    found = re.search(r'<script nonce="[^"]+">\n(.*)</script>', text, re.DOTALL)
    assert found
    return found[1]


def without_script(text: str) -> str:
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_it_loads_nothing_and_runs_no_script_but_its_own(serving: Serve) -> None:
    answer = serving().get("/")
    text = re.sub(r"<pre>.*?</pre>", "", answer.text, flags=re.DOTALL)  # requests, with the server's address
    assert not re.search(r"https?://|url\(|@import|<link|<iframe", text)
    assert {attrs.get("src") for tag, attrs in Page(without_script(text)).tags if "src" in attrs} == set()
    assert not re.search(r"\son\w+=", without_script(text))  # inline handlers would need a weaker policy
    policy = answer.headers["Content-Security-Policy"]
    nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
    assert nonce
    assert f'<script nonce="{nonce[1]}">' in text
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert nonce[1] not in serving().get("/").text  # a new one each time


def test_every_field_has_a_label_and_changes_are_announced(serving: Serve) -> None:
    page = Page(without_script(serving().get("/").text))
    labelled = {attrs["for"] for attrs in page.all("label")}
    fields = [attrs["id"] for tag in ("input", "textarea", "select") for attrs in page.all(tag)]
    assert {"text", "voice", "once-audio", "name", "speaker", "reference", "spoken", "agreed"} <= set(fields)
    assert {"once-speaker", "once-spoken", "once-agreed"} <= set(fields)
    assert set(fields) <= labelled
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["aria-describedby"] for attrs in page.all("input") if "aria-describedby" in attrs} <= set(ids)
    assert [attrs["role"] for attrs in page.all("p") if "role" in attrs] == ["status", "alert", "status", "alert"]
    assert "AI-generated" in page.text


@pytest.mark.parametrize("voices", [True, False])
def test_it_offers_what_the_server_does(serving: Serve, tmp_path: Path, voices: bool) -> None:
    client = serving(voices=tmp_path / "voices" if voices else None, max_text=99, model_name="a<b")
    text = client.get("/").text
    assert ('id="add"' in text) is voices
    assert 'id="key"' not in text
    assert 'maxlength="99"' in text
    assert "<h1>a&lt;b</h1>" in text
    client.app.state.server.services["a<b"].needs_reference = False  # type: ignore[attr-defined]
    plain = client.get("/").text
    assert 'id="once"' not in plain
    assert 'id="add"' not in plain
    assert 'id="speed"' in plain
    assert 'id="speed"' not in text  # cloned voices have their own


def test_a_server_with_a_key_tells_nothing_without_it(serving: Serve) -> None:
    client = serving(api_keys=("secret",), model_name="hidden")
    asks = client.get("/").text
    assert 'for="key"' in asks
    assert "hidden" not in without_script(asks).replace("[hidden]", "")
    assert client.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert "<h1>hidden</h1>" in client.get("/", headers={"Authorization": "Bearer secret"}).text


def test_its_script_is_valid(serving: Serve, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node to parse JavaScript")
    code = script(serving(model_name='</script><script>"').get("/").text)
    (tmp_path / "page.js").write_text(code, encoding="utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True)
    named = set(re.findall(r'\$\("([\w-]+)"\)', code))
    named -= {"speed", "speed-shown"}  # of models with voices of their own
    page = Page(without_script(serving().get("/").text))
    assert named <= {str(attrs["id"]) for _, attrs in page.tags if "id" in attrs}
