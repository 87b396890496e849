"""Training steps of voice cloning, beside transformers.Trainer with peft on the same model, adapters and samples.

    OMP_NUM_THREADS=1 python benchmarks/cloning_training.py [--rounds 3] [--batch 4 8 16] [--out FILE.md]

A model a few hundred times smaller than the published one, whose heads have about the same share of its layers' work as
there. The peer pads the samples of a batch to the longest and computes both heads at every position, as
HiggsAudioV2ForConditionalGeneration does with labels; here samples stand one behind the other, and heads and the last
layer's feed-forward networks run where labels are. Both run in turns in one process; the ratio is the median over
rounds of processor times for the same samples, with gradient clipping and AdamW on both sides. The losses of both are
printed: they differ, because the peer also learns the reference and the prompt and normalises otherwise.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gauges import clock
from phonate.compute.resources import processor_name
from phonate.nn.products import linear
from phonate.tasks.cloning.model import measure
from phonate.tasks.cloning.network import CloningNetwork, sequence_layout, with_adapters
from phonate.tasks.cloning.settings import CloningLoRA

CPU = torch.device("cpu")
CODEBOOKS = 8
SMALL = {
    "vocab_size": 3584,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "codebook_size": 130,
    "audio_stream_bos_id": 128,
    "audio_stream_eos_id": 129,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "audio_bos_token_id": 3,
    "audio_delay_token_id": 4,
    "audio_token_id": 5,
}
"""Heads have 14 % (text) and 4 % (audio) of the parameters that a token meets in the layers; published: 14 %, 1 %."""
FIRST_TEXT_ID = 10


@dataclass(frozen=True)
class Sample:
    """A prompt of text, a reference and a target."""

    text: Tensor
    frames: Tensor
    """(A, K) of both audios."""
    reference: int
    """Frames of the reference."""

    @property
    def ids(self) -> list[int]:
        """Text, then for each audio its beginning, its frames and two tokens after it."""
        ids: list[int] = self.text.tolist()
        for count in (self.reference, len(self.frames) - self.reference):
            ids += [3, *([5] * (count - 7)), *([4] * 7), 2, FIRST_TEXT_ID]
        return ids


def make_samples(count: int, codes: int, vocabulary: int) -> list[Sample]:
    """References of 3 to 8 s and targets of 1 to 14 s at 25 frames a second, prompts of 60 to 180 tokens."""
    generator = torch.Generator().manual_seed(0)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    made = []
    for _ in range(count):
        reference, target = between(75, 200) + 9, between(25, 350) + 9
        frames = torch.randint(0, codes, (reference + target, CODEBOOKS), generator=generator)
        text = torch.randint(FIRST_TEXT_ID, vocabulary, (between(60, 180),), generator=generator)
        made.append(Sample(text, frames, reference))
    return made


def packed(samples: list[Sample]) -> dict[str, Any]:
    """Samples one behind the other, in the form of the task's batches."""
    lengths = [len(one.ids) for one in samples]
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    input_ids = torch.cat([torch.tensor(one.ids) for one in samples])
    audio = []
    for one, start, length in zip(samples, starts, lengths, strict=True):
        end = start + length - 2
        audio.append(torch.arange(end - (len(one.frames) - one.reference), end - 1))
    is_frame = (input_ids == 4) | (input_ids == 5)
    text_positions, audio_positions = (input_ids == 3).nonzero()[:, 0], torch.cat(audio)
    is_read = torch.zeros_like(is_frame)
    is_read[torch.cat([text_positions, audio_positions])] = True
    sequences, places = sequence_layout(starts, lengths, len(input_ids))
    return {
        "input_ids": input_ids[None],
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "frames": torch.cat([one.frames for one in samples]),
        "frame_positions": is_frame.nonzero()[:, 0],
        "other_positions": (~is_frame).nonzero()[:, 0],
        "text_positions": text_positions,
        "audio_positions": audio_positions,
        "read_frames": (is_frame & is_read).nonzero()[:, 0],
        "read_others": (~is_frame & is_read).nonzero()[:, 0],
        "sequences": sequences,
        "places": places,
        "cu_seqlens": torch.tensor([*starts, len(input_ids)], dtype=torch.int32),
    }


def padded(samples: list[Sample], eos: int) -> dict[str, Tensor]:
    """Samples as the peer takes them: a row each, everything labelled but the padding."""
    width, most = max(len(one.ids) for one in samples), max(len(one.frames) for one in samples)
    count = len(samples)
    batch = {
        "input_ids": torch.zeros(count, width, dtype=torch.int64),
        "attention_mask": torch.zeros(count, width, dtype=torch.int64),
        "audio_input_ids": torch.full((count, most, CODEBOOKS), eos),
        "audio_input_ids_mask": torch.zeros(count, most, dtype=torch.bool),
        "labels": torch.full((count, width), -100),
        "audio_labels": torch.full((count, most, CODEBOOKS), -100),
    }
    for row, one in enumerate(samples):
        ids, frames = torch.tensor(one.ids), len(one.frames)
        batch["input_ids"][row, : len(ids)] = ids
        batch["attention_mask"][row, : len(ids)] = 1
        batch["labels"][row, : len(ids)] = ids
        batch["audio_input_ids"][row, :frames] = one.frames
        batch["audio_input_ids_mask"][row, :frames] = True
        batch["audio_labels"][row, :frames] = torch.where(one.frames == eos, -100, one.frames)
    return batch


def small_model() -> Any:
    """The small model with random weights of one seed."""
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    torch.manual_seed(0)
    return HiggsAudioV2ForConditionalGeneration(HiggsAudioV2Config(**SMALL), use_text_head=True)


class Ours:
    """Steps of the network of the task."""

    def __init__(self, batches: list[dict[str, Tensor]], lora: CloningLoRA, bf16: bool) -> None:
        self.bf16 = bf16
        self.network = CloningNetwork(with_adapters(small_model(), lora, whisper=False)).train()
        self.batches = batches
        self.trained = [one for one in self.network.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4, fused=True)
        self.loss = 0.0

    def run(self) -> float:
        """Processor seconds of a step for each batch."""
        began = time.process_time()
        for batch in self.batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
                self.loss = train_step(self.network, batch, self.optimizer, self.trained)
        return time.process_time() - began


def train_step(network: Any, batch: dict[str, Tensor], optimizer: Any, trained: list[Tensor]) -> float:
    """Forward, losses, backward, clipping and AdamW; returns the loss."""
    output = network(**batch)
    next_frame = batch["frames"].roll(-1, 0)
    where = torch.searchsorted(batch["frame_positions"], batch["audio_positions"])
    audio = F.cross_entropy(output.audio_logits.float().flatten(0, 1), next_frame[where].flatten())
    next_ids = batch["input_ids"].flatten().roll(-1)[batch["text_positions"]]
    loss = CODEBOOKS * audio + F.cross_entropy(output.text_logits.float(), next_ids)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def base_products(batches: list[dict[str, Any]], dtype: torch.dtype) -> float:
    """Processor seconds of the products with frozen weights alone, of all batches: the layers' outputs and, but for
    queries, keys and values of the first, the gradients of their inputs. A step can't take less."""
    width, inner = SMALL["hidden_size"], SMALL["intermediate_size"]
    heads, own = SMALL["num_key_value_heads"] * SMALL["head_dim"], SMALL["num_attention_heads"] * SMALL["head_dim"]
    layers = [(own, width), *2 * [(heads, width)], (width, own), *2 * [(inner, width)], (width, inner)]
    seconds = 0.0
    for batch in batches:
        tokens, read = batch["input_ids"].numel(), len(batch["read_frames"]) + len(batch["read_others"])
        for number in range(SMALL["num_hidden_layers"]):
            trimmed = number == SMALL["num_hidden_layers"] - 1
            for place, (outputs, inputs) in enumerate(layers):
                rows = read if trimmed and place > 2 else tokens
                x, weight, gradient = (
                    torch.ones(shape, dtype=dtype) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
                )
                began = time.process_time()
                linear(x, weight)
                if number or place > 2:
                    linear(gradient, weight.t())
                seconds += time.process_time() - began
    return seconds


class Peer:
    """Steps of transformers.Trainer."""

    def __init__(
        self, model: Any, batches: list[list[Sample]], bf16: bool, folder: Path, eos: int, device: torch.device
    ) -> None:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        times = self.times = []

        class Clock(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                times.append(-clock(device))

            def on_step_end(self, *_: Any, **__: Any) -> None:
                times[-1] += clock(device)

        samples = [one for batch in batches for one in batch]
        self.arguments = TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=len(batches[0]),
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            num_train_epochs=1,
            use_cpu=device.type == "cpu",
            bf16=bf16
            and device.type == "cpu",  # there the weights are in bf16, which transformers can't mix with autocast
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
            train_sampling_strategy="sequential",
            dataloader_pin_memory=False,
        )
        self.trainer = Trainer(
            model=model,
            args=self.arguments,
            train_dataset=samples,
            data_collator=lambda items: padded(items, eos),
            callbacks=[Clock()],
        )
        self.loss = 0.0

    def run(self) -> float:
        """Seconds of a step for each batch, between the trainer's own marks of a step."""
        self.times.clear()
        self.loss = self.trainer.train().training_loss
        return float(sum(self.times))


def graph_breaks(samples: list[Sample]) -> tuple[int, int]:
    """How often torch.compile must leave the graph in a forward pass: here, and in transformers' own."""
    explain: Any = torch._dynamo.explain
    model = small_model().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        ours = explain(CloningNetwork(model))(**packed(samples)).graph_break_count
        torch._dynamo.reset()
        theirs = explain(model)(**padded(samples, SMALL["audio_stream_eos_id"]), use_cache=False).graph_break_count
        torch._dynamo.reset()
    return int(ours), int(theirs)


def layer_bytes() -> dict[str, float]:
    """Bytes that a layer of the published size keeps for each token, bf16, by the dropout of its adapters."""
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    found = {}
    for dropout in (0.0, 0.1):
        config = HiggsAudioV2Config(codebook_size=1026, num_hidden_layers=1, vocab_size=128256)
        config.vocab_size, config.pad_token_id = 512, 0
        torch.set_default_dtype(torch.bfloat16)
        model = HiggsAudioV2ForConditionalGeneration(config)
        torch.set_default_dtype(torch.float32)
        network = CloningNetwork(with_adapters(model, CloningLoRA(dropout=dropout), whisper=False))
        found[f"dropout {dropout:g}"] = measure(network, torch.bfloat16).layer_token
    return found


@dataclass(frozen=True)
class Comparison:
    """What was found with batches of `batch` samples."""

    precision: str
    batch: int
    samples_per_second: tuple[float, float]
    """Here, and of the peer."""
    tokens: float
    """That the peer computes for each token of a sample; here it is 1."""
    ratios: list[float]
    """Of each round."""
    losses: tuple[float, float]
    most: float
    """The ratio if a step here were nothing but products with frozen weights."""

    def row(self) -> str:
        """Of the table."""
        ours, peer = self.samples_per_second
        spread = f"{statistics.median(self.ratios):.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"
        ends = " | ".join(f"{loss:.2f}" for loss in self.losses)
        name = f"{self.precision}, {self.batch} samples"
        return f"| {name} | {ours:.2f} | {peer:.2f} | {spread} | {self.most:.1f} | {self.tokens:.2f} | {ends} |"


def compare(options: argparse.Namespace, precision: str, batch: int) -> Comparison:
    """Run both in turns on batches of so many samples."""
    lora = CloningLoRA(dropout=options.dropout)
    samples = make_samples(max(options.samples, batch), SMALL["codebook_size"], SMALL["vocab_size"])
    groups = [samples[at : at + batch] for at in range(0, len(samples) - batch + 1, batch)]
    with tempfile.TemporaryDirectory() as folder:
        bf16 = precision == "bf16"
        ours = Ours([packed(group) for group in groups], lora, bf16)
        model = with_adapters(small_model(), lora, whisper=False)
        peer = Peer(model, groups, bf16, Path(folder), SMALL["audio_stream_eos_id"], CPU)
        ours.run(), peer.run()  # warm-up
        rounds = [(ours.run(), peer.run()) for _ in range(options.rounds)]
        with torch.no_grad():
            floor = statistics.median(
                base_products(ours.batches, torch.bfloat16 if bf16 else torch.float32) for _ in range(options.rounds)
            )
    mine, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
    count = batch * len(groups)
    computed = sum(padded(group, 0)["input_ids"].numel() for group in groups)
    return Comparison(
        precision,
        batch,
        (count / mine, count / theirs),
        computed / sum(len(one.ids) for group in groups for one in group),
        [second / first for first, second in rounds],
        (ours.loss, peer.loss),
        theirs / floor,
    )


def report(options: argparse.Namespace) -> str:
    """The comparisons as a page."""
    rows = [compare(options, precision, batch).row() for precision in options.precision for batch in options.batch]
    breaks = graph_breaks(make_samples(2, SMALL["codebook_size"], SMALL["vocab_size"]))
    kept = ", ".join(f"{name} {28 * size / 1e6:.2f} MB" for name, size in layer_bytes().items())
    lines = [
        "# Training steps of voice cloning beside transformers.Trainer and peft",
        "",
        f"    OMP_NUM_THREADS=1 python {options.command}",
        "",
        "The small model of the script, adapters of rank 16 in mode comprehensive with dropout "
        f"{options.dropout:g}; {options.samples} samples in batches of different sizes, the same for both, in turns; "
        f"medians over {options.rounds} rounds of processor times; bf16 is autocast over fp32 weights. The peer "
        "pads to the longest sample of a batch.",
        "",
        "| batches | here, samples / s | transformers.Trainer | ratio | at most | tokens it computes for "
        "each of a sample | loss here | loss there |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "Dropout is drawn once here for layers that read the same input, and for each layer by the peer. The recipe's "
        "own batch, a row of 2,048 tokens, holds about four of these samples.",
        "",
        "At most: the ratio of a step that were nothing but the products with the layers' frozen weights, of outputs "
        "and of gradients of inputs.",
        "",
        "The losses are of other positions and normalised otherwise; they are not to be compared.",
        "",
        f"Graph breaks of torch.compile in a forward pass: {breaks[0]} here, {breaks[1]} in transformers' own.",
        "",
        f"Activations that 28 layers of the published size keep for each token (bf16): {kept}.",
        "",
        f"{processor_name()} ({torch.backends.cpu.get_cpu_capability()}), one thread, load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores; torch {torch.__version__}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=16, help="of each comparison")
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 8, 16], help="samples of a step")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", choices=["fp32", "bf16"], nargs="+", default=["fp32", "bf16"], help="of both")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    options.command = "benchmarks/cloning_training.py" + (f" --out {options.out}" if options.out else "")
    text = report(options)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
