"""From a trained run to who spoke when.

Shapes: B batch, T feature frames, F features, U output frames, K speakers of the model, G of the recording, N samples.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import FloatArray, read_blocks
from phonate.audio.inputs import Audio, AudioT, as_waveform
from phonate.config.errors import DataError, InputError
from phonate.data.annotations import SpeakerTurn, rttm_lines
from phonate.data.batches.recordings import padded
from phonate.data.features import FEATURES
from phonate.data.manifests.rows import one_line
from phonate.tasks.diarization.decoding_settings import DecodingSettings, Stitching
from phonate.tasks.diarization.model import ActivityStream, SpeakerActivityModel, build_model
from phonate.tasks.diarization.segmentation.clustering import SpeakerLimits, cluster
from phonate.tasks.diarization.segmentation.stitching import (
    NOBODY,
    Persons,
    Segmentation,
    by_overlap,
    joined,
    same_columns,
    tracks,
)
from phonate.tasks.diarization.segmentation.turns import TurnStream, active, speaker_turns
from phonate.tasks.diarization.segmentation.voices import Voices
from phonate.tasks.diarization.segmentation.windows import Read, Window, read_windows
from phonate.tasks.diarization.settings import DiarizationRecipe
from phonate.training.checkpoints.trained import open_trained
from phonate.training.inference import Demonstration, Device, Inference

_BATCH = 8
"""Windows that the model reads at once."""
_TRACKED_SECONDS = 0.3
"""Speakers of two windows who talk together for less may be the same by chance."""
TUNED = "decoding.json"
"""In a run's folder: what was tuned."""
SAME_SPEAKERS = ("binary", "speaker_id", "custom")
"""Label types of which a column means the same in every window."""


@dataclass(frozen=True)
class Diarization:
    """Who speaks when in a recording."""

    turns: list[SpeakerTurn]
    """By start. Times are seconds in the recording."""
    speakers: list[str]
    """In the order in which they first speak."""
    probabilities_UG: FloatArray
    """How likely each of `speakers` is active in each frame."""
    frames_per_second: float
    """Frame u begins at u / frames_per_second."""
    seconds: float
    """Length of the recording."""

    def rttm(self, recording: str) -> str:
        """The turns as the text of an RTTM file."""
        return "".join(f"{line}\n" for line in rttm_lines(recording, self.turns))


@dataclass(frozen=True)
class Analysis:
    """What the model finds in the windows of a recording, before it is decided who of them are the same."""

    windows: Segmentation
    voices: Voices | None
    """None: voices are not compared."""
    seconds: float
    """Length of the recording."""


class Diarizer(Inference):
    """Finds out who speaks when in recordings."""

    sample_rate: int

    def __init__(
        self,
        model: SpeakerActivityModel,
        recipe: DiarizationRecipe,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`recipe`: that the model was trained with; `inference_metadata`: what the task saved with the checkpoint."""
        self.model = model.eval()
        self.recipe = recipe
        self.inference_metadata = dict(inference_metadata or {})
        self.features = FEATURES.get(recipe.data.feature_name)(recipe.data)
        self.sample_rate = recipe.data.audio.sample_rate
        self.decoding: DecodingSettings = recipe.model.decoding
        """How probabilities become turns; may be replaced."""
        self.label_type: str = recipe.training.eval_knobs.label_type

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The diarizer of a run (its best checkpoint, or else its newest) or of one checkpoint.

        What `phonate evaluate RUN --tune` chose (RUN/decoding.json) takes the place of the recipe's `model.decoding`.

        Args:
            source: A run's folder or a checkpoint's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
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
        """Output frames in a second."""
        return self.recipe.data.audio.frames_per_second / self.model.stride

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`recording`, diarized."""
        if recording is None:
            return None
        found = self.diarize(recording)
        count = len(found.speakers)
        who = f"{count} speaker{'s' * (count != 1)} in {len(found.turns)} turns"
        return Demonstration(
            f"It hears {who} in {one_line(recording.name)}", "phonate diarize {run} in.wav -o out.rttm"
        )

    @overload
    def diarize(
        self,
        audio: Audio,
        *,
        speakers: int | None = None,
        min_speakers: int | None = None,
        max_speakers: int | None = None,
        stitching: Stitching | None = None,
        sample_rate: int | None = None,
    ) -> Diarization: ...

    @overload
    def diarize(
        self,
        audio: list[AudioT] | tuple[AudioT, ...],
        *,
        speakers: int | None = None,
        min_speakers: int | None = None,
        max_speakers: int | None = None,
        stitching: Stitching | None = None,
        sample_rate: int | None = None,
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
    ) -> Diarization | list[Diarization]:
        """Who speaks when in a recording.

        Args:
            audio: The path of a recording of any format, rate and length, which is read in blocks; or samples (N,); or
                a list of them.
            speakers: How many speakers there are, where that is known.
            min_speakers, max_speakers: How many there are at least and at most.
            stitching: How speakers of different windows are found to be the same; None: as `decoding` says.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.

        Raises:
            InputError: numbers of speakers that contradict each other, or that the model can't be told.
            DataError: audio that can't be read.
            MissingPackageError: voices are to be compared, and resemblyzer is not installed.
        """
        limits = speaker_limits(speakers, min_speakers, max_speakers)
        settings = self.decoding if stitching is None else self.decoding.model_copy(update={"stitching": stitching})
        if isinstance(audio, list | tuple):
            return [self._diarize(one, limits, settings, sample_rate) for one in audio]
        return self._diarize(audio, limits, settings, sample_rate)

    def _diarize(
        self, audio: Audio, limits: SpeakerLimits | None, settings: DecodingSettings, sample_rate: int | None
    ) -> Diarization:
        return self.decode(self.analyse(audio, limits, settings, sample_rate), limits, settings)

    def analyse(
        self,
        audio: Audio,
        limits: SpeakerLimits | None = None,
        settings: DecodingSettings | None = None,
        sample_rate: int | None = None,
    ) -> Analysis:
        """What `decode` makes a diarization of. The other arguments and the errors are those of `diarize`."""
        name = str(audio) if isinstance(audio, str | Path) else "the recording"
        return self.analyse_blocks(self._reader(audio, sample_rate), limits, settings, name)

    def analyse_blocks(
        self,
        read: Read,
        limits: SpeakerLimits | None = None,
        settings: DecodingSettings | None = None,
        name: str = "the recording",
    ) -> Analysis:
        """The same for a recording that `read()` iterates over, as often as it is called, in blocks (samples,) at
        `self.sample_rate`."""
        settings = settings or self.decoding
        if limits is not None and (self.label_type in SAME_SPEAKERS or settings.stitching == "overlap"):
            raise InputError(
                "a number of speakers can be given where voices are compared (stitching: embeddings) only, and not to "
                f"a model of label type {', '.join(SAME_SPEAKERS)}"
            )
        stride, rate = self.model.stride, self.recipe.data.audio.frames_per_second
        chunk = settings.window_seconds or self.recipe.data.chunk_seconds
        length = max(1, round(chunk * rate / stride))
        step = max(1, round(length * (1.0 - settings.window_overlap)))
        windows = read_windows(read, self.features, length * stride, step * stride, stride)
        compared = settings.stitching == "embeddings" and self.label_type not in SAME_SPEAKERS
        analysis = self._analysed(windows, settings, compared, limits is not None)
        if not analysis.windows.starts:
            raise DataError(f"{name}: is shorter than a frame")
        return analysis

    def _analysed(
        self, windows: Iterator[Window], settings: DecodingSettings, compared: bool, limited: bool
    ) -> Analysis:
        """Run the model on all windows; embed voices if they are `compared`, and there is something to compare."""
        two = list(itertools.islice(windows, 2))
        found, hop, seconds = Segmentation([], []), self.recipe.data.audio.hop_length, 0.0
        voices = Voices(self.sample_rate) if compared and (len(two) > 1 or limited) else None
        rest = itertools.chain(two, windows)
        while batch := list(itertools.islice(rest, _BATCH)):
            for window, own_UK in zip(batch, self._probabilities([one.features_TF for one in batch]), strict=True):
                if voices is not None:
                    active_UK = active(own_UK, settings.threshold, settings.median)
                    voices.add(len(found.starts), active_UK, window.waveform_N, hop * self.model.stride)
                found.starts.append(window.start // self.model.stride)
                found.probabilities.append(own_UK)
                seconds = (window.start * hop + len(window.waveform_N)) / self.sample_rate
        return Analysis(found, voices, seconds)

    @torch.no_grad()
    def _probabilities(self, features: Sequence[FloatArray]) -> list[FloatArray]:
        """(U, K) for each window."""
        lengths_B = torch.tensor([len(one) for one in features], device=self.device)
        found_BUK = self.model.activity_probabilities(padded(list(features)).to(self.device), lengths_B)
        return [
            one_UK[: -(-len(window) // self.model.stride)]
            for one_UK, window in zip(found_BUK.float().cpu().numpy(), features, strict=True)
        ]

    def decode(
        self, analysis: Analysis, limits: SpeakerLimits | None = None, settings: DecodingSettings | None = None
    ) -> Diarization:
        """The diarization that an analysis gives with `settings` (None: `self.decoding`)."""
        settings = settings or self.decoding
        persons_WK = self._persons(analysis, limits or SpeakerLimits(), settings)
        probabilities_UG = joined(analysis.windows, persons_WK)
        return self._named(probabilities_UG, settings, analysis.seconds)

    def _persons(self, analysis: Analysis, limits: SpeakerLimits, settings: DecodingSettings) -> Persons:
        windows, voices = analysis.windows, analysis.voices
        if self.label_type in SAME_SPEAKERS:
            return same_columns(windows)
        if voices is None:
            return by_overlap(windows)
        active_WUK = [active(own_UK, settings.threshold, settings.median) for own_UK in windows.probabilities]
        frames = math.ceil(_TRACKED_SECONDS * self.frames_per_second)
        found, columns_N = voices.found(tracks(windows, active_WUK, frames))
        persons_WK = np.full((len(windows.starts), self.model.speakers), NOBODY)
        persons_WK[found.windows_N, columns_N] = cluster(found, settings.cluster_distance, limits)
        return persons_WK

    def _named(self, probabilities_UG: FloatArray, settings: DecodingSettings, seconds: float) -> Diarization:
        turns = speaker_turns(probabilities_UG, self.frames_per_second, settings)
        heard = [column for column, own in enumerate(turns) if own]
        order = sorted(heard, key=lambda column: turns[column][0])
        names = [self._name(column, number) for number, column in enumerate(order)]
        named = sorted(
            replace(turn, end=min(turn.end, seconds), speaker=name)
            for name, column in zip(names, order, strict=True)
            for turn in turns[column]
            if turn.start < seconds
        )
        return Diarization(named, names, probabilities_UG[:, order], self.frames_per_second, seconds)

    def _name(self, column: int, number: int) -> str:
        """The name of the speaker in a column of the model who is the `number`-th to speak, from 0."""
        if self.label_type == "binary":
            return "speech"
        if self.label_type == "speaker_id":
            return str(self.inference_metadata["speakers"][column])
        return f"speaker{number + 1}"

    def _reader(self, audio: Audio, sample_rate: int | None) -> Read:
        """The samples of `audio` in blocks, at the model's rate."""
        if isinstance(audio, str | Path):
            if sample_rate is not None:
                raise InputError(f"{audio}: a file has its own sample rate; sample_rate is for arrays")
            path = audio
            return lambda: read_blocks(path, self.sample_rate)
        waveform = as_waveform(audio, self.sample_rate, sample_rate)
        return lambda: [waveform]

    def comparable(self, turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
        """The turns of a reference as the model would say them: of nobody in particular for binary labels."""
        return [replace(turn, speaker="speech") if self.label_type == "binary" else turn for turn in turns]

    def stream(self, blocks: Iterable[FloatArray]) -> Iterator[SpeakerTurn]:
        """The turns of a recording that comes in blocks of samples (N,) at `self.sample_rate`, each as soon as it is
        known to have ended, with constant memory. The recording is one window, so that there are at most as many
        speakers as the model has; they are called after the model's columns.

        Raises InputError for a model that needs later frames; it says how to train one that does not.
        """
        turns = TurnStream(self.frames_per_second, self.decoding)
        for probabilities_UK in self.stream_probabilities(blocks):
            for column, turn in turns.push(probabilities_UK):
                yield replace(turn, speaker=self._name(column, column))
        for column, turn in turns.end():
            yield replace(turn, speaker=self._name(column, column))

    def stream_probabilities(self, blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """How likely each speaker of the model is active, (U, K) for the frames that each block completes."""
        stream = ActivityStream(self.model)
        features = self.features.stream()
        if features is None:
            raise InputError(
                f"this model can't diarize a stream: its features, {self.recipe.data.feature_name}, are made of later "
                "samples too; train one with data.audio.feature_type fbank"
            )
        state = stream.initial_state(torch.zeros(1, 0, self.features.width, device=self.device))

        def step(features_TF: FloatArray, last: bool) -> FloatArray:
            features_BTF = torch.from_numpy(np.ascontiguousarray(features_TF))[None].to(self.device)
            return np.asarray(stream.step(features_BTF, state, last)[0].float().cpu().numpy())

        for block in blocks:
            yield step(features.push(block), False)
        yield step(features.end(), True)


def _tuned(path: Path, settings: DecodingSettings) -> DecodingSettings:
    """`settings` with the values in the file of a run that was tuned. Raises InputError for a damaged one."""
    if not path.is_file():
        return settings
    try:
        return DecodingSettings.model_validate({**settings.model_dump(), **json.loads(path.read_bytes())})
    except ValueError as error:  # among them pydantic's
        raise InputError(f"{path}: not what phonate evaluate --tune writes; delete it or tune again") from error


def speaker_limits(
    speakers: int | None = None, min_speakers: int | None = None, max_speakers: int | None = None
) -> SpeakerLimits | None:
    """The limits that a caller gives; None where he gives none.

    Raises InputError for numbers under 1, or that contradict each other.
    """
    given = {"speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers}
    for name, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: must be 1 or more")
    if speakers is not None:
        if min_speakers is not None or max_speakers is not None:
            raise InputError("give the number of speakers, or the least and the most, not both")
        return SpeakerLimits(speakers, speakers)
    if min_speakers is None and max_speakers is None:
        return None
    if max_speakers is not None and (min_speakers or 1) > max_speakers:
        raise InputError(f"min_speakers {min_speakers} must not be over max_speakers {max_speakers}")
    return SpeakerLimits(min_speakers or 1, max_speakers)
