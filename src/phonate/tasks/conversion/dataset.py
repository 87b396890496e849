"""Training samples: a crop of a recording's content, and the mel that the model is to give.

From reconstruction alone a model never sees a stranger's content beside the target's mel. A causal model, whose content
hides the voice less well than that of a whole recording, learns to ignore more of it from these pairs.

Shapes: T frames, M mel bands.

Where voices are given by recordings, a sample also has what other speech of its speaker sounds like.

Shapes: B batch, T frames, F content features, P prosody features, M mel bands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import CheckpointError, InputError
from phonate.config.registry import nearest
from phonate.data.batches.samples import CroppedRecordings, padded
from phonate.data.store.derived import DerivedFeatures, open_derived
from phonate.nn.pretrained.adapters import base_fingerprint
from phonate.tasks.conversion.data import Corpus, OtherSpeech
from phonate.tasks.conversion.features import Recording, Register
from phonate.tasks.conversion.inference import Converter
from phonate.training.task import Batch

# ------------------------------------------------------------------------------ Knowledge distillation

SHARE = 0.75
"""Of the training samples of other speakers; from the rest their own voices are learnt."""
_VERSION = 1  # raise it when conversions are computed otherwise


def load_teacher(source: str, processor: AudioProcessor) -> Converter:
    """The run `source`, whose conversions are to be learnt from.

    Raises InputError, naming `data.distil_from`, where it can't be: it is no run of this task, has other mels than
    `processor`, or voices that recordings give.
    """
    try:
        teacher = Converter.load(source, "griffin_lim")  # its mels are all that is wanted
    except (InputError, CheckpointError) as error:
        raise InputError(f"data.distil_from: {error}") from error
    if teacher.extractor.processor.fingerprint != processor.fingerprint:
        raise InputError(f"data.distil_from: {source} has other mels; train both with the same settings of data.audio")
    if teacher.extractor.reference_dim:
        raise InputError(
            f"data.distil_from: {source} takes its voice from recordings; name a run that was trained on the target"
        )
    return teacher


class Conversions:
    """The recordings of `corpus` that are not the target's, in the target's voice, as `teacher` converts them.

    They are computed once and kept beside the prepared corpus.
    """

    def __init__(self, corpus: Corpus, teacher: Converter) -> None:
        """Raises InputError for a teacher that does not convert to the target."""
        self.speaker = corpus.target
        """Number of the speaker whose voice they are in."""
        name = corpus.speakers[self.speaker]
        if name not in teacher.voices:
            known = nearest(name, teacher.speakers)
            raise InputError(f"data.distil_from: the run does not convert to the target {name!r}; {known}")
        self.register: Register | None = teacher.voices[name].register
        """The register to which pitches are moved in them."""
        self._mels = _open(corpus, teacher, name)

    def __getitem__(self, position: int) -> FloatArray:
        """The converted mel (T, M) of recording number `position`; of a recording of the target, no frame."""
        return self._mels[position]


def _open(corpus: Corpus, teacher: Converter, name: str) -> DerivedFeatures:
    index, share = corpus.prepared.index, teacher.extractor.data.equalise
    target, nothing_TM = corpus.target, np.zeros((0, teacher.extractor.envelope.bands), dtype=np.float32)

    def converted(position: int) -> FloatArray:
        if index.speaker[position] == target:
            return nothing_TM
        return teacher.convert_mel(_recording(corpus, teacher, position), name)

    weights = base_fingerprint(teacher.model.requires_grad_(False))
    folder = corpus.prepared.folder / f"converted-{weights}-{teacher.speaker(name)}-{share:g}-v{_VERSION}"
    return open_derived(folder, len(index), converted, np.float16, what="converting recordings to learn from")


def _recording(corpus: Corpus, teacher: Converter, position: int) -> Recording:
    """The features that the teacher reads: those of the corpus where they are the same."""
    same_content = teacher.inference_metadata["content"] == corpus.content_fingerprint
    if same_content and (corpus.data.prosody or not teacher.extractor.data.prosody):
        return corpus.recording(position)
    return teacher.extractor.recording(corpus.waveform(position))


# ------------------------------------------------------------------------------------ Training samples


@dataclass(frozen=True)
class Item:
    """One sample."""

    content_TF: FloatArray
    prosody_TP: FloatArray
    mel_TM: FloatArray
    speaker: int
    teacher_TW: FloatArray | None = None
    """Whisper features, where they are what is predicted of the content."""
    reference_TM: FloatArray | None = None
    """Spectra of other speech of the speaker, where voices are given by recordings."""


class ConversionDataset(CroppedRecordings):
    """One split: random perturbed crops for training, else the middles of recordings as they are."""

    def __init__(self, corpus: Corpus, split: str, conversions: Conversions | None = None) -> None:
        """`conversions`: what to learn from beside the recordings."""
        data = corpus.data
        positions, training = corpus.positions(split), split == "train"
        self._other_speech = OtherSpeech(corpus) if corpus.extractor.reference_dim else None
        if self._other_speech is not None:
            positions = self._other_speech.usable(positions)
        self._conversions = conversions
        super().__init__(corpus.prepared, positions, data, data.crop_frames, data.crops_per_clip, training)
        self._corpus = corpus

    @property
    def cached(self) -> bool:
        """True unless waveforms are augmented or references looked up."""
        return super().cached and self._other_speech is None

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`: a crop of the recording, perturbed in training."""
        position, extractor = self.position(index), self._corpus.extractor
        recording = self._corpus.recording(position)
        if self.augmentation is not None:
            recording = extractor.recording(self.augmentation(self._corpus.waveform(position), rng))
        frames = len(recording.mel_TM)
        start = self.start(frames, rng)
        cut = slice(start, min(start + self.crop_frames, frames))
        content_TF = extractor.content(recording, rng if self.training else None, cut)
        if self.augmentation is not None:
            content_TF = self.augmentation.spec(content_TF, rng)
        speaker, mel_TM, register = int(self.prepared.index.speaker[position]), recording.mel_TM, None
        taught = self._conversions
        if taught is not None and speaker != taught.speaker and rng.random() < SHARE:
            speaker, mel_TM, register = taught.speaker, taught[position], taught.register
        teacher_TW = extractor.whisper_content(recording, cut) if extractor.teacher else None
        reference_TM = None if self._other_speech is None else self._other_speech.timbre(position, cut, rng)
        prosody_TP = extractor.prosody(recording, register, cut)
        return Item(content_TF, prosody_TP, mel_TM[cut], speaker, teacher_TW, reference_TM)

    def to_another(self, index: int) -> Item:
        """Sample number `index` as it is, but to be converted to the voice of another speaker."""
        item, position = self.get(index, np.random.default_rng(0)), self.position(index)
        if self._other_speech is None:
            speakers = len(self._corpus.speakers)
            return replace(item, speaker=(item.speaker + max(1, speakers // 2)) % speakers)
        start = self.start(int(self.prepared.index.frames[position]), np.random.default_rng(0))
        cut = slice(start, start + len(item.mel_TM))
        return replace(item, reference_TM=self._other_speech.timbre_of_another(position, cut))

    def collate(self, items: list[Any]) -> Batch:
        """`features` (B, T, F), `prosody` (B, T, P), `target` (B, T, M), `speaker_id` (B,), `lengths` (B,), and
        `teacher` (B, T, W) and `reference` (B, T, M) where there are any."""
        lengths = torch.tensor([len(item.mel_TM) for item in items])
        taught = [item.teacher_TW for item in items if item.teacher_TW is not None]
        heard = [item.reference_TM for item in items if item.reference_TM is not None]
        return {
            **({"teacher": padded(taught)} if taught else {}),
            **({"reference": padded(heard)} if heard else {}),
            "features": padded([item.content_TF for item in items]),
            "prosody": padded([item.prosody_TP for item in items]),
            "target": padded([item.mel_TM for item in items]),
            "speaker_id": torch.tensor([item.speaker for item in items]),
            "lengths": lengths,
        }
