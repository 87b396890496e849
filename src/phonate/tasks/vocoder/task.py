"""The vocoder as a task: waveforms from mels, trained on spectral distances first, then adversarially.

Terms: `spectral` (convergence and log magnitudes at four resolutions), `mel` (mel of the generated waveform against
the input mel), `pitch` and `voicing` (of the F0 predicted from the mel), and from `adversarial_start` on
`adversarial` and `features` (Kong et al. 2020, "HiFi-GAN", equations 1 to 4, least squares), while a phase of their
own trains the discriminators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.processor import PEAK, normalised_peak
from phonate.config.errors import InputError
from phonate.nn.vocoder.discriminators import magnitudes
from phonate.nn.vocoder.generator import phase_of
from phonate.tasks.vocoder.data import Corpus, VocoderDataset
from phonate.tasks.vocoder.model import RESOLUTIONS, VocoderGAN
from phonate.tasks.vocoder.settings import METRICS, VocoderRecipe
from phonate.training.adversarial import (
    AdversarialPhases,
    PhaseOutput,
    discriminator_loss,
    feature_distances,
    generator_loss,
)
from phonate.training.settings import require_own_loss
from phonate.training.task import (
    Batch,
    Count,
    Dataset,
    Metric,
    Phase,
    Picture,
    Preview,
    Sound,
    Sums,
    Task,
    Terms,
    losses,
)

_FLOOR = 1e-5
_EVALUATED = 16
_MEL_WEIGHT = 15.0
_PREVIEW_SECONDS = 6.0
GENERATOR, DISCRIMINATOR = "vocoder", "discriminators"


class VocoderTask(Task):
    """Trains a Vocoder as `recipe` says."""

    random_features = False
    earlier_keys: ClassVar = {"discriminators": "resolutions"}

    def __init__(self, recipe: VocoderRecipe) -> None:
        require_own_loss(recipe.training.loss, "vocoder")
        if recipe.data.augmentation is not None and recipe.data.predicted is not None:
            raise InputError(
                "data.augmentation: has no effect on mels that were predicted (data.predicted); set one of them to null"
            )
        self.recipe = recipe
        self._corpus: Corpus | None = None
        self._adversarial = AdversarialPhases(GENERATOR, DISCRIMINATOR, recipe.training.adversarial_start)
        self._spectra: PhaseOutput[tuple[list[Tensor], list[Tensor]]] = PhaseOutput()

    @property
    def corpus(self) -> Corpus:
        """The corpus, prepared when it is first needed."""
        if self._corpus is None:
            self._corpus = Corpus(self.recipe.data)
        return self._corpus

    @property
    def adversarial(self) -> bool:
        """Whether discriminators take part in this step."""
        return self._adversarial.active(self.step)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The vocoder; then its discriminators, from their first step on."""
        return self._adversarial.phases()

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """A mel distance is small in numbers, and says most."""
        training = self.recipe.training
        return {
            "mel": _MEL_WEIGHT,
            "adversarial": training.adversarial_weight,
            "features": training.feature_matching_weight,
        }

    def model(self, device: torch.device) -> nn.Module:
        """A vocoder with discriminators."""
        return VocoderGAN(self.recipe.model, self.corpus.processor).to(device)

    def dataset(self, split: str) -> VocoderDataset:
        """Random crops ("train"), or the middles of recordings ("validation")."""
        return VocoderDataset(self.corpus, split)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the module; each term is a sum over the items of the batch."""
        gan = cast(VocoderGAN, model)
        if phase == DISCRIMINATOR:
            return self._discriminator_loss(gan, batch)
        made = gan.spectra(_copies(gan, batch))
        with torch.no_grad():
            natural = gan.spectra(batch["waveform"])
        items = len(batch["mel"])
        terms: Terms = {"spectral": (_spectral(made, natural), items), "mel": (self._mel(made, natural), items)}
        terms |= _pitch(gan, batch)
        if self.adversarial and model.training:
            terms |= _adversarial_terms(gan, made, natural, items)
            self._spectra.put(self.step, batch, ([one.detach() for one in made], natural))
        return terms

    def _discriminator_loss(self, gan: VocoderGAN, batch: Batch) -> Terms:
        """Least-squares loss of the discriminators, on the spectra of the vocoder's phase where it ran."""
        spectra = self._spectra.take(batch)
        if spectra is None:
            with torch.no_grad():
                spectra = gan.spectra(_copies(gan, batch)), gan.spectra(batch["waveform"])
        made, natural = spectra
        real, fake = gan.discriminators(natural), gan.discriminators(made)
        total = discriminator_loss([scores for scores, _ in real], [scores for scores, _ in fake])
        return {"discriminator": (total, len(batch["mel"]))}

    def _mel(self, made: list[Tensor], natural: list[Tensor]) -> Tensor:
        """Distance of mels, on their scale from 0 to 1."""
        processor = self.corpus.processor
        filters_KM = torch.from_numpy(processor.filters.T).to(made[1])
        floor = -processor.config.min_level_db

        def mel(spectrum_BTC: Tensor) -> Tensor:
            decibels = 20.0 * (magnitudes(spectrum_BTC) @ filters_KM).clamp_min(_FLOOR).log10()
            return decibels / floor

        with torch.autocast(filters_KM.device.type, enabled=False):
            return (mel(made[1]) - mel(natural[1])).abs().mean((1, 2)).sum()

    def counts(self, batch: Batch, phase: str) -> dict[str, Count] | None:
        """Items, and frames for what is heard in the mel."""
        items = float(len(batch["mel"]))
        if phase == DISCRIMINATOR:
            return {"discriminator": items}
        counts: dict[str, Count] = {
            "spectral": items,
            "mel": items,
            "pitch": float((batch["f0"] > 0).sum()),
            "voicing": float(batch["f0"].numel()),
        }
        return counts | ({"adversarial": items, "features": items} if self.adversarial else {})

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Loss terms and `copy_mel`."""
        return (*losses(["spectral", "mel", "pitch", "voicing", "discriminator"]), *METRICS.values())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`copy_mel`: distance in dB per band between the mels of recordings and those of their copies by the
        vocoder, which predicts the pitch from the mel as in inference. Measured on the first 16 recordings."""
        vocoder, processor = cast(VocoderGAN, model).vocoder, self.corpus.processor
        recordings = cast(VocoderDataset, dataset).positions
        distances = []
        for position in (recordings[index] for index in positions if index < _EVALUATED):
            mel_TM = self.corpus.prepared.cache.features(position)
            made_N = vocoder(torch.from_numpy(np.array(mel_TM))[None].to(_device(model)))[0].float().cpu().numpy()
            again_TM = processor.mel(made_N)
            distances.append(float(np.abs(again_TM[: len(mel_TM)] - mel_TM[: len(again_TM)]).mean()))
        return {"copy_mel": (-processor.config.min_level_db * float(np.sum(distances)), len(distances))}

    @torch.no_grad()
    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """A validation recording, and what the vocoder makes of its mel."""
        positions = self.corpus.positions("validation")
        if not positions:
            return {}
        rate, processor = self.recipe.data.audio.sample_rate, self.corpus.processor
        natural_N = self.corpus.prepared.cache.waveform(positions[0])[: int(_PREVIEW_SECONDS * rate)]
        mel_TM = processor.mel(natural_N)
        vocoder = cast(VocoderGAN, model).vocoder
        made_N = vocoder(torch.from_numpy(mel_TM)[None].to(_device(model)))[0].float().cpu().numpy()
        return {
            "natural": Sound(natural_N, rate),
            "made": Sound(PEAK * normalised_peak(made_N), rate),
            "natural_mel": Picture(np.ascontiguousarray(mel_TM.T)),
            "made_mel": Picture(np.ascontiguousarray(processor.mel(made_N).T)),
        }

    def identity(self) -> dict[str, Any]:
        """Features, and the resolutions of the discriminators."""
        return {
            "features": self.corpus.processor.fingerprint,
            "discriminators": [list(one) for one in RESOLUTIONS],
        }

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """The fingerprint of the features that it understands, and what was kept out of training."""
        index = self.corpus.prepared.index
        return {
            "features": self.corpus.processor.fingerprint,
            "validation": [index.id[i] for i in self.corpus.prepared.validation],
        }


def _copies(gan: VocoderGAN, batch: Batch) -> Tensor:
    """The vocoder's copies (B, N), whose pulses are in step with the recordings."""
    vocoder = gan.vocoder
    with torch.no_grad():
        phase_BT = phase_of(batch["waveform"], batch["f0"], vocoder.hop_length, vocoder.sample_rate)
    copies_BN: Tensor = vocoder(batch["mel"], batch["f0"], phase_BT, batch["noise_start"])
    return copies_BN


def _spectral(made: list[Tensor], natural: list[Tensor]) -> Tensor:
    """Convergence and distance of log magnitudes of each item, averaged over resolutions and summed over items
    (Yamamoto et al. 2020, "Parallel WaveGAN", equations 3 to 6)."""
    total = torch.zeros((), device=made[0].device)
    for made_BTC, natural_BTC in zip(made, natural, strict=True):
        made_BTK, natural_BTK = magnitudes(made_BTC), magnitudes(natural_BTC)
        distance = torch.linalg.vector_norm(natural_BTK - made_BTK, dim=(1, 2))
        size = torch.linalg.vector_norm(natural_BTK, dim=(1, 2)).clamp_min(1e-3)
        logarithms = ((made_BTK + _FLOOR).log() - (natural_BTK + _FLOOR).log()).abs().mean((1, 2))
        total = total + (distance / size + logarithms).sum() / len(made)
    return total


def _pitch(gan: VocoderGAN, batch: Batch) -> Terms:
    """What is heard of the pitch in the mel: distance of log F0 over voiced frames, and of voicing over all."""
    log_f0_BT, voicing_BT = gan.vocoder.pitch(batch["mel"])
    voiced_BT = batch["f0"] > 0
    wanted_BT = (batch["f0"].clamp_min(1.0) / 200.0).log()
    return {
        "pitch": (((log_f0_BT - wanted_BT).abs() * voiced_BT).sum(), voiced_BT.sum()),
        "voicing": (
            F.binary_cross_entropy_with_logits(voicing_BT.float(), voiced_BT.float(), reduction="sum"),
            voiced_BT.numel(),
        ),
    }


def _adversarial_terms(gan: VocoderGAN, made: list[Tensor], natural: list[Tensor], items: int) -> Terms:
    """The vocoder's adversarial and feature-matching losses."""
    with torch.no_grad():
        wanted = gan.discriminators(natural)
    judged = gan.discriminators(made)
    features = torch.zeros((), device=made[0].device)
    for (_, seen), (_, natural_seen) in zip(judged, wanted, strict=True):
        for distance in feature_distances(seen, natural_seen):
            features = features + distance / (len(made) * len(seen))
    return {"adversarial": (generator_loss([scores for scores, _ in judged]), items), "features": (features, items)}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
