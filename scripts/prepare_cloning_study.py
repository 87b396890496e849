"""Write what the study of voice cloning trains on and is judged on: a small model of Higgs Audio v2 with random
weights, its tokenizer, and pairs of recordings.

    python scripts/prepare_cloning_study.py RECORDINGS FOLDER

RECORDINGS holds asr_en_an4 and voice_ar_commands (metadata.csv of `id|speaker|text`, wavs/), tts_en_kathleen and
tts_de_kerstin (LJSpeech layout) and spk_en_librispeech/train-clean-100. FOLDER gets

    codec/          links to 43 minutes of them, to train a codec on with train_small_codec.py
    model/          the model
    base.json       pairs in English and German, to train the model on
    arabic.json     Arabic pairs, to train adapters on
    held_out.json   pairs of Arabic speakers who are in none of the others, and whom the codec has not heard
    swapped.json    the targets of held_out.json, each with a reference of another of these speakers
    four.json       four pairs of arabic.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import soundfile
import torch

from phonate.tasks.cloning.data import INSTRUCTION

HELD_OUT = 5
"""Every fifth Arabic speaker, in the order of their names, is held out."""
AN4_CLIPS, KATHLEEN_CLIPS, KERSTIN_CLIPS = 2, 60, 30
"""Clips that the model is trained on: of each speaker of AN4, and of the two others."""
VOCABULARY = 512
SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|audio_out_bos|>",
    "<|reserved_special_token_6|>",
    "<|AUDIO|>",
    "<|AUDIO_OUT|>",
)


@dataclass(frozen=True)
class Clip:
    """A recording of a speaker who says `text`."""

    path: Path
    speaker: str
    text: str


def clips(folder: Path, speaker: str | None = None) -> list[Clip]:
    """The recordings of a corpus: of one speaker, or of those in the second column."""
    lines = (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()
    fields = [line.split("|") for line in lines]
    return [Clip(folder / "wavs" / f"{row[0]}.flac", speaker or row[1], row[-1]) for row in fields]


def pairs(recordings: Iterable[Clip]) -> list[tuple[Clip, Clip]]:
    """Each clip of a speaker as the reference of the next one, and the last of the first."""
    by_speaker = [list(own) for _, own in groupby(recordings, lambda clip: clip.speaker)]
    return [pair for own in by_speaker for pair in zip(own, own[1:] + own[:1], strict=True)]


def swapped(rows: list[tuple[Clip, Clip]]) -> list[tuple[Clip, Clip]]:
    """The targets of each speaker with references of the next speaker."""
    by_speaker = [list(own) for _, own in groupby(rows, lambda row: row[1].speaker)]
    return [
        (other[number % len(other)][0], target)
        for own, other in zip(by_speaker, by_speaker[1:] + by_speaker[:1], strict=True)
        for number, (_, target) in enumerate(own)
    ]


def conversation(reference: Clip, target: Clip) -> dict[str, Any]:
    """A pair in ChatML."""
    user = [
        {"type": "text", "text": reference.text},
        {"type": "audio", "audio_url": str(reference.path)},
        {"type": "text", "text": f"{INSTRUCTION} {target.text}"},
    ]
    assistant = [{"type": "text", "text": target.text}, {"type": "audio", "audio_url": str(target.path)}]
    return {
        "messages": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}],
        "speaker": target.speaker,
    }


def write(path: Path, rows: list[tuple[Clip, Clip]]) -> None:
    """`rows` in ChatML."""
    content = [conversation(*row) for row in rows]
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {len(rows)} pairs of {len({target.speaker for _, target in rows})} speakers")


def four_short(rows: list[tuple[Clip, Clip]]) -> list[tuple[Clip, Clip]]:
    """The shortest pair of each speaker, and of those the four shortest."""
    seconds = {row: sum(soundfile.info(clip.path).duration for clip in row) for row in rows}
    by_speaker: dict[str, tuple[Clip, Clip]] = {}
    for row in sorted(rows, key=seconds.__getitem__):
        by_speaker.setdefault(row[1].speaker, row)
    return list(by_speaker.values())[:4]


def link(folder: Path, files: Iterable[Path]) -> None:
    """Links to `files`."""
    folder.mkdir(exist_ok=True)
    for file in files:
        place = folder / file.name
        place.unlink(missing_ok=True)
        place.symlink_to(file)


def tokenizer(texts: list[str]) -> Any:
    """Byte-level BPE of `texts`, with the special tokens of the released model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet))
    made = PreTrainedTokenizerFast(
        tokenizer_object=own, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", pad_token="<|end_of_text|>"
    )
    made.add_special_tokens({"additional_special_tokens": list(SPECIALS)})
    return made


def write_model(folder: Path, texts: list[str], width: int, layers: int, dtype: torch.dtype) -> None:
    """A model with random weights, of the released one's kind."""
    from transformers import GenerationConfig, HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    own = tokenizer(texts)
    ids = {name: own.convert_tokens_to_ids(name) for name in SPECIALS}
    ends = {
        "bos_token_id": ids["<|begin_of_text|>"],
        "eos_token_id": ids["<|eot_id|>"],
        "pad_token_id": ids["<|end_of_text|>"],
    }
    config = HiggsAudioV2Config(
        vocab_size=len(own),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        codebook_size=1026,
        audio_token_id=ids["<|AUDIO_OUT|>"],
        audio_bos_token_id=ids["<|audio_out_bos|>"],
        audio_delay_token_id=ids["<|reserved_special_token_6|>"],
        audio_stream_bos_id=1024,
        audio_stream_eos_id=1025,
        **ends,
    )
    torch.manual_seed(0)
    model = HiggsAudioV2ForConditionalGeneration(config, use_text_head=True).to(dtype)
    model.generation_config = GenerationConfig(ras_win_len=7, ras_win_max_num_repeat=2, **ends)
    model.save_pretrained(folder)
    own.save_pretrained(folder)
    print(f"{folder}: {sum(one.numel() for one in model.parameters()) / 1e6:.1f} M parameters")


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    folder, recordings = arguments.folder, arguments.recordings.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    arabic = clips(recordings / "voice_ar_commands")
    held_out = set(sorted({clip.speaker for clip in arabic})[::HELD_OUT])
    heard = [clip for clip in arabic if clip.speaker not in held_out]
    an4 = sorted(clips(recordings / "asr_en_an4"), key=lambda clip: (clip.speaker, clip.path))
    kathleen, kerstin = (clips(recordings / f"tts_{name}", name) for name in ("en_kathleen", "de_kerstin"))
    several = [clip for _, own in groupby(an4, lambda clip: clip.speaker) for clip in list(own)[:AN4_CLIPS]]
    base = pairs([*several, *kathleen[:KATHLEEN_CLIPS], *kerstin[:KERSTIN_CLIPS]])
    write(folder / "base.json", base)
    write(folder / "arabic.json", pairs(heard))
    held_back = pairs(clip for clip in arabic if clip.speaker in held_out)
    write(folder / "held_out.json", held_back)
    write(folder / "swapped.json", swapped(held_back))
    write(folder / "four.json", four_short(pairs(heard)))
    books = sorted((recordings / "spk_en_librispeech" / "train-clean-100").glob("*.flac"))[:60]
    link(folder / "codec", [clip.path for clip in [*heard, *an4, *kathleen[:100], *kerstin[:KERSTIN_CLIPS]]] + books)
    texts = [target.text for _, target in base + pairs(heard)]
    write_model(folder / "model", texts, arguments.width, arguments.layers, getattr(torch, arguments.dtype))


if __name__ == "__main__":
    main()
