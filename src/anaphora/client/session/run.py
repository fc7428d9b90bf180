"""The tool loop: turns and tools until the model is done, within bounds.

    run = await chat.run("Book me a flight to Rome", max_turns=20, max_cost_usd=0.50)
    run.stop_reason, run.text, run.turns

    async for event in chat.run("…"): ...        events of every turn, and each tool's result

Every message is added to the conversation, and saved if the session has a `save`, before the next
step: after a crash, `chat.run()` on the saved messages continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from decimal import Decimal
from typing import Any, Generic, Literal, TypeAlias

import msgspec

from anaphora.client.arguments import flag_of, missing_result, seconds_of
from anaphora.client.budget import amount_of
from anaphora.client.cold_guard import cold_guard_of
from anaphora.client.dispatch import (
    ToolError,
    ToolOutcomes,
    check_on_tool_error,
    run_calls,
)
from anaphora.client.options import RUN_KEYWORDS, RunOptions
from anaphora.client.parameters import params_of
from anaphora.client.pending import Pending
from anaphora.client.response import Parsed, Response
from anaphora.client.turn import CLOSE_TICKS, Turn
from anaphora.errors import BudgetExceeded, InvalidRequest, Timeout
from anaphora.values import Event, Message, Notice, Refusal, Reply, ReplyEnd, ToolResult
from anaphora.values.conversation import unanswered

from .turns import SessionTurns

RunStop: TypeAlias = Literal["done", "turns", "seconds", "cost_usd", "length", "refusal"]
"""Why a run ended: the model was done, was cut off or declined, or a bound was reached."""

_ENDS: dict[str, RunStop] = {"length": "length", "context_overflow": "length", "refusal": "refusal"}


class RunResult(msgspec.Struct, Generic[Parsed], frozen=True, kw_only=True, eq=False):
    stop_reason: RunStop
    responses: tuple[Response[Parsed], ...]
    cost_usd: Decimal | None
    seconds: float
    failures: tuple[Notice, ...] = ()
    """Failures between two turns that lost no message, such as one of `save`."""
    tool_errors: tuple[ToolError, ...] = ()
    """The tool calls that failed."""

    @property
    def last(self) -> Response[Parsed] | None:
        return self.responses[-1] if self.responses else None

    @property
    def text(self) -> str:
        return self.responses[-1].text if self.responses else ""

    @property
    def parsed(self) -> Parsed | None:
        return self.responses[-1].parsed if self.responses else None

    @property
    def turns(self) -> int:
        return len(self.responses)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notices of all responses, and the failures between them."""
        return (*(notice for one in self.responses for notice in one.notices), *self.failures)


class Run(Pending[RunResult[Parsed]], Generic[Parsed]):
    """A run that is made when it is awaited or iterated over, once. Awaited again, it returns the
    same result; nothing is sent twice. `text` iterates over the pieces of text of all its turns."""

    _kind, _verb = "Run", "run"

    def __init__(
        self,
        turns: SessionTurns,
        messages: tuple[Message, ...],
        output: Any,
        options: RunOptions,
    ) -> None:
        most = options.pop("max_turns", 50)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidRequest(f"must be an int ≥ 1, not {most!r}", path="max_turns")
        self._turns = turns
        self._messages = messages
        self._most = most
        self._seconds = seconds_of(options.pop("max_seconds", None), "max_seconds")
        self._usd = amount_of(options.pop("max_cost_usd", None), "max_cost_usd")
        self._parallel = flag_of(options.pop("parallel", True), "parallel")
        self._tool_timeout = seconds_of(options.pop("tool_timeout", None), "tool_timeout")
        self._on_tool_error = check_on_tool_error(options.pop("on_tool_error", "report"))
        self._timeout = seconds_of(options.pop("timeout", None), "timeout")
        self._cold = cold_guard_of(options, turns.builder.cold)
        self._params = params_of(options, RUN_KEYWORDS, turns.builder.tools.source.current)
        self._output = output
        self._until: float | None = None
        self._responses: list[Response[Parsed]] = []
        self._failures: list[Notice] = []
        self._tool_errors: list[ToolError] = []
        self.result: RunResult[Parsed] | None = None
        self._made()

    def __aiter__(self) -> AsyncGenerator[Event | ToolResult, None]:
        self._consume()
        return self._make(stream=True)

    async def _complete(self) -> RunResult[Parsed]:
        if self.result is None:
            self._consume()
            async with aclosing(self._make(stream=False)) as steps:
                async for _ in steps:
                    pass
        assert self.result is not None
        return self.result

    async def _make(self, *, stream: bool) -> AsyncGenerator[Event | ToolResult, None]:
        turns = self._turns
        if self._usd is not None:
            self._check_priced()
        for _ in range(CLOSE_TICKS):  # a run that was left by `break` may still be closing
            if not turns.busy:
                break
            await asyncio.sleep(0)
        turns.check_idle()
        turns.running = True
        began = time.monotonic()
        self._until = None if self._seconds is None else began + self._seconds
        try:
            async with aclosing(self._take_steps(stream=stream)) as steps:
                async for step in steps:
                    if isinstance(step, str):
                        self.result = RunResult(
                            stop_reason=step,
                            responses=tuple(self._responses),
                            cost_usd=_sum(self._responses),
                            seconds=time.monotonic() - began,
                            failures=tuple(self._failures),
                            tool_errors=tuple(self._tool_errors),
                        )
                    else:
                        yield step
        finally:
            turns.running = False

    async def _take_steps(
        self, *, stream: bool
    ) -> AsyncGenerator[Event | ToolResult | RunStop, None]:
        """Events and tool results, then the stop reason."""
        turns = self._turns
        if turns.keeper is not None:
            await turns.load()  # new messages follow a history that is compacted already
        if self._messages:
            self._check_answered()
            for message in self._messages:
                self._failures += turns.history.keep(message)
        else:
            turns.check_unfinished()
        while True:
            if self._left() == 0.0:  # also before tools are begun
                yield "seconds"
                return
            for result in await self._run_tools():
                yield result
            if (bound := self._bound()) is not None:
                yield bound
                return
            timeout = _sooner(self._left(), self._timeout)
            options: Any = {"timeout": timeout, **self._params}
            request = turns.builder.request(None, self._output, options)
            if request.cold is not self._cold:
                request = msgspec.structs.replace(request, cold=self._cold)
            turn: Turn[Parsed] = Turn(turns, request)
            try:
                if stream:
                    async with turn as events:
                        async for event in events:
                            yield event
                    response = turn.response
                    assert response is not None
                else:
                    response = await turn
            except Timeout:
                if self._left() != 0.0:
                    raise  # the turn's own timeout
                yield "seconds"
                return
            except BudgetExceeded as refused:
                if not self._responses:
                    raise
                self._failures.append(Notice("budget_exceeded", str(refused)))
                yield "cost_usd"
                return
            reply = response.reply
            if not stream:
                yield ReplyEnd(reply)
            self._responses.append(response)
            cut_off = reply.stop_reason in _ENDS  # maybe in a tool call, which is not executed
            if cut_off or not (reply.tool_calls or reply.stop_reason == "pause"):
                yield _ENDS.get(reply.stop_reason) or ("refusal" if declined(reply) else "done")
                return

    async def _run_tools(self) -> tuple[ToolResult, ...]:
        """Runs the tool calls of the last reply that have no results yet. Results are kept even if
        the run is cancelled: no tool runs twice."""
        turns = self._turns
        calls = unanswered(turns.history.messages)
        if not calls:
            return ()
        registry = turns.builder.tools.registry
        if registry is None:
            raise InvalidRequest(
                f"the model calls {calls[0].name!r}, and the session has no function to run it;"
                " send its result with `send`, or give the session functions: tools=[function]",
                path="tools",
            )
        choice = self._params.get("tool_choice") or turns.builder.params.tool_choice
        parallel = self._parallel and (choice is None or choice.parallel is not False)
        timeout = _sooner(self._left(), self._tool_timeout)
        outcomes = ToolOutcomes()
        try:
            await run_calls(
                registry,
                calls,
                timeout=timeout,
                parallel=parallel,
                on_tool_error=self._on_tool_error,
                outcomes=outcomes,
            )
        finally:
            self._tool_errors += outcomes.errors
            results = tuple(outcomes.results)
            if results:
                self._failures += turns.history.keep(Message(role="tool", parts=results))
        if outcomes.raised is not None and self._left() != 0.0:
            raise outcomes.raised
        return results

    def _bound(self) -> RunStop | None:
        if len(self._responses) >= self._most:
            return "turns"
        if self._left() == 0.0:
            return "seconds"
        if self._usd is None:
            return None
        if not self._responses:
            self._check_priced()
            return None
        spent = _sum(self._responses)
        if spent is None or not self._is_priced:
            # Not an error: the responses were paid for, and are the run's result.
            unknown = "max_cost_usd cannot be checked, because the cost of a turn is unknown"
            self._failures.append(Notice("price_unknown", unknown))
            return "cost_usd"
        return "cost_usd" if spent >= self._usd else None

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @property
    def _is_priced(self) -> bool:
        return self._turns.route.current.price(time.time()) is not None

    def _check_priced(self) -> None:
        if not self._is_priced:
            model = self._turns.route.current.model
            raise InvalidRequest(
                f"no price is known for {model}, so its cost cannot be bounded; use"
                " max_turns, or set a price under `prices` of the provider in llm.yaml",
                path="max_cost_usd",
            )

    def _check_answered(self) -> None:
        if calls := unanswered(self._turns.history.messages):
            raise missing_result(calls[0])


def declined(reply: Reply) -> bool:
    """Whether the reply has a refusal part. OpenAI's wires have no stop reason for refusals."""
    return any(isinstance(part, Refusal) for part in reply.message.parts)


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _sum(responses: list[Response]) -> Decimal | None:
    total = Decimal(0)
    for response in responses:
        if response.cost_usd is None:
            return None
        total += response.cost_usd
    return total
