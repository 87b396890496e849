"""The whole path once, in minutes: a corpus, training that is stopped and resumed, what it can do then, a report.

Recordings with texts become a voice that speaks; recordings of several speakers, voices to convert to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from phonate.config.errors import InputError
from phonate.workflows.demo.conversion import convert_voices
from phonate.workflows.demo.speech import learn_to_speak
from phonate.workflows.demo.training import Say
from phonate.workflows.pages.report import write_report

Kind = Literal["speech", "conversion"]
MINUTES = 3.5
"""How long is trained unless told otherwise: with all the rest, under ten minutes on two cores."""


def demo(
    output: Path,
    data: Path | None = None,
    minutes: float | None = None,
    say: Say = lambda line: None,
    kind: Kind = "speech",
) -> Path:
    """Run it all in `output`, a folder that is new or empty; returns where the report is.

    Args:
        data: Recordings with texts, in any form that `phonate data check` reads; for conversion, a folder with a
            sub-folder of recordings for each of two or more speakers. None: an embedded corpus.
        minutes: About how long training takes. None: MINUTES.
        say: Told what is being done, line by line.
        kind: What to train.

    Raises InputError for a folder that can't be used and PhonateError when training fails.
    """
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; choose another folder by --output")
    output.mkdir(parents=True, exist_ok=True)
    learn = learn_to_speak if kind == "speech" else convert_voices
    learn(data, output, MINUTES if minutes is None else minutes, say)
    say("\nwriting the report")
    return write_report(output)


def free_folder(wanted: Path) -> Path:
    """`wanted`, or `wanted-2`, `wanted-3`, ... when something lies in it already."""
    number, path = 1, wanted
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
