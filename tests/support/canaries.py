"""Records whose every text is a canary: whatever is exported of them must not hold it."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec

PROMPT = "My name is CANARY and I am ill"
KEY = "sk-ant-CANARY-0123456789"

#: The app's own names, exported on purpose: ids in the configuration and labels of blocks.
NAMES = {"provider", "label"}
#: Ids and names that providers and configurations give. A sentence there is caught, by its blanks;
#: a single word is not.
WORDS = {"system", "wire", "host", "model", "answered_by", "response_id", "request_id", "code"}


def holds_text(hint: Any) -> bool:
    """`str`, or a union with it; a Literal is one of our own words."""
    return hint is str or (
        isinstance(hint, types.UnionType) and any(holds_text(part) for part in hint.__args__)
    )


def replaced(value: Any, canary: str, keep: set[str]) -> Any:
    """The value with the canary in place of all texts, but those of these fields."""
    if isinstance(value, tuple):
        return tuple(replaced(item, canary, keep) for item in value)
    if not isinstance(value, msgspec.Struct):
        return value
    hints = typing.get_type_hints(type(value))
    changed = {}
    for name in value.__struct_fields__:
        old = getattr(value, name)
        if holds_text(hints[name]) and name not in keep and old is not None:
            changed[name] = canary
        else:
            changed[name] = replaced(old, canary, keep)
    return msgspec.structs.replace(value, **changed)
