"""What clients get: speech in every format, events, voices, and errors in OpenAI's form."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from servers import Serve, assert_error, recording

from phonate.audio.decoding import MADE, read_audio
from phonate.serving.voices import CONSENT

SAID = {"model": "stand-in", "input": "hello", "voice": "own"}


def heard(file: bytes) -> tuple[np.ndarray, int]:
    """Samples and rate of a file."""
    return soundfile.read(io.BytesIO(file), dtype="float32")


def pitch(samples: np.ndarray, rate: int) -> float:
    """In Hz, of the middle: some codecs begin and end with silence."""
    samples = samples[len(samples) // 4 : -len(samples) // 4]
    return np.count_nonzero(np.diff(np.signbit(samples))) / 2 / len(samples) * rate


@pytest.mark.parametrize("form", ["form", "query"])
def test_a_reference_is_cloned_as_the_document_shows(serving: Serve, wav: bytes, form: str) -> None:
    client = serving()
    texts = {"target_text": "hello", "reference_text": "a tone"}
    where = {"data": texts} if form == "form" else {"params": texts}
    answer = client.post("/generate_speech", files={"reference_audio": ("ref.wav", wav)}, **where)
    assert answer.status_code == 200
    assert answer.headers["X-AI-Generated"] == "true"
    samples, rate = heard(base64.b64decode(answer.json()["audio"]))
    assert rate == answer.json()["sample_rate"] == 24_000
    assert len(samples) == 0.5 * rate
    assert pitch(samples, rate) == pytest.approx(300, rel=0.02)
    reference = client.service.requests[0].reference
    assert reference is not None
    assert (len(reference.waveform), reference.sample_rate, reference.text) == (16_000, 16_000, "a tone")


def test_a_whole_wav_file_says_its_length(serving: Serve, wav: bytes) -> None:
    answer = serving().post("/generate_speech", params={"target_text": "hi"}, files={"reference_audio": wav})
    file = base64.b64decode(answer.json()["audio"])
    assert int.from_bytes(file[4:8], "little") == len(file) - 8


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_holds_the_speech_and_says_that_a_model_made_it(serving: Serve, name: str, tmp_path: Path) -> None:
    answer = serving().post("/v1/audio/speech", json={**SAID, "response_format": name})
    assert answer.status_code == 200
    assert answer.headers["X-AI-Generated"] == "true"
    assert answer.headers["content-type"].startswith("audio/")
    if name == "pcm":
        samples, rate = np.frombuffer(answer.content, "<i2") / 32768, int(answer.headers["X-Sample-Rate"])
    else:
        with av.open(io.BytesIO(answer.content)) as file:
            stream = file.streams.audio[0]
            comments = {**file.metadata, **stream.metadata}
            assert comments.get("comment", comments.get("COMMENT")) == MADE
            rate = stream.rate
            samples = np.concatenate([frame.to_ndarray().astype(np.float64)[0] for frame in file.decode(stream)])
    assert len(samples) / rate == pytest.approx(0.5, abs=0.1)
    assert pitch(samples, rate) == pytest.approx(200, rel=0.06)
    if name != "pcm":
        path = tmp_path / f"speech.{name}"
        path.write_bytes(answer.content)
        own, rate = read_audio(path)
        assert len(own) / rate == pytest.approx(0.5, abs=0.1)
    if name in ("wav", "flac", "opus", "mp3"):
        assert len(heard(answer.content)[0]) / rate == pytest.approx(0.5, abs=0.1)  # libsndfile reads it too


def test_events_are_openais(serving: Serve) -> None:
    client = serving()
    answer = client.post("/v1/audio/speech", json={**SAID, "response_format": "pcm", "stream_format": "sse"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert len(events) == 6
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert sound == client.post("/v1/audio/speech", json={**SAID, "response_format": "pcm"}).content
    usage = {"input_tokens": 5, "output_tokens": 12_000, "total_tokens": 12_005}
    assert events[-1] == {"type": "speech.audio.done", "usage": usage}


def test_an_event_says_that_the_model_failed(serving: Serve) -> None:
    asked = {**SAID, "input": "fail", "response_format": "pcm", "stream_format": "sse"}
    answer = serving().post("/v1/audio/speech", json=asked)
    last = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))
    assert last["type"] == "error"
    assert last["error"]["type"] == "server_error"
    assert "broke" not in answer.text  # what is inside stays inside


def test_a_reference_comes_with_the_request(serving: Serve, wav: bytes) -> None:
    client = serving()
    asked = {**SAID, "voice": None, "reference_audio": base64.b64encode(wav).decode(), "reference_text": "a tone"}
    answer = client.post("/v1/audio/speech", json={**asked, "response_format": "wav"})
    assert pitch(*heard(answer.content)) == pytest.approx(300, rel=0.02)
    assert client.service.requests[0].reference.text == "a tone"


def test_a_text_in_another_language_than_the_voice_is_told(
    serving: Serve, wav: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def headers(text: str) -> list[str]:
        spoken = client.post("/v1/audio/speech", json={**SAID, "input": text})
        cloned = client.post("/generate_speech", data={"target_text": text}, files={"reference_audio": wav})
        return [answer.headers.get("warning", "") for answer in (spoken, cloned)]

    german, client = "Guten Tag, wie geht es Ihnen?", serving()
    assert headers(german) == ["", ""]  # the model is of no language
    monkeypatch.setattr("stand_in.StandIn.language", "en-us", raising=False)
    client = serving()
    assert all("seems to be German, the voice reads it as English" in one for one in headers(german))
    assert headers("Good morning.") == ["", ""]


def test_what_is_unusual_about_recordings_is_told(serving: Serve, wav: bytes) -> None:
    client, joined = serving(), recording(kind="MP3") * 2
    encoded = base64.b64encode(joined).decode()
    answers = [
        client.post("/v1/audio/speech", json={**SAID, "voice": None, "reference_audio": encoded}),
        client.post("/generate_speech", data={"target_text": "hi"}, files={"reference_audio": joined}),
        uploaded(client, "anna", joined),
    ]
    for answer in answers:
        assert "reference_audio: 2 files were joined in it" in answer.headers["warning"]
    assert "warning" not in uploaded(client, "berta", wav).headers


def test_all_that_is_asked_for_reaches_the_model(serving: Serve) -> None:
    client = serving()
    more = {"speed": 1.5, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "seed": 3, "max_seconds": 4.0}
    assert client.post("/v1/audio/speech", json={**SAID, "voice": {"id": "own"}, **more}).status_code == 200
    request = client.service.requests[0]
    assert {name: getattr(request, name) for name in more} == more
    assert (request.text, request.voice, request.reference) == ("hello", "own", None)


def test_the_model_is_listed(serving: Serve) -> None:
    client = serving()
    listed = client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["stand-in"]
    assert client.get("/v1/models/stand-in").json() == listed["data"][0]
    assert_error(client.get("/v1/models/other"), 404, "no model 'other'")


def uploaded(client: Any, name: str, wav: bytes, **changes: Any) -> Any:
    form = {"name": name, "speaker": "Zoë", "consent": CONSENT.format(speaker="Zoë"), "reference_text": "a tone"}
    files = {"reference_audio": wav, "consent_audio": recording(0.5)}
    return client.post("/v1/voices", data={**form, **changes}, files=files)


def test_a_voice_is_uploaded_used_and_deleted(serving: Serve, wav: bytes, tmp_path: Path) -> None:
    client = serving()
    answer = uploaded(client, "زينب", wav)
    assert answer.status_code == 201
    assert [one["id"] for one in client.get("/v1/voices").json()["data"]] == ["own", "زينب"]
    asked = {**SAID, "voice": "زينب", "response_format": "wav"}
    assert pitch(*heard(client.post("/v1/audio/speech", json=asked).content)) == pytest.approx(300, rel=0.02)
    assert client.service.requests[0].reference.text == "a tone"
    folder = tmp_path / "voices" / "زينب"
    stored = json.loads((folder / "voice.json").read_text(encoding="utf-8"))
    assert stored["consent"] == "I, Zoë, agree that this voice is cloned and used for synthetic speech."
    assert soundfile.info(folder / "consent.wav").duration == 0.5
    assert serving().get("/v1/voices").json() == client.get("/v1/voices").json()  # after a restart
    assert_error(uploaded(client, "زينب", wav), 400, "there is a voice")
    mistyped = client.post("/v1/audio/speech", json={**SAID, "voice": "زينت"})
    assert_error(mistyped, 400, "there is no voice 'زينت'; did you mean زينب", "voice")
    assert client.delete("/v1/voices/زينب").json()["deleted"] is True
    assert list((tmp_path / "voices").iterdir()) == []
    assert_error(client.delete("/v1/voices/زينب"), 404, "no uploaded voice")
    assert_error(client.post("/v1/audio/speech", json=asked), 400, "there is no voice", "voice")


@pytest.mark.parametrize("file", ["reference.wav", "consent.wav", "voice.json"])
def test_a_full_disk_is_told_as_one(
    serving: Serve, wav: bytes, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving()

    def on_a_full_disk(path: Path, write: Any) -> Any:
        if file in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write()

    write_bytes, write_text = Path.write_bytes, Path.write_text
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", lambda path, data: on_a_full_disk(path, lambda: write_bytes(path, data)))
        full.setattr(
            Path, "write_text", lambda path, *args, **how: on_a_full_disk(path, lambda: write_text(path, *args, **how))
        )
        answer = uploaded(client, "zoe", wav)
    assert_error(answer, 507, "disk is full")
    assert answer.json()["error"]["code"] == "storage_full"
    assert str(tmp_path) not in answer.text
    assert list((tmp_path / "voices").iterdir()) == []
    assert uploaded(client, "zoe", wav).status_code == 201


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"consent": ""}, "consent"),
        ({"consent": "yes"}, "the person who is heard has said: 'I, Zoë, agree"),
        ({"speaker": "Ben"}, "I, Ben, agree"),
        ({"speaker": " "}, "speaker"),
    ],
)
def test_a_voice_needs_consent(serving: Serve, wav: bytes, tmp_path: Path, changes: dict[str, str], said: str) -> None:
    assert_error(uploaded(serving(), "zoe", wav, **changes), 400, said)
    assert list((tmp_path / "voices").iterdir()) == []


def test_a_voice_needs_the_consent_spoken(serving: Serve, wav: bytes) -> None:
    form = {"name": "zoe", "speaker": "Zoë", "consent": CONSENT.format(speaker="Zoë")}
    assert_error(
        serving().post("/v1/voices", data=form, files={"reference_audio": wav}),
        400,
        "is missing; add it",
        "consent_audio",
    )


NAMES = ["../up", "..", ".", "", "a/b", "a\\b", "/etc/passwd", ".hidden", "-x", "a\x00b", "a" * 49, "C:x", "a b", "own"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_paths_are_refused(serving: Serve, wav: bytes, tmp_path: Path, name: str) -> None:
    answer = uploaded(serving(), name, wav)
    assert_error(answer, 400, "name")
    assert [path.name for path in tmp_path.iterdir()] == ["voices"]
    assert list((tmp_path / "voices").iterdir()) == []


def test_links_in_the_folder_are_not_followed(serving: Serve, wav: bytes, tmp_path: Path) -> None:
    client = serving()
    uploaded(client, "zoe", wav)
    (tmp_path / "voices" / "zoe").rename(tmp_path / "elsewhere")
    (tmp_path / "voices" / "link").symlink_to(tmp_path / "elsewhere")
    assert [one["id"] for one in client.get("/v1/voices").json()["data"]] == ["own"]
    assert client.delete("/v1/voices/link").status_code == 404
    assert (tmp_path / "elsewhere" / "voice.json").exists()


DAMAGE: dict[str, tuple[str, bytes | None]] = {
    "empty": ("voice.json", b""),
    "cut": ("voice.json", b'{"name": "zo'),
    "no UTF-8": ("voice.json", b"\xff\xfe{}"),
    "a list": ("voice.json", b"[]"),
    "keys that lack": ("voice.json", b'{"name": "zoe"}'),
    "types": ("voice.json", b'{"name": "zoe", "text": null, "speaker": [], "consent": "", "created": "x"}'),
    "nested": ("voice.json", b"[" * 100_000),
    "gone": ("voice.json", None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_voice_leaves_the_others_alone(
    serving: Serve, wav: bytes, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = serving()
    uploaded(client, "zoe", wav)
    uploaded(client, "ada", wav)
    name, content = DAMAGE[damage]
    file = tmp_path / "voices" / "zoe" / name
    file.unlink() if content is None else file.write_bytes(content)
    for _ in range(2):
        assert [one["id"] for one in client.get("/v1/voices").json()["data"]] == ["own", "ada"]
    assert [str(file.parent) in record.message for record in caplog.records if "damaged" in record.message] == [True]
    assert uploaded(client, "eve", wav).status_code == 201
    assert_error(uploaded(client, "zoe", wav), 400, "delete it")
    assert client.delete("/v1/voices/ada").status_code == 200
    asked = client.post("/v1/audio/speech", json={**SAID, "voice": "zoe"})
    assert_error(asked, 400, "'zoe' is damaged; delete it")
    assert client.delete("/v1/voices/zoe").status_code == 200
    assert uploaded(client, "zoe", wav).status_code == 201


@pytest.mark.parametrize("content", [b"", b"RIFF", None])
def test_a_damaged_recording_is_told_without_its_path(
    serving: Serve, wav: bytes, tmp_path: Path, content: bytes | None
) -> None:
    client = serving()
    uploaded(client, "zoe", wav)
    file = tmp_path / "voices" / "zoe" / "reference.wav"
    file.unlink() if content is None else file.write_bytes(content)
    answer = client.post("/v1/audio/speech", json={**SAID, "voice": "zoe"})
    assert_error(answer, 400, "'zoe' is damaged; delete it")
    assert str(tmp_path) not in answer.text
    assert client.delete("/v1/voices/zoe").status_code == 200


def test_a_folder_of_something_else_is_no_voice(serving: Serve, wav: bytes, tmp_path: Path) -> None:
    client = serving()
    for name in ("voice.json", "thesis.txt"):
        (tmp_path / "voices" / "work").mkdir(exist_ok=True)
        (tmp_path / "voices" / "work" / name).write_text("mine")
    assert [one["id"] for one in client.get("/v1/voices").json()["data"]] == ["own"]
    assert client.delete("/v1/voices/work").status_code == 404
    assert (tmp_path / "voices" / "work" / "thesis.txt").exists()


def test_only_what_no_server_works_on_is_removed(serving: Serve, tmp_path: Path) -> None:
    for name, hours in ((".now.part", 0.0), (".old.part", 2.0)):
        part = tmp_path / "voices" / name
        part.mkdir(parents=True)
        (part / "reference.wav").write_bytes(b"")
        os.utime(part, (time.time() - 3600 * hours,) * 2)
    serving()
    assert [path.name for path in (tmp_path / "voices").iterdir()] == [".now.part"]


def test_a_voice_is_on_disk_before_it_appears(
    serving: Serve, wav: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serving()
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append("part" if path.suffix == ".part" else path.name)
        assert (tmp_path / "voices" / "zoe").exists() == (path.name == "voices")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert uploaded(client, "zoe", wav).status_code == 201
    assert {*synced[:-1]} == {"voice.json", "reference.wav", "consent.wav", "part"}
    assert synced[-2:] == ["part", "voices"]


def test_no_folder_means_no_uploads(serving: Serve, wav: bytes) -> None:
    client = serving(voices=None)
    assert client.get("/v1/voices").json()["uploads"] is False
    assert_error(uploaded(client, "zoe", wav), 403, "--voices")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"model": "gpt"}, 404, "no model 'gpt'; there is only 'stand-in'"),
        ({"model": "stand-inn"}, 404, "no model 'stand-inn'; did you mean stand-in"),
        ({"input": " "}, 400, "input: is empty"),
        ({"input": "x" * 4097}, 400, "4097 characters; at most 4096"),
        ({"input": "a\x00"}, 400, "NUL"),
        ({"input": "a\ud800"}, 400, "surrogate"),
        ({"voice": "owm"}, 400, "no voice 'owm'; did you mean own"),
        ({"voice": None}, 400, "name one of /v1/voices, or send reference_audio"),
        ({"speed": 5}, 400, "speed: expected a number <= 4.0, got 5"),
        ({"response_format": "ogg"}, 400, "response_format: expected 'mp3'.*, got 'ogg'"),
        ({"voice": None, "reference_audio": "http://127.0.0.1/x.wav"}, 400, "opens no address"),
        ({"voice": None, "reference_audio": "file:///etc/passwd"}, 400, "opens no address"),
        ({"voice": None, "reference_audio": "/etc/passwd"}, 400, "not base64|not readable as audio"),
        ({"voice": None, "reference_audio": "AAAA"}, 400, "not readable as audio"),
        ({"reference_audio": "AAAA"}, 400, "either voice or reference_audio"),
        ({"reference_text": "x"}, 400, "there is no reference_audio"),
    ],
)
def test_requests_that_cannot_be_met_say_why(serving: Serve, changes: dict[str, Any], status: int, said: str) -> None:
    asked = {name: value for name, value in {**SAID, **changes}.items() if value is not None}
    body = json.dumps(asked)  # with escapes, which may be of no character
    answer = serving().post("/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    assert_error(answer, status, said)


@pytest.mark.parametrize("sent", ["application/x-www-form-urlencoded", "text/plain", None])
def test_json_is_read_as_such_whatever_it_is_called(serving: Serve, sent: str | None) -> None:
    """As `curl -d` sends it. Pages of other sites can send that unasked, too, and are refused."""
    client, headers = serving(), {} if sent is None else {"content-type": sent}
    answer = client.post("/v1/audio/speech", content=json.dumps(SAID), headers=headers)
    assert answer.status_code == 200, answer.text
    elsewhere = {**headers, "origin": "http://elsewhere.example"}
    assert_error(client.post("/v1/audio/speech", content=json.dumps(SAID), headers=elsewhere), 403, "may not use")
    assert_error(client.post("/v1/audio/speech", content="model=x", headers=headers), 400, "not JSON .* send an object")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "^the body is empty; GET /docs shows"),
        ("[]", "^the body is no JSON object; GET /docs shows"),
        ("{}", "^model: is missing; add it"),
        ('{"model": "stand-in", "input": 5}', "^input: expected text, got 5"),
        ('{"model": "stand-in", "input": "a", "voice": 5}', "^voice: expected text, or a mapping .*, got 5$"),
        ('{"model": "stand-in", "input": "a", "voice": {"id": 1}}', "^voice.id: expected text, got 1"),
        ('{"model": "stand-in", "input": "a", "voice": {"id": "own", "x": 1}}', "^voice.x: is not a field"),
        ('{"model": "stand-in", "input": "a", "top_k": "x"}', "^top_k: expected a whole number, got 'x'"),
        ('{"model": "stand-in", "input": "a", "timestamp_granularities": ["s"]}', "granularities.0: expected 'word'"),
    ],
)
def test_a_mistake_is_told_in_one_line_of_the_request_s_own_words(serving: Serve, body: str, said: str) -> None:
    assert_error(serving().post("/v1/audio/speech", content=body), 400, said)


def test_mistakes_of_forms_are_told_so_too(serving: Serve, wav: bytes) -> None:
    client = serving()
    form = {"model": "whisper-1"}
    assert_error(client.post("/v1/audio/transcriptions", json=form), 400, "^file: is missing; add it", "file")
    answer = client.post("/v1/audio/transcriptions", files={"model": (None, "w"), "file": (None, "me.wav")})
    assert_error(answer, 400, "^file: is not a file; send one, such as curl -F file=@recording.wav", "file")
    answer = client.post("/v1/audio/conversions", data={"semitones": "x"}, files={"file": wav})
    assert_error(answer, 400, "^semitones: expected a number, got 'x'", "semitones")
    headers = {"content-type": "multipart/form-data"}
    assert_error(client.post("/v1/audio/conversions", content=b"x", headers=headers), 400, "can't be read")


def test_other_errors_have_the_same_form(serving: Serve) -> None:
    client = serving()
    json_type = {"content-type": "application/json"}
    assert_error(client.post("/v1/audio/speech", content="{", headers=json_type), 400, r"not JSON .* at column 2\)")
    assert_error(
        client.post("/v1/audio/speech", content='{\n "a" 1}', headers=json_type), 400, r"at line 2, column 6\)"
    )
    assert_error(client.post("/v1/audio/speech", content=b"\xff\xfe", headers=json_type), 400, "")
    assert_error(client.get("/nothing"), 404, "there is nothing at /nothing; GET /docs")
    assert_error(client.get("/v1/audio/speech"), 405, "/v1/audio/speech takes POST, not GET; GET /docs")
    assert_error(client.post("/generate_speech", data={"target_text": "x"}), 400, "reference_audio: is missing")
    assert_error(client.post("/generate_speech"), 400, "target_text: is missing")


@pytest.mark.parametrize("where", [{"data": {"refrence_text": "x"}}, {"params": {"refrence_text": "x"}}])
def test_fields_that_are_none_are_refused(serving: Serve, where: dict[str, Any], wav: bytes) -> None:
    answer = serving().post("/generate_speech", files={"reference_audio": wav, "target_text": (None, "hi")}, **where)
    assert_error(answer, 400, "'refrence_text' is not a field; did you mean reference_text?")


def test_what_happened_is_counted(serving: Serve) -> None:
    client = serving(seconds=0.01)
    client.post("/v1/audio/speech", json=SAID)
    client.post("/v1/audio/speech", json={**SAID, "input": "a\x00"})
    client.post("/v1/audio/speech", json={**SAID, "input": "fail"})
    time.sleep(0.05)
    shown = client.get("/metrics").text
    for outcome in ("ok", "refused", "failed"):
        assert f'phonate_requests_total{{outcome="{outcome}"}} 1.0' in shown
    assert "phonate_request_seconds_count 1.0" in shown
    assert "phonate_first_sound_seconds_count 2.0" in shown
    audio = re.search(r"^phonate_audio_seconds_total (\S+)", shown, re.MULTILINE)
    assert audio
    assert float(audio[1]) == pytest.approx(0.6)
    assert "phonate_active_requests 0.0" in shown
    assert "phonate_waiting_requests 0.0" in shown


def test_the_server_says_that_it_lives_and_is_ready(serving: Serve) -> None:
    client = serving()
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ok", "model": "stand-in"}
    client.app.state.server.gate.draining = True
    assert client.get("/health").status_code == 200
    assert_error(client.get("/ready"), 503, "stopping")
    answer = client.post("/v1/audio/speech", json=SAID)
    assert_error(answer, 503, "stopping")
    assert int(answer.headers["Retry-After"]) > 0
