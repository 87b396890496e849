"""Names of Lhotse's recipes, without importing Lhotse, which takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

PARTS: dict[str, tuple[str, dict[str, object]]] = {
    "mini_librispeech": ("librispeech", {"dataset_parts": "mini_librispeech"}),
}
"""Corpora that are parts of others: name -> the recipe, and the arguments that choose the part."""

LOCAL_SPEAKERS = frozenset({"voxconverse"})
"""Recipes whose speakers (spk00, spk01, ...) are other people in each recording."""

_FUNCTION = re.compile(r"\bprepare_(\w+)")


@functools.cache
def recipe_names() -> list[str]:
    """What `datasets` may name: each X of which `lhotse.recipes` has a function prepare_X, and those in PARTS."""
    spec = importlib.util.find_spec("lhotse")
    if spec is None or spec.origin is None:
        return sorted(PARTS)
    exported = (Path(spec.origin).parent / "recipes" / "__init__.py").read_text(encoding="utf-8")
    return sorted({*_FUNCTION.findall(exported), *PARTS})
