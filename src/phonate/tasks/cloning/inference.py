"""Speech in the voice of a recording: a run, a checkpoint, a merged model or a released one, for one caller or many."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.audio.containers.kinds import AUDIO_SUFFIXES
from phonate.audio.decoding import FloatArray, as_waveform, read_audio
from phonate.audio.higgs_codec import CODEC, HiggsCodec
from phonate.audio.whisper import WhisperEncoder
from phonate.compute.device import compile_mode
from phonate.compute.resources import CompileModel
from phonate.compute.system import temporary_file
from phonate.config.errors import CheckpointError, InputError, PhonateError, json_mistake
from phonate.config.registry import listed, nearest
from phonate.data.corpora.rows import one_line
from phonate.nn.pretrained import (
    DTYPES,
    base_fingerprint,
    base_has_changed,
    copy_tensors,
    needs_no_base,
    saved_tensors,
    with_base,
)
from phonate.nn.settings import Dtype
from phonate.tasks.cloning import model as models
from phonate.tasks.cloning.decoding import (
    Decoder,
    Engine,
    Generation,
    Job,
    Piece,
    Sampling,
    piece_seed,
    run,
    sampling,
    sound,
)
from phonate.tasks.cloning.model import load_base
from phonate.tasks.cloning.network import CloningNetwork, WhisperConditioning, WhisperProjector, whisper_features
from phonate.tasks.cloning.sequences import CloningTokenizer
from phonate.tasks.cloning.settings import CloningRecipe
from phonate.text.arabic import ArabicText, normalise_arabic
from phonate.text.phonemes import NothingToSay
from phonate.text.sentences import sentences
from phonate.training.checkpoints.listing import HUB_NAME
from phonate.training.checkpoints.loading import TrainedModel, open_trained
from phonate.training.inference import (
    Demonstration,
    Device,
    Inference,
    Reference,
    SpeechRequest,
    SpeechResult,
    SpeechService,
    inference_device,
)

logger = logging.getLogger(__name__)

# ---------------------------------------------------------- Recordings of voices that are to be cloned

MAX_SECONDS = 60.0
"""Of a reference; the model's examples have 5 to 30."""
_KEPT = 64


@dataclass(frozen=True)
class EncodedReference:
    """What the model is given of a reference."""

    codes: NDArray[np.int16]
    """(T, K)"""
    features: FloatArray | None
    """(T, C) of Whisper, if the model was trained with them."""


class ReferenceReader:
    """What the model is given of references, the last 64 of which are kept. For several threads."""

    def __init__(self, codec: HiggsCodec, whisper: WhisperEncoder | None = None) -> None:
        self._codec, self._whisper = codec, whisper
        self._known: OrderedDict[str, EncodedReference] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, reference: Reference) -> EncodedReference:
        """Raises InputError for a recording that is too short, too long or no sound."""
        check_reference(reference)
        waveform = np.ascontiguousarray(reference.waveform, dtype=np.float32)
        key = hashlib.sha256(waveform.tobytes() + str(reference.sample_rate).encode()).hexdigest()
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        codes, rate, features = self._codec.encode(waveform, reference.sample_rate), reference.sample_rate, None
        if self._whisper is not None:
            features = whisper_features(self._whisper, waveform, rate, len(codes))
        encoded = EncodedReference(codes, features)
        with self._lock:
            self._known[key] = encoded
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return encoded


def check_reference(reference: Reference) -> None:
    """Raise InputError for a recording that is silent, or longer than `MAX_SECONDS`."""
    seconds = len(reference.waveform) / reference.sample_rate
    if seconds > MAX_SECONDS:
        raise InputError(f"the reference is {seconds:.1f} s long, over {MAX_SECONDS:g} s; cut it to 5 to 30 s")
    if not np.any(reference.waveform):
        raise InputError("the reference is silent; record it again")


def as_reference(
    audio: str | Path | NDArray[Any] | BinaryIO | Reference, text: str | None, sample_rate: int | None, own_rate: int
) -> Reference:
    """A recording with its text.

    Args:
        audio: A file, an open one, samples (N,) at `sample_rate` Hz (None: at `own_rate`), or a `Reference`.
        text: What is said in it; None: what the `Reference` says, or unknown.

    Raises InputError or DataError for what is no recording.
    """
    if isinstance(audio, Reference):
        return audio if text is None else Reference(audio.waveform, audio.sample_rate, text)
    if isinstance(audio, str | Path):
        if sample_rate is not None:
            raise InputError(f"{audio}: a file has its own sample rate; sample_rate is for arrays")
        return Reference(*read_audio(audio), text)
    if isinstance(audio, np.ndarray):
        return Reference(as_waveform(audio, sample_rate or own_rate), sample_rate or own_rate, text)
    if not hasattr(audio, "read"):
        raise InputError(f"a reference is a file, samples (N,) in an array or a Reference, not {type(audio).__name__}")
    return Reference(*_read_open(audio), text)


def _read_open(file: BinaryIO) -> tuple[NDArray[np.float32], int]:
    with temporary_file(file.read()) as copy:
        return read_audio(copy)


def read_voices(folder: str | Path) -> dict[str, Reference]:
    """The voices in a folder: NAME.wav (or .flac, ...), with what is said in it in NAME.txt, if that is there.

    Raises InputError for a folder that is missing or has no recordings, DataError for one that can't be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; make it, with NAME.wav and NAME.txt for each voice")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in AUDIO_SUFFIXES)
    if not files:
        raise InputError(f"{folder}: has no recordings; put NAME.wav and NAME.txt there for each voice")
    voices: dict[str, Reference] = {}
    for path in files:
        if path.stem in voices:
            raise InputError(f"{path}: there are two recordings of {path.stem}; remove one")
        voices[path.stem] = Reference(*read_audio(path), _text_of(path))
    return voices


def _text_of(recording: Path) -> str | None:
    file = recording.with_suffix(".txt")
    if not file.is_file():
        return None
    try:
        return " ".join(file.read_text(encoding="utf-8-sig").split()) or None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8; save it so") from error


# ----------- How long a text may take to say, and long texts in parts that the model can say in one go

MAX_CHARACTERS = 5000
"""Of a text."""
_WORD_SECONDS = 60.0 / 130.0
"""Of a word, unless the reference is slower."""
_SLOWEST_WORD_SECONDS = 3.0
_FEWEST_WORDS = 3
"""Of a reference that tells how fast its voice speaks."""
_MARGIN = 1.2
"""A model that ends in time is not affected."""
_FEWEST, _MOST = 48, 384
"""Frames of a part: limits below and above. At 25 frames per second, 2 and 15 seconds."""
_PART_CHARACTERS = 160


def check_text(text: str) -> None:
    """Raise InputError for a text without a letter or digit, or one that is too long."""
    if not any(map(str.isalnum, text)):
        raise InputError("the text is empty") if not text.strip() else NothingToSay(text)
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the text has {len(text)} characters, and at most {MAX_CHARACTERS} are allowed; split it")


def word_seconds(reference: Reference | None) -> float:
    """Seconds of a word in the voice of a reference whose text is known and has three words or more; at least those of
    130 words a minute, also for others."""
    words = 0.0 if reference is None or reference.text is None else _words(reference.text)
    if reference is None or words < _FEWEST_WORDS:
        return _WORD_SECONDS
    own = len(reference.waveform) / reference.sample_rate / words
    return min(max(_WORD_SECONDS, own), _SLOWEST_WORD_SECONDS)


def frame_limit(text: str, frame_rate: float, seconds: float = _WORD_SECONDS) -> int:
    """Frames that saying `text` takes at most, at `seconds` for each word and a fifth in reserve; from 48 to 384."""
    return min(_MOST, max(_FEWEST, _frames(text, frame_rate, seconds)))


def parts(text: str, frame_rate: float, seconds: float = _WORD_SECONDS) -> list[str]:
    """`text` in parts that fit into the limit of frames, cut between sentences, or clauses of long ones."""
    result: list[str] = []
    for piece in _fitting(text, frame_rate, seconds, _PART_CHARACTERS):
        if not any(map(str.isalnum, piece)):
            continue
        longer = f"{result[-1]} {piece}" if result else piece
        if result and _frames(longer, frame_rate, seconds) <= _MOST:
            result[-1] = longer
        else:
            result.append(piece)
    return result


def _fitting(text: str, frame_rate: float, seconds: float, characters: int) -> Iterator[str]:
    """Sentences, those of more than `characters` cut, or of fewer if their words are many and short."""
    for piece in sentences(text, characters):
        if _frames(piece, frame_rate, seconds) > _MOST and characters > 1:
            yield from _fitting(piece, frame_rate, seconds, characters // 2)
        else:
            yield piece


def _frames(text: str, frame_rate: float, seconds: float) -> int:
    return math.ceil(_words(text) * seconds * _MARGIN * frame_rate)


def _words(text: str) -> float:
    """Words; a digit may be read as one, and two characters of scripts without spaces take about as long."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text.split()) + sum(map(str.isdigit, text)) + wide / 2


# --------- The model that clones, from wherever it is: a run, a checkpoint, a merged model, or the hub

DESCRIPTION = "cloning.json"
"""In the folder of a merged model, if it was merged by phonate: `codec` (a name on the hub, or a folder, absolute or
relative to that of the model), `system` (message) and `arabic` (what was changed in texts), as in training."""


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
        raise InputError(f"{file}: is no JSON ({json_mistake(error)}); merge the model again") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds no object; merge the model again")
    return content


def open_based(source: str | Path, base: str | Path | None) -> TrainedModel[CloningRecipe]:
    """The model of a run or a checkpoint, whose base is at `base`; None: where it was in training.

    Raises CheckpointError as `open_trained`, and InputError where the base is not there.
    """
    trained = open_trained(source, "cloning", CloningRecipe)
    return replace(trained, recipe=with_base(trained.recipe, base, trained.path))


def trained_network(trained: TrainedModel[CloningRecipe], device: torch.device) -> CloningNetwork:
    """The network of a checkpoint on `device`, adapters beside the weights of its base.

    Raises CheckpointError for adapters to other weights than the base has now.
    """
    settings = trained.recipe.model
    network = models.load_network(settings, device)
    if settings.strategy == "lora" and base_fingerprint(network) != trained.inference_metadata["base"]:
        raise base_has_changed(trained.path, "other weights", settings.name)
    copy_tensors(saved_tensors(network, trained_only=settings.strategy == "lora"), trained.weights)
    return network


# --------------------------------------------- Voice cloning as a service, for several callers at once

NOTHING_SAID = "the model ended before it said anything; try another seed, a longer text or another reference"
CUT_SHORT = "speech was cut short: the model did not end it within the time that the text should take"

Pieces = Callable[[Reference, str, float | None], list[Piece]]
"""What is to be generated for a text in the voice of a reference, of so many seconds at most, where that is given."""


class ClonedSpeech(SpeechResult):
    """Codes come from the engine; they become sound in the thread that asks for it."""

    def __init__(self, generation: Generation, codec: HiggsCodec) -> None:
        self._generation = generation
        self._codec = codec

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        return _decode(self._generation.frames(timeout), self._codec, self._generation)

    def cancel(self) -> None:
        """Stop working on it."""
        self._generation.cancel()


class CloningService(SpeechService):
    """Requests join the batch of an engine between two frames."""

    needs_reference = True

    def __init__(
        self, decoder: Decoder[Generation], codec: HiggsCodec, voices: Mapping[str, Reference], pieces: Pieces
    ) -> None:
        self.sample_rate = codec.sample_rate
        self._decoder, self._codec, self._voices, self._pieces = decoder, codec, voices, pieces
        self._engine = Engine(decoder)

    @property
    def voices(self) -> Sequence[str]:
        """Names of the references that were loaded with the model."""
        return sorted(self._voices)

    def check(self, request: SpeechRequest) -> None:
        """Raise InputError for a text, voice or number that can't be met."""
        check_text(request.text)
        check_reference(self._reference(request))
        _sampling(request)
        if request.speed != 1.0:
            raise InputError(f"speed {request.speed:g}: a cloned voice speaks at its own speed; leave it at 1")

    def submit(self, request: SpeechRequest) -> ClonedSpeech:
        """Begin to work on `request`. The codes of its reference are made here, in the caller's thread."""
        self.check(request)
        seed = secrets.randbits(62) if request.seed is None else request.seed
        pieces = self._pieces(self._reference(request), request.text, request.max_seconds)
        generation = Generation(pieces, _sampling(request), seed)
        for job in generation.jobs:
            self._decoder.check(job)
        self._engine.submit(generation)
        return ClonedSpeech(generation, self._codec)

    @property
    def active(self) -> int:
        """Requests that are being worked on."""
        return self._engine.active

    @property
    def waiting(self) -> int:
        """Requests that have not been begun."""
        return self._engine.waiting

    def close(self) -> None:
        """Finish all requests and end the engine's thread."""
        self._engine.close()

    def _reference(self, request: SpeechRequest) -> Reference:
        """The request's own, or that of its voice. Raises InputError if there is none, or two."""
        if request.reference is not None:
            if request.voice is not None:
                raise InputError(f"voice {request.voice!r} and a reference are given; leave one of them out")
            return request.reference
        if request.voice is None:
            known = f", or one of the voices {listed(self.voices)}" if self._voices else ""
            raise InputError(f"no voice; give a reference{known}")
        if request.voice not in self._voices:
            known = nearest(request.voice, sorted(self._voices)) if self._voices else "give a reference"
            raise InputError(f"voice {request.voice!r} is not known; {known}")
        return self._voices[request.voice]


def _sampling(request: SpeechRequest) -> Sampling:
    return sampling(request.temperature, request.top_k, request.top_p)


def _decode(frames: Iterable[NDArray[np.int16]], codec: HiggsCodec, generation: Generation) -> Iterator[FloatArray]:
    """Chunks of the sound of `frames`, those of `generation`. Raises PhonateError if there are none."""
    empty = True
    for chunk in sound(frames, codec.stream()):
        empty = False
        yield chunk
    if generation.cancelled.is_set():
        return
    if empty:
        raise PhonateError(NOTHING_SAID)
    if generation.cut_short:
        logger.warning(CUT_SHORT)


# ------------------------------------------------------------------ Speech in the voice of a recording

Voice = str | Path | NDArray[Any] | Reference
"""The name of one of the model's `voices`, a recording's file, its samples (N,), or a `Reference`."""

_BATCH = 8
"""Texts that are generated at once."""
_LONGEST = 4096
"""Tokens of a row of the service, prompt included; the model may take more."""


class _CloneOptions(TypedDict, total=False):
    """What `VoiceCloner.clone` takes by name."""

    reference_text: str | Sequence[str | None] | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int
    max_seconds: float | None
    sample_rate: int | None


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
        recipe: CloningRecipe | None = None,
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
            recipe: The one it was trained with; None for a merged model and those of the hub.
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
        self.recipe = recipe
        self.sample_rate = codec.sample_rate
        self.voices: dict[str, Reference] = {}
        """References by name."""
        self.compile_model: CompileModel = False
        """Whether `speech_service` compiles the step of a frame."""
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
        compile_model: CompileModel = False,
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
            compile_model: torch.compile the step of a frame in `speech_service`, whose first frame waits for the
                compiler; cuda_graphs: and replay its kernels as CUDA graphs. For GPUs, where it is not measured yet; on
                a CPU it takes longer.

        Raises:
            CheckpointError: A checkpoint is missing, damaged or of another task, or `base` is another model.
            InputError: There is no such model, base, codec, device, dtype or voice.
        """
        if dtype not in (None, "auto", "int8", *DTYPES):
            raise InputError(f"dtype {dtype!r}: {nearest(str(dtype), ['auto', *DTYPES, 'int8'])}")
        where = inference_device(device)
        compile_mode(compile_model, where, "compile_model")
        known = read_voices(voices) if voices is not None else {}
        if (Path(source) / "config.json").is_file() or (not Path(source).exists() and HUB_NAME.fullmatch(str(source))):
            if base is not None:
                raise needs_no_base(source)
            cloner = cls._pretrained(str(source), where, dtype, codec)
        else:
            cloner = cls._trained(open_based(source, base), where, dtype, codec)
        cloner.voices |= known
        cloner.compile_model = compile_model
        return cloner

    @classmethod
    def _pretrained(cls, name: str, device: torch.device, dtype: str | None, codec: str | Path | None) -> Self:
        """A merged model, or one of the hub."""
        # it says at every layer of every frame that inputs are cast
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        about = _description(Path(name))
        kind = "auto" if dtype in (None, "int8") else dtype
        model = load_base(name, cast(Dtype, kind), "int8" if dtype == "int8" else None, device)
        tokenizer = CloningTokenizer.load(name)
        models.check_fit(CloningNetwork(model), tokenizer, 0)
        return cls(
            model,
            tokenizer,
            HiggsCodec.load(codec or _codec_of(Path(name), about), device=device),
            system=about.get("system"),
            arabic=ArabicText(**about.get("arabic", {})),
            inference_metadata=about,
        )

    @classmethod
    def _trained(
        cls, trained: TrainedModel[CloningRecipe], device: torch.device, dtype: str | None, codec: str | Path | None
    ) -> Self:
        settings, metadata = trained.recipe.model, trained.inference_metadata
        if dtype == "int8":
            raise InputError(
                f"{trained.path}: int8 is for models without adapters; phonate checkpoints merge makes one"
            )
        if dtype in DTYPES and settings.quantization is not None:
            raise InputError(f"{trained.path}: its base is in {settings.quantization}; leave dtype out")
        network = trained_network(trained, device)
        whisper = None
        if network.whisper_projector is not None:
            encoder = WhisperEncoder(settings.whisper.model, "model.whisper", threads=1)
            whisper = WhisperConditioning(encoder, network.whisper_projector)
        tokenizer = CloningTokenizer.load(settings.name)
        if tokenizer.fingerprint != metadata["tokenizer"]:
            raise base_has_changed(trained.path, "another tokenizer", settings.name)
        higgs_codec = HiggsCodec.load(codec or settings.codec, device=device)
        if higgs_codec.fingerprint != metadata["codec"]:
            raise CheckpointError(f"{trained.path}: was trained on codes of another codec than {higgs_codec.source}")
        return cls(
            network.base.to(DTYPES[dtype]) if dtype in DTYPES else network.base,
            tokenizer,
            higgs_codec,
            system=metadata["system"],
            arabic=trained.recipe.data.arabic,
            whisper=whisper,
            inference_metadata=metadata,
            recipe=trained.recipe,
        )

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The language model, then the codec, then the projector of Whisper's features, if there is one."""
        return (self.model, self.codec.model, *([] if self._projector is None else [self._projector]))

    @overload
    def clone(self, reference: Voice, text: str, **options: Unpack[_CloneOptions]) -> FloatArray: ...

    @overload
    def clone(
        self, reference: Voice | Sequence[Voice], text: list[str] | tuple[str, ...], **options: Unpack[_CloneOptions]
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
        references = [self._reference(*pair, sample_rate) for pair in _pairs(reference, reference_text, len(texts))]
        pieces = [self.pieces(one, spoken, max_seconds) for one, spoken in zip(references, texts, strict=True)]
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
        voice = self._reference(reference, reference_text, sample_rate)
        generation = Generation(self.pieces(voice, text, max_seconds), sampling(temperature, top_k, top_p), seed)
        decoder = self._decoder(generation.jobs, 1)

        def frames() -> Iterator[NDArray[np.int16]]:
            for step in run(decoder, generation.jobs):
                generation.cut_short |= step.cut_short
                if step.codes is not None:
                    yield step.codes

        return _decode(frames(), self.codec, generation)

    def generate(self, pieces: Sequence[Sequence[Piece]], sampling: Sampling, seed: int) -> list[NDArray[np.int16]]:
        """The codes (T, K) of texts, each of several pieces."""
        jobs = [
            Job(piece, sampling, piece_seed(seed, number), (text, number))
            for text, several in enumerate(pieces)
            for number, piece in enumerate(several)
        ]
        codes: dict[tuple[int, int], list[NDArray[np.int16]]] = {job.owner: [] for job in jobs}
        cut_short = set()
        for step in run(self._decoder(jobs, _BATCH), jobs):
            if step.codes is not None:
                codes[step.owner].append(step.codes)
            if step.cut_short:
                cut_short.add(step.owner[0])
        if cut_short:
            logger.warning("%s (%d of %d texts)", CUT_SHORT, len(cut_short), len(pieces))
        frames: list[list[NDArray[np.int16]]] = [[] for _ in pieces]
        for (text, _), piece_codes in codes.items():  # in the order of the pieces
            frames[text] += piece_codes
        return [np.array(one, dtype=np.int16).reshape(-1, self.codec.codebooks) for one in frames]

    def pieces(self, reference: Reference, text: str, max_seconds: float | None = None) -> list[Piece]:
        """What is to be generated for `text`: prompts with the most frames that each may take. Raises InputError."""
        limits = self._limits(text, max_seconds, reference)
        encoded = self._read(reference)
        spoken = None if reference.text is None else normalise_arabic(reference.text, self.arabic)
        return [
            Piece(self.tokenizer.prompt(spoken, encoded.codes, part, self.system, encoded.features), limit)
            for part, limit in limits
        ]

    def longest(self, text: str, max_seconds: float | None = None, reference: Reference | None = None) -> float:
        """How many seconds `text` may last at most, in the voice of `reference`. Raises InputError for a text that
        can't be said."""
        return sum(limit for _, limit in self._limits(text, max_seconds, reference)) / self.codec.frame_rate

    def _limits(self, text: str, max_seconds: float | None, reference: Reference | None) -> list[tuple[str, int]]:
        """The parts of a text with the most frames that each may take."""
        check_text(text)
        text, rate = normalise_arabic(text, self.arabic), self.codec.frame_rate
        if max_seconds is None:
            own = word_seconds(reference)
            return [(part, frame_limit(part, rate, own)) for part in parts(text, rate, own)]
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
        decoder = Decoder[Generation](self.model, max_batch, length, self._projector, self.compile_model)
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

    def _reference(self, voice: Voice, text: str | None, sample_rate: int | None) -> Reference:
        if isinstance(voice, str) and voice in self.voices:
            return as_reference(self.voices[voice], text, None, self.sample_rate)
        reference = as_reference(voice, text, sample_rate, self.sample_rate)
        if reference.text is None:
            logger.info("the reference comes without its text; with it the voice may sound more like the reference")
        return reference


def _pairs(
    reference: Voice | Sequence[Voice], spoken: str | Sequence[str | None] | None, texts: int
) -> list[tuple[Voice, str | None]]:
    """The reference and what is said in it for each text. Raises InputError for lists of other lengths."""
    references: list[Any] = list(reference) if isinstance(reference, list | tuple) else [reference] * texts
    spoken_texts = [spoken] * texts if spoken is None or isinstance(spoken, str) else list(spoken)
    for name, values in (("references", references), ("texts of references", spoken_texts)):
        if len(values) != texts:
            raise InputError(f"{len(values)} {name} for {texts} texts; give one, or one for each text")
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
        max_seconds: float | None = None,
    ) -> FloatArray:
        """`target_text` in the voice of a recording, as samples (N,) at `sample_rate`.

        Args:
            reference_audio: A file, an open one, or samples at `sample_rate`; None: the voice `speaker_name`.
            target_text: What to say.
            speaker_name: The recording is kept under this name, so that later calls can leave it out.
            reference_text: What is said in the recording, if it is known.
            max_seconds: As in `VoiceCloner.clone`.
        """
        if reference_audio is None:
            if speaker_name is None or speaker_name not in self.cloner.voices:
                raise InputError(f"speaker {speaker_name!r} has no recording yet; give reference_audio")
            known = self.cloner.voices[speaker_name]
            return self.cloner.clone(known, target_text, reference_text=reference_text, max_seconds=max_seconds)
        reference = as_reference(reference_audio, reference_text, None, self.sample_rate)
        if speaker_name is not None:
            self.cloner.voices[speaker_name] = reference
        return self.cloner.clone(reference, target_text, max_seconds=max_seconds)


_DTYPE_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
