#!/usr/bin/env python3
"""Record what every shipped recipe does, to the last bit, so that two revisions can be compared.

    python scripts/record_behaviour.py before.json --data recordings    # in one revision
    python scripts/record_behaviour.py after.json --data recordings     # in another
    python scripts/record_behaviour.py --compare before.json after.json
    python scripts/record_behaviour.py resumed.json --resume before     # two more steps of the runs of `before`

Each recipe is trained for a few steps at size tiny, with one thread. OUT.json gets its metrics as exact numbers, the
SHA-256 of its weights and that of what its inference gives; the folder OUT beside it the runs and their small corpora.
What fails is recorded as its error. `--data` has the layout of PHONATE_TEST_DATA (spk_en_librispeech, tts_en_lj,
asr_en_an4, diar_en_ami, voice_ar_commands); without it sounds are made. Only the public API is called, so that the
script runs with any revision on PYTHONPATH.
"""

from __future__ import annotations

import os

if __name__ == "__main__":  # before numpy and torch are imported
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}

import argparse
import hashlib
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

SPEECH: dict[str, Any] = {"data.judged": 0, "training.init_from": None, "training.adversarial_start": 3}
SPEECH |= {
    f"training.validation.{key}": x for key, x in (("metric_for_best_model", "val_loss"), ("greater_is_better", False))
}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {  # the corpus, and overrides
    "vocoder": ("voices", {"data.crop_frames": 24, "training.adversarial_start": 2}),
    "conversion": ("voices", {"training.adversarial_start": 3}),
    **{f"conversion-{kind}": ("voices", {}) for kind in ("control", "live", "whisper", "live-whisper", "any")},
    "speech": ("reader", SPEECH),
    "speech-autoregressive": ("reader", {}),
    "recognition": ("spellers", {}),
    "diarization": ("meetings", {"data.chunk_seconds": 6.0, "data.simulation.speakers": [1, 2]}),
    "diarization-streaming": ("meetings", {"data.chunk_seconds": 6.0, "data.simulation.speakers": [1, 2]}),
    "diarization-whisper": ("meetings", {"data.samples": 12}),
    "diarization-pretrained": ("meetings", {"data.samples": 12}),
    "sequence": ("pairs.tsv", {}),
    "language": ("texts", {}),
    "language-lora": ("chat.jsonl", {"model.name": "llama"}),
    "voice-cloning": ("chatml.json", {"model.name": "higgs", "model.codec": "codec"}),
}
CLOCKS = ("second", "wait", "system/", "memory/", "time/")
"""Metrics with these in their names differ from run to run."""
STEPS, MORE = 6, 2
CODEC_HOMES = ("phonate.audio.higgs_codec",)
"""Where codec_class is, in one revision or another: transformers' own needs torchaudio."""
TEXTS = [
    f"{a} {b}" for a in ("the kettle", "fresh bread", "nobody", "a boat") for b in ("began to sing", "fell", "ran")
]


def sha(*arrays: Any) -> str:
    """SHA-256 of arrays with their types and shapes, or of a text."""
    digest = hashlib.sha256()
    for array in (
        np.frombuffer(x.encode(), np.uint8) if isinstance(x, str) else np.ascontiguousarray(x) for x in arrays
    ):
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def made_sounds(folder: Path) -> Path:
    """Recordings with the layout of PHONATE_TEST_DATA: harmonics whose level goes up and down like syllables."""
    rng = np.random.default_rng(0)

    def sound(path: str, seconds: float, pitch: float) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        t = np.arange(round(seconds * 16000)) / 16000
        phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.1 * np.sin(3 * t))) / 16000
        tone = sum(np.sin(h * phase) / h for h in range(1, 12)) * (0.55 + 0.45 * np.sin(9 * t + rng.random()))
        soundfile.write(folder / path, 0.2 * tone + 0.003 * rng.standard_normal(len(t)), 16000, subtype="PCM_16")

    for clip in range(12):
        sound(f"spk_en_librispeech/test-other/{clip % 3}/{clip}.flac", 2.0 + 0.2 * clip, 110.0 + 50 * (clip % 3))
        sound(f"tts_en_lj/wavs/a{clip}.flac", 3.0, 200.0)
        sound(f"asr_en_an4/wavs/a{clip}.flac", 3.0, 120.0)
        sound(f"voice_ar_commands/wavs/a{clip}.flac", 1.5, 150.0)
    for name, middle in (("tts_en_lj", "{text}"), ("asr_en_an4", "someone")):
        rows = [f"a{clip}|{middle.format(text=text)}|{text}\n" for clip, text in enumerate(TEXTS)]
        (folder / name / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    lines = []
    for meeting in ("trn00", "trn01", "trn02"):
        sound(f"diar_en_ami/wavs/{meeting}.flac", 20.0, 140.0)
        lines += [f"SPEAKER {meeting} 1 {at} 2.5 <NA> <NA> {meeting}{at % 2} <NA> <NA>\n" for at in range(1, 17, 3)]
    (folder / "diar_en_ami/ref.rttm").write_text("".join(lines), encoding="utf-8")
    return folder


def corpora(source: Path, folder: Path) -> None:
    """Small corpora of the recordings in `source`, in `folder`, and texts."""
    for name in ("voices", "reader/wavs", "spellers/wavs", "meetings", "texts", "wavs"):
        (folder / name).mkdir(parents=True)
    for speaker in sorted((source / "spk_en_librispeech/test-other").iterdir())[:3]:
        (folder / "voices" / speaker.name).mkdir()
        for clip in sorted(speaker.glob("*.flac"))[:4]:
            sound, rate = soundfile.read(clip, dtype="int16")
            soundfile.write(folder / f"voices/{speaker.name}/{clip.stem}.wav", sound[: 5 * rate], rate)
    for name, origin in (("reader", "tts_en_lj"), ("spellers", "asr_en_an4")):
        rows = (source / origin / "metadata.csv").read_text(encoding="utf-8").splitlines()
        files = {row: source / origin / f"wavs/{row.split('|')[0]}.flac" for row in rows}
        rows = sorted(rows, key=lambda row, files=files: (files[row].stat().st_size, row))[:12]  # type: ignore[misc]
        (folder / name / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        for row in rows:
            shutil.copy(files[row], folder / name / "wavs")
    turns = (source / "diar_en_ami/ref.rttm").read_text(encoding="utf-8").splitlines(keepends=True)
    for meeting in sorted((source / "diar_en_ami/wavs").glob("*.flac"))[:3]:
        shutil.copy(meeting, folder / "meetings")
        rows = [line for line in turns if line.split()[1] == meeting.stem]
        (folder / f"meetings/{meeting.stem}.rttm").write_text("".join(rows), encoding="utf-8")
    (folder / "texts/all.txt").write_text("\n\n".join(". ".join(TEXTS[i:] + TEXTS[:i]) for i in range(12)))
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"{t} {u}\t{u}\n" for t in TEXTS for u in TEXTS[:4]))
    chat = [json.dumps({"prompt": one, "response": other}) for one in TEXTS for other in TEXTS[:2]]
    (folder / "chat.jsonl").write_text("\n".join(chat) + "\n")
    clips = sorted((source / "voice_ar_commands/wavs").glob("*.flac"))[:7]
    dialogues = []
    for at, clip in enumerate(clips):
        shutil.copy(clip, folder / "wavs")
        first, second = (
            {"type": "audio", "audio_url": str(folder / "wavs" / one.name)} for one in (clip, clips[at - 1])
        )
        own, say, other = ({"type": "text", "text": text} for text in (TEXTS[at], f"Say: {TEXTS[-at]}", TEXTS[-at]))
        messages = [{"role": "user", "content": [own, first, say]}, {"role": "assistant", "content": [other, second]}]
        dialogues.append({"messages": messages, "speaker": "a"})
    (folder / "chatml.json").write_text(json.dumps(dialogues))


def pretrained(folder: Path) -> None:
    """A language model, Higgs Audio v2 and its codec, all tiny, with random weights."""
    import tokenizers as tk
    import torch
    import transformers as tf

    names = "begin_of_text end_of_text start_header_id end_header_id eot_id audio_bos audio_eos audio_out_bos AUDIO_OUT"
    names += " reserved_special_token_6 AUDIO recipient tool_list_start tool_list_end eom_id"
    bpe = tk.Tokenizer(tk.models.BPE())
    bpe.pre_tokenizer, bpe.decoder = tk.pre_tokenizers.ByteLevel(add_prefix_space=False), tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    trainer = tk.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(TEXTS, trainer)
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|eot_id|>"}
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=bpe, **ends)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names.split()]})
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names.split()}
    size = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.1}
    size |= {"bos_token_id": ids["begin_of_text"], "eos_token_id": ids["eot_id"], "pad_token_id": ids["end_of_text"]}
    audio = {"audio_token_id": ids["AUDIO_OUT"], "audio_bos_token_id": ids["audio_out_bos"], "num_codebooks": 8}
    audio |= {"audio_delay_token_id": ids["reserved_special_token_6"], "codebook_size": 1026}
    higgs = tf.HiggsAudioV2Config(**size, **audio, audio_stream_bos_id=1024, audio_stream_eos_id=1025)
    ratios: dict[str, Any] = {f"{way}sampling_ratios": [8, 5, 4, 2, 3] for way in ("down", "up")}
    dac = tf.DacConfig(encoder_hidden_size=4, decoder_hidden_size=64, hidden_size=16, sampling_rate=24000, **ratios)
    attention = {"num_attention_heads": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    attention |= {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "mask_time_prob": 0.0}
    hubert = tf.HubertConfig(conv_dim=[16] * 7, **attention)
    parts = {"acoustic_model_config": dac, "semantic_model_config": hubert, "codebook_dim": 16}
    torch.manual_seed(0)
    home = next(importlib.import_module(name) for name in CODEC_HOMES if importlib.util.find_spec(name))
    codec = home.codec_class()(tf.HiggsAudioV2TokenizerConfig(target_bandwidths=[0.5, 1, 1.5, 2], **parts))
    for name, tensor in codec.state_dict().items():
        if tensor.ndim > 1 and tensor.is_floating_point():  # transformers leaves codebooks at zero
            torch.nn.init.normal_(tensor, std=1.0 if name.endswith("embed") else tensor[0].numel() ** -0.5)
    codec.save_pretrained(folder / "codec")
    tf.LlamaForCausalLM(tf.LlamaConfig(**size)).save_pretrained(folder / "llama")
    tf.HiggsAudioV2ForConditionalGeneration(higgs, use_text_head=True).save_pretrained(folder / "higgs")
    for name in ("llama", "higgs"):
        tokenizer.save_pretrained(folder / name)


def record(recipe: str, data: Path, run: Path, resume: bool) -> dict[str, Any]:
    """Train `recipe` into `run`, or go on with what is there, and tell what came of it."""
    from safetensors.numpy import load_file

    import phonate

    corpus, changes = RECIPES[recipe]
    steps = STEPS + MORE * resume
    overrides: dict[str, Any] = {"data.path": str(data / corpus), "training.max_steps": steps, "training.batch_size": 2}
    overrides |= {"training.random_seed": 7, "training.logging.interval": 1, "training.logging.tensorboard": False}
    overrides |= {"training.validation.interval": STEPS, "training.checkpoint.interval": STEPS}
    overrides |= {"training.scheduler.warmup_steps": 1} | ({} if corpus == "meetings" else {"data.validation": 0.2})
    overrides |= changes if "model.name" in changes else {"size": "tiny"} | changes
    overrides |= {key: str(data / changes[key]) for key in changes.keys() & {"model.name", "model.codec"}}
    phonate.train(recipe, overrides, output=run, mode="cpu", resume="auto" if resume else None)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = [{key: line[key] for key in line if not any(word in key for word in CLOCKS)} for line in lines]
    metrics = [{key: x.hex() if isinstance(x, float) else x for key, x in line.items()} for line in lines]
    weights = load_file(run / f"checkpoints/step-{steps:08}/weights.safetensors")
    tensors = {name: sha(tensor) for name, tensor in sorted(weights.items())}
    return {"metrics": metrics, "weights": tensors, "inference": dict(inference(recipe, phonate.load(run), data, run))}


def inference(recipe: str, model: Any, data: Path, run: Path) -> Iterator[tuple[str, str]]:
    """What a run gives for the recordings that it was trained on, by name."""
    clips = sorted((data / "voices").glob("*/*.wav"))
    task, text = recipe.split("-")[0], "The kettle began to whistle."
    if task == "vocoder":
        yield "wav", sha(model.resynthesise(clips[0]))
    elif task == "conversion":
        target = clips[-1].parent.name if recipe != "conversion-any" else model.reference([clips[-1]])
        yield "wav", sha(model.convert(clips[0], target))
    elif task == "speech":
        yield "wav", sha(model.speak(text))
    elif task == "recognition":
        yield "transcripts", sha(*model.transcribe(sorted((data / "spellers/wavs").iterdir())[:3]))
    elif task == "diarization":
        yield "rttm", sha(model.diarize(min((data / "meetings").glob("*.flac"))).rttm("meeting"))
    elif task == "voice":
        yield "wav", sha(model.clone(clips[0], text, max_seconds=2.0))
    else:
        yield "text", sha(model.generate(TEXTS[0], max_tokens=12))
    if recipe == "conversion":
        yield "onnx", sha(*onnx_outputs(model.model.export_to_onnx(run / "model.onnx")))
    if recipe == "speech":
        from phonate.cli import main

        assert main(["checkpoints", "export", str(run), "--format", "onnx", "-o", str(run / "onnx")]) == 0
        yield "onnx", sha(*onnx_outputs(run / "onnx/model.onnx"))


def onnx_outputs(path: Path) -> list[Any]:
    """What a graph gives for inputs drawn by a fixed seed."""
    import onnxruntime

    options, rng = onnxruntime.SessionOptions(), np.random.default_rng(0)
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given: dict[str, Any] = {"input": rng.integers(1, 20, (1, 17)), "scales": np.ones(3, np.float32)}
    for one in session.get_inputs():
        shape = [size if isinstance(size, int) else (1, 40)[axis] for axis, size in enumerate(one.shape)]
        drawn = rng.random(shape, np.float32) if "float" in one.type else np.zeros(shape, np.int64)
        given.setdefault(one.name, drawn)
    outputs: list[Any] = session.run(None, {one.name: given[one.name] for one in session.get_inputs()})
    return outputs


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Lines on what differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{place}/{key}")
    elif isinstance(one, list) and isinstance(other, list):
        for at, pair in enumerate(zip_longest(one, other)):
            yield from differences(*pair, f"{place}/{at}")
    elif one != other:
        yield f"{place[1:]}: {one!r}, then {other!r}"


def main() -> int:
    """Parse the command line, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT.json")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="real recordings")
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the runs of another record")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="RECORD.json")
    args = parser.parse_args()
    if args.compare:
        lines = list(differences(*(json.loads(path.read_text(encoding="utf-8")) for path in args.compare)))
        print("\n".join(lines) or "no difference")
        return int(bool(lines))
    if args.out is None or args.out.suffix != ".json":
        parser.error("give OUT.json, which is written, or --compare A.json B.json")
    import torch

    torch.set_num_threads(1)
    folder: Path = args.out.with_suffix("").absolute()
    data: Path = (args.resume or folder).absolute() / "data"
    if not args.resume:
        corpora(args.data or made_sounds(folder / "sounds"), data)
        pretrained(data)
    records: dict[str, Any] = {}
    for recipe in args.only:
        began = time.monotonic()
        if args.resume:
            shutil.copytree(args.resume / recipe, folder / recipe, ignore=shutil.ignore_patterns("onnx"))
        try:
            records[recipe] = record(recipe, data, folder / recipe, bool(args.resume))
        except Exception as error:  # noqa: BLE001 - it is part of the record, and the other recipes are tried, too
            records[recipe] = {"error": f"{type(error).__name__}: {error}".replace(str(folder), "OUT")}
        print(f"{recipe}: {time.monotonic() - began:.0f} s {records[recipe].get('error', '')}", file=sys.stderr)
        args.out.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
