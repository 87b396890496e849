"""Voices that clients uploaded: a folder each, with the recording, its text, and the consent of who is heard.

What is stored are decoded samples in files of our own making, never the bytes that came.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import time
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path

from phonate.audio.decoding import FloatArray, read_audio, write_audio
from phonate.config.errors import InputError
from phonate.training.speech_service import Reference

CONSENT = "I, {speaker}, agree that this voice is cloned and used for synthetic speech."
"""What a person says, and sends, before a voice is stored."""

_NAME = re.compile(r"\w[\w-]{0,47}")
_DESCRIPTION, _REFERENCE, _SPOKEN = "voice.json", "reference.wav", "consent.wav"


@dataclass(frozen=True)
class StoredVoice:
    """What is known of a voice besides its recordings."""

    name: str
    text: str | None
    """What is said in the reference."""
    speaker: str
    """Who is heard."""
    consent: str
    """The sentence that was agreed to."""
    created: int
    """Seconds since 1970."""


def checked_name(name: str) -> str:
    """A name that is safe for a folder, in Unicode's composed form. Raises InputError for others."""
    composed = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(composed):
        raise InputError(f"name {name[:100]!r}: use 1 to 48 letters, digits, _ and -, and don't begin with -")
    return composed


def checked_consent(consent: str, speaker: str) -> str:
    """The sentence of consent of `speaker`. Raises InputError where another was sent."""
    speaker = " ".join(speaker.split())
    if not speaker:
        raise InputError("speaker: give the name of the person who is heard")
    expected = CONSENT.format(speaker=speaker)
    if " ".join(consent.split()).casefold() != expected.casefold():
        raise InputError(f"consent: send the sentence that the person who is heard has said: {expected!r}")
    return expected


class VoiceStore:
    """The voices in a folder. Its methods may be called from several threads."""

    def __init__(self, folder: Path, most: int) -> None:
        """Raises InputError where the folder can't be made."""
        self._folder = folder
        self._most = most
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob(".*.part"):
                shutil.rmtree(unfinished)
        except OSError as error:
            raise InputError(f"{folder}: can't be used for voices ({error.strerror}); choose another") from error

    def list(self) -> list[StoredVoice]:
        """All voices, by name."""
        found = [self._description(path) for path in sorted(self._folder.iterdir()) if _NAME.fullmatch(path.name)]
        return [voice for voice in found if voice is not None]

    def get(self, name: str) -> tuple[StoredVoice, Reference] | None:
        """A voice with its recording; None where there is none of that name."""
        if not _NAME.fullmatch(name):
            return None
        folder = self._folder / name
        voice = self._description(folder)
        if voice is None:
            return None
        waveform, rate = read_audio(folder / _REFERENCE)
        return voice, Reference(waveform, rate, voice.text)

    def add(self, voice: StoredVoice, reference: Reference, spoken_consent: tuple[FloatArray, int]) -> None:
        """Store a voice, which appears whole or not at all.

        Raises InputError where there is one of that name, or the folder is full.
        """
        final = self._folder / checked_name(voice.name)
        if len(self.list()) >= self._most:
            raise InputError(f"{self._most} voices are stored, which is the limit; delete one first")
        part = self._folder / f".{secrets.token_hex(8)}.part"
        try:
            part.mkdir(mode=0o700)
            write_audio(part / _REFERENCE, reference.waveform, reference.sample_rate)
            write_audio(part / _SPOKEN, *spoken_consent)
            (part / _DESCRIPTION).write_text(json.dumps(asdict(voice), ensure_ascii=False, indent=2), encoding="utf-8")
            try:
                part.rename(final)
            except OSError:
                if not final.exists():
                    raise
                raise InputError(f"there is a voice {voice.name!r}; delete it or choose another name") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def remove(self, name: str) -> bool:
        """Delete a voice with its recordings; False where there is none of that name."""
        if not _NAME.fullmatch(name) or self._description(self._folder / name) is None:
            return False
        part = self._folder / f".{secrets.token_hex(8)}.part"
        with contextlib.suppress(FileNotFoundError):  # another request deletes it
            (self._folder / name).rename(part)
            shutil.rmtree(part)
            return True
        return False

    def _description(self, folder: Path) -> StoredVoice | None:
        """What is known of the voice in `folder`; None where there is none, or a link."""
        try:
            if folder.is_symlink():
                return None
            return StoredVoice(**json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None


def new_voice(name: str, text: str | None, speaker: str, consent: str) -> StoredVoice:
    """A voice that is made now, its name and consent checked. Raises InputError."""
    return StoredVoice(
        checked_name(name), text, " ".join(speaker.split()), checked_consent(consent, speaker), int(time.time())
    )
