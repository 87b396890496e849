"""Settings of a corpus: the recipe's `data` part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field, PositiveInt

from phonate.audio.kaldi_settings import KaldiSettings
from phonate.audio.settings import AudioConfig, AugmentationSettings
from phonate.config.registry import Named, Registry
from phonate.config.settings import Settings
from phonate.data.manifests.requirements import Requirements

CORPORA: Registry[object] = Registry("corpus format", "phonate.data.corpora", suffix="rows", group="phonate.corpora")
"""Name -> a function `rows(path)` that lists the recordings of a corpus. One with a second parameter, `cache`, is given
the folder for recordings that it has to write as files first."""


class Framing(Protocol):
    """What every kind of feature settings says of samples and frames."""

    @property
    def sample_rate(self) -> int:
        """In Hz."""

    @property
    def hop_length(self) -> int:
        """Samples from one frame to the next."""

    @property
    def frames_per_second(self) -> float:
        """Frames in a second."""

    @property
    def min_seconds(self) -> float:
        """Shorter recordings are refused."""

    @property
    def max_seconds(self) -> float | None:
        """Longer recordings are refused."""


class RecordingData(Settings):
    """A corpus of recordings. What its features are, subclasses say by a field `audio`."""

    path: str | None = None
    """A folder, or a metadata file. Relative to the current directory."""
    format: str = "auto"
    """folder (a sub-folder a speaker), librispeech, json (also NeMo's lines), csv, ljspeech (also Piper's tables),
    cutset, lhotse (recordings with supervisions), audiofolder, huggingface (Arrow or Parquet), rttm, stm, kaldi, or
    your own; auto looks at what is there."""
    unit: Literal["auto", "recording", "segment"] = "auto"
    """What a sample is where segments have times: the whole recording, or each segment cut out of it. auto: segments in
    kaldi and stm, whose lines are utterances; else recordings."""
    drop: str | None = None
    """A file of recording ids to leave out, one per line."""
    limit: PositiveInt | None = None
    """Use only this many recordings, selected by a hash of their ids. Null: all."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the recordings held out for validation, selected by a hash of their ids; each speaker keeps at least one
    for training."""
    collator: Annotated[str | None, Named("phonate.data.batches.collators:COLLATORS")] = None
    """What makes batches of samples, by the name that a plug-in registers. Null: the task's own."""
    cache_dir: str | None = None
    """Folder for cached waveforms and features. Null: ~/.cache/phonate."""

    if TYPE_CHECKING:  # a field of every subclass

        @property
        def audio(self) -> Framing:
            """Settings of the features, and the shortest and longest recording accepted."""

    @property
    def requirements(self) -> Requirements:
        """What the task requires of a recording: here, that it can be read."""
        return Requirements(min_seconds=self.audio.min_seconds, max_seconds=self.audio.max_seconds)

    @property
    def feature_name(self) -> str:
        """What is cached beside the waveforms: a name in `phonate.data.features`."""
        return "none"


class KaldiData(RecordingData):
    """Recordings of any length and any number of speakers, with Kaldi's features."""

    audio: KaldiSettings = KaldiSettings()
    """Features, and the shortest and longest recording accepted."""

    @property
    def feature_name(self) -> str:
        """fbank, mfcc or spectrogram."""
        return self.audio.feature_type


class VoiceData(RecordingData):
    """A corpus of voices, and how samples are made from it."""

    path: str
    """A folder, or a metadata file. Relative to the current directory."""
    audio: AudioConfig = AudioConfig()
    """Waveform and mel settings, and the shortest and longest recording accepted."""
    augmentation: AugmentationSettings | None = None
    """Augmentation of training recordings (audio and features alike), drawn anew in each epoch. Null: none."""

    @property
    def requirements(self) -> Requirements:
        """What the task requires of a recording: here, clips of one named speaker."""
        return Requirements(
            one_speaker=True, speaker=True, min_seconds=self.audio.min_seconds, max_seconds=self.audio.max_seconds
        )

    @property
    def feature_name(self) -> str:
        """What is cached beside the waveforms: a name in `phonate.data.features`. A task with other features than the
        mel overrides this."""
        return "mel"


def cache_root(settings: RecordingData) -> Path:
    """The folder of all caches."""
    return cache_folder(settings.cache_dir)


def cache_folder(cache_dir: str | Path | None) -> Path:
    """`cache_dir`, or where caches are kept when nobody says."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phonate"
