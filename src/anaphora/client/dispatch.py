"""Runs the tool calls of a model; every failure becomes a result that the model can act on.

Functions of the app that may block run in separate threads (`in_thread`)."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidJson, InvalidRequest
from anaphora.tools.functions import plain
from anaphora.tools.registry import Bound, ToolRegistry
from anaphora.values import ResultPart, Text, ToolCall, ToolResult

from .failures import described, log_in_short

_log = logging.getLogger("anaphora.tools")


OnToolError: TypeAlias = (
    Literal["report", "raise"]
    | Callable[[ToolCall, Exception], str | ToolResult | Awaitable[str | ToolResult]]
)
"""What happens when a tool fails: `report` gives the model a failed result with the exception's
type and message; `raise` ends the run with the exception; a function returns the result for the
model, or raises."""


class ToolError(msgspec.Struct, frozen=True, eq=False):
    """A tool call that failed."""

    call: ToolCall
    error: Exception
    """The tool's exception. `TimeoutError`: it took too long; `InvalidRequest`: there is no such
    tool, or the model's arguments or the tool's result do not match."""
    message: str
    """The message for the model with `report`."""

    @property
    def traceback(self) -> str:
        return "".join(traceback.format_exception(self.error))


class ToolOutcomes(msgspec.Struct):
    """The results of the tool calls of one reply."""

    results: list[ToolResult] = []
    """In the order of the calls; calls without a result are left out."""
    errors: list[ToolError] = []
    raised: Exception | None = None
    """Ends the run. The next run makes the calls without a result again."""


def check_on_tool_error(value: OnToolError) -> OnToolError:
    if value in ("report", "raise") or callable(value):
        return value
    reason = f"must be 'report', 'raise' or a function, not {value!r}"
    raise InvalidRequest(reason, path="on_tool_error")


async def dispatch(
    registry: ToolRegistry, call: ToolCall, *, timeout: float | None = None
) -> ToolResult:
    """The result of one tool call; a failure of any kind is a result with `error` set.

    A string is used unchanged, None becomes an empty text; parts stay parts; structs, dataclasses
    and plain data become JSON text. The tool's timeout overrides `timeout`; both are in seconds.
    Cancelling the caller cancels the tool.

    Async tools are awaited; sync ones run in a new thread. A thread cannot be stopped: when a sync
    tool times out or is cancelled, its function runs to its end and the result is discarded.
    Neither the next tool, nor closing the client, nor the end of the program waits for it.
    """
    outcome = await _attempt(registry, call, timeout)
    return _failure(call, outcome.message) if isinstance(outcome, ToolError) else outcome


async def dispatch_all(
    registry: ToolRegistry,
    calls: Iterable[ToolCall],
    *,
    timeout: float | None = None,
    parallel: bool = True,
) -> tuple[ToolResult, ...]:
    """The results in the order of the calls, not of their completion.

    `timeout` is for each call. With `parallel=False` a call starts when the one before has ended.
    """
    outcomes = await run_calls(registry, calls, timeout=timeout, parallel=parallel)
    return tuple(outcomes.results)


async def run_calls(
    registry: ToolRegistry,
    calls: Iterable[ToolCall],
    *,
    timeout: float | None = None,
    parallel: bool = True,
    on_tool_error: OnToolError = "report",
    outcomes: ToolOutcomes | None = None,
) -> ToolOutcomes:
    """`dispatch_all` with the errors. If one is raised, calls that were begun end first and keep
    their results; with `parallel=False`, later ones are not begun. `outcomes` is filled meanwhile:
    it has the results of the tools that had ended when the caller was cancelled."""
    if outcomes is None:
        outcomes = ToolOutcomes()
    if not parallel:
        for call in calls:
            await _settle(await _attempt(registry, call, timeout), outcomes, on_tool_error)
            if outcomes.raised is not None:
                break
        return outcomes
    tasks: list[asyncio.Task[ToolResult | ToolError]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(_attempt(registry, call, timeout)) for call in calls]
        while tasks:
            await _settle(tasks.pop(0).result(), outcomes, on_tool_error)
    except BaseException:
        ended = (task for task in tasks if not task.cancelled() and task.exception() is None)
        outcomes.results += [one for task in ended if isinstance(one := task.result(), ToolResult)]
        raise
    return outcomes


async def _settle(
    outcome: ToolResult | ToolError, outcomes: ToolOutcomes, on_tool_error: OnToolError
) -> None:
    if isinstance(outcome, ToolResult):
        outcomes.results.append(outcome)
        return
    outcomes.errors.append(outcome)
    problem, call = outcome.error, outcome.call
    reason = outcome.message if problem.__traceback__ is None else described(problem)
    log_in_short(f"the tool {call.name!r} failed: {reason}", problem, _log)
    try:
        if on_tool_error == "raise":
            problem.add_note(f"raised by the tool {call.name!r} (call {call.id})")
            raise problem
        answer: object = outcome.message
        if callable(on_tool_error):
            answer = on_tool_error(call, problem)
            answer = await answer if inspect.isawaitable(answer) else answer
        outcomes.results.append(_handled(call, answer))
    except Exception as raised:
        outcomes.raised = outcomes.raised or raised


def _handled(call: ToolCall, answer: object) -> ToolResult:
    if isinstance(answer, ToolResult):
        return _success(call, answer)
    if isinstance(answer, str):
        return _failure(call, answer)
    reason = f"must return a str or a ToolResult, not {type(answer).__name__}"
    raise InvalidRequest(reason, path="on_tool_error")


async def _attempt(
    registry: ToolRegistry, call: ToolCall, timeout: float | None
) -> ToolResult | ToolError:
    try:
        bound = registry.bind(call)
    except InvalidRequest as problem:
        return ToolError(call, problem, str(problem))
    limit = timeout if bound.timeout is None else bound.timeout
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            value = await _run(bound)
    except asyncio.CancelledError as problem:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The tool awaited something that was cancelled; this call was not.
        cancelled = RuntimeError("the tool was cancelled")
        cancelled.__cause__ = problem
        return ToolError(call, cancelled, "CancelledError")
    except Exception as problem:
        if isinstance(problem, TimeoutError) and scope.expired():
            late = f"timed out after {limit:g} s"
            return ToolError(call, TimeoutError(f"the tool {call.name!r} {late}"), late)
        return ToolError(call, problem, _described(problem))
    try:
        return _success(call, value)
    except InvalidRequest as problem:
        reason = f"the tool ran, but its result is not valid JSON: {problem}"
        return ToolError(call, problem, reason)
    except Exception as problem:  # from code of the result's type
        reason = f"the tool ran, but its result failed with {_described(problem)}"
        return ToolError(call, problem, reason)


async def _run(bound: Bound) -> Any:
    if bound.is_async:
        value = bound()
    else:
        value = await in_thread(bound, "the tool", name=f"tool {bound.call.name}")
    # A sync function may return a coroutine (a lambda, a decorated function).
    return await value if inspect.isawaitable(value) else value


def _described(problem: Exception) -> str:
    kind = type(problem).__name__
    try:
        return f"{kind}: {problem}".removesuffix(": ")
    except Exception:  # from the exception's `__str__`
        return kind


def _success(call: ToolCall, value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        _check(value.content)
        return msgspec.structs.replace(value, call_id=call.id, name=value.name or call.name)
    return ToolResult(call_id=call.id, content=_content(value), name=call.name)


def _failure(call: ToolCall, message: str) -> ToolResult:
    encodable = message.encode("utf-8", "replace").decode()
    return ToolResult(call_id=call.id, content=encodable, error=True, name=call.name)


def _content(value: object) -> str | tuple[ResultPart, ...]:
    if value is None:
        return ""
    content: str | tuple[ResultPart, ...]
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        content = value
    elif isinstance(value, ResultPart):
        content = (value,)
    elif isinstance(value, list | tuple) and value and _are_parts(value):
        content = tuple(value)
    else:
        try:
            return canonical.dumps(plain(value, path="result"), path="result").decode()
        except RecursionError:
            raise InvalidJson("is nested too deeply", path="result") from None
    _check(content)
    return content


def _are_parts(values: Iterable[object]) -> bool:
    return all(isinstance(value, ResultPart) for value in values)


def _check(content: str | tuple[ResultPart, ...]) -> None:
    """Rejects text that no request can carry, before it is rendered."""
    parts = () if isinstance(content, str) else content
    texts = [part.text for part in parts if isinstance(part, Text)]
    for text in [content] if isinstance(content, str) else texts:
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise InvalidJson(
                f"lone surrogate at character {problem.start}; decode with errors='replace'",
                path="result",
            ) from None


T = TypeVar("T")


async def in_thread(
    act: Callable[[], T], what: str, *, name: str, late: Callable[[], None] | None = None
) -> T:
    """The result of `act`, which runs in a daemon thread: in the loop's executor, a few functions
    that never return would block everything else that needs a thread, and the end of the program.

    `what` names the function in errors, `name` the thread. `late` is called in the loop if `act`
    ends when nothing waits for it any more.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def finish(values: tuple[T, ...], problem: BaseException | None) -> None:
        if done.done():  # it was cancelled
            if late is not None:
                late()
        elif problem is None:
            done.set_result(*values)
        else:
            done.set_exception(problem)

    def run() -> None:
        values: tuple[T, ...] = ()
        problem: BaseException | None = None
        try:
            values = (context.run(act),)
        except StopIteration as stop:
            # A future cannot carry StopIteration; Python 3.11 would wait forever.
            problem = RuntimeError(f"{what} raised StopIteration")
            problem.__cause__ = stop
        except SystemExit as left:
            problem = RuntimeError(f"{what} left with {left.code!r}")
        except BaseException as raised:
            problem = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, values, problem)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
