"""The response to a call, its text as a stream, and the record of the call.

A record holds no prompt and no reply of its own, but other parties' texts may quote them: a
provider's error message (`Attempt.reason`), the bytes around a change in a verdict. It stays in
this process; `observe.export` decides which fields may leave it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, cast

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.values import Notice, Reply, StopReason, TextPieces, ToolCall, Usage

if TYPE_CHECKING:
    import typing_extensions

    Parsed = typing_extensions.TypeVar("Parsed", covariant=True, default=Any)  # noqa: PLC0105
    Output = typing_extensions.TypeVar("Output", default=None)
else:
    #: The type of a parsed reply; a `Response` without it may have any.
    Parsed = TypeVar("Parsed", covariant=True)  # noqa: PLC0105
    #: The same in the signatures of calls, where the default is no output type.
    Output = TypeVar("Output")

_NOTHING = cast(Any, None)
#: Maximum number of prompt blocks whose shares are kept.
_MOST_SHARES = 64
#: What other libraries call the attributes of a response.
RIGHT_WORDS = {
    "content": "text",
    "choices": "text",
    "output_text": "text",
    "cost": "cost_usd",
    "finish_reason": "stop_reason",
    "message": "reply.message",
}
Judge: TypeAlias = "Callable[[Record], Record]"

Operation: TypeAlias = Literal["chat", "prewarm", "summarize"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send a request."""

    provider: str
    """The id in the configuration."""
    model: str
    at: float
    """When it began, in seconds since the epoch."""
    seconds: float
    """How long it took, without the wait for rate limits."""
    queued: float = 0.0
    """How long it waited for rate limits."""
    status: int | None = None
    request_id: str | None = None
    error: str | None = None
    """The class in `anaphora.errors`; None: this attempt succeeded."""
    reason: str = ""
    """The error's message."""
    wait: float | None = None
    """How long the next attempt was delayed."""


class BlockShare(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one block of a prompt, by its label."""

    label: str
    section: Literal["tools", "system", "messages"]
    tokens: int


def largest_shares(shares: tuple[BlockShare, ...]) -> tuple[BlockShare, ...]:
    """The labels with the most tokens; the others are summed by section."""
    if len(shares) <= _MOST_SHARES:
        return shares
    ordered = sorted(shares, key=lambda share: -share.tokens)
    rest: dict[str, BlockShare] = {}
    for one in ordered[_MOST_SHARES:]:
        before = rest.get(one.section)
        tokens = one.tokens + (0 if before is None else before.tokens)
        rest[one.section] = msgspec.structs.replace(one, label=one.section, tokens=tokens)
    return (*ordered[:_MOST_SHARES], *rest.values())


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One call with all of its attempts."""

    operation: Operation = "chat"
    provider: str
    """The id in the configuration."""
    system: str
    """The provider's name in the catalog: `anthropic`, `openai`, …"""
    wire: str
    host: str
    model: str
    """The model of the request."""
    answered_by: str | None = None
    """The model that answered."""
    response_id: str | None = None
    request_id: str | None = None
    streamed: bool = False
    emulated: bool = False
    """Answered by the local emulator: the text is made up, and nothing is billed."""
    at: float
    """When the call began, in seconds since the epoch."""
    first: float | None = None
    """Seconds until the response began."""
    seconds: float
    """Seconds until the response was complete."""
    attempts: tuple[Attempt, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    stop_reason: StopReason | None = None
    usage: Usage = Usage()
    predicted: int | None = None
    """Tokens expected to be read from the cache, as predicted before sending."""
    verdict: Verdict | None = None
    cost_usd: Decimal | None = None
    saved: Decimal | None = None
    """The dollars that the cache saved, minus the cost of writing to it."""
    blocks: tuple[BlockShare, ...] = ()
    error: str | None = None
    notices: tuple[Notice, ...] = ()


class TextStream(AsyncIterator[str]):
    """The text of a turn, or of all turns of a run, in pieces.

    As a context manager it closes the connection when the block is left.
    """

    def __init__(self, call: Callable[[], AsyncGenerator[Any, None]], verb: str) -> None:
        """`call` makes the call; `verb` is the method that returned it."""
        self._call = call
        self._verb = verb
        self._events: AsyncGenerator[Any, None] | None = None
        self._pieces = TextPieces()

    def __aiter__(self) -> Self:
        self._begin()
        return self

    async def __anext__(self) -> str:
        async for event in self._events or self._begin():
            if text := self._pieces.feed(event):
                return text
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._events is not None:
            await self._events.aclose()

    def _begin(self) -> AsyncGenerator[Any, None]:
        if self._events is None:
            self._events = self._call()
        return self._events

    def __repr__(self) -> str:
        return f"<TextStream: iterate over it, or await {self._verb}(…) for its text>"


class Response(msgspec.Struct, Generic[Parsed], frozen=True, kw_only=True, eq=False):
    """The provider's reply, and the record of the call. With an `output` it is generic in its type:
    `Response[Plan]`; without one it is `Response[None]`."""

    reply: Reply
    record: Record
    """Its verdict is computed on first read: see `_completed`."""
    raw_hash: str
    """BLAKE3 of the response body as received."""
    parsed: Parsed = _NOTHING
    """The reply as a value of the requested `output` type."""
    judgement: Judge | None = None
    """Adds the verdict to the record."""

    def __reduce__(self) -> tuple[Callable[[], Response[Parsed]], tuple[()]]:
        """For `pickle` and `copy`, with the verdict."""
        return partial(
            Response,
            reply=self.reply,
            record=self.record,
            raw_hash=self.raw_hash,
            parsed=self.parsed,
        ), ()

    @property
    def text(self) -> str:
        return self.reply.text

    @property
    def model(self) -> str:
        """The model that answered."""
        return self.reply.model

    @property
    def stop_reason(self) -> StopReason:
        """`end`, `tool_calls`, `length`, …"""
        return self.reply.stop_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.reply.tool_calls

    @property
    def usage(self) -> Usage:
        return self.reply.usage

    @property
    def verdict(self) -> Verdict | None:
        return self.record.verdict

    @property
    def cost_usd(self) -> Decimal | None:
        return _stored_record(self).cost_usd

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return _stored_record(self).attempts

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self.record.notices

    if not TYPE_CHECKING:  # for type checkers there are no such attributes

        def __getattr__(self, name: str) -> Any:
            hint = f"; write {RIGHT_WORDS[name]}" if name in RIGHT_WORDS else ""
            raise AttributeError(f"a Response has no {name!r}{hint}")

    def with_notices(self, notices: tuple[Notice, ...]) -> Response[Parsed]:
        # In this order: a thread may complete it meanwhile.
        judgement, record = self.judgement, _stored_record(self)
        record = msgspec.structs.replace(record, notices=(*record.notices, *notices))
        return self._with(judgement, record, self.parsed)

    def with_parsed(self, parsed: Output) -> Response[Output]:
        return self._with(self.judgement, _stored_record(self), parsed)

    def _with(self, judgement: Judge | None, record: Record, parsed: Output) -> Response[Output]:
        return Response(
            reply=self.reply,
            record=record,
            raw_hash=self.raw_hash,
            parsed=parsed,
            judgement=judgement,
        )

    def __repr__(self) -> str:
        verdict = self.verdict or "no verdict"
        made = ", emulated" if _stored_record(self).emulated else ""
        return f"<Response by {self.reply.model}{made}, {self.reply.stop_reason}: {verdict}>"


def _completed(response: Response[Any]) -> Record:
    judgement, record = response.judgement, _stored_record(response)
    if judgement is not None:
        record = judgement(record)
        _store_record(response, record)
        msgspec.structs.force_setattr(response, "judgement", None)
    return record


# The constructor of a struct runs no Python, so `record` is a field; read, it is a property.
_field: Any = Response.record
_stored_record: Callable[[Response[Any]], Record] = _field.__get__
_store_record: Callable[[Response[Any], Record], None] = _field.__set__
Response.record = property(_completed)  # type: ignore[assignment]
