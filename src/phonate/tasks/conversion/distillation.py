"""Knowledge distillation (Hinton et al. 2015): a model learns to convert from the conversions of another one.

From reconstruction alone a model never sees a stranger's content beside the target's mel. A causal model, whose content
hides the voice less well than that of a whole recording, learns to ignore more of it from these pairs.

Shapes: T frames, M mel bands.
"""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import CheckpointError, InputError
from phonate.config.registry import nearest
from phonate.data.store.derived import DerivedFeatures, open_derived
from phonate.nn.pretrained.weights import base_fingerprint
from phonate.tasks.conversion.corpus import Corpus
from phonate.tasks.conversion.features.extractor import Recording
from phonate.tasks.conversion.features.prosody import Register
from phonate.tasks.conversion.inference import Converter

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
