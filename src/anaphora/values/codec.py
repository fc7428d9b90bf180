"""Values to JSON and back, for files, databases and other processes; JSON text as Python values.

The round trip is exact: a decoded message renders to the same bytes as the original. Decoding is
strict; an unknown field is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from anaphora.errors import InvalidJson, Parse

from .conversation import Conversation, Message

T = TypeVar("T")


def to_json(value: object) -> bytes:
    """A value of this library (a message, a conversation, a whole prompt) as JSON."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise InvalidJson(f"lone surrogate at character {error.start}") from None


def from_json(data: bytes | str, kind: type[T]) -> T:
    """The value of that type; raises `Parse` with the path of a mismatch."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode_foreign)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        reason, path = _reason_and_path(str(error))
        name = getattr(kind, "__name__", str(kind))
        raise Parse(f"not a {name}: {reason}", path=path) from error


def _encode_foreign(value: Any) -> Any:
    if isinstance(value, Conversation):
        return value[:]
    raise InvalidJson(f"{type(value).__name__} is not one of Anaphora's values")


def _decode_foreign(kind: type, data: Any) -> Any:
    if kind is Conversation:
        try:
            return Conversation(msgspec.convert(data, tuple[Message, ...]))
        except msgspec.ValidationError as error:
            # msgspec adds the path to errors that are not its own.
            raise ValueError(str(error)) from None
    raise InvalidJson(f"{kind.__name__} is not one of Anaphora's values")


def _reason_and_path(text: str) -> tuple[str, str]:
    """The reason and the path of an error; each decoder adds the path of its part."""
    steps = re.findall(r" - at `\$([^`]*)`", text)
    reason = re.sub(r" - at `\$[^`]*`", "", text)
    return reason, "$" + "".join(reversed(steps)) if steps else ""


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


# ── JSON text ────────────────────────────────────────────────────────────────────────────────────

_check_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_object(text: str, *, path: str = "$") -> str:
    """The text itself, if it is a JSON object."""
    _decode(_check_object, text, path, "a JSON object")
    return text


def is_object(text: str) -> bool:
    """Whether the text is a JSON object that can be sent unchanged."""
    try:
        _check_object(text if type(text) is str else _exact(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidJson):
        return False
    return True


def loads(text: str | bytes, *, path: str = "$") -> Any:
    """JSON text as Python values; objects keep their order."""
    return _decode(msgspec.json.decode, text, path, "JSON")


def _decode(decode: Callable[[Any], Any], text: str | bytes, path: str, expected: str) -> Any:
    try:
        return decode(text if type(text) in (str, bytes) else _exact(text))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidJson(f"not {expected}: {error}", path=path) from None
    except RecursionError:
        raise InvalidJson("nested too deeply", path=path) from None


def _exact(text: object) -> str | bytes:
    """The text as `str` or `bytes`: the decoder does not accept subclasses."""
    if isinstance(text, str):
        return str.__str__(text)
    if isinstance(text, bytes):
        return bytes(text)
    raise InvalidJson(f"expected a text, not {type(text).__name__}")
