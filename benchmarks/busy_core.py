"""How long an optimizer step takes where another program keeps a core busy, for these sources beside an older revision.

    git worktree add /tmp/older REVISION
    python benchmarks/busy_core.py --other /tmp/older/src [--rounds 5] [--busy 0 1] [--recipes speech] [--out FILE.md]

`phonate train RECIPE` on the packaged recordings, with as many threads as by default, in processes in turns, beside
programs that count. A callback from a plug-in notes the time of each step; the first ones are left out. The ratio is
the median over rounds of the mean step's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trained_beside import arguments, conditions, measured, prepare, publish, sides, step_clock

RECIPES = {
    "speech": ("training.adversarial_start=1",),
    "conversion-whisper": ("training.adversarial_start=1",),
    "recognition": (),
}
SKIPPED, STEPS = 4, 12
_HEADER = """# A step beside a busy program

    python {command}

`phonate train RECIPE` on the packaged recordings: seconds of a step, mean of {steps}; medians of {rounds} rounds in
turns, and the median of the ratios of the rounds. {machine}, {cores} cores and as many threads; load {load:.2f} at the
end; Python {python}, torch {torch}.

| recipe | busy programs | step | older | ratio |
|---|---|---|---|---|
"""


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Within, `count` programs compute without a pause."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    """Run all in turns and print the table."""
    os.environ.pop("OMP_NUM_THREADS", None)
    given = arguments(__doc__, RECIPES, rounds=5, busy=(0, 1))
    taken: dict[tuple[str, int], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, step_clock("perf_counter", SKIPPED, STEPS))
        for _ in range(given.rounds):
            for recipe in given.recipes:
                for count in given.busy:
                    train = [recipe, "data.path=clips", *RECIPES[recipe], "training.max_steps=60"]
                    with beside(count):
                        both = [
                            measured([*train, f"data.cache_dir=cache-{side}"], sources, folder)[0]
                            for side, sources in sides(given).items()
                        ]
                    taken.setdefault((recipe, count), []).append(both)
    text = _HEADER.format(steps=STEPS, rounds=given.rounds, **conditions())
    for (recipe, count), rounds in taken.items():
        ours, older = (statistics.median(side) for side in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        text += f"| {recipe} | {count} | {ours:.3f} | {older:.3f} | {ratio:.2f} |\n"
    publish(text, given.out)


if __name__ == "__main__":
    main()
