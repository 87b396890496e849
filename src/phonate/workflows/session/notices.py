"""Notices of completion: an e-mail, a message to a chat, or both, when a session has ended.

Training takes hours, and nobody watches. What is configured is checked before the work begins (`check`), so that a
password that is missing is told then; what can't be sent at the end is told (`send`) and never turns a session that
succeeded into one that failed.
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
import time
import unicodedata
from email.message import EmailMessage
from email.utils import format_datetime, localtime, make_msgid
from typing import Annotated, Literal
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPErrorProcessor, HTTPSHandler, Request, build_opener

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from phonate.config.errors import InputError
from phonate.config.settings import Settings

RETRY_PAUSE_SECONDS = 2.0
"""How long a webhook that did not take the message is left alone before the one second try."""

_ADDRESS = re.compile(r"[^\s\x00-\x1f\x7f@,;:<>()\[\]\"\\]+@[^\s\x00-\x1f\x7f@,;:<>()\[\]\"\\]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PASSING = frozenset({429, 500, 502, 503, 504})
"""HTTP answers that a second try may turn into success."""


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError(f"{value!r} is no e-mail address; write it as name@example.org, without a name before it")
    return value


def _host(value: str) -> str:
    # label by label, as the socket will: one that is empty or too long ends there in a UnicodeError
    try:
        plain = value.encode("idna").decode()
    except UnicodeError:
        plain = ""
    if not plain or re.search(r"[\s\x00-\x1f\x7f/@]", plain):
        raise ValueError(f"{value!r} is no name of a server; write it as mail.example.org")
    return value


Address = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, AfterValidator(_host)]


class EmailNotice(Settings):
    """An e-mail, handed to a mail server."""

    to: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Who is told: one address or more."""
    sender: Address
    """The address that it comes from. Most servers take only your own."""
    host: Host
    """The mail server (SMTP), such as mail.example.org."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """Its port: most often 587 with starttls, 465 with tls, 25 with none."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """starttls begins in the open and then encrypts, tls encrypts from the start; both check the server's certificate.
    none is for a server on this machine: it takes no password."""
    user: str | None = None
    """The name to log in with. Null: no log in."""
    password: Annotated[str | None, Field(repr=False)] = None
    """The password; `$NAME` is the environment variable NAME, which keeps it out of recipes and logs."""
    timeout_seconds: PositiveFloat = 10.0
    """How long each answer of the server is waited for."""

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
    """Where to, http or https; `$NAME` is the environment variable NAME. Whoever knows a chat's address can post."""
    headers: Annotated[dict[str, str], Field(default_factory=dict, repr=False)]
    """Further headers, such as Authorization; a value `$NAME` is the environment variable NAME."""
    timeout_seconds: PositiveFloat = 10.0
    """How long an answer is waited for."""


class NoticeSettings(Settings):
    """Who is told when a session has ended."""

    email: EmailNotice | None = None
    """An e-mail. Null: none."""
    webhook: WebhookNotice | None = None
    """A message to a chat or a service. Null: none."""


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
    """How long it took."""
    output: str
    """The folder of results."""
    log: str
    """The session's JSON log."""


def check(settings: NoticeSettings, key: str = "notices") -> None:
    """Find out now what would keep a notice from being sent later, short of asking the servers.

    Raises InputError that names the setting, under `key`, and the mend.
    """
    if settings.email is not None:
        _password(settings.email, f"{key}.email")
    if settings.webhook is not None:
        _request(settings.webhook, b"", f"{key}.webhook")


def send(settings: NoticeSettings, outcome: Outcome, key: str = "notices") -> list[str]:
    """Tell everyone who is to be told; one line for each notice that could not be sent, and why.

    Servers that are not there, refuse, fail or hang never raise.
    """
    lines: list[str] = []
    try:
        if settings.email is not None:
            lines += _mail(settings.email, outcome, f"{key}.email")
    except InputError as error:  # a variable that `check` would have missed
        lines.append(f"notice by e-mail not sent: {error}")
    try:
        if settings.webhook is not None:
            lines += _post(settings.webhook, outcome, f"{key}.webhook")
    except InputError as error:
        lines.append(f"notice by webhook not sent: {error}")
    return lines


def _secret(value: str, key: str) -> str:
    """`value`, or what the environment variable holds that it names."""
    if not value.startswith("$"):
        return value
    found = os.environ.get(value[1:])
    if not found:
        raise InputError(f"{key}: the environment variable {value[1:]} is not set; export {value[1:]}=...")
    return found


def _one_line(text: str) -> str:
    """`text` in one line without control characters, fit for headers and for JSON (undecodable names as \\x..)."""
    encodable = text.encode("utf-8", "backslashreplace").decode()
    return " ".join("".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in encodable).split())


def _took(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _summary(outcome: Outcome) -> str:
    return _one_line(f"phonate: training {outcome.outcome} (session {outcome.session_id})")


# --- e-mail ---------------------------------------------------------------------------------------------------------


def _password(notice: EmailNotice, key: str) -> str | None:
    if notice.user is None or notice.password is None:
        return None
    password = _secret(notice.password, f"{key}.password")
    if not (notice.user.isascii() and password.isascii()):
        raise InputError(f"{key}: user and password must be plain ASCII to log in to a mail server")
    return password


def _letter(notice: EmailNotice, outcome: Outcome) -> EmailMessage:
    letter = EmailMessage()
    letter["Subject"] = _summary(outcome)
    letter["From"] = notice.sender
    letter["To"] = ", ".join(notice.to)
    letter["Date"] = format_datetime(localtime())
    letter["Message-ID"] = make_msgid(domain=notice.sender.rpartition("@")[2])
    letter["Auto-Submitted"] = "auto-generated"  # keeps holiday replies away (RFC 3834)
    facts = {
        "Outcome": outcome.outcome,
        "Message": outcome.message,
        "Session": outcome.session_id,
        "Took": _took(outcome.seconds),
        "Mode": outcome.mode,
        "Data": outcome.voice_mode,
        "Device": outcome.device,
        "Output": outcome.output,
        "Log": outcome.log,
    }
    body = "".join(f"{name + ':':<9} {_one_line(value)}\n" for name, value in facts.items())
    # quoted-printable passes every server; long lines and 8-bit characters do not
    letter.set_content(body, cte="quoted-printable")
    return letter


def _mail(notice: EmailNotice, outcome: Outcome, key: str) -> list[str]:
    """Send the e-mail; one line for each address that did not get it."""
    password = _password(notice, key)
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
            # the letter is in the server's hands: how the goodbye goes changes nothing
            with contextlib.suppress(OSError, smtplib.SMTPException):
                server.quit()
    except smtplib.SMTPAuthenticationError as error:
        return [f"{failed}: log in refused ({_answer(error.smtp_error)}); check {key}.user and {key}.password"]
    except smtplib.SMTPRecipientsRefused as error:
        return [_refused(failed, address, answer, key) for address, answer in error.recipients.items()]
    except smtplib.SMTPResponseException as error:
        return [f"{failed}: the server answered {error.smtp_code} {_answer(error.smtp_error)}; check {key}"]
    except smtplib.SMTPNotSupportedError as error:
        return [f"{failed}: {_one_line(str(error))} Check {key}.security and {key}.port"]
    except smtplib.SMTPException as error:
        if isinstance(error.__context__, TimeoutError):  # smtplib calls it a closed connection
            return [f"{failed}: no answer in {notice.timeout_seconds:g} s; check {key}.host, .port and .security"]
        return [f"{failed}: {_one_line(str(error))}; check {key}.security and {key}.port"]
    except OSError as error:
        return [f"{failed}: {_reason(error, notice.timeout_seconds)}; check {key}.host, .port and .security"]
    return [_refused(failed, address, answer, key) for address, answer in refused.items()]


def _connect(notice: EmailNotice) -> smtplib.SMTP:
    if notice.security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(notice.host, notice.port, timeout=notice.timeout_seconds, context=context)
    return smtplib.SMTP(notice.host, notice.port, timeout=notice.timeout_seconds)


def _refused(failed: str, address: str, answer: tuple[int, bytes], key: str) -> str:
    return f"{failed} to {address}: refused ({answer[0]} {_answer(answer[1])}); check {key}.to"


def _answer(answer: bytes | str) -> str:
    return _one_line(answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer)[:200]


# --- webhook --------------------------------------------------------------------------------------------------------


class _EveryAnswer(HTTPErrorProcessor):
    """Hands back every answer, redirects included: a POST that is redirected would lose its body, or take it and its
    secrets to another host."""

    def http_response(self, request: Request, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        """The answer as it came."""
        return response

    https_response = http_response


def _request(notice: WebhookNotice, body: bytes, key: str) -> Request:
    """The POST. Raises InputError where it can't be one; never shows the address, which is a secret with many chats."""
    url = _secret(notice.url, f"{key}.url")
    try:
        parts = urlsplit(url)
        well_formed = parts.hostname is not None and parts.port != 0
        _host(parts.hostname or "")
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
        raise InputError(
            f"{where}: a $NAME stands alone; put the whole value, the words before it too, in the variable"
        )
    found = _secret(value, where)
    if not found.isascii() or re.search(r"[\x00-\x1f\x7f]", found):
        raise InputError(f"{where}: line breaks and characters beyond ASCII have no place in a header")
    return found


def _post(notice: WebhookNotice, outcome: Outcome, key: str) -> list[str]:
    """Post the JSON, twice where that may help; no line, or the one that says why it did not arrive."""
    facts = {name: _one_line(v) if isinstance(v, str) else v for name, v in dataclasses.asdict(outcome).items()}
    text = _one_line(f"{_summary(outcome)} after {_took(outcome.seconds)}: {outcome.message} ({outcome.output})")
    request = _request(notice, json.dumps({"text": text, **facts}).encode(), key)
    trouble, passing = _attempt(request, notice.timeout_seconds, key)
    if passing:
        time.sleep(RETRY_PAUSE_SECONDS)
        trouble, _ = _attempt(request, notice.timeout_seconds, key)
    return [f"notice by webhook not sent to {request.host}: {trouble}"] if trouble else []


def _attempt(request: Request, timeout: float, key: str) -> tuple[str | None, bool]:
    """(what went wrong, whether a second try may help). What was too slow may have arrived: it is not sent twice."""
    opener = build_opener(HTTPSHandler(context=ssl.create_default_context()), _EveryAnswer)
    try:
        with opener.open(request, timeout=timeout) as response:
            status, place = response.status, response.headers.get("Location", "")
    except http.client.HTTPException as error:
        return f"no answer in HTTP ({_one_line(str(error)) or type(error).__name__}); check {key}.url", False
    except OSError as error:
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, OSError) else error
        again = not isinstance(cause, TimeoutError | ssl.SSLError)
        return f"{_reason(cause, timeout)}; check {key}.url", again
    if 200 <= status < 300:
        return None, False
    if 300 <= status < 400:
        moved = urlsplit(place)
        there = f" to {_one_line(moved.scheme)}://{_one_line(moved.netloc)}" if moved.netloc else ""
        return f"answered {status}, moved{there}; set {key}.url to the new address", False
    return f"answered {status} {http.client.responses.get(status, '')}".rstrip() + f"; check {key}", status in _PASSING


def _reason(error: OSError, timeout: float) -> str:
    """What happened on the way, in one line."""
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}; SSL_CERT_FILE names one of your own)"
    return _one_line(error.strerror or str(error))
