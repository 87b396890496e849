"""Settings of a corpus: the recipe's `data` part."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from phonate.audio.settings import AudioConfig, AugmentationSettings, KaldiSettings
from phonate.config.errors import InputError
from phonate.config.language_codes import primary
from phonate.config.registry import Named, Registry
from phonate.config.settings import Settings
from phonate.data.datasets.settings import DatasetSettings
from phonate.data.manifests.rows import ConversationRequirements, Requirements

if TYPE_CHECKING:
    from phonate.data.manifests.rows import Problem
    from phonate.data.manifests.validation import Checked

CORPORA: Registry[object] = Registry(
    "corpus format",
    {
        "audiofolder": "phonate.data.corpora.audiofolder:audiofolder_rows",
        "csv": "phonate.data.corpora.csv:csv_rows",
        "cutset": "phonate.data.corpora.cutset:cutset_rows",
        "folder": "phonate.data.corpora.folder:folder_rows",
        "huggingface": "phonate.data.corpora.huggingface:huggingface_rows",
        "json": "phonate.data.corpora.json:json_rows",
        "kaldi": "phonate.data.corpora.kaldi:kaldi_rows",
        "lhotse": "phonate.data.corpora.lhotse:lhotse_rows",
        "librispeech": "phonate.data.corpora.librispeech:librispeech_rows",
        "ljspeech": "phonate.data.corpora.ljspeech:ljspeech_rows",
        "rttm": "phonate.data.corpora.rttm:rttm_rows",
        "stm": "phonate.data.corpora.stm:stm_rows",
    },
    suffix="rows",
    group="phonate.corpora",
)
"""Name -> a function `rows(path)` that lists the recordings of a corpus. One with a second parameter, `cache`, is given
the folder for recordings that it has to write as files first."""


Storage = Literal["on_the_fly", "memory", "disk"]


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
    speaker: str | None = None
    """All recordings are of this speaker, whatever folders and lists say. Null: as they say."""
    drop: str | None = None
    """A file of recording ids to leave out, one per line."""
    limit: PositiveInt | None = None
    """Use only this many recordings, selected by a hash of their ids. Null: all."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the recordings held out for validation, selected by a hash of their ids; each speaker keeps at least one
    for training."""
    collator: Annotated[str | None, Named("phonate.data.batches.dataset:COLLATORS")] = None
    """What makes batches of samples, by the name that a plug-in registers. Null: the task's own."""
    cache_dir: str | None = None
    """Folder for cached waveforms and features. Null: ~/.cache/phonate."""

    @property
    def corpora(self) -> tuple[DatasetSettings, ...]:
        """The corpora that are read as one."""
        if self.path is None:
            raise InputError("no corpus: give a folder or a list of recordings as data.path")
        return (DatasetSettings(name="corpus", path=self.path, format=self.format),)

    @property
    def to_prepare(self) -> list[RecordingData]:
        """The settings of all that is prepared for training: these, and those of corpora that are kept apart."""
        return [self]

    @property
    def strangers(self) -> Literal["corpus", "recording"] | None:
        """Where validation is to hold out speakers, not only recordings: whether a speaker's name stands for the same
        person in the whole corpus, or only in its recording. None: any recordings are held out."""
        return None

    @property
    def cache_folder(self) -> str | None:
        """The folder for waveforms and features; None for the usual one."""
        return self.cache_dir

    @property
    def threads(self) -> int | None:
        """Threads that read recordings while the corpus is prepared. None: the usual number."""
        return None

    @property
    def shows_progress(self) -> bool:
        """Whether the progress of preparing is shown."""
        return True

    @property
    def storage(self) -> Storage:
        """How features are kept."""
        return "disk"

    @property
    def transcripts(self) -> Path | None:
        """The folder of the texts that a recogniser writes for recordings without any; None where it is not to."""
        return None

    @property
    def label(self) -> str:
        """What messages call the corpora."""
        return ", ".join(one.path or one.name for one in self.corpora)

    if TYPE_CHECKING:  # a field of every subclass

        @property
        def audio(self) -> Framing:
            """Settings of the features, and the shortest and longest recording accepted."""

    @property
    def requirements(self) -> Requirements:
        """What the task requires of a recording: here, that it can be read."""
        return Requirements(min_seconds=self.audio.min_seconds, max_seconds=self.audio.max_seconds)

    @property
    def held_out_splits(self) -> tuple[str, ...]:
        """The official splits that are not trained on."""
        return ("validation", "test") if self.validation > 0 else ("test",)

    def refusals(self, recordings: Sequence[Checked]) -> list[Problem]:
        """Those recordings that meet the requirements and can't be trained on all the same, such as a text that is
        longer than its recording: what training itself leaves out, by the same functions. Here: none."""
        return []

    @property
    def feature_name(self) -> str:
        """What is cached beside the waveforms: a name in `phonate.data.features`."""
        return "none"


_LOSSY = "Lhotse's compressed files lose precision; features are kept as they are, memory-mapped: write disk"
_OTHER_FILES = {
    "lilcom_chunky": _LOSSY,
    "lilcom_files": _LOSSY,
    "numpy": "features are not kept as a file for each recording, but memory-mapped in one: write disk",
    "numpy_files": "features are not kept as a file for each recording, but memory-mapped in one: write disk",
    "hdf5": "features are not kept as HDF5, but memory-mapped, which workers can share: write disk",
}


class KaldiData(RecordingData):
    """Corpora of recordings of any length and any number of speakers, with Kaldi's features or
    those of a Whisper encoder."""

    refused_keys: ClassVar = {
        "mix_eagerly": "mixtures are mixed as waveforms, before features are computed; leave it out",
        "device": "features are computed on the CPU, by the processes that load samples; leave it out "
        "(training.device chooses where the model runs)",
    }

    datasets: tuple[DatasetSettings, ...] = ()
    """Corpora that are trained on together, in the place of `path`."""
    corpus_dir: str = "./data"
    """Where recipes of Lhotse find corpora, or download them to: each in the sub-folder called as the data set."""
    output_dir: str = "./manifests"
    """Where they write manifests, each in the sub-folder called as the data set."""
    force_download: bool = False
    """Download again what is there."""
    storage_path: str | None = None
    """Folder for waveforms and features. Null: features are not kept in files; waveforms are in cache_dir."""
    storage_type: Storage | None = None
    """on_the_fly: features are computed from the cached waveform whenever a sample is read. memory: computed once in
    each process, and held. disk: computed once, and memory-mapped. Null: disk with storage_path, else on_the_fly."""
    num_jobs: PositiveInt = 1
    """Threads that read recordings and compute features while a corpus is prepared, and processes of a recipe of Lhotse
    that can use several."""
    progress_bar: bool = True
    """Show the progress of preparing."""
    audio: KaldiSettings = KaldiSettings()
    """Features, and the shortest and longest recording accepted."""

    @field_validator("storage_type", mode="before")
    @classmethod
    def _own_files(cls, value: object) -> object:
        if isinstance(value, str) and value in _OTHER_FILES:
            raise ValueError(_OTHER_FILES[value])
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.path is not None and self.datasets:
            raise ValueError("path is one corpus and datasets are several; give one of the two")
        if self.storage_path is not None and self.storage == "on_the_fly":
            raise ValueError("storage_type on_the_fly keeps no features, so storage_path has no use; leave one out")
        names = [one.name for one in self.datasets]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two datasets are called {twice}, and ids begin with the name; rename one")
        return self

    @property
    def cache_folder(self) -> str | None:
        """The folder for waveforms and features."""
        return self.storage_path or self.cache_dir

    @property
    def storage(self) -> Storage:
        """How features are kept."""
        return self.storage_type or ("on_the_fly" if self.storage_path is None else "disk")

    @property
    def threads(self) -> int | None:
        """`num_jobs`."""
        return self.num_jobs

    @property
    def shows_progress(self) -> bool:
        """`progress_bar`."""
        return self.progress_bar

    @property
    def feature_name(self) -> str:
        """fbank, mfcc, spectrogram or whisper."""
        return self.audio.feature_type

    @property
    def corpora(self) -> tuple[DatasetSettings, ...]:
        """The data sets, with what holds for all of them filled in."""
        if self.path is not None or not self.datasets:
            return super().corpora
        return tuple(self._filled(one) for one in self.datasets)

    def _filled(self, one: DatasetSettings) -> DatasetSettings:
        if one.path is not None:
            return one
        return one.model_copy(
            update={
                "corpus_dir": one.corpus_dir or str(Path(self.corpus_dir) / one.name),
                "output_dir": one.output_dir or str(Path(self.output_dir) / one.name),
                "force_download": self.force_download if one.force_download is None else one.force_download,
            }
        )

    def separate(self) -> list[Self]:
        """These settings for each corpus alone."""
        return [self.model_copy(update={"datasets": (one,)}) for one in self.datasets] or [self]


class ConversationData(KaldiData):
    """Corpora of recordings in which any number of people speak."""

    unit: Literal["auto", "recording", "segment"] = "recording"
    """What is read where segments have times: whole recordings; segment takes each segment for a clip."""

    @property
    def requirements(self) -> Requirements:
        """Recordings of any length whose segments all name their speakers."""
        return ConversationRequirements(min_seconds=self.audio.min_seconds, max_seconds=self.audio.max_seconds)

    @property
    def strangers(self) -> Literal["corpus", "recording"] | None:
        """Validation hears speakers who are never in training."""
        return "corpus"


KALDI_SECTIONS = {"global_config": ("data.audio", "data"), "datasets": ("data.datasets",)}
"""`TaskInfo.sections` of a task whose data are `KaldiData`: features and folders of all corpora, and the corpora."""


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


class SpokenData(VoiceData):
    """A corpus of voices with what they say."""

    language: str = "en-us"
    """Language of the texts."""
    transcribe: bool | str = False
    """Transcribe recordings that have no text, once, with Whisper (needs phonate[eval]): true for the model tiny.en
    (English) or base (other languages), or the name or folder of another one. Recordings over 15 s are cut at pauses.
    The texts are in a file in the cache, which training names and which may be corrected."""

    @property
    def requirements(self) -> Requirements:
        """Clips of one named speaker, with a text."""
        return replace(super().requirements, text=True)

    @property
    def whisper_model(self) -> str:
        """The model that transcribes."""
        from phonate.audio.whisper import model_for  # imports numpy, which a mistake in a recipe need not wait for

        return self.transcribe if isinstance(self.transcribe, str) else model_for(self.spoken_language)

    @property
    def spoken_language(self) -> str:
        """The language as Whisper calls it."""
        return primary(self.language)

    @property
    def transcripts(self) -> Path | None:
        """The folder of what is transcribed."""
        if not self.transcribe:
            return None
        path = Path(self.path).expanduser().absolute()
        facts = repr((str(path), self.whisper_model, self.spoken_language))
        digest = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return cache_root(self) / "transcripts" / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', path.stem)}-{digest}"


def cache_root(settings: RecordingData) -> Path:
    """The folder of all caches."""
    return cache_folder(settings.cache_folder)


def cache_folder(cache_dir: str | Path | None) -> Path:
    """`cache_dir`, or where caches are kept when nobody says."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phonate"
