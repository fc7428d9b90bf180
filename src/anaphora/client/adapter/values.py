"""What goes into an adapter and what comes out.

The fields and their order are a contract with whoever keeps hashes and audit records of them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec
from blake3 import blake3

from anaphora.errors import InvalidRequest

from . import hashing

LlmRole: TypeAlias = Literal["user", "assistant", "tool"]
_ROLES = get_args(LlmRole)


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Common ground."""


class LlmMessage(_Value, frozen=True):
    role: LlmRole
    content: str


class TokenUsage(_Value, frozen=True):
    prompt_tokens: int
    """All of the input, cached or not."""
    completion_tokens: int


class LlmRequest(_Value, frozen=True, kw_only=True):
    """One call, described completely."""

    model: str
    system: str = ""
    messages: tuple[LlmMessage, ...]
    temperature: float = 0.0
    max_tokens: int = 1024
    json_schema: Any = None
    """The answer must be JSON that fits this schema."""
    timeout_ms: int = 60_000
    """The whole call's budget."""

    def prompt_hash(self) -> str:
        """BLAKE3 of what is asked, in lower-case hex. Neither model nor timeout is in it: the same
        prompt has one hash for all models, and more patience does not change it."""
        return blake3(self.canonical()).hexdigest()

    def canonical(self) -> bytes:
        """The JSON that is hashed; `InvalidRequest` names what cannot be said in it."""
        schema = b""
        if self.json_schema is not None:
            schema = b',"json_schema":'
            schema += hashing.sorted_json(self.json_schema, "json_schema").encode()
        return b'{"system":%b,"messages":[%b],"temperature":%b,"max_tokens":%d%b}' % (
            hashing.text(self.system, "system"),
            b",".join(_message(message, at) for at, message in enumerate(self.messages)),
            hashing.temperature(self.temperature).encode(),
            hashing.whole(self.max_tokens, 32, "max_tokens"),
            schema,
        )


class LlmResponse(_Value, frozen=True, kw_only=True):
    text: str
    parsed_json: Any = None
    """Set when the request had a schema: the answer, which fits it."""
    model: str
    """The one that really answered."""
    usage: TokenUsage | None = None
    """None when the provider told no counts."""
    raw_hash: str
    """BLAKE3 of the provider's bytes as they came, in lower-case hex."""


class StreamChunk(_Value, frozen=True):
    delta: str
    """More of the text; may be empty in the last chunk,"""
    finish_reason: str | None = None
    """which is the one that says why it is the last: `stop`, `max_tokens`, …"""


def blake3_hex(data: bytes) -> str:
    """BLAKE3 in lower-case hex: how `LlmResponse.raw_hash` is made from the provider's bytes."""
    return blake3(data).hexdigest()


def _message(message: LlmMessage, at: int) -> bytes:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"must be one of {', '.join(_ROLES)}; what a system says goes into `system`",
            path=f"messages[{at}].role",
        )
    content = hashing.text(message.content, f"messages[{at}].content")
    return b'{"role":"%b","content":%b}' % (message.role.encode(), content)
