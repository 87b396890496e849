"""Voices that clients uploaded: a folder each, with the recording, its text, and the consent of who is heard.

What is stored are decoded samples in files of our own making, never the bytes that came. Several servers may share a
folder, and each voice stands alone: a damaged one is left out of the list, and can be deleted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from phonate.audio.decoding import FloatArray, read_audio, write_audio
from phonate.compute.system import sync, sync_all
from phonate.config.errors import InputError
from phonate.training.inference import Reference

_log = logging.getLogger("phonate")

CONSENT = "I, {speaker}, agree that this voice is cloned and used for synthetic speech."
"""What a person says, and sends, before a voice is stored."""

_NAME = re.compile(r"\w[\w-]{0,47}")
_DESCRIPTION, _REFERENCE, _SPOKEN = "voice.json", "reference.wav", "consent.wav"
_ABANDONED_SECONDS = 3600.0
"""No living server takes so long to write or to delete a voice."""


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


_STORED = TypeAdapter(StoredVoice)


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
        self._reported: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob(".*.part"):
                with contextlib.suppress(FileNotFoundError):  # another server removes it, too
                    if time.time() - unfinished.stat().st_mtime > _ABANDONED_SECONDS:
                        shutil.rmtree(unfinished)
        except OSError as error:
            raise InputError(f"{folder}: can't be used for voices ({error.strerror}); choose another") from error

    def list(self) -> list[StoredVoice]:
        """All voices that are intact, by name."""
        voices = []
        for path in self._paths():
            with contextlib.suppress(InputError):  # which is logged
                voices.append(self._description(path))
        return [voice for voice in voices if voice is not None]

    def get(self, name: str) -> tuple[StoredVoice, Reference] | None:
        """A voice with its recording; None where there is none of that name. Raises InputError for a damaged one."""
        if not _NAME.fullmatch(name):
            return None
        folder = self._folder / name
        voice = self._description(folder)
        if voice is None:
            return None
        try:
            waveform, rate = read_audio(folder / _REFERENCE)
        except (InputError, OSError) as error:
            raise self._damaged(folder, error) from error
        return voice, Reference(waveform, rate, voice.text)

    def add(self, voice: StoredVoice, reference: Reference, spoken_consent: tuple[FloatArray, int]) -> None:
        """Store a voice, which appears whole or not at all.

        Raises InputError where there is one of that name, or as many as may be stored; OSError where the disk is full.
        """
        final = self._folder / checked_name(voice.name)
        if len(self._paths()) >= self._most:
            raise InputError(f"{self._most} voices are stored, which is the limit; delete one first")
        part = self._folder / f".{secrets.token_hex(8)}.part"
        try:
            part.mkdir(mode=0o700)
            for name, waveform, rate in (
                (_REFERENCE, reference.waveform, reference.sample_rate),
                (_SPOKEN, *spoken_consent),
            ):
                try:
                    write_audio(part / name, waveform, rate)
                except InputError as error:  # its words name a folder of this machine
                    raise error.__cause__ or error from None
            (part / _DESCRIPTION).write_text(json.dumps(asdict(voice), ensure_ascii=False, indent=2), encoding="utf-8")
            sync_all(part)
            try:
                part.rename(final)
            except OSError:
                if not final.exists():
                    raise
                raise InputError(f"there is a voice {voice.name!r}; delete it or choose another name") from None
            sync(self._folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def remove(self, name: str) -> bool:
        """Delete a voice with its recordings, also a damaged one; False where there is none of that name."""
        folder = self._folder / name
        if not _NAME.fullmatch(name):
            return False
        with contextlib.suppress(InputError):
            if self._description(folder) is None:
                return False
        part = self._folder / f".{secrets.token_hex(8)}.part"
        try:
            os.utime(folder)  # so that a server which starts now does not take it for abandoned
            folder.rename(part)
        except FileNotFoundError:  # another request deletes it
            return False
        sync(self._folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(part)
        return True

    def _paths(self) -> Sequence[Path]:
        """The folders of voices, also of damaged ones, and whatever else is called as a voice could be."""
        return sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))

    def _description(self, folder: Path) -> StoredVoice | None:
        """What is known of the voice in `folder`; None where there is none, or a link. Raises InputError for a damaged
        one, which is a folder that has files of a voice and no others."""
        if folder.is_symlink() or not folder.is_dir():
            return None
        try:
            voice = _STORED.validate_json((folder / _DESCRIPTION).read_bytes())
            return replace(voice, name=folder.name)  # a copied folder is a voice of its own
        except (OSError, ValueError) as error:
            names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
            if not names or not names <= {_DESCRIPTION, _REFERENCE, _SPOKEN}:
                return None
            raise self._damaged(folder, error) from error

    def _damaged(self, folder: Path, error: Exception) -> InputError:
        """What a client is told of a damaged voice. The log is told once what and where."""
        if folder.name not in self._reported:
            self._reported.add(folder.name)
            reason = str(error).splitlines()[0]
            _log.warning("%s: this voice is damaged (%s); delete it, and upload it again", folder, reason)
        return InputError(f"voice {folder.name!r} is damaged; delete it, and upload it again")


def new_voice(name: str, text: str | None, speaker: str, consent: str) -> StoredVoice:
    """A voice that is made now, its name and consent checked. Raises InputError."""
    return StoredVoice(
        checked_name(name), text, " ".join(speaker.split()), checked_consent(consent, speaker), int(time.time())
    )
