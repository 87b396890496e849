"""Speech in the voice of a recording: a trained run, or a model of Higgs Audio v2 as it is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.audio.higgs_codec import HiggsCodec
from phonate.compute.device import choose
from phonate.config.errors import InputError, PhonateError
from phonate.data.manifests.rows import one_line
from phonate.tasks.cloning.decoding.engine import Generation
from phonate.tasks.cloning.decoding.loop import Decoder, Job, Piece, Step, piece_seed, run
from phonate.tasks.cloning.decoding.sampling import Sampling
from phonate.tasks.cloning.decoding.stream import sound
from phonate.tasks.cloning.network.whisper_projector import WhisperConditioning, WhisperProjector
from phonate.tasks.cloning.sequences.tokens import CloningTokenizer
from phonate.tasks.cloning.speaking.lengths import check_text, frame_limit, parts
from phonate.tasks.cloning.speaking.opening import open_model
from phonate.tasks.cloning.speaking.references import ReferenceReader, as_reference, read_voices
from phonate.tasks.cloning.speaking.service import CUT_SHORT, NOTHING_SAID, CloningService, sampling
from phonate.text.arabic import normalise_arabic
from phonate.text.arabic_settings import ArabicText
from phonate.training.inference import Demonstration, Device, Inference
from phonate.training.speech_service import Reference

_log = logging.getLogger(__name__)
Voice = str | Path | NDArray[Any] | Reference
"""The name of one of the model's `voices`, a recording's file, its samples (N,), or a `Reference`."""

_BATCH = 8
"""Texts that are generated at once."""
_LONGEST = 4096
"""Tokens of a row of the service, prompt included; the model may take more."""


class VoiceCloner(Inference):
    """Speaks texts in the voices of recordings."""

    sample_rate: int

    def __init__(
        self,
        model: nn.Module,
        tokenizer: CloningTokenizer,
        codec: HiggsCodec,
        *,
        system: str | None = None,
        arabic: ArabicText | None = None,
        whisper: WhisperConditioning | None = None,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            model: transformers' HiggsAudioV2ForConditionalGeneration, whose layers may have adapters.
            tokenizer: The model's.
            codec: The one that the model was trained with.
            system: The system message; None: the tokenizer's.
            arabic: What was changed in Arabic texts in training.
            whisper: For a model that was trained with features of Whisper.
            inference_metadata: What the task saved with the checkpoint.
        """
        self.model: Any = model
        self.model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.codec = codec
        config: Any = model.config
        codec.require(int(config.num_codebooks), int(config.audio_stream_bos_id))
        self.system = system
        self.arabic = arabic or ArabicText()
        self.inference_metadata = dict(inference_metadata or {})
        self.sample_rate = codec.sample_rate
        self.voices: dict[str, Reference] = {}
        """References by name."""
        self._projector: WhisperProjector | None = None
        if whisper is not None:
            self._projector = whisper.projector.eval().requires_grad_(False)
        self._read = ReferenceReader(codec, None if whisper is None else whisper.encoder)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: Device | None = None,
        dtype: str | None = None,
        codec: str | Path | None = None,
        base: str | Path | None = None,
        voices: str | Path | None = None,
    ) -> Self:
        """A model that clones voices.

        Args:
            source: A run (its best checkpoint, or else its newest), one of its checkpoints, the folder of a merged
                model, or the name of a model of Higgs Audio v2 on the hub.
            device: Such as "cuda:0"; None: cpu.
            dtype: fp32, bf16 or fp16: what the weights are held in; int8: linear layers in 8 bits (needs bitsandbytes
                and a model without adapters); None: as they were in training, or are in their files.
            codec: A folder with the codec, or its name on the hub; None: the one that the model was trained with.
            base: For a run or a checkpoint: a folder with the model that it was trained on, or its name on the hub;
                None: where it was in training.
            voices: A folder with NAME.wav and NAME.txt for each voice.

        Raises:
            CheckpointError: A checkpoint is missing, damaged or of another task, or `base` is another model.
            InputError: There is no such model, base, codec, device, dtype or voice.
        """
        where = choose(device=device) if isinstance(device, str) else device or torch.device("cpu")
        known = read_voices(voices) if voices is not None else {}
        found = open_model(source, where, dtype, codec, base)
        cloner = cls(
            found.model,
            found.tokenizer,
            found.codec,
            system=found.system,
            arabic=found.arabic,
            whisper=found.whisper,
            inference_metadata=found.metadata,
        )
        cloner.voices |= known
        return cloner

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The language model, then the codec, then the projector of Whisper's features, if there is one."""
        return (self.model, self.codec.model, *([] if self._projector is None else [self._projector]))

    @overload
    def clone(
        self,
        reference: Voice,
        text: str,
        *,
        reference_text: str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        max_seconds: float | None = None,
        sample_rate: int | None = None,
    ) -> FloatArray: ...

    @overload
    def clone(
        self,
        reference: Voice | Sequence[Voice],
        text: list[str] | tuple[str, ...],
        *,
        reference_text: str | Sequence[str | None] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        max_seconds: float | None = None,
        sample_rate: int | None = None,
    ) -> list[FloatArray]: ...

    def clone(
        self,
        reference: Voice | Sequence[Voice],
        text: str | list[str] | tuple[str, ...],
        *,
        reference_text: str | Sequence[str | None] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        max_seconds: float | None = None,
        sample_rate: int | None = None,
    ) -> FloatArray | list[FloatArray]:
        """`text` in the voice of `reference`, as samples (N,) at `sample_rate` of this object.

        Args:
            reference: The voice; or a list of them, one for each text.
            text: What to say, up to 5,000 characters; or a list of texts, eight of which are generated at once. A text
                gives the same speech alone and in a list. Long texts are generated in parts of some sentences.
            reference_text: What is said in `reference`; or a list. None: unknown. Its turn is then left out of the
                prompt, which the model was not trained with: the voice may be less alike.
            temperature: 0 takes the likeliest codes, 1 samples from the model's distribution. None: 0.3.
            top_k: Draw from so many likeliest codes of a codebook; 0: all. None: 50.
            top_p: Draw from the likeliest codes that reach this probability together. None: 0.95.
            seed: The same seed gives the same speech.
            max_seconds: Speech may last so long, and is generated in one part. None: 2 to 15 seconds for each part, as
                130 words per minute and a fifth more demand. Where the model does not end in time, a warning is logged.
            sample_rate: Hz, of a `reference` that is an array; None: the codec's.

        Raises:
            InputError: A text is empty or too long, a recording can't be used, or a number is out of range.
            PhonateError: The model said nothing.
        """
        texts = [text] if isinstance(text, str) else list(text)
        given = [self._reference(*pair, sample_rate) for pair in _pairs(reference, reference_text, len(texts))]
        pieces = [self.pieces(one, said, max_seconds) for one, said in zip(given, texts, strict=True)]
        codes = self.generate(pieces, sampling(temperature, top_k, top_p), seed)
        if not all(map(len, codes)):
            raise PhonateError(NOTHING_SAID)
        waveforms = [self.codec.decode(one) for one in codes]
        return waveforms[0] if isinstance(text, str) else waveforms

    def stream(
        self,
        reference: Voice,
        text: str,
        *,
        reference_text: str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        max_seconds: float | None = None,
        sample_rate: int | None = None,
    ) -> Iterator[FloatArray]:
        """What `clone` gives for one text, in chunks (n,) as they are made.

        Raises InputError as `clone`, before the first chunk.
        """
        given = self._reference(reference, reference_text, sample_rate)
        jobs = _jobs([self.pieces(given, text, max_seconds)], sampling(temperature, top_k, top_p), seed)
        decoder = self._decoder(jobs, 1)
        return self._sound(run(decoder, jobs))

    def generate(self, pieces: Sequence[Sequence[Piece]], sampling: Sampling, seed: int) -> list[NDArray[np.int16]]:
        """The codes (T, K) of texts, each of several pieces."""
        jobs = _jobs(pieces, sampling, seed)
        made: dict[tuple[int, int], list[NDArray[np.int16]]] = {job.owner: [] for job in jobs}
        cut_short = set()
        for step in run(self._decoder(jobs, _BATCH), jobs):
            if step.codes is not None:
                made[step.owner].append(step.codes)
            if step.cut_short:
                cut_short.add(step.owner[0])
        if cut_short:
            _log.warning("%s (%d of %d texts)", CUT_SHORT, len(cut_short), len(pieces))
        frames: list[list[NDArray[np.int16]]] = [[] for _ in pieces]
        for (text, _), found in sorted(made.items()):
            frames[text] += found
        return [np.array(one, dtype=np.int16).reshape(-1, self.codec.codebooks) for one in frames]

    def pieces(self, reference: Reference, text: str, max_seconds: float | None = None) -> list[Piece]:
        """What is to be generated for `text`: prompts with the most frames that each may take. Raises InputError."""
        limits = self._limits(text, max_seconds)
        heard = self._read(reference)
        spoken = None if reference.text is None else normalise_arabic(reference.text, self.arabic)
        return [
            Piece(self.tokenizer.prompt(spoken, heard.codes, part, self.system, heard.features), limit)
            for part, limit in limits
        ]

    def longest(self, text: str, max_seconds: float | None = None) -> float:
        """How many seconds `text` may last at most. Raises InputError for a text that can't be said."""
        return sum(limit for _, limit in self._limits(text, max_seconds)) / self.codec.frame_rate

    def _limits(self, text: str, max_seconds: float | None) -> list[tuple[str, int]]:
        """The parts of a text with the most frames that each may take."""
        check_text(text)
        text, rate = normalise_arabic(text, self.arabic), self.codec.frame_rate
        if max_seconds is None:
            return [(part, frame_limit(part, rate)) for part in parts(text, rate)]
        if not 0.0 < max_seconds * rate <= _LONGEST:
            raise InputError(f"max seconds {max_seconds:g}: must be above 0 and at most {_LONGEST / rate:g}")
        return [(text, max(1, round(max_seconds * rate)))]

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`text` in the voice of the recording."""
        if recording is None or not text:
            return None
        summary = f'In this voice it says "{one_line(text)}"'
        command = 'phonate clone {run} --reference REF.wav --text "..." -o out.wav'
        return Demonstration(summary, command, self.clone(recording, text))

    def speech_service(self, max_batch: int = 8) -> CloningService:
        """The model as a server uses it, speaking up to `max_batch` texts at once, each of up to 4096 tokens."""
        if max_batch < 1:
            raise InputError(f"max batch {max_batch}: must be at least 1")
        length = min(_LONGEST, int(self.model.config.max_position_embeddings))
        decoder = Decoder[Generation](self.model, max_batch, length, self._projector)
        return CloningService(decoder, self.codec, self.voices, self.pieces)

    def _decoder(self, jobs: Sequence[Job[Any]], most: int) -> Decoder[Any]:
        """A decoder with room for `jobs`, up to `most` at once. Raises InputError for one that the model can't take."""
        longest = max(len(job.piece.prompt.input_ids) + job.piece.limit for job in jobs) + self.codec.codebooks
        decoder: Decoder[Any] = Decoder(
            self.model,
            min(most, len(jobs)),
            min(longest, int(self.model.config.max_position_embeddings)),
            self._projector,
        )
        for job in jobs:
            decoder.check(job)
        return decoder

    def _sound(self, steps: Iterable[Step[Any]]) -> Iterator[FloatArray]:
        """Chunks of the frames that `steps` make."""
        cut_short, empty = False, True

        def frames() -> Iterator[NDArray[np.int16]]:
            nonlocal cut_short
            for step in steps:
                cut_short |= step.cut_short
                if step.codes is not None:
                    yield step.codes

        for chunk in sound(frames(), self.codec.stream()):
            empty = False
            yield chunk
        if empty:
            raise PhonateError(NOTHING_SAID)
        if cut_short:
            _log.warning(CUT_SHORT)

    def _reference(self, voice: Voice, text: str | None, sample_rate: int | None) -> Reference:
        if isinstance(voice, str) and voice in self.voices:
            return as_reference(self.voices[voice], text, None, self.sample_rate)
        reference = as_reference(voice, text, sample_rate, self.sample_rate)
        if reference.text is None:
            _log.info("the reference comes without its text; with it the voice may sound more like the reference")
        return reference


def _jobs(pieces: Sequence[Sequence[Piece]], sampling: Sampling, seed: int) -> list[Job[tuple[int, int]]]:
    """Owners are the numbers of the text and of its piece."""
    return [
        Job(piece, sampling, piece_seed(seed, number), (text, number))
        for text, several in enumerate(pieces)
        for number, piece in enumerate(several)
    ]


def _pairs(
    reference: Voice | Sequence[Voice], spoken: str | Sequence[str | None] | None, texts: int
) -> list[tuple[Voice, str | None]]:
    """The reference and what is said in it for each text. Raises InputError for lists of other lengths."""
    references: list[Any] = list(reference) if isinstance(reference, list | tuple) else [reference] * texts
    spoken_texts = [spoken] * texts if spoken is None or isinstance(spoken, str) else list(spoken)
    for name, found in (("references", references), ("texts of references", spoken_texts)):
        if len(found) != texts:
            raise InputError(f"{len(found)} {name} for {texts} texts; give one, or one for each text")
    return list(zip(references, spoken_texts, strict=True))


class HiggsAudioInference:
    """Voice cloning with a merged model or a run, by the names that fine-tuning scripts for Higgs Audio use."""

    def __init__(
        self,
        model_path: str | Path,
        device: Device = "cuda",
        torch_dtype: str | torch.dtype = "bfloat16",
        base_model: str | Path | None = None,
    ) -> None:
        """`base_model`: for a run whose base was moved, where it is now.

        Raises InputError and CheckpointError as `VoiceCloner.load`.
        """
        name = str(torch_dtype).removeprefix("torch.")
        self.cloner = VoiceCloner.load(model_path, device=device, dtype=_DTYPE_NAMES.get(name, name), base=base_model)
        self.sample_rate = self.cloner.sample_rate
        """Hz."""

    def generate_speech(
        self,
        reference_audio: str | Path | NDArray[Any] | BinaryIO | None = None,
        target_text: str = "",
        speaker_name: str | None = None,
        reference_text: str | None = None,
    ) -> FloatArray:
        """`target_text` in the voice of a recording, as samples (N,) at `sample_rate`.

        Args:
            reference_audio: A file, an open one, or samples at `sample_rate`; None: the voice `speaker_name`.
            target_text: What to say.
            speaker_name: The recording is kept under this name, so that later calls can leave it out.
            reference_text: What is said in the recording, if it is known.
        """
        if reference_audio is None:
            if speaker_name is None or speaker_name not in self.cloner.voices:
                raise InputError(f"speaker {speaker_name!r} has no recording yet; give reference_audio")
            return self.cloner.clone(self.cloner.voices[speaker_name], target_text, reference_text=reference_text)
        reference = as_reference(reference_audio, reference_text, None, self.sample_rate)
        if speaker_name is not None:
            self.cloner.voices[speaker_name] = reference
        return self.cloner.clone(reference, target_text)


_DTYPE_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
