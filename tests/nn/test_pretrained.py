"""Pretrained models: adapters where they are wanted, the weights a checkpoint holds, and the base they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from installed import missing

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[language]'", allow_module_level=True)

import torch
from torch import nn

from phonate.config.errors import CheckpointError, InputError
from phonate.nn.pretrained import (
    add_adapters,
    base_fingerprint,
    copy_tensors,
    from_config,
    load_pretrained,
    merge_adapters,
    pretrained_file,
    saved_tensors,
)
from phonate.nn.settings import LoRASettings

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
IDS = torch.arange(12)[None]


def base(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return from_config(CONFIG)


def randomised(model: nn.Module) -> nn.Module:
    """`model` with trained-looking adapters: fresh ones change nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits
    return found


KINDS = {"lora": {}, "rslora": {"rslora": True}, "dora": {"dora": True}, "both": {"rslora": True, "dora": True}}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_adapters_start_neutral_are_saved_alone_and_merge(options: dict[str, bool]) -> None:
    settings = LoRASettings(rank=4, dropout=0.0, **options)
    fresh = add_adapters(base(), settings).eval()
    assert torch.allclose(logits(fresh), logits(base()), atol=1e-6)
    trained = randomised(fresh)
    expected = logits(trained)
    assert not torch.allclose(expected, logits(base()), atol=1e-2)
    saved = {name: tensor.clone() for name, tensor in saved_tensors(trained, trained_only=True).items()}
    assert saved
    assert all("lora_" in name for name in saved)
    again = add_adapters(base(), settings).eval()
    copy_tensors(saved_tensors(again, trained_only=True), saved)
    assert torch.equal(logits(again), expected)
    assert torch.allclose(logits(merge_adapters(again)), expected, atol=1e-5)


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank() -> None:
    plain, stabilised = (
        randomised(add_adapters(base(), LoRASettings(rank=4, alpha=8.0, dropout=0.0, targets=("q_proj",), rslora=on)))
        for on in (False, True)
    )
    for model, scale in ((plain, 2.0), (stabilised, 4.0)):
        layer: Any = next(module for name, module in model.named_modules() if name.endswith("q_proj"))
        assert layer.scaling["default"] == scale


def test_targets_are_ends_of_names() -> None:
    model = add_adapters(base(), LoRASettings(rank=4, targets=("self_attn.q_proj", "layers.1.mlp.up_proj")))
    adapted = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    prefix = "base_model.model.model.layers"
    assert adapted == {f"{prefix}.0.self_attn.q_proj", f"{prefix}.1.self_attn.q_proj", f"{prefix}.1.mlp.up_proj"}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_prj",), "no linear layer's name ends in q_prj; did you mean q_proj?"),
        (("q_proj", "mlp.q_proj"), "ends in mlp.q_proj; did you mean mlp.up_proj?"),
        (("embed_tokens",), "ends in embed_tokens; "),
        (("_proj",), "ends in _proj; "),
    ],
)
def test_a_target_without_a_layer_is_refused(targets: tuple[str, ...], message: str) -> None:
    """Also beside others that have one."""
    with pytest.raises(InputError) as caught:
        add_adapters(base(), LoRASettings(targets=targets))
    assert message in str(caught.value)


def test_tied_weights_are_saved_once() -> None:
    model = base()
    saved = saved_tensors(model, trained_only=False)
    assert "model.embed_tokens.weight" in saved
    assert "lm_head.weight" not in saved
    model.requires_grad_(False)
    model.get_submodule("model.norm").requires_grad_(True)
    assert saved_tensors(model, trained_only=True).keys() == {"model.norm.weight"}


def test_tensors_that_do_not_fit_are_refused() -> None:
    wanted = {"a": torch.zeros(2), "b": torch.zeros(3)}
    for tensors, message in (
        ({"a": torch.ones(2)}, "checkpoint has no b"),
        ({"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)}, "model has no c"),
        ({"a": torch.ones(2), "b": torch.ones(4)}, r"b is \(4,\) .*\(3,\)"),
    ):
        with pytest.raises(CheckpointError, match=message):
            copy_tensors(wanted, tensors)
    copy_tensors(wanted, {"a": torch.ones(2), "b": torch.ones(3)})
    assert wanted["b"].tolist() == [1.0, 1.0, 1.0]


def test_the_fingerprint_is_of_the_frozen_weights() -> None:
    settings = LoRASettings(rank=4)
    fresh = add_adapters(base(), settings)
    found = base_fingerprint(fresh)
    assert base_fingerprint(randomised(fresh)) == found
    assert base_fingerprint(add_adapters(base(), settings)) == found
    assert base_fingerprint(add_adapters(base(seed=1), settings)) != found
    scaled = base()
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter *= 1.5
    assert base_fingerprint(add_adapters(scaled, settings)) != found


def test_models_are_loaded_in_the_precision_that_is_wanted(tmp_path: Path) -> None:
    model: Any = base().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    found = {
        dtype: next(load_pretrained(str(tmp_path / "model"), dtype).parameters()).dtype
        for dtype in ("auto", "fp32", "fp16", "bf16")
    }
    assert found == {
        "auto": torch.bfloat16,
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
    }


def test_another_class_of_transformers_can_load(tmp_path: Path) -> None:
    from transformers import LlamaModel

    model: Any = base()
    model.save_pretrained(tmp_path / "model")
    loaded = load_pretrained(str(tmp_path / "model"), loader=LlamaModel)
    assert isinstance(loaded, LlamaModel)


def test_without_a_network_a_hub_name_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^model\.name: no/such-model: ") as caught:
        load_pretrained("no/such-model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lacks", [None, "generation_config.json", "b.safetensors"])
def test_a_model_that_was_downloaded_is_loaded_without_the_hub(
    lacks: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    model = tmp_path / "models--anna--small"
    index = json.dumps({"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}})
    files = {"config.json": "{}", "a.safetensors": "", "b.safetensors": "", "model.safetensors.index.json": index}
    for name, content in files.items():
        if name != lacks:
            (path := model / "snapshots/abc" / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    (model / "refs").mkdir()
    (model / "refs/main").write_text("abc")
    if lacks != "generation_config.json":  # which the hub has said it has not
        (path := model / ".no_exist/abc/generation_config.json").parent.mkdir(parents=True)
        path.touch()
        assert pretrained_file("anna/small", "generation_config.json") is None
    assert pretrained_file("anna/small", "config.json") == model / "snapshots/abc/config.json"
    asked: list[bool] = []

    class Loader:
        @staticmethod
        def from_pretrained(name: str, local_files_only: bool = False, **_: object) -> tuple[nn.Module, dict[str, Any]]:
            asked.append(not local_files_only)
            return nn.Linear(1, 1), {"missing_keys": [], "mismatched_keys": []}

    load_pretrained("anna/small", loader=Loader)
    assert asked == [lacks is not None]


def test_modules_are_trained_whole_and_in_full_precision() -> None:
    """Beside a base of 16 bits, and merged like adapters."""
    untied: Any = from_config({**CONFIG, "tie_word_embeddings": False})
    settings = LoRASettings(rank=4, dropout=0.0, targets=("q_proj",), modules_to_save=("lm_head", "embed_tokens"))
    model = randomised(add_adapters(untied.to(torch.bfloat16), settings))
    saved = saved_tensors(model, trained_only=True)
    whole = {name for name in saved if "lora_" not in name}
    assert {name.split(".modules_to_save")[0].rpartition(".")[2] for name in whole} == {"lm_head", "embed_tokens"}
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    expected = logits(model)
    assert expected.dtype == torch.bfloat16
    merged = merge_adapters(model)
    assert not [name for name, _ in merged.named_parameters() if "modules_to_save" in name]
    assert torch.allclose(logits(merged).float(), expected.float(), atol=0.05)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lm_hed", r"lm_hed; did you mean lm_head\?"),
        ("head", r" head; did you mean lm_head\?"),
        ("input_layernorm", "2 modules, such as model.layers.0.input_layernorm"),
        ("lm_head", "lm_head .*model.embed_tokens.weight"),
    ],
)
def test_a_module_to_save_is_one_module_of_its_own(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"model.lora.modules_to_save: .*{message}"):
        add_adapters(base(), LoRASettings(modules_to_save=(name,)))


def test_biases_are_trained_where_there_are_some() -> None:
    biased = {**CONFIG, "attention_bias": True}
    trained = {}
    for bias in ("all", "lora_only"):
        model = add_adapters(from_config(biased), LoRASettings(targets=("q_proj", "up_proj"), bias=bias))
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        trained[bias] = {name.split("self_attn.")[1] for name in names if name.endswith("bias")}
    assert trained["lora_only"] == {"q_proj.base_layer.bias"}
    assert trained["all"] == {"q_proj.base_layer.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}
    for model, message in (
        (from_config(CONFIG), "no layer"),
        (from_config(biased).to(torch.bfloat16), "bfloat16"),
    ):
        with pytest.raises(InputError, match=f"model.lora.bias: all; .*{message}"):
            add_adapters(model, LoRASettings(bias="all"))
