"""Runs the tool calls of a model; every failure becomes a result that the model can act on."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import Any

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidJson, InvalidRequest
from anaphora.tools.functions import plain
from anaphora.tools.registry import Bound, ToolRegistry
from anaphora.values import ResultPart, Text, ToolCall, ToolResult


async def dispatch(
    registry: ToolRegistry, call: ToolCall, *, timeout: float | None = None
) -> ToolResult:
    """The result of one tool call; a failure of any kind is a result with `error` set.

    A string is used as it is, None becomes an empty text; parts stay parts; structs, dataclasses
    and plain data become JSON text. The tool's timeout goes before `timeout`; both are in seconds.
    Cancelling the caller cancels the tool.

    Async tools are awaited; sync ones run in a new thread. A thread cannot be stopped: when a sync
    tool times out or is cancelled, its function runs to its end and the result is discarded.
    Neither the next tool, nor closing the client, nor the end of the program waits for it.
    """
    try:
        bound = registry.bind(call)
    except InvalidRequest as problem:
        return _failure(call, str(problem))
    limit = timeout if bound.timeout is None else bound.timeout
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            value = await _run(bound)
    except Exception as problem:
        if isinstance(problem, TimeoutError) and scope.expired():
            return _failure(call, f"timed out after {limit:g} s")
        return _failure(call, _described(problem))
    try:
        return _success(call, value)
    except InvalidRequest as problem:
        return _failure(call, f"the tool ran, but its result is not valid JSON: {problem}")
    except Exception as problem:  # from code of the result's type
        return _failure(call, f"the tool ran, but its result failed with {_described(problem)}")


async def dispatch_all(
    registry: ToolRegistry,
    calls: Iterable[ToolCall],
    *,
    timeout: float | None = None,
    parallel: bool = True,
) -> tuple[ToolResult, ...]:
    """The results in the order of the calls, whichever tool finished first.

    `timeout` is for each call. With `parallel=False` a call starts when the one before has ended.
    """
    if not parallel:
        return tuple([await dispatch(registry, call, timeout=timeout) for call in calls])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(dispatch(registry, call, timeout=timeout)) for call in calls]
    return tuple(task.result() for task in tasks)


async def _run(bound: Bound) -> Any:
    value = bound() if bound.is_async else await _in_thread(bound)
    # A sync function may return a coroutine (a lambda, a decorated function).
    return await value if inspect.isawaitable(value) else value


async def _in_thread(bound: Bound) -> Any:
    """In a daemon thread: in the loop's executor, a few tools that never return would block
    everything else that needs a thread, and the end of the program."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def finish(value: Any, problem: BaseException | None) -> None:
        if done.done():
            return  # it was cancelled
        if problem is None:
            done.set_result(value)
        else:
            done.set_exception(problem)

    def run() -> None:
        value: Any = None
        problem: BaseException | None = None
        try:
            value = context.run(bound)
        except StopIteration as stop:
            # A future cannot carry StopIteration; Python 3.11 would wait forever.
            problem = RuntimeError("the tool raised StopIteration")
            problem.__cause__ = stop
        except SystemExit as left:
            problem = RuntimeError(f"the tool left with {left.code!r}")
        except BaseException as raised:
            problem = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, value, problem)

    threading.Thread(target=run, name=f"tool {bound.call.name}", daemon=True).start()
    return await done


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
        return canonical.dumps(plain(value, path="result"), path="result").decode()
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
