"""Settings of the losses of voice cloning. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from phonate.training.optimization_settings import LossSettings, OpenFraction

TERMS: Mapping[str, float] = {"text": 1.0, "audio": 1.0, "contrastive": 0.0, "similarity": 0.0, "l2": 0.0}
"""The terms of the loss, and their weights where a recipe has none."""
VOICE_TERMS = ("contrastive", "similarity")
"""Those about the likeness of the voice."""
_CONSISTENCY = (
    "weights.consistency: there is no such term. Elsewhere it is the KL divergence between the distributions of text "
    "tokens and of codes, which are over different things (128256 tokens, 1026 codes) and can't be compared; leave it "
    "out. For the likeness of the voice there are weights.contrastive and weights.similarity"
)


class CloningLoss(LossSettings):
    """The loss: text and audio tokens, and, where `weights` ask for it, the likeness of the voice."""

    refused_keys: ClassVar = {
        f"{term}_loss_weight": f"phonate calls it training.loss.weights.{term}" for term in TERMS
    } | {
        "l2_regularization_weight": "phonate calls it training.loss.weights.l2",
        "consistency_loss_weight": _CONSISTENCY.removeprefix("weights.consistency: "),
    }

    audio_label_smoothing: OpenFraction = 0.0
    """Smoothing of codes; `label_smoothing` is that of text tokens."""
    text: Literal["answer", "target"] = "answer"
    """Text tokens that are learnt. answer: what the model itself writes around the speech, which is where speech
    begins, that it has ended, and the end of the turn. target: the text to speak as well, as a language model."""
    codebooks: Literal["uniform", "weighted", "adaptive"] = "uniform"
    """Weights of the codebooks, 1 on average. uniform: all the same. weighted: in proportion to 1 / (i + 1) for
    codebook i, from 0. adaptive: in proportion to the running mean of a codebook's own loss, so that those that are
    learnt worst count most; validation is uniform then."""
    temperature: PositiveFloat = 0.1
    """Temperature of the contrastive term."""
    curriculum_steps: PositiveInt | None = None
    """Optimizer steps over which the weights of the contrastive and the similarity term rise from a tenth to their
    full value, along half a cosine. Null: full from the start."""

    @model_validator(mode="after")
    def _known_terms(self) -> Self:
        if "consistency" in self.weights:
            raise ValueError(_CONSISTENCY)
        return self

    def weight(self, term: str) -> float:
        """The weight of a term, before the curriculum."""
        return self.weights.get(term, TERMS[term])
