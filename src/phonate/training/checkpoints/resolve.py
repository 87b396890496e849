"""From the name of a checkpoint to its folder. No torch in this file."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from phonate.config.documents import parse
from phonate.config.errors import CheckpointError, InputError, RecipeError, optional_package
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.manifest import problems
from phonate.training.settings import CheckpointConfig

_log = logging.getLogger(__name__)

DEFAULT_FOLDER = CheckpointConfig().save_dir
BASE_VOICE = "base/voice"
"""Name of the voice that comes with phonate."""
BASE_VOCODER = "base/vocoder"
"""Name of its vocoder."""
HUB = "hf:"
"""How names on the Hugging Face Hub begin."""
MODEL_FILES = ("*.json", "*.safetensors", "*.yaml", "*.txt", "*.md")
"""What a model on the hub may hold: nothing that runs."""
_HUB_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_PACKAGE = Path(__file__).parents[2]


def resolve_checkpoint(
    text: str | Path, run: str | Path | None = None, prefer: Literal["latest", "best"] = "latest"
) -> Path:
    """The folder of the checkpoint that `text` names.

    `text` is a checkpoint's folder, a run's folder or its folder of checkpoints (the newest intact one, or the
    best with `prefer="best"`), or, within `run`: `auto` or `latest`, `best`, a step (500), a name (step-00000500), a
    version (v3); or what `located` takes: BASE_VOICE, BASE_VOCODER, hf:OWNER/NAME. Raises InputError when there is no
    such checkpoint, CheckpointError when none in it is intact.
    """
    path = located(Path(text))
    if path.is_dir() and is_checkpoint(path):
        return path
    if run is not None and not path.is_dir():
        return find(checkpoints_folder(Path(run)), str(text))
    if not path.is_dir():
        raise InputError(f"{text}: no such run or checkpoint")
    return find(checkpoints_folder(path), prefer)


def located(path: Path) -> Path:
    """The folder of BASE_VOICE or BASE_VOCODER, or of a model on the Hugging Face Hub (hf:OWNER/NAME, downloaded once),
    where no such folder is here; any other path as it is. Raises InputError where the hub has no such model."""
    if path.exists():
        return path
    if str(path).startswith(HUB):
        return _downloaded(str(path))
    return _PACKAGE / path if str(path) in (BASE_VOICE, BASE_VOCODER) else path


def hub_name(text: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision of hf:OWNER/NAME or hf:OWNER/NAME@REVISION. Raises InputError for another form."""
    name = _HUB_NAME.fullmatch(text)
    if name is None:
        raise InputError(f"{text}: no name of a model on the hub; write it as hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return name[1], name[2]


def _downloaded(text: str) -> Path:
    name, revision = hub_name(text)
    hub: Any = optional_package("huggingface_hub", "a model on the hub", "'phonate[hub]'")
    errors: Any = importlib.import_module("huggingface_hub.errors")
    try:
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=MODEL_FILES))
    except errors.RevisionNotFoundError:
        raise InputError(f"{text}: that model has no such revision") from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{text}: the hub has no such model, or it is private; for a private one, set HF_TOKEN"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{text}: can't be downloaded ({reason})") from error
    if not is_checkpoint(folder):
        raise InputError(f"{text}: is no model of phonate's; those have a {files.MANIFEST}")
    return folder


def best_or_latest(source: str | Path) -> Path:
    """The checkpoint that `source` names; of a run the best one, or the newest when none was chosen yet."""
    try:
        return resolve_checkpoint(source, prefer="best")
    except CheckpointError:
        return resolve_checkpoint(source)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint's folder, damaged or not."""
    return (path / files.MANIFEST).exists() or (path / files.METADATA).exists()


def has_checkpoint(run: Path) -> bool:
    """Whether `run` is a run with a checkpoint."""
    return bool(listing.scan(run / save_dir(run)))


def checkpoints_folder(path: Path) -> Path:
    """The folder of checkpoints of the run `path`, or `path` if it is one. Raises CheckpointError.

    In a run it is what the recipe's `training.checkpoint.save_dir` says.
    """
    if is_checkpoint(path):
        raise CheckpointError(
            f"{path}: one checkpoint, not a run; phonate checkpoints verify, export, push and merge take it"
        )
    candidates = [path, path / save_dir(path)]
    if path.is_dir():
        candidates += sorted(child for child in path.iterdir() if child.is_dir())
    for candidate in candidates:
        if listing.scan(candidate):
            return candidate
    raise CheckpointError(f"{path}: no checkpoints here")


def save_dir(run: Path) -> str:
    """`training.checkpoint.save_dir` of the run's recipe; its default in a folder without one."""
    recipe = run / files.RECIPE
    try:
        value: Any = parse(recipe.read_text(encoding="utf-8"), str(recipe)).values
    except (OSError, UnicodeDecodeError, RecipeError):
        value = None
    for key in ("training", "checkpoint", "save_dir"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else DEFAULT_FOLDER


def run_of(folder: Path) -> Path:
    """The run whose folder of checkpoints `folder` is. Raises InputError where none around it says so."""
    whole = folder.resolve()
    for given in (folder, *folder.parents, *whole.parents):  # the path as it was given, if that is long enough
        if (given / save_dir(given)).resolve() == whole:
            return given
    raise InputError(f"{folder}: no folder around it is the run of these checkpoints; name the run with --output")


def run_with(recipe: Path | None) -> Path | None:
    """The run that wrote the file `recipe`, into its folder or one of its checkpoints; None for any other recipe."""
    if recipe is None or recipe.name != files.RECIPE:
        return None
    folder = recipe.parent
    if is_checkpoint(folder):
        return run_of(folder.parent)
    return folder if (folder / "system.json").is_file() or has_checkpoint(folder) else None


def find(where: Path, text: str) -> Path:
    """The checkpoint `text` in `where`: latest or auto, best, a step (500), a name (step-00000500), a version (v3)."""
    infos = listing.scan(where)
    if text in ("latest", "auto"):
        return _first_intact(listing.newest_first(infos), where)
    if text == "best":
        ranked = listing.ranking(infos)
        if not ranked:
            raise CheckpointError(f"{where}: no checkpoint was chosen as the best yet")
        return _first_intact(ranked, where)
    number = text.removeprefix("step-")
    step = int(number) if number.isascii() and number.isdecimal() and len(number) < 20 else None
    for item in infos:
        if step == item.step or (item.metadata and text == f"v{item.metadata.version}"):
            return item.path
    available = ", ".join(_described(item) for item in infos) or "none"
    raise InputError(f"{where}: no checkpoint {text!r} (a number is a step); available: {available}")


def _described(item: listing.CheckpointInfo) -> str:
    version = item.metadata.version if item.metadata else None
    return f"{item.step}" if version is None else f"{item.step} (v{version})"


def _first_intact(infos: Iterable[listing.CheckpointInfo], where: Path) -> Path:
    for item in infos:
        damage = problems(item.path)
        if not damage:
            return item.path
        _log.warning("%s is damaged (%s); going back to an older one", item.name, "; ".join(map(str, damage)))
    raise CheckpointError(f"{where}: no intact checkpoint here")
