"""Notices of completion, sent to real servers on this machine: what arrives, and what is told when nothing does."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from phonate.config.errors import InputError
from phonate.workflows.session import notices
from phonate.workflows.session.notices import EmailNotice, NoticeSettings, Outcome, WebhookNotice, check, send
from phonate_process import run_python

OUTCOME = Outcome(
    session_id="20261121_143022",
    outcome="done",
    message="Training finished: 200 steps, loss 0.1234",
    mode="mixed",
    voice_mode="voice",
    device="cuda:0",
    seconds=3725.4,
    output="training/output",
    log="training/output/logs/session_20261121_143022.json",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long pause before a second try, no proxy between the tests and this machine, and processes that start fast."""
    monkeypatch.setattr(notices, "RETRY_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("no_proxy", "*")

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        del options["capture_output"], options["check"], options["start_new_session"]
        return run_python(*command[1:], **options)

    monkeypatch.setattr(notices, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))


@pytest.fixture
def closed_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("certificate")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", *words.split(), "-out", str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True
    )
    return files


def served_with(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


# --- e-mail ---------------------------------------------------------------------------------------------------------


class Mailbox:
    """A mail server's memory; recipients at refused.example are refused, and all of them once `full` is set."""

    def __init__(self) -> None:
        self.letters: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.full = False

    def login(self, server: SMTP, session: Session, envelope: Envelope, kind: str, data: object) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right", handled=False)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.endswith("@refused.example"):
            return "550 no such\tuser"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.full:
            return "452 disk full"
        assert isinstance(envelope.content, bytes)
        self.envelopes.append(envelope)
        self.letters.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
        return "250 OK"


class Post(Controller):
    """An aiosmtpd controller on a port that the system picks."""

    def __init__(self, mailbox: Mailbox, **options: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        super().__init__(mailbox, hostname="127.0.0.1", port=port, authenticator=mailbox.login, **options)

    def __enter__(self) -> Post:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def email(server: Post | int, **given: Any) -> NoticeSettings:
    port = server if isinstance(server, int) else server.port
    fields: dict[str, Any] = {"to": ("a@example.org",), "sender": "me@example.org", "host": "localhost"}
    return NoticeSettings(email=EmailNotice(**(fields | {"security": "none", "port": port} | given)))


def test_an_email_has_the_facts() -> None:
    mailbox = Mailbox()
    with Post(mailbox) as server:
        assert send(email(server, to=("a@example.org", "b@example.org")), OUTCOME) == []
    (letter,) = mailbox.letters
    assert letter["Subject"] == "phonate: training done (session 20261121_143022)"
    assert (letter["From"], letter["To"]) == ("me@example.org", "a@example.org, b@example.org")
    assert mailbox.envelopes[0].rcpt_tos == ["a@example.org", "b@example.org"]
    assert letter["Date"].datetime is not None
    assert letter["Message-ID"].endswith("@example.org>")
    body = letter.get_content()
    for fact in (OUTCOME.message, "mixed", "voice", "cuda:0", "1 h 2 min", OUTCOME.output, OUTCOME.log):
        assert fact in body


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_log_in_over_a_checked_connection(
    certificate: tuple[Path, Path], security: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox, context = Mailbox(), served_with(certificate)
    options: dict[str, Any] = {"require_starttls": True, "tls_context": context}
    if security == "tls":  # aiosmtpd takes connections encrypted from the start for unencrypted ones
        options = {"ssl_context": context, "auth_require_tls": False}
    monkeypatch.setenv("MAIL_PASSWORD", "right")
    with Post(mailbox, **options) as server:
        settings = email(server, security=security, user="me", password="$MAIL_PASSWORD")
        (line,) = send(settings, OUTCOME)
        assert "certificate is not trusted" in line
        assert "SSL_CERT_FILE" in line
        assert not mailbox.logins
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        check(settings)
        assert send(settings, OUTCOME) == []
        monkeypatch.setenv("MAIL_PASSWORD", "wr-ong")
        (line,) = send(settings, OUTCOME)
    assert len(mailbox.letters) == 1
    assert mailbox.logins[0] == (b"me", b"right")
    assert "login refused" in line
    assert "notices.email.password" in line
    assert "wr-ong" not in line


def test_a_certificate_for_another_name_is_not_trusted(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with Post(Mailbox(), tls_context=served_with(certificate)) as server:
        (line,) = send(email(server, host="127.0.0.1", security="starttls"), OUTCOME)
    assert "certificate is not trusted" in line


def test_nothing_goes_unencrypted_when_the_server_can_not_encrypt() -> None:
    mailbox = Mailbox()
    with Post(mailbox) as server:
        (line,) = send(email(server, security="starttls"), OUTCOME)
    assert "STARTTLS" in line
    assert "notices.email.security" in line
    assert not mailbox.letters


def test_refused_addresses_are_named_and_the_others_told() -> None:
    mailbox = Mailbox()
    with Post(mailbox) as server:
        (some,) = send(email(server, to=("a@example.org", "b@refused.example")), OUTCOME)
        (all_of_them,) = send(email(server, to=("b@refused.example",)), OUTCOME)
        mailbox.full = True
        (full,) = send(email(server), OUTCOME)
    assert len(mailbox.letters) == 1
    for line in (some, all_of_them):
        assert "to b@refused.example: refused (550 no such user)" in line
    assert "452 disk full" in full


def test_mail_servers_that_are_not_there_or_hang(closed_port: int, silent_port: int) -> None:
    (absent,) = send(email(closed_port), OUTCOME)
    (hanging,) = send(email(silent_port, timeout_seconds=0.2), OUTCOME)
    (unknown,) = send(email(25, host="mail.invalid"), OUTCOME)
    assert f"localhost:{closed_port}" in absent
    assert "refused" in absent
    assert "no answer in 0.2 s" in hanging
    for line in (absent, hanging, unknown):
        assert "notices.email.host" in line
        assert "\n" not in line


# --- webhook --------------------------------------------------------------------------------------------------------


class Hook(ThreadingHTTPServer):
    """A server that keeps what it is sent and gives the answers it is told, the last one for ever."""

    def __init__(self, *answers: int, location: str = "") -> None:
        self.answers, self.location = list(answers) or [200], location
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks/s3cret"

    def __enter__(self) -> Hook:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.headers.append(dict(self.headers))
        status = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to standard error."""


def webhook(url: str, **given: Any) -> NoticeSettings:
    return NoticeSettings(webhook=WebhookNotice(url=url, **given))


def test_a_webhook_gets_everything_and_a_line_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "Bearer abc")
    with Hook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        settings = webhook("$HOOK", headers={"Authorization": "$HOOK_TOKEN", "X-Team": "voice"})
        check(settings)
        assert send(settings, OUTCOME) == []
    (body,), (headers,) = hook.bodies, hook.headers
    text = body.pop("text")
    assert body == vars(OUTCOME)
    assert text.startswith("phonate: training done (session 20261121_143022) after 1 h 2 min: Training finished")
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer abc", "voice")


@pytest.mark.parametrize(
    ("answers", "posts", "arrived"), [((500, 200), 2, True), ((500,), 2, False), ((404,), 1, False)]
)
def test_a_failing_webhook_is_tried_twice_where_it_helps(answers: tuple[int, ...], posts: int, arrived: bool) -> None:
    with Hook(*answers) as hook:
        lines = send(webhook(hook.url), OUTCOME)
    assert len(hook.bodies) == posts
    assert (lines == []) == arrived
    for line in lines:
        assert f"answered {answers[-1]}" in line
        assert "s3cret" not in line


def test_a_webhook_is_not_led_elsewhere() -> None:
    with Hook() as other:
        for status in (301, 302, 303, 307, 308):
            with Hook(status, location=other.url) as hook:
                (line,) = send(webhook(hook.url, headers={"Authorization": "Bearer abc"}), OUTCOME)
            assert f"answered {status}, moved to http://127.0.0.1:{other.server_address[1]};" in line
    assert other.bodies == []


def test_webhooks_that_are_not_there_hang_or_speak_something_else(closed_port: int, silent_port: int) -> None:
    (absent,) = send(webhook(f"http://127.0.0.1:{closed_port}/x"), OUTCOME)
    (hanging,) = send(webhook(f"http://127.0.0.1:{silent_port}/x", timeout_seconds=0.2), OUTCOME)
    with Post(Mailbox()) as server:
        (mail,) = send(webhook(f"http://127.0.0.1:{server.port}/x"), OUTCOME)
    assert "refused" in absent
    assert "no answer in 0.2 s" in hanging
    assert "no answer in HTTP" in mail
    for line in (absent, hanging, mail):
        assert "notices.webhook.url" in line
        assert "\n" not in line


def test_a_webhooks_certificate_is_checked(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Hook()
    hook.socket = served_with(certificate).wrap_socket(hook.socket, server_side=True)
    with hook:
        settings = webhook(f"https://localhost:{hook.server_address[1]}/x")
        (line,) = send(settings, OUTCOME)
        assert "certificate is not trusted" in line
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert send(settings, OUTCOME) == []
    assert len(hook.bodies) == 1


# --- servers without end --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(speak: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that calls `speak` with each connection; its port."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed at the end of the test
                return
            with connection, contextlib.suppress(OSError):
                speak(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _continue_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def _drip(connection: socket.socket) -> None:
    for byte in b"HTTP/1.1 200 " + 10**6 * b"O":
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def _greet_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"220-more of the greeting\r\n" * 1000)


@pytest.mark.parametrize("speak", [_continue_for_ever, _drip])
def test_a_webhook_without_end_is_ended(speak: Callable[[socket.socket], None]) -> None:
    with served(speak) as port:
        (line,) = send(webhook(f"http://127.0.0.1:{port}/x", timeout_seconds=0.2), OUTCOME)
    assert "the exchange took longer than 1.2 s and was ended; check notices.webhook" in line


def test_a_mail_server_without_end_is_ended() -> None:
    with served(_greet_for_ever) as port:
        (line,) = send(email(port, timeout_seconds=0.2), OUTCOME)
    assert line.startswith("notice by e-mail not sent")


def test_a_redirect_that_is_no_address() -> None:
    with Hook(302, location="http://[::1") as hook:
        (line,) = send(webhook(hook.url), OUTCOME)
    assert "answered 302, moved; set notices.webhook.url to the new address" in line


# --- both -----------------------------------------------------------------------------------------------------------


def test_one_that_fails_does_not_keep_the_other_back(closed_port: int) -> None:
    with Hook() as hook:
        both = NoticeSettings(email=email(closed_port).email, webhook=webhook(hook.url).webhook)
        (line,) = send(both, OUTCOME)
    assert "e-mail" in line
    assert len(hook.bodies) == 1
    assert send(NoticeSettings(), OUTCOME) == []


def test_line_breaks_make_no_headers() -> None:
    mailbox = Mailbox()
    evil = Outcome(
        **(
            vars(OUTCOME)
            | {
                "session_id": "1\r\nBcc: x@example.org",
                "message": "über\r\n.\r\nQUIT\u2028\x00\n" + "long " * 300,
                "output": "na\udcffme",
            }
        )
    )
    with Post(mailbox) as server, Hook() as hook:
        both = NoticeSettings(email=email(server).email, webhook=webhook(hook.url).webhook)
        assert send(both, evil) == []
    (letter,), (body,) = mailbox.letters, hook.bodies
    assert letter["Bcc"] is None
    assert letter["Subject"] == "phonate: training done (session 1 Bcc: x@example.org)"
    assert mailbox.envelopes[0].rcpt_tos == ["a@example.org"]
    assert "Message:  über . QUIT long long" in letter.get_content()
    assert body["output"] == "na\\udcffme"
    assert body["text"].isprintable()


@pytest.mark.parametrize(
    "address", ["a@b.org\r\nBcc: c@d.org", "a", "a@b.org,c@d.org", "A <a@b.org>", "a@b.org\x00", "@"]
)
def test_addresses_are_plain(address: str) -> None:
    for field in ({"to": (address,)}, {"sender": address}):
        with pytest.raises(InputError, match="e-mail address"):
            email(25, **field)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"user": "me"}, "go together"),
        ({"host": "mail.example.org", "user": "me", "password": "x"}, "not sent unencrypted"),
        ({"host": "mail..example.org"}, "name of a server"),
        ({"host": "mail\n"}, "name of a server"),
        ({"to": ()}, "at least 1 "),
        ({"port": 0}, ">= 1, got 0"),
    ],
)
def test_settings_that_can_not_work_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        email(25, **given)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (email(25, user="me", password="$PHONATE_NOT_SET"), "notices.email.password"),
        (webhook("$PHONATE_NOT_SET"), "notices.webhook.url"),
        (webhook("https://example.org", headers={"X-Key": "$PHONATE_NOT_SET"}), "notices.webhook.headers.X-Key"),
    ],
)
@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_told_before_the_work(
    settings: NoticeSettings, key: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PHONATE_NOT_SET", raising=False)
    if value is not None:
        monkeypatch.setenv("PHONATE_NOT_SET", value)
    message = f"{key}: the environment variable PHONATE_NOT_SET is not set; export PHONATE_NOT_SET=..."
    with pytest.raises(InputError) as told:
        check(settings)
    assert str(told.value) == message
    (line,) = send(settings, OUTCOME)
    assert line.endswith(message)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (webhook("ftp://example.org/x"), "ftp://"),
        (webhook("file:///etc/passwd"), "not an address"),
        (webhook("example.org/x"), "not an address"),
        (webhook("https://example.org:99999/"), "not an address"),
        (webhook("https://example.org/a b"), "not an address"),
        (webhook("https://example..org/"), "not an address"),
        (webhook("https://me:s3cret@example.org/"), "headers.Authorization"),
        (webhook("https://example.org", headers={"X-A": "1\r\nX-B: 2"}), "headers.X-A: line breaks"),
        (webhook("https://example.org", headers={"X A": "1"}), "no name of a header"),
        (webhook("https://example.org", headers={"Authorization": "Bearer $TOKEN"}), "whole value"),
        (email(25, user="me", password="pässword"), "ASCII"),
    ],
)
def test_what_can_not_be_sent_is_told_before_the_work(settings: NoticeSettings, why: str) -> None:
    with pytest.raises(InputError, match=why) as told:
        check(settings)
    assert "s3cret" not in str(told.value)


def test_secrets_are_not_shown() -> None:
    both = NoticeSettings(
        email=email(25, user="me", password="s3cret").email,
        webhook=webhook("https://example.org/s3cret", headers={"Authorization": "s3cret"}).webhook,
    )
    assert "s3cret" not in repr(both)
