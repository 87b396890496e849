"""A small cloning model behind the server: the engine, the codec and HTTP together."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import openai
import pytest
import soundfile

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from fastapi import FastAPI
from fastapi.testclient import TestClient
from servers import Server, assert_error, only

import phonate
from cloning_runs import settings, write_all
from higgs import small_model, small_tokenizer
from higgs_codec import small_codec_folder
from phonate.cli import main
from phonate.serving.server import Hosted, create_app
from phonate.serving.settings import ServingSettings
from phonate.serving.voices import CONSENT
from phonate.workflows.train import train

STREAM_ENDS = 1024


def save_endless_model(folder: Path) -> None:
    """A model that neither begins nor ends on its own."""
    model = small_model()
    head = model.audio_lm_head.weight.data.view(model.config.num_codebooks, model.config.codebook_size, -1)
    head[:, STREAM_ENDS:] = 0.0
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("cloning")
    save_endless_model(folder / "merged")
    small_tokenizer().save_pretrained(folder / "merged")
    small_codec_folder(folder / "merged" / "codec")
    (folder / "merged" / "cloning.json").write_text(json.dumps({"codec": "codec"}))
    service = phonate.load(folder / "merged").speech_service(2)
    assert service is not None
    app = create_app(only(service, "higgs"), ServingSettings(voices=folder / "voices"))
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

    def said(seed: int, **more: Any) -> bytes:
        asked = {"model": "higgs", "voice": "zoe", "input": "hi", "response_format": "wav", "seed": seed, **more}
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
    assert len(sound(said(0, max_seconds=0.2))) <= 4800 < len(sound(alone[0]))


def test_what_the_model_cannot_do_is_refused(client: TestClient, wav: bytes) -> None:
    reference = {"reference_audio": base64.b64encode(wav).decode()}
    asked = {"model": "higgs", "input": "hi", **reference}
    assert_error(client.post("/v1/audio/speech", json={**asked, "speed": 2.0}), 400, "speed")
    assert_error(client.post("/v1/audio/speech", json={"model": "higgs", "input": "hi"}), 400, "send reference_audio")


def test_speech_is_no_longer_than_the_server_allows(client: TestClient, wav: bytes) -> None:
    """The model never ends by itself: of "hi" it makes two seconds."""
    services = [*cast(FastAPI, client.app).state.server.services.values()]
    app = create_app(Hosted(services, [], [], None), ServingSettings(max_speech_seconds=1.0))
    client = TestClient(app, raise_server_exceptions=False)
    reference = {"reference_audio": base64.b64encode(wav).decode()}
    asked = {"model": "higgs", "input": "hi", "response_format": "flac", **reference}
    assert_error(client.post("/v1/audio/speech", json=asked), 400, "longer than the 1 s that this server makes")
    assert_error(client.post("/v1/audio/speech", json={**asked, "max_seconds": 1.5}), 400, "at most 1 s are allowed")
    answer = client.post("/v1/audio/speech", json={**asked, "max_seconds": 0.5})
    assert answer.status_code == 200, answer.text
    assert len(sound(answer.content)) <= 12_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, whose codec was moved to `moved`, and `hub`, a cache of models of the hub with nobody/higgs in it."""
    folder = write_all(tmp_path_factory.mktemp("served"))
    save_endless_model(folder / "model")
    changes = {"model.lora.mode": "attention_only", "training.max_steps": 2, "training.validation.interval": 2}
    train("voice-cloning", settings(folder, **changes), output=folder / "run")
    (folder / "codec").rename(folder / "moved")
    repository, commit = folder / "hub" / "models--nobody--higgs", "0" * 40
    shutil.copytree(folder / "model", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model", ["run", "nobody/higgs"])
def test_openais_client_gets_cloned_speech(model: str, folder: Path, tmp_path: Path, wav: bytes) -> None:
    """Of a run and of a model on the hub, in a process of its own."""
    source = str(folder / "run") if model == "run" else model
    words = ["-m", "phonate", "serve", source, "--port", "0", "--model-name", "tts-1", "--voices", str(tmp_path)]
    options = ["--dtype", "bf16", "--codec", str(folder / "moved")]
    with Server(*words, *options, HF_HUB_CACHE=str(folder / "hub"), PHONATE_API_KEY="secret") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
        speech = client.audio.speech
        once = {"reference_audio": base64.b64encode(wav).decode(), "reference_text": "a tone"}
        made = speech.create(model="tts-1", voice="", input="hi", response_format="wav", extra_body=once)
        assert len(sound(made.content)) > 24_000
        assert made.response.headers["X-AI-Generated"] == "true"
        with pytest.raises(openai.BadRequestError, match="reference_audio"):
            speech.create(model="tts-1", voice="", input="hi")
        form = {"name": "zoe", "speaker": "Zoë", "consent": CONSENT.format(speaker="Zoë"), "reference_text": "a tone"}
        files = {"reference_audio": wav, "consent_audio": wav}
        client.post("/voices", cast_to=object, body=form, files=list(files.items()), options=_FORM)
        by_name = speech.create(model="tts-1", voice="zoe", input="hi", response_format="wav")
        assert len(sound(by_name.content)) == len(sound(made.content))
        with speech.with_streaming_response.create(
            model="tts-1", voice="zoe", input="hi", response_format="flac"
        ) as streamed:
            streamed.stream_to_file(tmp_path / "out.flac")
        assert soundfile.info(tmp_path / "out.flac").frames == len(sound(made.content))
        assert server.stop() == 143


def test_options_of_the_model_reach_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in [
        (["--dtype", "int8", "--codec", str(folder / "moved")], "int8 is for models without adapters"),
        (["--codec", "none"], "none: the codec can't be loaded"),
        (["--base", "gone"], "was trained on the model gone, which is not there"),
    ]:
        assert main(["serve", str(folder / "run"), *options]) == 2
        assert message in capsys.readouterr().err


_FORM = {"headers": {"Content-Type": "multipart/form-data"}}
