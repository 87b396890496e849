"""Reads back what an offline run of W&B has written."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEAD, _BEGINNING = 32768, 7, 7
_WHOLE, _LAST = 1, 4


def offline_file(run: Path) -> Path:
    """The file of the one offline run in the folder of a run of ours."""
    (found,) = run.glob("wandb/offline-run-*/*.wandb")
    return found


def records(path: Path) -> Iterator[Any]:
    """Its records. They lie in blocks as in LevelDB's log: checksum, length, kind (whole, or first to last part)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), _BEGINNING, b""
    while at + _HEAD <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _HEAD:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if kind in {_WHOLE, _LAST}:
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """The rows of its curves, each name with its value."""
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]
