"""Whisper's features of references, computed once and kept on disk."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path

import numpy as np

from phonate.audio.decoding import read_audio
from phonate.audio.whisper import WhisperEncoder
from phonate.data.dialogues.dialogue import Audio
from phonate.tasks.cloning.network.whisper_projector import heard_features


class Hearing:
    """Features of references, in files. (They can't be computed in a loader's process: a forked copy of the encoder's
    library never answers.)"""

    def __init__(self, model: str, cache: Path) -> None:
        """`model`: a size of Whisper, or a folder; `cache`: where to keep features."""
        self.model = model
        self.cache = cache

    @cached_property
    def _encoder(self) -> WhisperEncoder:
        return WhisperEncoder(self.model, "model.whisper", threads=1)

    def __call__(self, audio: Audio, frames: int) -> Path:
        """A .npy file with the features (frames, C) of an audio that has so many frames of codes.

        Raises DataError if the recording can't be read, InputError without the Whisper model.
        """
        duration = None if audio.end is None else audio.end - audio.start
        waveform, rate = read_audio(audio.path, offset=audio.start, duration=duration)
        digest = hashlib.sha256(waveform.tobytes())
        digest.update(f"{rate} {frames}".encode())
        path = self.cache / self._encoder.fingerprint.replace("/", "-") / f"{digest.hexdigest()[:32]}.npy"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.stem}.{os.getpid()}.new")
            with beside.open("wb") as file:
                np.save(file, heard_features(self._encoder, waveform, rate, frames))
            beside.replace(path)
        return path
