"""Speech in the voice of a recording: a run, a checkpoint, a merged model or one of Higgs Audio v2."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.audio.higgs_codec import CODEC, HiggsCodec
from phonate.audio.whisper import WhisperEncoder
from phonate.compute.device import choose
from phonate.config.errors import CheckpointError, InputError, PhonateError
from phonate.data.corpora.rows import one_line
from phonate.nn.pretrained.adapters import base_fingerprint, copy_tensors, saved_tensors
from phonate.nn.pretrained.loading import DTYPES, with_base
from phonate.nn.pretrained.settings import Dtype
from phonate.tasks.cloning import model as models
from phonate.tasks.cloning.decoding import Decoder, Job, Piece, Sampling, Step, piece_seed, run, sound
from phonate.tasks.cloning.loading import load_base
from phonate.tasks.cloning.network import CloningNetwork, WhisperConditioning, WhisperProjector
from phonate.tasks.cloning.references import ReferenceReader, as_reference, check_text, frame_limit, parts, read_voices
from phonate.tasks.cloning.sequences import CODEBOOKS, CloningTokenizer
from phonate.tasks.cloning.service import CUT_SHORT, NOTHING_SAID, CloningService, Generation, sampling
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.text.arabic import ArabicText, normalise_arabic
from phonate.training.checkpoints.loading import TrainedModel, open_trained
from phonate.training.inference import Demonstration, Device, Inference
from phonate.training.speech_service import Reference

# --------- The model that clones, from wherever it is: a run, a checkpoint, a merged model, or the hub

DESCRIPTION = "cloning.json"
"""In the folder of a merged model, if it was merged by phonate: `codec` (a name on the hub, or a folder, absolute or
relative to that of the model), `system` (message) and `arabic` (what was changed in texts), as in training."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Opened:
    """A model with what belongs to it."""

    model: Any
    """transformers' HiggsAudioV2ForConditionalGeneration, whose linear layers may have adapters."""
    tokenizer: CloningTokenizer
    codec: HiggsCodec
    system: str | None
    """The system message."""
    arabic: ArabicText
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the task saved with the checkpoint."""
    whisper: WhisperConditioning | None = None


def open_model(
    source: str | Path,
    device: torch.device,
    dtype: str | None,
    codec: str | Path | None,
    base: str | Path | None,
) -> Opened:
    """The model of `source`. Arguments and errors are those of `VoiceCloner.load`."""
    if dtype not in (None, "auto", "int8", *DTYPES):
        raise InputError(f"dtype {dtype!r}: choose auto, {', '.join(DTYPES)} or int8")
    if is_model_folder(source) or (not Path(source).exists() and _HUB_NAME.fullmatch(str(source))):
        if base is not None:
            raise InputError(f"--base: {source} is a whole model, not adapters to a base; leave it out")
        return _pretrained(str(source), device, dtype, codec)
    return _trained(open_based(source, base), device, dtype, codec)


def is_model_folder(source: str | Path) -> bool:
    """Whether `source` is a model in files of transformers, not a run or checkpoint."""
    return (Path(source) / "config.json").is_file()


def _pretrained(name: str, device: torch.device, dtype: str | None, codec: str | Path | None) -> Opened:
    # it says at every layer of every frame that inputs are cast
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    about = _description(Path(name))
    kind = "auto" if dtype in (None, "int8") else dtype
    model = load_base(name, cast(Dtype, kind), "int8" if dtype == "int8" else None, device)
    tokenizer = CloningTokenizer.load(name, CODEBOOKS)
    models.check_fit(CloningNetwork(model), tokenizer, 0)
    found = HiggsCodec.load(codec or _codec_of(Path(name), about), device=device)
    return Opened(model, tokenizer, found, about.get("system"), ArabicText(**about.get("arabic", {})), about)


def _codec_of(folder: Path, about: Mapping[str, Any]) -> str:
    """The codec of a merged model: beside it, or by its name."""
    name = str(about.get("codec", CODEC))
    return str(folder / name) if (folder / name).is_dir() else name


def _description(folder: Path) -> dict[str, Any]:
    """What a merged model's folder says of it; nothing for others."""
    file = folder / DESCRIPTION
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise InputError(f"{file}: is no JSON ({error}); merge the model again") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds no object; merge the model again")
    return content


def open_based(source: str | Path, base: str | Path | None) -> TrainedModel[CloningRecipe]:
    """The model of a run or a checkpoint, whose base is at `base`; None: where it was in training.

    Raises CheckpointError as `open_trained`, and InputError where the base is not there.
    """
    trained = open_trained(source, "cloning", CloningRecipe)
    return replace(trained, recipe=with_base(trained.recipe, base, trained.path))


def _trained(
    trained: TrainedModel[CloningRecipe], device: torch.device, dtype: str | None, codec: str | Path | None
) -> Opened:
    settings, metadata = trained.recipe.model, trained.inference_metadata
    if dtype == "int8":
        raise InputError(f"{trained.path}: int8 is for models without adapters; phonate checkpoints merge makes one")
    if dtype in DTYPES and settings.quantization is not None:
        raise InputError(f"{trained.path}: its base is in {settings.quantization}; leave dtype out")
    network = trained_network(trained, device)
    model, conditioning = network.base, None
    if network.whisper_projector is not None:
        encoder = WhisperEncoder(settings.whisper.model, "model.whisper", threads=1)
        conditioning = WhisperConditioning(encoder, network.whisper_projector)
    if dtype in DTYPES:
        model = model.to(DTYPES[dtype])
    tokenizer = CloningTokenizer.load(settings.name, CODEBOOKS)
    if tokenizer.fingerprint != metadata["tokenizer"]:
        raise CheckpointError(f"{trained.path}: belongs to another tokenizer than {settings.name} has now")
    found = HiggsCodec.load(codec or settings.codec, device=device)
    if found.fingerprint != metadata["codec"]:
        raise CheckpointError(f"{trained.path}: was trained on codes of another codec than {found.source}")
    return Opened(model, tokenizer, found, metadata["system"], trained.recipe.data.arabic, metadata, conditioning)


def trained_network(trained: TrainedModel[CloningRecipe], device: torch.device) -> CloningNetwork:
    """The network of a checkpoint on `device`, adapters beside the weights of its base.

    Raises CheckpointError for adapters to other weights than the base has now.
    """
    settings = trained.recipe.model
    network = models.build(settings, device)
    if settings.strategy == "lora" and base_fingerprint(network) != trained.inference_metadata["base"]:
        raise CheckpointError(f"{trained.path}: belongs to other weights than {settings.name} has now")
    copy_tensors(saved_tensors(network, trained_only=settings.strategy == "lora"), trained.weights)
    return network


_log = logging.getLogger(__name__)
# ------------ Speech in the voice of a recording: a trained run, or a model of Higgs Audio v2 as it is

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
