"""A small Higgs Audio v2 model with its tokenizer, in the files that `save_pretrained` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXTS = (
    "You are a helpful assistant capable of generating speech in the voice of the provided reference audio.",
    "The quick brown fox jumps over the lazy dog. It was the night before my birthday; it's almost here!",
    "والميزة فيها يعني الكيس الماتيريال، هذا انت بيتي هو كاربون.",
    "مثل ما قال هاك متدبس ايه ما اقدر لان هذا الحديد وين ودي؟",
)
SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|audio_out_bos|>",
    "<|reserved_special_token_6|>",  # in place of a frame that only ends codebooks
    "<|AUDIO|>",
    "<|AUDIO_OUT|>",
    "<|recipient|>",
    "<|tool_list_start|>",
    "<|tool_list_end|>",
    "<|eom_id|>",
)


def small_tokenizer() -> Any:
    """Byte-level BPE with 400 tokens and the special tokens of the released model, whose pad token is its eos token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", pad_token="<|eot_id|>"
    )
    made.add_special_tokens({"additional_special_tokens": list(SPECIALS)})
    return made


def small_config(tokenizer: Any, *, layers: int, width: int, codebooks: int, codebook_size: int) -> Any:
    """Four heads, two of keys and values; the special ids of `tokenizer`."""
    from transformers import HiggsAudioV2Config

    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIALS}
    return HiggsAudioV2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        num_codebooks=codebooks,
        codebook_size=codebook_size,
        bos_token_id=ids["<|begin_of_text|>"],
        eos_token_id=ids["<|eot_id|>"],
        pad_token_id=ids["<|end_of_text|>"],
        audio_token_id=ids["<|AUDIO_OUT|>"],
        audio_bos_token_id=ids["<|audio_out_bos|>"],
        audio_delay_token_id=ids["<|reserved_special_token_6|>"],
        audio_stream_bos_id=codebook_size - 2,
        audio_stream_eos_id=codebook_size - 1,
    )


def small_model(
    *,
    layers: int = 2,
    width: int = 64,
    text_head: bool = True,
    seed: int = 0,
    codebooks: int = 8,
    codebook_size: int = 1026,
) -> Any:
    """A model in fp32 with weights of `seed`, large enough that every input changes the output visibly."""
    import torch
    from transformers import GenerationConfig, HiggsAudioV2ForConditionalGeneration

    config = small_config(
        small_tokenizer(), layers=layers, width=width, codebooks=codebooks, codebook_size=codebook_size
    )
    config.initializer_range = 0.1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = HiggsAudioV2ForConditionalGeneration(config, use_text_head=text_head)
    # made anew: the one that a model derives from its configuration loses unknown fields when it is loaded
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        ras_win_len=7,
        ras_win_max_num_repeat=2,
    )
    return model.eval()


def small_model_folder(
    folder: Path,
    *,
    layers: int = 2,
    width: int = 64,
    text_head: bool = True,
    seed: int = 0,
    codebooks: int = 8,
    codebook_size: int = 1026,
) -> Path:
    """`small_model` and its tokenizer, saved in `folder`."""
    model = small_model(
        layers=layers,
        width=width,
        text_head=text_head,
        seed=seed,
        codebooks=codebooks,
        codebook_size=codebook_size,
    )
    model.save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    return folder
