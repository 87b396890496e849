"""Settings of corpora: the recipe's `data` part, its data sets and simulated conversations, and rules for voices."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from phonate.audio.settings import AudioConfig, AugmentationSettings, Denoiser, F0Method, KaldiSettings
from phonate.compute.system import cache_folder
from phonate.config.errors import InputError
from phonate.config.language_codes import code_of, primary
from phonate.config.registry import Named, Registry, nearest
from phonate.config.settings import Settings
from phonate.data.corpora.rows import ConversationRequirements, Requirements

if TYPE_CHECKING:
    from phonate.data.corpora.rows import Problem
    from phonate.data.corpora.validation import CheckedRow


# ---------------------------- Names of Lhotse's recipes, without importing Lhotse, which takes seconds

LHOTSE = "'phonate[lhotse]'"
"""What to install for Lhotse's recipes and manifests."""

PARTS: dict[str, tuple[str, dict[str, object]]] = {
    "mini_librispeech": ("librispeech", {"dataset_parts": "mini_librispeech"}),
}
"""Corpora that are subsets of others: name -> the recipe, and the arguments that select the subset."""

LOCAL_SPEAKERS = frozenset({"voxconverse"})
"""Recipes whose speaker names (spk00, spk01, ...) are valid only within a recording."""

_FUNCTION = re.compile(r"\bprepare_(\w+)")


@functools.cache
def recipe_names() -> list[str]:
    """The valid names in `datasets`: each X with a function `lhotse.recipes.prepare_X`, and the names in PARTS; none
    without Lhotse."""
    spec = importlib.util.find_spec("lhotse")
    if spec is None or spec.origin is None:
        return []
    exported = (Path(spec.origin).parent / "recipes" / "__init__.py").read_text(encoding="utf-8")
    return sorted({*_FUNCTION.findall(exported), *PARTS})


# ----------------------------------------- Settings of one corpus: an entry of the recipe's `datasets`

_ONE_MODEL = "features must be the same for all corpora; set it in global_config (data.audio)"
_ONE_STORE = "all corpora are prepared together; set it in global_config (data)"


class DatasetSettings(Settings):
    """A corpus: a folder in any format, or one that is downloaded and prepared by a Lhotse recipe."""

    refused_keys: ClassVar = {
        **dict.fromkeys(KaldiSettings.model_fields, _ONE_MODEL),
        **dict.fromkeys(("storage_path", "storage_type", "num_jobs", "progress_bar"), _ONE_STORE),
    }

    name: str
    """A Lhotse recipe (ami, voxconverse, librispeech, mini_librispeech, timit, yesno, ...); any name if `path` is set.
    If there are several corpora, it becomes a prefix of recording ids and speaker names."""
    path: str | None = None
    """A folder or metadata file on disk, in any format. Null: the Lhotse recipe `name` prepares the corpus."""
    format: str = "auto"
    """Its format, as in `data.format`."""
    unit: Literal["auto", "recording", "segment"] = "auto"
    """What a sample is if segments have times, as in `data.unit`. auto: as `data.unit`."""
    drop: str | None = None
    """A file of recording ids to leave out, one per line."""
    limit: PositiveInt | None = None
    """Use only this many of its recordings. Null: all."""
    corpus_dir: str | None = None
    """Folder of this corpus. Null: the subfolder `name` of the common corpus_dir."""
    output_dir: str | None = None
    """Folder of its manifests. Null: the subfolder `name` of the common output_dir."""
    force_download: bool | None = None
    """Download again even if the corpus exists. Null: the common force_download."""
    download_params: dict[str, Any] = Field(default={})
    """Arguments of Lhotse's download function."""
    process_params: dict[str, Any] = Field(default={})
    """Arguments of Lhotse's prepare function, such as `{mic: sdm}` for ami. They are also passed to the download
    function if it accepts them."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not self.name or "/" in self.name:
            raise ValueError(f"name {self.name!r}: must not be empty or contain /")
        if self.path is None and not recipe_names():
            raise ValueError(f"{self.name}: no path, and its recipe needs Lhotse; pip install {LHOTSE}")
        if self.path is None and self.name not in recipe_names():
            raise ValueError(f"no path, and Lhotse has no recipe {self.name!r}; {nearest(self.name, recipe_names())}")
        only_for_recipes = [
            key for key in ("corpus_dir", "output_dir", "force_download") if getattr(self, key) is not None
        ]
        only_for_recipes += [key for key in ("download_params", "process_params") if getattr(self, key)]
        if self.path is not None and only_for_recipes:
            raise ValueError(
                f"{only_for_recipes[0]} is only for corpora prepared by a recipe; this one is read from {self.path}"
            )
        return self


# ---------------------------------------------------------------- Rules for the recordings of a voice


class VoiceRules(Settings):
    """Which recordings are used."""

    sample_rate: Annotated[int, Field(ge=8000)] = 16_000
    """Rate in Hz at which recordings are judged, mixed to mono."""
    min_seconds: NonNegativeFloat = 2.0
    """Shorter recordings are refused."""
    max_seconds: PositiveFloat = 30.0
    """Only the beginning of longer recordings is used."""
    min_quality: Annotated[float, Field(ge=0.0, le=1.0)] = 0.7
    """Recordings with a lower score (0 to 1) are refused."""


# ------------------------------- Simulated conversations and acoustic augmentation: `data.simulation`

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _ordered(settings: Settings, *names: str) -> None:
    for name in names:
        limits = getattr(settings, name)
        if limits is not None and limits[0] > limits[1]:
            raise ValueError(f"{name} must be [minimum, maximum], in this order; got {list(limits)}")


class AcousticSettings(Settings):
    """Room, noise and level, drawn at random for each sample."""

    reverberation: Fraction = 0.5
    """Probability of reverberation."""
    rt60: tuple[PositiveFloat, PositiveFloat] = (0.15, 0.6)
    """Minimum and maximum reverberation time (decay by 60 dB), in seconds."""
    direct_to_reverberant_db: tuple[float, float] = (-2.0, 12.0)
    """Minimum and maximum direct-to-reverberant ratio, in dB; drawn for each speaker."""
    noise: Fraction = 0.8
    """Probability of noise."""
    noise_path: str | None = None
    """A folder of noise recordings, including subfolders. Null: synthetic noise, from white to brown."""
    snr_db: tuple[float, float] = (5.0, 30.0)
    """Minimum and maximum signal-to-noise ratio, in dB."""
    level_db: tuple[float, float] | None = (-46.0, -16.0)
    """Minimum and maximum level (RMS) of the speech, in dB relative to full scale. Null: the level is not changed."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self, "rt60", "direct_to_reverberant_db", "snr_db", "level_db")
        return self


class SimulationSettings(Settings):
    """Conversations simulated during training from single-speaker clips.

    Clips are the parts of a corpus with a single active speaker, or whole single-speaker recordings. Every conversation
    is a function of the seed, the epoch and its number.
    """

    path: str | tuple[str, ...] | None = None
    """One or several clip corpora, in any format; equal speaker names in different corpora are different people. Null:
    `data.path`."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Fraction of the training samples that is simulated. Null: 1 if `path` is null and every recording of `data.path`
    has a single speaker, otherwise 0.5."""
    validation_samples: PositiveInt = 100
    """Number of simulated validation conversations, of speakers not used in training. Used only if all training samples
    are simulated from `data.path`; otherwise validation uses real recordings."""
    speakers: tuple[PositiveInt, PositiveInt] = (2, 4)
    """Minimum and maximum number of speakers in a conversation, uniformly distributed."""
    turns_from: str | None = None
    """An RTTM file (or other labels) of real conversations, whose recordings are not needed. Each simulated
    conversation has the turns of a random part of one of them, with other speakers; `overlap`, `pause_seconds` and
    `turn_seconds` don't apply. Null: random turns."""
    turns_from_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Fraction of the conversations that have turns of `turns_from`; the others have random ones."""
    overlap: Annotated[float, Field(ge=0.0, le=0.8)] = 0.15
    """Mean fraction of the speech in which several speakers are active."""
    pause_seconds: NonNegativeFloat = 0.5
    """Mean pause between non-overlapping turns, in seconds (gamma distribution)."""
    turn_seconds: PositiveFloat = 3.0
    """Mean length of a turn, in seconds (gamma distribution)."""
    label_pauses_from: Annotated[float, Field(ge=0.2)] = 0.2
    """Minimum length in seconds of a pause within a turn to be labelled as silence; shorter pauses are labelled as
    speech. Annotations of meetings often ignore pauses of up to half a second."""
    gain_db: NonNegativeFloat = 5.0
    """Standard deviation of the speakers' levels, in dB."""
    speed: tuple[PositiveFloat, PositiveFloat] | None = (0.9, 1.1)
    """Minimum and maximum speed factor of a speaker, drawn for each conversation. Speed also changes pitch and
    formants, which increases the number of different voices. Null: no change."""
    min_clip_seconds: PositiveFloat = 0.5
    """Minimum length of a clip without silence at its ends; shorter ones are not used."""
    acoustics: AcousticSettings = AcousticSettings()
    """Room, noise and level."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self, "speakers", "speed")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """The clip corpora; empty if clips are taken from `data.path`."""
        return () if self.path is None else (self.path,) if isinstance(self.path, str) else self.path


# ----------------------------------------------------------------------- Corpora: the recipe's `data`

CORPORA: Registry[object] = Registry(
    "corpus format",
    {
        "ami": "phonate.data.corpora.annotation_files:ami_rows",
        "ass": "phonate.data.corpora.annotation_files:ass_rows",
        "audacity": "phonate.data.corpora.annotation_files:audacity_rows",
        "captions": "phonate.data.corpora.annotation_files:captions_rows",
        "audiofolder": "phonate.data.corpora.tables:audiofolder_rows",
        "chat": "phonate.data.corpora.annotation_files:chat_rows",
        "csv": "phonate.data.corpora.tables:csv_rows",
        "ctm": "phonate.data.corpora.annotation_files:ctm_rows",
        "cutset": "phonate.data.corpora.lhotse:cutset_rows",
        "elan": "phonate.data.corpora.annotation_files:elan_rows",
        "folder": "phonate.data.corpora.folders:folder_rows",
        "huggingface": "phonate.data.corpora.huggingface:huggingface_rows",
        "json": "phonate.data.corpora.objects:json_rows",
        "kaldi": "phonate.data.corpora.kaldi:kaldi_rows",
        "labels": "phonate.data.corpora.annotation_files:label_rows",
        "lhotse": "phonate.data.corpora.lhotse:lhotse_rows",
        "librispeech": "phonate.data.corpora.folders:librispeech_rows",
        "ljspeech": "phonate.data.corpora.tables:ljspeech_rows",
        "nemo": "phonate.data.corpora.annotation_files:nemo_rows",
        "rttm": "phonate.data.corpora.annotation_files:rttm_rows",
        "shar": "phonate.data.corpora.shards:shar_rows",
        "srt": "phonate.data.corpora.annotation_files:srt_rows",
        "stm": "phonate.data.corpora.annotation_files:stm_rows",
        "webdataset": "phonate.data.corpora.shards:webdataset_rows",
        "textgrid": "phonate.data.corpora.annotation_files:textgrid_rows",
        "transcript": "phonate.data.corpora.annotation_files:transcript_rows",
        "webvtt": "phonate.data.corpora.annotation_files:webvtt_rows",
    },
    suffix="rows",
    group="phonate.corpora",
)
"""Name -> a function `rows(path)` that lists the recordings of a corpus. One with a second parameter, `cache`, is given
the folder for recordings that it has to write as files first."""


Storage = Literal["on_the_fly", "memory", "disk"]
ExecutorName = Literal["local", "ray"]


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

    @property
    def loudness(self) -> float | None:
        """LUFS to which recordings are brought; None: `Features.normalises_level` decides."""

    @property
    def denoise(self) -> Denoiser | None:
        """By what noise is removed; None: it is kept."""


class RecordingData(Settings):
    """A corpus of recordings. What its features are, subclasses say by a field `audio`."""

    path: str | None = None
    """A folder, or a metadata file; relative to the current directory. Or the address of one, or of shards, that fsspec
    opens (s3://, gs://, hf://, https://), with phonate[remote]."""
    format: str = "auto"
    """folder (a sub-folder a speaker), librispeech, json (also NeMo's lines), csv, ljspeech (also Piper's tables),
    cutset, lhotse (recordings with supervisions), shar, webdataset, audiofolder, huggingface (Arrow or Parquet), rttm,
    stm, nemo (a manifest for diarization), kaldi, labels (TextGrid, ELAN, WebVTT and others beside recordings; of
    several kinds name one: textgrid, elan, webvtt, srt, ass, audacity, chat, ctm, transcript, ami), or your own; auto
    looks at what is there."""
    unit: Literal["auto", "recording", "segment"] = "auto"
    """What a sample is where segments have times: the whole recording, or each segment cut out of it. auto: segments in
    kaldi and stm, whose lines are utterances, and in other labels with texts; else recordings."""
    speaker: str | None = None
    """All recordings are of this speaker, whatever folders, names and lists say. Null: as they say."""
    speaker_folder: NonNegativeInt | None = None
    """The folder that names the speaker of a recording, in format folder: 0 is data.path itself, 1 one in it. Null:
    the lowest, but those called after what is in them (wavs, train), and others where files or folders say so."""
    speaker_in_name: str | None = None
    """The part of a file's name that is its speaker, whatever folders and lists say: a regular expression, of which the
    first group counts, or else all that it finds. `^[^_]+` is A11 in A11_7.wav."""
    drop: str | None = None
    """A file of recording ids to leave out, one per line."""
    limit: PositiveInt | None = None
    """Use only this many recordings, selected by a hash of their ids. Null: all."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the recordings held out for validation, selected by a hash of their ids; each speaker keeps at least one
    for training."""
    collator: Annotated[str | None, Named("phonate.data.batches:COLLATORS")] = None
    """What makes batches of samples, by the name that a plug-in registers. Null: the task's own."""
    cache_dir: str | None = None
    """Folder for cached waveforms and features. Null: ~/.cache/phonate."""
    executor: ExecutorName = "local"
    """Where recordings are checked, decoded, transcribed and aligned, and their features computed, before training.
    local: on this machine. ray: over a Ray cluster, at RAY_ADDRESS or as Ray finds one, with phonate[ray]; its nodes
    see files under the same paths. The results are the same."""

    @field_validator("speaker_in_name")
    @classmethod
    def _is_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
        return pattern

    @field_validator("path", mode="before")
    @classmethod
    def _one_corpus(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            raise ValueError("is one corpus, not a list; put the corpora into one folder, and give that")
        return value

    @model_validator(mode="after")
    def _one_naming(self) -> Self:
        if self.speaker_folder is not None and self.speaker_in_name is not None:
            raise ValueError("data.speaker_folder and data.speaker_in_name both name the speakers; give one of them")
        return self

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

    def require_packages(self) -> None:
        """Raise MissingPackageError where a package is not installed that the recordings or their texts need."""
        if self.audio.denoise is not None:
            from phonate.audio.denoising import require_denoiser  # imports numpy

            require_denoiser()

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
    def tells_speakers_apart(self) -> bool:
        """Whether it matters to the task who speaks, so that doubtful names of speakers are told."""
        return True

    @property
    def held_out_splits(self) -> tuple[str, ...]:
        """The official splits that are not trained on."""
        return ("validation", "test") if self.validation > 0 else ("test",)

    def refusals(self, recordings: Sequence[CheckedRow]) -> list[Problem]:
        """Those recordings that meet the requirements and can't be trained on all the same, such as a text that is
        longer than its recording: what training itself leaves out, by the same functions. Here: none."""
        return []

    def require_speakers(self, names: Collection[str]) -> None:
        """Raise InputError where an option names a speaker that is not among those of the corpus. Here: none does."""

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
    """Threads that read recordings and compute features while a corpus is prepared on this machine, and processes of a
    recipe of Lhotse that can use several."""
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
        """fbank, mfcc, samples, spectrogram or whisper."""
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
    """A folder, or a metadata file; relative to the current directory. Or the address of one, or of shards, that fsspec
    opens (s3://, gs://, hf://, https://), with phonate[remote]."""
    audio: AudioConfig = AudioConfig()
    """Waveform and mel settings, and the shortest and longest recording accepted."""
    loudness: Annotated[float, Field(ge=-50.0, le=-5.0)] | None = None
    """Loudness in LUFS (EBU R128) to which each recording is brought before anything is computed from it, such as -23.
    Where full scale allows less, to full scale; silence and recordings under 0.4 s keep their level. Null: the peak of
    each is brought to 1."""
    denoise: Denoiser | None = None
    """What removes noise, such as a microphone's hiss, from each recording before anything is computed from it:
    deepfilternet (DeepFilterNet 3; needs phonate[denoise]). What is given to a trained model keeps its noise. Null:
    noise is kept."""
    augmentation: AugmentationSettings | None = None
    """Augmentation of training recordings (audio and features alike), drawn anew in each epoch. Null: none."""

    @model_validator(mode="after")
    def _features_know_the_level(self) -> Self:
        # whoever computes features brings to the level
        self.__dict__["audio"] = self.audio.at_loudness(self.loudness).denoised_by(self.denoise)
        return self

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


class PitchData(VoiceData):
    """A corpus of voices whose pitch a model learns or is given."""

    f0_method: F0Method = "swift"
    """How the fundamental frequency is measured. swift: by a network (SwiftF0), up to 1,100 Hz, right in telephone
    speech, children's voices and singing. yin: the older way, up to 500 Hz and often an octave off in those;
    runs that were trained with it go on with it."""


EARLIER_F0 = {"data.f0_method": "yin"}
"""`TaskInfo.earlier` of tasks whose data are `PitchData`."""


LanguageCode = Annotated[str, AfterValidator(code_of)]


class SpokenData(VoiceData):
    """A corpus of voices with what they say."""

    language: LanguageCode = "en-us"
    """Language of the texts: a code such as de, or a name such as German."""
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
