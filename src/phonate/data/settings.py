"""Settings of a corpus: the recipe's `data` part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from phonate.audio.settings import AudioConfig, AugmentationSettings
from phonate.config.registry import Named, Registry
from phonate.config.settings import Settings
from phonate.data.manifests.requirements import Requirements

CORPORA: Registry[object] = Registry("corpus format", "phonate.data.corpora", suffix="rows", group="phonate.corpora")
"""Name -> a function `rows(path)` that lists the recordings of a corpus. One with a second parameter, `cache`, is given
the folder for recordings that it has to write as files first."""


class VoiceData(Settings):
    """A corpus of recordings, and how samples are made from it."""

    path: str
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
    audio: AudioConfig = AudioConfig()
    """Waveform and mel settings, and the shortest and longest recording accepted."""
    augmentation: AugmentationSettings | None = None
    """Augmentation of training recordings (audio and features alike), drawn anew in each epoch. Null: none."""
    collator: Annotated[str | None, Named("phonate.data.batches.collators:COLLATORS")] = None
    """What makes batches of samples, by the name that a plug-in registers. Null: the task's own."""
    cache_dir: str | None = None
    """Folder for cached waveforms and features. Null: ~/.cache/phonate."""

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


def cache_root(settings: VoiceData) -> Path:
    """The folder of all caches."""
    return cache_folder(settings.cache_dir)


def cache_folder(cache_dir: str | Path | None) -> Path:
    """`cache_dir`, or where caches are kept when nobody says."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phonate"
