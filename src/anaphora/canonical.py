"""The only JSON encoder of the package.

Our fields are in declared order, foreign JSON (schemas, call arguments) as given; UTF-8, no spaces.
Values that JSON cannot hold raise an error with their path, and never become `null`.
"""

from __future__ import annotations

import math

import msgspec

from .errors import InvalidJson


def _plain_value(value: object) -> object:
    """For types that the encoder does not know: subclasses of JSON's types become these."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise InvalidJson(f"{type(value).__name__} is not a JSON value")


_encode = msgspec.json.Encoder(enc_hook=_plain_value).encode

encode_decoded = _encode
"""`dumps` for values that a JSON decoder returned, which need no check."""

encode_text = msgspec.json.Encoder().encode
"""`string` for values that are known to be `str`; a lone surrogate is a `UnicodeEncodeError`."""


def string(text: str) -> bytes:
    """A JSON string. The hot path of every wire."""
    try:
        return _encode(text)
    except UnicodeEncodeError as error:
        raise _surrogate(text, error) from None


def dumps(value: object, *, path: str = "$") -> bytes:
    """Any JSON value; dictionaries keep their order."""
    if not _is_plain(value):
        _raise_for_invalid(value, path)
    try:
        return _encode(value)
    except UnicodeEncodeError:
        _raise_for_invalid(value, path)
        raise
    except TypeError as error:  # msgspec does not call `_plain_value` for keys
        raise InvalidJson(str(error), path=path) from None


_PLAIN = frozenset((str, int, bool, type(None)))


def _is_plain(value: object) -> bool:
    """Whether all types are JSON types, checked without building paths. The encoder itself refuses
    lone surrogates in texts."""
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


def _raise_for_invalid(value: object, path: str) -> None:
    """Find the invalid value; msgspec alone would write NaN as null and encode foreign types."""
    if value is None or isinstance(value, bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidJson(f"{value} has no JSON form; use null or a string", path=path)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _surrogate(value, error, path) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidJson(f"object key {key!r} is not a string", path=path)
            here = f"{path}.{key}"
            _raise_for_invalid(key, here)
            _raise_for_invalid(item, here)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _raise_for_invalid(item, f"{path}[{index}]")
    else:
        raise InvalidJson(f"{type(value).__name__} is not a JSON value", path=path)


def _surrogate(text: str, error: UnicodeEncodeError, path: str = "") -> InvalidJson:
    code = ord(text[error.start])
    return InvalidJson(
        f"lone surrogate U+{code:04X} at character {error.start} is not valid Unicode", path=path
    )
