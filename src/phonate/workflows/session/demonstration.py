"""What the model that a session saved can do, once, so that it is known to load and there is something to hear."""

from __future__ import annotations

import shlex
from pathlib import Path

from phonate.audio.decoding import MADE, write_audio
from phonate.data.manifests.rows import one_line

PROMPT = "The"
SAMPLE = "sample.flac"
_TOKENS = 40


def sample(task: str, made: Path, kept: Path, recording: Path | None = None, text: str | None = None) -> str:
    """Let the model in the folder `made` say `text`, convert or transcribe `recording`, or write; tells about it.

    Sounds are written into the folder as sample.flac. What is told calls it `kept`, where it will be.
    """
    if task == "language":
        return _write(made, kept)
    assert recording is not None
    if task == "recognition":
        return _transcribe(made, kept, recording)
    return _speak(made, kept, text or "") if task == "speech" else _convert(made, kept, recording)


def _speak(made: Path, kept: Path, text: str) -> str:
    from phonate.tasks.speech.inference import Synthesiser

    synthesiser = Synthesiser.load(made)
    write_audio(made / SAMPLE, synthesiser.speak(text), synthesiser.sample_rate, MADE)
    return f'It says "{text}" in {kept / SAMPLE}; let it say more: phonate speak {_quoted(kept)} "..." -o out.wav'


def _convert(made: Path, kept: Path, recording: Path) -> str:
    from phonate.tasks.conversion.inference import Converter

    converter = Converter.load(made)
    write_audio(made / SAMPLE, converter.convert_file(recording), converter.sample_rate, MADE)
    return (
        f"{one_line(recording.name)} in the voice of {one_line(converter.target)}: {kept / SAMPLE}; convert others: "
        f"phonate convert {_quoted(kept)} in.wav -o out.wav"
    )


def _transcribe(made: Path, kept: Path, recording: Path) -> str:
    from phonate.tasks.recognition.inference import Transcriber

    said = Transcriber.load(made).transcribe_file(recording)
    heard = one_line(recording.name)
    return f'It hears "{said}" in {heard}; let it hear others: phonate transcribe {_quoted(kept)} in.wav'


def _write(made: Path, kept: Path) -> str:
    from phonate.tasks.language.inference import Generator

    text = Generator.load(made).generate(PROMPT, max_tokens=_TOKENS)
    return f'After "{PROMPT}" it writes {text!r}; let it write more: phonate generate {_quoted(kept)} "..."'


def _quoted(path: Path) -> str:
    """As it stands in a command."""
    return shlex.quote(str(path))
