"""Speed of decoding codes for voice cloning: one request, several at once, and requests that come one after the other.

The model has random weights and the shape of Higgs Audio v2 in small: a step reads all weights of the audio path, and
at one request that takes longer than computing with them, as it does with the released model on a GPU.

    python benchmarks/cloning_decoding.py [--width 1024] [--layers 8] [--requests 8] [--frames 48] [--dtype fp32]

Prints a line of JSON for each way; times on a processor are of the processor (process_time).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from phonate.tasks.cloning.decoding.engine import Engine, Generation
from phonate.tasks.cloning.decoding.loop import Decoder, Job, Piece, run
from phonate.tasks.cloning.decoding.sampling import Sampling
from phonate.tasks.cloning.sequences.sequence import delayed
from phonate.tasks.cloning.sequences.tokens import Prompt

VOCABULARY = 512
BEGIN, END = 1024, 1025


def small_higgs(width: int, layers: int, dtype: torch.dtype) -> Any:
    """A model of random weights that never ends by itself."""
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    config = HiggsAudioV2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=round(width * 8 / 3),
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        num_key_value_heads=max(1, width // 384),
        codebook_size=1026,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        audio_token_id=510,
        audio_bos_token_id=509,
        audio_delay_token_id=511,
    )
    torch.manual_seed(0)
    model = HiggsAudioV2ForConditionalGeneration(config).to(dtype).eval()
    model.audio_lm_head.weight.data.view(8, 1026, width)[:, BEGIN:] = 0.0
    return model


def prompt(seed: int, text: int = 60, reference: int = 100) -> Prompt:
    """A prompt of `text` tokens and `reference` frames."""
    numbers = np.random.default_rng(seed)
    frames = delayed(numbers.integers(0, 1024, (reference, 8)))
    ids = np.concatenate([numbers.integers(1, 500, text), np.full(len(frames), 510)])
    return Prompt(ids, frames, text + np.arange(len(frames)))


def piece(seed: int, frames: int) -> Piece:
    """What one request generates."""
    return Piece(prompt(seed), frames)


def measure(model: Any, requests: int, frames: int, at_once: int) -> dict[str, float]:
    """All requests, `at_once` in a batch: the time of their prompts, and of their frames."""
    prompts = steps = made = 0.0
    for first in range(0, requests, at_once):
        jobs = [Job(piece(number, frames), Sampling(), number, number) for number in range(first, first + at_once)]
        decoder: Decoder[int] = Decoder(model, at_once, len(jobs[0].piece.prompt.input_ids) + frames + 9)
        began = clock(model)
        for job in jobs:
            decoder.join(job)
        read = clock(model)
        made += sum(step.codes is not None for step in run(decoder, []))
        prompts, steps = prompts + read - began, steps + clock(model) - read
    return {"at_once": at_once, "frames": made, "prompt_seconds": prompts, "frame_seconds": steps}


def clock(model: Any) -> float:
    """Seconds: of the processor, which other programs do not lengthen, or else by the clock."""
    if model.device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure_joining(model: Any, requests: int, frames: int, at_once: int) -> dict[str, float]:
    """Requests that come 50 ms after each other, and join the batch."""
    decoder: Decoder[Generation] = Decoder(model, at_once, 1024)
    engine = Engine(decoder)
    began = clock(model)
    sent = []
    for number in range(requests):
        sent.append(Generation([piece(number, frames)], Sampling(), number))
        engine.submit(sent[-1])
        time.sleep(0.05)
    made = sum(1 for generation in sent for _ in generation.frames())
    seconds = clock(model) - began
    engine.close()
    return {"joining": requests, "frames": made, "seconds": seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    model = small_higgs(args.width, args.layers, dtype).to(args.device)
    weights = sum(parameter.numel() for parameter in model.parameters())
    facts = {"parameters": weights, "dtype": args.dtype, "threads": torch.get_num_threads(), "device": args.device}
    measure(model, 1, 8, 1)  # warm up
    print(json.dumps(facts))
    alone = measure(model, args.requests, args.frames, 1)
    for at_once in (2, 4, args.requests):
        show(measure(model, args.requests, args.frames, at_once), alone)
    show(alone, alone)
    show(measure_joining(model, args.requests, args.frames, args.requests), alone)


def show(found: dict[str, float], alone: dict[str, float]) -> None:
    """Print with rates: frames per second, and how much faster than one at a time, for frames alone and all in all."""
    whole = found["seconds"] if "seconds" in found else found["prompt_seconds"] + found["frame_seconds"]
    found["frames_per_second"] = found["frames"] / whole
    found["faster"] = found["frames_per_second"] * (alone["prompt_seconds"] + alone["frame_seconds"]) / alone["frames"]
    if "frame_seconds" in found:
        found["frames_faster"] = alone["frame_seconds"] / found["frame_seconds"]
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
