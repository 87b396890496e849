"""What commands with a trained model do before they load it: refuse what can't be read or written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def require_recording(recording: str, run: str) -> None:
    """Raise InputError for a recording that is not there, is none, or is given before the run, before the work
    starts."""
    from phonate.config.errors import InputError

    if os.path.isfile(run) and os.path.isfile(recording):
        raise InputError(f"{run}: a file, not a run; give one recording at a time, and a run in front of it")
    if os.path.isfile(run):
        raise InputError(f"{run}: a file; the run comes first: {recording} {run}")
    if os.path.isfile(os.path.join(recording, "recipe.yaml")):
        raise InputError(f"{recording}: a run; give the recording behind it, as in {recording} IN.wav")
    require_sounds([recording])


def require_sounds(recordings: Iterable[str]) -> None:
    """Raise InputError for what is no recording on this machine, before the work starts."""
    from phonate.audio.readers import opened
    from phonate.compute.remote import is_remote
    from phonate.config.errors import InputError

    for recording in recordings:
        if is_remote(recording):
            raise InputError(f"{recording}: an address; download the recording, and give its file")
        with opened(Path(recording)):
            pass


def require_folders(*paths: str | None) -> None:
    """Raise InputError for a file that can't be written there, before the work starts."""
    from phonate.config.errors import InputError, plain_file

    for path in filter(None, paths):
        if not Path(path).absolute().parent.is_dir():
            raise InputError(f"{path}: the folder {Path(path).parent} does not exist; create it first")
        plain_file(Path(path))


def without_blas_threads() -> None:
    """Let NumPy's products of matrices run on the thread that asks for them. Those of a voice are so small that other
    threads would spend more time on waiting for each other than on them."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # is read when NumPy is imported
