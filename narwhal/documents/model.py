"""The base of every document: strict, immutable, with its version and kind."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

API_VERSION = "narwhal/v1"


class Model(BaseModel):
    """A part of a document: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True)


class Document(Model):
    """A whole document; subclasses narrow `kind` to a literal."""

    api_version: Literal["narwhal/v1"] = Field(default="narwhal/v1", alias="apiVersion")
    """Version of the document's schema."""
    kind: str
    """What the document is."""
