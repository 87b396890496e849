"""The network that clones voices: loading, adapters, and its forward pass beside transformers' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from installed import missing

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[cloning]'", allow_module_level=True)

import torch
from cloning_networks import as_transformers_takes_it, make_batch, network_settings
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from higgs import SPECIALS, small_model_folder, small_tokenizer
from phonate.config.errors import InputError
from phonate.nn.pretrained import copy_tensors, merge_adapters, saved_tensors
from phonate.tasks.cloning import model as loading
from phonate.tasks.cloning.model import load_base, load_network
from phonate.tasks.cloning.network import CloningNetwork, WhisperProjector, resolved_targets, whisper_features
from phonate.tasks.cloning.settings import CloningLoRA

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model_folder(tmp_path_factory.mktemp("higgs") / "model")


@pytest.fixture(scope="module")
def base(folder: Path) -> Any:
    return load_base(str(folder))


@pytest.fixture(scope="module")
def full_size() -> Any:
    """The released model's sizes, without memory."""
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    with torch.device("meta"):
        return HiggsAudioV2ForConditionalGeneration(HiggsAudioV2Config(codebook_size=1026), use_text_head=True)


# The forward pass


@torch.no_grad()
def test_forward_is_that_of_transformers_to_the_bit(base: Any) -> None:
    batch = make_batch(base.config)
    found = CloningNetwork(base)(**batch)
    theirs = as_transformers_takes_it(base.config, batch)
    logits = base(**theirs, use_cache=False).logits.flatten(0, 1)
    hidden = base.model(**theirs, use_cache=False).last_hidden_state.flatten(0, 1)
    assert torch.equal(found.hidden, hidden)
    assert torch.equal(found.audio_logits.flatten(1), logits[batch["audio_positions"]])
    assert torch.equal(found.text_logits, base.text_lm_head(hidden[batch["text_positions"]]))
    assert found.audio_logits.shape == (len(batch["audio_positions"]), 8, 1026)


@torch.no_grad()
@pytest.mark.parametrize("side_by_side", [False, True])
def test_packed_samples_do_not_see_each_other(base: Any, side_by_side: bool) -> None:
    """Changing one sample of a row changes nothing of the next one; nor does taking it away."""
    network = CloningNetwork(base)
    first, second = (7, (12, 15)), (5, (9,))
    batch = make_batch(base.config, ((first, second),), side_by_side=side_by_side)
    length = int(batch["position_ids"][0].diff().argmin()) + 1
    before = network(**batch).hidden
    changed = dict(batch, input_ids=batch["input_ids"].clone(), frames=batch["frames"].clone())
    changed["input_ids"][0, 2] += 1
    changed["frames"][3] += 1
    after = network(**changed).hidden
    assert not torch.allclose(before[:length], after[:length], atol=1e-2)
    assert torch.equal(before[length:], after[length:])
    in_second = batch["frame_positions"] >= length
    alone = network(
        input_ids=batch["input_ids"][:, length:],
        position_ids=batch["position_ids"][:, length:],
        frames=batch["frames"][in_second],
        frame_positions=batch["frame_positions"][in_second] - length,
        other_positions=batch["other_positions"][batch["other_positions"] >= length] - length,
        text_positions=torch.tensor([0]),
        audio_positions=torch.tensor([0]),
    )
    assert torch.allclose(alone.hidden, before[length:], atol=1e-5)
    # what a mask without sequences would do
    whole = {"position_ids": torch.arange(before.shape[0])[None], "sequences": None, "places": None}
    crossed = network(**changed | whole).hidden
    assert not torch.allclose(crossed[length:], before[length:], atol=1e-2)


@pytest.mark.parametrize("side_by_side", [False, True])
def test_last_layer_runs_where_labels_are(network: CloningNetwork, side_by_side: bool) -> None:
    """Logits and gradients are those of a last layer that runs everywhere."""
    batch = make_batch(network.config, side_by_side=side_by_side)
    batch["text_positions"] = torch.cat([batch["text_positions"], batch["frame_positions"][-1:]])  # a frame is read
    labelled = torch.cat([batch["text_positions"], batch["audio_positions"]])
    read = {
        "read_frames": batch["frame_positions"][torch.isin(batch["frame_positions"], labelled)],
        "read_others": batch["other_positions"][torch.isin(batch["other_positions"], labelled)],
    }
    assert 0 < sum(map(len, read.values())) < batch["input_ids"].numel()
    with torch.no_grad():
        everywhere, trimmed = network(**batch), network(**batch, **read)
    assert trimmed.hidden is None
    torch.testing.assert_close(trimmed.audio_logits, everywhere.audio_logits)
    torch.testing.assert_close(trimmed.text_logits, everywhere.text_logits)
    expected, found = _gradients(network, batch), _gradients(network, batch | read)
    assert expected.keys() == found.keys()
    _assert_close(found, expected)
    network.checkpointing = True
    again = _gradients(network, batch | read)
    network.checkpointing = False
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_attention_side_by_side_is_that_with_a_mask(network: CloningNetwork) -> None:
    masked, split = make_batch(network.config), make_batch(network.config, side_by_side=True)
    real = (masked["input_ids"].flatten() != network.config.pad_token_id).nonzero()[:, 0]
    assert len(real) < masked["input_ids"].numel()
    with torch.no_grad():
        difference = network(**masked).hidden[real] - network(**split).hidden[real]
    assert float(difference.abs().max()) < 1e-5
    expected, found = _gradients(network, masked), _gradients(network, split)
    _assert_close(found, expected)
    network.checkpointing = True
    again = _gradients(network, split)
    network.checkpointing = False
    assert all(torch.equal(found[name], again[name]) for name in found)
    # a layout of other sequences is noticed
    with torch.no_grad():
        wrong = network(**dict(split, sequences=split["sequences"].roll(1, 0))).hidden[real]
        assert not torch.allclose(wrong, network(**masked).hidden[real], atol=1e-2)


def _assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Up to rounding, relative to a parameter's largest gradient: small ones may be sums of large ones that cancel."""
    for name, one in expected.items():
        assert float((found[name] - one).abs().max()) < 2e-5 * float(one.abs().max()), name


def _gradients(network: CloningNetwork, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    network.zero_grad()
    found = network(**batch)
    (found.audio_logits.float().logsumexp(-1).sum() + found.text_logits.float().logsumexp(-1).sum()).backward()
    return {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}


@pytest.fixture(scope="module")
def network(folder: Path) -> CloningNetwork:
    """With adapters that change something."""
    made = load_network(network_settings(folder), CPU)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return made


def test_gradients_are_those_of_transformers_and_the_same_with_checkpointing(
    network: CloningNetwork, base: Any
) -> None:
    batch = make_batch(network.config)
    plain = _gradients(network, batch)
    assert set(plain) == {name for name, one in network.named_parameters() if one.requires_grad}
    assert all("lora_" in name for name in plain)
    network.checkpointing = True
    again = _gradients(network, batch)
    network.checkpointing = False
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    network.zero_grad()
    hidden = network.base.model(**as_transformers_takes_it(base.config, batch), use_cache=False).last_hidden_state
    hidden = hidden.flatten(0, 1)
    audio = network.base.audio_lm_head(hidden[batch["audio_positions"]]).unflatten(-1, (8, 1026))
    text = network.base.text_lm_head(hidden[batch["text_positions"]])
    (audio.logsumexp(-1).sum() + text.logsumexp(-1).sum()).backward()
    for name, parameter in network.named_parameters():
        if name in plain:
            # sums of large terms, whose rounding depends on the weights that were drawn
            rounding = 1e-5 * float(plain[name].abs().max())
            assert torch.allclose(parameter.grad, plain[name], rtol=1e-4, atol=rounding), name


def test_the_loss_of_text_is_the_same_in_blocks_of_logits(
    network: CloningNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value and gradients, without more logits at once than a block has."""
    batch = make_batch(network.config)
    batch["text_positions"] = torch.arange(7)
    labels = torch.arange(7) % network.config.vocab_size
    network.zero_grad()
    whole = network(**batch, text_labels=labels, label_smoothing=0.1).text_loss
    whole.backward()
    plain = {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}
    logits = network(**batch).text_logits.float()
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(whole, expected)
    monkeypatch.setattr("phonate.tasks.cloning.network.BLOCK_LOGITS", 3 * network.config.vocab_size)
    rows = []
    watch = network.base.text_lm_head.register_forward_hook(lambda module, given, made: rows.append(len(made)))
    network.zero_grad()
    found = network(**batch, text_labels=labels, label_smoothing=0.1)
    assert found.text_logits is None
    found.text_loss.backward()
    watch.remove()
    assert sorted(rows) == [1, 1, 3, 3, 3, 3]  # each again in the backward pass
    torch.testing.assert_close(found.text_loss, whole)
    for name, parameter in network.named_parameters():
        if name in plain:
            rounding = 2e-5 * float(plain[name].abs().max())
            torch.testing.assert_close(parameter.grad, plain[name], rtol=0.0, atol=rounding)


@pytest.mark.slow  # imports the compiler
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_forward_pass_is_one_graph(folder: Path, dropout: float, side_by_side: bool) -> None:
    """For torch.compile; transformers' breaks at every boolean mask."""
    network = load_network(network_settings(folder, lora=CloningLoRA(rank=4, dropout=dropout)), CPU).train()
    unpadded = (((7, (12, 15)), (5, (9,))),)
    batch = make_batch(network.config, unpadded, side_by_side=side_by_side)
    if side_by_side:
        starts = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
        batch["cu_seqlens"] = torch.tensor([*starts, batch["input_ids"].numel()], dtype=torch.int32)
    explain: Any = torch._dynamo.explain
    try:
        ours = explain(network)(**batch)
        assert (ours.graph_count, ours.graph_break_count) == (1, 0)
    finally:
        torch._dynamo.reset()


def test_bf16_autocast_of_the_adapted_model(network: CloningNetwork) -> None:
    batch = make_batch(network.config, side_by_side=True)
    exact = _gradients(network, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = _gradients(network, batch)
    difference = sum(float((half[name] - exact[name]).norm() ** 2) for name in exact)
    assert difference < (0.05**2) * sum(float(one.norm() ** 2) for one in exact.values())


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_on_16_bit_weights_work_with_and_without_autocast(folder: Path, dora: bool) -> None:
    """In either order: what autocast leaves out must be there again without it, also when a layer is recomputed."""
    settings = network_settings(folder, dtype="bf16", lora=CloningLoRA(rank=2, dropout=0.0, dora=dora))
    made = load_network(settings, CPU)
    batch = make_batch(made.config, side_by_side=True)
    found = []
    for on, checkpointing in ((True, False), (False, False), (True, True), (False, True)):
        made.checkpointing = checkpointing
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            found.append(_gradients(made, batch))
        with torch.no_grad():
            made.base(**as_transformers_takes_it(made.config, make_batch(made.config)), use_cache=False)
    for again in found[1:]:
        difference = sum(float((again[name] - one).norm() ** 2) for name, one in found[0].items())
        assert difference < (0.1**2) * sum(float(one.norm() ** 2) for one in found[0].values())


# Loading


def test_codebooks_without_room_for_begin_and_end_are_refused(folder: Path, tmp_path: Path) -> None:
    """transformers' default; BOS of one codebook would then be code 0 of the next."""
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"codebook_size": 1024}))
    with pytest.raises(InputError, match=r"codebook_size 1024 in .*config\.json.* 1026$"):
        load_base(str(tmp_path / "model"))


def test_the_text_head_is_kept_and_its_loss_is_an_error(folder: Path, tmp_path: Path, base: Any) -> None:
    from transformers import HiggsAudioV2ForConditionalGeneration

    assert torch.equal(base.text_lm_head.weight, load_file(folder / "model.safetensors")["text_lm_head.weight"])
    lost: Any = HiggsAudioV2ForConditionalGeneration.from_pretrained(folder)  # what transformers does unasked
    assert lost.text_lm_head is None
    lost.save_pretrained(tmp_path / "lost")
    with pytest.raises(InputError, match=r"lost: .*text_lm_head\.weight.*set model\.text_head to false"):
        load_base(str(tmp_path / "lost"), text_head=True)
    without = load_base(str(tmp_path / "lost"))
    batch = make_batch(base.config)
    with torch.no_grad():
        found = CloningNetwork(without)(**batch)
    assert found.text_logits is None
    base.save_pretrained(tmp_path / "kept")
    assert load_base(str(tmp_path / "kept"), text_head=True).text_lm_head is not None


def test_the_generation_config_is_carried(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model/generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_from_model_config": True, "temperature": 0.7}))
    found = load_base(str(tmp_path / "model")).generation_config
    assert (found.ras_win_len, found.ras_win_max_num_repeat, found.temperature) == (7, 2, 0.7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda at: (at / "config.json").unlink(), "no config.json here"),
        (lambda at: (at / "config.json").write_text("{"), "config.json .*JSON"),
        (lambda at: (at / "config.json").write_text('{"model_type": "llama"}'), "type llama"),
        (lambda at: (at / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda at: (at / "model.safetensors").write_bytes(b"12345678"), "model.safetensors can't be read"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_damaged_folders_are_one_line(folder: Path, tmp_path: Path, change: Any, message: str) -> None:
    shutil.copytree(folder, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(InputError, match=message) as caught:
        load_base(str(tmp_path / "model"))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"model.name: {tmp_path}/model: ")


def test_without_a_network_a_hub_name_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^model\.name: no/such-model: ") as caught:
        load_base("no/such-model")
    assert "\n" not in str(caught.value)


# The original release

_ORIGINAL = (
    ("model.embed_audio_tokens.embed_audio_tokens.", "audio_codebook_embeddings."),
    ("audio_lm_head.", "audio_decoder_proj.audio_lm_head."),
    ("text_lm_head.", "audio_decoder_proj.text_lm_head."),
    ("model.", ""),
)


def _original_name(name: str) -> str:
    theirs, ours = next((theirs, ours) for theirs, ours in _ORIGINAL if name.startswith(theirs))
    return ours + name.removeprefix(theirs)


def _original_config(config: Mapping[str, Any]) -> dict[str, Any]:
    text = {name: config[name] for name in loading._TEXT_VALUES if name in config}
    rope = dict(config["rope_parameters"])
    return {
        "model_type": "higgs_audio",
        "text_config": text | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope},
        "audio_adapter_type": "dual_ffn_fast_forward",
        "audio_dual_ffn_layers": list(range(config["num_hidden_layers"])),
        "audio_ffn_intermediate_size": config["intermediate_size"],
        "audio_decoder_proj_num_layers": 0,
        "audio_num_codebooks": config["num_codebooks"],
        "audio_codebook_size": config["codebook_size"] - 2,
        "audio_stream_bos_id": config["audio_stream_bos_id"],
        "audio_stream_eos_id": config["audio_stream_eos_id"],
        "skip_audio_tower": True,
    }


def _in_parts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Embeddings and heads as the release trained them: old rows frozen, new ones trained."""
    parts: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        kind = {"embed_tokens.weight": "embedding", "audio_decoder_proj.text_lm_head.weight": "linear"}.get(name)
        if kind is None:
            parts[name] = tensor
        else:
            owner = name.removesuffix("weight")
            parts[f"{owner}{kind}_frozen.weight"] = tensor[:300].clone()
            parts[f"{owner}{kind}_trainable.weight"] = tensor[300:].clone()
    return parts


@pytest.mark.parametrize("form", ["whole", "parts", "shards"])
def test_the_original_release_is_converted_to_the_bit(folder: Path, tmp_path: Path, base: Any, form: str) -> None:
    original = tmp_path / "original"
    original.mkdir()
    weights = {_original_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights |= {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    if form == "parts":
        weights = _in_parts(weights)
    if form == "shards":
        names = sorted(weights)
        shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for shard, inside in shards.items():
            save_file({name: weights[name] for name in inside}, original / shard)
        index = {"weight_map": {name: shard for shard, inside in shards.items() for name in inside}}
        (original / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(weights, original / "model.safetensors")
    config = _original_config(json.loads((folder / "config.json").read_text()))
    (original / "config.json").write_text(json.dumps(config))
    small_tokenizer().save_pretrained(original)
    found = load_base(str(original), text_head=True)
    differing = ("_name_or_path", "architectures")
    ours, theirs = ({**model.config.to_dict(), **dict.fromkeys(differing)} for model in (found, base))
    assert ours == theirs
    expected = base.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.state_dict().items())
    assert found.generation_config.ras_win_len == 7


def test_names_and_sizes_of_the_release_are_those_of_the_full_model(full_size: Any) -> None:
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    config = full_size.config.to_dict()
    names = {"<|begin_of_text|>": 1, "<|end_of_text|>": 128001, "<|eot_id|>": 128009, "<|audio_out_bos|>": 128013}
    names |= {"<|reserved_special_token_6|>": 128014, "<|AUDIO_OUT|>": 128016}
    values = loading.converted_config(_original_config(config), names)
    with torch.device("meta"):
        made = HiggsAudioV2ForConditionalGeneration(HiggsAudioV2Config(**values), use_text_head=True)
    theirs = {_original_name(name): tensor for name, tensor in full_size.state_dict().items()}
    assert theirs["audio_decoder_proj.audio_lm_head.weight"].shape == (8208, 3072)
    converted = loading.converted_weights(theirs)
    wanted = made.state_dict()
    assert {name: one.shape for name, one in converted.items()} == {name: one.shape for name, one in wanted.items()}
    assert made.config.to_dict() == config
    assert sum(one.numel() for one in made.parameters()) == pytest.approx(5.771e9, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio_adapter_type": "stack"}, "audio_adapter_type=stack"),
        ({"audio_dual_ffn_layers": [0]}, "audio_dual_ffn_layers="),
        ({"use_audio_out_self_attention": True}, "use_audio_out_self_attention=True"),
        ({"audio_num_codebooks": None, "text_config": {}}, "no text_config.hidden_size"),
    ],
)
def test_other_networks_of_the_release_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    config = _original_config(json.loads((folder / "config.json").read_text())) | changes
    with pytest.raises(InputError, match=message):
        loading.converted_config(config, dict.fromkeys(SPECIALS, 1))


def test_an_unknown_weight_of_the_release_is_refused() -> None:
    with pytest.raises(InputError, match=r"^audio_attn\.weight: "):
        loading.converted_weights({"audio_attn.weight": torch.ones(1)})


# Adapters


@pytest.mark.parametrize(
    ("mode", "rank", "millions"),
    [
        ("comprehensive", 16, 39.6),
        ("comprehensive", 32, 79.3),
        ("comprehensive", 64, 158.5),
        ("audio_focused", 16, 19.9),
        ("audio_focused", 32, 39.8),
        ("audio_focused", 64, 79.6),
        ("attention_only", 16, 9.2),
        ("attention_only", 32, 18.4),
        ("attention_only", 64, 36.7),
    ],
)
def test_adapters_of_the_full_model_have_the_expected_size(
    full_size: Any, mode: Any, rank: int, millions: float
) -> None:
    """Counted from the layers that peft matches: an adapter of a layer (in, out) has rank * (in + out) numbers."""
    targets = resolved_targets(full_size, CloningLoRA(mode=mode), whisper=False)
    layers = [
        module
        for name, module in full_size.named_modules()
        if isinstance(module, nn.Linear) and any(name == one or name.endswith(f".{one}") for one in targets)
    ]
    count = rank * sum(layer.in_features + layer.out_features for layer in layers)
    assert count / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize(("mode", "count"), [("comprehensive", 21), ("audio_focused", 11), ("attention_only", 8)])
def test_modes_adapt_the_layers_they_name(folder: Path, mode: Any, count: int) -> None:
    made = load_network(network_settings(folder, lora=CloningLoRA(mode=mode, rank=2)), CPU)
    adapted = {name for name, module in made.named_modules() if hasattr(module, "lora_A")}
    assert len(adapted) == count
    sizes = [made.get_submodule(name).base_layer for name in adapted]
    trained = sum(one.numel() for one in made.parameters() if one.requires_grad)
    assert trained == 2 * sum(layer.in_features + layer.out_features for layer in sizes)
    assert any(name.endswith("audio_lm_head") for name in adapted) == (mode != "attention_only")


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("self_attn.q_proj", "audio_head.projector.linear"), ["self_attn.q_proj", "audio_lm_head"]),
        (("audio_decoder_proj.audio_lm_head", "audio_lm_head"), ["audio_lm_head"]),
        (("audio_decoder_proj.text_lm_head", "mlp.up_proj"), ["text_lm_head", "mlp.up_proj"]),
    ],
)
def test_other_names_of_layers_are_understood(base: Any, targets: tuple[str, ...], expected: list[str]) -> None:
    assert resolved_targets(base, CloningLoRA(mode="custom", targets=targets), whisper=False) == expected


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_proj", "audio_head.linear"), "audio_head.linear; "),
        (("self_attn.q_prj",), r"self_attn.q_prj; did you mean self_attn.q_proj\?"),
        (("q_proj", "audio_encoder_proj.linear"), "set model.whisper.enabled to true"),
        (("embed_tokens",), "embed_tokens"),
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error(base: Any, targets: tuple[str, ...], message: str) -> None:
    """Also beside others that match, where peft says nothing."""
    with pytest.raises(InputError, match=message):
        resolved_targets(base, CloningLoRA(mode="custom", targets=targets), whisper=False)


def test_a_module_to_save_is_never_two_heads(folder: Path) -> None:
    """peft would take lm_head for both of them."""
    with pytest.raises(InputError, match=r"lm_head; did you mean audio_lm_head or text_lm_head\?"):
        load_network(network_settings(folder, lora=CloningLoRA(modules_to_save=("lm_head",))), CPU)
    lora = CloningLoRA(rank=2, modules_to_save=("audio_decoder_proj.audio_lm_head",))
    made = load_network(network_settings(folder, lora=lora, dtype="bf16"), CPU)
    whole = {name: one for name, one in saved_tensors(made, trained_only=True).items() if "lora_" not in name}
    assert [name.split(".modules_to_save")[0] for name in whole] == ["model.base_model.model.audio_lm_head"]
    assert next(iter(whole.values())).dtype == torch.float32
    gradients = _gradients(made, make_batch(made.config))
    assert all(float(one.norm()) > 0 for name, one in gradients.items() if "audio_lm_head" in name)


def test_modes_and_targets_exclude_each_other() -> None:
    with pytest.raises(InputError, match=r"custom .*targets"):
        CloningLoRA(mode="custom")
    with pytest.raises(InputError, match=r"targets .*comprehensive"):
        CloningLoRA(targets=("q_proj",))


def test_adapters_come_back_to_the_bit(network: CloningNetwork, folder: Path) -> None:
    saved = {name: one.clone() for name, one in saved_tensors(network, trained_only=True).items()}
    again = load_network(network_settings(folder), CPU)
    copy_tensors(saved_tensors(again, trained_only=True), saved)
    batch = make_batch(network.config)
    with torch.no_grad():
        assert torch.equal(again(**batch).hidden, network(**batch).hidden)


# Whisper


@pytest.mark.parametrize("frames", [1, 7, 25, 50])
def test_features_are_averaged_over_each_frame(frames: int) -> None:
    ramp = np.stack([np.arange(50), np.ones(50)], axis=1).astype(np.float32)
    encoder: Any = lambda waveform, rate: ramp  # noqa: E731
    found = whisper_features(encoder, np.zeros(16000, np.float32), 16000, frames)
    assert found.shape == (frames, 2)
    assert found.mean(0) == pytest.approx(ramp.mean(0), abs=0.5)
    assert found[:, 1].tolist() == [1.0] * frames
    if frames == 25:
        assert found[:, 0].tolist() == [2 * i + 0.5 for i in range(25)]


def test_the_projector_changes_nothing_at_first_and_learns(network: CloningNetwork) -> None:
    torch.manual_seed(0)
    width = network.config.hidden_size
    conditioned = CloningNetwork(network.model, WhisperProjector(24, width))
    batch = make_batch(network.config)
    heard = {"whisper_positions": batch["frame_positions"][:9], "whisper_features": torch.randn(9, 24)}
    with torch.no_grad():
        plain, same = network(**batch), conditioned(**batch, **heard)
    assert torch.equal(plain.hidden, same.hidden)
    assert torch.equal(plain.audio_logits, same.audio_logits)
    gradients = _gradients(conditioned, batch | heard)
    assert float(gradients["whisper_projector.gate"].abs()) > 0
    with torch.no_grad():
        conditioned.whisper_projector.gate += 0.5  # type: ignore[union-attr]
    assert not torch.allclose(plain.hidden, conditioned(**batch, **heard).hidden, atol=1e-2)
    assert "whisper_projector.linear.weight" in saved_tensors(conditioned, trained_only=True)


def test_the_model_that_speaks_can_be_wrapped_again(network: CloningNetwork) -> None:
    """Its layers have adapters, but it is not peft's wrapper."""
    assert CloningNetwork(network.base).base is network.base


# 4-bit weights, and merging


def test_adapters_on_4_bit_weights(folder: Path, base: Any) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    made = load_network(network_settings(folder, quantization="nf4", dtype="fp32"), CPU)
    kinds = {type(module).__name__ for module in made.base.model.layers.modules()}
    assert "Linear4bit" in kinds
    assert made.base.text_lm_head.weight.dtype == torch.float32  # heads keep their precision
    batch = make_batch(made.config)
    gradients = _gradients(made, batch)
    assert gradients
    assert all(torch.isfinite(one).all() for one in gradients.values())
    with torch.no_grad():
        found, exact = made(**batch).hidden, CloningNetwork(base)(**batch).hidden
    assert 0 < float((found - exact).norm() / exact.norm()) < 0.5


def _adapted(folder: Path, dtype: str) -> CloningNetwork:
    made = load_network(network_settings(folder, dtype=dtype), CPU).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return made


@torch.no_grad()
def test_merging_is_exact_in_fp32_and_rounds_once_in_bf16(folder: Path) -> None:
    """Adapters are added in fp32 and the sum is cast. Casting them first, and then the sum, rounds twice."""
    torch.manual_seed(0)
    adapted = _adapted(folder, "bf16")
    layer: Any = adapted.base.model.layers[0].self_attn.q_proj
    weight, delta = layer.base_layer.weight.clone(), layer.get_delta_weight("default").clone()
    batch = make_batch(adapted.config)
    exact_network = adapted.float()
    expected = exact_network(**batch).audio_logits
    merged = CloningNetwork(merge_adapters(exact_network.model))
    assert float((merged(**batch).audio_logits - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))
    stored = merged.base.to(torch.bfloat16).model.layers[0].self_attn.q_proj.weight
    assert torch.equal(stored, (weight.float() + delta.float()).bfloat16())
    assert not torch.equal(stored, weight + delta.bfloat16())
    found = merged(**batch).audio_logits.float()
    agreement = float((found.argmax(-1) == expected.argmax(-1)).float().mean())
    assert agreement > 0.9  # of random weights, whose likeliest codes are often close to the next
