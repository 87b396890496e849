"""Settings of one corpus: an entry of the recipe's `datasets`. Lhotse is not imported, which takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from phonate.audio.settings import KaldiSettings
from phonate.config.registry import nearest
from phonate.config.settings import Settings

# ---------------------------- Names of Lhotse's recipes, without importing Lhotse, which takes seconds

LHOTSE = "'phonate[lhotse]'"
"""What to install for Lhotse's recipes and manifests."""

PARTS: dict[str, tuple[str, dict[str, object]]] = {
    "mini_librispeech": ("librispeech", {"dataset_parts": "mini_librispeech"}),
}
"""Corpora that are subsets of others: name -> the recipe, and the arguments that select the subset."""

LOCAL_SPEAKERS = frozenset({"voxconverse"})
"""Recipes whose speaker names (spk00, spk01, ...) are valid only within a recording."""

_FUNCTION = re.compile(r"\bprepare_(\w+)")


@functools.cache
def recipe_names() -> list[str]:
    """The valid names in `datasets`: each X with a function `lhotse.recipes.prepare_X`, and the names in PARTS; none
    without Lhotse."""
    spec = importlib.util.find_spec("lhotse")
    if spec is None or spec.origin is None:
        return []
    exported = (Path(spec.origin).parent / "recipes" / "__init__.py").read_text(encoding="utf-8")
    return sorted({*_FUNCTION.findall(exported), *PARTS})


# ----------------------------------------- Settings of one corpus: an entry of the recipe's `datasets`

_ONE_MODEL = "features must be the same for all corpora; set it in global_config (data.audio)"
_ONE_STORE = "all corpora are prepared together; set it in global_config (data)"


class DatasetSettings(Settings):
    """A corpus: a folder in any format, or one that is downloaded and prepared by a Lhotse recipe."""

    refused_keys: ClassVar = {
        **dict.fromkeys(KaldiSettings.model_fields, _ONE_MODEL),
        **dict.fromkeys(("storage_path", "storage_type", "num_jobs", "progress_bar"), _ONE_STORE),
    }

    name: str
    """A Lhotse recipe (ami, voxconverse, librispeech, mini_librispeech, timit, yesno, ...); any name if `path` is set.
    If there are several corpora, it becomes a prefix of recording ids and speaker names."""
    path: str | None = None
    """A folder or metadata file on disk, in any format. Null: the Lhotse recipe `name` prepares the corpus."""
    format: str = "auto"
    """Its format, as in `data.format`."""
    unit: Literal["auto", "recording", "segment"] = "auto"
    """What a sample is if segments have times, as in `data.unit`. auto: as `data.unit`."""
    drop: str | None = None
    """A file of recording ids to leave out, one per line."""
    limit: PositiveInt | None = None
    """Use only this many of its recordings. Null: all."""
    corpus_dir: str | None = None
    """Folder of this corpus. Null: the subfolder `name` of the common corpus_dir."""
    output_dir: str | None = None
    """Folder of its manifests. Null: the subfolder `name` of the common output_dir."""
    force_download: bool | None = None
    """Download again even if the corpus exists. Null: the common force_download."""
    download_params: dict[str, Any] = Field(default={})
    """Arguments of Lhotse's download function."""
    process_params: dict[str, Any] = Field(default={})
    """Arguments of Lhotse's prepare function, such as `{mic: sdm}` for ami. They are also passed to the download
    function if it accepts them."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not self.name or "/" in self.name:
            raise ValueError(f"name {self.name!r}: must not be empty or contain /")
        if self.path is None and not recipe_names():
            raise ValueError(f"{self.name}: no path, and its recipe needs Lhotse; pip install {LHOTSE}")
        if self.path is None and self.name not in recipe_names():
            raise ValueError(f"no path, and Lhotse has no recipe {self.name!r}; {nearest(self.name, recipe_names())}")
        given = [key for key in ("corpus_dir", "output_dir", "force_download") if getattr(self, key) is not None]
        given += [key for key in ("download_params", "process_params") if getattr(self, key)]
        if self.path is not None and given:
            raise ValueError(f"{given[0]} is only for corpora prepared by a recipe; this one is read from {self.path}")
        return self
