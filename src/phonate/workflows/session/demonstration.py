"""One example by the model that a session saved: shows that it loads, and gives something to listen to."""

from __future__ import annotations

import shlex
from pathlib import Path

from phonate.audio.decoding import MADE, write_audio
from phonate.workflows.load import load

SAMPLE = "sample.flac"


def sample(made: Path, kept: Path, recording: Path | None = None, text: str | None = None) -> str | None:
    """Apply the model in the folder `made` to one training example; returns a line for the log.

    Sound is written into the folder as sample.flac. The line names the folder `kept`, where it will be. None: the task
    has nothing to demonstrate.
    """
    model = load(made)
    shown = model.demonstration(recording, text)
    if shown is None:
        return None
    where = ""
    if shown.waveform is not None:
        assert model.sample_rate is not None
        write_audio(made / SAMPLE, shown.waveform, model.sample_rate, MADE)
        where = f": {kept / SAMPLE}"
    return f"{shown.summary}{where}. For more: {shown.command.format(run=shlex.quote(str(kept)))}"
