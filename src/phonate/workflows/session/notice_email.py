"""A notice by e-mail (SMTP)."""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime, localtime, make_msgid

from phonate.config.errors import InputError
from phonate.workflows.session.notice_outcome import Outcome, network_error, one_line, summary, took
from phonate.workflows.session.notice_settings import EmailNotice, secret


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
