"""What the model that a session saved can do, once, so that it is known to load and there is something to hear."""

from __future__ import annotations

from pathlib import Path

from phonate.audio.decoding import MADE, write_audio

PROMPT = "The"
_TOKENS = 40


def sample(task: str, model: Path, recording: Path | None = None, text: str | None = None) -> str:
    """Let the model in the folder `model` say `text`, convert or transcribe `recording`, or write; tells about it.

    Sounds are written into the folder as sample.flac.
    """
    if task == "language":
        return _write(model)
    assert recording is not None
    if task == "recognition":
        return _transcribe(model, recording)
    return _speak(model, text or "") if task == "speech" else _convert(model, recording)


def _speak(model: Path, text: str) -> str:
    from phonate.tasks.speech.inference import Synthesiser

    synthesiser = Synthesiser.load(model)
    write_audio(model / "sample.flac", synthesiser.speak(text), synthesiser.sample_rate, MADE)
    return f'It says "{text}" in {model / "sample.flac"}; let it say more: phonate speak {model} "..." -o out.wav'


def _convert(model: Path, recording: Path) -> str:
    from phonate.tasks.conversion.inference import Converter

    converter = Converter.load(model)
    write_audio(model / "sample.flac", converter.convert_file(recording), converter.sample_rate, MADE)
    return (
        f"{recording.name} in the voice of {converter.target}: {model / 'sample.flac'}; convert others: "
        f"phonate convert {model} in.wav -o out.wav"
    )


def _transcribe(model: Path, recording: Path) -> str:
    from phonate.tasks.recognition.inference import Transcriber

    said = Transcriber.load(model).transcribe_file(recording)
    return f'It hears "{said}" in {recording.name}; let it hear others: phonate transcribe {model} in.wav'


def _write(model: Path) -> str:
    from phonate.tasks.language.inference import Generator

    text = Generator.load(model).generate(PROMPT, max_tokens=_TOKENS)
    return f'After "{PROMPT}" it writes {text!r}; let it write more: phonate generate {model} "..."'
