"""Voice conversion as a task: reconstruct each voice from content that no longer tells whose it was.

A sample's content is perturbed, its target is the clean mel of the same recording, and the speaker embedding
is that speaker's. To convert, the embedding of another speaker is used. Where voices are given by recordings, other
speech of the speaker takes the place of the embedding.

Terms: the losses of the recipe, with a teacher also `content`, and from `adversarial_start` on `adversarial` and
`features`, while a phase of its own trains the discriminator.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.processor import PEAK, normalised_peak
from phonate.audio.whisper import FEATURES_PER_SECOND
from phonate.config.words import number_of
from phonate.nn.convolution import zero_padding, zero_padding_
from phonate.nn.sequences import frame_mask
from phonate.nn.vocoder import MelDiscriminator
from phonate.tasks.conversion.data import ConversionCorpus, ConversionDataset, Conversions, load_teacher
from phonate.tasks.conversion.features import FeatureExtractor, Recording
from phonate.tasks.conversion.inference import CAUSAL_VOCODER, Converter, Reference
from phonate.tasks.conversion.model import ConversionGAN, DistilledTransformer, build_model, network_of
from phonate.tasks.conversion.settings import LOSS, ConversionRecipe, check, metrics_of
from phonate.training.adversarial import AdversarialTask, Pair
from phonate.training.losses import build_loss
from phonate.training.task import (
    Batch,
    Dataset,
    Metric,
    Phase,
    Picture,
    Preview,
    Sound,
    Sums,
    Terms,
    side_by_side,
)

TARGET_MINUTES = 30
"""Of recordings of the target, that are advised."""
OTHERS, OTHER_MINUTES = 2, 1
"""Other speakers, and minutes of recordings of each, that are advised."""
_AVERAGE_LEVEL = 0.3  # of a mel feature, where the output starts
_EVALUATED = 16
_PREVIEW_SECONDS = 6.0
_PREVIEW_REFERENCE_SECONDS = 60.0

logger = logging.getLogger("phonate")


class ConversionTask(AdversarialTask[tuple[Tensor, Tensor | None]]):
    """Trains a VoiceTransformer, or two, as `recipe` says."""

    generator = "network"
    discriminator = "discriminator"
    random_features = False
    earlier_keys: ClassVar = {"speakers": "voices"}

    def __init__(self, recipe: ConversionRecipe) -> None:
        self.recipe = recipe
        check(recipe)
        self.extractor = FeatureExtractor(recipe.data, recipe.model.causal)
        source = recipe.data.distil_from
        self._teacher = None if source is None else load_teacher(source, self.extractor.processor)
        mel_range = {"fmin": recipe.data.audio.fmin, "fmax": recipe.data.audio.fmax}
        self.criterion = build_loss(recipe.training.loss, default=LOSS, known=mel_range, units=["elements", "items"])
        self.coupling, self.own_counts = self.criterion.coupling, self.criterion.own_counts
        super().__init__(recipe.training)

    @cached_property
    def corpus(self) -> ConversionCorpus:
        """The corpus, prepared when it is first needed."""
        return ConversionCorpus(self.recipe.data, self.extractor)

    @property
    def with_discriminator(self) -> bool:
        """Whether the model has a discriminator; without one it is the network itself."""
        return self.recipe.training.adversarial_start is not None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The network, or with `adversarial_start` the network and then its discriminator, from its first step on."""
        return super().phases if self.with_discriminator else (Phase(),)

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """The main loss and that of the content weigh 1, auxiliary and adversarial ones what the recipe says."""
        return {**self.criterion.weights, **super().loss_weights(step)}

    def model(self, device: torch.device) -> nn.Module:
        """The network, with an embedding for each speaker of the corpus, and with its discriminator if there is one."""
        network = build_model(
            self.recipe.model,
            n_speakers=0 if self.extractor.reference_dim else len(self.corpus.speakers),
            input_dim=self.corpus.content_dim,
            output_dim=self.recipe.data.audio.n_mels,
            prosody_dim=self.extractor.prosody_dim,
            teacher_dim=self.corpus.teacher_dim,
            reference_dim=self.extractor.reference_dim,
        )
        with torch.no_grad():
            network.output.bias.fill_(_AVERAGE_LEVEL)
        if not self.with_discriminator:
            return network.to(device)
        voice = self.extractor.reference_dim or len(self.corpus.speakers)
        condition = self.corpus.content_dim + self.extractor.prosody_dim + voice
        channels = self.recipe.model.discriminator_channels
        discriminator = MelDiscriminator(self.recipe.data.audio.n_mels, condition, channels)
        return ConversionGAN(network, discriminator).to(device)

    def compiled_modules(self, model: nn.Module) -> Sequence[nn.Module]:
        """The network, or with a teacher its two parts; and the discriminator."""
        network = network_of(model)
        parts = [network.content, network.converter] if isinstance(network, DistilledTransformer) else [network]
        return [*parts, model.discriminator] if isinstance(model, ConversionGAN) else parts

    def dataset(self, split: str) -> ConversionDataset:
        """Random perturbed crops ("train"), or the middles of recordings as they are ("validation")."""
        if split != "train":
            return ConversionDataset(self.corpus, split)
        self._tell_of_speakers()
        if self.recipe.model.causal and self.recipe.data.vocoder is None:
            message = "phonate convert --live will need a causal vocoder; train one with %s, and name it with --vocoder"
            logger.warning(message, CAUSAL_VOCODER)
        conversions = None if self._teacher is None else Conversions(self.corpus, self._teacher)
        return ConversionDataset(self.corpus, split, conversions)

    def _tell_of_speakers(self) -> None:
        """Say who the target is, where that was not said, and of whom there is little to learn from."""
        speakers, number = self.corpus.speakers, self.corpus.target
        target, others = speakers[number], len(speakers) - 1
        if not others:
            message = (
                "all recordings are of one speaker, %s: what others say, whom the model has not heard, may stay in "
                "their voices; add recordings of others, a sub-folder each"
            )
            logger.warning(message, target)
        if self.extractor.reference_dim:
            return
        if others and self.recipe.data.target is None:
            message = "the target voice is %s, who has the most speech; data.target or convert --speaker takes another"
            logger.info(message, target)
        minutes = self.corpus.minutes
        if minutes[number] < TARGET_MINUTES:
            message = "%s, the target, has %.1f minutes of recordings; collect %d: what fewer give was not measured"
            logger.warning(message, target, minutes[number], TARGET_MINUTES)
        rest = minutes.sum() - minutes[number]
        if others and (others < OTHERS or rest < OTHERS * OTHER_MINUTES):
            message = (
                "beside the target there %s, with %.1f minutes of recordings; collect %d or more, %d minute of each: "
                "what fewer give was not measured"
            )
            there = f"{'is' if others == 1 else 'are'} {number_of(others, 'other speaker')}"
            logger.warning(message, there, rest, OTHERS, OTHER_MINUTES)

    def generate(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The predicted mel (B, T, M); and with a teacher the content (B, T, W) that it is made of."""
        mask_BT = frame_mask(batch["lengths"], batch["target"].shape[1])
        if "teacher" not in batch:
            return predict(model, batch, mask_BT), None
        mel_BTM, content_BTW = cast(DistilledTransformer, network_of(model)).with_content(
            batch["features"], batch["speaker_id"], mask=mask_BT, prosody=batch["prosody"]
        )
        return mel_BTM.float(), content_BTW.float()

    def generator_terms(self, model: nn.Module, output: tuple[Tensor, Tensor | None], batch: Batch) -> Terms:
        """Distance of the predicted from the clean mel over real frames; with a teacher, also `content`, the mean
        square of what its features differ by."""
        mel_BTM, content_BTW = output
        mask_BT = frame_mask(batch["lengths"], mel_BTM.shape[1])
        terms: Terms = self.criterion(mel_BTM, batch["target"], mask_BT, model=network_of(model))
        if content_BTW is None:
            return terms
        difference_CW = content_BTW[mask_BT] - batch["teacher"][mask_BT]
        return {**terms, "content": (difference_CW.square().sum(), "content elements")}

    def pair(self, output: tuple[Tensor, Tensor | None], batch: Batch) -> Pair:
        """The predicted and the clean mel, and what the network was told of them."""
        mel_BTM, _ = output
        if "reference" in batch:
            voice_BTV = batch["reference"]
        else:
            speakers = F.one_hot(batch["speaker_id"], len(self.corpus.speakers)).to(mel_BTM)
            voice_BTV = speakers[:, None].expand(-1, mel_BTM.shape[1], -1)
        mask_BT = frame_mask(batch["lengths"], mel_BTM.shape[1])
        cond_BTC = torch.cat([batch["features"], batch["prosody"], voice_BTV], dim=-1)
        fake, real = (zero_padding(one, mask_BT) for one in (mel_BTM, batch["target"]))
        return Pair(fake, real, zero_padding_(cond_BTC, mask_BT))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The losses and `speaker_effect`."""
        return metrics_of(self.recipe, self.criterion.losses)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`speaker_effect`: mean change of the mel, in dB per band, when another speaker is requested or given.

        Near 0 the model copies its input and converts nothing, however small its loss. (It is 0, too, for a corpus
        of one speaker.) Measured on the first 16 samples.
        """
        chosen, samples = [index for index in positions if index < _EVALUATED], cast(ConversionDataset, dataset)
        if not chosen:
            return {}
        batch, other = (
            {name: value.to(self.device) for name, value in samples.collate(items).items()}
            for items in (
                [samples.get(index, np.random.default_rng(0)) for index in chosen],
                [samples.to_another(index) for index in chosen],
            )
        )
        mask_BT = frame_mask(batch["lengths"], batch["target"].shape[1])
        moved_BTM = (predict(model, batch, mask_BT) - predict(model, other, mask_BT)).abs()
        decibels = -self.recipe.data.audio.min_level_db
        cells = moved_BTM[mask_BT]
        return {"speaker_effect": (float(cells.mean()) * decibels * cells.numel(), cells.numel())}

    @torch.no_grad()
    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """A validation recording of another speaker, and its conversion to the target: pictures and sounds."""
        recording = self._preview_clip()
        if recording is None:
            return {}
        by_reference = self.extractor.reference_dim > 0
        converter = Converter(
            network_of(model),
            self.recipe.data,
            self.corpus.voices,
            None if by_reference else self.corpus.speakers[self.corpus.target],
            expected=self.corpus.expected if self.extractor.causal else None,
        )
        converted_TM = converter.convert_mel(recording, self._preview_reference() if by_reference else None)
        rate = self.recipe.data.audio.sample_rate
        shown: dict[str, Preview] = {}
        for name, mel_TM in (("source", recording.mel_TM), ("converted", converted_TM)):
            shown[f"{name}_mel"] = Picture(np.ascontiguousarray(mel_TM.T))
            shown[name] = Sound(PEAK * normalised_peak(converter.render(mel_TM)), rate)
        return shown

    def _preview_clip(self) -> Recording | None:
        """A few seconds of the first validation recording of a speaker who is not the target."""
        target = self.corpus.target
        speakers = self.corpus.prepared.index.speaker
        others = [position for position in self.corpus.prepared.positions("validation") if speakers[position] != target]
        if not others:
            return None
        whole = self.corpus.recording(others[0])
        frames = int(_PREVIEW_SECONDS * self.recipe.data.audio.frames_per_second)
        whisper = None if whole.whisper_SW is None else whole.whisper_SW[: int(FEATURES_PER_SECOND * _PREVIEW_SECONDS)]
        return Recording(whole.mel_TM[:frames], whole.f0_T[:frames], whisper)

    def _preview_reference(self) -> Reference:
        """The voice of the target's first recordings, about a minute of them."""
        chosen, left = list[Recording](), _PREVIEW_REFERENCE_SECONDS * self.recipe.data.audio.frames_per_second
        for position in self.corpus.prepared.positions("train") + self.corpus.prepared.positions("validation"):
            if left > 0 and self.corpus.prepared.index.speaker[position] == self.corpus.target:
                chosen.append(self.corpus.recording(position))
                left -= len(chosen[-1].mel_TM)
        return Reference.of(chosen, self.recipe.data.audio.frames_per_second)

    def metric_names(self) -> Mapping[str, str]:
        """Means over an epoch and validations stand together in the trackers, as epoch/train_l1 and epoch/val_l1."""
        return side_by_side(self.criterion.losses)

    def adopted(self, weights: Mapping[str, Tensor], source: Path) -> Mapping[str, Tensor]:
        """Those of a run without discriminator fit one with it, and the other way round."""
        prefix = f"{self.generator}."
        if not self.with_discriminator:
            return {name.removeprefix(prefix): value for name, value in weights.items()}
        if any(name.startswith(prefix) for name in weights):
            return weights
        return {prefix + name: value for name, value in weights.items()}

    def identity(self) -> dict[str, Any]:
        """Speakers, whose rows of the embedding would change hands, and features."""
        return {
            "speakers": [] if self.extractor.reference_dim else list(self.corpus.speakers),
            "features": self.extractor.processor.fingerprint,
            "content": self.corpus.content_fingerprint,
            "pitch": self.recipe.data.f0_method,
        }

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What conversion needs beside the weights and the recipe."""
        return {
            "voices": {name: voice.document() for name, voice in self.corpus.voices.items()},
            "target": None if self.extractor.reference_dim else self.corpus.speakers[self.corpus.target],
            "content_dim": self.corpus.content_dim,
            "teacher_dim": self.corpus.teacher_dim,
            "expected": self.corpus.expected.document() if self.extractor.causal else None,
            "features": self.extractor.processor.fingerprint,
            "content": self.corpus.content_fingerprint,
            "validation": [self.corpus.prepared.index.id[i] for i in self.corpus.prepared.validation],
        }


def predict(model: nn.Module, batch: Batch, mask_BT: Tensor) -> Tensor:
    """The mel (B, T, M) that `model` makes of a batch."""
    prosody_BTP = batch["prosody"]
    out: Tensor = network_of(model)(
        batch["features"],
        speaker_id=None if "reference" in batch else batch["speaker_id"],
        mask=mask_BT,
        prosody=prosody_BTP if prosody_BTP.shape[-1] else None,
        **({"reference": batch["reference"]} if "reference" in batch else {}),
    )
    return out.float()
