"""Whisper networks (Radford et al. 2022) that are trained: read from folders of transformers or CTranslate2 or from the
hub, their encoder for recordings of any length, and greedy decoding.

Shapes: B batch, T mel frames, M mel bands, S = ceil(T / 2) frames of the encoder, D width, L tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.whisper import whisper_model
from phonate.config.errors import InputError, optional_package, quiet_transformers
from phonate.config.registry import nearest
from phonate.nn.pretrained import DTYPES, load_pretrained, pretrained_file, require
from phonate.nn.settings import Dtype, Quantization

SUBSAMPLING = 2
"""Mel frames for which the encoder gives one."""
_MULTILINGUAL = 51865
"""Vocabularies of this size and more tell languages apart ..."""
_MULTILINGUAL_END = 50257
"""... and have this token for the end, which is one less in others."""
_PARTS = ("encoder", "decoder")

# ------------------------------------------------------------ Weights as CTranslate2 writes them

_BIN = "model.bin"
_TYPES = ("<f4", "i1", "<i2", "<i4", "<f2")


def _ct2_variables(file: Path) -> dict[str, NDArray[Any]]:
    """The variables of a model.bin of CTranslate2 by name, aliases among them.

    Raises InputError for a file that is not one of a Whisper in float types.
    """
    content = memoryview(file.read_bytes())
    place = 0

    def number(kind: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{kind}", content, place)
        place += struct.calcsize(f"<{kind}")
        return int(value)

    def text() -> str:
        nonlocal place
        size = number("H")
        place += size
        return bytes(content[place - size : place - 1]).decode()

    variables: dict[str, NDArray[Any]] = {}
    try:
        number("I")
        kind = text()
        if kind != "WhisperSpec":
            raise InputError(f"{file}: holds no Whisper but a {kind}")
        number("I")
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            dtype, size = np.dtype(_TYPES[number("B")]), number("I")
            variables[name] = np.frombuffer(content[place : place + size], dtype).reshape(shape)
            place += size
        for _ in range(number("I")):
            alias, name = text(), text()
            variables[alias] = variables[name]
    except (struct.error, IndexError, KeyError, ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: is damaged, or no model of CTranslate2 ({error})") from error
    if any(name.endswith("weight_scale") for name in variables):
        raise InputError(f"{file}: its weights are 8-bit integers, too coarse to train from; give float16 or float32")
    return variables


_MODULES = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
"""Of each module of a layer of CTranslate2 those of transformers, whose weights are one matrix there."""
_OUTSIDE = {
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "encoder/layer_norm": "encoder.layer_norm",
    "decoder/layer_norm": "decoder.layer_norm",
}
_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d+)/(.+)")


def _state_of(variables: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """The weights under transformers' names, in fp32."""
    state: dict[str, NDArray[Any]] = {"decoder.embed_tokens.weight": variables["decoder/embeddings/weight"]}
    for part in _PARTS:
        state[f"{part}.embed_positions.weight"] = variables[f"{part}/position_encodings/encodings"]
    for name, value in variables.items():
        path, _, kind = name.rpartition("/")
        if kind not in _KINDS:
            continue
        layer = _LAYER.fullmatch(path)
        if layer is not None:
            names = [f"{layer[1]}.layers.{layer[2]}.{module}" for module in _MODULES[layer[3]]]
        elif path in _OUTSIDE:
            names = [_OUTSIDE[path]]
        else:
            continue
        for module, part_of_it in zip(names, np.split(value, len(names)), strict=True):
            if not (module.endswith("k_proj") and kind == "bias"):  # all zeros there, and none in transformers
                state[f"{module}.{_KINDS[kind]}"] = part_of_it
    weights = {f"model.{name}": torch.from_numpy(np.array(value, dtype=np.float32)) for name, value in state.items()}
    return weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"]}


def _from_ct2(folder: Path, quantization: Quantization | Literal["int8"] | None = None) -> nn.Module:
    """The network of a folder of CTranslate2, in fp32 where not quantised. Raises InputError where it can't be read."""
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    variables = _ct2_variables(folder / _BIN)
    layers = {kind: sum(f"{kind}/layer_{n}/ffn/linear_0/bias" in variables for n in range(64)) for kind in _PARTS}
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    end = _MULTILINGUAL_END - (vocabulary < _MULTILINGUAL)
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=variables["encoder/conv1/weight"].shape[1],
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=int(variables["encoder/num_heads"]),
        decoder_attention_heads=int(variables["decoder/num_heads"]),
        encoder_ffn_dim=len(variables["encoder/layer_0/ffn/linear_0/bias"]),
        decoder_ffn_dim=len(variables["decoder/layer_0/ffn/linear_0/bias"]),
        max_source_positions=len(variables["encoder/position_encodings/encodings"]),
        max_target_positions=len(variables["decoder/position_encodings/encodings"]),
        decoder_start_token_id=end + 1,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        begin_suppress_tokens=None,
    )
    state = _state_of(variables)
    loaded: Any = load_pretrained(
        str(folder), "fp32", quantization, loader=WhisperForConditionalGeneration, state_dict=state, config=config
    )
    own = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    make: Any = GenerationConfig  # untyped
    loaded.generation_config = make(
        decoder_start_token_id=end + 1,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        max_length=config.max_target_positions,
        suppress_tokens=own.get("suppress_ids"),
        begin_suppress_tokens=own.get("suppress_ids_begin"),
        alignment_heads=own.get("alignment_heads"),
    )
    network: nn.Module = loaded
    return network


# ------------------------------------------------------------------------------- Pretrained networks

NAMES = ("tiny", "base", "small", "medium", "large", "turbo")
"""How the names of the released models begin."""


def located(name: str) -> str:
    """Where the Whisper `name` is: a folder, that of a package that includes it, or a name on the hub."""
    folder = whisper_model(name)
    if Path(folder).is_dir() or not name.startswith(NAMES):
        return folder
    return f"openai/whisper-{name}" if name != "turbo" else "openai/whisper-large-v3-turbo"


def load_whisper_network(
    name: str,
    dtype: Dtype = "fp32",
    device: torch.device | None = None,
    quantization: Quantization | Literal["int8"] | None = None,
) -> nn.Module:
    """transformers' WhisperForConditionalGeneration with the weights of `name`: tiny.en or base from packages, another
    released model (small, large-v3), a folder of transformers or of CTranslate2, or a name on the hub.
    `quantization`: see `load_pretrained`.

    Raises InputError where there is none, and MissingPackageError without transformers or bitsandbytes.
    """
    require("transformers")
    from transformers import WhisperForConditionalGeneration

    source = located(name)
    if (Path(source) / _BIN).is_file():
        network = _from_ct2(Path(source), quantization)
        return network.to(device) if quantization else network.to(device=device, dtype=DTYPES.get(dtype, torch.float32))
    config = pretrained_file(source, "config.json")
    if config is not None and json.loads(config.read_text(encoding="utf-8")).get("model_type") != "whisper":
        raise InputError(f"model.name: {name}: is no Whisper; give one, such as tiny.en or openai/whisper-small")
    return load_pretrained(source, dtype, quantization, device, WhisperForConditionalGeneration)


def document_of(model: nn.Module) -> dict[str, Any]:
    """What `network_of` makes a network of the same form of, as JSON."""
    own = whisper_of(model)
    return {"config": own.config.to_dict(), "generation": own.generation_config.to_dict()}


def network_of(document: Mapping[str, Any]) -> nn.Module:
    """A network of the form that `document_of` describes, freshly initialised in fp32."""
    require("transformers")
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    network = WhisperForConditionalGeneration(WhisperConfig.from_dict(document["config"]))
    network.generation_config = GenerationConfig.from_dict(document["generation"])
    return network


# ------------------------------------------------------------------------------------------- Tokens

_CODE = re.compile(r"<\|([a-z]{2,3})\|>")
_TEXT_LIKE = re.compile(r"<\|[^|]*\|>")


class WhisperTokens:
    """The tokens of a Whisper model."""

    seconds: ClassVar[float] = 0.02
    """From one timestamp to the next."""

    def __init__(self, document: str) -> None:
        """`document`: what a tokenizer.json holds."""
        from tokenizers import Tokenizer

        self.document = document
        self._tokenizer = Tokenizer.from_str(document)
        self.end = self.id("<|endoftext|>")
        self.start = self.id("<|startoftranscript|>")
        self.no_times = self.id("<|notimestamps|>")
        self.first_time = self.no_times + 1
        """The token of 0.00 s."""
        self.multilingual = self.end == _MULTILINGUAL_END
        self.languages: dict[str, int] = {}
        """The tokens of languages by their codes, such as de; of an English model none."""
        if self.multilingual:
            marks = self._tokenizer.get_added_tokens_decoder()
            codes = {number: _CODE.fullmatch(one.content) for number, one in marks.items()}
            self.languages = {code[1]: number for number, code in codes.items() if code is not None}

    @classmethod
    def load(cls, name: str) -> WhisperTokens:
        """Those of the model `name` (see `load_whisper_network`). Raises InputError where there are none."""
        source = located(name)
        file = pretrained_file(source, "tokenizer.json")
        if file is not None:
            return cls(file.read_text(encoding="utf-8"))
        from transformers import WhisperTokenizer

        with quiet_transformers():
            try:  # folders of early versions have vocab.json and merges.txt alone
                tokenizer: Any = WhisperTokenizer.from_pretrained(source)
            except Exception as error:
                raise InputError(
                    f"model.name: {name}: it has no tokenizer.json, nor vocab.json and merges.txt"
                ) from error
        return cls(tokenizer.backend_tokenizer.to_str())

    @property
    def fingerprint(self) -> str:
        """A hash of the document."""
        return hashlib.sha256(self.document.encode()).hexdigest()[:16]

    def prompt(self, language: str, times: bool) -> list[int]:
        """What a transcript in `language`, such as "de", follows: start, and of multilingual models language and task;
        then that there are no timestamps, unless there are.

        Raises InputError for a language that the model does not know.
        """
        tokens = [self.start]
        if self.multilingual:
            if language not in self.languages:
                raise InputError(
                    f"data.language: Whisper does not know the language {language!r}; "
                    f"{nearest(language, list(self.languages))}"
                )
            tokens += [self.languages[language], self.id("<|transcribe|>")]
        elif language != "en":
            raise InputError(
                f"data.language: this Whisper knows English only, not {language!r}; choose a multilingual one, such as "
                "model.name=base"
            )
        return tokens if times else [*tokens, self.no_times]

    def time(self, seconds: float) -> int:
        """The token of a time in a window of 30 s."""
        return self.first_time + min(round(max(0.0, seconds) / self.seconds), round(30.0 / self.seconds))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, which begin with a space, as Whisper writes. What looks like a special token is read as
        the characters that it consists of."""
        parts = _TEXT_LIKE.split(text)
        marks = [*_TEXT_LIKE.findall(text), ""]
        ids: list[int] = []
        for number, (part, mark) in enumerate(zip(parts, marks, strict=True)):
            plain = (" " if number == 0 else "") + part + mark[:1]
            ids += self._tokenizer.encode(plain, add_special_tokens=False).ids
            ids += self._tokenizer.encode(mark[1:], add_special_tokens=False).ids if mark else []
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones and timestamps."""
        text: str = self._tokenizer.decode([one for one in ids if one < self.end])
        return text.strip()

    def id(self, token: str) -> int:
        """The number of a special token. Raises InputError where there is no such token."""
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise InputError(f"model.name: its tokenizer has no {token}, so it is none of a Whisper")
        return int(number)


# ------------------------------------------------------------------------------ Forward passes


def whisper_of(model: Any) -> Any:
    """transformers' model itself, of one with adapters or without."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def encode(model: nn.Module, mel_BTM: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """What the encoder gives (B, S, D) for mel frames (B, T, M) of 30 s or less, and which of it counts, a mask (B, 1,
    1, S); None: all.

    `lengths_B`: how many mel frames each item has; what lies behind them changes nothing. None: all of them, and 30 s
    of them give exactly what transformers gives.
    """
    encoder = whisper_of(model).model.encoder
    mask_B11S = None
    mel_BMT = mel_BTM.transpose(1, 2).to(encoder.conv1.weight.dtype)
    if lengths_B is not None and bool((lengths_B != mel_BTM.shape[1]).any()):
        real_BT = torch.arange(mel_BTM.shape[1], device=mel_BTM.device) < lengths_B[:, None]
        x_BDT = F.gelu(encoder.conv1(mel_BMT * real_BT[:, None])) * real_BT[:, None]
        mask_B11S = real_BT[:, None, None, ::SUBSAMPLING]
    else:
        x_BDT = F.gelu(encoder.conv1(mel_BMT))
    x_BSD = F.gelu(encoder.conv2(x_BDT)).transpose(1, 2)
    x_BSD = x_BSD + encoder.embed_positions.weight[: x_BSD.shape[1]]
    for layer in encoder.layers:
        x_BSD = layer(x_BSD, mask_B11S)
    return encoder.layer_norm(x_BSD), mask_B11S


def decode(
    model: nn.Module, tokens_BL: Tensor, encoded_BSD: Tensor, mask_B11S: Tensor | None = None, cache: Any = None
) -> Tensor:
    """Hidden states (B, L, D) of the decoder, from which `logits` follow. `cache`: transformers' EncoderDecoderCache of
    the tokens before."""
    decoder = whisper_of(model).model.decoder
    before = 0 if cache is None else cache.get_seq_length()
    positions = decoder.embed_positions.weight[before : before + tokens_BL.shape[1]]
    x_BLD = decoder.embed_tokens(tokens_BL) + positions
    caches = () if cache is None else (cache,)  # by its place: transformers have two names for it
    for layer in decoder.layers:  # without a mask, transformers' attention is causal
        x_BLD = layer(x_BLD, None, encoded_BSD, mask_B11S, *caches)
    normed: Tensor = decoder.layer_norm(x_BLD)
    return normed


def logits(model: nn.Module, hidden: Tensor) -> Tensor:
    """(..., V) of hidden states (..., D)."""
    scores: Tensor = whisper_of(model).proj_out(hidden)
    return scores


@torch.no_grad()
def greedy(
    model: nn.Module,
    tokens: WhisperTokens,
    encoded_BSD: Tensor,
    mask_B11S: Tensor | None,
    prompt: Sequence[int],
    never: Sequence[int] = (),
    most: int = 200,
) -> list[list[int]]:
    """The likeliest token after the other, for each item, without prompt and end: text, and timestamps where the
    prompt does not rule them out. None of `never`, and at most `most`."""
    from transformers import DynamicCache, EncoderDecoderCache

    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    device, items = encoded_BSD.device, len(encoded_BSD)
    inputs_BL = torch.tensor([list(prompt)] * items, device=device)
    times = tokens.no_times not in prompt
    rows: list[list[int]] = [[] for _ in range(items)]
    running = torch.ones(items, dtype=torch.bool, device=device)
    for _ in range(most):
        scores_BV = logits(model, decode(model, inputs_BL, encoded_BSD, mask_B11S, cache)[:, -1]).float()
        scores_BV[:, tokens.end + 1 : tokens.first_time if times else None] = -torch.inf
        scores_BV[:, list(never)] = -torch.inf
        best_B = scores_BV.argmax(-1)
        running &= best_B != tokens.end
        if not bool(running.any()):
            break
        for row, token, goes_on in zip(rows, best_B.tolist(), running.tolist(), strict=True):
            if goes_on:
                row.append(token)
        inputs_BL = best_B[:, None]
    return rows


# ------------------------------------------------------------------------------------ Written folders


def save(
    model: nn.Module, folder: Path, tokens: WhisperTokens, language: str, times: bool, suppress: Sequence[int]
) -> None:
    """Write a network without adapters, with all that transformers needs, to `folder`. Generation there has the prompt
    of `WhisperTokens.prompt`, and never gives the tokens `suppress`."""
    from transformers import WhisperFeatureExtractor, WhisperTokenizer

    extractor: Any = WhisperFeatureExtractor  # untyped
    network = whisper_of(model)
    generation = network.generation_config
    generation.forced_decoder_ids = None
    generation.suppress_tokens = list(suppress)
    generation.no_timestamps_token_id = tokens.no_times
    generation.is_multilingual = tokens.multilingual
    generation.return_timestamps = times
    if tokens.multilingual:
        generation.language, generation.task = language, "transcribe"
        generation.lang_to_id = {f"<|{code}|>": number for code, number in tokens.languages.items()}
        generation.task_to_id = {task: tokens.id(f"<|{task}|>") for task in ("transcribe", "translate")}
    with quiet_transformers():
        network.save_pretrained(folder)
        extractor(feature_size=network.config.num_mel_bins).save_pretrained(folder)
        (folder / "tokenizer.json").write_text(tokens.document, encoding="utf-8")
        WhisperTokenizer.from_pretrained(folder).save_pretrained(folder)


def convert(source: Path, folder: Path, quantization: str | None = None) -> None:
    """Write what `save` wrote to `source` as CTranslate2 and faster-whisper read it. `quantization`: float16, int8;
    None: as it is. Raises MissingPackageError without CTranslate2."""
    converters = optional_package("ctranslate2.converters", "a model for CTranslate2")
    with quiet_transformers():
        files = ["tokenizer.json", "preprocessor_config.json"]
        converters.TransformersConverter(str(source), copy_files=files).convert(
            str(folder), quantization=quantization, force=True
        )


def rewrite(name: str, folder: Path) -> None:
    """Write the pretrained Whisper `name`, of transformers, to the new `folder` as CTranslate2 and faster-whisper read
    it. Raises the errors of `load_whisper_network`."""
    network, tokens = load_whisper_network(name, "auto"), WhisperTokens.load(name)
    suppress = whisper_of(network).generation_config.suppress_tokens or []
    with tempfile.TemporaryDirectory(prefix="phonate-whisper-") as written:
        save(network, Path(written), tokens, "en", True, suppress)
        convert(Path(written), folder)
