"""Settings of speaker diarization: data, decoding and training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from phonate.config.errors import DataError, InputError, to_set
from phonate.config.metrics import Metric, by_name, losses
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import Start, TaskInfo, Traits
from phonate.config.words import duration
from phonate.data.settings import (
    KALDI_SECTIONS,
    AcousticSettings,
    ConversationData,
    Fraction,
    KaldiData,
    RecordingData,
    SimulationSettings,
)
from phonate.nn.settings import SYNONYMS, TransformerSettings
from phonate.training.settings import TrainingSettings

if TYPE_CHECKING:
    from phonate.data.corpora.rows import Row

# ------------------------------------ Settings of the corpus for diarization: the recipe's `data` part

SHORTEST_SECONDS = 1.0
FEWEST_TUNED_ON = 3
"""Recordings that decoding is tuned on: what one or two want often makes others worse."""


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
    validation_by: Literal["speaker", "recording"] | None = None
    """How `validation` splits a corpus without an official split: by speaker, so that no validation speaker occurs in
    training, or by recording. Null: by speaker, but with label_type speaker_id by recording, so that every speaker
    occurs in training."""
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
        return None if self.validation_by == "recording" else self.speaker_names

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
    return KaldiData(
        path=path,
        audio=data.audio,
        cache_dir=data.cache_folder,
        num_jobs=data.num_jobs,
        executor=data.executor,
        validation=0.0,
    )


def clip_corpora(data: DiarizationData) -> list[DiarizationData]:
    """The settings of the corpora in `data.simulation.path`, from which only waveforms are read."""
    paths = data.simulation.paths if data.simulation is not None else ()
    return [_waveforms(data, path) for path in paths]


def _waveforms(data: DiarizationData, path: str) -> DiarizationData:
    alone = {"path": path, "datasets": (), "format": "auto", "drop": None, "limit": None, "validation": 0.0}
    return data.model_copy(update={**alone, "storage_type": None, "storage_path": None, "cache_dir": data.cache_folder})


# ---------- Settings of inference: from window-level probabilities to the speaker turns of a recording

Stitching = Literal["embeddings", "overlap"]


class SmoothingSettings(Settings):
    """Smoothing of a powerset model's class probabilities by a hidden Markov model, whose states are the sets of
    simultaneous speakers."""

    change_seconds: PositiveFloat = 2.0
    """Mean time between two changes: somebody starts or stops. 2.0 in the meetings of AMI."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Exponent of the model's probabilities. Below 1, as those of neighbouring frames are not independent."""


class DecodingSettings(Settings):
    """From probabilities to turns. `phonate evaluate RUN --tune` optimises these values on validation data."""

    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """A speaker is active in frames whose probability is above this."""
    median: PositiveInt = 1
    """Length of the median filter that smooths the activity, in output frames; an odd number. 1: no filter."""
    smoothing: SmoothingSettings | None = None
    """Label type powerset: smoothing of the probabilities of each window before the threshold. Null: none."""
    min_silence: NonNegativeFloat = 0.0
    """Pauses between two turns of a speaker shorter than this are filled, in seconds."""
    min_speech: NonNegativeFloat = 0.0
    """Turns shorter than this are dropped, in seconds."""
    window_seconds: PositiveFloat | None = None
    """Length of the windows in which a recording is processed. Null: `data.chunk_seconds`, as in training."""
    window_overlap: Annotated[float, Field(ge=0.0, le=0.95)] = 0.5
    """Fraction of a window that overlaps with the next one."""
    stitching: Stitching = "embeddings"
    """How speakers are matched across windows: embeddings clusters voice embeddings and handles any number of
    speakers; overlap compares the activity where windows overlap, and finds at most `num_speakers`."""
    cluster_distance: Annotated[float, Field(gt=0.0, lt=2.0)] = 0.4
    """Distance (1 - cosine similarity, averaged over embeddings of 1.6 s segments) above which clusters are not merged,
    unless the number of speakers is given."""

    reassignment_margin: Annotated[float, Field(ge=0.0, lt=2.0)] | None = None
    """With stitching embeddings: the voices of all segments of half a second and more in which one speaker is active
    are compared, and outweigh the model: a segment goes to the speaker of the recording whose voice is nearer by more
    than this cosine similarity, and speakers of one window whose voices are nearer by this than `cluster_distance` are
    one. Null: segments stay where the model puts them, and speakers of one window are always two."""

    @model_validator(mode="after")
    def _odd_median(self) -> Self:
        if self.median % 2 == 0:
            raise ValueError(f"median {self.median} must be odd; an even filter would shift the turns")
        return self


# --------------------------------------------------------------------- Settings of speaker diarization

LabelTypeName = Literal["binary", "speaker_id", "multilabel", "powerset", "arrival", "attractors", "custom"]


SAME_SPEAKERS: tuple[LabelTypeName, ...] = ("binary", "speaker_id", "custom")
"""Label types whose output columns have the same meaning in every window."""


class FrontEndSettings(Settings):
    """Subsampling of feature frames to the transformer's input frames."""

    type: Literal["splice", "convolution"] = "splice"
    """splice: each frame is concatenated with its neighbours; convolution: strided convolutions."""
    subsampling: PositiveInt = 10
    """Feature frames per transformer frame."""
    context: NonNegativeInt = 7
    """splice: neighbouring frames on each side."""
    width: PositiveInt = 256
    """convolution: number of channels."""
    normalisation: Literal["none", "global", "mean", "mean_variance", "causal_mean"] = "global"
    """Feature normalisation. global: mean and standard deviation of the training set, which preserves the level of a
    recording; mean: mean of the chunk; mean_variance: mean and standard deviation of the chunk; causal_mean: running
    mean of the frames so far; none. Streaming needs global, causal_mean or none."""


class DiarizationModel(TransformerSettings):
    """The network, and how its output is decoded."""

    network: Literal["transformer", "sincnet"] = "transformer"
    """transformer: a front end and a transformer over features. sincnet: SincNet filters and a bidirectional LSTM over
    audio.feature_type samples, as the packaged diarizer; of global_config it has d_model (of each direction),
    num_layers and dropout, and no front_end, upsampling or streams."""
    front_end: FrontEndSettings = FrontEndSettings()
    """Subsampling of feature frames to the transformer's input frames."""
    upsampling: PositiveInt = 1
    """Output frames per transformer frame; must divide front_end.subsampling."""
    num_speakers: PositiveInt = 4
    """Maximum number of speakers per chunk. In training chunks with more, only the most active ones are targets."""
    max_simultaneous: PositiveInt = 2
    """powerset: maximum number of simultaneous speakers."""
    decoding: DecodingSettings = DecodingSettings()
    """From the model's output to turns."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.front_end.subsampling % self.upsampling:
            raise ValueError(
                f"upsampling {self.upsampling} must divide front_end.subsampling {self.front_end.subsampling}"
            )
        if self.max_simultaneous > self.num_speakers:
            raise ValueError(
                f"max_simultaneous {self.max_simultaneous} must not be above num_speakers {self.num_speakers}"
            )
        return self

    @property
    def stride(self) -> int:
        """Feature frames per output frame."""
        return 1 if self.network == "sincnet" else self.front_end.subsampling // self.upsampling


class EvalKnobs(Settings):
    """Label type and batch sizes."""

    refused_keys: ClassVar = {
        "beam_width": "it belongs to the task sequence; each frame is decided with model.decoding, without a search",
        "sliding_window": "it belongs to the task sequence; windows have model.decoding.window_seconds",
    }

    label_type: LabelTypeName = "multilabel"
    """What the model predicts for each frame. binary: speech or not; speaker_id: which training speaker; multilabel:
    the activity of each speaker, permutation-invariant; powerset: the set of active speakers, permutation-invariant;
    arrival: the activity of each speaker in order of arrival; attractors: the activity of an estimated number of
    speakers; custom: the `labels` added by `data.collator`."""
    max_duration: PositiveFloat | None = None
    """Maximum seconds of audio per batch, including padding. Null: training.max_duration, or batch_size."""
    batch_size: PositiveInt | None = None
    """Samples per batch in validation. Null: validation.batch_size."""


class DiarizationTraining(TrainingSettings):
    """Training options, with the label type."""

    eval_knobs: EvalKnobs = EvalKnobs()
    """Label type and batch sizes."""

    @model_validator(mode="after")
    def _knobs_agree(self) -> Self:
        knobs = self.eval_knobs
        if knobs.max_duration is not None and knobs.max_duration != self.max_duration:
            raise ValueError("eval_knobs.max_duration and max_duration are the same option; set only one")
        if knobs.batch_size is not None and knobs.batch_size != self.validation.batch_size:
            raise ValueError("eval_knobs.batch_size and validation.batch_size are the same option; set only one")
        return self


def _size(width: int, layers: int, heads: int, lr: float) -> dict[str, Any]:
    part = {"d_model": width, "num_layers": layers, "num_heads": heads}
    return {"model": {"global_config": part}, "training": {"optimizer": {"lr": lr}}}


def facts(inference_metadata: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the report's summary table."""
    seconds, recordings = inference_metadata.get("seconds", 0.0), inference_metadata.get("recordings", 0)
    simulated = inference_metadata.get("simulated_share", 0.0)
    return {
        "Training recordings": f"{recordings}, {duration(seconds)}" if recordings else "none",
        "Simulated conversations": f"{simulated:.0%} of the samples" if simulated else "",
        "Training speakers": str(inference_metadata.get("training_speakers", "")),
    }


DiarizationRecipe = Recipe[DiarizationData, DiarizationModel, DiarizationTraining]

DATA = DiarizationData
MODEL = DiarizationModel
TRAINING = DiarizationTraining
SIZES = {
    "tiny": _size(96, 3, 4, 1e-3),
    "small": _size(128, 4, 4, 1e-3),
    "medium": _size(256, 4, 4, 5e-4),
    "default": _size(512, 6, 8, 2e-4),
    "large": _size(768, 8, 12, 1e-4),
}
METRICS = by_name(
    Metric("accuracy", "higher", "%"),
    Metric("der", "lower", "%", "DER"),
    Metric("miss", "lower", "%", "missed"),
    Metric("false_alarm", "lower", "%", "false alarm"),
    Metric("confusion", "lower", "%", "confusion"),
    Metric("jer", "lower", "%", "JER"),
    Metric("speakers", "lower", "", "speakers miscounted"),
    Metric("rtf", "", "", "RTF"),
)
"""What validation and evaluation measure, besides losses."""
LOSSES: Mapping[LabelTypeName, str] = {
    "binary": "bce_with_logits",
    "speaker_id": "cross_entropy",
    "multilabel": "bce_with_logits",
    "powerset": "cross_entropy",
    "arrival": "bce_with_logits",
    "attractors": "bce_with_logits",
    "custom": "cross_entropy",
}
"""The main loss of recipes that name none."""
SECOND: Mapping[LabelTypeName, str] = {"arrival": "permutation", "attractors": "existence"}
"""The second loss term of a label type: the main loss, permutation-invariant; whether each attractor represents a
speaker."""


def traits(recipe: DiarizationRecipe) -> Traits | None:
    """See `TaskInfo.traits`; None where the recipe chooses losses, or the number of classes."""
    label_type, model = recipe.training.eval_knobs.label_type, recipe.model
    main = LOSSES[label_type]
    if (
        not recipe.training.loss.is_only(main)
        or label_type == "custom"
        or model.output_settings.num_classes is not None
    ):
        return None
    check(recipe)
    terms = [main, *(name for kind, name in SECOND.items() if kind == label_type)]
    return Traits(metrics_of(recipe, terms), frozenset(terms), random_features=model.random_features)


def metrics_of(recipe: DiarizationRecipe, terms: Iterable[str]) -> tuple[Metric, ...]:
    """What validation reports besides `loss`, where it has these `terms`: unless labels are custom, error rates too."""
    custom = recipe.training.eval_knobs.label_type == "custom"
    rates = () if custom else ("der", "miss", "false_alarm", "confusion")
    return (*losses(terms), *(METRICS[name] for name in ("accuracy", *rates)))


def check(recipe: DiarizationRecipe) -> None:
    """Raise InputError for options that contradict each other."""
    recipe.model.require_agreement(recipe.training.batch_size, recipe.training.device)
    if (recipe.model.network == "sincnet") != (recipe.data.audio.feature_type == "samples"):
        raise InputError(
            f"model.network {recipe.model.network} does not fit data.audio.feature_type "
            f"{recipe.data.audio.feature_type}: sincnet reads samples, and nothing else does; change one of them"
        )
    model = recipe.model
    if model.network == "sincnet" and (model.upsampling, model.front_end) != (1, FrontEndSettings()):
        raise InputError("model.network sincnet has no use for model.front_end and model.upsampling; leave them out")
    if recipe.training.eval_knobs.label_type == "speaker_id" and recipe.data.validation_by == "speaker":
        raise InputError(
            "data.validation_by: speaker keeps speakers out of training, and label_type speaker_id knows those of "
            "training alone; set it to recording, or leave it out"
        )


def start(recipe: DiarizationRecipe) -> Iterable[Start]:
    """Decides nothing; see `TaskInfo.start`.

    Raises DataError where speakers are to be told apart, and the recordings have one each: the model would learn who
    speaks at all, and its error rate would still be low. Mixed, those with times teach overlaps. Whole files do not say
    when anybody speaks: beside labelled ones they would be speech of one speaker from beginning to end.
    """
    from phonate.data.corpora.manifest import list_corpus  # takes a while
    from phonate.data.corpora.rows import Row

    data = recipe.data
    if recipe.training.eval_knobs.label_type in SAME_SPEAKERS or not has_corpus(data):
        return ()
    if data.simulation is not None:
        return ()
    try:
        rows = [row for row in list_corpus(data)[0] if isinstance(row, Row)]
    except DataError:  # who reads the corpus says so; options can be explained without it
        return ()
    timed = len(_unlabelled(rows)) < len(rows)
    if rows and all(len(row.speakers) < 2 for row in rows) and not (data.mixing is not None and timed):
        several = len({speaker for row in rows for speaker in row.speakers}) > 1
        simulate = "simulate them of these speakers: data.simulation={}"
        alone = "simulate them of others (a single speaker is too few): set data.simulation.path to a folder that has "
        alone += "a folder of recordings for each speaker"
        raise DataError(
            f"{data.label}: no recording has two speakers by its labels; put labels beside conversations (meeting.wav, "
            f"meeting.rttm), or {simulate if several else alone}"
        )
    if timed:
        require_turns(data.label, rows)
    return ()


def require_turns(corpus: str, rows: Sequence[Row]) -> None:
    """Raise DataError where nothing says who speaks when in one of the `rows` of a corpus: it would be speech of one
    speaker from beginning to end."""
    from phonate.data.labels import some

    if unlabelled := _unlabelled(rows):
        raise DataError(
            f"{corpus}: no labels say who speaks when in {len(unlabelled)} of {len(rows)} recordings: "
            f"{some(unlabelled)}; put labels beside them (meeting.rttm beside meeting.wav), or "
            + to_set("data.drop to a file with their ids", "take them out")
        )


def _unlabelled(rows: Sequence[Row]) -> list[str]:
    """The ids of those whose speech has no times."""
    return [row.id for row in rows if any((one.start, one.end) == (0.0, None) for one in row.segments)]


INFO = TaskInfo(
    use="phonate diarize {run} RECORDING --page turns.html",
    recipe="diarization-pretrained",
    previews={
        "activity": "who speaks when in a part of a validation recording: a row for each speaker, white where they "
        "speak; above the reference, below the model",
        "sound": "that part",
        "features": "what the model sees of it",
    },
    hub_task="voice-activity-detection",
    metrics=tuple(METRICS.values()),
    validation="Validation scores single chunks, frame by frame as the model outputs them; evaluation scores whole "
    "recordings, with smoothed turns and voices joined across chunks.",
    inference="phonate.tasks.diarization.inference:Diarizer",
    evaluation="phonate.tasks.diarization.evaluation:evaluate",
    start=start,
    tuning="phonate.tasks.diarization.evaluation:tune",
    implied_by=("training.eval_knobs.label_type", "datasets", "global_config"),
    traits=traits,
    sections=KALDI_SECTIONS,
    synonyms={
        **SYNONYMS,
        "training.eval_knobs.max_duration": "training.max_duration",
        "training.eval_knobs.batch_size": "training.validation.batch_size",
    },
    facts=facts,
)
