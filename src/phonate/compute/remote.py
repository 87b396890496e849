"""Files at addresses that fsspec opens: s3://, gs://, hf://, memory://, http:// and the others; models on the hub."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from phonate.compute.system import write_whole, written_whole
from phonate.config.errors import DataError, InputError, MissingPackageError, optional_package

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "abfs"}
"""Kinds of addresses that obstore opens where fsspec's own package for them (s3fs, gcsfs, adlfs) is not installed."""
_WEB = ("http://", "https://")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound")
_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
_TAG = re.compile(r"<[^<>]*>")
_LONGEST_REASON = 300
_PATIENCE = 10.0
"""Seconds to wait for the hub."""
_AT_ONCE = 8
_RECORD = ".mirror.json"
_STAMPS = (
    *("ETag", "etag", "e_tag", "mtime", "LastModified", "Last-Modified", "last_modified"),
    *("updated", "created", "sha256", "blob_id"),
)


def is_remote(name: str) -> bool:
    """Whether it is an address, such as s3://bucket/corpus, and no path."""
    return _ADDRESS.match(name) is not None


def on_disk(name: str | Path) -> Path:
    """The path `name`. Raises InputError for an address, where only paths are taken."""
    if isinstance(name, str) and is_remote(name):
        raise InputError(f"{name}: an address, where only files on a disk are read and written; give a path on one")
    return Path(name)


def base_name(name: str) -> str:
    """The last part of an address or a path."""
    return name.rstrip("/").rpartition("/")[2]


def hub_network_errors() -> tuple[type[Exception], ...]:
    """What the hub's library raises where the network fails: errors of httpx, httpx2 or requests, by its version."""
    session: Any = importlib.import_module("huggingface_hub").get_session()
    return OSError, importlib.import_module(type(session).__module__.partition(".")[0]).HTTPError


def hub_is_out_of_reach() -> str:
    """Why the Hugging Face Hub can't be reached, and what to do; "" where it can. Asked before its library is,
    which tries for half a minute, file by file."""
    hub: Any = importlib.import_module("huggingface_hub")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids to download; unset it"
    try:
        hub.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except hub_network_errors() as error:
        host = constants.ENDPOINT.partition("://")[2]
        return f"{host} can't be reached ({_reason(error)}); check the network"
    return ""


def missing_model(name: str, file: str = "config.json", revision: str | None = None) -> str:
    """Why a model that is not on this disk can't be downloaded from the hub, and what to do; "" where it is or can be.
    `file`: one that each such model has."""
    if Path(name).is_dir() or importlib.util.find_spec("huggingface_hub") is None:
        return ""
    try:
        cached = downloaded(name, file, revision)
    except ValueError:  # no name of a model: who loads it says so
        return ""
    why = "" if isinstance(cached, Path) else hub_is_out_of_reach()
    return f"not on this disk, and {why}" if why else ""


def downloaded(name: str, file: str, revision: str | None = None) -> Path | Literal["absent"] | None:
    """Where a file of a model on the hub was downloaded to; "absent" if the model has no such file; None if neither is
    known. Raises ValueError for what is no name of a model."""
    cached = importlib.import_module("huggingface_hub").try_to_load_from_cache(name, file, revision=revision)
    return Path(cached) if isinstance(cached, str) else None if cached is None else "absent"


def filesystem(address: str) -> tuple[Any, str]:
    """fsspec's file system for an address, and the path in it.

    Raises MissingPackageError without the package for addresses of this kind, InputError for one that nobody knows.
    """
    fsspec = optional_package("fsspec", address, "'phonate[remote]'")
    kind = address.partition("://")[0]
    try:
        file_system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        if kind not in _OBJECT_STORES:
            install = "pip install 'phonate[hub]'" if kind == "hf" else f"install the package of fsspec for {kind}://"
            raise MissingPackageError(f"{address}: {error}; {install}") from error
        stores = optional_package("obstore.fsspec", address, "'phonate[remote]'")
        file_system = stores.FsspecStore(_OBJECT_STORES[kind])
        path = address.partition("://")[2].rstrip("/")
    except ValueError as error:
        raise InputError(f"{address}: {error}; give a folder, or an address that fsspec opens") from error
    return file_system, str(path)


@contextmanager
def reported(address: str, writing: bool = False) -> Iterator[None]:
    """Raises DataError in place of whatever a file system raises."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # each of fsspec's file systems has errors of its own
        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, OSError):
            error = error.__cause__  # aiohttp's: its server was not reached
        if isinstance(error, FileNotFoundError) or _NO_BUCKET.search(str(error)):
            mend = "make its bucket first" if writing else "correct data.path, or upload it there"
            raise DataError(f"{address}: no such file or folder; {mend}") from error
        done = "written" if writing else "read"
        raise DataError(
            f"{address}: can't be {done} ({_reason(error)}); check the address, the network and the access"
        ) from error


def _reason(error: Exception) -> str:
    """A file system's error in a line, without the page that a server sent and what obstore says for its makers."""
    text = _NUMBER.sub("", _TAG.sub(" ", str(error).partition("Debug source:")[0]))
    return shorten(text, _LONGEST_REASON, placeholder=" ...") or type(error).__name__


def stamp_of(facts: dict[str, Any]) -> str:
    """What tells a state of a file from an earlier one, of what a file system says of it."""
    return json.dumps([facts.get("size"), *[str(facts[name]) for name in _STAMPS if facts.get(name)][:1]])


def files_below(address: str) -> dict[str, str]:
    """The files at an address with their stamps, sorted, each by its own address: of a file, itself. Hidden ones are
    left out. Raises DataError where there is none."""
    file_system, root = filesystem(address)
    with reported(address):
        if _is_file(file_system, address, root):
            facts = file_system.info(root)
            _require_no_page(address, facts)
            return {address: stamp_of(facts)}
        found = file_system.find(root, detail=True)
        base = root.rstrip("/")
        below = {path[len(base) :].lstrip("/"): stamp_of(facts) for path, facts in sorted(found.items())}
    listed = {
        f"{address.rstrip('/')}/{name}": stamp
        for name, stamp in below.items()
        if name and not any(part.startswith(".") for part in name.split("/"))
    }
    if not listed:
        raise DataError(f"{address}: no such file or folder, or nothing is in it; correct data.path")
    return listed


def _is_file(file_system: Any, address: str, path: str) -> bool:
    """Whether a file is there. On the web all are, and every error would count as a missing one."""
    if not address.startswith(_WEB):
        return bool(file_system.isfile(path))
    file_system.info(path)
    return True


def _require_no_page(address: str, facts: dict[str, Any]) -> None:
    """Raises InputError for a page of the web, as servers show for folders."""
    if str(facts.get("mimetype", "")).startswith("text/html"):
        raise InputError(
            f"{address}: is a page, which does not say what else is there; give the address of a list of recordings, "
            "or of a shard (.tar)"
        )


def read_range(address: str, start: int, end: int) -> bytes:
    """Bytes `start` to `end` of a file. Raises DataError where they are not there."""
    file_system, path = filesystem(address)
    with reported(address):
        data = bytes(file_system.cat_file(path, start=start, end=end))
        if len(data) > end - start:
            raise InputError(
                f"{address}: its server sends no parts of files (ranges); copy it to a disk, or to a server that does"
            )
        if len(data) != end - start:
            raise OSError(f"{len(data)} bytes from {start} on in place of {end - start}; it was changed")
    return data


def open_at(address: str) -> Any:
    """A file, open for reading bytes: of a path or an address."""
    if not is_remote(address):
        return open(address, "rb")
    file_system, path = filesystem(address)
    with reported(address):
        return file_system.open(path, "rb", block_size=1 << 22)


def upload(file: Path, address: str) -> None:
    """Put a file at an address, in the place of an earlier one."""
    file_system, path = filesystem(address)
    with reported(address, writing=True):
        file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
        file_system.put_file(str(file), path)


def mirrored(address: str, cache: Path) -> Path:
    """The folder or file at an address as one on this disk, below `cache`. Only what is new or changed is fetched, and
    what is gone is removed. Of a list, everything beside it is fetched, where the file system can tell what that is."""
    file_system, path = filesystem(address)
    with reported(address):
        single = _is_file(file_system, address, path)
        if single:
            _require_no_page(address, file_system.info(path))
    folder, name = (address.rstrip("/").rpartition("/")[::2]) if single else (address.rstrip("/"), "")
    lists_folders = not address.startswith(_WEB)
    listed = files_below(folder) if lists_folders or not single else {address: stamp_of(file_system.info(path))}
    root = cache / "remote" / hashlib.sha256(folder.encode()).hexdigest()[:16] / (base_name(folder) or "corpus")
    root.mkdir(parents=True, exist_ok=True)
    record = root.parent / _RECORD
    known: dict[str, str] = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    wanted = {one[len(folder) + 1 :]: stamp for one, stamp in listed.items()}
    for gone in known.keys() - wanted.keys():
        (root / gone).unlink(missing_ok=True)
    missing = [one for one, stamp in wanted.items() if known.get(one) != stamp or not (root / one).is_file()]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda one: fetched(f"{folder}/{one}", root / one), missing):
            pass
    record.parent.mkdir(parents=True, exist_ok=True)
    write_whole(record, json.dumps(wanted).encode())
    return root / name


def fetched(address: str, file: Path) -> None:
    """Copy the file at an address. Raises DataError where it can't be read."""
    if ".." in file.parts:
        raise DataError(f"{address}: its name leads out of its folder; rename it")
    file_system, path = filesystem(address)
    with reported(address):
        file.parent.mkdir(parents=True, exist_ok=True)
        written_whole(file, lambda beside: file_system.get_file(path, str(beside)))
