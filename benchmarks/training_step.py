"""How long an optimizer step of a shipped recipe takes, for these sources beside an older revision.

    git worktree add /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/training_step.py --other /tmp/older/src [--rounds 3] [--formats bf16]
        [--out FILE.md]

`phonate train RECIPE` on the packaged recordings, adversarial from its first step, in processes in turns. A callback
from a plug-in notes the processor time of each step; the first ones, in which memory is allocated, are left out. Each
process of a recipe trains on the same batches. The ratio is the median over rounds of the mean step's.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from trained_beside import arguments, conditions, measured, prepare, publish, sides, step_clock

RECIPES = {
    "speech": ("training.init_from=null", "training.adversarial_start=1"),
    "vocoder": ("training.adversarial_start=1",),
    "conversion": ("training.adversarial_start=1",),
    "conversion-whisper": ("training.adversarial_start=1",),
    "recognition": (),
}
FORMATS = ("fp32", "bf16")
SKIPPED, STEPS = 4, 8
_HEADER = """# An optimizer step

    OMP_NUM_THREADS=1 python {command}

`phonate train RECIPE` on the packaged recordings, with its discriminator where it has one: seconds of processor time
of a step, mean of {steps}; medians of {rounds} rounds in turns, and the median of the ratios of the rounds. {machine},
{cores} cores, one thread, load {load:.2f}; Python {python}, torch {torch}.

| recipe | format | step | older | ratio |
|---|---|---|---|---|
"""


def step(recipe: str, number_format: str, side: str, sources: Path, folder: Path) -> float:
    """Processor seconds of a step with the sources in `sources`, which prepare the corpus for themselves."""
    options = (f"training.mixed_precision={number_format}", "training.max_steps=60", f"data.cache_dir=cache-{side}")
    return measured([recipe, "data.path=clips", *RECIPES[recipe], *options], sources, folder)[0]


def main() -> None:
    """Run all in turns and print the table."""
    given = arguments(__doc__, RECIPES, rounds=3, formats=FORMATS)
    taken: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, step_clock("process_time", SKIPPED, STEPS))
        for _ in range(given.rounds):
            for recipe in given.recipes:
                for number_format in given.formats:
                    both = [step(recipe, number_format, *side, folder) for side in sides(given).items()]
                    taken.setdefault((recipe, number_format), []).append(both)
    text = _HEADER.format(steps=STEPS, rounds=given.rounds, **conditions())
    for (recipe, number_format), rounds in taken.items():
        ours, older = (statistics.median(side) for side in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        text += f"| {recipe} | {number_format} | {ours:.3f} | {older:.3f} | {ratio:.2f} |\n"
    publish(text, given.out)


if __name__ == "__main__":
    main()
