"""From a trained run to waveforms. Shapes: T frames, M mel bands, N samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

from torch import nn

from phonate.audio.decoding import Audio, AudioT, FloatArray, as_waveform
from phonate.audio.processor import PEAK, AudioProcessor, normalised_peak
from phonate.config.errors import InputError
from phonate.nn.vocoder import Vocoder
from phonate.rendering import TrainedVocoder
from phonate.tasks.vocoder.settings import VocoderRecipe
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Device, Inference


class NeuralVocoder(Inference):
    """Renders mel spectrograms as waveforms."""

    sample_rate: int

    def __init__(
        self, vocoder: Vocoder, processor: AudioProcessor, inference_metadata: Mapping[str, Any] | None = None
    ) -> None:
        """`processor`: computes the mels that the vocoder was trained on; `inference_metadata`: what the task saved
        with the checkpoint."""
        self.processor = processor
        self.sample_rate = processor.config.sample_rate
        self.inference_metadata = dict(inference_metadata or {})
        self._renderer = TrainedVocoder(vocoder)

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The vocoder of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Args:
            source: A run's folder or a checkpoint's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
        """
        trained = open_trained(source, "vocoder", VocoderRecipe)
        processor = AudioProcessor(trained.recipe.data.audio)
        trained.require_features(processor.fingerprint)
        model = trained.recipe.model
        network = Vocoder.of(processor, model.width, model.layers, model.lookahead, model.postfilter)
        trained.load_into(network, "vocoder")
        return cls(network, processor, trained.inference_metadata).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The vocoder's network."""
        return self._renderer.networks

    def mel(self, audio: Audio, *, sample_rate: int | None = None) -> FloatArray:
        """The mel (T, M), from 0 to 1, of a recording as the vocoder was trained on it.

        `sample_rate`: Hz of an array; None: it is at `self.sample_rate`.
        """
        return self.processor.mel(as_waveform(audio, self.sample_rate, sample_rate))

    @overload
    def render(self, mel: FloatArray, f0: FloatArray | None = None) -> FloatArray: ...

    @overload
    def render(self, mel: list[FloatArray] | tuple[FloatArray, ...]) -> list[FloatArray]: ...

    def render(
        self, mel: FloatArray | list[FloatArray] | tuple[FloatArray, ...], f0: FloatArray | None = None
    ) -> FloatArray | list[FloatArray]:
        """The waveform (N,), N = (T - 1) * hop, of a mel (T, M) from 0 to 1, at the level of the mel; or those of a
        list of mels.

        `f0`: pitch (T,) in Hz, 0 where unvoiced; None: it is estimated from the mel.

        Raises InputError for a pitch beside a list of mels.
        """
        if isinstance(mel, list | tuple):
            if f0 is not None:
                raise InputError("f0 is the pitch of one mel; render mels with a given pitch one by one")
            return [self._renderer(one) for one in mel]
        return self._renderer(mel, f0)

    def stream(self, mel: FloatArray, f0: FloatArray | None = None) -> Iterator[FloatArray]:
        """As `render` for one mel, in pieces (n,) as they are ready."""
        return self._renderer.stream(mel, f0)

    @overload
    def resynthesise(self, audio: Audio, *, sample_rate: int | None = None) -> FloatArray: ...

    @overload
    def resynthesise(
        self, audio: list[AudioT] | tuple[AudioT, ...], *, sample_rate: int | None = None
    ) -> list[FloatArray]: ...

    def resynthesise(
        self, audio: Audio | list[AudioT] | tuple[AudioT, ...], *, sample_rate: int | None = None
    ) -> FloatArray | list[FloatArray]:
        """A recording analysed and synthesised again (N,), peak 0.95: what the vocoder loses can be heard.

        `audio`: the path of a recording, or samples (N,), or a list of them; `sample_rate`: see `mel`.
        """
        if isinstance(audio, list | tuple):
            return [self.resynthesise(one, sample_rate=sample_rate) for one in audio]
        return PEAK * normalised_peak(self.render(self.mel(audio, sample_rate=sample_rate)))
