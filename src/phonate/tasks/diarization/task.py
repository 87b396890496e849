"""The task `diarization`: who speaks when, in chunks of conversations.

The loss is that of the recipe, by default the one of the label type; `permutation` (arrival) and `existence`
(attractors) are added to it. Validation reports the diarization error rate `der`, with speakers mapped in each chunk
separately, its parts `miss`, `false_alarm` and `confusion`, and `accuracy`, the fraction of output frames in which the
activity of all speakers is correct.

Shapes: B items, T feature frames, U output frames, S speakers of the reference, K of the model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.config.randomness import generator
from phonate.data.batches import evaluation_batches
from phonate.data.labels import some
from phonate.data.progress import track
from phonate.evaluation.diarization import DiarizationErrors, score_activity
from phonate.evaluation.tables import FEW
from phonate.tasks.diarization.data import DiarizationCorpus, DiarizationDataset, DiarizationItem
from phonate.tasks.diarization.labels import DiarizationLoss, LabelType, build_labels, reference_of, unit_counts
from phonate.tasks.diarization.model import ActivityModel, build_model
from phonate.tasks.diarization.segmentation import active
from phonate.tasks.diarization.settings import FEWEST_TUNED_ON, DiarizationRecipe, check, metrics_of
from phonate.training.task import Batch, Dataset, Metric, Picture, Preview, Sound, Sums, Task, Terms, move

logger = logging.getLogger("phonate")

_EXAMPLES = 32
"""Training samples from which the normalisation of features is computed."""
_MANY = {"multilabel", "powerset", "arrival", "attractors"}
"""Label types with `num_speakers` output speakers."""
_PREVIEWED = 8
_STRIPE = 6


class DiarizationTask(Task):
    """Trains an ActivityModel as `recipe` says."""

    def __init__(self, recipe: DiarizationRecipe) -> None:
        self.recipe = recipe
        self.label_type = recipe.training.eval_knobs.label_type
        self.criterion = DiarizationLoss(recipe.training.loss, self.label_type)
        self.coupling, self.own_counts = self.criterion.coupling, self.criterion.own_counts
        self.random_features = recipe.model.random_features
        check(recipe)
        self._validation_told = False
        self._build_labels([""])  # reports mistakes in `num_classes` before a corpus is prepared

    @cached_property
    def corpus(self) -> DiarizationCorpus:
        """The corpus, prepared when it is first needed."""
        return DiarizationCorpus.of(self.recipe)

    def _build_labels(self, speakers: Sequence[str]) -> LabelType:
        return build_labels(self.label_type, self.recipe.model, self.criterion.classes, speakers)

    def model(self, device: torch.device) -> nn.Module:
        """A model for the features of the corpus."""
        model = build_model(self.recipe, self.corpus.features.width, self.corpus.speakers)
        # some training samples, the same in every process
        samples = self.dataset("train")
        chosen = np.unique(np.linspace(0, len(samples.ids) - 1, _EXAMPLES).astype(int)).tolist()
        examples = [samples.get(one, generator("example", one)) for one in track("reading some samples", chosen)]
        model.fit(torch.from_numpy(np.concatenate([one.features_TF for one in examples])))
        crowded = sum(one.activity_TS.shape[1] > model.speakers for one in examples)
        # a model that starts from another's weights does worse with another number or length
        if crowded and self.label_type in _MANY and self.recipe.training.init_from is None:
            logger.warning(
                "%d of %d inspected training samples have more than %d speakers, only the most active of which are "
                "targets; raise model.num_speakers or lower data.chunk_seconds",
                *(crowded, len(examples), model.speakers),
            )
        return model.to(device)

    def dataset(self, split: str) -> DiarizationDataset:
        """Chunks of recordings and simulated conversations."""
        if split == "validation":
            self._tell_what_validates()
        labels = self._build_labels(self.corpus.speakers)
        return DiarizationDataset(self.corpus, split, partial(unit_counts, labels, self.recipe.model.stride))

    def _tell_what_validates(self) -> None:
        """Say once which recordings validate, and where they are few."""
        names = self.corpus.validation_names
        if self._validation_told or not names:
            return
        self._validation_told = True
        verb, little = ("validates", "says little") if len(names) == 1 else ("validate", "say little")
        few = f" and {little}; a larger data.validation holds out more" if len(names) < FEW else ""
        tuned = (
            f"; phonate evaluate --tune needs {FEWEST_TUNED_ON} held-out recordings"
            if len(names) < FEWEST_TUNED_ON
            else ""
        )
        logger.info("%s %s%s%s", some(names), verb, few, tuned)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """The loss terms described in the module's docstring."""
        own = cast(ActivityModel, model)
        output = model(batch["features"], batch["lengths"])
        terms: Terms = self.criterion(own.labels, output, reference_of(batch, own.stride), model)
        return terms

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """The main loss has weight 1 (0.5 for label type arrival, like `permutation`), auxiliary losses those of the
        recipe."""
        return self.criterion.weights

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The loss terms, `accuracy`, and, unless labels are custom, error rates."""
        return metrics_of(self.recipe, self.criterion.weights)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`der` and its parts in seconds, over seconds of speech, and `accuracy` in output frames."""
        own = cast(ActivityModel, model)
        errors, right, counted = DiarizationErrors(), 0.0, 0.0
        device = next(model.parameters()).device
        for _, items, batch in evaluation_batches(dataset, positions, self.recipe.training.evaluation_batch_size):
            batch = move(batch, device)
            output = model(batch["features"], batch["lengths"])
            targets = own.labels.targets(output, reference_of(batch, own.stride))
            one, all_of_them = own.labels.correct(output, targets)
            right, counted = right + float(one), counted + float(all_of_them)
            probabilities_BUK = own.labels.activity_logits(output).sigmoid().cpu().numpy()
            errors = sum(map(self._errors, items, probabilities_BUK), errors)
        sums = {"accuracy": (right, counted)}
        if self.label_type != "custom":
            parts = {
                "der": errors.wrong,
                **{name: getattr(errors, name) for name in ("miss", "false_alarm", "confusion")},
            }
            sums |= {name: (seconds, errors.speech) for name, seconds in parts.items()}
        return sums

    def _errors(self, item: DiarizationItem, probabilities_UK: NDArray[np.float32]) -> DiarizationErrors:
        """The errors of one chunk, at the rate of the features."""
        model, frames = self.recipe.model, len(item.features_TF)
        stride = model.stride
        decoding = model.decoding
        active_UK = active(probabilities_UK[: -(-frames // stride)], decoding.threshold, decoding.median)
        reference_TS = item.activity_TS
        if self.label_type == "binary":
            reference_TS = (reference_TS.sum(axis=1, keepdims=True) > 0).astype(np.uint8)
        hypothesis_TK = active_UK.repeat(stride, axis=0)[:frames]
        return score_activity(reference_TS, hypothesis_TK, self.recipe.data.audio.frames_per_second)

    @torch.no_grad()
    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """A validation chunk with several speakers: its sound, its features, and the reference activity (above the
        white line) with the predicted probabilities (below it)."""
        samples = self.dataset("validation")
        items = [samples.get(index, np.random.default_rng(0)) for index in range(min(_PREVIEWED, len(samples.ids)))]
        if not items:
            return {}
        chosen = max(range(len(items)), key=lambda one: items[one].activity_TS.shape[1])
        item, heard = items[chosen], samples.preview(chosen, np.random.default_rng(0))
        own = cast(ActivityModel, model)
        batch = move(samples.collate([item]), next(model.parameters()).device)
        probabilities_UK = own.activity_probabilities(batch["features"], batch["lengths"])[0].float().cpu().numpy()
        reference_US = reference_of(batch, own.stride).activity_BUS[0].cpu().numpy()
        return {
            **({} if heard.waveform is None else {"sound": Sound(heard.waveform, heard.sample_rate)}),
            "features": Picture(np.ascontiguousarray(item.features_TF.T)),
            "activity": Picture(timelines(reference_US, probabilities_UK)),
        }

    def identity(self) -> dict[str, Any]:
        """The kind of labels, the features, for speaker_id the speakers, and for custom labels what makes them."""
        return {
            "label_type": self.label_type,
            "collator": self.recipe.data.collator if self.label_type == "custom" else None,
            "features": self.corpus.features.fingerprint,
            "speakers": list(self.corpus.speakers) if self.label_type == "speaker_id" else [],
        }

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What inference needs besides the weights and the recipe."""
        corpus, prepared = self.corpus, self.corpus.prepared
        training = corpus.positions("train")
        frames = 0 if prepared is None else int(prepared.index.frames[training].sum())
        held_out = [] if prepared is None else [prepared.index.id[one] for one in corpus.positions("validation")]
        return {
            **self.identity(),
            "feature_width": corpus.features.width,
            "validation": held_out,
            "training_speakers": len(corpus.speakers),
            "simulated_share": corpus.simulated_share,
            "recordings": len(training),
            "seconds": round(frames / self.recipe.data.audio.frames_per_second, 1),
        }


def timelines(reference_US: NDArray[np.float32], probabilities_UK: NDArray[np.float32]) -> NDArray[np.float32]:
    """A picture (height, U), bottom row first: a stripe for each speaker of the model, a line of ones, and a stripe for
    each speaker of the reference. In both parts the first speaker is at the top."""
    model, reference = (rows[:, ::-1].T.repeat(_STRIPE, axis=0) for rows in (probabilities_UK, reference_US))
    return np.concatenate([model, np.ones((1, len(reference_US)), np.float32), reference])
