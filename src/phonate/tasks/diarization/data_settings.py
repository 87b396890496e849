"""Settings of the corpus for diarization: the recipe's `data` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from phonate.config.settings import Settings
from phonate.data.conversations.settings import AcousticSettings, Fraction, SimulationSettings
from phonate.data.settings import ConversationData, KaldiData, RecordingData

SHORTEST_SECONDS = 1.0


class MixingSettings(Settings):
    """Sums of two chunks of recordings, each augmented by `data.augmentation`: more overlapping speech, with the
    acoustics of the recordings."""

    share: Fraction = 0.5
    """Share of the recorded samples to which a chunk of another recording is added."""
    speakers: PositiveInt = 4
    """Maximum number of speakers of the two chunks together."""


class DiarizationData(ConversationData):
    """Recordings with speaker labels, or single-speaker clips from which conversations are simulated."""

    chunk_seconds: Annotated[float, Field(ge=SHORTEST_SECONDS)] = 30.0
    """Length of a sample in seconds: a chunk of a recording, at a random position in training and consecutive in
    validation, or a simulated conversation."""
    samples: PositiveInt | None = None
    """Training samples per epoch. Null: as many chunks as cover the recordings once, plus simulated conversations
    according to `simulation.share` (1000 if all samples are simulated)."""
    validation_by: Literal["speaker", "recording"] = "speaker"
    """How `validation` splits a corpus without an official split: by speaker, so that no validation speaker occurs in
    training, or by recording."""
    speaker_names: Literal["corpus", "recording"] = "corpus"
    """Whether a speaker name identifies the same person throughout the corpus, or only within its recording (A, B,
    spk00)."""
    simulation: SimulationSettings | None = None
    """Conversations simulated for training, from clips of this corpus or of others. Null: none."""
    augmentation: AcousticSettings | None = None
    """Random reverberation, noise and level for real recordings in training. Null: no augmentation."""
    mixing: MixingSettings | None = None
    """Sums of chunks of different recordings in training. Null: none."""
    pool: PositiveInt | None = None
    """Number of simulated, augmented and mixed training samples that are computed once, held in memory and reused, for
    features that are slow to compute, such as whisper. Null: each sample is new."""

    @property
    def strangers(self) -> Literal["corpus", "recording"] | None:
        """As `validation_by` and `speaker_names` say."""
        return self.speaker_names if self.validation_by == "speaker" else None

    @property
    def to_prepare(self) -> list[RecordingData]:
        """The corpus, and the corpora of clips and of noise."""
        own: list[RecordingData] = [self] if has_corpus(self) else []
        acoustics = [self.augmentation, self.simulation.acoustics if self.simulation is not None else None]
        noise = {one.noise_path: None for one in acoustics if one is not None and one.noise_path is not None}
        return [*own, *clip_corpora(self), *(noise_corpus(self, path) for path in noise)] or [self]

    @property
    def chunk_frames(self) -> int:
        """Maximum number of frames in a sample."""
        return round(self.chunk_seconds * self.audio.frames_per_second)


def has_corpus(data: DiarizationData) -> bool:
    """Whether there is a corpus besides those in `data.simulation.path`."""
    return data.path is not None or bool(data.datasets)


def noise_corpus(data: DiarizationData, path: str) -> KaldiData:
    """The settings of a folder of noise recordings."""
    return KaldiData(path=path, audio=data.audio, cache_dir=data.cache_folder, num_jobs=data.num_jobs, validation=0.0)


def clip_corpora(data: DiarizationData) -> list[DiarizationData]:
    """The settings of the corpora in `data.simulation.path`, from which only waveforms are read."""
    paths = data.simulation.paths if data.simulation is not None else ()
    return [_waveforms(data, path) for path in paths]


def _waveforms(data: DiarizationData, path: str) -> DiarizationData:
    alone = {"path": path, "datasets": (), "format": "auto", "drop": None, "limit": None, "validation": 0.0}
    return data.model_copy(update={**alone, "storage_type": None, "storage_path": None, "cache_dir": data.cache_folder})
