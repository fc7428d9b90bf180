"""Tools as the model sees them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .parts import Extras
from .stability import CachePolicy


class Tool(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="type",
    tag="function",
):
    """Name, description and schema. `schema` is JSON text, canonical since the tool was made."""

    name: str
    description: str = ""
    schema: str = '{"properties":{},"type":"object"}'
    strict: bool | None = None
    cache: CachePolicy = CachePolicy.NONE
    extras: Extras | None = None


class ProviderTool(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="type",
    tag="provider",
):
    """A tool that a provider brings along (web search, code execution): `json` is its definition,
    as that provider wants it."""

    provider: str
    name: str
    json: str
    cache: CachePolicy = CachePolicy.NONE


AnyTool: TypeAlias = Tool | ProviderTool
