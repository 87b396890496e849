"""What programs send that were written for OpenAI's server, and what they ask of a server of their own."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import av
import numpy as np
import pytest
import soundfile
from fastapi.testclient import TestClient
from openai.types.audio.speech_model import SpeechModel
from servers import Serve, Server, assert_error, only
from test_serving_ssml import events

import phonate
from phonate.serving.routes import OPENAI_VOICES
from phonate.serving.server import create_app
from phonate.serving.settings import ServingSettings

SAID = {"model": "stand-in", "input": "hello", "voice": "own"}


@pytest.fixture(scope="module")
def voice() -> Iterator[TestClient]:
    """The voice of the package, which makes 22,050 samples a second and tells times."""
    service = phonate.load("base/voice", "speech").speech_service(4)
    with TestClient(create_app(only(service, "voice"), ServingSettings())) as client:
        yield client
    service.close()


@pytest.mark.parametrize("model", [*get_args(SpeechModel), "gpt-4o-mini-tts-2031-01-01"])
@pytest.mark.parametrize("name", ["alloy", "shimmer"])
def test_openais_names_are_aliases(serving: Serve, model: str, name: str) -> None:
    client = serving()
    assert client.post("/v1/audio/speech", json={"model": model, "voice": name, "input": "hi"}).status_code == 200
    assert client.service.requests[0].voice == "own"
    assert client.get(f"/v1/models/{model}").json()["id"] == model
    assert_error(client.post("/v1/audio/speech", json={**SAID, "model": "gpt-4"}), 404, "no model")


def test_each_of_openais_voices_is_one_of_the_model(voice: TestClient) -> None:
    state = voice.app.state.server  # type: ignore[attr-defined]
    service = state.services["voice"]
    service.prepare()
    voices = [voice.portal.call(state.voice, service, name)[0] for name in OPENAI_VOICES]  # type: ignore[union-attr]
    assert voices == list(service.voices[: len(OPENAI_VOICES)])


def test_every_answer_has_the_id_that_openais_clients_show(serving: Serve) -> None:
    client = serving(api_keys=("secret",))
    key = {"Authorization": "Bearer secret"}
    answers = [
        client.post("/v1/audio/speech", json=SAID, headers=key),
        client.post("/v1/audio/speech", json={**SAID, "model": "gpt-4"}, headers=key),
        client.get("/v1/models"),
        client.get("/nowhere", headers=key),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 404]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


def test_aliases_can_be_set(serving: Serve) -> None:
    client = serving(aliases={"anna": "own", "house": "stand-in", "tts-1": "other"})
    said = {"model": "house", "voice": "anna", "input": "hi"}
    assert client.post("/v1/audio/speech", json=said).status_code == 200
    assert client.service.requests[0].voice == "own"
    assert client.post("/v1/audio/speech", json={**said, "model": "tts-1"}).status_code == 404


def test_null_is_the_same_as_nothing(serving: Serve) -> None:
    fields = "speed response_format stream_format input_type timestamp_granularities reference_audio reference_text"
    nulls = dict.fromkeys([*fields.split(), "temperature", "top_k", "top_p", "seed", "max_seconds", "instructions"])
    client = serving()
    answer = client.post("/v1/audio/speech", json={**SAID, **nulls})
    assert answer.status_code == 200
    assert "warning" not in answer.headers
    assert answer.content == client.post("/v1/audio/speech", json=SAID).content
    assert_error(client.post("/v1/audio/speech", json={**SAID, "input": None}), 400, "input")


def test_unknown_fields_are_ignored_and_named(serving: Serve) -> None:
    asked: dict[str, Any] = {**SAID, "instructions": "whisper", 'a"\r\nb\u00e9': 1}
    answer = serving().post("/v1/audio/speech", json=asked)
    assert answer.status_code == 200
    assert "instructions" in answer.headers["warning"]
    assert answer.headers["warning"].startswith("299 ")
    assert_error(serving(strict=True).post("/v1/audio/speech", json=asked), 400, "instructions", "instructions")
    misspelt = {**SAID, "sped": 2}
    assert_error(serving(strict=True).post("/v1/audio/speech", json=misspelt), 400, "did you mean speed")


def test_characters_that_are_not_said_are_named(voice: TestClient) -> None:
    """Those of later sentences, too, though the answer begins before they are read."""
    said = {"model": "voice", "input": "Hello there. Hello \u0416 friend.", "response_format": "pcm"}
    warning = voice.post("/v1/audio/speech", json={**said, "sped": 2}).headers["warning"]
    assert re.fullmatch(r'299 phonate ".*sped", 299 phonate "left out .*: 1 Cyrillic character"', warning)
    marked = {**said, "input": "<speak>Hello \u0416 friend.</speak>"}
    assert "1 Cyrillic character" in voice.post("/v1/audio/speech", json=marked).headers["warning"]
    plain = {**said, "input": "Hello friend."}
    assert "warning" not in voice.post("/v1/audio/speech", json=plain).headers


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/v1/models", "/v1/audio/voices", "/metrics"])
def test_head_is_get_without_the_body(serving: Serve, path: str) -> None:
    client = serving()
    answer = client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["content-type"] == client.get(path).headers["content-type"]
    assert serving(api_keys=("secret",)).head("/v1/models").status_code == 401


def test_voices_and_models_are_listed_as_open_webui_asks(serving: Serve, wav: bytes) -> None:
    client = serving()
    assert client.get("/v1/audio/voices").json() == {"voices": [{"id": "own", "name": "own"}]}
    assert client.get("/v1/audio/models").json() == {"models": [{"id": "stand-in"}]}


def test_pcm_plays_at_openais_rate(voice: TestClient) -> None:
    said = {"model": "voice", "input": "Nobody knew why."}
    answer = voice.post("/v1/audio/speech", json={**said, "response_format": "pcm"})
    assert answer.headers["X-Sample-Rate"] == "24000"
    pcm = np.frombuffer(answer.content, "<i2") / 32768
    wav, rate = soundfile.read(
        io.BytesIO(voice.post("/v1/audio/speech", json={**said, "response_format": "wav"}).content)
    )
    assert rate == 22050
    assert len(pcm) / 24000 == pytest.approx(len(wav) / rate, abs=0.01)
    # the same spectrum, as far as both have it
    low, high = (np.abs(np.fft.rfft(one, round(4 * hz)))[:32000:200] for one, hz in ((wav, rate), (pcm, 24000)))
    assert np.corrcoef(low, high)[0, 1] > 0.95


def test_mp3_keeps_what_the_voice_has_above_9_khz(voice: TestClient) -> None:
    said = {"model": "voice", "input": "She sells sea shells."}
    energy = {}
    for name in ("wav", "mp3"):
        file = io.BytesIO(voice.post("/v1/audio/speech", json={**said, "response_format": name}).content)
        with av.open(file) as opened:
            rate = opened.streams.audio[0].rate
            samples = np.concatenate([one.to_ndarray()[0].astype(float) for one in opened.decode(audio=0)])
        power = np.abs(np.fft.rfft(samples / np.abs(samples).max())) ** 2
        energy[name] = power[np.fft.rfftfreq(len(samples), 1 / rate) > 9000].sum()
    assert energy["mp3"] > 0.5 * energy["wav"]


@pytest.mark.parametrize("name", ["mp3", "aac", "opus", "wav", "pcm"])
def test_times_of_words_are_those_of_the_file(voice: TestClient, name: str) -> None:
    """Where the speech begins in the decoded file, as far from the first word's start as in the samples themselves."""
    said = {"model": "voice", "input": "Tactical people.", "stream_format": "sse", "timestamp_granularities": ["word"]}
    late = {}
    for form in ("flac", name):
        found = events(voice.post("/v1/audio/speech", json={**said, "response_format": form}))
        file = b"".join(base64.b64decode(one["audio"]) for one in found if one["type"] == "speech.audio.delta")
        words = [word for one in found if one["type"] == "speech.audio.words" for word in one["words"]]
        late[form] = _onset(file, form) - words[0]["start"]
    assert late[name] == pytest.approx(late["flac"], abs=0.006)


def _onset(file: bytes, form: str) -> float:
    """Seconds until the sound begins, by samples as they are decoded."""
    if form == "pcm":
        samples, rate = np.frombuffer(file, "<i2").astype(float), 24000
    else:
        with av.open(io.BytesIO(file)) as opened:
            rate = opened.streams.audio[0].rate
            samples = np.concatenate([one.to_ndarray()[0].astype(float) for one in opened.decode(audio=0)])
    return float(np.flatnonzero(np.abs(samples) > 0.2 * np.abs(samples).max())[0]) / rate


NODE = Path(__file__).parents[2] / "node_modules" / "openai"


@pytest.mark.skipif(not NODE.is_dir() or shutil.which("node") is None, reason="needs npm install --no-save openai")
def test_openais_client_for_node(stand_in_server: Callable[..., Server]) -> None:
    script = """
        import OpenAI from "openai";
        const client = new OpenAI({baseURL: process.env.SERVER + "/v1", apiKey: "none", maxRetries: 0});
        const names = [];
        for await (const model of client.models.list()) names.push(model.id);
        const asked = {model: "gpt-4o-mini-tts", voice: "marin", input: "hello", instructions: "kindly"};
        const pcm = await client.audio.speech.create({...asked, response_format: "pcm"});
        const events = await client.audio.speech.create({...asked, stream_format: "sse"});
        const wrong = await client.audio.speech.create({...asked, model: "x"}).catch(error => error);
        console.log(JSON.stringify({
            names, pcm: (await pcm.arrayBuffer()).byteLength, done: (await events.text()).includes("audio.done"),
            status: wrong.status, code: wrong.code, id: wrong.requestID,
        }));
    """
    server = stand_in_server()
    command = ["node", "--input-type=module", "-e", script]
    run = subprocess.run(
        command, cwd=NODE.parent, env={**os.environ, "SERVER": server.url}, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)
    assert answers.pop("id").startswith("req_")
    samples = 5 * 24_000 // 10
    expected = {"names": ["stand-in"], "pcm": 2 * samples, "done": True, "status": 404, "code": "model_not_found"}
    assert answers == expected
