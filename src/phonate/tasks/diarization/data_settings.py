"""Settings of the corpus for diarization: the recipe's `data` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from phonate.audio.settings import AudioConfig
from phonate.data.conversations.settings import AcousticSettings, SimulationSettings
from phonate.data.manifests.requirements import ConversationRequirements, Requirements
from phonate.data.settings import VoiceData

SHORTEST_SECONDS = 1.0


class DiarizationData(VoiceData):
    """Recordings with who speaks when in them, or clips of single speakers to simulate conversations from."""

    unit: Literal["auto", "recording", "segment"] = "recording"
    """What is read where segments have times: whole recordings; segment takes each segment for a clip."""
    audio: AudioConfig = AudioConfig(
        sample_rate=16000, n_fft=512, hop_length=160, win_length=400, n_mels=80, fmin=20.0, fmax=7600.0
    )
    """Sample rate and features."""
    chunk_seconds: Annotated[float, Field(ge=SHORTEST_SECONDS)] = 30.0
    """Length of a sample: of a piece of a recording, cut at random in training and side by side in validation, and of a
    simulated conversation."""
    samples: PositiveInt | None = None
    """Training samples in an epoch. Null: as many pieces as cover the recordings once and, where conversations are
    simulated, as many of these as their share wants (1000 where all are simulated)."""
    validation_by: Literal["speaker", "recording"] = "speaker"
    """What `validation` keeps where the corpus has no official split: recordings of speakers who are never in training,
    or any recordings."""
    speaker_names: Literal["corpus", "recording"] = "corpus"
    """Whether a speaker's name stands for the same person in the whole corpus, or in its recording only (A, B,
    spk00)."""
    simulation: SimulationSettings | None = None
    """Conversations simulated for training. Null: none."""
    acoustics: AcousticSettings | None = None
    """Reverberation, noise and level with which real recordings are varied in training. Null: they are taken as they
    are."""

    @property
    def requirements(self) -> Requirements:
        """Recordings of any length whose segments all name their speakers."""
        return ConversationRequirements(min_seconds=self.audio.min_seconds)

    @property
    def chunk_frames(self) -> int:
        """Frames of a sample, at most."""
        return round(self.chunk_seconds * self.audio.frames_per_second)


class ClipData(VoiceData):
    """A corpus of which conversations are simulated: only its waveforms are kept."""

    unit: Literal["auto", "recording", "segment"] = "recording"

    @property
    def requirements(self) -> Requirements:
        """Recordings of any length whose segments all name their speakers."""
        return ConversationRequirements(min_seconds=self.audio.min_seconds)

    @property
    def feature_name(self) -> str:
        """None: a conversation's features are computed from its waveform."""
        return "none"


def clip_corpora(data: DiarizationData) -> list[ClipData]:
    """The settings of the corpora in `data.simulation.path`; none where the clips are those of `data.path`."""
    if data.simulation is None:
        return []
    common = {name: getattr(data, name) for name in ("audio", "validation", "cache_dir")}
    return [ClipData(path=path, **common) for path in data.simulation.paths]
