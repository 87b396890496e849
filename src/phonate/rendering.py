"""From mels to waveforms, for every task that predicts mels: by a trained vocoder, or without one by Griffin-Lim.

Shapes: T frames, M mel bands, N = (T - 1) * hop samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from phonate.audio.decoding import FloatArray, rendered_in_pieces
from phonate.config.errors import CheckpointError, InputError, option
from phonate.nn.arrays import ArrayVocoder
from phonate.training.checkpoints.files import BASE_VOCODER, is_checkpoint, plain_facts, read_arrays

if TYPE_CHECKING:
    from torch import nn

    from phonate.audio.mel_filters import MelFacts
    from phonate.audio.processor import AudioProcessor
    from phonate.config.tasks import Start
    from phonate.nn.vocoder import Vocoder
    from phonate.training.checkpoints.loading import TrainedModel

_PIECE_SECONDS = 20.0


class Renderer(Protocol):
    """Renders mels as waveforms."""

    name: str
    """For tables and messages."""

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The networks it computes with, if any."""
        ...

    def __call__(self, mel_TM: FloatArray, f0_T: FloatArray | None = None) -> FloatArray:
        """Mel (T, M) from 0 to 1 -> waveform (N,), at the level of the mel. Long ones are rendered in pieces.

        `f0_T`: pitch (T,) in Hz, 0 where unvoiced; None: it is estimated from the mel.
        """
        ...

    def stream(self, mel_TM: FloatArray, f0_T: FloatArray | None = None) -> Iterator[FloatArray]:
        """The same waveform in pieces (n,), as they are ready."""
        ...


class GriffinLim:
    """Needs no training: phases are estimated by iteration (Griffin and Lim 1984). The quality is low."""

    name = "Griffin-Lim"
    networks: tuple[nn.Module, ...] = ()

    def __init__(self, processor: AudioProcessor) -> None:
        self._processor = processor

    def __call__(self, mel_TM: FloatArray, f0_T: FloatArray | None = None) -> FloatArray:
        """See `Renderer`. `f0_T` is not needed."""
        audio = self._processor.config
        piece = round(_PIECE_SECONDS * audio.frames_per_second)
        return rendered_in_pieces(mel_TM, self._processor.render, audio.hop_length, piece)

    def stream(self, mel_TM: FloatArray, f0_T: FloatArray | None = None) -> Iterator[FloatArray]:
        """See `Renderer`. All of it at once: neighbouring pieces are faded into each other."""
        yield self(mel_TM, f0_T)


_LEAST_FRAMES = 2
"""A waveform goes from the middle of the first frame to that of the last."""


class TrainedVocoder:
    """A run of the task `vocoder`, computed with torch or with NumPy."""

    name = "vocoder"

    def __init__(self, vocoder: Vocoder | ArrayVocoder) -> None:
        self.network = vocoder

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The vocoder, where torch computes it."""
        return () if isinstance(self.network, ArrayVocoder) else (self.network,)

    @classmethod
    def load(cls, source: str | Path, processor: AudioProcessor) -> TrainedVocoder:
        """The vocoder of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Raises CheckpointError where there is none, or it was trained on other features than `processor` makes.
        """
        from phonate.nn.vocoder import Vocoder

        try:
            trained = _open_vocoder(source, _stamp(source))
        except InputError as error:
            raise InputError(f"vocoder {error}; {option('vocoder')} names another, or griffin_lim for none") from error
        if conflict := _conflict(source, trained.inference_metadata, processor.config.facts):
            raise CheckpointError(conflict)
        model = trained.recipe.model
        network = Vocoder.of(processor, model.width, model.layers, model.lookahead, model.postfilter)
        trained.load_into(network, "vocoder")
        return cls(network.eval())

    def __call__(self, mel_TM: FloatArray, f0_T: FloatArray | None = None) -> FloatArray:
        """See `Renderer`."""
        piece = round(_PIECE_SECONDS * self.network.sample_rate / self.network.hop_length)
        return np.concatenate([np.zeros(0, dtype=np.float32), *self.stream(mel_TM, f0_T, piece, piece)])

    def stream(
        self, mel_TM: FloatArray, f0_T: FloatArray | None = None, first: int = 24, piece: int = 256
    ) -> Iterator[FloatArray]:
        """The same waveform in pieces (n,): the first `first` frames, then like ones of about `piece` frames.

        Excitation and context are computed for the whole, so the pieces join without artefacts.
        """
        network, hop, margin, frames = self._network, self.network.hop_length, self.network.context, len(mel_TM)
        if frames < _LEAST_FRAMES:
            return
        if f0_T is None:
            f0_T = network.predicted_f0(mel_TM)
        pulses_N, noise_N = network.source(f0_T)
        start, end = 0, min(first, frames - 1)
        while start < frames - 1:
            left, right = max(0, start - margin), min(frames, end + 1 + margin)
            part, samples = slice(left, right), slice(left * hop, (right - 1) * hop)
            sound_N = network.filtered(mel_TM[part], f0_T[part], pulses_N[samples], noise_N[samples])
            yield sound_N[(start - left) * hop : (end - left) * hop]
            rest = frames - 1 - end
            start, end = end, end + math.ceil(rest / max(1, round(rest / piece)))

    @property
    def _network(self) -> ArrayVocoder:
        """The network, called with arrays."""
        if isinstance(self.network, ArrayVocoder):
            return self.network
        from phonate.nn.vocoder import TensorVocoder

        return TensorVocoder(self.network)


@lru_cache(maxsize=2)
def _open_vocoder(source: str | Path, stamp: tuple[Path, int]) -> TrainedModel[Any]:
    """The vocoder of `source`, which training needs at each validation: read once while its manifest is the same."""
    from phonate.config.resolve import Recipe
    from phonate.training.checkpoints.loading import open_trained

    return open_trained(source, "vocoder", Recipe[Any, Any, Any])


def _stamp(source: str | Path) -> tuple[Path, int]:
    """The checkpoint of `source`, and when it was written."""
    from phonate.training.checkpoints.listing import best_or_latest

    path = best_or_latest(source)
    return path, path.stat().st_mtime_ns


BESIDE = "vocoder"
"""Subfolder of a model's folder that holds the vocoder saved with it."""
GRIFFIN_LIM = "griffin_lim"
"""Instead of a run: no vocoder, even where the recipe names one."""


def saved_beside(model: Path) -> Path | None:
    """The folder of the vocoder saved with the model in the folder `model`, if there is one."""
    return model / BESIDE if is_checkpoint(model / BESIDE) else None


def check_vocoder(source: str | Path | None, audio: MelFacts) -> None:
    """Raise InputError, naming `data.vocoder`, where `source` is no vocoder for mels of `audio`; before hours
    of training, that is."""
    try:
        conflict = vocoder_conflict(source, audio)
    except (InputError, CheckpointError) as error:
        conflict = str(error)
    if conflict:
        raise InputError(f"data.vocoder: {conflict}, or set it to null (Griffin-Lim)")


def vocoder_conflict(source: str | Path | None, audio: MelFacts) -> str | None:
    """Why the vocoder `source` does not fit mels of `audio`; None: it does, or is Griffin-Lim.

    Raises InputError or CheckpointError where there is no vocoder.
    """
    if source is None or source == GRIFFIN_LIM:
        return None
    # the packaged one is known to be a vocoder: to resolve its recipe takes longer than that of a training
    if source == BASE_VOCODER and (known := plain_facts(source)) is not None:
        return _conflict(source, known[1], audio)
    from phonate.config.resolve import Recipe
    from phonate.training.checkpoints.loading import describe_trained

    described = describe_trained(source, "vocoder", Recipe[Any, Any, Any], weights_intact=True)
    return _conflict(source, described.inference_metadata, audio)


def _conflict(source: str | Path, inference_metadata: Mapping[str, Any], audio: MelFacts) -> str | None:
    theirs = inference_metadata["features"]
    if theirs in {audio.fingerprint, audio.scale_fingerprint}:
        return None
    return (
        f"{source}: this vocoder was trained on features {theirs}, the model predicts {audio.fingerprint}; "
        "train one with the model's data.audio"
    )


def start_of_vocoder(vocoder: str | None, audio: MelFacts) -> Start:
    """What training does about the packaged vocoder where `data.audio` is not its own: Griffin-Lim takes its place."""
    from phonate.config.tasks import Start

    if vocoder != BASE_VOCODER or vocoder_conflict(vocoder, audio) is None:
        return Start({}, "")
    reason = (
        f"{BASE_VOCODER} has other features (data.audio), so Griffin-Lim is used; "
        "a vocoder trained on these features sounds better"
    )
    return Start({"data.vocoder": None}, reason, f"data.audio: not that of {BASE_VOCODER}")


def renderer(source: str | Path | None, processor: AudioProcessor) -> Renderer:
    """The trained vocoder of `source`, or Griffin-Lim where that is None or "griffin_lim"."""
    if source is None or source == GRIFFIN_LIM:
        return GriffinLim(processor)
    return TrainedVocoder.load(source, processor)


def array_renderer(source: str | Path | None, audio: MelFacts) -> Renderer | None:
    """As `renderer`, without torch; None where that needs it: for Griffin-Lim, and for vocoders that can't be used."""
    if source is None or source == GRIFFIN_LIM:
        return None
    try:
        path, facts = plain_facts(source) or _recipe_facts(source)
        weights = read_arrays(path, "vocoder")
        if weights is None or _conflict(source, facts, audio):
            return None
        return TrainedVocoder(ArrayVocoder.of(audio, weights, facts["lookahead"], facts["postfilter"]))
    except (InputError, CheckpointError, KeyError):
        return None


def _recipe_facts(source: str | Path) -> tuple[Path, dict[str, Any]]:
    """As `plain_facts`, of a run, or of a checkpoint that does not hold all of them."""
    from phonate.config.resolve import Recipe
    from phonate.training.checkpoints.loading import describe_trained

    trained = describe_trained(source, "vocoder", Recipe[Any, Any, Any], weights_intact=True)
    model = trained.recipe.model
    known = {"lookahead": model.lookahead, "postfilter": model.postfilter}
    return trained.path, {"features": trained.inference_metadata["features"], **known}
