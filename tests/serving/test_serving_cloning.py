"""A small cloning model behind the server: the engine, the codec and HTTP together."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[cloning]'")

from fastapi.testclient import TestClient
from servers import assert_error

import phonate
from higgs import small_model, small_tokenizer
from higgs_codec import small_codec_folder
from phonate.serving.app import create_app
from phonate.serving.settings import ServingSettings
from phonate.serving.voices import CONSENT

STREAM_ENDS = 1024


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("cloning")
    model = small_model()
    head = model.audio_lm_head.weight.data.view(model.config.num_codebooks, model.config.codebook_size, -1)
    head[:, STREAM_ENDS:] = 0.0  # it neither begins nor ends on its own
    model.save_pretrained(folder / "merged")
    small_tokenizer().save_pretrained(folder / "merged")
    small_codec_folder(folder / "merged" / "codec")
    (folder / "merged" / "cloning.json").write_text(json.dumps({"codec": "codec"}))
    service = phonate.load(folder / "merged").speech_service(2)
    assert service is not None
    app = create_app(service, ServingSettings(model_name="higgs", voices=folder / "voices"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    service.close()


def sound(file: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(file))
    assert rate == 24_000
    assert np.isfinite(samples).all()
    return samples


def test_the_document_s_request_is_answered(client: TestClient, wav: bytes) -> None:
    answer = client.post("/generate_speech", params={"target_text": "hi"}, files={"reference_audio": wav})
    assert answer.status_code == 200, answer.text
    assert len(sound(base64.b64decode(answer.json()["audio"]))) > 2_400


def test_requests_at_once_get_what_each_gets_alone(client: TestClient, wav: bytes) -> None:
    form = {"name": "zoe", "speaker": "Zoë", "consent": CONSENT.format(speaker="Zoë"), "reference_text": "a tone"}
    added = client.post("/v1/voices", data=form, files={"reference_audio": wav, "consent_audio": wav})
    assert added.status_code == 201, added.text

    def said(seed: int) -> bytes:
        asked = {"model": "higgs", "voice": "zoe", "input": "hi", "response_format": "wav", "seed": seed}
        answer = client.post("/v1/audio/speech", json=asked)
        assert answer.status_code == 200, answer.text
        return answer.content

    alone = [said(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(said, range(3)))
    for one, other in zip(alone, together, strict=True):
        assert len(sound(one)) == len(sound(other))
        assert np.abs(sound(one) - sound(other)).max() < 1e-3
    assert not np.array_equal(sound(alone[0])[:4800], sound(alone[1])[:4800])


def test_what_the_model_cannot_do_is_refused(client: TestClient, wav: bytes) -> None:
    reference = {"reference_audio": base64.b64encode(wav).decode()}
    asked = {"model": "higgs", "input": "hi", **reference}
    assert_error(client.post("/v1/audio/speech", json={**asked, "speed": 2.0}), 400, "speed")
    assert_error(client.post("/v1/audio/speech", json={"model": "higgs", "input": "hi"}), 400, "send reference_audio")
