"""The diarization model: features of a conversation -> the activity of each speaker in each output frame.

Shapes: B items, T feature frames, F features, U = ceil(T / stride) output frames, D model, K speakers, C scores per
frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.nn.diarization import (
    EncoderDecoderAttractors,
    FeatureNormalisation,
    FeatureStream,
    FrontEnd,
    Powerset,
    SplicedFrames,
    StreamState,
    StridedConvolutions,
)
from phonate.nn.sequences import frame_mask
from phonate.nn.sincnet import BidirectionalLSTM, SincNet
from phonate.nn.transformer import StackState, build_transformer
from phonate.tasks.diarization.labels import (
    AttractorLabels,
    LabelType,
    Output,
    PowersetLabels,
    build_labels,
    targets_are_classes,
)
from phonate.tasks.diarization.settings import DiarizationModel, DiarizationRecipe, FrontEndSettings


class ActivityModel(nn.Module, ABC):
    """Frames of features -> the activity of each speaker."""

    labels: LabelType
    """The label type, which defines the scores."""
    head: nn.Linear | EncoderDecoderAttractors

    @property
    @abstractmethod
    def stride(self) -> int:
        """Feature frames per output frame."""

    @abstractmethod
    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> Output:
        """Features (B, T, F) and lengths (B,) -> the scores of every output frame. Padding does not affect them."""

    @abstractmethod
    def fit(self, frames_NF: Tensor) -> None:
        """Set what follows from the statistics of the features (N, F) before training."""

    @property
    @abstractmethod
    def why_not_streaming(self) -> str | None:
        """Why the model can't process streams; None if it can."""

    @property
    def speakers(self) -> int:
        """K."""
        return self.labels.speakers

    def scored(self, hidden_BUD: Tensor, mask_BU: Tensor) -> Output:
        """Hidden frames (B, U, D) -> scores (B, U, C)."""
        if not isinstance(self.head, EncoderDecoderAttractors):
            return Output(self.head(hidden_BUD), hidden_BUD, mask_BU)
        attractors_BND, existence_BN = self.head(hidden_BUD, mask_BU, self.speakers + 1)
        scores_BUK = hidden_BUD @ attractors_BND[:, :-1].transpose(1, 2)
        return Output(scores_BUK, hidden_BUD, mask_BU, existence_BN)

    def activity_probabilities(self, features_BTF: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, U, K): the probability that each speaker is active; 0 in padding."""
        output = self(features_BTF, lengths_B)
        activity_BUK = self.labels.activity_logits(output).sigmoid()
        return activity_BUK.masked_fill(~output.mask_BU[..., None], 0)

    def class_probabilities(self, features_BTF: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, U, P): the probability of each class of label type powerset; any values in padding."""
        scores_BUP: Tensor = self(features_BTF, lengths_B).scores_BUC
        return scores_BUP.float().softmax(-1)

    def require_powerset(self) -> Powerset:
        """The classes of label type powerset, which `model.decoding.smoothing` needs. Raises InputError for others."""
        if not isinstance(self.labels, PowersetLabels):
            raise InputError(
                "model.decoding.smoothing: only label_type powerset has classes that can be smoothed; set it to null"
            )
        return self.labels.powerset


class SpeakerActivityModel(ActivityModel):
    """Normalisation, a front end that lowers the frame rate, a transformer, and a head for the label type.

    Args:
        settings: The recipe's `model` part.
        features: F.
        labels: The label type.
    """

    def __init__(self, settings: DiarizationModel, features: int, labels: LabelType) -> None:
        super().__init__()
        self.normalisation = FeatureNormalisation(settings.front_end.normalisation, features)
        self.front_end = build_front_end(settings.front_end, features)
        self.transformer = build_transformer(settings, self.front_end.width)
        self.upsampling = settings.upsampling
        self.finer: nn.Linear | None = None
        if settings.upsampling > 1:
            self.finer = nn.Linear(self.transformer.width, settings.upsampling * self.transformer.width)
        self.head = build_head(self.transformer.width, labels)
        self.labels = labels

    @property
    def stride(self) -> int:
        """Feature frames per output frame."""
        return self.front_end.stride // self.upsampling

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> Output:
        """Features (B, T, F) and lengths (B,) -> the scores of every output frame. Padding does not affect them."""
        mask_BT = frame_mask(lengths_B, features_BTF.shape[1])
        x_BUC = self.front_end(self.normalisation(features_BTF, mask_BT), mask_BT)
        hidden_BUD = self.finer_frames(self.transformer(x_BUC, mask_BT[:, :: self.front_end.stride]))
        mask_BU = mask_BT[:, :: self.stride]
        return self.scored(hidden_BUD[:, : mask_BU.shape[1]], mask_BU)

    def finer_frames(self, hidden_BUD: Tensor) -> Tensor:
        """Upsampling of transformer frames: (B, U, D) -> (B, U x upsampling, D)."""
        if self.finer is None:
            return hidden_BUD
        batch, frames, width = hidden_BUD.shape
        finer_BUD: Tensor = F.gelu(self.finer(hidden_BUD), approximate="tanh")
        return finer_BUD.view(batch, frames * self.upsampling, width)

    def fit(self, frames_NF: Tensor) -> None:
        """Set a global normalisation to that of features (N, F)."""
        self.normalisation.fit(frames_NF)

    @property
    def why_not_streaming(self) -> str | None:
        """Why the model can't process streams; None if it can."""
        if not self.transformer.causal:
            return "its transformer uses later frames; train another, by the recipe diarization-streaming"
        if not self.normalisation.causal:
            return "its features are normalised over the chunk; train one with front_end.normalisation global"
        if isinstance(self.head, EncoderDecoderAttractors):
            return "its attractors depend on all frames; train one with another label type, such as arrival"
        return None


class WaveformActivityModel(ActivityModel):
    """SincNet over samples, a bidirectional LSTM, and a head for the label type.

    Args:
        settings: The recipe's `model` part.
        labels: The label type.
    """

    stride = 1

    def __init__(self, settings: DiarizationModel, labels: LabelType) -> None:
        super().__init__()
        options = settings.global_config
        self.front_end = SincNet()
        self.lstm = BidirectionalLSTM(self.front_end.width, options.d_model, options.num_layers, options.dropout)
        self.head = build_head(self.lstm.width, labels)
        self.labels = labels

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> Output:
        """Frames of samples (B, T, F) and lengths (B,) -> the scores of every frame. Padding does not affect them."""
        hidden_BTD = self.lstm(self.front_end(features_BTF.flatten(1), lengths_B), lengths_B)
        return self.scored(hidden_BTD, frame_mask(lengths_B, features_BTF.shape[1]))

    def fit(self, frames_NF: Tensor) -> None:
        """Nothing: each item is normalised by itself."""

    @property
    def why_not_streaming(self) -> str | None:
        """Its LSTM runs in both directions."""
        return "its LSTM uses later frames; train another, by the recipe diarization-streaming"


def build_head(width: int, labels: LabelType) -> nn.Linear | EncoderDecoderAttractors:
    """From hidden frames of this width to the scores of the label type."""
    if isinstance(labels, AttractorLabels):
        return EncoderDecoderAttractors(width)
    return nn.Linear(width, labels.width)


def build_model(recipe: DiarizationRecipe, features: int, speakers: Sequence[str]) -> ActivityModel:
    """The model that a recipe describes.

    Args:
        features: F.
        speakers: Names of the training speakers, for label type speaker_id.

    Raises InputError if `decoding.smoothing` does not fit the label type.
    """
    label_type = recipe.training.eval_knobs.label_type
    classes = targets_are_classes(label_type, recipe.training.loss)
    labels = build_labels(label_type, recipe.model, classes, speakers)
    model: ActivityModel
    if recipe.model.network == "sincnet":
        model = WaveformActivityModel(recipe.model, labels)
    else:
        model = SpeakerActivityModel(recipe.model, features, labels)
    if recipe.model.decoding.smoothing is not None:
        model.require_powerset()
    return model


def build_front_end(settings: FrontEndSettings, features: int) -> FrontEnd:
    """The front end that the recipe's `model.front_end` describes."""
    if settings.type == "splice":
        return SplicedFrames(features, settings.context, settings.subsampling)
    return StridedConvolutions(features, settings.width, settings.subsampling)


@dataclass
class ActivityState:
    """The state of a stream between blocks."""

    features: StreamState
    transformer: StackState
    frames: int = 0
    """Output frames returned so far."""


class ActivityStream:
    """`SpeakerActivityModel.activity_probabilities` in blocks, with the same result up to rounding.

    Raises InputError for a model that needs later frames.
    """

    def __init__(self, model: ActivityModel) -> None:
        if (why := model.why_not_streaming) is not None:
            raise InputError(f"this model can't diarize a stream: {why}")
        assert isinstance(model, SpeakerActivityModel)
        self.model = model
        self.features = FeatureStream(model.normalisation, model.front_end)

    def initial_state(self, features_BTF: Tensor) -> ActivityState:
        """The state before the first block, for features like `features_BTF`."""
        return ActivityState(
            self.features.initial_state(features_BTF), self.model.transformer.initial_state(len(features_BTF))
        )

    @torch.no_grad()
    def step(self, features_BTF: Tensor, state: ActivityState, last: bool = False) -> Tensor:
        """(B, U', K): activity probabilities of the output frames completed by these feature frames (B, T, F).

        Updates `state` in place. `last`: no frames follow, so incomplete output frames are returned too.
        """
        model = self.model
        x_BUC = self.features.step(features_BTF, state.features, last)
        if not x_BUC.shape[1]:
            return x_BUC.new_zeros(len(x_BUC), 0, model.speakers)
        hidden_BUD, state.transformer = model.transformer.step(x_BUC, state.transformer)
        hidden_BUD = model.finer_frames(hidden_BUD)
        if last:
            hidden_BUD = hidden_BUD[:, : -(-state.features.end // model.stride) - state.frames]
        state.frames += hidden_BUD.shape[1]
        every_BU = torch.ones(hidden_BUD.shape[:2], dtype=torch.bool, device=hidden_BUD.device)
        return model.labels.activity_logits(model.scored(hidden_BUD, every_BU)).sigmoid()
