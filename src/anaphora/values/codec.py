"""Values to JSON and back, for files, databases and other processes.

The round trip is exact: a message read back renders to the same bytes as the live one did. Reading
is strict; a field nobody knows is an error that names it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from anaphora.errors import Parse

from .conversation import Conversation
from .message import Message

T = TypeVar("T")


def to_json(value: object) -> bytes:
    """Any of our values (a message, a conversation, a whole prompt) as JSON."""
    return _encoder.encode(value)


def from_json(data: bytes | str, kind: type[T]) -> T:
    """The value of that kind; `Parse` names the path to what does not fit."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode_foreign)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Parse(f"not a {kind.__name__}: {problem}") from problem


def _encode_foreign(value: Any) -> Any:
    if isinstance(value, Conversation):
        return value[:]
    raise NotImplementedError(f"{type(value).__name__} is not one of Anaphora's values")


def _decode_foreign(kind: type, data: Any) -> Any:
    if kind is Conversation:
        return Conversation(msgspec.convert(data, tuple[Message, ...]))
    raise NotImplementedError(f"{kind.__name__} is not one of Anaphora's values")


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)
