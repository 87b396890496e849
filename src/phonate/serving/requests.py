"""A request for each thing that a server does, to be pasted into a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phonate.serving.models import LazyService
from phonate.text.language import language

if TYPE_CHECKING:
    from phonate.serving.routes import ServerState


@dataclass(frozen=True)
class Example:
    """A request."""

    does: str
    """What it asks for, in a few words."""
    command: str
    """It, as a line for a shell."""


def examples(state: ServerState, url: str, recording: str = "recording.wav") -> Iterator[Example]:
    """A request to the server at `url` for each kind of its models, to the first of the kind.

    `recording`: the file that is sent where one is needed.
    """
    key = ' -H "Authorization: Bearer $PHONATE_API_KEY"' if state.settings.api_keys else ""
    file = shlex.quote(f"file=@{recording}")

    def curl(path: str) -> str:
        return (
            f"curl -sS --fail-with-body {shlex.quote(f'{url}/v1/audio/{path}')}{key}"  # zsh takes [::1] for a pattern
        )

    for service in [*state.services.values()][:1]:
        yield _speech(service, curl("speech"), recording)
    for name, recogniser in [*state.recognisers.items()][:1]:
        form = "diarized_json" if recogniser.tells_speakers else "text"
        model = shlex.quote(f"model={name}")
        yield Example(
            "Transcribe a recording",
            f"{curl('transcriptions')} -F {model} -F {file} -F response_format={form}",
        )
    for name, conversion in [*state.converters.items()][:1]:
        model = shlex.quote(f"model={name}")
        voice = f" -F {shlex.quote(f'reference_audio=@{recording}')}" if conversion.needs_reference else ""
        yield Example(
            "Convert a recording to another voice",
            f"{curl('conversions')} -F {model} -F {file}{voice} -o converted.mp3 || cat converted.mp3",
        )


def _speech(service: LazyService, curl: str, recording: str) -> Example:
    """A request for speech, in the first of the service's voices or else in that of `recording`."""
    body = {"model": service.model.name, "input": language(service.language or "en").greeting}
    posted = f"{curl} -H 'Content-Type: application/json'"
    if service.voices or not service.needs_reference:
        body |= {"voice": service.voices[0]} if service.voices else {}
        data = shlex.quote(json.dumps(body, ensure_ascii=False))
        return Example("Speak a text", f"{posted} -d {data} -o said.mp3 || cat said.mp3")
    begun = json.dumps(body, ensure_ascii=False)[:-1].replace("\\", "\\\\").replace("%", "%%")
    form = shlex.quote(begun + ', "reference_audio": "%s"}')
    # by printf, which is part of the shell: a recording is too long for an argument of a program
    made = f'printf {form} "$(base64 < {shlex.quote(recording)} | tr -d "\\n")"'
    return Example("Speak a text in the voice of a recording", f"{made} | {posted} -d @- -o said.mp3 || cat said.mp3")
