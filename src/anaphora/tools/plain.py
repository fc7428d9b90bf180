"""Python values as plain JSON data, the same under every PYTHONHASHSEED."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.errors import InvalidJson


def plain(value: object, *, path: str = "$") -> Any:
    """Structs, dataclasses, enums, dates and sets as dictionaries, lists and strings.

    Dictionaries keep their order; inside structs and dataclasses msgspec sorts them. Sets, which
    have no order to keep, are sorted by their JSON text. Whoever writes the data still checks its
    numbers and strings (`canonical.dumps`).
    """
    if isinstance(value, dict):
        return {_key(key): plain(item, path=f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, path=f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, path=path) for item in value), key=msgspec.json.encode)
    if type(value) in (str, int, float, bool):
        return value
    try:
        return msgspec.to_builtins(value, order="deterministic", str_keys=True)
    except (TypeError, ValueError) as problem:
        raise InvalidJson(
            f"{type(value).__name__} has no JSON form: {problem}", path=path
        ) from None


def _key(key: object) -> object:
    """Numbers become strings, as in `json.dumps`; the writer refuses every other kind of key."""
    return str(key) if isinstance(key, int) and not isinstance(key, bool) else key
