"""Adapters of voice cloning: written for peft, merged for transformers, quantised, and what is measured of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cloning_runs import settings, write_all

pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[cloning]'")
pytest.importorskip("peft", reason="needs peft: pip install 'phonate[cloning]'")

import phonate
from phonate.cli import main
from phonate.tasks.cloning import export
from phonate.tasks.cloning.network.loading import load_base
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.tasks.cloning.speaking.opening import trained_network
from phonate.training.checkpoints import best_or_latest
from phonate.training.checkpoints.trained import open_trained
from phonate.workflows.train import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a model and a codec."""
    return write_all(tmp_path_factory.mktemp("cloning"))


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return train("voice-cloning", settings(folder), output=folder / "run").run.path


@torch.no_grad()
def adapted(run: Path) -> torch.Tensor:
    """Logits of the run's model, adapters beside its weights."""
    trained = open_trained(best_or_latest(run), "cloning", CloningRecipe)
    return export.probed(trained_network(trained, torch.device("cpu")).model.eval())


def test_adapters_load_in_plain_peft(run: Path, folder: Path, tmp_path: Path) -> None:
    assert main(["checkpoints", "export", str(run), "--format", "peft", "-o", str(tmp_path / "adapter")]) == 0
    from peft import PeftModel
    from transformers import HiggsAudioV2ForConditionalGeneration

    load: Any = HiggsAudioV2ForConditionalGeneration
    base = load.from_pretrained(folder / "model", use_text_head=True)
    plain = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        assert torch.allclose(export.probed(plain), adapted(run), atol=1e-5)
        unadapted = load_base(str(folder / "model")).eval()
        assert not torch.allclose(export.probed(unadapted), adapted(run), atol=1e-3)


def test_a_merged_model_is_one_of_transformers_and_speaks_the_same(
    run: Path, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    command = ["checkpoints", "merge", str(run), "-o", str(tmp_path / "merged"), "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["merge_difference"] <= 1e-4 * max(1.0, report["largest_logit"])
    assert (report["stored_agreement"], report["quantization"]) == (1.0, None)
    assert report["base"] == str(folder / "model")
    from transformers import HiggsAudioV2ForConditionalGeneration

    load: Any = HiggsAudioV2ForConditionalGeneration
    merged, found = load.from_pretrained(tmp_path / "merged", use_text_head=True, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    with torch.no_grad():
        assert torch.allclose(export.probed(merged.eval()), adapted(run), atol=1e-4)
    names = load_file(tmp_path / "merged" / "model.safetensors").keys()
    assert "text_lm_head.weight" in names  # transformers drops it without a word unless it is asked for
    assert not any("lora" in name for name in names)
    reference = np.sin(np.arange(24000) / 20).astype(np.float32)
    said = [
        phonate.load(source, "cloning").clone(reference, "jumps", seed=3, max_seconds=1.0)
        for source in (run, tmp_path / "merged")
    ]
    assert np.array_equal(*said)
    assert main(command) == 2  # the folder exists
    assert "already exists; name a new folder" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.1), ("int4", 0.3)])
def test_a_quantised_model_is_smaller_and_its_error_is_measured(
    kind: Any, most: float, folder: Path, run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    source = best_or_latest(run)
    report = export.merge(export.MergeRequest(source, tmp_path / "merged", quantization=kind))
    plain = export.merge(export.MergeRequest(source, tmp_path / "plain"))
    assert report.bytes < plain.bytes
    assert plain.stored_error < 1e-4 < report.stored_error < most
    assert json.loads((tmp_path / "merged" / "merge.json").read_text())["quantization"] == kind
    loaded = load_base(str(tmp_path / "merged")).eval()
    name = {"int8": "Linear8bitLt", "int4": "Linear4bit"}[kind]
    assert any(type(module).__name__ == name for module in loaded.modules())
    with torch.no_grad():
        error = (export.probed(loaded) - adapted(run)).norm() / adapted(run).norm()
    assert float(error) == pytest.approx(report.stored_error, rel=0.05)
