"""Adapters of voice cloning: written for peft, merged for transformers, quantised, and what is measured of it."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

from cloning_runs import SYSTEM, settings, write_all
from higgs import small_model_folder
from installed import missing

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[cloning]'", allow_module_level=True)

import phonate
from phonate.cli import main
from phonate.tasks.cloning import export
from phonate.tasks.cloning.inference import trained_network
from phonate.tasks.cloning.model import load_base
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.training.checkpoints import best_or_latest
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Reference
from phonate.workflows.train import train

TONE = np.sin(np.arange(24000) / 20).astype(np.float32)


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
    said = [
        phonate.load(source, "cloning").clone(TONE, "jumps", seed=3, max_seconds=1.0)
        for source in (run, tmp_path / "merged")
    ]
    assert np.array_equal(*said)
    assert main(command) == 2  # the folder exists
    assert "already exists; name a new folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def merged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], tuple[Path, export.MergeReport]]:
    """A function that merges the run, quantised as it is told, and returns the folder and the report."""

    @functools.cache
    def merge(kind: Any) -> tuple[Path, export.MergeReport]:
        folder = tmp_path_factory.mktemp("merged") / str(kind)
        return folder, export.merge(export.MergeRequest(best_or_latest(run), folder, quantization=kind))

    return merge


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.1), ("int4", 0.3)])
def test_a_quantised_model_is_smaller_and_its_error_is_measured(
    kind: Any, most: float, merged: Callable[[Any], tuple[Path, export.MergeReport]], run: Path
) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    (folder, report), (_, plain) = merged(kind), merged(None)
    assert report.bytes < plain.bytes
    assert plain.stored_error < 1e-4 < report.stored_error < most
    assert json.loads((folder / "merge.json").read_text())["quantization"] == kind
    loaded = load_base(str(folder)).eval()
    name = {"int8": "Linear8bitLt", "int4": "Linear4bit"}[kind]
    assert any(type(module).__name__ == name for module in loaded.modules())
    with torch.no_grad():
        error = (export.probed(loaded) - adapted(run)).norm() / adapted(run).norm()
    assert float(error) == pytest.approx(report.stored_error, rel=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_no_file_that_is_mapped_is_moved_or_removed(
    kind: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses both."""
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    for name, function in (("rename", Path.rename), ("unlink", Path.unlink)):

        def checked(path: Path, *others: Any, use: Any = function, **options: Any) -> Any:
            assert str(path) not in Path("/proc/self/maps").read_text()
            return use(path, *others, **options)

        monkeypatch.setattr(Path, name, checked)
    export.merge(export.MergeRequest(best_or_latest(run), tmp_path / "merged", quantization=kind))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_what_is_not_quantised_has_the_precision_that_is_asked_for(
    kind: Any, merged: Callable[[Any], tuple[Path, export.MergeReport]]
) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    folder, _ = merged(kind)
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        higgs = phonate.HiggsAudioInference(folder, device="cpu", torch_dtype=name)
        kept = {parameter.dtype for parameter in higgs.cloner.model.parameters() if parameter.is_floating_point()}
        assert kept == {dtype}
        assert any(not parameter.is_floating_point() for parameter in higgs.cloner.model.parameters())
        assert np.abs(higgs.generate_speech(TONE, "jumps", max_seconds=0.4)).max() > 0


@pytest.fixture(scope="module")
def moved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, whose base was moved from `gone` to `base`; `other` has other weights."""
    place = tmp_path_factory.mktemp("moved")
    shutil.copytree(folder / "model", place / "gone")
    changes = {"model.name": str(place / "gone"), "training.max_steps": 2, "training.validation.interval": 2}
    train("voice-cloning", settings(folder, **changes), output=place / "run")
    (place / "gone").rename(place / "base")
    small_model_folder(place / "other", seed=1)
    return place


def test_a_base_that_was_moved_is_named(moved: Path, tmp_path: Path, capsys: Any) -> None:
    there, source = str(moved / "base"), str(moved / "run")
    merge = ["checkpoints", "merge", source, "-o", str(tmp_path / "merged")]
    assert main(merge) == 2
    message = capsys.readouterr().err
    assert f"was trained on the model {moved / 'gone'}, which is not there" in message
    assert "with --base" in message
    assert main([*merge, "--base", str(moved / "other")]) != 0
    assert f"belongs to other weights than {moved / 'other'}" in capsys.readouterr().err
    assert main([*merge, "--base", there]) == 0
    assert json.loads((tmp_path / "merged" / "merge.json").read_text())["base"] == there
    options: dict[str, Any] = {"seed": 3, "max_seconds": 0.4}
    expected = phonate.load(source, "cloning", base=there).clone(TONE, "jumps", **options)
    merged = phonate.load(tmp_path / "merged", "cloning")
    assert np.array_equal(merged.clone(TONE, "jumps", **options), expected)
    higgs = phonate.HiggsAudioInference(source, device="cpu", torch_dtype="float32", base_model=there)
    assert np.array_equal(higgs.cloner.clone(TONE, "jumps", **options), expected)
    adapter = ["checkpoints", "export", source, "--format", "peft", "-o", str(tmp_path / "adapter"), "--base", there]
    assert main(adapter) == 0
    capsys.readouterr()
    reference, out = str(tmp_path / "x.wav"), str(tmp_path / "a.wav")
    soundfile.write(reference, TONE, 24000)
    speak = ["clone", str(tmp_path / "merged"), "--reference", reference, "--text", "a", "-o", out]
    assert main([*speak, "--base", there]) == 2
    assert "is a whole model, not adapters to a base; leave it out" in capsys.readouterr().err


PLAIN = """
import sys
import numpy as np
from transformers import AutoProcessor, HiggsAudioV2ForConditionalGeneration

folder, tone, out = sys.argv[1:4]
processor = AutoProcessor.from_pretrained(folder)
text = lambda said: [{"type": "text", "text": said}]
turns = [
    {"role": "system", "content": sys.argv[4]},
    {"role": "user", "content": text("what it says")},
    {"role": "assistant", "content": [{"type": "audio", "audio": np.load(tone)}]},
    {"role": "user", "content": text("jumps over")},
]
inputs = processor.apply_chat_template(
    [turns],
    add_generation_prompt=True,
    tokenize=True,
    return_dict=True,
    processor_kwargs={"sampling_rate": 24000, "return_tensors": "pt"},
)
model = HiggsAudioV2ForConditionalGeneration.from_pretrained(folder)
made = model.generate(**inputs, max_new_tokens=20, do_sample=False)
np.savez(out, ids=inputs["input_ids"][0], frames=inputs["audio_input_ids"][0], made=made[0])
"""
TORCHAUDIO = """
from types import SimpleNamespace
from phonate.audio.augmentation import sinc_resample
functional = SimpleNamespace(resample=sinc_resample)
"""


@pytest.mark.slow
def test_plain_transformers_prompts_a_merged_model(run: Path, tmp_path: Path) -> None:
    """With `AutoProcessor`, from the merged folder alone. The codec of transformers resamples by torchaudio, in whose
    place stands a package with the same filter."""
    assert main(["checkpoints", "merge", str(run), "-o", str(tmp_path / "merged")]) == 0
    package, facts = tmp_path / "torchaudio", tmp_path / "torchaudio-2.11.0.dist-info"
    package.mkdir()
    facts.mkdir()
    (package / "__init__.py").write_text(TORCHAUDIO)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.11.0\n")
    np.save(tmp_path / "tone.npy", TONE)
    files = [str(tmp_path / name) for name in ("merged", "tone.npy", "out.npz")]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", PLAIN, *files, SYSTEM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = np.load(tmp_path / "out.npz")
    cloner = phonate.load(tmp_path / "merged", "cloning")
    assert cloner.system == SYSTEM
    (piece,) = cloner.pieces(Reference(TONE, 24000, "what it says"), "jumps over", 1.0)
    np.testing.assert_array_equal(found["ids"], piece.prompt.input_ids)
    np.testing.assert_array_equal(found["frames"], piece.prompt.frames)
    assert found["made"].shape == (len(piece.prompt.frames) + 20, 8)
