"""A small interface for every backend: a hashable request, a response with the provider's hash.

    adapter = ClientAdapter(client, "anthropic-default", "claude")
    response = await adapter.complete(LlmRequest(model="…", messages=(LlmMessage("user", "Hi"),)))

Every class with `adapter_id` and `complete` is an `LlmAdapter`.
Hashes and audit records depend on the fields of a request and their order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec
from blake3 import blake3

from anaphora.client.provider_errors import event_error
from anaphora.client.structured import Structured, output_of
from anaphora.errors import AnaphoraError as LlmError
from anaphora.errors import InvalidRequest, Parse, Timeout
from anaphora.prompt import Call, Params, PromptIR
from anaphora.values import (
    Message,
    Notice,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    StopReason,
    Text,
    TextPieces,
    Usage,
)

from . import hashing

if TYPE_CHECKING:
    from anaphora.client.client import AsyncClient
    from anaphora.client.turn import Turn

__all__ = [
    "ClientAdapter",
    "LlmAdapter",
    "LlmError",
    "LlmMessage",
    "LlmRequest",
    "LlmResponse",
    "StreamChunk",
    "TokenUsage",
    "blake3_hex",
]

T = TypeVar("T")

LlmRole: TypeAlias = Literal["user", "assistant", "tool"]
_ROLES = get_args(LlmRole)
_ID = re.compile(r"[a-z][a-z0-9_.-]*")

#: `StreamChunk.finish_reason` for each reason that has another name there.
_FINISH: dict[StopReason, str] = {"end": "stop", "stop_sequence": "stop", "length": "max_tokens"}

#: The request's field for each path of a call.
_FIELDS = {
    "params.max_tokens": "max_tokens",
    "params.output.schema": "json_schema",
    "params.temperature": "temperature",
    "output.schema": "json_schema",
}


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

    def prompt_hash(self) -> str:
        """BLAKE3 of the prompt in lower-case hex. Model and timeout are not part of it."""
        return blake3(self.canonical()).hexdigest()

    def canonical(self) -> bytes:
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


class ClientAdapter(LlmAdapter):
    """One provider or route of a client."""

    def __init__(self, client: AsyncClient, provider_id: str, adapter_id: str) -> None:
        if not _ID.fullmatch(adapter_id):
            raise InvalidRequest(
                "must be lower-case letters, digits, `_`, `.` and `-`, a letter first",
                path="adapter_id",
            )
        self._client = client
        self._provider = provider_id
        self._id = adapter_id

    @property
    def adapter_id(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"<ClientAdapter {self._id} over {self._provider}>"

    async def complete(self, request: LlmRequest) -> LlmResponse:
        call, output, _ = call_of(request)
        deadline = AdapterDeadline(request.timeout_ms)
        with request_paths():
            turn = self._client.send(call, self._provider, timeout=deadline.seconds)
            response = await deadline.apply(self._audited(turn, request))
        return LlmResponse(
            text=text_of(response.reply),
            parsed_json=None if output is None else _parsed(output, response.reply),
            model=response.reply.model,
            usage=token_usage(response.reply.usage),
            raw_hash=response.raw_hash,
        )

    async def stream(self, request: LlmRequest) -> AsyncGenerator[StreamChunk, None]:
        """The text as it arrives. `Parse` is raised in place of the last chunk if the text does not
        match the schema."""
        call, output, _ = call_of(request)
        deadline = AdapterDeadline(request.timeout_ms)
        text = TextPieces(refusals=True)
        with request_paths():
            turn = self._client.send(call, self._provider, timeout=deadline.seconds)
        async with aclosing(aiter(self._audited(turn, request))) as events:
            while True:
                with request_paths():
                    event = await deadline.apply(anext(events, None))
                if event is None:
                    return
                if delta := text.feed(event):
                    yield StreamChunk(delta)
                if isinstance(event, ReplyFail):
                    raise event_error(event)
                if isinstance(event, ReplyEnd):
                    if output is not None:
                        _parsed(output, event.reply)
                    yield StreamChunk("", finish_reason(event.reply))

    def _audited(self, turn: Turn[None], request: LlmRequest) -> Turn[None]:
        if self._client.audit is None:
            return turn
        return turn.made_by_adapter(self._id, request.prompt_hash())


def _parsed(output: Structured[Any], reply: Reply) -> Any:
    """The reply as a value; an error has the reply in `partial`."""
    try:
        return output.parse_reply(reply)
    except Parse as error:
        error.partial = reply
        raise


@contextmanager
def request_paths() -> Iterator[None]:
    """Errors name the field of the `LlmRequest` instead of the call's."""
    try:
        yield
    except InvalidRequest as error:
        if error.path not in _FIELDS:
            raise
        raise type(error)(error.reason, path=_FIELDS[error.path]) from None


def call_of(request: LlmRequest) -> tuple[Call, Structured[Any] | None, tuple[Notice, ...]]:
    """The call, its structured output, and notices about fields that were converted."""
    request.canonical()  # raises for an invalid field
    hashing.whole(request.timeout_ms, 64, "timeout_ms")
    if not request.model.strip():
        raise InvalidRequest("must name a model", path="model")
    if not request.messages:
        raise InvalidRequest("must have at least one message", path="messages")
    if not request.max_tokens:
        raise InvalidRequest("must be at least 1", path="max_tokens")
    output = _output(request.json_schema)
    params = Params(
        max_tokens=request.max_tokens,
        # The same number as in the hash.
        temperature=float(hashing.temperature(request.temperature)),
    )
    prompt = PromptIR.chat(map(_message_of, request.messages), system=request.system)
    call = Call(ir=prompt, model=request.model, params=params)
    return call if output is None else output.apply(call), output, _notices(request.messages)


def text_of(reply: Reply) -> str:
    return "".join(part.text for part in reply.message.parts if isinstance(part, Text | Refusal))


def finish_reason(reply: Reply) -> str:
    if reply.stop_reason == "other":
        return reply.stop_reason_raw or "other"
    return _FINISH.get(reply.stop_reason, reply.stop_reason)


def token_usage(usage: Usage) -> TokenUsage | None:
    if usage.input is None or usage.output is None:
        return None
    return TokenUsage(usage.input, usage.output)


def _output(schema: Any) -> Structured[Any] | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise InvalidRequest("must be a JSON object", path="json_schema")
    try:
        return output_of(schema)
    except InvalidRequest as error:
        raise InvalidRequest(error.reason, path="json_schema") from None


def _message_of(message: LlmMessage) -> Message:
    """Tool messages become user messages: they have no call id, which all providers require."""
    if message.role == "assistant":
        return Message.assistant(message.content)
    return Message.user(message.content)


def _notices(messages: tuple[LlmMessage, ...]) -> tuple[Notice, ...]:
    reason = "has no tool call id; sent as a user message"
    return tuple(
        Notice("tool_as_user", reason, f"messages[{index}]")
        for index, message in enumerate(messages)
        if message.role == "tool"
    )


class AdapterDeadline:
    """The time limit of a call, counted from now. Unlike the client's own limit it also covers the
    client's work, and its error names the caller's `timeout_ms`."""

    def __init__(self, timeout_ms: int) -> None:
        self._ms = timeout_ms
        self.seconds = timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().time() + self.seconds

    async def apply(self, work: Awaitable[T]) -> T:
        scope = asyncio.timeout_at(self._deadline)
        try:
            async with scope:
                return await work
        except Timeout:
            raise Timeout(self._ms) from None
        except TimeoutError:
            if not scope.expired():
                raise
            raise Timeout(self._ms) from None
