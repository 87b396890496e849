"""The commands. A command is a module with `add_arguments(parser)` and `run(args) -> exit code`."""

from __future__ import annotations

COMMANDS = {
    "demo": ("phonate.cli.commands.demo", "the whole path on an embedded corpus, or on your own recordings"),
    "session": ("phonate.cli.commands.session", "find a device and recordings or texts, and train a model on them"),
    "train": ("phonate.cli.commands.train", "train a recipe into a run folder"),
    "speak": ("phonate.cli.commands.speak", "say a text in a trained voice"),
    "predict": (
        "phonate.cli.commands.predict",
        "write the mels that a voice makes of its corpus, for a vocoder to learn from",
    ),
    "convert": ("phonate.cli.commands.convert", "speak a recording again in another voice"),
    "generate": ("phonate.cli.commands.generate", "let a trained language model answer a prompt, or go on with a text"),
    "transcribe": ("phonate.cli.commands.transcribe", "write down what is said in a recording"),
    "evaluate": ("phonate.cli.commands.evaluate", "judge a run beside a baseline and the ceiling"),
    "data": ("phonate.cli.commands.data", "check, prepare and describe a corpus"),
    "resources": ("phonate.cli.commands.resources", "show the GPUs, cores and memory there are to train on"),
    "explain": ("phonate.cli.commands.explain", "print every value of a recipe with where it came from"),
    "report": ("phonate.cli.commands.report", "write a run's report: curves, sounds and figures on one page"),
    "checkpoints": ("phonate.cli.commands.checkpoints", "list, verify, prune, export and compare a run's checkpoints"),
    "new": ("phonate.cli.commands.new", "write the first version of a loss, callback or task with its test"),
}
"""Command -> (module, imported only when the command is called; one-line help)."""
