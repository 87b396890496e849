"""How a session ended, in the words of a notice."""

from __future__ import annotations

import dataclasses
import ssl
import unicodedata
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    session_id: str
    outcome: Literal["done", "failed", "interrupted"]
    message: str
    """The last line of the session."""
    mode: str
    voice_mode: str
    device: str
    seconds: float
    """Duration of the session."""
    output: str
    """The folder of results."""
    log: str
    """The session's JSON log."""


def one_line(text: str) -> str:
    """`text` in one line without control characters, for headers and JSON (undecodable names as \\x..)."""
    encodable = text.encode("utf-8", "backslashreplace").decode()
    return " ".join("".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in encodable).split())


def took(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def summary(outcome: Outcome) -> str:
    return one_line(f"phonate: training {outcome.outcome} (session {outcome.session_id})")


def network_error(error: OSError, timeout: float) -> str:
    """A network error in one line."""
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}; SSL_CERT_FILE names one of your own)"
    return one_line(error.strerror or str(error))
