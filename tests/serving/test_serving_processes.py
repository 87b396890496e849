"""Real servers: OpenAI's own client, a stop by signal, clients that go away."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import soundfile
from servers import Server, recording

from phonate.serving.voices import CONSENT, VoiceStore

Start = Callable[..., Server]
SAID = {"model": "stand-in", "input": "hello", "voice": "own", "response_format": "pcm"}


@pytest.fixture(scope="module")
def speaking(small_voice: Path) -> Iterator[Server]:
    """`phonate serve` of a text-to-speech run, with a key."""
    words = ["-m", "phonate", "serve", str(small_voice), "--port", "0", "--max-text", "200", "--model-name", "tts-1"]
    with Server(*words, PHONATE_API_KEY="secret") as server:
        yield server
        assert server.stop() == 143
        assert "stopped by SIGTERM" in "".join(server.lines)


@pytest.fixture(scope="module")
def client(speaking: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="secret", max_retries=0)


def test_openais_client_gets_speech(client: openai.OpenAI, tmp_path: Path) -> None:
    voices = [voice["id"] for voice in client.get("/voices", cast_to=object)["data"]]
    assert len(voices) == 2
    lengths = []
    for voice in voices:
        made = client.audio.speech.create(
            model="tts-1", voice=voice, input="Good morning. It is late.", response_format="wav"
        )
        samples, rate = soundfile.read(io.BytesIO(made.content))
        assert np.abs(samples).max() > 0.01
        lengths.append(len(samples) / rate)
    assert min(lengths) > 0.5
    fast = client.audio.speech.create(
        model="tts-1", voice=voices[0], input="Good morning. It is late.", response_format="wav", speed=2.0
    )
    assert len(soundfile.read(io.BytesIO(fast.content))[0]) / rate < 0.8 * lengths[0]
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice=voices[0], input="Good morning.", response_format="mp3"
    ) as streamed:
        streamed.stream_to_file(tmp_path / "out.mp3")
    assert soundfile.info(tmp_path / "out.mp3").duration > 0.2
    assert [model.id for model in client.models.list()] == ["tts-1"]


def test_openais_client_gets_events(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="", input="Good morning.", response_format="pcm", stream_format="sse"
    ) as streamed:
        events = [json.loads(line[6:]) for line in streamed.iter_lines() if line]
    assert events[-1]["type"] == "speech.audio.done"
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    samples = events[-1]["usage"]["output_tokens"]  # at the rate of the voice; pcm is at OpenAI's
    assert samples > 0
    assert len(sound) // 2 == pytest.approx(samples * 24000 / 22050, abs=1)


def test_openais_client_raises_its_errors(client: openai.OpenAI, speaking: Server) -> None:
    speech = client.audio.speech
    with pytest.raises(openai.BadRequestError, match="at most 200"):
        speech.create(model="tts-1", voice="", input="x" * 201)
    with pytest.raises(openai.BadRequestError, match="nobody"):
        speech.create(model="tts-1", voice="nobody", input="Hello.")
    with pytest.raises(openai.NotFoundError):
        speech.create(model="mine-2", voice="", input="Hello.")
    wrong = openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.audio.speech.create(model="tts-1", voice="", input="Hello.")


@pytest.mark.slow
def test_a_voice_is_cloned_over_http_and_a_crowd_is_told_to_wait(stand_in_server: Start) -> None:
    server = stand_in_server(seconds=0.3, max_batch=1, max_queue=0)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    extra = {"reference_audio": base64.b64encode(recording(1.0, 400.0)).decode(), "reference_text": "a tone"}
    speech = client.audio.speech.with_streaming_response
    began = time.monotonic()
    with speech.create(
        model="stand-in", voice="", input="hello hello", response_format="pcm", extra_body=extra
    ) as streamed:
        parts = streamed.iter_bytes()
        first, at = next(parts), time.monotonic() - began
        with pytest.raises(openai.RateLimitError) as refused:
            client.audio.speech.create(model="stand-in", voice="own", input="hello")
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        rest = b"".join(parts)
    took = time.monotonic() - began
    sound = np.frombuffer(first + rest, "<i2")
    assert len(sound) == 11 * 2400
    assert np.count_nonzero(np.diff(np.signbit(sound))) / 2 / len(sound) * 24_000 == pytest.approx(400, rel=0.03)
    assert took >= 11 * 0.3
    assert at < took - 1.5  # it was heard while it was made


def get(server: Server, path: str) -> httpx.Response:
    return httpx.get(f"{server.url}{path}", timeout=60)


def test_a_client_that_goes_away_ends_its_request(stand_in_server: Start) -> None:
    server = stand_in_server(seconds=0.3)
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json={**SAID, "input": "x" * 300}, timeout=0.15),
    ):
        pass
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json={**SAID, "input": "x" * 300}, timeout=60) as answer:
        next(answer.iter_raw())
    wait_for(lambda: 'outcome="cancelled"} 2.0' in get(server, "/metrics").text)
    wait_for(lambda: "phonate_active_requests 0.0" in get(server, "/metrics").text)


def wait_for(found: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


class Running:
    """A request in a thread."""

    def __init__(self, server: Server, text: str) -> None:
        self.sound, self.error = b"", None
        self._url, self._text = f"{server.url}/v1/audio/speech", text
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(60)

    def _run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json={**SAID, "input": self._text}, timeout=60) as answer:
                for part in answer.iter_raw():
                    self.sound += part
                    self._begun.set()
        except httpx.HTTPError as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_sigterm_finishes_what_runs_and_refuses_what_comes(stand_in_server: Start) -> None:
    server = stand_in_server(seconds=0.3)
    running = Running(server, "x" * 12)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: get(server, "/ready").status_code == 503)
    refused = httpx.post(f"{server.url}/v1/audio/speech", json=SAID, timeout=60)
    assert refused.status_code == 503
    assert refused.headers["Retry-After"]
    assert get(server, "/health").status_code == 200
    running.join()
    assert running.error is None
    assert len(running.sound) == 12 * 2400 * 2
    assert server.stop() == 143
    assert "stopped by SIGTERM" in server.lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_takes_no_longer_than_it_may(stand_in_server: Start, number: int, code: int) -> None:
    server = stand_in_server(seconds=0.2, stop_seconds=0.5)
    running = Running(server, "x" * 600)
    began = time.monotonic()
    assert server.stop(number) == code
    assert time.monotonic() - began < 30
    running.join()
    assert running.error is not None  # the client sees that the sound is not whole
    assert any("1 requests are cut off" in line for line in server.lines)
    assert not any("Traceback" in line for line in server.lines)


DOCUMENTATION = Path(__file__).parents[2] / "docs" / "do" / "serve.md"
SNIPPET = re.compile(r"<!-- client -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_snippets_of_the_documentation_work(speaking: Server, tmp_path: Path) -> None:
    """With the address and the key of the server here."""
    snippets = SNIPPET.findall(DOCUMENTATION.read_text(encoding="utf-8"))
    assert [language for language, _ in snippets] == ["python", "bash", "bash"]
    for language, code in snippets:
        code = code.replace("http://127.0.0.1:8000", speaking.url).replace('api_key="none"', 'api_key="secret"')
        code = code.replace(
            "curl -sS --fail-with-body ", "curl -sS --fail-with-body -H 'Authorization: Bearer secret' "
        )
        shell = [sys.executable, "-c"] if language == "python" else ["sh", "-c"]
        subprocess.run([*shell, code], cwd=tmp_path, check=True)
    assert 0.3 < soundfile.info(tmp_path / "morning.mp3").duration < 5.0, "a player shows so much"
    for name in ("morning.mp3", "morning.flac", "wait.flac"):
        assert np.abs(soundfile.read(tmp_path / name)[0]).max() > 0.01


def test_an_address_in_use_is_one_line() -> None:
    from phonate.config.errors import InputError
    from phonate.serving.server import _listening

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: can't listen"):
            _listening("127.0.0.1", port)
    with pytest.raises(InputError, match="can't listen"):
        _listening("127.0.0.1", 70_000)


def test_serving_others_without_a_key_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    from phonate.serving.server import warn_if_open
    from phonate.serving.settings import ServingSettings

    for host, settings, warned in [
        ("0.0.0.0", ServingSettings(), True),
        ("::", ServingSettings(), True),
        ("0.0.0.0", ServingSettings(api_keys=("k",)), False),
        ("127.0.0.1", ServingSettings(), False),
        ("::1", ServingSettings(), False),
        ("localhost", ServingSettings(), False),
    ]:
        caplog.clear()
        warn_if_open(host, settings)
        assert ("there is no key" in caplog.text) is warned


def test_servers_that_start_leave_the_uploads_of_another_alone(stand_in_server: Start, tmp_path: Path) -> None:
    folder, said = tmp_path / "voices", CONSENT.format(speaker="Zoe")
    server = stand_in_server()
    files = {"reference_audio": recording(5.0), "consent_audio": recording(5.0)}

    def upload() -> list[int]:
        forms = [{"name": f"zoe{number}", "speaker": "Zoe", "consent": said} for number in range(12)]
        answers = (httpx.post(f"{server.url}/v1/voices", data=form, files=files, timeout=60) for form in forms)
        return [answer.status_code for answer in answers]

    with ThreadPoolExecutor() as pool:
        uploads = pool.submit(upload)
        while not uploads.done():
            VoiceStore(folder, 100)
    assert uploads.result() == [201] * 12
    whole = {"voice.json", "reference.wav", "consent.wav"}
    assert [{file.name for file in voice.iterdir()} for voice in folder.iterdir()] == [whole] * 12
