"""The one JSON writer.

Our own fields come out in declared order; what others wrote (schemas, call arguments) as given;
UTF-8, no spaces. What JSON cannot hold is refused with the path to it, never turned into `null`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from .errors import InvalidJson

_encode = msgspec.json.Encoder().encode
_check_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def string(text: str) -> bytes:
    """A JSON string. The hot path of every wire."""
    try:
        return _encode(text)
    except UnicodeEncodeError as problem:
        raise _surrogate(text, problem) from None


def dumps(value: object, *, path: str = "$") -> bytes:
    """Any JSON value, dictionaries in the order they have."""
    if not _is_plain(value):
        _refuse_unsayable(value, path)
    try:
        return _encode(value)
    except UnicodeEncodeError:
        _refuse_unsayable(value, path)
        raise


def check_object(text: str, *, path: str = "$") -> str:
    """The text itself, once it is known to be a JSON object."""
    try:
        _check_object(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as problem:
        raise InvalidJson(f"not a JSON object: {problem}", path=path) from None
    except RecursionError:
        raise InvalidJson("nested too deeply", path=path) from None
    return text


def is_object(text: str) -> bool:
    """Whether the text is a JSON object that can be sent as it is."""
    try:
        _check_object(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def loads(text: str | bytes, *, path: str = "$") -> Any:
    """JSON text as Python values, object keys in the order they came."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise InvalidJson(f"not JSON: {problem}", path=path) from None
    except RecursionError:
        raise InvalidJson("nested too deeply", path=path) from None


_PLAIN = frozenset((str, int, bool, type(None)))


def _is_plain(value: object) -> bool:
    """Whether this is JSON data by its types: what is in order costs no paths. Texts are left to
    the encoder, which refuses lone surrogates itself."""
    if type(value) in _PLAIN:
        return True
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str or not (type(item) in _PLAIN or _is_plain(item)):
                return False
        return True
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, float) and math.isfinite(value)


def _refuse_unsayable(value: object, path: str) -> None:
    """Walks plain JSON data; msgspec alone would write NaN as null and foreign types somehow."""
    if value is None or isinstance(value, bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidJson(f"{value} has no JSON form; use null or a string", path=path)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as problem:
            raise _surrogate(value, problem, path) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidJson(f"object key {key!r} is not a string", path=path)
            here = f"{path}.{key}"
            _refuse_unsayable(key, here)
            _refuse_unsayable(item, here)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_unsayable(item, f"{path}[{index}]")
    else:
        raise InvalidJson(f"{type(value).__name__} is not a JSON value", path=path)


def _surrogate(text: str, problem: UnicodeEncodeError, path: str = "") -> InvalidJson:
    code = ord(text[problem.start])
    return InvalidJson(
        f"lone surrogate U+{code:04X} at character {problem.start} is not valid Unicode", path=path
    )
