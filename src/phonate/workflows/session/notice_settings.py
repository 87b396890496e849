"""Settings of the notices that are sent when a session has ended."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from phonate.config.errors import InputError
from phonate.config.settings import Settings

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
    found = os.environ.get(value[1:])
    if not found:
        raise InputError(f"{key}: the environment variable {value[1:]} is not set; export {value[1:]}=...")
    return found
