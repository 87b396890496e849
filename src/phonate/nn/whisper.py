"""Whisper networks (Radford et al. 2022) that are trained: read from folders of transformers or CTranslate2 or from the
hub, their encoder for recordings of any length, and greedy decoding.

Shapes: B batch, T mel frames, M mel bands, S = ceil(T / 2) frames of the encoder, D width, L tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.whisper import whisper_model
from phonate.config.errors import InputError, quiet_transformers
from phonate.nn.pretrained import DTYPES, load_pretrained, pretrained_file, require
from phonate.nn.settings import Dtype

SUBSAMPLING = 2
"""Mel frames for which the encoder gives one."""
_MULTILINGUAL = 51865
"""Vocabularies of this size and more tell languages apart ..."""
_MULTILINGUAL_END = 50257
"""... and have this token for the end."""
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


def _layer_names(kind: str) -> Iterator[tuple[str, str]]:
    """Modules of a layer of the encoder or the decoder: CTranslate2's name, transformers' one."""
    yield "self_attention/layer_norm", "self_attn_layer_norm"
    yield "ffn/layer_norm", "final_layer_norm"
    yield "ffn/linear_0", "fc1"
    yield "ffn/linear_1", "fc2"
    if kind == "decoder":
        yield "attention/layer_norm", "encoder_attn_layer_norm"


def _state_of(variables: Mapping[str, NDArray[Any]], encoder_layers: int, decoder_layers: int) -> dict[str, Tensor]:
    """The weights under transformers' names, in fp32."""
    state: dict[str, Tensor] = {}

    def put(name: str, value: NDArray[Any]) -> None:
        state[f"model.{name}"] = torch.from_numpy(np.array(value, dtype=np.float32))

    def norm(own: str, name: str) -> None:
        put(f"{name}.weight", variables[f"{own}/gamma"])
        put(f"{name}.bias", variables[f"{own}/beta"])

    def linears(own: str, names: Sequence[str]) -> None:
        weights = np.split(variables[f"{own}/weight"], len(names))
        biases = np.split(variables[f"{own}/bias"], len(names))
        for name, weight, bias in zip(names, weights, biases, strict=True):
            put(f"{name}.weight", weight)
            if not name.endswith("k_proj"):  # whose bias is all zeros
                put(f"{name}.bias", bias)

    for number in (1, 2):
        linears(f"encoder/conv{number}", [f"encoder.conv{number}"])
    put("decoder.embed_tokens.weight", variables["decoder/embeddings/weight"])
    for kind, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        put(f"{kind}.embed_positions.weight", variables[f"{kind}/position_encodings/encodings"])
        norm(f"{kind}/layer_norm", f"{kind}.layer_norm")
        for layer in range(layers):
            own, name = f"{kind}/layer_{layer}", f"{kind}.layers.{layer}"
            for part, module in _layer_names(kind):
                if module.endswith("norm"):
                    norm(f"{own}/{part}", f"{name}.{module}")
                else:
                    linears(f"{own}/{part}", [f"{name}.{module}"])
            attention = f"{name}.self_attn"
            linears(f"{own}/self_attention/linear_0", [f"{attention}.{one}_proj" for one in "qkv"])
            linears(f"{own}/self_attention/linear_1", [f"{attention}.out_proj"])
            if kind == "decoder":
                attention = f"{name}.encoder_attn"
                linears(f"{own}/attention/linear_0", [f"{attention}.q_proj"])
                linears(f"{own}/attention/linear_1", [f"{attention}.{one}_proj" for one in "kv"])
                linears(f"{own}/attention/linear_2", [f"{attention}.out_proj"])
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    return state


def _from_ct2(folder: Path) -> nn.Module:
    """The network of a folder of CTranslate2, in fp32. Raises InputError where it can't be read."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    variables = _ct2_variables(folder / _BIN)
    layers = {kind: sum(f"{kind}/layer_{n}/ffn/linear_0/bias" in variables for n in range(64)) for kind in _PARTS}
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    end = 50257 if vocabulary >= _MULTILINGUAL else 50256
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
    state = _state_of(variables, layers["encoder"], layers["decoder"])
    loaded = load_pretrained(
        str(folder), "fp32", loader=WhisperForConditionalGeneration, state_dict=state, config=config
    )
    own = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    generation: Any = loaded.generation_config
    generation.suppress_tokens = own.get("suppress_ids")
    generation.begin_suppress_tokens = own.get("suppress_ids_begin")
    generation.alignment_heads = own.get("alignment_heads")
    return loaded


# ------------------------------------------------------------------------------- Pretrained networks

NAMES = ("tiny", "base", "small", "medium", "large", "turbo")
"""How the names of the released models begin."""


def located(name: str) -> str:
    """Where the Whisper `name` is: a folder, that of a package that includes it, or a name on the hub."""
    folder = whisper_model(name)
    if Path(folder).is_dir() or not name.startswith(NAMES):
        return folder
    return f"openai/whisper-{name}" if name != "turbo" else "openai/whisper-large-v3-turbo"


def load_whisper_network(name: str, dtype: Dtype = "fp32", device: torch.device | None = None) -> nn.Module:
    """transformers' WhisperForConditionalGeneration with the weights of `name`: tiny.en or base from packages, another
    released model (small, large-v3), a folder of transformers or of CTranslate2, or a name on the hub.

    Raises InputError where there is none, and MissingPackageError without transformers.
    """
    require("transformers")
    from transformers import WhisperForConditionalGeneration

    source = located(name)
    if (Path(source) / _BIN).is_file():
        network = _from_ct2(Path(source))
        return network.to(device=device, dtype=DTYPES.get(dtype, torch.float32))
    config = pretrained_file(source, "config.json")
    if config is not None and json.loads(config.read_text(encoding="utf-8")).get("model_type") != "whisper":
        raise InputError(f"model.name: {name}: is no Whisper; give one, such as tiny.en or openai/whisper-small")
    return load_pretrained(source, dtype, device=device, loader=WhisperForConditionalGeneration)


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
        self.end = self._id("<|endoftext|>")
        self.start = self._id("<|startoftranscript|>")
        self.no_times = self._id("<|notimestamps|>")
        self.first_time = self.no_times + 1
        """The token of 0.00 s."""
        self.multilingual = self.end == _MULTILINGUAL_END

    @classmethod
    def load(cls, name: str) -> WhisperTokens:
        """Those of the model `name` (see `load_whisper_network`). Raises InputError where there are none."""
        source = located(name)
        file = pretrained_file(source, "tokenizer.json")
        if file is not None:
            return cls(file.read_text(encoding="utf-8"))
        from transformers import WhisperTokenizerFast

        with quiet_transformers():
            try:  # folders of early versions have vocab.json and merges.txt alone
                tokenizer = WhisperTokenizerFast.from_pretrained(source)
            except Exception as error:
                raise InputError(f"model.name: {name}: it has no tokenizer.json, nor vocab.json and merges.txt") from error
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
            code = self._tokenizer.token_to_id(f"<|{language}|>")
            if code is None:
                raise InputError(f"data.language: Whisper does not know the language {language!r}")
            tokens += [code, self._id("<|transcribe|>")]
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

    def _id(self, token: str) -> int:
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
    for layer in decoder.layers:  # without a mask, transformers' attention is causal
        x_BLD = layer(x_BLD, None, encoded_BSD, mask_B11S, past_key_values=cache, use_cache=cache is not None)
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
    most: int = 200,
) -> list[list[int]]:
    """The likeliest token after the other, for each item, without prompt and end: text, and timestamps where the
    prompt does not rule them out. At most `most`."""
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
        best_B = scores_BV.argmax(-1)
        running &= best_B != tokens.end
        if not bool(running.any()):
            break
        for row, token, goes_on in zip(rows, best_B.tolist(), running.tolist(), strict=True):
            if goes_on:
                row.append(token)
        inputs_BL = best_B[:, None]
    return rows
