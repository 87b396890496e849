"""Models on the hub: pushed by its own client with a card, loaded by name, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import soundfile
from hub_server import Hub

from installed import missing
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.training.checkpoints.files import packaged
from phonate.training.checkpoints.loading import sources_of_start
from phonate.workflows.hub import model_card
from phonate.workflows.load import load
from phonate_process import Process
from sounds import SAMPLE_RATE, voiced_tone

if importlib.util.find_spec("huggingface_hub") is None:
    pytest.skip("huggingface_hub is not installed", allow_module_level=True)

Phonate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture
def phonate(hub: Hub, tmp_path: Path) -> Phonate:
    """`phonate ...` in an empty folder, with the hub of this machine."""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "secret"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        process = Process(*words, cwd=tmp_path, env=environment | own, stdout=-1, stderr=-1, text=True)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return run


def test_a_pushed_voice_speaks_by_its_name(hub: Hub, phonate: Phonate, tmp_path: Path) -> None:
    pushed = phonate("checkpoints", "push", "base/voice", "hf:anna/voice", "--private", "--licence", "apache-2.0")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout == f"{hub.url}/anna/voice\n"
    assert "private" in {*hub.created[-1].values()} or hub.created[-1]["private"] is True
    assert "Bearer secret" in hub.tokens
    files = hub.models["anna/voice"]
    assert {"manifest.json", "model.json", "recipe.yaml", "weights.safetensors", "README.md"} <= set(files)
    card = files["README.md"].decode()
    for line in ('pipeline_tag: "text-to-speech"', 'license: "apache-2.0"', 'library_name: "phonate"'):
        assert line in card.partition("\n---\n")[0].splitlines()
    assert 'phonate.load("hf:anna/voice", "speech")' in card

    spoken = phonate("speak", "hf:anna/voice", "Good morning.", "-o", "hub.wav")
    assert spoken.returncode == 0, spoken.stderr
    assert phonate("speak", "Good morning.", "-o", "packaged.wav").returncode == 0
    assert (tmp_path / "hub.wav").read_bytes() == (tmp_path / "packaged.wav").read_bytes()
    listed = phonate("checkpoints", "verify", f"hf:anna/voice@{hub.commit('anna/voice')}")
    assert listed.returncode == 0, listed.stderr


def test_the_figures_on_a_page_have_their_units(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(packaged(Path("base/voice")), tmp_path / "voice")
    (checkpoint / "evaluation.json").write_text(
        json.dumps({"systems": {"synthesised": {"wer": 0.038, "seconds": 0.9}}})
    )
    card = model_card(checkpoint, "anna/voice")
    assert "|  | WER % ↓ | length × natural |" in card
    assert "| synthesised | 3.8 | 0.9 |" in card


def test_what_is_not_there_is_one_line(hub: Hub, phonate: Phonate) -> None:
    hub.models["ben/other"] = {"config.json": b"{}"}
    for name, words in {
        "hf:ben/nothing": "no such model",
        "hf:ben": "hf:OWNER/NAME",
        "hf:ben/other": "manifest.json",
        "hf:ben/other@v2": "no such revision",
    }.items():
        refused = phonate("speak", name, "Good morning.")
        *_, last = refused.stderr.splitlines()  # behind the progress of the download
        assert (refused.returncode, last.partition(name)[0]) == (2, "error: "), refused.stderr
        assert words in last


_HIGGS = "bosonai/higgs-audio-v2-generation-3B-base"


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        (f"serve {_HIGGS}", f"{_HIGGS}: the model can't be loaded (not on this disk, and "),
        (f"evaluate {_HIGGS} --data t.txt -o e", f"{_HIGGS}: the model can't be loaded (not on this disk, and "),
        (
            f"clone {_HIGGS} --reference a.wav --text A. -o b.wav",
            f"{_HIGGS}: the model can't be loaded (not on this disk, and ",
        ),
        (
            "train language-lora data.path=t.txt model.name=a/b",
            "model.name: a/b: no tokenizer can be loaded (not on this disk, and ",
        ),
        ("speak hf:anna/voice Hello.", "hf:anna/voice: can't be downloaded (not on this disk, and "),
        ("checkpoints push base/voice hf:anna/voice", "hf:anna/voice: can't be pushed: "),
    ],
)
def test_a_hub_out_of_reach_is_told_at_once_by_every_command(
    command: str,
    begins: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not that there is no such run, and not after the tries of the hub's own library, each with a line."""
    if command.startswith(("clone", "train", "serve", "evaluate")) and missing("transformers", "peft"):
        pytest.skip("needs transformers, peft: pip install 'phonate[language]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("hello you there\n" * 9)
    soundfile.write(tmp_path / "a.wav", voiced_tone(6.0, 120.0, (700.0,), 0), SAMPLE_RATE)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert "Retry" not in told
    assert told.splitlines()[-1].startswith(f"error: {begins}127.0.0.1:9 can't be reached (Connection refused); check")


def test_a_word_that_is_no_run_is_answered_with_the_model_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"give the folder of a run of cloning, or {_HIGGS}, which needs no training"):
        load("nothing", "cloning")


def test_a_damaged_download_is_refused(hub: Hub, phonate: Phonate) -> None:
    assert phonate("checkpoints", "push", "base/voice", "hf:cleo/voice").returncode == 0
    weights = bytearray(hub.models["cleo/voice"]["weights.safetensors"])
    weights[-1] ^= 1
    hub.models["cleo/voice"]["weights.safetensors"] = bytes(weights)
    refused = phonate("speak", "hf:cleo/voice", "Good morning.")
    assert refused.returncode != 0
    assert "weights.safetensors" in refused.stderr


def test_a_card_says_what_the_voice_learnt_from_before(tmp_path: Path) -> None:
    """Its run began from the packaged voice: the recordings and the licence of that are in the card."""
    (tmp_path / "recipe.yaml").write_text("task: speech\ndata: {path: mine}\ntraining: {init_from: base/voice}\n")
    sources = sources_of_start(tmp_path)
    assert "dataset-voice-kathleen" in sources["recordings of base/voice, from which training began"]
    assert "licence of base/voice, from which training began" in sources
    (tmp_path / "recipe.yaml").write_text("task: speech\ndata: {path: mine}\ntraining: {init_from: null}\n")
    assert sources_of_start(tmp_path) == {}
