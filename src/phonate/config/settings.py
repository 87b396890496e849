"""The base of every settings class."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen, typed settings. Unknown keys are mistakes; the docstring under a field is its documentation.

    One class feeds the YAML recipe, dotted overrides, the reference page and the JSON schema. Modules that
    define settings import no torch, so that a mistake in a recipe is reported in well under a second.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )
