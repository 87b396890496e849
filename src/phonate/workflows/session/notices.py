"""Notices at the end of a session: an e-mail, a message to a chat, or both.

What is configured is checked before the work begins (`check`), so that a missing password is reported then; a notice
that can't be sent at the end (`send`) is reported and never fails the session.

Each notice is sent by a child process with a limit on its time and memory. Timeouts of sockets are per read: a server
that drips bytes, or answers without end, would otherwise hold the session for ever. The libraries for notices
(apprise) have per-read timeouts only, follow redirects, and don't report which recipient or setting was refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from typing import Any

from phonate.config.errors import InputError
from phonate.workflows.session.notice_email import password_of, send_email
from phonate.workflows.session.notice_outcome import Outcome as Outcome
from phonate.workflows.session.notice_outcome import one_line
from phonate.workflows.session.notice_settings import EmailNotice as EmailNotice
from phonate.workflows.session.notice_settings import NoticeSettings as NoticeSettings
from phonate.workflows.session.notice_settings import WebhookNotice as WebhookNotice
from phonate.workflows.session.notice_webhook import request_of, send_webhook

RETRY_PAUSE_SECONDS = 2.0
"""Pause before the second and last attempt at a webhook."""
_TIMEOUTS = 6
"""Time for a whole exchange, in units of the timeout for one answer."""
_START_SECONDS = 20.0
"""Time for the child process to start, on a busy machine."""
_MEMORY = 2**30
"""Address space of the child process in bytes."""
_CHILD = "from phonate.workflows.session.notices import send_in_child; send_in_child()"


def check(settings: NoticeSettings, key: str = "notices") -> None:
    """Report now what would keep a notice from being sent later, short of asking the servers.

    Raises InputError that names the setting, under `key`, and how to fix it.
    """
    if settings.email is not None:
        password_of(settings.email, f"{key}.email")
    if settings.webhook is not None:
        request_of(settings.webhook, b"", f"{key}.webhook")


def send(settings: NoticeSettings, outcome: Outcome, key: str = "notices") -> list[str]:
    """Send all notices; returns one line for each that could not be sent, with the reason. Never raises."""
    lines: list[str] = []
    if settings.email is not None:
        lines += _deliver("email", settings.email, outcome, key)
    if settings.webhook is not None:
        lines += _deliver("webhook", settings.webhook, outcome, key)
    return lines


def _deliver(kind: str, notice: EmailNotice | WebhookNotice, outcome: Outcome, key: str) -> list[str]:
    """Send one notice in a child process; returns the lines that report a failure."""
    failed = f"notice by {'e-mail' if kind == 'email' else kind} not sent"
    limit = _TIMEOUTS * notice.timeout_seconds
    request = {
        "kind": kind,
        "notice": notice.model_dump(mode="json"),
        "outcome": dataclasses.asdict(outcome),
        "key": f"{key}.{kind}",
        "pause": RETRY_PAUSE_SECONDS,
        "limit": limit,
    }
    too_long = [f"{failed}: the exchange took longer than {limit:g} s and was ended; check {key}.{kind}"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=json.dumps(request),  # not in the arguments, which other users can list
            capture_output=True,
            text=True,
            timeout=limit + _START_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C is the session's
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        if done.returncode == 0:
            return [str(line) for line in json.loads(done.stdout)]
        if done.returncode == -signal.SIGALRM:
            return too_long
        reason = one_line(done.stderr.strip().rpartition("\n")[2]) or f"exit code {done.returncode}"
        return [f"{failed}: {reason}; check {key}.{kind}"]
    except subprocess.TimeoutExpired:
        return too_long
    except (OSError, ValueError) as error:
        return [f"{failed}: {one_line(str(error))}"]


def send_in_child() -> None:
    """Send the notice described on standard input, and print the lines that report a failure as JSON."""
    import resource

    request: dict[str, Any] = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["limit"])  # ends the process, whatever it waits for
    outcome, key = Outcome(**request["outcome"]), request["key"]
    try:
        if request["kind"] == "email":
            lines = send_email(EmailNotice.model_validate(request["notice"]), outcome, key)
        else:
            lines = send_webhook(WebhookNotice.model_validate(request["notice"]), outcome, key, request["pause"])
    except InputError as error:  # an environment variable that is gone by now
        name = "e-mail" if request["kind"] == "email" else request["kind"]
        lines = [f"notice by {name} not sent: {error}"]
    json.dump(lines, sys.stdout)
