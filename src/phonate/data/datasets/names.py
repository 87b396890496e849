"""Names of Lhotse's recipes, without importing Lhotse, which takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

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
