"""What is refused before it costs anything: bodies, texts, recordings, keys, origins, crowds."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from servers import Serve, assert_error, only, recording
from stand_in import StandIn

from phonate.audio.decoding import read_audio
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.serving import uploads
from phonate.serving.server import _is_no_cut, create_app
from phonate.serving.settings import ServingSettings
from phonate.serving.uploads import Decoders
from phonate.training.inference import SpeechRequest, SpeechResult

SAID = {"model": "stand-in", "input": "hello", "voice": "own"}


def test_a_large_body_is_refused_by_what_its_header_says(serving: Serve) -> None:
    answer = serving(max_body=2000).post("/v1/audio/speech", json={**SAID, "reference_text": "x" * 3000})
    assert_error(answer, 413, "larger than 2000 bytes")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/audio/speech", "application/json"), ("/generate_speech", "multipart/form-data; boundary=b")],
)
def test_a_body_without_a_length_is_read_no_further_than_the_limit(path: str, kind: str) -> None:
    app = create_app(only(StandIn()), ServingSettings(max_body=100_000))
    sent = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="reference_audio"; filename="a"\r\n\r\n'
        while sent < 100_000_000:
            sent += 10_000
            yield b"x" * 10_000

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(path, content=parts(), headers={"content-type": kind})

    assert_error(asyncio.run(ask()), 413, "larger than 100000 bytes")
    assert sent < 200_000


def test_a_body_that_never_ends_is_given_up() -> None:
    app = create_app(only(StandIn()), ServingSettings(request_seconds=0.2))

    async def parts() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post("/v1/audio/speech", content=parts(), headers={"content-type": "application/json"})

    began = time.monotonic()
    assert_error(asyncio.run(ask()), 408, "too long to arrive")
    assert time.monotonic() - began < 10
    assert app.state.server.gate.running == 0


def test_text_and_recordings_have_a_longest_length(serving: Serve, wav: bytes) -> None:
    client = serving(max_text=4, max_reference_seconds=0.9)
    assert_error(client.post("/v1/audio/speech", json=SAID), 400, "5 characters; at most 4", "input")
    answer = client.post("/generate_speech", data={"target_text": "hi"}, files={"reference_audio": wav})
    assert_error(answer, 400, "reference_audio: longer than 0.9 s")
    texts = {"target_text": "hi", "reference_text": "hello"}
    answer = client.post("/generate_speech", data=texts, files={"reference_audio": recording(0.5)})
    assert_error(answer, 400, "reference_text: 5 characters; at most 4")


def test_a_request_has_a_time(serving: Serve) -> None:
    client = serving(seconds=5.0, request_seconds=0.2)
    began = time.monotonic()
    assert_error(client.post("/v1/audio/speech", json=SAID), 504, "no speech within 0.2 s")
    assert time.monotonic() - began < 4
    assert client.service.results[0].cancelled
    assert 'outcome="timeout"} 1.0' in client.get("/metrics").text


def test_what_is_taken_on_too_late_is_not_made(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a model that was loaded for longer than the request waited."""
    client = serving(request_seconds=0.2, voices=None)
    service: Any = client.service  # type: ignore[attr-defined]
    loaded, submit = threading.Event(), service.submit

    def late(request: SpeechRequest) -> SpeechResult:
        assert loaded.wait(20)
        return submit(request)  # type: ignore[no-any-return]

    monkeypatch.setattr(service, "submit", late)
    assert_error(client.post("/v1/audio/speech", json=SAID), 504, "no speech within 0.2 s")
    loaded.set()
    began = time.monotonic()
    while not (service.results and service.results[0].cancelled):
        assert time.monotonic() - began < 10
        time.sleep(0.01)


def crowd(settings: dict[str, Any], count: int, seconds: float = 0.2) -> list[httpx.Response]:
    """Answers to `count` requests that come at the same time."""
    app = create_app(only(StandIn(seconds)), ServingSettings(**settings))

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await asyncio.gather(*(client.post("/v1/audio/speech", json=SAID) for _ in range(count)))

    answers = asyncio.run(ask())
    assert app.state.server.gate.running == 0
    return answers


def test_a_crowd_is_refused_beyond_the_places() -> None:
    answers = crowd({"max_batch": 2, "max_queue": 1}, 5)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            assert_error(answer, 429, "3 requests are running or queued")
            assert int(answer.headers["Retry-After"]) >= 1


KEYED = {"api_keys": ("secret", "other")}


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/voices", "/metrics", "/openapi.json", "/v1/audio/speech", "/generate_speech", "/x"]
)
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "Basic secret", "Bearer secretx", "Bearer sécret"])
def test_nothing_is_done_without_a_key(serving: Serve, path: str, given: str | None) -> None:
    client = serving(**KEYED)
    headers = {} if given is None else {"Authorization": given.encode()}
    answer = client.get(path, headers=headers)
    assert_error(answer, 401, "key")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("key", KEYED["api_keys"])
def test_any_of_the_keys_opens(serving: Serve, key: str) -> None:
    client = serving(**KEYED)
    assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    for path in ("/", "/health", "/ready"):
        assert client.get(path).status_code == 200


def test_every_key_is_compared_in_constant_time(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    serving(**KEYED).get("/v1/models", headers={"Authorization": "Bearer secret"})
    assert compared == [b"secret", b"other"]


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(ServingSettings(**KEYED))


def test_other_sites_may_not_use_the_server_unless_they_are_named(serving: Serve) -> None:
    site = {"Origin": "https://example.org"}
    client = serving()
    assert_error(client.post("/v1/audio/speech", json=SAID, headers=site), 403, "--cors-origin")
    assert "access-control-allow-origin" not in client.get("/v1/models", headers=site).headers
    assert client.post("/v1/audio/speech", json=SAID, headers={"Origin": "http://testserver"}).status_code == 200
    client = serving(cors_origins=("https://example.org",))
    answer = client.post("/v1/audio/speech", json=SAID, headers=site)
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    preflight = {**site, "Access-Control-Request-Method": "POST"}
    assert client.options("/v1/audio/speech", headers=preflight).status_code == 200
    other = {"Origin": "https://example.com"}
    assert "access-control-allow-origin" not in client.get("/v1/models", headers=other).headers


def test_the_number_of_voices_is_limited(serving: Serve, wav: bytes) -> None:
    client = serving(max_voices=1)
    form = {
        "speaker": "Zoë",
        "consent": "I, Zoë, agree that this voice is cloned and used for synthetic speech.",
    }
    files = {"reference_audio": wav, "consent_audio": wav}
    assert client.post("/v1/voices", data={**form, "name": "one"}, files=files).status_code == 201
    assert_error(client.post("/v1/voices", data={**form, "name": "two"}, files=files), 400, "1 voices are stored")


@pytest.fixture(scope="module")
def decoders() -> Decoders:
    decoders = Decoders(1)
    yield decoders
    decoders.close()


def _hang(path: Path, limit: float) -> None:
    while True:
        pass


def _sleep(path: Path, limit: float) -> None:
    time.sleep(60)


def _crash(path: Path, limit: float) -> None:
    os.abort()


def _allocate(path: Path, limit: float) -> None:
    np.ones(4 * 2**30 // 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decode", "clock", "said"),
    [
        (_hang, 100.0, "can't be decoded"),
        (_sleep, 0.5, "too long"),
        (_crash, 100.0, "can't be decoded"),
        (_allocate, 100.0, "too much memory"),
    ],
)
def test_a_decoder_that_misbehaves_is_ended_and_the_next_recording_is_read(
    monkeypatch: pytest.MonkeyPatch, wav: bytes, decode: Callable[..., Any], clock: float, said: str
) -> None:
    decoders = Decoders(1)
    with monkeypatch.context() as patched:
        patched.setattr(uploads, "_decode_all", _Faulty(decode))
        patched.setattr(uploads, "_CLOCK", clock)
        with pytest.raises(InputError, match=said):
            decoders.decoded(wav, 30.0, 1.0)
    decoders.close()  # the process that could not allocate lives on, with its fault
    assert len(decoders.decoded(wav, 30.0, 10.0)[0]) == 16_000
    decoders.close()


_DECODE_ALL = uploads._decode_all


class _Faulty:
    """`_decode_all` with another way to decode."""

    def __init__(self, decode: Callable[..., Any]) -> None:
        self.decode = decode

    def __call__(self, connection: Any) -> None:
        uploads._limited = self.decode  # in the process that decodes
        _DECODE_ALL(connection)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
def test_common_formats_are_decoded(decoders: Decoders, kind: str) -> None:
    samples, rate, remarks = decoders.decoded(recording(kind=kind), 30.0, 10.0)
    assert (len(samples), rate, remarks) == (pytest.approx(16_000, rel=0.15), 16_000, ())
    assert np.abs(samples).max() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize(("container", "codec"), [("webm", "libopus"), ("mp4", "aac"), ("adts", "aac")])
def test_what_browsers_record_is_decoded(decoders: Decoders, container: str, codec: str) -> None:
    import io

    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as made:
        stream = made.add_stream(codec, rate=48_000, layout="mono")
        tone = (9000 * np.sin(np.arange(48_000) / 20)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
        frame.sample_rate = 48_000
        made.mux(stream.encode(frame))
        made.mux(stream.encode(None))
    samples, rate, _ = decoders.decoded(file.getvalue(), 30.0, 10.0)
    assert len(samples) / rate == pytest.approx(1.0, abs=0.1)


def test_an_upload_is_read_as_a_file_is(decoders: Decoders, tmp_path: Path) -> None:
    """Also what only more than its first bytes tell: MP3 behind the answer of a radio station."""
    content = b"ICY 200 OK\r\n\r\n" * 40 + recording(kind="MP3")
    (tmp_path / "radio").write_bytes(content)
    np.testing.assert_array_equal(decoders.decoded(content, 30.0, 10.0)[0], read_audio(tmp_path / "radio")[0])
    with pytest.raises(InputError, match=r"reference_audio: not readable as audio .a text that begins with 'hello'"):
        decoders.decoded(b"hello", 30.0, 10.0)


def test_no_upload_is_left_behind(
    decoders: Decoders, wav: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    decoders.decoded(wav, 30.0, 10.0)
    with pytest.raises(InputError, match="not readable"):
        decoders.decoded(b"RIFF\xff\xff\xff\xffWAVEfmt ", 30.0, 10.0)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_with_too_long_a_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr("phonate.serving.uploads.forkserver.ensure_running", too_long)
    with pytest.raises(InputError, match="TMPDIR"):
        Decoders(1)


def test_a_run_that_is_not_there_is_no_name_on_the_hub_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "transformers" else find_spec(name, *more)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "runs/mine"]) == 2
    assert capsys.readouterr().err.startswith("error: runs/mine: no such folder; if it is a name on the hub, ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--api-key-file", "missing"], "--api-key-file missing: can't be read"),
        (["--api-key-file", "empty"], "--api-key-file empty: has no key"),
        (["--max-batch", "0"], "--max-batch: expected a number >= 1, got 0"),
        (["--max-text", "x"], "--max-text x: must be a whole number"),
        ([], "no-such-run: no such run"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    try:
        code = main(["serve", "no-such-run", *words])
    except SystemExit as stop:
        code = stop.code
    lines = capsys.readouterr().err.splitlines()
    assert code in (1, 2)
    assert len(lines) == 1
    assert re.search(said, lines[0]), lines


def test_a_request_that_is_cut_off_at_the_end_leaves_no_traceback() -> None:
    """uvicorn logs one for each that has not begun to answer; other errors keep theirs."""
    for error, logged in ((asyncio.CancelledError(), False), (ValueError("x"), True)):
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "", (), (type(error), error, None))
        assert _is_no_cut(record) is logged
