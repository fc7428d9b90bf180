"""Every call gets an answer, and every failure is one."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import enum
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import msgspec
import pytest
from support.tables import each_row
from support.waiting import PATIENCE

from anaphora.client.dispatch import dispatch, dispatch_all
from anaphora.tools import ToolRegistry
from anaphora.values import Bytes, Image, Text, ToolCall, ToolResult


def registry_of(*functions: Callable[..., Any], **options: Any) -> ToolRegistry:
    registry = ToolRegistry()
    for function in functions:
        registry.add(function, **options)
    return registry


def run(
    registry: ToolRegistry, name: str, arguments: str = "{}", *, timeout: float | None = None
) -> ToolResult:
    return asyncio.run(dispatch(registry, ToolCall("c1", name, arguments), timeout=timeout))


def answered(value: object) -> ToolResult:
    registry = ToolRegistry()
    registry.add_schema("tool", "", {}, lambda _: value)
    return run(registry, "tool")


class Color(str, enum.Enum):  # noqa: UP042 - the kind that str() spells otherwise
    RED = "red"


class Point(msgspec.Struct):
    y: int
    x: int


@dataclasses.dataclass
class Box:
    corner: Point
    when: datetime.date


IMAGE = Image(Bytes(b"\x00", "image/png"))
VALUES = [
    ("as it is", "as it is"),
    ("", ""),
    (None, ""),
    (Color.RED, "red"),
    (Text("part"), (Text("part"),)),
    ([Text("a"), IMAGE], (Text("a"), IMAGE)),
    ((Text("a"), IMAGE), (Text("a"), IMAGE)),
    ([], "[]"),
    ([Text("a"), 1], '[{"type":"text","text":"a"},1]'),
    (3, "3"),
    (1.5, "1.5"),
    (True, "true"),
    ({"b": 1, "a": [None, "ü"]}, '{"b":1,"a":[null,"ü"]}'),
    ({2024: 1}, '{"2024":1}'),
    ({"z", "a", "m"}, '["a","m","z"]'),
    (Point(1, 2), '{"y":1,"x":2}'),
    (
        [Box(Point(1, 2), datetime.date(2026, 1, 2))],
        '[{"corner":{"y":1,"x":2},"when":"2026-01-02"}]',
    ),
]


@each_row("value, content", VALUES)
def test_return_value_becomes_a_tool_result(value: object, content: object) -> None:
    assert answered(value) == ToolResult("c1", content, name="tool")  # type: ignore[arg-type]


def test_result_gets_the_call_id() -> None:
    given_result = ToolResult("", "no", error=True, extras={"mcp": "{}"})
    assert answered(given_result) == ToolResult(
        "c1", "no", error=True, name="tool", extras={"mcp": "{}"}
    )


UNSAYABLE = [
    (float("nan"), "result: nan has no JSON form"),
    ({"a": [1.0, float("inf")]}, "result.a[1]: inf has no JSON form"),
    (object(), "result: object has no JSON form"),
    ({"a": object()}, "result.a: object has no JSON form"),
    ({(1, 2): 3}, "object key (1, 2) is not a string"),
    (functools.reduce(lambda inner, _: [inner], range(5000), list[Any]()), "result: is nested too"),
    ("\ud800", "result: lone surrogate"),
    ([Text("\ud800")], "result: lone surrogate"),
    (ToolResult("", "\ud800"), "result: lone surrogate"),
]


@each_row("value, reason", UNSAYABLE)
def test_result_that_json_cannot_hold_is_an_error(value: object, reason: str) -> None:
    result = answered(value)
    assert result.error
    assert isinstance(result.content, str)
    assert result.content.startswith("the tool ran, but its result is not valid JSON: ")
    assert reason in result.content


def divide(a: int, b: int = 0) -> float:
    return a / b


async def divide_later(a: int, b: int = 0) -> float:
    return a / b


def silent(a: int) -> NoReturn:
    raise KeyError


def exhausted(a: int) -> object:
    return next(iter(()))


def times_out_itself(a: int) -> NoReturn:
    raise TimeoutError("upstream took too long")


def odd_message(a: int) -> NoReturn:
    raise ValueError("\ud800")


FAILURES = [
    ("divide", '{"a":1}', "ZeroDivisionError: division by zero"),
    ("divide_later", '{"a":1}', "ZeroDivisionError: division by zero"),
    ("silent", '{"a":1}', "KeyError"),
    ("exhausted", '{"a":1}', "RuntimeError: the tool raised StopIteration"),
    ("times_out_itself", '{"a":1}', "TimeoutError: upstream took too long"),
    ("odd_message", '{"a":1}', "ValueError: ?"),
    ("divide", '{"a":"x"}', "arguments.a: Expected `int`, got `str`"),
    ("divide", "{", "arguments: not JSON: Input data was truncated"),
    ("nothing", "{}", "there is no tool `nothing`; known tools: divide, divide_later, exhausted, "
     "odd_message, silent, times_out_itself"),
]  # fmt: skip


@each_row("name, arguments, message", FAILURES)
def test_failure_becomes_an_error_result(name: str, arguments: str, message: str) -> None:
    registry = registry_of(
        divide, divide_later, silent, exhausted, times_out_itself, odd_message, timeout=60
    )
    result = run(registry, name, arguments)
    assert result == ToolResult("c1", message, error=True, name=name)


def test_fraction_of_zeros_is_a_whole_number() -> None:
    def move(point: Point, text: str, share: float) -> str:
        return f"{point.x} {text} {share}"

    arguments = '{"point": {"x": 2.0, "y": 3.00}, "text": "2.0", "share": 1.0}'
    assert run(registry_of(move), "move", arguments).content == "2 2.0 1.0"
    arguments = arguments.replace("3.00", "3.01")
    assert "arguments.point.y: Expected `int`" in str(run(registry_of(move), "move", arguments))


def test_sync_tools_run_in_a_worker_thread_with_the_callers_context() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    seen: list[tuple[bool, str]] = []

    def look() -> None:
        seen.append((threading.current_thread() is threading.main_thread(), user.get()))

    async def main() -> None:
        user.set("ada")
        await dispatch(registry_of(look), ToolCall("1", "look"))

    asyncio.run(main())
    assert seen == [(False, "ada")]


def test_sync_function_may_return_a_coroutine() -> None:
    registry = ToolRegistry()

    async def later() -> str:
        return "later"

    def hand_back(_: dict[str, Any]) -> Coroutine[Any, Any, str]:
        return later()

    registry.add_schema("tool", "", {}, hand_back)
    assert run(registry, "tool").content == "later"


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "own, given_timeout, message",
    [
        (None, 0.01, "timed out after 0.01 s"),
        (0.01, None, "timed out after 0.01 s"),
        (0.01, 3600, "timed out after 0.01 s"),
    ],
)
def test_async_tools_time_out(own: float | None, given_timeout: float | None, message: str) -> None:
    result = run(registry_of(hang, timeout=own), "hang", timeout=given_timeout)
    assert result == ToolResult("c1", message, error=True, name="hang")


def test_tool_timeout_overrides_the_default() -> None:
    async def patient() -> str:
        await asyncio.sleep(0.02)
        return "done"

    assert run(registry_of(patient, timeout=3600), "patient", timeout=0.001).content == "done"


def test_result_of_a_timed_out_sync_tool_is_discarded() -> None:
    release, ended = threading.Event(), threading.Event()

    def stubborn() -> NoReturn:
        release.wait()
        ended.set()
        raise ValueError("too late")

    async def main() -> ToolResult:
        result = await dispatch(registry_of(stubborn), ToolCall("c1", "stubborn"), timeout=0.01)
        assert not ended.is_set()
        release.set()
        return result

    assert asyncio.run(main()).content == "timed out after 0.01 s"
    assert ended.wait(PATIENCE)


def test_cancelling_the_caller_cancels_the_tool() -> None:
    async def main() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        calls = [ToolCall("1", "wait")]
        task = asyncio.create_task(dispatch_all(registry_of(wait), calls, timeout=3600))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled.is_set()

    asyncio.run(main())


def test_parallel_calls_run_together_and_answer_in_order() -> None:
    async def main() -> tuple[ToolResult, ...]:
        second_ran = asyncio.Event()

        async def first() -> str:
            await second_ran.wait()
            return "first"

        async def second() -> str:
            second_ran.set()
            return "second"

        calls = [ToolCall("1", "first"), ToolCall("2", "nothing"), ToolCall("3", "second")]
        return await dispatch_all(registry_of(first, second), calls)

    results = asyncio.run(main())
    assert [(item.call_id, item.error) for item in results] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]
    assert (results[0].content, results[2].content) == ("first", "second")


def test_sequential_calls_run_one_at_a_time() -> None:
    running: list[str] = []
    most = 0

    async def step(name: str) -> str:
        nonlocal most
        running.append(name)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(name)
        return name

    calls = [ToolCall(str(index), "step", f'{{"name":"{index}"}}') for index in range(3)]
    results = asyncio.run(dispatch_all(registry_of(step), calls, parallel=False))
    assert [item.content for item in results] == ["0", "1", "2"]
    assert most == 1


def test_no_calls_give_no_results() -> None:
    assert asyncio.run(dispatch_all(ToolRegistry(), [])) == ()


def test_mcp_errors_are_errors() -> None:
    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"{name} is down"}], "isError": True}

    registry = ToolRegistry()
    registry.add_mcp([{"name": "search", "inputSchema": {}}], call, prefix="x_")
    assert run(registry, "x_search") == ToolResult(
        "c1", (Text("search is down"),), error=True, name="x_search"
    )


def test_tools_that_never_return_block_nothing() -> None:
    """More of them than a loop's executor has threads; and it ends at once."""
    release = threading.Event()
    registry = ToolRegistry()

    @registry.tool
    def hang() -> None:
        """Hangs."""
        release.wait(PATIENCE)

    @registry.tool
    def quick() -> str:
        """Is quick."""
        return "done"

    async def main() -> None:
        hanging = [ToolCall(id=f"c{number}", name="hang", arguments="{}") for number in range(64)]
        results = await dispatch_all(registry, hanging, timeout=0.05)
        assert all(result.error for result in results)
        (result,) = await dispatch_all(registry, [ToolCall(id="q", name="quick", arguments="{}")])
        assert result.content == "done"
        await asyncio.to_thread(str)  # and others who need a thread get one

    ended = threading.Event()

    def run() -> None:
        asyncio.run(main())
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        assert ended.wait(PATIENCE), "a call still waits for a tool"
    finally:
        release.set()


def test_system_exit_in_a_tool_is_a_failed_result() -> None:
    registry = ToolRegistry()

    @registry.tool
    def leave() -> None:
        """Ends it."""
        raise SystemExit(3)

    result = asyncio.run(dispatch(registry, ToolCall(id="c", name="leave", arguments="{}")))
    assert (result.error, result.content) == (True, "RuntimeError: the tool left with 3")


class Broken(dict[str, int]):
    def items(self) -> NoReturn:
        raise RuntimeError("closed")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_failing_result_object_loses_no_other_result() -> None:
    def broken() -> Any:
        return Broken(a=1)

    def mute() -> Any:
        raise Mute

    def fine() -> str:
        return "fine"

    calls = [ToolCall(name, name, "{}") for name in ("broken", "mute", "fine")]
    results = asyncio.run(dispatch_all(registry_of(broken, mute, fine), calls))
    assert [(one.content, one.error) for one in results] == [
        ("the tool ran, but its result failed with RuntimeError: closed", True),
        ("Mute", True),
        ("fine", False),
    ]
