"""A notice by webhook: an HTTP POST of JSON."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import ssl
import time
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPErrorProcessor, HTTPSHandler, Request, build_opener

from phonate.config.errors import InputError
from phonate.workflows.session.notice_outcome import Outcome, network_error, one_line, summary, took
from phonate.workflows.session.notice_settings import WebhookNotice, host, secret

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
    found = secret(value, where)
    if not found.isascii() or re.search(r"[\x00-\x1f\x7f]", found):
        raise InputError(f"{where}: line breaks and characters beyond ASCII have no place in a header")
    return found


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
