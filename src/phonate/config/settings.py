"""The base of every settings class."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from phonate.config.errors import InputError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _OneLineErrors(ModelMetaclass):
    """Makes a call of the class raise InputError, one line for each mistake. Validation of documents is not a call."""

    if not TYPE_CHECKING:  # type checkers see pydantic's signature

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                from phonate.config.mistakes import call_lines

                raise InputError("\n".join(call_lines(error, cls, values))) from None


class Settings(BaseModel, metaclass=_OneLineErrors):
    """Frozen, typed settings. Unknown keys are mistakes; the docstring under a field is its documentation.

    One class feeds the YAML recipe, dotted overrides, the reference page and the JSON schema. Modules that
    define settings import no torch, so that a mistake in a recipe is reported in well under a second.
    Calling the class with a mistake raises InputError.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    @classmethod
    def documentation(cls) -> Mapping[str, str]:
        """The docstring under each field, inherited ones included.

        The source is read when this is asked for, as that takes longer than to resolve a recipe.
        """
        return _documentation(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema, with the docstrings as descriptions."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in cls.documentation().items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema

    refused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that other projects have here -> why there is no such option, and what to use instead."""

    inherits: ClassVar[Mapping[str, str]] = {}
    """Sections -> the section whose options they have where their own are not written."""


@functools.cache
def _documentation(cls: type[Settings]) -> dict[str, str]:
    """Field -> the string that follows its annotation in the body of the class, or of the nearest class above it."""
    found: dict[str, str] = {}
    for one in cls.__mro__[::-1]:
        if not issubclass(one, Settings) or one.__pydantic_generic_metadata__["origin"] is not None:
            continue
        try:
            source = textwrap.dedent(inspect.getsource(one))
        except (OSError, TypeError):  # made by a call, not written
            continue
        body = getattr(ast.parse(source).body[0], "body", [])
        for field, after in itertools.pairwise(body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found
