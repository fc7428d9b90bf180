"""The adapter protocol, its request and its response.

Hashes and audit records depend on the fields and their order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol, TypeAlias, get_args

import msgspec
from blake3 import blake3

from anaphora.errors import InvalidRequest

from . import hashing

LlmRole: TypeAlias = Literal["user", "assistant", "tool"]
_ROLES = get_args(LlmRole)


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the values."""


class LlmMessage(_Value, frozen=True):
    role: LlmRole
    content: str


class TokenUsage(_Value, frozen=True):
    prompt_tokens: int
    """All input tokens, cached or not."""
    completion_tokens: int


class LlmRequest(_Value, frozen=True, kw_only=True):
    """One call, described completely."""

    model: str
    system: str = ""
    messages: tuple[LlmMessage, ...]
    temperature: float = 0.0
    max_tokens: int = 1024
    json_schema: Any = None
    """The reply must be JSON that matches this schema."""
    timeout_ms: int = 60_000
    """Time limit of the whole call."""

    def prompt_hash(self) -> str:
        """BLAKE3 of the prompt in lower-case hex. Model and timeout are not part of it."""
        return blake3(self.canonical()).hexdigest()

    def canonical(self) -> bytes:
        """The JSON that is hashed; raises `InvalidRequest` with the path of an invalid field."""
        schema = b""
        if self.json_schema is not None:
            schema = b',"json_schema":'
            schema += hashing.sorted_json(self.json_schema, "json_schema").encode()
        return b'{"system":%b,"messages":[%b],"temperature":%b,"max_tokens":%d%b}' % (
            hashing.text(self.system, "system"),
            b",".join(_message(message, index) for index, message in enumerate(self.messages)),
            hashing.temperature(self.temperature).encode(),
            hashing.whole(self.max_tokens, 32, "max_tokens"),
            schema,
        )


class LlmResponse(_Value, frozen=True, kw_only=True):
    text: str
    parsed_json: Any = None
    """The reply as a value, if the request had a schema."""
    model: str
    """The model that replied."""
    usage: TokenUsage | None = None
    """None if the provider reported no counts."""
    raw_hash: str
    """BLAKE3 of the provider's bytes as received, in lower-case hex."""


class StreamChunk(_Value, frozen=True):
    delta: str
    """More of the text; may be empty in the last chunk."""
    finish_reason: str | None = None
    """Only in the last chunk: `stop`, `max_tokens`, …"""


class LlmAdapter(Protocol):
    """A backend. Subclasses without streaming inherit a `stream` of one chunk."""

    @property
    def adapter_id(self) -> str:
        """Constant and lower-case: it is part of audit records."""
        ...

    async def complete(self, request: LlmRequest) -> LlmResponse:
        """Must raise `errors.Timeout` after `request.timeout_ms`."""
        ...

    async def stream(self, request: LlmRequest) -> AsyncIterator[StreamChunk]:
        """The text as it arrives; the last chunk has a finish reason."""
        response = await self.complete(request)
        yield StreamChunk(response.text, "stop")


def blake3_hex(data: bytes) -> str:
    """BLAKE3 in lower-case hex, as in `LlmResponse.raw_hash`."""
    return blake3(data).hexdigest()


def _message(message: LlmMessage, index: int) -> bytes:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"must be one of {', '.join(_ROLES)}; put system messages into `system`",
            path=f"messages[{index}].role",
        )
    content = hashing.text(message.content, f"messages[{index}].content")
    return b'{"role":"%b","content":%b}' % (message.role.encode(), content)
