"""Speed of decoding codes for voice cloning: one request, several at once, and requests that come one after the other.

The model has random weights and the shape of Higgs Audio v2 in small: a step reads all weights of the audio path, and
at one request that takes longer than computing with them, as it does with the released model on a GPU.

    OMP_NUM_THREADS=1 python benchmarks/cloning_decoding.py [--requests 8] [--frames 100] [--rounds 3] [--voices 1]

Prints a line of JSON for each way, the medians of rounds in turns; times on a processor are of the processor
(process_time). With --voices 1 all requests are for one voice, of which the reference is read once; with as many voices
as requests each has its own. --compile-model compares the compiled step with the plain one, without joining requests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch

from phonate.compute.resources import CompileModel
from phonate.tasks.cloning.decoding import Decoder, Engine, Generation, Job, Piece, Sampling, run
from phonate.tasks.cloning.sequences import Prompt, delayed

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


def prompt(voice: int, request: int, text: int = 30, reference: int = 100) -> Prompt:
    """System message and the reference's text (`text` tokens together), `reference` frames, and the text to say."""
    of_voice, of_request = np.random.default_rng([0, voice]), np.random.default_rng([1, request])
    frames = delayed(of_voice.integers(0, 1024, (reference, 8)))
    texts = of_voice.integers(1, 500, text), of_request.integers(1, 500, text)
    ids = np.concatenate([texts[0], np.full(len(frames), 510), texts[1]])
    return Prompt(ids, frames, text + np.arange(len(frames)))


def pieces(requests: int, frames: int, voices: int) -> list[Piece]:
    """What the requests generate."""
    return [Piece(prompt(number % voices, number), frames) for number in range(requests)]


def measure(model: Any, wanted: list[Piece], at_once: int, compile_model: CompileModel = False) -> dict[str, float]:
    """All requests, `at_once` in a batch: the time of their prompts, and of their frames."""
    prompts = steps = made = 0.0
    longest = max(len(one.prompt.input_ids) + one.limit for one in wanted)
    decoder: Decoder[int] = Decoder(model, at_once, longest + 9, compile_model=compile_model)
    for first in range(0, len(wanted), at_once):
        jobs = [Job(one, Sampling(), 0, number) for number, one in enumerate(wanted[first : first + at_once])]
        began = clock(model)
        for job in jobs:
            decoder.join(job)
        read = clock(model)
        made += sum(step.codes is not None for step in run(decoder, []))
        prompts, steps = prompts + read - began, steps + clock(model) - read
    compiled = int(bool(compile_model))
    return {"at_once": at_once, "compiled": compiled, "frames": made, "prompt_seconds": prompts, "frame_seconds": steps}


def clock(model: Any) -> float:
    """Seconds: of the processor, which other programs do not lengthen, or else by the clock."""
    if model.device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure_joining(model: Any, wanted: list[Piece]) -> dict[str, float]:
    """Requests that come 50 ms after each other, and join the batch."""
    decoder: Decoder[Generation] = Decoder(model, len(wanted), 1024)
    engine = Engine(decoder)
    began = clock(model)
    sent = []
    for number, one in enumerate(wanted):
        sent.append(Generation([one], Sampling(), number))
        engine.submit(sent[-1])
        time.sleep(0.05)
    made = sum(1 for generation in sent for _ in generation.frames())
    seconds = clock(model) - began
    engine.close()
    return {"joining": len(wanted), "frames": made, "seconds": seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--voices", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile-model", nargs="?", const=True, default=False, choices=("cuda_graphs",))
    args = parser.parse_args()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    model = small_higgs(args.width, args.layers, dtype).to(args.device)
    weights = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        "parameters": weights,
        "voices": args.voices,
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
        "device": args.device,
    }
    measure(model, pieces(1, 8, 1), 1)  # warm up
    print(json.dumps(facts))
    wanted = pieces(args.requests, args.frames, args.voices)
    ways: list[tuple[int, CompileModel]] = [(at_once, False) for at_once in (1, 2, 4, args.requests)]
    if args.compile_model:
        ways = [(at_once, how) for at_once in (1, args.requests) for how in (False, args.compile_model)]
        for at_once in (1, args.requests):  # one row, and several, are compiled apart
            began = clock(model)
            measure(model, pieces(args.requests, 8, 1), at_once, args.compile_model)
            print(json.dumps({"at_once": at_once, "compile_seconds": round(clock(model) - began, 1)}))
    rounds: list[list[dict[str, float]]] = []
    for _ in range(args.rounds):
        rounds.append([measure(model, wanted, *way) for way in ways])
        if not args.compile_model:
            rounds[-1].append(measure_joining(model, wanted))
    medians = [
        {name: statistics.median(one[name] for one in same) for name in same[0]} for same in zip(*rounds, strict=True)
    ]
    for found in medians:
        show(found, medians[0])


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
