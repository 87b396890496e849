"""State as tensors and JSON, copied aside in one memory copy and written in the safetensors form.

JSON has no tuples, no keys but strings, no NaN and no arrays; such values become one-key objects whose key
begins with `$`:

    {"$tensor": name}            a tensor, kept beside the document under `name`
    {"$array": name}             a numpy array, kept the same way
    {"$scalar": [dtype, hex]}    a numpy scalar, by its bytes
    {"$tuple": [...]}            a tuple
    {"$dict": [[key, value]]}    a dict with a key that is not a string, or that begins with `$`
    {"$float": "nan"}            a float that is not finite
    {"$bytes": base64}           bytes

`safetensors.torch.save_file` copies each tensor once more while it holds the GIL, so the training loop would
stall. The format is simple (8 bytes of header length, a JSON header, the data), so our copy is made in that
layout: one flat buffer, hashed and written in large pieces without the GIL.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import os
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file
from torch import Tensor, nn

from phonate.compute.distributed import is_sharded, local_part
from phonate.compute.system import megabytes, open_regular
from phonate.config.errors import CheckpointError
from phonate.training.checkpoints.files import (
    CHUNK,
    COMPRESSED,
    METADATA,
    FileProblemError,
    Record,
    chunks_of,
    drop_from_memory,
)

# ----------------------------------------- Nested state <-> a JSON document and a flat dict of tensors

DEEPEST = 100
"""Most levels of nesting; a deeper tree is assumed to contain itself."""


def encode(tree: Any, root: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """A JSON document and the tensors of `tree`, not copied. OrderedDict and defaultdict come back as dict.

    Raises CheckpointError naming the key path of a value that can't be stored.
    """
    encoder = _Encoder(root)
    return encoder.encode(tree, ()), encoder.tensors


class _Encoder:
    def __init__(self, root: str) -> None:
        self.root = root
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEEPEST:
            raise CheckpointError(f"{self.where(path[:8])}...: nested too deeply; does it contain itself?")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind in (dict, OrderedDict, defaultdict):
            return self.encode_dict(value, path)
        if kind is list:
            return [self.encode(item, (*path, i)) for i, item in enumerate(value)]
        if kind is tuple or kind is torch.Size:
            return {"$tuple": [self.encode(item, (*path, i)) for i, item in enumerate(value)]}
        return self.encode_leaf(value, path)

    def encode_dict(self, value: Mapping[Any, Any], path: tuple[Any, ...]) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, (*path, key)) for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int, bool, float, type(None), tuple):
                kind = type(key).__name__
                raise CheckpointError(f"{self.where(path)}: a key of type {kind} can't be stored")
            pairs.append([self.encode(key, (*path, "key")), self.encode(item, (*path, key))])
        return {"$dict": pairs}

    def encode_leaf(self, value: Any, path: tuple[Any, ...]) -> Any:
        if type(value) in (Tensor, nn.Parameter, nn.Buffer) or (isinstance(value, Tensor) and is_sharded(value)):
            return {"$tensor": self.keep(value.detach(), path)}
        if type(value) is np.ndarray:
            try:
                tensor = torch.from_numpy(np.array(value, order="C"))
            except (
                TypeError,
                ValueError,
            ) as error:  # a dtype that torch does not have, or a foreign byte order
                message = f"{self.where(path)}: a numpy array of {value.dtype} can't be stored"
                raise CheckpointError(message) from error
            return {"$array": self.keep(tensor, path)}
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return {"$scalar": [value.dtype.str, value.tobytes().hex()]}
        if type(value) is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{self.where(path)}: a value of type {kind} can't be stored in a checkpoint; "
            "make it of numbers, strings, tensors, lists, tuples and dicts"
        )

    def keep(self, tensor: Tensor, path: tuple[Any, ...]) -> str:
        name = base = "/".join(str(key) for key in path) or self.root
        count = 1
        while name in self.tensors or name == "__metadata__":  # the name that safetensors keeps for itself
            count += 1
            name = f"{base}#{count}"
        self.tensors[name] = tensor
        return name

    def where(self, path: tuple[Any, ...]) -> str:
        return self.root + "".join(f"[{key!r}]" for key in path)


def decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `encode` was given. Raises CheckpointError for a document that it did not write."""
    try:
        return _decode(document, tensors)
    except RecursionError:
        raise CheckpointError("the state is nested too deeply") from None


def _decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(document, list):
        return [_decode(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    mark = next(iter(document), "")
    if not mark.startswith("$"):
        return {key: _decode(item, tensors) for key, item in document.items()}
    try:
        return _DECODERS[mark](document[mark], tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"the state holds a {mark[:20]} that can't be read ({type(error).__name__})") from error


def _dict(pairs: Any, tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    return {_decode(key, tensors): _decode(item, tensors) for key, item in pairs}


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tensor": lambda name, tensors: tensors[name],
    "$array": lambda name, tensors: tensors[name].numpy(),
    "$scalar": lambda pair, _: np.frombuffer(bytes.fromhex(pair[1]), dtype=pair[0])[0],
    "$tuple": lambda items, tensors: tuple(_decode(item, tensors) for item in items),
    "$dict": _dict,
    "$float": lambda text, _: float(text),
    "$bytes": lambda text, _: base64.b64decode(text),
}


# ------------- Tensors copied aside in one memory copy, and written from there in the safetensors form

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
ALIGNMENT = 8
LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library."""


@dataclass(frozen=True)
class Written:
    """A tensor file: its record for the manifest, and the SHA-256 of its uncompressed form."""

    record: Record
    content_sha256: str


class Snapshot:
    """A copy of tensors in memory that is allocated once and used again at every save."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._header = b""
        self._used = 0
        self._layout: list[tuple[object, ...]] | None = None
        self._views: dict[str, Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

    @property
    def nbytes(self) -> int:
        """Size of the uncompressed file."""
        return len(self._header) + self._used

    def take(self, tensors: Mapping[str, Tensor], begins: Mapping[str, Sequence[int]] | None = None) -> None:
        """Copy `tensors`; they may change once this returns (on CUDA: by later work of the same stream).

        `begins`: for parts of larger tensors, where in them they begin.

        Raises CheckpointError for a tensor without plain dense values (sparse, quantised, meta).
        """
        pinned = any(tensor.is_cuda for tensor in tensors.values())
        layout: list[tuple[object, ...]] = [(n, t.dtype, t.shape, t.layout, t.device.type) for n, t in tensors.items()]
        if layout != self._layout or (pinned and not self._buffer.is_pinned()):
            self._lay_out(tensors, pinned, begins)
            self._layout = layout
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._views[name].copy_(tensor, non_blocking=tensor.is_cuda)
        self._copied = _mark_streams(tensors) if pinned else []

    def _lay_out(self, tensors: Mapping[str, Tensor], pinned: bool, begins: Mapping[str, Sequence[int]] | None) -> None:
        """Find each tensor's place in the buffer. The layout stays as long as names, types and shapes do."""
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
                raise CheckpointError(
                    f"{name}: a {tensor.layout} tensor of {tensor.dtype} on {tensor.device} can't be stored; "
                    "save it as one or more dense tensors"
                )
        # Wide types first, so that every tensor is aligned without holes, which the format forbids.
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        ends = np.cumsum([tensors[name].nbytes for name in names], dtype=np.int64).tolist()
        starts = [0, *ends][:-1]
        self._header = _header(names, tensors, starts, ends, begins)
        self._used = ends[-1] if ends else 0
        self._layout, self._views = None, {}
        if self._used > self._buffer.nbytes or (pinned and not self._buffer.is_pinned()):
            self._buffer = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new one comes
            self._buffer = torch.empty(self._used, dtype=torch.uint8, pin_memory=pinned)
            self._buffer.fill_(0)  # touch every page now, not in a later copy
        for name, start, end in zip(names, starts, ends, strict=True):
            tensor = tensors[name]
            self._views[name] = self._buffer[start:end].view(tensor.dtype).view(tensor.shape)

    def first_nan(self) -> str | None:
        """The name of a tensor that holds NaN."""
        self._wait_for_copies()
        return first_nan(self._views)

    def _wait_for_copies(self) -> None:
        for event in self._copied:
            event.synchronize()

    def content(self) -> Iterator[memoryview]:
        """The file's bytes in pieces."""
        self._wait_for_copies()
        yield memoryview(self._header)
        data = self._buffer.numpy().data[: self._used]
        for start in range(0, self._used, CHUNK):
            yield data[start : start + CHUNK]

    def write(self, path: Path, compress: bool) -> Written:
        """Write, hash in the same pass, sync, read back. Raises OSError when the disk has other bytes."""
        on_disk, content, size = hashlib.sha256(), hashlib.sha256(), 0
        with path.open("wb", buffering=0) as file:
            for piece in _compressed(self.content(), content) if compress else self.content():
                on_disk.update(piece)
                _write_all(file.fileno(), piece)
                size += len(piece)
            os.fsync(file.fileno())
        drop_from_memory(path)
        if not self._equals(_decompressed(path) if compress else chunks_of(path)):
            raise OSError(errno.EIO, "the bytes read back differ from those written", str(path))
        digest = on_disk.hexdigest()
        return Written(Record(size, digest), content.hexdigest() if compress else digest)

    def _equals(self, pieces: Iterator[memoryview]) -> bool:
        """Whether `pieces` joined are this snapshot's bytes. numpy compares, which lets other threads run."""
        pending = np.empty(0, dtype=np.uint8)
        for expected in self.content():
            rest = np.frombuffer(expected, dtype=np.uint8)
            while rest.size:
                if not pending.size:
                    pending = np.frombuffer(next(pieces, b""), dtype=np.uint8)
                    if not pending.size:
                        return False
                size = min(rest.size, pending.size)
                if not np.array_equal(rest[:size], pending[:size]):
                    return False
                rest, pending = rest[size:], pending[size:]
        return not pending.size and next(pieces, None) is None


PARTS = "DCP_SHARDING_INFO"
"""In the metadata of a safetensors file: where its tensors begin in larger ones, in the form of
torch.distributed.checkpoint, whose HuggingFaceStorageReader reads such files."""


def shards_of(tensors: Mapping[str, Tensor], is_main: bool) -> tuple[dict[str, Tensor], dict[str, Sequence[int]]]:
    """What this rank stores of `tensors`: its parts of those that are divided, on the main rank the others too; and
    where each begins in the whole."""
    parts: dict[str, Tensor] = {}
    begins: dict[str, Sequence[int]] = {}
    for name, tensor in tensors.items():
        part, begin = local_part(tensor)
        if (part.numel() and is_sharded(tensor)) or (is_main and not is_sharded(tensor)):
            parts[name], begins[name] = part, begin
    return parts, begins


def _header(
    names: list[str],
    tensors: Mapping[str, Tensor],
    starts: list[int],
    ends: list[int],
    begins: Mapping[str, Sequence[int]] | None,
) -> bytes:
    about = {"format": "pt"}
    if begins is not None:
        about |= {"DCP_VERSION": "1.0", PARTS: json.dumps({n: {"saved_offsets": [*begins[n]]} for n in names})}
    entries: dict[str, object] = {"__metadata__": about}
    for name, start, end in zip(names, starts, ends, strict=True):
        tensor = tensors[name]
        shape = list(tensor.shape)
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _mark_streams(tensors: Mapping[str, Tensor]) -> list[torch.cuda.Event]:
    """An event per GPU that has happened once the copies out of it are done."""
    events = []
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        event.record(torch.cuda.current_stream(device))
        events.append(event)
    return events


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _compressed(pieces: Iterator[memoryview], content: hashlib._Hash) -> Iterator[memoryview]:
    compressor = zlib.compressobj(level=1)
    for piece in pieces:
        content.update(piece)
        if packed := compressor.compress(piece):
            yield memoryview(packed)
    yield memoryview(compressor.flush())


def _decompressed(path: Path) -> Iterator[memoryview]:
    """The uncompressed content in pieces of at most `CHUNK` bytes."""
    decompressor = zlib.decompressobj()
    for piece in chunks_of(path):
        rest: bytes | memoryview = piece
        while rest:
            unpacked = decompressor.decompress(rest, CHUNK)
            rest = decompressor.unconsumed_tail
            if unpacked:  # an empty piece would read as the end
                yield memoryview(unpacked)
    while unpacked := decompressor.decompress(decompressor.unconsumed_tail, CHUNK):
        yield memoryview(unpacked)


def first_nan(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor that holds NaN; None without any."""
    return next((name for name, tensor in tensors.items() if bool(tensor.isnan().any())), None)


def read_tensors(path: Path, largest: int | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file, compressed if its name ends with `.zlib`.

    Raises FileProblemError for a file that is damaged, and for a compressed one that would unpack into more than
    `largest` bytes of tensors, or into more than there is memory.
    """
    try:
        if path.name.endswith(COMPRESSED):
            return load_bytes(_unpack(path, largest))
        with open_regular(path):  # not a pipe, which would be waited for
            pass
        # load_file maps the file; a copy can't be reached by what happens to the file later
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError, zlib.error, ValueError) as error:
        raise FileProblemError(path, f"can't be read ({error})") from error


def read_shards(paths: Sequence[Path], largest: int | None = None) -> dict[str, Tensor]:
    """The tensors whose parts are in the safetensors files `paths`. Raises FileProblemError, as `read_tensors`."""
    parts: dict[str, list[tuple[Sequence[int], Tensor]]] = {}
    for path in paths:
        try:
            begins = _begins(path)
            for name, tensor in read_tensors(path, largest).items():
                begin = [int(place) for place in begins[name]["saved_offsets"]]
                if len(begin) != tensor.dim() or min(begin, default=0) < 0:
                    raise ValueError(f"{name} begins at {begin}")
                parts.setdefault(name, []).append((begin, tensor))
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise FileProblemError(path, f"can't be read ({type(error).__name__}: {str(error)[:80]})") from error
    return {name: _joined(name, pieces, paths[0]) for name, pieces in parts.items()}


def _begins(path: Path) -> Any:
    """Where the tensors of a file begin in larger ones."""
    pieces = _decompressed(path) if path.name.endswith(COMPRESSED) else chunks_of(path)
    start = bytearray()
    for piece in pieces:
        start += piece
        length = int.from_bytes(start[:8], "little")
        if length > LARGEST_HEADER:
            break
        if len(start) >= 8 + length:
            return json.loads(json.loads(start[8 : 8 + length])["__metadata__"][PARTS])
    raise ValueError("no header")


def _joined(name: str, pieces: Sequence[tuple[Sequence[int], Tensor]], where: Path) -> Tensor:
    """The tensor whose parts begin at these places."""
    if len(pieces) == 1 and not any(pieces[0][0]):
        return pieces[0][1]
    if len({(part.dtype, part.dim()) for _, part in pieces}) > 1:
        raise FileProblemError(where, f"the parts of {name} do not fit together")
    ends = [[a + n for a, n in zip(begin, part.shape, strict=True)] for begin, part in pieces]
    shape = [max(each) for each in zip(*ends, strict=True)]
    if math.prod(shape) != sum(part.numel() for _, part in pieces):  # before memory is asked for
        raise FileProblemError(where, f"the parts of {name} do not make a whole")
    whole = torch.zeros(shape, dtype=pieces[0][1].dtype)  # parts that overlap leave gaps
    for begin, part in pieces:
        whole[tuple(slice(a, a + n) for a, n in zip(begin, part.shape, strict=True))] = part
    return whole


def _unpack(path: Path, largest: int | None) -> bytes:
    """The content of a compressed file. Its header says how long it is, so that no more than that is unpacked."""
    unpacked = bytearray()
    total: int | None = None
    for piece in _decompressed(path):
        unpacked += piece
        if total is None and len(unpacked) >= 8:
            total = _content_size(path, unpacked, largest)
        if total is not None and len(unpacked) > total:
            raise ValueError("more data than its header says")
    return bytes(unpacked)


def _content_size(path: Path, start: bytearray, largest: int | None) -> int | None:
    """Bytes of the whole safetensors file that begins with `start`; None when its header is not complete."""
    length = int.from_bytes(start[:8], "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"a header of {megabytes(length)}")
    if len(start) < 8 + length:
        return None
    try:
        header = json.loads(start[8 : 8 + length])
        size = max((int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"), default=0)
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError("not a safetensors header") from error
    if largest is not None and size > largest:
        raise ValueError(f"{megabytes(size)} of tensors, but {METADATA} says {megabytes(largest)}")
    if size > (free := psutil.virtual_memory().available):
        raise ValueError(f"{megabytes(size)} of tensors, and {megabytes(free)} of memory is free")
    return 8 + length + size
