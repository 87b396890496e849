"""YAML 1.2 documents as plain values, with the place of every key and value.

`2e-4` and `1e-6` are numbers; `no`, `yes`, `on` and dates are text. Tags that would build objects or run code
are refused, so are repeated keys. Every mistake is one line that begins with `file:line:column`.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from phonate.config.errors import RecipeError
from phonate.config.registry import looked_in, nearest

try:
    from ruamel.yaml.cyaml import CParser  # type: ignore[attr-defined]
except ImportError:  # ruamel.yaml does without it
    CParser = None

Key = tuple[str, ...]
"""The keys that lead to a value; positions in lists are written as digits."""

_TAG = "tag:yaml.org,2002:"
_COMPUTED = {_TAG + name for name in ("null", "bool", "int", "float")}
_TEXT = {_TAG + name for name in ("str", "timestamp", "value")}
_LARGEST = 20_000
"""Maximum number of values in a document: nested aliases can expand a short text to billions."""
DEEPEST = 40
"""Maximum depth of nesting."""
_LONGEST = 20_000
"""Maximum characters of a text that libyaml is given."""
_SPECIAL = re.compile(r"[^\n -~]|[%&*!?|>@`]|---|\.\.\.")
"""What libyaml reads otherwise, or what refers to other parts: line ends, tags, aliases, blocks, several documents."""
_COMMENT_LINE = re.compile(r"^ *#[ -~]*$", re.MULTILINE)
"""May have those characters. (In a quoted text such a line is none, and they mean nothing.)"""
_NESTING = re.compile(r"[\[{]|-\s")
_MOST_NESTED = 200
"""Maximum number of places where nesting may begin: libyaml's composer calls itself for each level, without limit."""


@dataclass(frozen=True)
class Place:
    """Where a key and its value were written, such as `recipe.yaml:12:5`, or `command line` for both."""

    key: str
    value: str
    written: str | None = None
    """The dotted key as it was written, where that is not the option's path."""
    text: str | None = None
    """A number as it was written, such as 0o17."""

    @classmethod
    def of(cls, name: str) -> Place:
        """The same name for key and value."""
        return cls(name, name)


@dataclass(frozen=True)
class Document:
    """A recipe as written."""

    name: str
    """What errors call it."""
    text: str
    """The file, byte for byte."""
    values: dict[str, Any]
    places: dict[Key, Place] = field(repr=False)
    title: str = ""
    """What its run is called by default: the file's name, or the folder's if a run was given."""
    path: Path | None = None
    """The file; None for a shipped recipe, and for text that is in no file."""


def value_at(values: Any, path: Iterable[str]) -> Any:
    """The value at `path` in nested mappings; None where there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


SHIPPED = "shipped "
"""How the name of a shipped recipe's document begins."""


def shipped() -> list[str]:
    """Names of the recipes inside the package."""
    folder = resources.files("phonate.recipes")
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read(source: str | Path, empty: bool = False) -> Document:
    """Read a recipe: a file, a run folder (its `recipe.yaml`), or the name of a shipped recipe.

    `empty`: whether an empty file is allowed.

    Raises RecipeError, one line, for a file that can't be read, for bad YAML, and for an unknown name (with
    the nearest one).
    """
    path = _locate(source)
    source_path = Path(source)
    # errors name a file as it was given, so that terminals can open it; a shipped one by its name alone
    own = path.is_relative_to(source_path)
    name = str(path) if own else f"{SHIPPED}{path.name}"
    if own and name.startswith(SHIPPED):
        name = f"./{name}"  # that of no shipped one
    title = path.resolve().parent.name if own and source_path.is_dir() else path.stem
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name}: not a text file (byte {error.start} is not UTF-8); give a recipe") from None
    except OSError as error:
        raise RecipeError(f"{name}: can't be read: {error.strerror or error}") from None
    return replace(parse(text, name, title, empty), path=path if own else None)


def _locate(source: str | Path) -> Path:
    path = Path(source)
    if path.is_dir() and (path / "recipe.yaml").is_file():
        return path / "recipe.yaml"
    if path.is_file():
        return path
    text = str(source)
    if text in shipped():
        return Path(str(resources.files("phonate.recipes").joinpath(f"{text}.yaml")))
    if path.is_dir():
        if (path / "logs").is_dir():
            raise RecipeError(
                f"{text}: stopped before its training began, so without recipe.yaml; give its recipe again"
            )
        first = f"speech {shlex.quote(f'data.path={text}')}"
        raise RecipeError(f"{text}: a folder without recipe.yaml; give a run's folder, or a recipe first: {first}")
    if path.suffix in {".yaml", ".yml"} or path.name != text:
        files = [file for file in path.parent.glob("*.y*ml") if file.is_file()] if path.parent.is_dir() else []
        beside = [str(file) for file in files if re.search(r"^task\s*:", file.read_text("utf-8", "replace"), re.M)]
        hint = nearest(text, beside) if beside else f"give one that is there, or a shipped one: {', '.join(shipped())}"
        what = "recipe file" if path.suffix in {".yaml", ".yml"} else "run or recipe file"
        raise RecipeError(f"{text}: no such {what}{looked_in(path)}; {hint}")
    raise RecipeError(f"{text}: neither a file nor a shipped recipe; {nearest(text, shipped())}")


@lru_cache(maxsize=16)
def parse(text: str, name: str, title: str = "", empty: bool = False) -> Document:
    """The document in `text`. Its top level must be a mapping; with `empty` it may be missing.

    A text is parsed once: nothing changes the values of a document.
    """
    root, places = _values(text, name)
    if root is None and empty:
        root = {}
    if root is None:
        raise RecipeError(f"{name}:1:1: the recipe is empty; it needs at least `task`")
    if not isinstance(root, dict):
        raise RecipeError(f"{name}:1:1: a recipe is a mapping (task: ..., data: ..., ...), not {_kind(root)}")
    return Document(name, text, root, places, title)


def parse_value(text: str, name: str) -> Any:
    """One YAML value, as written after `key=` on the command line."""
    return _values(text, name, located=False)[0]


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {value!r}"


def _values(text: str, name: str, located: bool = True) -> tuple[Any, dict[Key, Place]]:
    yaml = YAML(typ="safe", pure=True)
    reader = _Reader(yaml, name, located)
    try:
        node = _composed_by_libyaml(text, yaml)
        if node is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML 1.2 allows it
                node = yaml.compose(text)
        return (None if node is None else reader.value(node, ())), reader.places
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise RecipeError(f"{_at(name, line, column, located)}: a character that YAML forbids") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = _at(name, mark.line + 1, mark.column + 1, located) if mark else name
        raise RecipeError(f"{where}: not valid YAML: {_sentence(error)}") from None
    except YAMLError as error:
        raise RecipeError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise RecipeError(f"{name}: not valid YAML: nested too deeply") from None


def _composed_by_libyaml(text: str, yaml: YAML) -> Node | None:
    """The nodes of a text that YAML 1.1 and 1.2 write alike, ten times as fast as Python finds them.

    None for every other text, for an empty one and for one with a mistake, whose words and place are ruamel.yaml's.
    """
    rest = _COMMENT_LINE.sub("", text)
    if CParser is None or len(text) > _LONGEST or _SPECIAL.search(rest) or len(_NESTING.findall(rest)) > _MOST_NESTED:
        return None

    tags: dict[str, Any] = {}

    class Composer(CParser):  # type: ignore[misc]
        @staticmethod
        def resolve(kind: Any, value: Any, implicit: Any) -> Any:
            """Numbers and booleans are those of YAML 1.2. One object for each tag, which computes its name once."""
            tag = yaml.resolver.resolve(kind, value, implicit)
            return tags.setdefault(tag.suffix, tag)

        def descend_resolver(self, parent: Node | None, index: Any) -> None:
            """Nothing depends on where a value is."""

        def ascend_resolver(self) -> None:
            """Nothing depends on where a value is."""

    try:
        node: Node | None = Composer(text).get_single_node()
    except YAMLError:
        return None
    return node


def _at(name: str, line: int, column: int, located: bool) -> str:
    return f"{name}:{line}:{column}" if located else name


def _sentence(error: MarkedYAMLError) -> str:
    parts = [part for part in (error.context, error.problem) if part]
    return re.sub(r"\s+", " ", ", ".join(parts)) or "the syntax is wrong"


class _Reader:
    """Turns composed nodes into plain values, and records where each was written."""

    def __init__(self, yaml: YAML, name: str, located: bool) -> None:
        self.constructor = yaml.constructor
        self.name = name
        self.located = located
        self.places: dict[Key, Place] = {}
        self.count = 0

    def where(self, node: Node) -> str:
        return _at(self.name, node.start_mark.line + 1, node.start_mark.column + 1, self.located)

    def value(self, node: Node, path: Key, key: Node | None = None) -> Any:
        self.count += 1
        if self.count > _LARGEST:
            raise RecipeError(f"{self.where(node)}: more than {_LARGEST} values, aliases unfolded")
        if len(path) > DEEPEST:
            raise RecipeError(f"{self.where(node)}: nested more than {DEEPEST} levels deep")
        self.places[path] = Place(self.where(key or node), self.where(node))
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return {text: self.value(child, (*path, text), child_key) for text, child_key, child in self._pairs(node)}
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(child, (*path, str(i))) for i, child in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            value = self._scalar(node)
            if isinstance(value, (int, float)):
                self.places[path] = replace(self.places[path], text=node.value)
            return value
        raise self._refused_tag(node)

    def _pairs(self, node: MappingNode) -> Iterator[tuple[str, Node, Node]]:
        first: dict[str, Node] = {}
        for key, child in node.value:
            if not isinstance(key, ScalarNode):
                raise RecipeError(f"{self.where(key)}: a key must be plain text")
            if key.tag == _TAG + "merge":
                raise RecipeError(f"{self.where(key)}: YAML 1.2 has no merge key (<<); write the keys out")
            if key.value in first:
                earlier = self.where(first[key.value])
                raise RecipeError(f"{self.where(key)} {key.value}: written twice, first at {earlier}")
            first[key.value] = key
            yield key.value, key, child

    def _scalar(self, node: ScalarNode) -> Any:
        if node.tag in _TEXT:
            return node.value
        if node.tag not in _COMPUTED:
            raise self._refused_tag(node)
        try:
            return self.constructor.construct_object(node)
        except (ValueError, KeyError, ArithmeticError):
            kind = str(node.tag).removeprefix(_TAG)
            raise RecipeError(f"{self.where(node)}: {node.value!r} is no {kind}") from None

    def _refused_tag(self, node: Node) -> RecipeError:
        tag = str(node.tag).replace(_TAG, "!!")
        return RecipeError(f"{self.where(node)}: the tag {tag} is refused; recipes hold plain values only")
