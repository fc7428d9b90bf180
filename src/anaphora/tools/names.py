"""Tool names that every provider takes."""

from __future__ import annotations

import re

from blake3 import blake3

from anaphora.errors import InvalidTool

_MAX_LENGTH = 64
_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


def wire_name(name: str) -> str:
    """The name as the model sees it; a legal name is its own wire name.

    Any other name gets `_` for each illegal character and a hash of the whole name at the end, so
    that `a.b` and `a/b`, or two long names with one beginning, stay two tools.
    """
    if _LEGAL.fullmatch(name):
        return name
    if not name:
        raise InvalidTool("a tool needs a name", path="name")
    # A lone surrogate is illegal here like any other odd character, not an error.
    suffix = "_" + blake3(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return _ILLEGAL_CHARACTER.sub("_", name)[: _MAX_LENGTH - len(suffix)] + suffix
