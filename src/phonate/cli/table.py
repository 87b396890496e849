"""The commands. A command is a module with `add_arguments(parser)` and `run(args) -> exit code`."""

from __future__ import annotations

COMMANDS = {
    "demo": ("phonate.cli.commands.demo", "train, interrupt, resume and evaluate a small voice, end to end"),
    "session": ("phonate.cli.commands.session", "detect the device and the data, and train a model"),
    "train": ("phonate.cli.commands.train", "train a recipe into a run folder"),
    "speak": ("phonate.cli.commands.speak", "synthesise speech from text"),
    "predict": (
        "phonate.cli.commands.predict",
        "write a voice's teacher-forced mels, to train a vocoder on",
    ),
    "clone": ("phonate.cli.commands.clone", "speak a text in the voice of a recording"),
    "convert": ("phonate.cli.commands.convert", "convert a recording to another voice"),
    "generate": ("phonate.cli.commands.generate", "generate text with a trained language model"),
    "transcribe": ("phonate.cli.commands.transcribe", "transcribe a recording"),
    "diarize": ("phonate.cli.commands.diarize", "find out who speaks when in a recording"),
    "score": ("phonate.cli.commands.score", "score a diarization (RTTM): DER with its parts, and JER"),
    "serve": ("phonate.cli.commands.serve", "serve a model that speaks over HTTP, with a page to try it"),
    "evaluate": ("phonate.cli.commands.evaluate", "evaluate a run, with a baseline and a ceiling"),
    "data": ("phonate.cli.commands.data", "check, prepare and describe a corpus"),
    "resources": ("phonate.cli.commands.resources", "list the GPUs, cores and memory available for training"),
    "explain": ("phonate.cli.commands.explain", "print every value of a recipe and where it comes from"),
    "report": ("phonate.cli.commands.report", "write an HTML report of a run: curves, audio and figures"),
    "checkpoints": (
        "phonate.cli.commands.checkpoints",
        "list, verify, prune, export, merge and compare a run's checkpoints",
    ),
    "new": ("phonate.cli.commands.new", "scaffold a loss, callback, corpus format or task with its test"),
}
"""Command -> (module, imported only when the command is called; one-line help)."""
