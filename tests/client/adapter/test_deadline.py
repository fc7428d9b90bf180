"""The caller's time limit holds for all work of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from anaphora.client.adapter import AdapterDeadline
from anaphora.errors import Timeout


async def never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def late_by_its_own_account() -> NoReturn:
    raise Timeout(999)


async def late_for_a_reason_of_its_own() -> NoReturn:
    raise TimeoutError("a socket's")


def spend(timeout_ms: int, *work: Callable[[], Awaitable[object]]) -> list[object]:
    async def main() -> list[object]:
        budget = AdapterDeadline(timeout_ms)
        return [await budget.apply(each()) for each in work]

    return asyncio.run(main())


@pytest.mark.parametrize("work", [never, late_by_its_own_account])
@pytest.mark.parametrize("ms", [0, 20])
def test_timeout_error_names_timeout_ms(work: Callable[[], Awaitable[object]], ms: int) -> None:
    with pytest.raises(Timeout) as caught:
        spend(ms, work)
    assert caught.value.timeout_ms == ms


def test_other_timeout_errors_are_passed_on() -> None:
    with pytest.raises(TimeoutError, match="a socket's"):
        spend(60_000, late_for_a_reason_of_its_own)


def test_result_within_the_deadline_is_returned() -> None:
    async def done() -> int:
        return 3

    assert spend(2**64 - 1, done, done) == [3, 3]


def test_cancellation_is_not_a_timeout() -> None:
    async def main() -> None:
        task = asyncio.create_task(AdapterDeadline(60_000).apply(never()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
