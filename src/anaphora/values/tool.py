"""A tool as the model sees it."""

from __future__ import annotations

import msgspec

from .parts import Extras
from .stability import CachePolicy


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Name, description and schema. `schema` is JSON text, canonical since the tool was made."""

    name: str
    description: str = ""
    schema: str = '{"properties":{},"type":"object"}'
    strict: bool | None = None
    cache: CachePolicy = CachePolicy.NONE
    extras: Extras | None = None
