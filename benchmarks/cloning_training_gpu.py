"""Training steps of voice cloning at the published size, with random weights, on a CUDA GPU.

    python benchmarks/cloning_training_gpu.py [--tokens 8192] [--steps 20] [--compile]
    python benchmarks/cloning_training_gpu.py --tokens 2048 --peer 3

Printed are samples per second, the share of the GPU's peak that this is, and the memory beside what the memory model
said. With --peer then the samples per second of transformers.Trainer with peft, in batches of so many samples, with
the same model and samples, in turns of --steps steps.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloning_training import Peer, Sample, make_samples, packed, train_step
from gauges import clock
from phonate.tasks.cloning.model import Load, choose_checkpointing, measure
from phonate.tasks.cloning.network import CloningNetwork, with_adapters
from phonate.tasks.cloning.settings import CloningLoRA

GPU = torch.device("cuda")
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 operations per second."""


def full_size(options: argparse.Namespace) -> str:
    """Steps of the published size on a GPU, with random weights."""
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    torch.set_default_dtype(torch.bfloat16)
    with GPU:
        model = HiggsAudioV2ForConditionalGeneration(HiggsAudioV2Config(codebook_size=1026), use_text_head=True)
    torch.set_default_dtype(torch.float32)
    model = with_adapters(model, CloningLoRA(dropout=options.dropout), whisper=False).to(GPU)
    network = CloningNetwork(model)
    samples = make_samples(max(2, options.tokens // 600), 1024, 128000)
    batch = {
        name: one.to(GPU) if isinstance(one, Tensor) else one
        for name, one in _with_published_ids(packed(samples)).items()
    }
    tokens = batch["input_ids"].numel()
    load = Load(tokens, len(batch["audio_positions"]), len(batch["text_positions"]))
    print(choose_checkpointing(network, "auto", load, torch.bfloat16))
    predicted = measure(network, torch.bfloat16).needed(load, network.checkpointing)
    if options.compile:
        network.compile()
    trained = [one for one in network.train().parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    held = torch.cuda.memory_allocated()

    def seconds(steps: int) -> float:
        began = clock(GPU)
        for _ in range(steps):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                train_step(network, batch, optimizer, trained)
        return (clock(GPU) - began) / steps

    seconds(3)
    taken, in_all = seconds(options.steps), torch.cuda.max_memory_allocated()
    name = torch.cuda.get_device_name()
    per_token = (6 if network.checkpointing else 4) * 2.82e9
    share = next((tokens * per_token / taken / peak for part, peak in PEAKS.items() if part in name), float("nan"))
    text = (
        f"{name}: {len(samples) / taken:.1f} samples / s ({tokens / taken:.0f} tokens / s, {len(samples)} samples of "
        f"{tokens} tokens a step), {share:.0%} of the GPU's peak; {in_all / 1e9:.1f} GB in all, "
        f"{(in_all - held) / 1e9:.1f} GB beside weights, predicted {predicted / 1e9:.1f} GB\n"
    )
    if options.peer:
        text += peer_on_gpu(model, samples, lambda: seconds(options.steps), options)
    return text


def peer_on_gpu(model: Any, samples: list[Sample], ours: Callable[[], float], options: argparse.Namespace) -> str:
    """Samples per second of the peer's steps and of ours, in turns, in batches of --peer samples for the peer."""
    size = min(options.peer, len(samples))
    groups = [samples[at : at + size] for at in range(0, len(samples) - size + 1, size)]
    count = size * len(groups)
    with tempfile.TemporaryDirectory() as folder:
        # the ids of the published model stand in for those of the small one when the peer's batches are made
        peer = Peer(model, groups, True, Path(folder), 1025, GPU)
        plain = peer.trainer.data_collator
        peer.trainer.data_collator = lambda items: _with_published_ids(plain(items))
        torch.cuda.reset_peak_memory_stats()
        peer.run()
        memory = torch.cuda.max_memory_allocated()
        turns = [(len(samples) / ours(), count / peer.run()) for _ in range(options.rounds)]
    mine, theirs = (statistics.median(rates) for rates in zip(*turns, strict=True))
    ratio = statistics.median(one / other for one, other in turns)
    return (
        f"transformers.Trainer in batches of {size} samples: {theirs:.1f} samples / s, {memory / 1e9:.1f} GB in all; "
        f"here {mine:.1f}; ratio {ratio:.2f}, median over {options.rounds} rounds\n"
    )


def _with_published_ids(batch: dict[str, Any]) -> dict[str, Any]:
    """Ids of the small model's special tokens as the published ones."""
    published = torch.arange(128256)
    published[:6] = torch.tensor([128001, 1, 128009, 128013, 128014, 128016])
    changed = {"input_ids": published[batch["input_ids"]]}
    if "labels" in batch:
        changed["labels"] = torch.where(batch["labels"] < 0, batch["labels"], published[batch["labels"].clamp(min=0)])
    return batch | changed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="of a step, at most")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--peer", type=int, metavar="SAMPLES", help="the peer too, in batches of so many")
    parser.add_argument("--rounds", type=int, default=3, help="with --peer")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(full_size(options))


if __name__ == "__main__":
    main()
