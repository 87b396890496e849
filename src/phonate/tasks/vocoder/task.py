"""The vocoder as a task: waveforms from mels, trained on spectral distances first, then adversarially.

Terms: `spectral` (convergence and log magnitudes at four resolutions), `mel` (mel of the generated waveform against
the input mel), `pitch` and `voicing` (of the F0 predicted from the mel), and from `adversarial_start` on
`adversarial` and `features` (Kong et al. 2020, "HiFi-GAN", equations 1 to 4, least squares), while a phase of their
own trains the discriminators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.processor import PEAK, normalised_peak
from phonate.nn.losses import spectral_distance
from phonate.nn.vocoder import magnitudes, phase_of
from phonate.tasks.vocoder.data import VocoderCorpus, VocoderDataset
from phonate.tasks.vocoder.model import RESOLUTIONS, VocoderGAN
from phonate.tasks.vocoder.settings import VocoderRecipe, traits
from phonate.training.adversarial import AdversarialTask, Pair
from phonate.training.checkpoints.files import MEL
from phonate.training.task import Batch, Dataset, Metric, Picture, Preview, Sound, Sums, Terms

_FLOOR = 1e-5
_QUIETEST = 1e-3
_EVALUATED = 16
_MEL_WEIGHT = 15.0
_PREVIEW_SECONDS = 6.0


class VocoderTask(AdversarialTask[Pair]):
    """Trains a Vocoder as `recipe` says."""

    generator = "vocoder"
    discriminator = "discriminators"
    random_features = False
    earlier_keys: ClassVar = {"discriminators": "resolutions"}

    def __init__(self, recipe: VocoderRecipe) -> None:
        self._metrics = traits(recipe).metrics
        super().__init__(recipe.training)
        self.recipe = recipe

    @cached_property
    def corpus(self) -> VocoderCorpus:
        """The corpus, prepared when it is first needed."""
        return VocoderCorpus(self.recipe.data)

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """A mel distance is small in numbers, and says most."""
        return {"mel": _MEL_WEIGHT, **super().loss_weights(step)}

    def model(self, device: torch.device) -> nn.Module:
        """A vocoder with discriminators."""
        return VocoderGAN(self.recipe.model, self.corpus.processor).to(device)

    def dataset(self, split: str) -> VocoderDataset:
        """Random crops ("train"), or the middles of recordings ("validation")."""
        return VocoderDataset(self.corpus, split)

    def generate(self, model: nn.Module, batch: Batch) -> Pair:
        """Spectra (B, T, 2K), one a resolution, of the vocoder's copies, whose pulses are in step with the recordings;
        and those of the recordings."""
        gan = cast(VocoderGAN, model)
        vocoder = gan.vocoder
        with torch.no_grad():
            phase_BT = phase_of(batch["waveform"], batch["f0"], vocoder.hop_length, vocoder.sample_rate)
        fake_BN = vocoder(batch["mel"], batch["f0"], phase_BT, batch["noise_start"])
        fake = gan.spectra(fake_BN)
        with torch.no_grad():
            return Pair(fake, gan.spectra(batch["waveform"]))

    def pair(self, output: Pair, batch: Batch) -> Pair:
        """All spectra."""
        return output

    def generator_terms(self, model: nn.Module, output: Pair, batch: Batch) -> Terms:
        """See the module; each is a sum over the items of the batch."""
        fake, real = ([magnitudes(one) for one in spectra] for spectra in (output.fake, output.real))
        distances = [
            spectral_distance(*both, floor=_FLOOR, quietest=_QUIETEST) for both in zip(fake, real, strict=True)
        ]
        return {
            "spectral": (torch.stack(distances).mean(0).sum(), "items"),
            "mel": (self._mel(fake[1], real[1]), "items"),
            **_pitch(cast(VocoderGAN, model), batch),
        }

    def _mel(self, fake_BTK: Tensor, real_BTK: Tensor) -> Tensor:
        """Distance of the mels of these magnitudes, on their scale from 0 to 1."""
        processor = self.corpus.processor
        filters_KM = torch.from_numpy(processor.filters.T).to(fake_BTK)

        def mel(magnitudes_BTK: Tensor) -> Tensor:
            return 20.0 * (magnitudes_BTK @ filters_KM).clamp_min(_FLOOR).log10() / -processor.config.min_level_db

        with torch.autocast(filters_KM.device.type, enabled=False):
            return (mel(fake_BTK) - mel(real_BTK)).abs().mean((1, 2)).sum()

    @property
    def metrics(self) -> Sequence[Metric] | None:
        """Loss terms and `copy_mel`."""
        return self._metrics

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`copy_mel`: distance in dB per band between the mels of recordings and those of their copies by the
        vocoder, which predicts the pitch from the mel as in inference. Measured on the first 16 recordings."""
        vocoder, processor = cast(VocoderGAN, model).vocoder, self.corpus.processor
        recordings = cast(VocoderDataset, dataset).positions
        distances = []
        for position in (recordings[index] for index in positions if index < _EVALUATED):
            mel_TM = self.corpus.prepared.cache.features(position)
            fake_N = vocoder(torch.from_numpy(np.array(mel_TM))[None].to(self.device))[0].float().cpu().numpy()
            again_TM = processor.mel(fake_N)
            distances.append(float(np.abs(again_TM[: len(mel_TM)] - mel_TM[: len(again_TM)]).mean()))
        return {"copy_mel": (-processor.config.min_level_db * float(np.sum(distances)), len(distances))}

    @torch.no_grad()
    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """A validation recording, and what the vocoder makes of its mel."""
        positions = self.corpus.prepared.positions("validation")
        if not positions:
            return {}
        rate, processor = self.recipe.data.audio.sample_rate, self.corpus.processor
        natural_N = self.corpus.prepared.cache.waveform(positions[0])[: int(_PREVIEW_SECONDS * rate)]
        mel_TM = processor.mel(natural_N)
        vocoder = cast(VocoderGAN, model).vocoder
        fake_N = vocoder(torch.from_numpy(mel_TM)[None].to(self.device))[0].float().cpu().numpy()
        return {
            "natural": Sound(natural_N, rate),
            "made": Sound(PEAK * normalised_peak(fake_N), rate),
            "natural_mel": Picture(np.ascontiguousarray(mel_TM.T)),
            "made_mel": Picture(np.ascontiguousarray(processor.mel(fake_N).T)),
        }

    def identity(self) -> dict[str, Any]:
        """Features, and the resolutions of the discriminators."""
        return {
            "features": self.corpus.processor.fingerprint,
            "discriminators": [list(one) for one in RESOLUTIONS],
            "pitch": self.recipe.data.f0_method,
        }

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """The fingerprint of the features that it understands, and what was kept out of training."""
        index = self.corpus.prepared.index
        return {
            "features": self.corpus.processor.fingerprint,
            MEL: asdict(self.corpus.processor.config.facts),
            "lookahead": self.recipe.model.lookahead,
            "postfilter": self.recipe.model.postfilter,
            "validation": [index.id[i] for i in self.corpus.prepared.validation],
        }


def _pitch(gan: VocoderGAN, batch: Batch) -> Terms:
    """What is heard of the pitch in the mel: distance of log F0 over voiced frames, and of voicing over all."""
    log_f0_BT, voicing_BT = gan.vocoder.pitch(batch["mel"])
    voiced_BT = batch["f0"] > 0
    target_BT = (batch["f0"].clamp_min(1.0) / 200.0).log()
    return {
        "pitch": (((log_f0_BT - target_BT).abs() * voiced_BT).sum(), "voiced frames"),
        "voicing": (
            F.binary_cross_entropy_with_logits(voicing_BT.float(), voiced_BT.float(), reduction="sum"),
            "frames",
        ),
    }
