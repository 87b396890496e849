"""From a trained run to converted speech. Shapes: B batch, T frames, F features, M mel bands, N samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, overload

import numpy as np
import torch
from torch import Tensor, nn

from phonate.audio.decoding import Audio, AudioT, FloatArray, as_waveform, overlap_add, windows
from phonate.audio.live import streamed
from phonate.audio.processor import PEAK, normalised_peak
from phonate.config.errors import CheckpointError, DataError, InputError
from phonate.config.registry import nearest
from phonate.config.tasks import shortened
from phonate.data.batches.samples import padded
from phonate.data.manifests.rows import one_line
from phonate.nn.masks import frame_mask
from phonate.nn.vocoder.generator import Vocoder
from phonate.rendering import Renderer, TrainedVocoder, renderer, saved_beside
from phonate.tasks.conversion.data import Reference, Voice, reference_files
from phonate.tasks.conversion.features import FeatureExtractor, Recording, SpeechFrames, timbre
from phonate.tasks.conversion.live import LiveConversion, MelConversion
from phonate.tasks.conversion.model import Network, build_model
from phonate.tasks.conversion.running import Expected
from phonate.tasks.conversion.settings import ConversionData, ConversionRecipe
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Demonstration, Device, Inference

_WINDOW_SECONDS = 10.0
_OVERLAP_SECONDS = 1.0
_BATCH = 8
"""Windows that the model reads at once."""
_LEAST_REFERENCE_SECONDS = 3.0
_SILENT = 1e-6  # rounding may lift the floor, 0, by so much


Target: TypeAlias = str | Reference
"""The name of one of the model's voices, or what `Converter.reference` makes of recordings."""


class Converter(Inference):
    """Converts speech to another voice: one that the model learnt, or, by `reference`, anybody's."""

    sample_rate: int

    def __init__(
        self,
        model: Network,
        data: ConversionData,
        voices: dict[str, Voice],
        target: str | None,
        inference_metadata: Mapping[str, Any] | None = None,
        vocoder: str | Path | None = None,
        expected: Expected | None = None,
    ) -> None:
        """`voices`: the speakers of the embedding, in its order; `target`: the default speaker (none where recordings
        give the voice); `inference_metadata`: what the task saved with the checkpoint; `vocoder`: a run to
        use instead of `data.vocoder`; `expected`: what the features of a causal model were normalised from."""
        self.model = model.eval()
        self.voices = voices
        self.speakers = list(voices)
        """Names of the voices."""
        self.target = target
        """The speaker that is converted to when none is named; None where voices are given by recordings."""
        self.inference_metadata = dict(inference_metadata or {})
        self.extractor = FeatureExtractor(data, model.causal)
        self.extractor.envelope.expected = expected
        self.sample_rate = data.audio.sample_rate
        self.render: Renderer = renderer(vocoder or data.vocoder, self.extractor.processor)
        """Mel spectrograms to waveforms."""

    @classmethod
    def load(cls, source: str | Path, vocoder: str | Path | None = None, *, device: Device | None = None) -> Self:
        """The converter of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Args:
            source: A run's folder or a checkpoint's.
            vocoder: A run of the task vocoder, or griffin_lim; None: the one saved beside the model, or the recipe's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
        """
        trained = open_trained(source, "conversion", ConversionRecipe)
        recipe, metadata = trained.recipe, trained.inference_metadata
        extractor = FeatureExtractor(recipe.data, recipe.model.causal)
        trained.require_features(extractor.processor.fingerprint)
        reads_whisper = recipe.data.content == "whisper" and not extractor.teacher
        if reads_whisper and metadata["content"] != extractor.whisper.fingerprint:
            raise CheckpointError(
                f"{trained.path}: was trained on another Whisper model than the {recipe.data.whisper_model} here"
            )
        model = build_model(
            recipe.model,
            n_speakers=len(metadata["voices"]),
            input_dim=metadata["content_dim"],
            output_dim=recipe.data.audio.n_mels,
            prosody_dim=extractor.prosody_dim,
            teacher_dim=metadata.get("teacher_dim"),
            reference_dim=extractor.reference_dim,
        )
        trained.load_into(model, None if recipe.training.adversarial_start is None else "network")
        voices = {name: Voice.read(document) for name, document in metadata["voices"].items()}
        vocoder = vocoder or saved_beside(trained.path)
        expected = Expected.read(metadata["expected"]) if recipe.model.causal else None
        return cls(model, recipe.data, voices, metadata["target"], metadata, vocoder, expected).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The model, then the vocoder's network."""
        return (self.model, *self.render.networks)

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`recording`, converted."""
        if recording is None or self.target is None:
            return None
        summary = f"{one_line(recording.name)} in the voice of {one_line(self.target)}"
        return Demonstration(summary, "phonate convert {run} in.wav -o out.wav", self.convert(recording))

    def live(self, speaker: Target | None = None) -> LiveConversion:
        """Conversion of sound while it arrives, to the voice of `speaker`.

        Raises InputError if the model or the vocoder is not causal, or for an unknown speaker.
        """
        if not self.model.causal:
            raise InputError("this model reads a whole recording at once; train one by the recipe conversion-live")
        number, vocoder = self.speaker(speaker), self._causal_vocoder
        if vocoder is None:
            raise InputError(
                f"live conversion needs a causal vocoder, not {self.render.name} as it is here; train one with phonate "
                "train vocoder data.path=RECORDINGS training.init_from=base/vocoder model.lookahead=1 "
                "model.postfilter=0 training.adversarial_start=1 training.max_steps=1500, and name it by --vocoder"
            )
        return LiveConversion(self.model, self.extractor, vocoder, self.voices[self.speakers[number]], number)

    @property
    def _causal_vocoder(self) -> Vocoder | None:
        found = self.render.network if isinstance(self.render, TrainedVocoder) else None
        return None if found is None or found.lookahead is None else found

    def reference(
        self, recordings: Audio | list[AudioT] | tuple[AudioT, ...], *, sample_rate: int | None = None
    ) -> Reference:
        """A voice for `convert`, given by about a minute of recordings of it.

        Args:
            recordings: The path of a recording, of a folder of recordings, or samples (N,); or a list of them.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.

        Raises InputError if the model has learnt its voices, or for a path that is not there; DataError for recordings
        that can't be read, are under 3 seconds together, or in which nobody speaks.
        """
        if not self.extractor.reference_dim:
            raise InputError(self._no_reference)
        waveforms = self._reference_waveforms(recordings, sample_rate)
        seconds = sum(map(len, waveforms)) / self.sample_rate
        if seconds < _LEAST_REFERENCE_SECONDS:
            raise DataError(
                f"the reference is {seconds:.1f} s long, under {_LEAST_REFERENCE_SECONDS:.0f} s; give about a minute "
                "of the voice"
            )
        data = self.extractor.data
        found = Reference.of([self.extractor.recording(one) for one in waveforms], data.audio.frames_per_second)
        if data.prosody and found.voice.register is None:
            raise DataError("nobody speaks in the reference; give recordings of speech")
        return found

    @property
    def _no_reference(self) -> str:
        known = one_line(shortened(self.speakers))
        return (
            f"this model converts to the voices that it learnt ({known}), not to those of other recordings; name one "
            "by --speaker, or train a model by the recipe conversion-any"
        )

    def _reference_waveforms(
        self, recordings: Audio | list[AudioT] | tuple[AudioT, ...], sample_rate: int | None
    ) -> list[FloatArray]:
        waveforms: list[FloatArray] = []
        for one in recordings if isinstance(recordings, list | tuple) else [recordings]:
            for file in reference_files(one) if isinstance(one, str | Path) else [one]:
                waveforms.append(self._waveform(file, sample_rate))
        return waveforms

    def speaker(self, name: Target | None) -> int:
        """Number of a speaker. Raises InputError with the nearest name, or where the voice is given by recordings."""
        if self.extractor.reference_dim:
            raise InputError(
                "this model needs recordings of the voice to convert to: name them by --reference, in Python "
                "convert(audio, converter.reference(recordings))"
            )
        if isinstance(name, Reference):
            raise InputError(self._no_reference)
        name = (self.target or "") if name is None else name
        if name not in self.speakers:
            raise InputError(f"speaker {name!r} is not in this model; {nearest(name, self.speakers)}")
        return self.speakers.index(name)

    @overload
    def convert(self, audio: Audio, speaker: Target | None = None, *, sample_rate: int | None = None) -> FloatArray: ...

    @overload
    def convert(
        self, audio: list[AudioT] | tuple[AudioT, ...], speaker: Target | None = None, *, sample_rate: int | None = None
    ) -> list[FloatArray]: ...

    def convert(
        self,
        audio: Audio | list[AudioT] | tuple[AudioT, ...],
        speaker: Target | None = None,
        *,
        sample_rate: int | None = None,
    ) -> FloatArray | list[FloatArray]:
        """Speech in the voice of `speaker`: about as many samples (N,) at `self.sample_rate` as went in, peak 0.95.

        With a causal model and a causal vocoder it is what `live` gives, scaled.

        Args:
            audio: The path of a recording of any format, rate and length, or samples (N,); or a list of them, which
                are converted in batches.
            speaker: Whose voice: a name, or what `reference` returned; None: the run's target.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.

        Raises InputError for an unknown speaker, or where the voice must be given by recordings and is not; DataError
        for audio that can't be read or is shorter than a frame.
        """
        if isinstance(audio, list | tuple) and self._streams:
            return [self.convert(one, speaker, sample_rate=sample_rate) for one in audio]
        if self._streams and not isinstance(audio, list | tuple):
            source = self._waveform(audio, sample_rate)
            return _raised(np.concatenate(list(self.stream(source, speaker))), bool(source.any()))
        if isinstance(audio, list | tuple):
            recordings = [self._recording(one, sample_rate) for one in audio]
            return [self._finished(mel_TM) for mel_TM in self.convert_mels(recordings, speaker)]
        return self._finished(self.convert_mel(self._recording(audio, sample_rate), speaker))

    def stream(
        self, audio: Audio, speaker: Target | None = None, *, sample_rate: int | None = None
    ) -> Iterator[FloatArray]:
        """As `convert` for one recording, in pieces (N,) as they are rendered, at a fixed level.

        Except with a causal model and a causal vocoder, its features are computed first: content is normalised over the
        whole recording.
        """
        if self._streams:
            yield from self._live(self._waveform(audio, sample_rate), speaker)
            return
        for piece in self.render.stream(self.convert_mel(self._recording(audio, sample_rate), speaker)):
            yield streamed(piece)

    @property
    def _streams(self) -> bool:
        return self.model.causal and self._causal_vocoder is not None

    def _live(self, waveform: FloatArray, speaker: Target | None) -> Iterator[FloatArray]:
        live, size = self.live(speaker), round(_WINDOW_SECONDS * self.sample_rate)
        for start in range(0, len(waveform), size):
            yield live.push(waveform[start : start + size])
        yield live.finish()

    def convert_mel(self, recording: Recording, speaker: Target | None = None) -> FloatArray:
        """The mel (T, M), from 0 to 1, of a recording in the voice of `speaker`."""
        return self.convert_mels([recording], speaker)[0]

    @torch.no_grad()
    def convert_mels(self, recordings: Sequence[Recording], speaker: Target | None = None) -> list[FloatArray]:
        """The mels (T, M), from 0 to 1, of recordings in the voice of `speaker`. Long ones are read in overlapping
        windows, and windows of like length together; by a causal model each is read from its start to its end."""
        number, voice, frames = self._wanted(speaker)
        if number is not None and self.model.causal:
            return [self._convert_in_order(recording, voice, number) for recording in recordings]
        inputs = [self._inputs(recording, voice, frames) for recording in recordings]
        window, overlap = self._window()
        cuts = [
            (index, start, end)
            for index, (content_TF, *_) in enumerate(inputs)
            for start, end in windows(len(content_TF), window, overlap)
        ]
        cuts.sort(key=lambda cut: cut[2] - cut[1])
        made: dict[tuple[int, int], FloatArray] = {}
        size = _BATCH if len(recordings) > 1 else 1  # rounding depends on the batch: one recording is always the same
        for first in range(0, len(cuts), size):
            chosen = cuts[first : first + size]
            parts = [tuple(values[start:end] for values in inputs[index]) for index, start, end in chosen]
            for (index, start, _), mel_TM in zip(chosen, self._predict(parts, number), strict=True):
                made[index, start] = mel_TM

        def window_of(index: int) -> Callable[[int, int], FloatArray]:
            return lambda start, end: made[index, start]

        mels = [
            overlap_add(len(content_TF), window, overlap, window_of(index))
            for index, (content_TF, *_) in enumerate(inputs)
        ]
        return [self._equalised(mel_TM, of, voice) for mel_TM, of in zip(mels, recordings, strict=True)]

    def _wanted(self, speaker: Target | None) -> tuple[int | None, Voice, SpeechFrames | None]:
        """The number of a voice that the model learnt, or the frames of the one that is given; and that voice."""
        if isinstance(speaker, Reference) and self.extractor.reference_dim:
            return None, speaker.voice, speaker.frames
        number = self.speaker(speaker)
        return number, self.voices[self.speakers[number]], None

    def _inputs(self, recording: Recording, voice: Voice, frames: SpeechFrames | None) -> tuple[FloatArray, ...]:
        """Content (T, F), prosody (T, P) and, where the voice is given by recordings, their spectra (T, M)."""
        content_TF = np.ascontiguousarray(self.extractor.content(recording))
        prosody_TP = self.extractor.prosody(recording, voice.register)
        if frames is None:
            return content_TF, prosody_TP
        rate = self.extractor.data.audio.frames_per_second
        return content_TF, prosody_TP, timbre(recording, frames, slice(None), rate)

    def _convert_in_order(self, recording: Recording, voice: Voice, speaker: int) -> FloatArray:
        conversion = MelConversion(self.model, self.extractor, voice, speaker)
        first_TM, _ = conversion.push(recording.mel_TM, recording.f0_T)
        return np.concatenate([first_TM, conversion.finish()])

    def _predict(self, parts: Sequence[tuple[FloatArray, ...]], speaker: int | None) -> list[FloatArray]:
        """The mel (T, M) of each of these `_inputs`, in one forward pass."""
        device = self.device
        content_BTF, prosody_BTP, *rest = (padded(values).to(device) for values in zip(*parts, strict=True))
        lengths = [len(content_TF) for content_TF, *_ in parts]
        mask_BT: Tensor | None = None
        if min(lengths) < max(lengths):
            mask_BT = frame_mask(torch.tensor(lengths, device=device), max(lengths))
        out_BTM: Tensor = self.model(
            content_BTF,
            speaker_id=None if speaker is None else torch.full((len(parts),), speaker, device=device),
            mask=mask_BT,
            prosody=prosody_BTP if self.model.prosody_dim else None,
            **({"reference": rest[0]} if rest else {}),
        )
        return [mel_TM[:length] for mel_TM, length in zip(out_BTM.float().cpu().numpy(), lengths, strict=True)]

    def _equalised(self, mel_TM: FloatArray, recording: Recording, voice: Voice) -> FloatArray:
        if share := self.extractor.data.equalise:
            mel_TM = voice.equalised(mel_TM, share)
        # The model was never shown digital silence, and normalisation makes a voice of nothing.
        mel_TM[recording.mel_TM.max(axis=1) < _SILENT] = 0.0
        return np.clip(mel_TM, 0.0, 1.0)

    def _recording(self, audio: Audio, sample_rate: int | None) -> Recording:
        """Clean features. Raises DataError for less than a frame of audio."""
        return self.extractor.recording(self._waveform(audio, sample_rate))

    def _waveform(self, audio: Audio, sample_rate: int | None) -> FloatArray:
        """Samples (N,). Raises DataError for less than a frame of audio."""
        waveform, hop = as_waveform(audio, self.sample_rate, sample_rate), self.extractor.data.audio.hop_length
        if len(waveform) < hop:
            raise DataError(
                f"{audio if isinstance(audio, str | Path) else 'audio'}: {1000 * len(waveform) / self.sample_rate:.1f} "
                f"ms long, under the {hop} samples of one frame (at {self.sample_rate} Hz); give a longer recording"
            )
        return waveform

    def _finished(self, mel_TM: FloatArray) -> FloatArray:
        return _raised(self.render(mel_TM), bool(mel_TM.any()))

    def _window(self) -> tuple[int, int]:
        """Frames that the model reads at once, and how many neighbouring windows share.

        Absolute positions are only trained as far as crops are long.
        """
        data = self.extractor.data
        if self.model.positions is not None:
            return data.crop_frames, data.crop_frames // 4
        rate = data.audio.frames_per_second
        return round(_WINDOW_SECONDS * rate), round(_OVERLAP_SECONDS * rate)


def _raised(waveform_N: FloatArray, sounds: bool) -> FloatArray:
    """A conversion at full level; silence where the source does not sound. Of digital silence a vocoder leaves a
    millionth of noise and a causal model a little more, which must not become a voice."""
    return PEAK * normalised_peak(waveform_N) if sounds else np.zeros_like(waveform_N)
