"""The recordings that a model is trained on, with what is derived of each, and training samples of them: a crop of a
recording's content, and the mel that the model is to give.

From reconstruction alone a model never sees a stranger's content beside the target's mel. A causal model, whose content
hides the voice less well than that of a whole recording, learns to ignore more of it from what a teacher converts.
Where voices are given by recordings, a sample also has what other speech of its speaker sounds like.

Shapes: B batch, T frames, F content features, P prosody features, M mel bands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.audio.whisper import FEATURES_PER_SECOND, WhisperEncoder
from phonate.config.errors import CheckpointError, DataError, InputError
from phonate.config.registry import nearest
from phonate.data.batches import padded
from phonate.data.cache import FeatureCache
from phonate.data.cluster import executor_of
from phonate.data.corpora.validation import warn_left_out
from phonate.data.derived import DerivedFeatures, open_derived, open_pitch
from phonate.data.parallel import Here
from phonate.data.prepared import CroppedRecordings, PreparedCorpus, prepare_to_train
from phonate.nn.pretrained import base_fingerprint
from phonate.tasks.conversion.features import (
    CorpusStatistics,
    FeatureExtractor,
    Recording,
    Register,
    SpeechFrames,
    moments,
    timbre,
)
from phonate.tasks.conversion.inference import Converter, Voice
from phonate.tasks.conversion.settings import ConversionData
from phonate.training.task import Batch

# ----------------------------- The recordings that a model is trained on, with what is derived of each

_EXPECTED_OVER = 300
_MOST_MOMENTS = 4096
"""Recordings whose moments stay in memory: 12 MB."""
_WHISPER_VERSION = 1  # raise it when Whisper features are computed otherwise


class ConversionCorpus:
    """The prepared corpus at `data.path`, with F0 and Whisper features beside its cached waveforms and mels."""

    def __init__(self, data: ConversionData, extractor: FeatureExtractor) -> None:
        self.data = data
        self.extractor = extractor
        self._moments: dict[int, tuple[FloatArray, FloatArray]] = {}
        """Of Whisper features, by recording, so that each is looked through once."""
        self.prepared: PreparedCorpus = prepare_to_train(data)
        if extractor.causal:
            extractor.envelope.expected = self.expected
        self.speakers = self.prepared.speakers
        """Names in the order of the embedding."""
        data.require_speakers(self.speakers)

    def recording(self, position: int) -> Recording:
        """The clean features of a recording."""
        whisper_SW = self._whisper[position] if self.data.content == "whisper" else None
        mel_TM = self.prepared.cache.features(position)
        f0_T = self._f0[position][:, 0] if self.data.prosody else np.zeros(len(mel_TM), dtype=np.float32)
        if whisper_SW is None:
            return Recording(mel_TM, f0_T)
        if (known := self._moments.get(position)) is None:
            known = moments(whisper_SW)
            if len(self._moments) < _MOST_MOMENTS:
                self._moments[position] = known
        return Recording(mel_TM, f0_T, whisper_SW, known)

    def waveform(self, position: int) -> FloatArray:
        """The clean waveform (N,) of a recording."""
        return self.prepared.cache.waveform(position)

    @cached_property
    def target(self) -> int:
        """Number of the speaker to convert to: the recipe's, or the one with the most speech."""
        if self.data.target is not None:
            return self.speakers.index(self.data.target)
        return int(self.minutes.argmax())

    @property
    def minutes(self) -> NDArray[np.float64]:
        """(S,) Of recordings of each speaker."""
        index = self.prepared.index
        frames = np.bincount(index.speaker, weights=index.frames, minlength=len(self.speakers))
        return np.asarray(frames / self.data.audio.frames_per_second / 60)

    @cached_property
    def voices(self) -> dict[str, Voice]:
        """Register and long-term spectrum of each speaker that is learnt, from training recordings."""
        if self.extractor.reference_dim:
            return {}
        numbers = self.prepared.index.speaker
        train = self.prepared.positions("train")

        def recordings(speaker: int) -> Iterator[Recording]:
            return (self.recording(position) for position in train if numbers[position] == speaker)

        return {name: Voice.of(recordings(number)) for number, name in enumerate(self.speakers)}

    @cached_property
    def expected(self) -> CorpusStatistics:
        """What training recordings are like before normalisation, over at most 300 of them."""
        train = self.prepared.positions("train")
        chosen = train[:: max(1, len(train) // _EXPECTED_OVER)]
        mels = (self.prepared.cache.features(position) for position in chosen)
        return CorpusStatistics.of((mel_TM, self.extractor.envelope.smoothed(mel_TM)) for mel_TM in mels)

    @property
    def content_dim(self) -> int:
        """Content features of a frame."""
        reads_whisper = self.data.content == "whisper" and not self.extractor.teacher
        return self._whisper.width if reads_whisper else self.data.audio.n_mels

    @property
    def teacher_dim(self) -> int | None:
        """Whisper features that a causal model is taught to predict for a frame; None: none."""
        return self._whisper.width if self.extractor.teacher else None

    @property
    def content_fingerprint(self) -> str:
        """What the content features depend on beside the audio settings."""
        return self.extractor.whisper.fingerprint if self.data.content == "whisper" else "mel"

    @cached_property
    def _f0(self) -> DerivedFeatures:
        return open_pitch(self.prepared, self.data.audio, self.data.f0_method)

    @cached_property
    def _whisper(self) -> DerivedFeatures:
        """The features of a Whisper encoder, kept beside the prepared corpus."""
        encoder, rate = self.extractor.whisper, self.data.audio.sample_rate
        name = re.sub(r"[^\w.-]", "_", f"whisper-{encoder.fingerprint}-v{_WHISPER_VERSION}")
        return open_derived(
            self.prepared.folder / name,
            len(self.prepared.index),
            partial(_encoded, self.prepared.cache, encoder, rate),
            np.float16,
            executor_of(self.prepared.executor, Here()),
            "computing Whisper features",
        )


def _encoded(cache: FeatureCache, encoder: WhisperEncoder, rate: int, position: int) -> FloatArray:
    return encoder(cache.waveform(position), rate)


# ----------------------------------------------------------------- A voice that is given by recordings

_TRAINING_SECONDS = 30.0
"""At most so much of a speaker's other speech is the reference of a training sample."""
_LEAST_TRAINING_SECONDS = 2.0
_APART_SECONDS = 0.2
"""Between a crop and what is looked up of the same recording: Whisper's features spread over some frames."""


class OtherSpeech:
    """What other speech of the same speaker sounds like, for training samples of `corpus`."""

    def __init__(self, corpus: ConversionCorpus) -> None:
        self._corpus = corpus
        self._index = corpus.prepared.index
        self._rate = corpus.data.audio.frames_per_second

    def usable(self, positions: Sequence[int]) -> list[int]:
        """Those of the recordings `positions` whose speaker has other speech; a warning names the others.

        Raises DataError where none remains.
        """
        usable = [position for position in positions if self._other_seconds(position) >= _LEAST_TRAINING_SECONDS]
        least = f"{_LEAST_TRAINING_SECONDS:.0f} s of other speech of the same speaker"
        left_out = sorted({*positions} - {*usable})
        warn_left_out(f"come without {least} as a reference", [self._index.id[position] for position in left_out])
        if positions and not usable:
            raise DataError(
                f"{self._corpus.data.label}: no recording comes with {least}; give several of each speaker, or longer "
                "ones"
            )
        return usable

    def timbre(self, position: int, cut: slice, rng: np.random.Generator) -> FloatArray:
        """Spectra (T, M) for the frames `cut` of a recording, from at most half a minute of the speaker's other
        recordings, and where these are shorter, also from the rest of this one."""
        # other recordings of the speaker, drawn until they last long enough
        chosen, left = list[int](), _TRAINING_SECONDS * self._rate
        for other in rng.permutation(self._of_speaker[int(self._index.speaker[position])]):
            if other != position and left > 0:
                chosen.append(int(other))
                left -= float(self._index.frames[other])
        reference = self._frames(chosen)
        if sum(map(len, reference)) < _TRAINING_SECONDS * FEATURES_PER_SECOND:
            (own,) = self._frames([position])
            before, after = cut.start / self._rate - _APART_SECONDS, cut.stop / self._rate + _APART_SECONDS
            reference += [own[: max(0, int(before * FEATURES_PER_SECOND))], own[int(after * FEATURES_PER_SECOND) :]]
        return self._timbre(position, cut, reference)

    def timbre_of_another(self, position: int, cut: slice) -> FloatArray:
        """The same from a recording of the next speaker of the split, in the order of the corpus."""
        prepared, speakers = self._corpus.prepared, self._index.speaker
        split = prepared.validation if position in prepared.validation else prepared.train
        following = np.roll(split, -int(np.searchsorted(split, position)))
        other = next((int(one) for one in following if speakers[one] != speakers[position]), position)
        return self._timbre(position, cut, self._frames([other]))

    def _timbre(self, position: int, cut: slice, reference: Sequence[SpeechFrames]) -> FloatArray:
        return timbre(self._corpus.recording(position), SpeechFrames.joined(reference), cut, self._rate)

    def _frames(self, positions: Iterable[int]) -> list[SpeechFrames]:
        return [SpeechFrames.of(self._corpus.recording(position), self._rate) for position in positions]

    def _other_seconds(self, position: int) -> float:
        """Seconds of the speaker's speech outside of a crop of this recording."""
        frames = self._index.frames
        everything = int(frames[self._of_speaker[int(self._index.speaker[position])]].sum())
        own = min(int(frames[position]), self._corpus.data.crop_frames)
        return (everything - own) / self._rate - 2 * _APART_SECONDS

    @cached_property
    def _of_speaker(self) -> dict[int, list[int]]:
        by_speaker: dict[int, list[int]] = {}
        for position in sorted([*self._corpus.prepared.train, *self._corpus.prepared.validation]):
            by_speaker.setdefault(int(self._index.speaker[position]), []).append(int(position))
        return by_speaker


# ------------------------------------------------------------------------------ Knowledge distillation

SHARE = 0.75
"""Of the training samples of other speakers; from the rest their own voices are learnt."""
_CONVERSIONS_VERSION = 1  # raise it when conversions are computed otherwise


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

    def __init__(self, corpus: ConversionCorpus, teacher: Converter) -> None:
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


def _open(corpus: ConversionCorpus, teacher: Converter, name: str) -> DerivedFeatures:
    index, share = corpus.prepared.index, teacher.extractor.data.equalise
    target, nothing_TM = corpus.target, np.zeros((0, teacher.extractor.envelope.bands), dtype=np.float32)

    def converted(position: int) -> FloatArray:
        if index.speaker[position] == target:
            return nothing_TM
        return teacher.convert_mel(_recording(corpus, teacher, position), name)

    weights = base_fingerprint(teacher.model.requires_grad_(False))
    folder = corpus.prepared.folder / f"converted-{weights}-{teacher.speaker(name)}-{share:g}-v{_CONVERSIONS_VERSION}"
    return open_derived(folder, len(index), converted, np.float16, what="converting recordings to learn from")


def _recording(corpus: ConversionCorpus, teacher: Converter, position: int) -> Recording:
    """The features that the teacher reads: those of the corpus where they are the same."""
    same_content = teacher.inference_metadata["content"] == corpus.content_fingerprint
    if same_content and (corpus.data.prosody or not teacher.extractor.data.prosody):
        return corpus.recording(position)
    return teacher.extractor.recording(corpus.waveform(position))


# ------------------------------------------------------------------------------------ Training samples


@dataclass(frozen=True)
class ConversionItem:
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

    def __init__(self, corpus: ConversionCorpus, split: str, conversions: Conversions | None = None) -> None:
        """`conversions`: what to learn from beside the recordings."""
        data = corpus.data
        positions, training = corpus.prepared.positions(split), split == "train"
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

    def get(self, index: int, rng: np.random.Generator) -> ConversionItem:
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
        conversions = self._conversions
        if conversions is not None and speaker != conversions.speaker and rng.random() < SHARE:
            speaker, mel_TM, register = conversions.speaker, conversions[position], conversions.register
        teacher_TW = extractor.whisper_content(recording, cut) if extractor.teacher else None
        reference_TM = None if self._other_speech is None else self._other_speech.timbre(position, cut, rng)
        prosody_TP = extractor.prosody(recording, register, cut)
        return ConversionItem(content_TF, prosody_TP, mel_TM[cut], speaker, teacher_TW, reference_TM)

    def to_another(self, index: int) -> ConversionItem:
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
        teacher = [item.teacher_TW for item in items if item.teacher_TW is not None]
        reference = [item.reference_TM for item in items if item.reference_TM is not None]
        return {
            **({"teacher": padded(teacher)} if teacher else {}),
            **({"reference": padded(reference)} if reference else {}),
            "features": padded([item.content_TF for item in items]),
            "prosody": padded([item.prosody_TP for item in items]),
            "target": padded([item.mel_TM for item in items]),
            "speaker_id": torch.tensor([item.speaker for item in items]),
            "lengths": lengths,
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Items, and elements of the mel and of the teacher's content."""
        frames = int(batch["lengths"].sum())
        content = {"content elements": frames * batch["teacher"].shape[-1]} if "teacher" in batch else {}
        return {"items": len(batch["target"]), "elements": frames * batch["target"].shape[-1], **content}
