"""Recognising what phonate wrote itself, so that no corpus is built from it."""

from __future__ import annotations

import re
from pathlib import Path

_IN_A_RUN = ("manifest.json", "hyperparameters.json", "metrics.jsonl", "checkpoints")
_SESSION = re.compile(r"session_\d{8}_\d{6}")


def is_output(folder: Path) -> bool:
    """Whether `folder` is a run, an exported model, a session's folder, its logs, or the output folder of sessions.

    Scans for recordings or texts skip such folders below the one they start from: samples, previews and reports in
    them are not part of a corpus.
    """
    if (folder / "recipe.yaml").is_file() and any((folder / name).exists() for name in _IN_A_RUN):
        return True
    if _SESSION.fullmatch(folder.name) and (folder.parent / "logs" / f"{folder.name}.json").is_file():
        return True
    return _holds_session_logs(folder / "logs") or (folder.name == "logs" and _holds_session_logs(folder))


def _holds_session_logs(folder: Path) -> bool:
    try:
        return any(_SESSION.fullmatch(file.stem) for file in folder.glob("session_*.json"))
    except OSError:  # unreadable: whoever reads the folder reports it
        return False
