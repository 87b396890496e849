"""The base of every settings class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

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
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    refused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that other projects have here -> why there is no such option, and what to use instead."""
