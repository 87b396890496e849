"""The commands. A command is a module with `add_arguments(parser)` and `run(args) -> exit code`."""

from __future__ import annotations

COMMANDS = {
    "train": ("phonate.cli.train", "train a recipe into a run folder"),
    "explain": ("phonate.cli.explain", "print every value of a recipe with where it came from"),
    "checkpoints": ("phonate.cli.checkpoints", "list, verify, prune and export the checkpoints of a run"),
    "new": ("phonate.cli.new", "write the first version of a loss, callback, task, ... with its test"),
}
"""Command -> (module, imported only when the command is called; one-line help)."""
