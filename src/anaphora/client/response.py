"""The response to a call, and the record of how it came.

A record holds no prompt and no reply of its own, but other parties' texts may quote them: a
provider's error message (`Attempt.reason`), the bytes around a change in a verdict. It stays in
this process; `observe.export` decides which fields may leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.values import Notice, Reply, StopReason, ToolCall, Usage
from anaphora.values.codec import html_of

if TYPE_CHECKING:
    import typing_extensions

    Parsed = typing_extensions.TypeVar("Parsed", covariant=True, default=Any)  # noqa: PLC0105
else:
    #: The type of a parsed reply; a `Response` without it may have any.
    Parsed = TypeVar("Parsed", covariant=True)  # noqa: PLC0105

_NOTHING = cast(Any, None)
_set = object.__setattr__
Judge: TypeAlias = "Callable[[Record], Record]"

#: The same in the signatures of calls.
Output = TypeVar("Output")

Operation: TypeAlias = Literal["chat", "prewarm"]


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


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One call with all of its attempts."""

    operation: Operation = "chat"
    provider: str
    """The id in the configuration."""
    system: str
    """Whose service that is: `anthropic`, `openai`, …"""
    wire: str
    host: str
    model: str
    """The model of the request."""
    answered_by: str | None = None
    """The model that answered."""
    response_id: str | None = None
    request_id: str | None = None
    streamed: bool = False
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
    """What the cache saved, minus the cost of writing to it; in dollars."""
    blocks: tuple[BlockShare, ...] = ()
    error: str | None = None
    notices: tuple[Notice, ...] = ()


class Response(Generic[Parsed]):
    """The provider's reply, and the record of the call. With an `output` it is generic in its type:
    `Response[Plan]`; without one it is `Response[None]`."""

    __slots__ = ("_judgement", "_record", "parsed", "raw_hash", "reply")

    reply: Reply
    raw_hash: str
    """BLAKE3 of the response body as received."""
    parsed: Parsed
    """The reply as a value of the requested `output` type."""
    _record: Record
    _judgement: Judge | None

    def __init__(
        self,
        *,
        reply: Reply,
        record: Record,
        raw_hash: str,
        parsed: Parsed = _NOTHING,
        judgement: Judge | None = None,
    ) -> None:
        """`judgement` adds the verdict to the record when it is first read."""
        _set(self, "reply", reply)
        _set(self, "raw_hash", raw_hash)
        _set(self, "parsed", parsed)
        _set(self, "_record", record)
        _set(self, "_judgement", judgement)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("immutable type: 'Response'")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("immutable type: 'Response'")

    @property
    def record(self) -> Record:
        judgement, record = self._judgement, self._record
        if judgement is not None:
            record = judgement(record)
            _set(self, "_record", record)
            _set(self, "_judgement", None)
        return record

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
        return self._record.cost_usd

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self._record.attempts

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self.record.notices

    def with_notices(self, notices: tuple[Notice, ...]) -> Response[Parsed]:
        judgement, record = self._judgement, self._record  # a thread may complete it meanwhile
        record = msgspec.structs.replace(record, notices=(*record.notices, *notices))
        return self._with(judgement, record, self.parsed)

    def with_parsed(self, parsed: Output) -> Response[Output]:
        return self._with(self._judgement, self._record, parsed)

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
        return f"<Response by {self.reply.model}, {self.reply.stop_reason}: {verdict}>"

    def _repr_html_(self) -> str:
        return html_of(self)
