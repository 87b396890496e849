"""Whatever is uploaded, the server answers with speech or a clear refusal, and writes nothing outside its folder."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers import Serve, recording

from phonate.serving.voices import CONSENT

SEEDS = [recording(0.2, kind=kind) for kind in ("WAV", "FLAC", "MP3", "OGG")]
STARTS = [
    b"RIFF\xff\xff\xff\xffWAVE",
    b"fLaC",
    b"OggS",
    b"ID3",
    b"\xff\xf1",
    b"\xff\xfb",
    b"\x1aE\xdf\xa3",
    b"\0\0\0\x18ftypM4A ",
]
NAMES = ["../../etc/x", "/tmp/x", "..", "a\x00b", "C:\\x", "a/../../b", "CON", "\u202egpj", "x" * 5000, "~root"]
NAMES += ["%2e%2e%2f", "ok"]
FIELDS = ["voice", "input", "speed", "seed", "top_k", "reference_text", "model"]


def mutated(rng: random.Random) -> bytes:
    """A recording with a damaged header, a damaged body, a wrong length, or no recording at all."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(400))
    if kind == 1:
        return rng.choice(STARTS) + rng.randbytes(rng.randrange(400))
    data = bytearray(rng.choice(SEEDS))
    if kind == 2:
        return bytes(data[: rng.randrange(len(data))])
    reach = 64 if kind in (3, 4) else len(data)
    for _ in range(rng.randrange(1, 12)):
        data[rng.randrange(reach)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if kind == 4:
        at = rng.randrange(reach)
        data[at:at] = rng.randbytes(rng.randrange(16))
    return bytes(data)


def multipart(rng: random.Random) -> tuple[bytes, str]:
    """A form with tricks: names with paths, headers without ends, boundaries that are wrong or inside the data."""
    boundary = rng.choice(["b", "--", "x" * 200, "a b", 'b"'])
    parts = []
    for _ in range(rng.randrange(1, 5)):
        field = rng.choice(["reference_audio", "target_text", "name", "consent_audio", rng.choice(NAMES)])
        filename = f'; filename="{rng.choice(NAMES)}"' if rng.random() < 0.6 else ""
        header = f'Content-Disposition: form-data; name="{field}"{filename}'
        if rng.random() < 0.2:
            header = rng.choice(["Content-Disposition", ": x", header * 40, header + "\r\nContent-Length: -1", "\x00"])
        body = mutated(rng) if rng.random() < 0.5 else b"--" + boundary.encode() + b"\r\n"
        parts.append(f"--{boundary}\r\n{header}\r\n\r\n".encode("utf-8", "replace") + body + b"\r\n")
    end = rng.choice([f"--{boundary}--\r\n", f"--{boundary}", "", f"--{boundary}x--"]).encode()
    data = b"".join(parts) + end
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data))]
    declared = rng.choice([boundary, boundary, boundary, "other", ""])
    return data, rng.choice([f"multipart/form-data; boundary={declared}", "multipart/form-data"])


def asked(rng: random.Random, client: Any) -> Any:
    """The answer to one hostile request."""
    kind = rng.randrange(5)
    if kind == 0:
        data, content_type = multipart(rng)
        path = rng.choice(["/generate_speech", "/v1/voices"])
        return client.post(path, content=data, headers={"content-type": content_type})
    if kind == 1:
        name = rng.choice(NAMES)
        form = {"name": name, "speaker": "Z", "consent": CONSENT.format(speaker="Z")}
        files = {"reference_audio": (rng.choice(NAMES), mutated(rng)), "consent_audio": (rng.choice(NAMES), SEEDS[0])}
        return client.post("/v1/voices", data=form, files=files)
    if kind == 2:
        body: dict[str, Any] = {"model": "stand-in", "input": "hi", "response_format": "pcm"}
        body["reference_audio"] = base64.b64encode(mutated(rng)).decode()
        if rng.random() < 0.5:
            values = [None, -1, 1e400, "x" * 99, [], {}, "\ud800", True, NAMES[0], 2**70]
            body[rng.choice(["voice", "input", "speed", "seed", "top_k", "reference_text", "model"])] = rng.choice(
                values
            )
        text = json.dumps(body).encode("utf-8", "surrogatepass")
        if rng.random() < 0.2:
            text = text[: rng.randrange(len(text))]
        return client.post("/v1/audio/speech", content=text, headers={"content-type": "application/json"})
    if kind == 3:
        return client.delete("/v1/voices/" + quote(rng.choice(NAMES), safe=rng.choice(["", "/"])))
    files = {"reference_audio": (rng.choice(NAMES), mutated(rng))}
    return client.post("/generate_speech", data={"target_text": "hi"}, files=files)


def fuzz(serving: Serve, folder: Path, count: int, seed: int) -> Counter[int]:
    outside = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    client = serving(decode_seconds=5.0)
    rng = random.Random(seed)
    answers: Counter[int] = Counter()
    for _ in range(count):
        state = rng.getstate()
        answer = asked(rng, client)
        assert answer.status_code < 500, (state[1][-1], answer.request.content[:2000], answer.text)
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"]
        answers[answer.status_code] += 1
    kept = {path for path in folder.rglob("*") if path.is_file()}
    stored = {path for path in kept if path.is_relative_to(folder / "voices")}
    assert {path: path.read_bytes() for path in kept - stored} == outside
    assert {path.parent.name for path in stored} <= {"ok", "CON"}
    return answers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything that this process writes would be: also its working directory and its temporary files."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "kept").write_text("kept")
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path


def test_hostile_uploads_are_answered(serving: Serve, folder: Path) -> None:
    answers = fuzz(serving, folder, 400, seed=1)
    assert {200, 400, 404} <= set(answers)


@pytest.mark.slow
def test_thousands_of_hostile_uploads_are_answered(serving: Serve, folder: Path) -> None:
    answers = fuzz(serving, folder, 3_000, seed=2)
    assert {200, 201, 400, 404} <= set(answers)
