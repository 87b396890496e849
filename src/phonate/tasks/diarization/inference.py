"""Inference of diarization: from recordings to speaker turns.

Shapes: B batch, T feature frames, F features, U output frames, K speakers of the model, G of the recording, N samples.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import Audio, AudioT, FloatArray, as_waveform, read_blocks
from phonate.config.errors import DataError, InputError
from phonate.config.words import number_of
from phonate.data.annotations import SpeakerTurn, rttm_lines
from phonate.data.batches import padded
from phonate.data.corpora.rows import one_line
from phonate.data.features import FEATURES
from phonate.data.progress import Stage, progress_in
from phonate.nn.products import wide_products
from phonate.pretrained import SPEAKER_RATE
from phonate.tasks.diarization.identification import names_by_voice
from phonate.tasks.diarization.model import ActivityModel, ActivityStream, build_model
from phonate.tasks.diarization.segmentation import (
    Exchange,
    Read,
    Segmentation,
    SpeakerLimits,
    TurnStream,
    Voices,
    Window,
    active,
    by_overlap,
    by_voice,
    joined,
    read_windows,
    same_columns,
    smoothed,
    speaker_limits,
    speaker_turns,
)
from phonate.tasks.diarization.settings import (
    SAME_SPEAKERS,
    DecodingSettings,
    DiarizationRecipe,
    SmoothingSettings,
    Stitching,
)
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Demonstration, Device, Inference

logger = logging.getLogger("phonate")

_BATCH = 8
"""Windows per forward pass, ..."""
_PROCESSOR_BATCH = 4
"""... and on a processor: the activations of more are too large to be kept, and are allocated anew each time."""
TUNED = "decoding.json"
"""File in a run's folder with the tuned decoding settings."""


@dataclass(frozen=True)
class Diarization:
    """The diarization of a recording."""

    turns: list[SpeakerTurn]
    """Sorted by start; times in seconds."""
    speakers: list[str]
    """In the order of their first turns."""
    probabilities_UG: FloatArray
    """(U, G) float32, the probability that each of `speakers` is active in each frame."""
    frames_per_second: float
    """Frame u begins at u / frames_per_second."""
    seconds: float
    """Length of the recording in seconds."""

    def renamed(self, names: Mapping[str, str]) -> Diarization:
        """The same with other names for some speakers."""
        turns = sorted(replace(turn, speaker=names.get(turn.speaker, turn.speaker)) for turn in self.turns)
        return replace(self, turns=turns, speakers=[names.get(speaker, speaker) for speaker in self.speakers])

    def rttm(self, recording: str) -> str:
        """The turns as the text of an RTTM file."""
        return "".join(f"{line}\n" for line in rttm_lines(recording, self.turns))


@dataclass(frozen=True)
class Analysis:
    """The model's output for the windows of a recording, before speakers are matched across windows."""

    windows: Segmentation
    voices: Voices | None
    """Voice embeddings; None if they are not compared."""
    seconds: float
    """Length of the recording in seconds."""


class _DiarizeOptions(TypedDict, total=False):
    speakers: int | None
    min_speakers: int | None
    max_speakers: int | None
    stitching: Stitching | None
    sample_rate: int | None
    known: Mapping[str, str | Path] | None


class Diarizer(Inference):
    """Determines who speaks when in recordings."""

    sample_rate: int
    """Hz."""

    def __init__(
        self,
        model: ActivityModel,
        recipe: DiarizationRecipe,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`recipe`: the one the model was trained with; `inference_metadata`: saved with the checkpoint by the task."""
        self.model = model.eval()
        self.recipe = recipe
        self.inference_metadata = dict(inference_metadata or {})
        self.features = FEATURES.get(recipe.data.feature_name)(recipe.data)
        self.sample_rate = recipe.data.audio.sample_rate
        self.decoding: DecodingSettings = recipe.model.decoding
        """How turns are decoded from probabilities; may be replaced."""
        self.label_type: str = recipe.training.eval_knobs.label_type

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The diarizer of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Values tuned by `phonate evaluate RUN --tune` (RUN/decoding.json) override the recipe's `model.decoding`.

        Args:
            source: A run's folder or a checkpoint's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError if there is no checkpoint, or it is damaged or belongs to another task.
        """
        trained = open_trained(source, "diarization", DiarizationRecipe)
        metadata = trained.inference_metadata
        model = build_model(trained.recipe, metadata["feature_width"], metadata["speakers"])
        diarizer = cls(model, trained.recipe, metadata)
        trained.require_features(diarizer.features.fingerprint)
        trained.load_into(model)
        diarizer.decoding = _tuned(trained.path.resolve().parent.parent / TUNED, diarizer.decoding)
        return diarizer.to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The model."""
        return (self.model,)

    @property
    def frames_per_second(self) -> float:
        """Output frames per second."""
        return self.recipe.data.audio.frames_per_second / self.model.stride

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`recording`, diarized."""
        if recording is None:
            return None
        diarization = self.diarize(recording)
        who = f"{number_of(len(diarization.speakers), 'speaker')} in {number_of(len(diarization.turns), 'turn')}"
        return Demonstration(f"{one_line(recording.name)}: {who}", "phonate diarize {run} in.wav -o out.rttm")

    @overload
    def diarize(self, audio: Audio, **options: Unpack[_DiarizeOptions]) -> Diarization: ...

    @overload
    def diarize(
        self, audio: list[AudioT] | tuple[AudioT, ...], **options: Unpack[_DiarizeOptions]
    ) -> list[Diarization]: ...

    def diarize(
        self,
        audio: Audio | list[AudioT] | tuple[AudioT, ...],
        *,
        speakers: int | None = None,
        min_speakers: int | None = None,
        max_speakers: int | None = None,
        stitching: Stitching | None = None,
        sample_rate: int | None = None,
        known: Mapping[str, str | Path] | None = None,
    ) -> Diarization | list[Diarization]:
        """Diarize one recording or a list of them.

        Args:
            audio: Path of a recording in any format, sample rate and length, which is read in blocks; or samples (N,);
                or a list of either.
            speakers: The number of speakers, if known.
            min_speakers, max_speakers: Bounds on the number of speakers.
            stitching: How speakers are matched across windows; None: as set in `decoding`.
            sample_rate: Sample rate of arrays in Hz; None: `self.sample_rate`.
            known: A recording of each person whose name is known, by name. Speakers who sound like one of them get it.

        Raises:
            InputError: numbers of speakers are contradictory, or not supported by the label type or stitching.
            DataError: the audio can't be read.
            MissingPackageError: voice embeddings are needed, and resemblyzer is not installed.
        """
        limits = speaker_limits(speakers, min_speakers, max_speakers)
        settings = self.decoding if stitching is None else self.decoding.model_copy(update={"stitching": stitching})

        def diarized(one: Audio) -> Diarization:
            analysis = self.analyse(one, limits, settings, sample_rate)
            diarization = self.decode(analysis, limits, settings)
            if limits is not None and limits.least > 1:
                name = str(one) if isinstance(one, str | Path) else "the recording"
                unforced = self.decode(analysis, SpeakerLimits(most=limits.most), settings)
                _report_number(name, limits.least, len(diarization.speakers), len(unforced.speakers))
            if not known or self.label_type in SAME_SPEAKERS:
                return diarization
            blocks = self._blocks(one, SPEAKER_RATE, sample_rate)
            return diarization.renamed(names_by_voice(diarization.turns, blocks, known))

        return [diarized(one) for one in audio] if isinstance(audio, list | tuple) else diarized(audio)

    def analyse(
        self,
        audio: Audio | Read,
        limits: SpeakerLimits | None = None,
        settings: DecodingSettings | None = None,
        sample_rate: int | None = None,
        name: str = "the recording",
    ) -> Analysis:
        """Run the model; `decode` turns the result into a diarization. Arguments and errors as in `diarize`.

        `audio` may also be a function of which each call iterates over a recording called `name` from the start, in
        blocks (N,) at `self.sample_rate`.
        """
        name = str(audio) if isinstance(audio, str | Path) else name
        read = audio if callable(audio) else self._reader(audio, sample_rate)
        settings = settings or self.decoding
        if limits is not None and (self.label_type in SAME_SPEAKERS or settings.stitching == "overlap"):
            raise InputError(
                "the number of speakers can only be given with stitching embeddings, and not for models of label type "
                f"{', '.join(SAME_SPEAKERS)}"
            )
        stride, rate = self.model.stride, self.recipe.data.audio.frames_per_second
        chunk = settings.window_seconds or self.recipe.data.chunk_seconds
        length = max(1, round(chunk * rate / stride))
        step = max(1, round(length * (1.0 - settings.window_overlap)))
        windows = read_windows(read, self.features, length * stride, step * stride, stride)
        compared = settings.stitching == "embeddings" and self.label_type not in SAME_SPEAKERS
        heard = progress_in(Stage.DIARIZING, audio)
        analysis = self._analysed(windows, settings, compared, limits is not None, heard)
        if not analysis.windows.starts:
            raise DataError(f"{name}: shorter than one frame")
        return analysis

    def _analysed(
        self,
        windows: Iterator[Window],
        settings: DecodingSettings,
        compared: bool,
        limited: bool,
        heard: Callable[[float], None],
    ) -> Analysis:
        """Run the model on all windows; `heard` is told how many seconds are done. Voices are embedded if they are
        `compared` and there are several windows, or a limit on the number of speakers."""
        two = list(itertools.islice(windows, 2))
        segmentation, hop, seconds = Segmentation([], []), self.recipe.data.audio.hop_length, 0.0
        voices = None
        if compared and (len(two) > 1 or limited):
            voices = Voices(self.sample_rate, segments=settings.reassignment_margin is not None, device=self.device)
        rest, most = itertools.chain(two, windows), _PROCESSOR_BATCH if self.device.type == "cpu" else _BATCH
        while batch := list(itertools.islice(rest, most)):
            probabilities = self._probabilities([one.features_TF for one in batch], settings.smoothing)
            for window, own_UK in zip(batch, probabilities, strict=True):
                if voices is not None:
                    active_UK = active(own_UK, settings.threshold, settings.median)
                    place = window.start // self.model.stride
                    voices.add(len(segmentation.starts), place, active_UK, window.waveform_N, hop * self.model.stride)
                segmentation.starts.append(window.start // self.model.stride)
                segmentation.probabilities.append(own_UK)
                seconds = (window.start * hop + len(window.waveform_N)) / self.sample_rate
            heard(seconds)
        return Analysis(segmentation, voices, seconds)

    @torch.no_grad()
    def _probabilities(
        self, features: Sequence[FloatArray], smoothing: SmoothingSettings | None = None
    ) -> list[FloatArray]:
        """The activity probabilities (U, K) of each window, from its features (T, F)."""
        lengths_B = torch.tensor([len(one) for one in features], device=self.device)
        features_BTF = padded(list(features)).to(self.device)
        frames = [-(-len(one) // self.model.stride) for one in features]
        if smoothing is None:
            with wide_products():
                activity_BUK = self.model.activity_probabilities(features_BTF, lengths_B).float().cpu().numpy()
            return [own_UK[:count] for own_UK, count in zip(activity_BUK, frames, strict=True)]
        members_PK = self.model.require_powerset().members_PK.cpu().numpy()
        with wide_products():
            classes_BUP = self.model.class_probabilities(features_BTF, lengths_B).cpu().numpy()
        return [
            smoothed(own_UP[:count], members_PK, self.frames_per_second, smoothing) @ members_PK
            for own_UP, count in zip(classes_BUP, frames, strict=True)
        ]

    def decode(
        self, analysis: Analysis, limits: SpeakerLimits | None = None, settings: DecodingSettings | None = None
    ) -> Diarization:
        """Decode an analysis with `settings` (None: `self.decoding`)."""
        settings = settings or self.decoding
        exchanged: Sequence[Exchange] = ()
        if self.label_type in SAME_SPEAKERS:
            assignment_WK = same_columns(analysis.windows)
        elif analysis.voices is None:
            assignment_WK = by_overlap(analysis.windows)
        else:
            assignment_WK, exchanged = by_voice(
                analysis.windows, analysis.voices, settings, limits or SpeakerLimits(), self.frames_per_second
            )
        probabilities_UG = joined(analysis.windows, assignment_WK, exchanged)
        return self._named(probabilities_UG, settings, analysis.seconds)

    def _named(self, probabilities_UG: FloatArray, settings: DecodingSettings, seconds: float) -> Diarization:
        turns = speaker_turns(probabilities_UG, self.frames_per_second, settings)
        active_columns = [column for column, own in enumerate(turns) if own]
        order = sorted(active_columns, key=lambda column: turns[column][0])
        names = [self._name(column, number) for number, column in enumerate(order)]
        named = sorted(
            replace(turn, end=min(turn.end, seconds), speaker=name)
            for name, column in zip(names, order, strict=True)
            for turn in turns[column]
            if turn.start < seconds
        )
        return Diarization(named, names, probabilities_UG[:, order], self.frames_per_second, seconds)

    def _name(self, column: int, number: int) -> str:
        """The name of the speaker in output column `column`, the `number`-th to speak (from 0)."""
        if self.label_type == "binary":
            return "speech"
        if self.label_type == "speaker_id":
            return str(self.inference_metadata["speakers"][column])
        return f"speaker{number + 1}"

    def _reader(self, audio: Audio, sample_rate: int | None) -> Read:
        """A reader of `audio` in blocks (N,) at the model's sample rate."""
        if isinstance(audio, str | Path):
            if sample_rate is not None:
                raise InputError(f"{audio}: sample_rate applies to arrays only; files have their own")
            path = audio
            return lambda: read_blocks(path, self.sample_rate)
        waveform = as_waveform(audio, self.sample_rate, sample_rate)
        return lambda: [waveform]

    def _blocks(self, audio: Audio, rate: int, sample_rate: int | None) -> Iterable[FloatArray]:
        """`audio` in blocks (N,) at `rate`."""
        if isinstance(audio, str | Path):
            return read_blocks(audio, rate)
        return [as_waveform(audio, rate, sample_rate or self.sample_rate)]

    def comparable(self, turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
        """Reference turns with the model's speaker names: for binary labels all are `speech`."""
        return [replace(turn, speaker="speech") if self.label_type == "binary" else turn for turn in turns]

    def stream(self, blocks: Iterable[FloatArray]) -> Iterator[SpeakerTurn]:
        """Diarize a recording that arrives in blocks of samples (N,) at `self.sample_rate`, in constant memory if the
        attention is causal_linear. Each turn is yielded as soon as its end is known.

        The whole recording is one window, so there are at most as many speakers as the model has output columns, after
        which they are named.

        Raises InputError for a model that needs later frames; the message says which option causes that.
        """
        turns, samples = TurnStream(self.frames_per_second, self.decoding), 0

        def counted() -> Iterator[FloatArray]:
            nonlocal samples
            for block in blocks:
                samples += len(block)
                yield block

        for probabilities_UK in self.stream_probabilities(counted()):
            for column, turn in turns.push(probabilities_UK):
                yield from self._streamed(column, turn, samples)
        for column, turn in turns.end():
            yield from self._streamed(column, turn, samples)

    def _streamed(self, column: int, turn: SpeakerTurn, samples: int) -> Iterator[SpeakerTurn]:
        """The turn, named, without what the last frame has beyond the `samples` of the recording."""
        seconds = samples / self.sample_rate
        if turn.start < seconds:
            yield replace(turn, end=min(turn.end, seconds), speaker=self._name(column, column))

    def stream_probabilities(self, blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Activity probabilities (U, K) of the output frames completed by each block of samples (N,)."""
        stream = ActivityStream(self.model)
        features = self.features.stream()
        if features is None:
            raise InputError(
                f"this model can't diarize a stream: its features, {self.recipe.data.feature_name}, depend on later "
                "samples; train another, by the recipe diarization-streaming"
            )
        if self.decoding.smoothing is not None:
            raise InputError("a stream can't be smoothed, which needs later frames; set model.decoding.smoothing=null")
        state = stream.initial_state(torch.zeros(1, 0, self.features.width, device=self.device))

        def step(features_TF: FloatArray, last: bool) -> FloatArray:
            features_BTF = torch.from_numpy(np.ascontiguousarray(features_TF))[None].to(self.device)
            return np.asarray(stream.step(features_BTF, state, last)[0].float().cpu().numpy())

        for block in blocks:
            yield step(features.push(block), False)
        yield step(features.end(), True)


def _report_number(name: str, asked: int, count: int, unforced: int) -> None:
    """Say where the speakers `asked` for are not `count`ed, or are more than were told apart without a number."""
    compare = "without the number; some may be one: compare"
    if count < asked:
        heard = f"only {count} could be told apart" if count else "nobody was heard"
        forced = f", and only {unforced} {compare}" if unforced < count else ""
        logger.warning("%s: %d speakers were asked for, but %s%s", name, asked, heard, forced)
    elif unforced < asked:
        logger.warning("%s: of the %d speakers, only %d could be told apart %s", name, asked, unforced, compare)


def _tuned(path: Path, settings: DecodingSettings) -> DecodingSettings:
    """`settings` with the values in a run's file of tuned ones, if it exists. Raises InputError if it is invalid."""
    if not path.is_file():
        return settings
    try:
        return DecodingSettings.model_validate({**settings.model_dump(), **json.loads(path.read_bytes())})
    except ValueError as error:  # among them pydantic's
        raise InputError(
            f"{path}: invalid decoding settings; delete it, then evaluate --tune may write others"
        ) from error
