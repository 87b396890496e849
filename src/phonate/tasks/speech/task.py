"""Text-to-speech as a task: mels from text, in the voices of the corpus.

Terms: `mel` (distance of the predicted from the recorded mel, given the recorded durations, energy and pitch),
`duration`, `energy`, `pitch` and `voicing` (of the predicted prosody), and from `adversarial_start` on
`adversarial` and `features`, while a phase of its own trains the discriminator. Those of an autoregressive model are in
its module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.evaluation.held_out import Clip
from phonate.nn.vocoder import MelDiscriminator
from phonate.tasks.speech import model as adoption
from phonate.tasks.speech.arrays import CONTOUR_FRAMES
from phonate.tasks.speech.data import SpeechCorpus, SpeechDataset
from phonate.tasks.speech.model import (
    ACOUSTIC,
    ParallelOutput,
    SpeechModelGAN,
    build_acoustic,
    renewed,
)
from phonate.tasks.speech.settings import SpeechRecipe
from phonate.tasks.speech.start import traits
from phonate.text.phonemes import MARKS_KEY, START_MARKS_KEY, Inventory, counted_marks, learnt_marks
from phonate.training.adversarial import AdversarialTask, Pair
from phonate.training.checkpoints import files, resolve_checkpoint
from phonate.training.task import (
    Batch,
    Dataset,
    Metric,
    Picture,
    Preview,
    Sound,
    Sums,
    Terms,
)

if TYPE_CHECKING:
    from phonate.tasks.speech.inference import Synthesiser

_VOICES = "acoustic.voices.weight"
_PHONES = "acoustic.embedding.weight"
_CONTOUR = "acoustic.contour.weight"
_AVERAGE_LEVEL = 0.3  # of a mel feature, where the output starts
_CROP = 96  # frames that the discriminator sees


class SpeechTask(AdversarialTask[Any]):
    """Trains an acoustic model as `recipe` says."""

    generator = "acoustic"
    discriminator = "discriminator"
    random_features = False
    earlier_keys: ClassVar = {"phones": "inventory", "own_state": START_MARKS_KEY}

    def __init__(self, recipe: SpeechRecipe) -> None:
        self.recipe = recipe
        self.autoregressive = recipe.model.kind == "autoregressive"
        self._metrics = traits(recipe).metrics
        super().__init__(recipe.training)

    @cached_property
    def corpus(self) -> SpeechCorpus:
        """The corpus, prepared when it is first needed."""
        return SpeechCorpus(self.recipe.data)

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """The acoustic model's; those of the adversarial terms of one that has them."""
        own = ACOUSTIC[self.recipe.model.kind].weights
        return own if self.autoregressive else {**own, **super().loss_weights(step)}

    def model(self, device: torch.device) -> nn.Module:
        """An acoustic model for the corpus's phones and speakers, with a discriminator."""
        settings, n_mels = self.recipe.model, self.recipe.data.audio.n_mels
        acoustic = build_acoustic(settings, len(self.corpus.inventory), len(self.corpus.speakers), n_mels)
        with torch.no_grad():
            acoustic.output.bias.fill_(_AVERAGE_LEVEL)
        if self.autoregressive:
            return SpeechModelGAN(acoustic, None).to(device)
        discriminator = MelDiscriminator(n_mels, settings.width, settings.discriminator_channels)
        return SpeechModelGAN(acoustic, discriminator).to(device)

    def dataset(self, split: str) -> SpeechDataset:
        """Whole recordings."""
        return SpeechDataset(self.corpus, split)

    def generate(self, model: nn.Module, batch: Batch) -> Any:
        """What the acoustic model predicts from recorded prosody or frames."""
        return cast(SpeechModelGAN, model).acoustic.teacher_forced(batch)

    def generator_terms(self, model: nn.Module, output: Any, batch: Batch) -> Terms:
        """See the acoustic model."""
        return cast(SpeechModelGAN, model).acoustic.terms(output, batch)

    def pair(self, output: ParallelOutput, batch: Batch) -> Pair:
        """Crops of the predicted and the recorded mel, and of what each frame is to say."""
        whole = (output.mel_BTM.float(), batch["target"], output.regulated_BTD.detach())
        return Pair(*(_cropped(value, batch) for value in whole))

    @property
    def metrics(self) -> Sequence[Metric] | None:
        """Loss terms, and with `data.judged` what judges measure."""
        return self._metrics

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`wer`, `mos` and `speaker` of the first `data.judged` validation texts."""
        recordings = cast(SpeechDataset, dataset).positions
        clips = [self._clip(recordings[index]) for index in positions if index < self.recipe.data.judged]
        if not clips:
            return {}
        from phonate.tasks.speech.evaluation import Judges, judged

        judges = Judges(self.recipe.data.language)  # loaded anew each time: they take 200 MB that training can use
        synthesiser = self._synthesiser(model)
        return judged(judges, clips, [synthesiser.speak(clip.text, clip.speaker) for clip in clips], self._rate)

    def derived(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """`quality` = mos - 5 wer, by which checkpoints can be chosen: a loss ranks them the wrong way round, because
        it favours blur."""
        if not {"mos", "wer"} <= metrics.keys():
            return {}
        from phonate.tasks.speech.evaluation import quality

        return {"quality": quality(metrics["mos"], metrics["wer"])}

    @torch.no_grad()
    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """A validation text as it is spoken, beside its recording: pictures and sounds."""
        shown: dict[str, Preview] = {}
        for clip in map(self._clip, self.corpus.positions("validation")[:1]):
            spoken_N = self._synthesiser(model).speak(clip.text, clip.speaker)
            for name, waveform in (("natural", clip.waveform), ("spoken", spoken_N)):
                shown[name] = Sound(waveform, self._rate)
                shown[f"{name}_mel"] = Picture(np.ascontiguousarray(self.corpus.processor.mel(waveform).T))
        return shown

    @property
    def _rate(self) -> int:
        return int(self.recipe.data.audio.sample_rate)

    def _synthesiser(self, model: nn.Module) -> Synthesiser:
        from phonate.tasks.speech.inference import Synthesiser  # takes a while, and the first steps do without

        acoustic = cast(SpeechModelGAN, model).acoustic
        return Synthesiser(acoustic.eval(), self.recipe.data, self.corpus.inventory, self.corpus.speakers)

    def _clip(self, position: int) -> Clip:
        index, speakers = self.corpus.prepared.index, self.corpus.speakers
        waveform = self.corpus.prepared.cache.waveform(position)
        return Clip(index.id[position], speakers[index.speaker[position]], index.text[position], waveform)

    def metric_names(self) -> Mapping[str, str]:
        """Trackers show terms as losses of batches and of epochs: train/batch_mel_loss, train/epoch_mel_loss."""
        names = {"loss": "total", **{name: name for name in self.loss_weights(0)}}
        return {
            **{f"train/{ours}": f"train/batch_{shown}_loss" for ours, shown in names.items()},
            **{f"epoch/{ours}": f"train/epoch_{shown}_loss" for ours, shown in names.items()},
            "train/steps_per_second": "train/throughput",
            f"learning_rate/{self.generator}": "train/learning_rate",  # with a discriminator there are two
        }

    def adopted(self, weights: Mapping[str, Tensor], source: Path) -> Mapping[str, Tensor]:
        """Speakers by their names; who is not among those of `source` starts as the average of them. Other phones start
        as those that sound like them, where that is known."""
        if self.autoregressive:
            return weights
        facts = source / files.INFERENCE
        metadata = files.read_json(facts) if facts.is_file() else {}
        speakers = metadata.get("speakers", [])
        adopted = {**weights, **renewed(weights, "acoustic.", len(speakers))}
        if (table_SD := adopted.get(_VOICES)) is not None:
            # those of packaged voices have 16 bits
            adopted[_VOICES] = adoption.voices(table_SD.float(), speakers, self.corpus.speakers)
        if "inventory" in metadata and (table_VD := adopted.get(_PHONES)) is not None:
            inventory = Inventory.read(metadata["inventory"])
            adopted[_PHONES] = adoption.phones(table_VD.float(), inventory, self.corpus.inventory)
        if self.recipe.model.contour:
            adopted.setdefault(_CONTOUR, torch.zeros(1, 2 * len(CONTOUR_FRAMES)))
        return adopted

    @cached_property
    def own_state(self) -> _MarksOfStart:
        """Which marks were learnt before training started."""
        return _MarksOfStart(self.recipe.training.init_from, self.corpus.inventory)

    def identity(self) -> dict[str, Any]:
        """Speakers, phones and features."""
        return {
            "speakers": list(self.corpus.speakers),
            "phones": self.corpus.inventory.document(),
            "features": self.corpus.processor.fingerprint,
            "pitch": self.recipe.data.f0_method,
        }

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What speaking needs beside the weights and the recipe."""
        index, train = self.corpus.prepared.index, self.corpus.prepared.train
        frames = sum(int(index.frames[int(position)]) for position in train)
        return {
            "speakers": list(self.corpus.speakers),
            "inventory": self.corpus.inventory.document(),
            "features": self.corpus.processor.fingerprint,
            files.MEL: asdict(self.corpus.processor.config.facts),
            "vocoder": self.recipe.data.vocoder,
            "validation": [index.id[i] for i in self.corpus.prepared.validation],
            "recordings": len(train),
            "seconds": round(frames / self.recipe.data.audio.frames_per_second, 1),
            MARKS_KEY: counted_marks(self.corpus.words[int(position)] for position in train),
            **({START_MARKS_KEY: marks} if (marks := self.own_state.state()) else {}),
        }


class _MarksOfStart:
    """The marks that the voice had learnt whose weights training starts from, if it has the same phones.

    A resume restores them: that voice need not be there any more.
    """

    def __init__(self, source: str | None, inventory: Inventory) -> None:
        self._source, self._inventory = source, inventory
        self._marks: list[str] | None = None

    def state(self) -> list[str]:
        if self._marks is None:
            file = None if self._source is None else resolve_checkpoint(self._source) / files.INFERENCE
            metadata = files.read_json(file) if file is not None and file.is_file() else {}
            same = metadata.get("inventory") == self._inventory.document()
            self._marks = sorted(learnt_marks(metadata) or ()) if same else []
        return self._marks

    def restore(self, state: list[str] | None) -> None:
        self._marks = state or []


def _cropped(x_BTF: Tensor, batch: Batch) -> Tensor:
    """A part of each item (B, 96, F), where `crop` says; short items are followed by zeros, whatever their batch."""
    x_BTF = F.pad(x_BTF, (0, 0, 0, max(0, _CROP - x_BTF.shape[1])))
    spare_B = (batch["lengths"] - _CROP).clamp_min(0)
    start_B = (batch["crop"] * (spare_B + 1)).long().clamp_max(spare_B)
    places_BT = start_B[:, None] + torch.arange(_CROP, device=x_BTF.device)
    within_BT: Tensor = places_BT < batch["lengths"][:, None]
    return x_BTF.gather(1, places_BT[..., None].expand(-1, -1, x_BTF.shape[-1])) * within_BT[..., None]
