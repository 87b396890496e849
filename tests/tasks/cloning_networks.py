"""Batches and settings for tests of the cloning network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phonate.tasks.cloning.network import sequence_layout
from phonate.tasks.cloning.settings import CloningLoRA, CloningModel

INPUTS = (
    "input_ids",
    "position_ids",
    "frames",
    "frame_positions",
    "other_positions",
    "text_positions",
    "audio_positions",
    "sequences",
    "places",
)
"""What of a batch the network is called with, in this order; the lengths of audios may follow."""
Sequence = tuple[int, tuple[int, ...]]
"""Tokens of a sequence before its audios, and the frames of each audio, after which two tokens follow."""
LAYOUT = (((7, (12, 15)), (5, (9,))), ((11, (20,)),))
"""Two rows, two sequences in the first one, and padding in the second one."""


def network_settings(folder: Path, **changes: Any) -> CloningModel:
    """For the model in `folder`, with small adapters."""
    return CloningModel(**{"name": str(folder), "lora": CloningLoRA(rank=4, dropout=0.0), **changes})


def make_batch(
    config: Any, layout: tuple[tuple[Sequence, ...], ...] = LAYOUT, seed: int = 0, side_by_side: bool = False
) -> dict[str, Tensor]:
    """A batch in the form of the task's `collate`, of random tokens and codes; with `side_by_side`, attention is given
    the layout of the sequences."""
    generator = torch.Generator().manual_seed(seed)
    rows = [[_sequence(config, one, generator) for one in row] for row in layout]
    length = max(sum(len(ids) for ids in row) for row in rows)
    input_ids = torch.full((len(rows), length), int(config.pad_token_id))
    position_ids = torch.arange(length).repeat(len(rows), 1)
    starts: list[int] = []
    for number, row in enumerate(rows):
        start = 0
        for ids in row:
            input_ids[number, start : start + len(ids)] = ids
            position_ids[number, start:] = torch.arange(length - start)
            starts.append(number * length + start)
            start += len(ids)
        position_ids[number, start:] = torch.arange(length - start)
    flat = input_ids.flatten()
    is_frame = (flat == config.audio_token_id) | (flat == config.audio_delay_token_id)
    frame_positions = is_frame.nonzero()[:, 0]
    shape = (len(frame_positions), config.num_codebooks)
    batch = {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "frames": torch.randint(0, config.codebook_size, shape, generator=generator),
        "frame_positions": frame_positions,
        "other_positions": (~is_frame).nonzero()[:, 0],
        "text_positions": (flat == config.audio_bos_token_id).nonzero()[:, 0],
        "audio_positions": frame_positions[::2],
    }
    if side_by_side:
        lengths = [len(ids) for row in rows for ids in row]
        batch["sequences"], batch["places"] = sequence_layout(starts, lengths, input_ids.numel())
    return batch


def _sequence(config: Any, sequence: Sequence, generator: torch.Generator) -> Tensor:
    text, audios = sequence
    parts = [torch.randint(0, 256, (text,), generator=generator)]
    for frames in audios:
        placeholders = torch.full((frames,), int(config.audio_token_id))
        placeholders[-7:] = config.audio_delay_token_id
        ends = torch.tensor([config.eos_token_id, 65])
        parts += [torch.tensor([config.audio_bos_token_id]), placeholders, ends]
    return torch.cat(parts)


def as_transformers_takes_it(config: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same batch for transformers' forward: the frames of each row, padded on the right."""
    rows, length = batch["input_ids"].shape
    owners = batch["frame_positions"] // length
    counts = [int((owners == row).sum()) for row in range(rows)]
    frames = torch.full((rows, max(counts), config.num_codebooks), int(config.audio_stream_eos_id))
    mask = torch.zeros(rows, max(counts), dtype=torch.bool)
    for row, count in enumerate(counts):
        frames[row, :count] = batch["frames"][owners == row]
        mask[row, :count] = True
    return {
        "input_ids": batch["input_ids"],
        "position_ids": batch["position_ids"],
        "audio_input_ids": frames,
        "audio_input_ids_mask": mask,
    }
