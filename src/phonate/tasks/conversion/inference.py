"""From a trained run to converted speech, of whole recordings and while somebody speaks; and the voices to convert to.

Shapes: B batch, T frames, F content features, P prosody features, M mel bands, N samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias, overload

import numpy as np
import torch
from torch import Tensor, nn

from phonate.audio.containers.kinds import USUAL_SUFFIXES
from phonate.audio.decoding import Audio, AudioT, FloatArray, as_waveform, overlap_add, probe, read_blocks, windows
from phonate.audio.live import streamed
from phonate.audio.pitch import f0_stream
from phonate.audio.processor import PEAK, normalised_peak
from phonate.audio.settings import HIGHEST_F0
from phonate.config.errors import CheckpointError, DataError, InputError, option
from phonate.config.registry import UnknownVoiceError
from phonate.config.tasks import shortened
from phonate.data.batches import padded
from phonate.data.corpora.rows import audio_files, one_line
from phonate.data.progress import Stage, progress_in
from phonate.nn.sequences import frame_mask
from phonate.nn.vocoder import Vocoder, VocoderStream
from phonate.rendering import Renderer, TrainedVocoder, renderer, saved_beside
from phonate.tasks.conversion.features import (
    CorpusStatistics,
    FeatureExtractor,
    Recording,
    Register,
    RunningLevel,
    RunningStatistics,
    RunningTransposition,
    SpeechFrames,
    held,
    speech_frames,
    timbre,
)
from phonate.tasks.conversion.model import Network, build_model
from phonate.tasks.conversion.settings import ConversionData, ConversionRecipe
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Demonstration, Device, Inference

logger = logging.getLogger("phonate")

# ----------------------- Voices: those that a model learnt, and those that recordings give

_MOST_CLIPS = 100
_STRETCH = (0.8, 1.6)


@dataclass(frozen=True)
class Voice:
    """A speaker's register, and the mean and deviation (M,) of the mel over the speech of an utterance."""

    register: Register | None
    mean_M: FloatArray
    deviation_M: FloatArray

    @classmethod
    def of(cls, recordings: Iterable[Recording]) -> Voice:
        """The voice of a speaker, averaged over utterances (at most 100 of them)."""
        registers, spectra = [], []
        for _, recording in zip(range(_MOST_CLIPS), recordings, strict=False):
            registers.append(Register.of(recording.f0_T))
            spectra.append(long_term(recording.mel_TM))
        known = [register for register in registers if register is not None]
        register = None
        if known:
            register = Register(
                float(np.median([r.median for r in known])), float(np.mean([r.deviation for r in known]))
            )
        mean_M, deviation_M = (np.mean(part, axis=0) for part in zip(*spectra, strict=True))
        return cls(register, mean_M, deviation_M)

    def equalised(self, mel_TM: FloatArray, share: float) -> FloatArray:
        """Bring the mean and deviation of each band of a converted mel (T, M) a share of the way to this voice's."""
        return self.equalised_by(mel_TM, *long_term(mel_TM), share)

    def equalised_by(self, mel_TM: FloatArray, mean: FloatArray, deviation: FloatArray, share: float) -> FloatArray:
        """As `equalised`, for a mel whose mean and deviation are these, (M,) or (T, M)."""
        stretch = 1.0 + share * (np.clip(self.deviation_M / np.maximum(deviation, 1e-4), *_STRETCH) - 1.0)
        return np.asarray((mel_TM - mean) * stretch + mean + share * (self.mean_M - mean), dtype=np.float32)

    def running(self) -> RunningStatistics:
        """Mean and deviation of converted speech so far, for `equalised_by`; they start from this voice's own."""
        return RunningStatistics(self.mean_M, self.deviation_M, 60.0, 120.0)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "register": None if self.register is None else [self.register.median, self.register.deviation],
            "mean": [round(float(value), 4) for value in self.mean_M],
            "deviation": [round(float(value), 4) for value in self.deviation_M],
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> Voice:
        """From JSON."""
        register = document["register"]
        return cls(
            None if register is None else Register(*register),
            np.array(document["mean"], dtype=np.float32),
            np.array(document["deviation"], dtype=np.float32),
        )


def long_term(mel_TM: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation (M,) of a mel over its speech frames."""
    speech_TM = mel_TM[speech_frames(mel_TM)]
    return speech_TM.mean(axis=0), speech_TM.std(axis=0)


@dataclass(frozen=True)
class Reference:
    """A voice to convert to: its register and long-term spectrum, and the frames of its recordings."""

    voice: Voice
    frames: SpeechFrames

    @classmethod
    def of(cls, recordings: Sequence[Recording], frames_per_second: float) -> Reference:
        """The voice of `recordings`; `frames_per_second`: of their mels."""
        frames = [SpeechFrames.of(recording, frames_per_second) for recording in recordings]
        return cls(Voice.of(recordings), SpeechFrames.joined(frames))


def reference_files(path: str | Path) -> list[Path]:
    """The recording at `path`, or those in the folder there and below. Raises InputError for a folder without any."""
    if not Path(path).is_dir():
        return [Path(path)]
    if not (files := list(audio_files(Path(path)))):
        raise InputError(f"{path}: holds no recordings ({', '.join(USUAL_SUFFIXES)}, ...)")
    return files


# --------------------------------------- A causal model's conversion of features that arrive in blocks

_SILENT = 1e-6  # rounding may lift the floor, 0, by so much
_LOUDER = 0.1  # the loudest frames over the mean of speech


class MelConversion:
    """Converts the features of one recording. Blocks of any size give the same frames."""

    def __init__(self, model: Network, extractor: FeatureExtractor, voice: Voice, speaker: int) -> None:
        """`voice`: that of the speaker number `speaker`. Raises ValueError if the model is not causal."""
        self._model, self._extractor, self._voice = model, extractor, voice
        self._state: Any = model.initial_state()  # of the model's own kind
        self._device = model.output.weight.device
        self._speaker = torch.tensor([speaker], device=self._device)
        envelope = extractor.envelope
        self._normalisation = envelope.running() if envelope.normalise else None
        self._transposition = RunningTransposition(voice.register, HIGHEST_F0[extractor.data.f0_method])
        self._pitch: float | None = None  # the last one heard
        self._equaliser = voice.running() if extractor.data.equalise else None
        self._level = RunningLevel(float(voice.mean_M.mean()) + _LOUDER)
        bands = envelope.bands
        self._content_TM = np.zeros((0, bands), dtype=np.float32)
        self._prosody_TP = np.zeros((0, extractor.prosody_dim), dtype=np.float32)
        self._heard_TM = np.zeros((0, bands), dtype=np.float32)  # of frames that are not converted yet
        self._frames = 0
        self._ahead = model.lookahead  # first frames of the content, which no output frame reads as its own

    def push(self, mel_TM: FloatArray, f0_T: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Add the next frames of the mel and of the pitch; one may be ahead of the other.

        Returns:
            The frames (n, M) of the converted mel, from 0 to 1, that can be made now, and the pitch (T,) of the frames
            of `f0_T` in the target's register.
        """
        self._add_content(mel_TM)
        pitch_T = self._transposition.push(f0_T)
        self._add_prosody(pitch_T)
        ready = min(len(self._content_TM), len(self._prosody_TP))
        content_TM, self._content_TM = self._content_TM[:ready], self._content_TM[ready:]
        prosody_TP, self._prosody_TP = self._prosody_TP[:ready], self._prosody_TP[ready:]
        return self._finished(self._converted(content_TM, prosody_TP)), pitch_T

    def finish(self) -> FloatArray:
        """The last frames (n, M). As many frames of the mel and of the pitch must have come."""
        rest = len(self._heard_TM)
        # No content comes from behind the end, nor do frames that are seen as one with the last.
        joined = -self._frames % self._model.stride
        content_TM = _followed(self._content_TM, len(self._prosody_TP) + joined - len(self._content_TM))
        prosody_TP = _followed(self._prosody_TP, joined)
        return self._finished(self._converted(content_TM, prosody_TP)[:rest])

    def _add_prosody(self, f0_T: FloatArray) -> None:
        pitch_T = held(f0_T) if self._pitch is None else held(f0_T, self._pitch)
        if len(pitch_T):
            self._pitch = float(pitch_T[-1])
        self._frames += len(f0_T)
        prosody_TP = self._extractor.harmonics.features(np.log(pitch_T), f0_T > 0.0)
        self._prosody_TP = np.concatenate([self._prosody_TP, prosody_TP])

    def _add_content(self, mel_TM: FloatArray) -> None:
        envelope = self._extractor.envelope
        content_TM = envelope.smoothed(mel_TM)
        if self._normalisation is not None:
            content_TM = self._normalisation.push(mel_TM, content_TM)
        skipped = min(self._ahead, len(content_TM))
        self._ahead -= skipped
        self._content_TM = np.concatenate([self._content_TM, content_TM[skipped:]])
        self._heard_TM = np.concatenate([self._heard_TM, mel_TM])

    @torch.inference_mode()
    def _converted(self, content_TM: FloatArray, prosody_TP: FloatArray) -> FloatArray:
        content_1TM, prosody_1TP = (torch.from_numpy(part)[None].to(self._device) for part in (content_TM, prosody_TP))
        out_1TM = self._model.step(
            content_1TM, self._state, self._speaker, prosody_1TP if self._model.prosody_dim else None
        )
        return np.asarray(out_1TM[0].float().cpu().numpy(), dtype=np.float32)

    def _finished(self, mel_TM: FloatArray) -> FloatArray:
        """Converted frames, equalised, and silent where the source was."""
        heard_TM, self._heard_TM = self._heard_TM[: len(mel_TM)], self._heard_TM[len(mel_TM) :]
        if self._equaliser is not None:
            mean_TM, deviation_TM = self._equaliser.push(mel_TM, self._level.push(mel_TM)[1])
            mel_TM = self._voice.equalised_by(mel_TM, mean_TM, deviation_TM, self._extractor.data.equalise)
        return np.clip(np.where(heard_TM.max(axis=1, initial=0.0, keepdims=True) < _SILENT, 0.0, mel_TM), 0.0, 1.0)


def _followed(values_TF: FloatArray, frames: int) -> FloatArray:
    """`values_TF` and so many frames of zeros."""
    return np.pad(values_TF, [(0, frames), (0, 0)])


# ----- Conversion of a voice while it speaks: samples in, samples out, a fixed number of samples later


CAUSAL_VOCODER = (
    "phonate train vocoder data.path=my_recordings training.init_from=base/vocoder model.lookahead=1 "
    "model.postfilter=0 training.max_steps=1500 training.adversarial_start=1 training.adversarial_weight=3 "
    "training.feature_matching_weight=30 training.optimizer.lr=4e-4 training.scheduler.warmup_steps=50 "
    "--output runs/vocoder-live"
)
"""Trains a vocoder for live conversion."""


class LiveConversion:
    """Converts one recording, block by block: features, a causal model and a causal vocoder, each with its state.

    All that was returned, joined, has a sample for each one that was pushed (up to the last whole frame), and is the
    same bit for bit whatever was pushed at once, for the networks always compute with blocks of `block` samples.
    Sample number n is returned by the `push` that brings sample n + `latency`, if not before.
    """

    def __init__(
        self, model: Network, extractor: FeatureExtractor, vocoder: Vocoder, voice: Voice, speaker: int
    ) -> None:
        """`voice`: that of the speaker number `speaker`. Raises ValueError for a network that is not causal."""
        audio = extractor.data.audio
        self._mel = extractor.processor.mel_stream()
        self._f0 = f0_stream(audio.sample_rate, audio.hop_length, extractor.data.f0_method)
        self._conversion = MelConversion(model, extractor, voice, speaker)
        self._vocoder = VocoderStream(vocoder)
        self._device = vocoder.level_K.device
        self._frames = 0
        self.sample_rate = audio.sample_rate
        """Hz, of input and output."""
        self.block = audio.hop_length * model.stride
        """Samples that are best pushed at once: smaller blocks give no sound any sooner."""
        self._held = np.zeros(0, dtype=np.float32)  # of a block that is not full yet
        content = audio.n_fft // 2 + audio.hop_length * (model.lookahead + model.stride - 1 + (vocoder.lookahead or 0))
        source = -(-self._f0.samples_ahead // self.block) * self.block + audio.hop_length * vocoder.source_lookahead
        self.latency = max(content, source) + vocoder.fourier.n_fft // 2
        """Samples after a sample that are needed to convert it, those of its block included."""

    def push(self, samples: FloatArray) -> FloatArray:
        """Add samples (N,), float32 from -1 to 1. Returns the converted samples (n,) that are ready, n may be 0."""
        held = np.concatenate([self._held, np.asarray(samples, dtype=np.float32)])
        full = len(held) // self.block * self.block
        self._held = held[full:]
        parts = [self._convert(held[start : start + self.block]) for start in range(0, full, self.block)]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts])

    def _convert(self, samples: FloatArray) -> FloatArray:
        mel_TM = self._mel.push(samples)
        self._frames += len(mel_TM)
        converted_TM, f0_T = self._conversion.push(mel_TM, self._f0.push(samples))
        return self._sound(converted_TM, f0_T)

    def finish(self) -> FloatArray:
        """The last samples (n,). The stream must not be used again."""
        begun = self._convert(self._held)
        mel_TM = self._mel.finish()
        converted_TM, f0_T = self._conversion.push(mel_TM, self._f0.finish(self._frames + len(mel_TM)))
        parts = [begun, self._sound(np.concatenate([converted_TM, self._conversion.finish()]), f0_T)]
        parts.append(self._levelled(self._vocoder.finish()))
        return np.concatenate(parts)

    def _sound(self, mel_TM: FloatArray, f0_T: FloatArray) -> FloatArray:
        mel_1TM, f0_1T = (torch.from_numpy(part)[None].to(self._device) for part in (mel_TM, f0_T))
        return self._levelled(self._vocoder.push(mel_1TM, f0_1T))

    def _levelled(self, samples_1N: torch.Tensor) -> FloatArray:
        return streamed(samples_1N[0].float().cpu().numpy())


# ------------------------------------------------ From a trained run to converted speech

_PART_SECONDS = 300.0
"""Of a long recording, which are converted by themselves."""
_WINDOW_SECONDS = 10.0
_OVERLAP_SECONDS = 1.0
_BATCH = 8
"""Windows that the model reads at once."""
_LEAST_REFERENCE_SECONDS = 3.0
_MOST_SEMITONES = 24.0

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
        expected: CorpusStatistics | None = None,
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
        expected = CorpusStatistics.read(metadata["expected"]) if recipe.model.causal else None
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

    def live(self, speaker: Target | None = None, semitones: float = 0.0) -> LiveConversion:
        """Conversion of sound while it arrives, to the voice of `speaker`; `semitones`: see `convert`. Of a model
        that was trained with `data.loudness` a warning says that live speech is not brought to it.

        Raises InputError if the model or the vocoder is not causal, or for an unknown speaker.
        """
        if not self.model.causal:
            raise InputError(
                "this model reads a whole recording at once; train one by the recipe conversion-live-whisper "
                "or conversion-live, and give it a causal vocoder"
            )
        number, vocoder = self.speaker(speaker), self._causal_vocoder
        if vocoder is None:
            raise InputError(
                f"live conversion needs a causal vocoder, not {self.render.name} as it is here; train one with "
                f"{CAUSAL_VOCODER}, and name it with {option('vocoder')}"
            )
        voice = self._moved(self.voices[self.speakers[number]], semitones)
        if (loudness := self.extractor.data.audio.loudness) is not None:
            logger.warning(
                "live speech is levelled as it comes, not to data.loudness (%g LUFS): what follows is not known",
                loudness,
            )
        return LiveConversion(self.model, self.extractor, vocoder, voice, number)

    @property
    def _causal_vocoder(self) -> Vocoder | None:
        network = self.render.network if isinstance(self.render, TrainedVocoder) else None
        return network if isinstance(network, Vocoder) and network.lookahead is not None else None

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
        waveforms: list[FloatArray] = []
        for one in recordings if isinstance(recordings, list | tuple) else [recordings]:
            for file in reference_files(one) if isinstance(one, str | Path) else [one]:
                waveforms.append(self._waveform(file, sample_rate))
        seconds = sum(map(len, waveforms)) / self.sample_rate
        if seconds < _LEAST_REFERENCE_SECONDS:
            raise DataError(
                f"the reference is {seconds:.1f} s long, under {_LEAST_REFERENCE_SECONDS:.0f} s; give about a minute "
                "of the voice"
            )
        data = self.extractor.data
        reference = Reference.of([self.extractor.recording(one) for one in waveforms], data.audio.frames_per_second)
        if data.prosody and reference.voice.register is None:
            raise DataError("nobody speaks in the reference; give recordings of speech")
        return reference

    @property
    def _no_reference(self) -> str:
        known = one_line(shortened(self.speakers))
        return (
            f"this model converts to the voices that it learnt ({known}), not to those of other recordings; name one "
            f"with {option('speaker')}, or train a model by the recipe conversion-any"
        )

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
            raise UnknownVoiceError(name, self.speakers)
        return self.speakers.index(name)

    @overload
    def convert(
        self, audio: Audio, speaker: Target | None = None, *, sample_rate: int | None = None, semitones: float = 0.0
    ) -> FloatArray: ...

    @overload
    def convert(
        self,
        audio: list[AudioT] | tuple[AudioT, ...],
        speaker: Target | None = None,
        *,
        sample_rate: int | None = None,
        semitones: float = 0.0,
    ) -> list[FloatArray]: ...

    def convert(
        self,
        audio: Audio | list[AudioT] | tuple[AudioT, ...],
        speaker: Target | None = None,
        *,
        sample_rate: int | None = None,
        semitones: float = 0.0,
    ) -> FloatArray | list[FloatArray]:
        """Speech in the voice of `speaker`: about as many samples (N,) at `self.sample_rate` as went in, peak 0.95.

        With a causal model and a causal vocoder it is what `live` gives, scaled.

        Args:
            audio: The path of a recording of any format, rate and length, or samples (N,); or a list of them, which
                are converted in batches.
            speaker: Whose voice: a name, or what `reference` returned; None: the run's target.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.
            semitones: Added to the pitch, which is in the voice's own register at 0.

        Raises InputError for an unknown speaker, where the voice must be given by recordings and is not, and for
        `semitones` that are more than two octaves or that a model without pitch is asked for; DataError
        for audio that can't be read or is shorter than a frame.
        """
        if isinstance(audio, list | tuple) and self._streams:
            return [self.convert(one, speaker, sample_rate=sample_rate, semitones=semitones) for one in audio]
        if self._streams and not isinstance(audio, list | tuple):
            pieces = list(self.stream(audio, speaker, sample_rate=sample_rate, semitones=semitones))
            return _raised(np.concatenate(pieces), self._sounds(audio, sample_rate))
        if isinstance(audio, list | tuple):
            recordings = [self._recording(one, sample_rate) for one in audio]
            return [self._finished(mel_TM) for mel_TM in self.convert_mels(recordings, speaker, semitones)]
        rendered = list(self.parts(audio, speaker, sample_rate=sample_rate, semitones=semitones))
        return _raised(rendered[0] if len(rendered) == 1 else np.concatenate(rendered), any(map(np.any, rendered)))

    def parts(
        self, audio: Audio, speaker: Target | None = None, *, sample_rate: int | None = None, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """As `convert` for one recording, in parts (N,), for recordings of any length: each about five minutes of it,
        cut where it is quiet, and read by itself. Parts are as loud beside each other as in the recording; those
        without sound are zeros.
        """
        progress, done = progress_in(Stage.CONVERTING, audio), 0
        for part in self._parts(audio, speaker, sample_rate, semitones):
            yield part
            done += len(part)
            progress(done / self.sample_rate)

    def _parts(
        self, audio: Audio, speaker: Target | None, sample_rate: int | None, semitones: float
    ) -> Iterator[FloatArray]:
        if self._streams:
            sounds = self._sounds(audio, sample_rate)
            for piece in self.stream(audio, speaker, sample_rate=sample_rate, semitones=semitones):
                yield piece if sounds else np.zeros_like(piece)
            return
        for waveform in self._cut(audio, sample_rate):
            level = self.extractor.processor.full_scale(partial(iter, [waveform]))
            mel_TM = self.convert_mel(self.extractor.recording(waveform), speaker, semitones)
            rendered = self.render(mel_TM)
            yield level * rendered if mel_TM.any() else np.zeros_like(rendered)

    def _cut(self, audio: Audio, sample_rate: int | None) -> Iterator[FloatArray]:
        """The samples of a recording at `self.sample_rate`, in the parts that are converted by themselves."""
        rate = self.sample_rate
        held, most = np.zeros(0, np.float32), round(_PART_SECONDS * rate)
        for block in self._blocks(audio, sample_rate):
            held = np.concatenate([held, block])
            while len(held) > most + rate:  # what is left is a second or more
                at = _quietest(held[:most], rate)
                yield held[:at]
                held = held[at:]
        yield held

    def _blocks(self, audio: Audio, sample_rate: int | None) -> Iterator[FloatArray]:
        """The samples of a recording at `self.sample_rate`; a long file is not held whole. Raises DataError for less
        than a frame of audio."""
        if not isinstance(audio, str | Path) or sample_rate is not None or probe(audio).duration <= _PART_SECONDS:
            yield self._waveform(audio, sample_rate)
        else:
            yield from read_blocks(audio, sample_rate=self.sample_rate)

    def _sounds(self, audio: Audio, sample_rate: int | None) -> bool:
        """Whether a recording is more than digital silence. It is read up to its first sound."""
        return any(map(np.any, self._blocks(audio, sample_rate)))

    def stream(
        self, audio: Audio, speaker: Target | None = None, *, sample_rate: int | None = None, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """As `convert` for one recording, in pieces (N,) as they are rendered, at a fixed level.

        Except with a causal model and a causal vocoder, its features are computed first: content is normalised over the
        whole recording.
        """
        if self._streams:
            live, size = self.live(speaker, semitones), round(_WINDOW_SECONDS * self.sample_rate)
            for block in self._blocks(audio, sample_rate):
                for start in range(0, len(block), size):
                    yield live.push(block[start : start + size])
            yield live.finish()
            return
        for piece in self.render.stream(self.convert_mel(self._recording(audio, sample_rate), speaker, semitones)):
            yield streamed(piece)

    @property
    def _streams(self) -> bool:
        return self.model.causal and self._causal_vocoder is not None

    def convert_mel(self, recording: Recording, speaker: Target | None = None, semitones: float = 0.0) -> FloatArray:
        """The mel (T, M), from 0 to 1, of a recording in the voice of `speaker`."""
        return self.convert_mels([recording], speaker, semitones)[0]

    @torch.no_grad()
    def convert_mels(
        self, recordings: Sequence[Recording], speaker: Target | None = None, semitones: float = 0.0
    ) -> list[FloatArray]:
        """The mels (T, M), from 0 to 1, of recordings in the voice of `speaker`. Long ones are read in overlapping
        windows, and windows of like length together; by a causal model each is read from its start to its end."""
        number, voice, frames = self._target(speaker)
        voice = self._moved(voice, semitones)
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
        mels_of_windows: dict[tuple[int, int], FloatArray] = {}
        size = _BATCH if len(recordings) > 1 else 1  # rounding depends on the batch: one recording is always the same
        for first in range(0, len(cuts), size):
            chosen = cuts[first : first + size]
            parts = [tuple(values[start:end] for values in inputs[index]) for index, start, end in chosen]
            for (index, start, _), mel_TM in zip(chosen, self._predict(parts, number), strict=True):
                mels_of_windows[index, start] = mel_TM

        def window_of(index: int) -> Callable[[int, int], FloatArray]:
            return lambda start, end: mels_of_windows[index, start]

        mels = [
            overlap_add(len(content_TF), window, overlap, window_of(index))
            for index, (content_TF, *_) in enumerate(inputs)
        ]
        return [self._equalised(mel_TM, of, voice) for mel_TM, of in zip(mels, recordings, strict=True)]

    def _target(self, speaker: Target | None) -> tuple[int | None, Voice, SpeechFrames | None]:
        """The number of a voice that the model learnt, or the frames of the one that is given; and that voice."""
        if isinstance(speaker, Reference) and self.extractor.reference_dim:
            return None, speaker.voice, speaker.frames
        number = self.speaker(speaker)
        return number, self.voices[self.speakers[number]], None

    def _moved(self, voice: Voice, semitones: float) -> Voice:
        """The voice with another register. Raises InputError where that can't be."""
        if semitones == 0.0:
            return voice
        if not abs(semitones) <= _MOST_SEMITONES:
            raise InputError(f"semitones {semitones:g}: give -{_MOST_SEMITONES:g} to {_MOST_SEMITONES:g}")
        if not self.extractor.data.prosody or voice.register is None:
            raise InputError(
                "semitones: this model reads no pitch that could be moved; train one with data.prosody=true"
            )
        median = voice.register.median * 2.0 ** (semitones / 12.0)
        return replace(voice, register=replace(voice.register, median=median))

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


def _quietest(waveform_N: FloatArray, rate: int) -> int:
    """The middle of the quietest fifth of a second in the last quarter."""
    size, first = rate // 5, len(waveform_N) * 3 // 4
    late_N = waveform_N[first : first + (len(waveform_N) - first) // size * size].astype(np.float64)
    return first + int(np.argmin(np.square(late_N).reshape(-1, size).sum(axis=1))) * size + size // 2


def _raised(waveform_N: FloatArray, sounds: bool) -> FloatArray:
    """A conversion at full level; silence where the source does not sound. Of digital silence a vocoder leaves a
    millionth of noise and a causal model a little more, which must not become a voice."""
    return PEAK * normalised_peak(waveform_N) if sounds else np.zeros_like(waveform_N)
