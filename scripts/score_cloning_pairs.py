"""What models that clone voices make of pairs: the loss of the targets' codes, and what they say themselves.

    python scripts/score_cloning_pairs.py PAIRS RUN... [--say]

For each run a line: the cross entropy of a code of the targets in nats and the share of codes that are the likeliest,
both given the codes before. With --say the targets' texts are said in the voices of the references, taking the
likeliest codes: how many end on the very frame that the recording ends on, and the share of the recordings' codes that
is said.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from phonate.config.resolve import resolve
from phonate.data.parallel import track
from phonate.tasks.cloning.decoding import Sampling
from phonate.tasks.cloning.inference import VoiceCloner
from phonate.tasks.cloning.network import CloningNetwork
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.tasks.cloning.task import ACCURACY, CloningTask
from phonate.training.inference import Reference

ROWS = 2
"""Of a batch."""
SPARE_SECONDS = 2.0
"""That speech may last longer than the recording."""


def task_of(run: Path, pairs: Path) -> CloningTask:
    """The task of `run`, with `pairs` in place of its data, and token losses alone."""
    recipe = resolve(run / "recipe.yaml").recipe
    assert isinstance(recipe, CloningRecipe)
    loss = recipe.training.loss.model_copy(update={"weights": {}, "codebooks": "uniform", "audio_label_smoothing": 0.0})
    data = recipe.data.model_copy(update={"path": str(pairs), "validation": 0.0})
    training = recipe.training.model_copy(update={"loss": loss})
    return CloningTask(recipe.model_copy(update={"data": data, "training": training}))


@torch.no_grad()
def codes_given_codes(task: CloningTask, network: CloningNetwork) -> tuple[float, float]:
    """Cross entropy of a code, and the share that is the likeliest."""
    dataset, generator = task.dataset("train"), np.random.default_rng(0)
    sums = np.zeros(3)
    for start in track("codes", range(0, len(dataset.rows), ROWS)):
        rows = range(start, min(start + ROWS, len(dataset.rows)))
        batch = dataset.collate([dataset.get(row, generator) for row in rows])
        terms = task.loss(network, batch, "train")
        sums += (float(terms["audio"][0]), float(terms[ACCURACY][0]), dataset.unit_counts(batch)["codes"])
    return sums[0] / sums[2], sums[1] / sums[2]


def said(task: CloningTask, cloner: VoiceCloner) -> tuple[int, int, float]:
    """How many targets there are, how many are ended in time, and the share of their codes that is said."""
    samples = task.corpus.samples("train")
    expected = [task.corpus.codes(sample.target) for sample in samples]
    pieces = []
    for sample, own in zip(samples, expected, strict=True):
        reference = Reference(*soundfile.read(sample.reference.path, dtype="float32"), sample.reference_text)
        seconds = len(own) / cloner.codec.frame_rate + SPARE_SECONDS
        pieces.append(cloner.pieces(reference, sample.target_text, seconds))
    made = cloner.generate(pieces, Sampling(temperature=0.0), 0)
    ended = sum(len(codes) == len(own) for codes, own in zip(made, expected, strict=True))
    equal = sum(equal_codes(codes, own) for codes, own in zip(made, expected, strict=True))
    return len(samples), ended, equal / sum(own.size for own in expected)


def equal_codes(made: NDArray[np.int16], expected: NDArray[np.int16]) -> int:
    """How many codes of two utterances, frame by frame, are the same."""
    length = min(len(made), len(expected))
    return int((made[:length] == expected[:length]).sum())


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--say", action="store_true")
    arguments = parser.parse_args()
    for run in arguments.runs:
        task, cloner = task_of(run, arguments.pairs), VoiceCloner.load(run)
        entropy, share = codes_given_codes(task, CloningNetwork(cloner.model).eval())
        line = f"{run}: {entropy:.4f} nats a code, {100 * share:.2f} % of codes the likeliest"
        if arguments.say:
            total, ended, equal = said(task, cloner)
            line += f"; said: {ended} of {total} ended in time, {100 * equal:.2f} % of the codes"
        print(line, flush=True)


if __name__ == "__main__":
    main()
