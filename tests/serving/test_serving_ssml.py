"""SSML and times of words over HTTP, spoken by the voice that comes with phonate."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from fastapi.testclient import TestClient
from servers import Serve, Server, assert_error, only

import phonate
from phonate.serving import routes
from phonate.serving.server import create_app
from phonate.serving.settings import ServingSettings
from phonate.tasks.speech import inference
from phonate.text import ssml

DOCUMENT = "<speak>The baker <break time='700ms'/> sold a <emphasis>yellow</emphasis> boat. Nobody knew why.</speak>"
SAID = {"model": "voice", "input": DOCUMENT, "response_format": "wav"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    service = phonate.load("base/voice", "speech").speech_service(4)
    with TestClient(create_app(only(service, "voice"), ServingSettings(max_text=200, max_silence=5))) as client:
        yield client
    service.close()


def sound(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return soundfile.read(io.BytesIO(answer.content))[0]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


def test_it_says_what_the_command_says(client: TestClient) -> None:
    said = sound(client.post("/v1/audio/speech", json=SAID))
    wanted, _ = phonate.load("base/voice", "speech").timed(DOCUMENT)
    assert len(said) == len(wanted)
    silent = np.abs(said) < 1e-4
    assert silent.sum() / 22050 > 0.7  # the break
    assert np.corrcoef(said[: len(said) // 2], wanted[: len(wanted) // 2])[0, 1] > 0.99


def test_a_document_is_parsed_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    for module in (routes, inference):

        def counting(markup: str, *rest: str) -> list[ssml.Part]:
            parsed.append(markup)
            return ssml.parse(markup, *rest)

        monkeypatch.setattr(module, "parse", counting)
    client.post("/v1/audio/speech", json=SAID)
    assert parsed == [DOCUMENT]


def test_what_is_ssml_can_be_said(client: TestClient) -> None:
    document = "<speak>One <break time='2s'/> two.</speak>"
    marked, literal, forced = (
        sound(client.post("/v1/audio/speech", json={**SAID, "input": document, **more}))
        for more in ({}, {"input_type": "text"}, {"input_type": "ssml"})
    )
    assert len(marked) == len(forced)
    assert len(marked) - len(literal) > 22050  # of a plain text, marks of markup are left out
    asked = {**SAID, "input": "Speak up.", "input_type": "ssml"}
    assert_error(client.post("/v1/audio/speech", json=asked), 400, "not well-formed", "input")
    asked = {**SAID, "input": "Wait <break time='1s'/> here."}
    assert_error(client.post("/v1/audio/speech", json=asked), 400, "must stand in one <speak> element", "input")


def test_the_document_s_endpoint_takes_it_too(client: TestClient) -> None:
    answer = client.post("/generate_speech", data={"target_text": DOCUMENT})
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(answer.json()["audio"])))
    assert len(samples) == len(sound(client.post("/v1/audio/speech", json=SAID)))
    assert rate == 22050


BOMB = '<!DOCTYPE speak [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><speak>&b;</speak>'


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("<speak>\n<brake/></speak>", "SSML, line 2: <brake> is not understood; did you mean break"),
        ("<speak>a & b</speak>", "SSML, line 1: is not well-formed .*&amp;"),
        (BOMB, "declarations .* are not read; leave them out"),
        (f"<speak>{'word ' * 41}</speak>", "205 characters to speak; at most 200"),
        (f"<speak>{'<break/>' * 300}word</speak>", "2419 characters with markup; at most 2000"),
        ("<speak>word<break time='60s'/><break time='60s'/></speak>", "120 s of silence; at most 5"),
        (f"<speak>{'<s>' * 60}word{'</s>' * 60}</speak>", "elements nested more than 50 deep"),
        ("<speak>...</speak>", "nothing of this SSML can be spoken"),
        ("<speak xml:lang='de'>Ja.</speak>", "but the voice speaks en-us"),
        ("<speak>\n<phoneme ph='QQ'>a</phoneme></speak>", "line 2: <phoneme ph=\"QQ\">: 'QQ' is no phone"),
        (f"<speak><sub alias='{'long ' * 50}'>x</sub></speak>", "250 characters to speak"),
    ],
)
def test_documents_that_cannot_be_said_are_refused(client: TestClient, document: str, said: str) -> None:
    asked = {**SAID, "input": document, "input_type": "ssml"}
    assert_error(client.post("/v1/audio/speech", json=asked), 400, said)


def test_markup_does_not_count_as_text(client: TestClient) -> None:
    document = "<speak>" + "<emphasis level='moderate'>Yes</emphasis>. " * 10 + "</speak>"
    assert len(document) > 200
    answer = client.post("/v1/audio/speech", json={**SAID, "input": document, "stream_format": "sse"})
    assert events(answer)[-1]["usage"]["input_tokens"] == 10 * len("Yes. ")


def test_sentences_are_sent_as_they_are_made_with_the_times_of_their_words(client: TestClient) -> None:
    asked = {**SAID, "stream_format": "sse", "timestamp_granularities": ["word"]}
    found = events(client.post("/v1/audio/speech", json=asked))
    kinds = [event["type"] for event in found]
    assert kinds.count("speech.audio.words") == 2
    second = len(kinds) - 1 - kinds[::-1].index("speech.audio.words")
    assert kinds[0] == "speech.audio.words"
    assert "speech.audio.delta" in kinds[1:second]
    assert kinds[-1] == "speech.audio.done"
    words = [word for event in found for word in event.get("words", [])]
    _, wanted = phonate.load("base/voice", "speech").timed(DOCUMENT)
    assert [(word["word"], word["start"], word["end"]) for word in words] == [
        (one.text, pytest.approx(one.start, abs=0.002), pytest.approx(one.end, abs=0.002)) for one in wanted
    ]
    plain = {**asked, "input": "Good morning. It is late."}
    assert [w["word"] for e in events(client.post("/v1/audio/speech", json=plain)) for w in e.get("words", [])] == [
        "Good", "morning.", "It", "is", "late.",
    ]  # fmt: skip


def test_times_need_a_place(client: TestClient, serving: Serve) -> None:
    asked = {**SAID, "timestamp_granularities": ["word"]}
    assert_error(client.post("/v1/audio/speech", json=asked), 400, "stream_format to sse", "timestamp_granularities")
    other = {"model": "stand-in", "voice": "own", "input": "hello", "stream_format": "sse"}
    answer = serving().post("/v1/audio/speech", json={**other, "timestamp_granularities": ["word"]})
    assert_error(answer, 400, "can't tell when", "timestamp_granularities")


def test_a_model_without_ssml_says_so(serving: Serve) -> None:
    asked = {"model": "stand-in", "voice": "own", "input": DOCUMENT}
    assert_error(serving().post("/v1/audio/speech", json=asked), 400, "can't read SSML", "input")
    assert serving().post("/v1/audio/speech", json={**asked, "input_type": "text"}).status_code == 200


def test_the_page_tells_of_ssml(client: TestClient, serving: Serve) -> None:
    page = client.get("/").text
    assert "SSML" in page
    assert 'maxlength="2000"' in page
    assert "SSML" not in serving().get("/").text


def test_openais_client_sends_ssml(client: TestClient) -> None:
    words = ["serve", "base/voice", "--port", "0", "--model-name", "tts-1", "--no-prosody-rules"]
    with Server("-m", "phonate", *words) as server:
        speech = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0).audio.speech
        asked = {"model": "tts-1", "voice": "kathleen", "response_format": "wav"}
        long, short = (
            soundfile.read(io.BytesIO(speech.create(input=f"<speak>One {pause} two.</speak>", **asked).content))[0]
            for pause in ("<break time='2s'/>", "<break time='500ms'/>")
        )
        assert (len(long) - len(short)) / 22050 == pytest.approx(1.5, abs=0.02)
        plain = soundfile.read(io.BytesIO(speech.create(input="Yes.\n\nNo.", **asked).content))[0]
        assert len(plain) < len(sound(client.post("/v1/audio/speech", json={**SAID, "input": "Yes.\n\nNo."})))
        with pytest.raises(openai.BadRequestError, match="line 1: <brake>"):
            speech.create(input="<speak>One <brake/></speak>", **asked)
        more = {"timestamp_granularities": ["word"]}
        with speech.with_streaming_response.create(
            input="<speak>One.</speak>", stream_format="sse", extra_body=more, **asked
        ) as streamed:
            found = [json.loads(line[6:]) for line in streamed.iter_lines() if line]
        assert found[0]["words"][0]["word"] == "One."
