"""The tool loop: turns and tools until the model is done, within bounds.

    run = await chat.run("Book me a flight to Rome", max_turns=20, max_cost_usd=0.50)
    run.stop_reason, run.text, run.turns

    async for event in chat.run("…"): ...        events of every turn, and each tool's result

Every message is in the conversation, and saved where the app asked for it, before the next step is
taken: after a crash `chat.run()` on the saved messages goes on where it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from anaphora.client.calling import CLOSE_TICKS
from anaphora.client.dispatch import dispatch_all
from anaphora.client.given import params_of, seconds_of
from anaphora.client.response import Response
from anaphora.errors import InvalidRequest, Timeout
from anaphora.values import Conversation, Event, Message, Notice, ReplyEnd, ToolCall, ToolResult

if TYPE_CHECKING:
    from . import Session

RunStop: TypeAlias = Literal["done", "turns", "seconds", "cost_usd", "length", "refusal", "paused"]
"""Why a run ended: the model was done, or was cut off or declined; or a bound was reached."""

_ENDS: dict[str, RunStop] = {
    "length": "length",
    "context_overflow": "length",
    "refusal": "refusal",
}


class RunResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a run came to."""

    stop_reason: RunStop
    answers: tuple[Response, ...]
    cost_usd: Decimal | None
    seconds: float
    failures: tuple[Notice, ...] = ()
    """What went wrong between two answers, and lost neither of them nor a tool's result."""

    @property
    def last(self) -> Response | None:
        return self.answers[-1] if self.answers else None

    @property
    def text(self) -> str:
        return self.answers[-1].text if self.answers else ""

    @property
    def parsed(self) -> Any:
        return self.answers[-1].parsed if self.answers else None

    @property
    def turns(self) -> int:
        return len(self.answers)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Those of every answer, and of what happened between them."""
        return (*(notice for one in self.answers for notice in one.notices), *self.failures)


class Run:
    """A run that is made when it is awaited or gone through, once. Awaited again, it gives what it
    came to; nothing is sent twice."""

    def __init__(
        self,
        session: Session,
        messages: tuple[Message, ...] = (),
        *,
        max_turns: int = 50,
        max_seconds: float | None = None,
        max_cost_usd: Decimal | float | str | None = None,
        parallel: bool = True,
        tool_timeout: float | None = None,
        output: Any = None,
        timeout: float | None = None,
        **params: Any,
    ) -> None:
        """`max_turns` are calls of the model. A turn is not begun when a bound is reached; what it
        costs is known afterwards, so the last one may go beyond `max_cost_usd`. One that is under
        way when `max_seconds` are over is given up, and can be made again with another `run()`;
        tools have no more time than that either, unless they have a timeout of their own.
        `parallel` lets the tools of one turn run side by side; `tool_timeout` is for each, in
        seconds, and `timeout` for each turn; other keywords are parameters of every turn."""
        if not isinstance(max_turns, int) or max_turns < 1:
            raise InvalidRequest("a number of turns, at least one", path="max_turns")
        self._session = session
        self._messages = messages
        self._turns = max_turns
        self._seconds = seconds_of(max_seconds, "max_seconds")
        self._usd = _amount_of(max_cost_usd)
        self._parallel = parallel
        self._tool_timeout = seconds_of(tool_timeout, "tool_timeout")
        self._timeout = seconds_of(timeout, "timeout")
        self._params = {**params_of(params), "output": output}
        self._begun = False
        self._answers: list[Response] = []
        self._failures: list[Notice] = []
        self.ran: RunResult | None = None
        """What it came to, once it has ended."""

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._whole().__await__()

    def __aiter__(self) -> AsyncIterator[Event | ToolResult]:
        return self._steps(stream=True)

    async def _whole(self) -> RunResult:
        before = self.ran
        if before is not None:
            return before
        async with aclosing(self._steps(stream=False)) as steps:
            async for _ in steps:
                pass
        assert self.ran is not None
        return self.ran

    async def _steps(self, *, stream: bool) -> AsyncGenerator[Event | ToolResult, None]:
        self._begin()
        await self._enter()
        try:
            async with aclosing(self._taken(stream=stream)) as steps:
                async for step in steps:
                    yield step
        finally:
            self._session.run_under_way = False

    async def _taken(self, *, stream: bool) -> AsyncGenerator[Event | ToolResult, None]:
        session, begun = self._session, time.monotonic()
        if self._messages:
            self._check_answered(session.conversation)
            for message in self._messages:
                self._failures += session.keep(message)
        while True:
            if self._left(begun) == 0.0:
                stop_reason: RunStop = "seconds"  # before tools are begun, too
                break
            for result in await self._answer_calls(begun):
                yield result
            bound = self._bound(begun)
            if bound is not None:
                stop_reason = bound
                break
            timeout = _sooner(self._left(begun), self._timeout)
            turn = session.send(None, timeout=timeout, **self._params)
            try:
                if stream:
                    async with turn as events:
                        async for event in events:
                            yield event
                    answered = turn.answered
                    assert answered is not None
                else:
                    answered = await turn
            except Timeout:
                if self._left(begun) != 0.0:
                    raise  # the call's own, which is shorter
                stop_reason = "seconds"
                break
            if not stream:
                yield ReplyEnd(answered.reply)
            self._answers.append(answered)
            reply = answered.reply
            if reply.stop == "pause" or reply.tool_calls:
                if reply.tool_calls and reply.stop in _ENDS:
                    # Cut off in the middle of a call: what there is of it is nothing to act on.
                    stop_reason = _ENDS[reply.stop]
                    break
                continue
            stop_reason = _ENDS.get(reply.stop, "done")
            break
        self.ran = RunResult(
            stop_reason=stop_reason,
            answers=tuple(self._answers),
            cost_usd=_sum(self._answers),
            seconds=time.monotonic() - begun,
            failures=tuple(self._failures),
        )

    async def _answer_calls(self, begun: float) -> tuple[ToolResult, ...]:
        """Runs the tools that the last answer asked for and nobody has answered yet."""
        session = self._session
        calls = unanswered(session.conversation)
        if not calls:
            return ()
        registry = session.tools
        if registry is None:
            raise InvalidRequest(
                f"the model calls {calls[0].name!r}, and the session has no ToolRegistry to run"
                " it; answer it with `send`, or give the session a registry",
                path="tools",
            )
        choice = self._params.get("tool_choice") or session.tool_choice
        parallel = self._parallel and (choice is None or choice.parallel is not False)
        timeout = _sooner(self._left(begun), self._tool_timeout)
        results = await dispatch_all(registry, calls, timeout=timeout, parallel=parallel)
        self._failures += session.keep(Message(role="tool", parts=results))
        return results

    def _bound(self, begun: float) -> RunStop | None:
        """The bound that keeps the next turn from being made."""
        if len(self._answers) >= self._turns:
            return "turns"
        if self._left(begun) == 0.0:
            return "seconds"
        if self._usd is None:
            return None
        if not self._answers:
            self._check_priced()
            return None
        spent = _sum(self._answers)
        if spent is None or not self._session.priced:
            # Not an error: answers were paid for, and are the run's result.
            unknown = "max_cost_usd cannot be checked, because the cost of a turn is unknown"
            self._failures.append(Notice("price_unknown", unknown))
            return "cost_usd"
        return "cost_usd" if spent >= self._usd else None

    def _left(self, begun: float) -> float | None:
        """What is left of the time: a turn does not go beyond it."""
        if self._seconds is None:
            return None
        return max(0.0, self._seconds - (time.monotonic() - begun))

    def _begin(self) -> None:
        """Whatever is wrong with the run is said before it says anything."""
        if self._begun:
            raise InvalidRequest("a run is made once; `run` gives another", path="run")
        self._begun = True
        if self._usd is not None:
            self._check_priced()

    async def _enter(self) -> None:
        """Before anything is said: what two runs say at once would be one prompt."""
        session = self._session
        for _ in range(CLOSE_TICKS):
            if not session.busy:
                break
            await asyncio.sleep(0)  # one that was left by `break` is closed a moment later
        session.refuse_second()
        session.run_under_way = True

    def _check_priced(self) -> None:
        if not self._session.priced:
            raise InvalidRequest(
                f"no price is known for {self._session.model}, so dollars cannot bound the run; use"
                " max_turns, or set a price under `prices` of the provider in llm.yaml",
                path="max_cost_usd",
            )

    @staticmethod
    def _check_answered(conversation: Any) -> None:
        calls = unanswered(conversation)
        if calls:
            raise InvalidRequest(
                f"{calls[0].name!r} ({calls[0].id}) was called and not answered yet; go on with"
                " `run()` before something new is said",
                path="content",
            )


def unanswered(messages: Sequence[Message] | Conversation) -> tuple[ToolCall, ...]:
    """The calls at the end of a conversation that no result answers. Looks at its end only."""
    answered: set[str] = set()
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if message.role == "tool":
            answered |= {part.call_id for part in message.parts if isinstance(part, ToolResult)}
        elif message.role == "assistant":
            calls = (part for part in message.parts if isinstance(part, ToolCall))
            return tuple(call for call in calls if call.id not in answered)
        else:
            return ()
    return ()


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _amount_of(given: Decimal | float | str | None) -> Decimal | None:
    if given is None:
        return None
    try:
        cost_usd = Decimal(str(given))
    except InvalidOperation:
        cost_usd = Decimal("NaN")
    if cost_usd.is_nan():
        raise InvalidRequest(f"an amount, not {given!r}", path="max_cost_usd")
    return cost_usd


def _sum(answers: list[Response]) -> Decimal | None:
    total = Decimal(0)
    for answered in answers:
        if answered.cost_usd is None:
            return None
        total += answered.cost_usd
    return total
