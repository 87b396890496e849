"""Notices at the end of a session: an e-mail, a message to a chat, or both.

What is configured is checked before the work begins (`check`), so that a missing password is reported then; a notice
that can't be sent at the end (`send`) is reported and never fails the session.

Each notice is sent by a child process with a limit on its time and memory. Timeouts of sockets are per read: a server
that drips bytes, or answers without end, would otherwise hold the session for ever. The libraries for notices
(apprise) have per-read timeouts only, follow redirects, and don't report which recipient or setting was refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import smtplib
import ssl
import subprocess
import sys
import time
import unicodedata
from email.message import EmailMessage
from email.utils import format_datetime, localtime, make_msgid
from typing import Annotated, Any, Literal
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPErrorProcessor, HTTPSHandler, Request, build_opener

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from phonate.compute.system import TIMEOUT_CODE, end_after, limit_memory
from phonate.config.errors import InputError
from phonate.config.settings import Settings

# ------------------------------------------------------------------------------------------ Settings

_ADDRESS = re.compile(r"[^\s\x00-\x1f\x7f@,;:<>()\[\]\"\\]+@[^\s\x00-\x1f\x7f@,;:<>()\[\]\"\\]+")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError(f"{value!r} is not an e-mail address; write it as name@example.org, without a display name")
    return value


def host(value: str) -> str:
    # label by label, as the socket will: one that is empty or too long ends there in a UnicodeError
    try:
        plain = value.encode("idna").decode()
    except UnicodeError:
        plain = ""
    if not plain or re.search(r"[\s\x00-\x1f\x7f/@]", plain):
        raise ValueError(f"{value!r} is not the name of a server; write it as mail.example.org")
    return value


Address = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, AfterValidator(host)]


class EmailNotice(Settings):
    """An e-mail, handed to a mail server."""

    to: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Recipients: one address or more."""
    sender: Address
    """Sender's address. Most servers only accept your own."""
    host: Host
    """Mail server (SMTP), such as mail.example.org."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """Port of the server: usually 587 with starttls, 465 with tls, 25 with none."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """starttls upgrades a plain connection, tls encrypts from the start; both verify the server's certificate. none is
    for a server on this machine, without a password."""
    user: str | None = None
    """User name for the login. Null: no login."""
    password: Annotated[str | None, Field(repr=False)] = None
    """Password; `$NAME` reads the environment variable NAME, which keeps it out of recipes and logs."""
    timeout_seconds: PositiveFloat = 10.0
    """Longest wait for each answer of the server. The whole exchange may take six times as long."""

    @model_validator(mode="after")
    def _whole_login(self) -> EmailNotice:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together; give both or neither")
        if self.password is not None and self.security == "none" and self.host not in _LOCAL:
            raise ValueError("a password is not sent unencrypted; set security to starttls or tls")
        return self


class WebhookNotice(Settings):
    """An HTTP POST of JSON, with a `text` that Slack, Mattermost and Discord (its address + /slack) show."""

    url: Annotated[str, Field(min_length=1, repr=False)]
    """Address, http or https; `$NAME` reads the environment variable NAME. Whoever knows a chat's address can post."""
    headers: Annotated[dict[str, str], Field(default_factory=dict, repr=False)]
    """Additional headers, such as Authorization; a value `$NAME` reads the environment variable NAME."""
    timeout_seconds: PositiveFloat = 10.0
    """Longest wait for an answer. The whole exchange may take six times as long."""


class NoticeSettings(Settings):
    """Who is notified when a session has ended."""

    email: EmailNotice | None = None
    """An e-mail. Null: none."""
    webhook: WebhookNotice | None = None
    """A message to a chat or a service. Null: none."""


def secret(value: str, key: str) -> str:
    """`value`, or what the environment variable holds that it names."""
    if not value.startswith("$"):
        return value
    content = os.environ.get(value[1:])
    if not content:
        raise InputError(f"{key}: the environment variable {value[1:]} is not set; export {value[1:]}=...")
    return content


# ------------------------------------------------------- How a session ended, in the words of a notice


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


# --------------------------------------------------------------------------- A notice by e-mail (SMTP)


def password_of(notice: EmailNotice, key: str) -> str | None:
    if notice.user is None or notice.password is None:
        return None
    password = secret(notice.password, f"{key}.password")
    if not (notice.user.isascii() and password.isascii()):
        raise InputError(f"{key}: user and password must be plain ASCII to log in to a mail server")
    return password


def _letter(notice: EmailNotice, outcome: Outcome) -> EmailMessage:
    letter = EmailMessage()
    letter["Subject"] = summary(outcome)
    letter["From"] = notice.sender
    letter["To"] = ", ".join(notice.to)
    letter["Date"] = format_datetime(localtime())
    letter["Message-ID"] = make_msgid(domain=notice.sender.rpartition("@")[2])
    letter["Auto-Submitted"] = "auto-generated"  # keeps holiday replies away (RFC 3834)
    facts = {
        "Outcome": outcome.outcome,
        "Message": outcome.message,
        "Session": outcome.session_id,
        "Took": took(outcome.seconds),
        "Mode": outcome.mode,
        "Data": outcome.voice_mode,
        "Device": outcome.device,
        "Output": outcome.output,
        "Log": outcome.log,
    }
    body = "".join(f"{name + ':':<9} {one_line(value)}\n" for name, value in facts.items())
    # quoted-printable passes every server; long lines and 8-bit characters do not
    letter.set_content(body, cte="quoted-printable")
    return letter


def send_email(notice: EmailNotice, outcome: Outcome, key: str) -> list[str]:
    """Send the e-mail; returns one line for each address that did not get it."""
    password = password_of(notice, key)
    letter = _letter(notice, outcome)
    failed = f"notice by e-mail not sent over {notice.host}:{notice.port}"
    try:
        server = _connect(notice)
        with contextlib.closing(server):
            if notice.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if notice.user is not None and password is not None:
                server.login(notice.user, password)
            refused = server.send_message(letter, notice.sender, list(notice.to))
            # the message was accepted: a failing goodbye changes nothing
            with contextlib.suppress(OSError, smtplib.SMTPException):
                server.quit()
    except smtplib.SMTPAuthenticationError as error:
        return [f"{failed}: login refused ({_answer(error.smtp_error)}); check {key}.user and {key}.password"]
    except smtplib.SMTPRecipientsRefused as error:
        return [_refused(failed, address, answer, key) for address, answer in error.recipients.items()]
    except smtplib.SMTPResponseException as error:
        return [f"{failed}: the server answered {error.smtp_code} {_answer(error.smtp_error)}; check {key}"]
    except smtplib.SMTPNotSupportedError as error:
        return [f"{failed}: {one_line(str(error))} Check {key}.security and {key}.port"]
    except smtplib.SMTPException as error:
        if isinstance(error.__context__, TimeoutError):  # smtplib calls it a closed connection
            return [f"{failed}: no answer in {notice.timeout_seconds:g} s; check {key}.host, .port and .security"]
        return [f"{failed}: {one_line(str(error))}; check {key}.security and {key}.port"]
    except OSError as error:
        return [f"{failed}: {network_error(error, notice.timeout_seconds)}; check {key}.host, .port and .security"]
    return [_refused(failed, address, answer, key) for address, answer in refused.items()]


def _connect(notice: EmailNotice) -> smtplib.SMTP:
    if notice.security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(notice.host, notice.port, timeout=notice.timeout_seconds, context=context)
    return smtplib.SMTP(notice.host, notice.port, timeout=notice.timeout_seconds)


def _refused(failed: str, address: str, answer: tuple[int, bytes], key: str) -> str:
    return f"{failed} to {address}: refused ({answer[0]} {_answer(answer[1])}); check {key}.to"


def _answer(answer: bytes | str) -> str:
    return one_line(answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer)[:200]


# ----------------------------------------------------------- A notice by webhook: an HTTP POST of JSON

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PASSING = frozenset({429, 500, 502, 503, 504})
"""HTTP answers that a second attempt may turn into success."""


class _EveryAnswer(HTTPErrorProcessor):
    """Returns every answer, redirects included: following one would lose the body, or send it and its secrets to
    another host."""

    def http_response(self, request: Request, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        """The answer as it came."""
        return response

    https_response = http_response


def request_of(notice: WebhookNotice, body: bytes, key: str) -> Request:
    """The POST. Raises InputError for an invalid setting; never shows the address, which is a secret of many chats."""
    url = secret(notice.url, f"{key}.url")
    try:
        parts = urlsplit(url)
        well_formed = parts.hostname is not None and parts.port != 0
        host(parts.hostname or "")
    except ValueError:
        well_formed = False
    if not well_formed or not url.isascii() or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise InputError(f"{key}.url: not an address; write it as https://chat.example.org/hooks/...")
    if parts.scheme not in ("http", "https"):
        raise InputError(f"{key}.url: {parts.scheme}:// can't be posted to; only https:// and http://")
    if parts.username is not None:
        raise InputError(f"{key}.url: name and password have no place in it; set {key}.headers.Authorization")
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "phonate"}
    for name, value in notice.headers.items():
        headers[name] = _header(name, value, key)
    return Request(url, data=body, headers=headers, method="POST")


def _header(name: str, value: str, key: str) -> str:
    where = f"{key}.headers.{name}"
    if not _HEADER_NAME.fullmatch(name):
        raise InputError(f"{key}.headers: {name!r} is no name of a header; letters, digits and - only")
    if re.search(r".\$[A-Za-z_{]", value):
        raise InputError(f"{where}: $NAME must be the whole value; put the text before it into the variable, too")
    content = secret(value, where)
    if not content.isascii() or re.search(r"[\x00-\x1f\x7f]", content):
        raise InputError(f"{where}: line breaks and characters beyond ASCII have no place in a header")
    return content


def send_webhook(notice: WebhookNotice, outcome: Outcome, key: str, pause: float) -> list[str]:
    """Post the JSON, twice where that may help; returns no line, or the one that says why it did not arrive.

    `pause`: seconds before the second attempt.
    """
    facts = {name: one_line(v) if isinstance(v, str) else v for name, v in dataclasses.asdict(outcome).items()}
    text = one_line(f"{summary(outcome)} after {took(outcome.seconds)}: {outcome.message} ({outcome.output})")
    request = request_of(notice, json.dumps({"text": text, **facts}).encode(), key)
    trouble, passing = _attempt(request, notice.timeout_seconds, key)
    if passing:
        time.sleep(pause)
        trouble, _ = _attempt(request, notice.timeout_seconds, key)
    return [f"notice by webhook not sent to {request.host}: {trouble}"] if trouble else []


def _attempt(request: Request, timeout: float, key: str) -> tuple[str | None, bool]:
    """(what went wrong, whether a second try may help). What was too slow may have arrived: it is not sent twice."""
    opener = build_opener(HTTPSHandler(context=ssl.create_default_context()), _EveryAnswer)
    try:
        with opener.open(request, timeout=timeout) as response:
            status, place = response.status, response.headers.get("Location", "")
    except http.client.HTTPException as error:
        return f"no answer in HTTP ({one_line(str(error)) or type(error).__name__}); check {key}.url", False
    except OSError as error:
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, OSError) else error
        again = not isinstance(cause, TimeoutError | ssl.SSLError)
        return f"{network_error(cause, timeout)}; check {key}.url", again
    if 200 <= status < 300:
        return None, False
    if 300 <= status < 400:
        return f"answered {status}, moved{_target(place)}; set {key}.url to the new address", False
    return f"answered {status} {http.client.responses.get(status, '')}".rstrip() + f"; check {key}", status in _PASSING


def _target(location: str) -> str:
    """Where a redirect leads, without its path, which may hold a secret; nothing if the server's answer is invalid."""
    try:
        moved = urlsplit(location)
    except ValueError:
        return ""
    return f" to {one_line(moved.scheme)}://{one_line(moved.netloc)}" if moved.netloc else ""


# ------------------------------------------------------------------------------ Checking and sending

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
        if done.returncode == TIMEOUT_CODE:
            return too_long
        reason = one_line(done.stderr.strip().rpartition("\n")[2]) or f"exit code {done.returncode}"
        return [f"{failed}: {reason}; check {key}.{kind}"]
    except subprocess.TimeoutExpired:
        return too_long
    except (OSError, ValueError) as error:
        return [f"{failed}: {one_line(str(error))}"]


def send_in_child() -> None:
    """Send the notice described on standard input, and print the lines that report a failure as JSON."""
    request: dict[str, Any] = json.load(sys.stdin)
    limit_memory(_MEMORY)
    end_after(request["limit"])
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
