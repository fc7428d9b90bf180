"""Running the tools a model asked for; every failure becomes a result that the model can act on."""

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
    registry: ToolRegistry,
    call: ToolCall,
    *,
    timeout: float | None = None,
) -> ToolResult:
    """The tool's answer to one call; a failure of any kind is an answer with `error` set.

    A string is said as it is, None as nothing; parts stay parts; structs, dataclasses and plain
    data become JSON text. The tool's own timeout goes before `timeout`; both are in seconds.
    Cancelling the caller cancels the tool.

    Async tools are awaited; sync ones run in a thread of their own. A thread cannot be stopped:
    when a sync tool times out or is cancelled, its function runs on to its end and its result or
    exception is discarded. Nobody waits for it: neither the tools after it, nor the client that is
    closed, nor the end of the program, which ends it wherever it is.
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
        return _failure(call, f"the tool ran, but its result cannot be said as JSON: {problem}")
    except Exception as problem:  # code of the result's own type
        return _failure(call, f"the tool ran, but its result failed with {_described(problem)}")


async def dispatch_all(
    registry: ToolRegistry,
    calls: Iterable[ToolCall],
    *,
    timeout: float | None = None,
    parallel: bool = True,
) -> tuple[ToolResult, ...]:
    """The answers in the order of the calls, whichever tool finished first.

    `timeout` holds for each call. With `parallel=False` a call starts when the one before it ended.
    """
    if not parallel:
        return tuple([await dispatch(registry, call, timeout=timeout) for call in calls])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(dispatch(registry, call, timeout=timeout)) for call in calls]
    return tuple(task.result() for task in tasks)


async def _run(bound: Bound) -> Any:
    value = bound() if bound.is_async else await _in_thread(bound)
    # A sync function may hand back a coroutine (a lambda, a decorated function).
    return await value if inspect.isawaitable(value) else value


async def _in_thread(bound: Bound) -> Any:
    """In a daemon of its own: in the loop's executor, a few tools that never return would keep
    everything else waiting that needs a thread there, and the program from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(value: Any, problem: BaseException | None) -> None:
        if done.done():
            return  # nobody waits for it any more
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
            # A future cannot carry StopIteration; Python 3.11 would wait for it for ever.
            problem = RuntimeError("the tool raised StopIteration")
            problem.__cause__ = stop
        except SystemExit as left:
            problem = RuntimeError(f"the tool left with {left.code!r}")  # the program goes on
        except BaseException as raised:
            problem = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, value, problem)

    threading.Thread(target=run, name=f"tool {bound.call.name}", daemon=True).start()
    return await done


def _described(problem: Exception) -> str:
    kind = type(problem).__name__
    try:
        return f"{kind}: {problem}".removesuffix(": ")
    except Exception:  # its own `__str__`
        return kind


def _success(call: ToolCall, value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        _check(value.content)
        return msgspec.structs.replace(value, call_id=call.id, name=value.name or call.name)
    return ToolResult(call_id=call.id, content=_content(value), name=call.name)


def _failure(call: ToolCall, message: str) -> ToolResult:
    sayable = message.encode("utf-8", "replace").decode()
    return ToolResult(call_id=call.id, content=sayable, error=True, name=call.name)


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
    """Finds text no request could carry now, rather than at the next render."""
    texts = (
        [content]
        if isinstance(content, str)
        else [part.text for part in content if isinstance(part, Text)]
    )
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise InvalidJson(
                f"lone surrogate at character {problem.start}; decode with errors='replace'",
                path="result",
            ) from None
