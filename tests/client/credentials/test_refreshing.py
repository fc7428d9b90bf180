"""A value is fetched once, ahead of its expiry, in a thread, whoever waits."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.waiting import until, wait_until

from anaphora.client.credentials.refreshing import Fetched, RefreshedValue
from anaphora.errors import Transport


class Source:
    """Numbers, each with the life that `seconds` states."""

    def __init__(self, seconds: float | None = 3600.0) -> None:
        self.now = 1000.0
        self.seconds = seconds
        self.fetched = 0
        self.failing = False
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[int] = set()
        self.repeats = False

    def __call__(self) -> Fetched[int]:
        self.gate.wait(60)
        self.threads.add(threading.get_ident())
        if self.failing:
            self.fetched += 1
            raise Transport("gone")
        if not self.repeats:
            self.fetched += 1
        end = None if self.seconds is None else self.now + self.seconds
        return Fetched(self.fetched, end)

    def value(self, ahead: float = 600.0) -> RefreshedValue[int]:
        return RefreshedValue(self, ahead=ahead, clock=lambda: self.now)


def get(value: RefreshedValue[int]) -> int:
    return asyncio.run(value.get())


def wait_for(source: Source, value: RefreshedValue[int], count: int) -> None:
    """Until so many fetches have ended."""
    wait_until(lambda: source.fetched == count and value._running is None)


def test_many_waiters_are_one_fetch_off_the_loop() -> None:
    source = Source()
    source.gate.clear()
    value = source.value()

    async def wait() -> list[int]:
        tasks = [asyncio.create_task(value.get()) for _ in range(100)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        source.gate.set()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(wait()) == [1] * 99
    assert threading.get_ident() not in source.threads


def test_other_loops_share_it() -> None:
    source = Source()
    source.gate.clear()
    value = source.value()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(get(value))) for _ in range(8)]
    for thread in threads:
        thread.start()
    source.gate.set()
    for thread in threads:
        thread.join()
    assert found == [1] * 8


def test_it_is_fetched_ahead_while_the_old_value_serves() -> None:
    source = Source()
    value = source.value()
    assert get(value) == 1
    source.now += 2999
    assert get(value) == 1
    source.gate.clear()
    source.now += 2  # 599 s are left

    async def ahead() -> None:
        assert await value.get() == 1  # at once, although the fetch waits
        assert await value.get() == 1
        source.gate.set()
        await until(lambda: source.fetched == 2)

    asyncio.run(ahead())
    wait_until(lambda: get(value) == 2)
    assert source.fetched == 2
    assert value.history == (2, 1)


def test_a_failure_ahead_is_kept_until_the_end() -> None:
    source = Source()
    value = source.value()
    get(value)
    source.failing = True
    source.now += 3100
    assert get(value) == 1
    wait_for(source, value, 2)
    assert get(value) == 1  # not again within half a minute
    assert source.fetched == 2
    source.now += 31
    assert get(value) == 1
    wait_for(source, value, 3)
    source.now += 600
    errors: list[Transport] = []

    async def fail() -> None:
        for outcome in await asyncio.gather(value.get(), value.get(), return_exceptions=True):
            assert isinstance(outcome, Transport)
            errors.append(outcome)

    asyncio.run(fail())
    assert errors[0] is not errors[1]
    assert errors[0].phase == "connect"
    source.failing = False
    assert get(value) > 1


def test_short_lives_and_sources_that_repeat_do_not_fetch_for_every_use() -> None:
    source = Source(seconds=100.0)
    value = source.value(ahead=600.0)
    for _ in range(5):
        assert get(value) == 1  # not before half of its life
    source.now += 51
    get(value)
    wait_for(source, value, 2)
    source.repeats = True
    source.seconds = 40.0
    source.now += 51
    before = len(source.threads)
    for _ in range(5):
        get(value)
    assert source.fetched == 2
    assert len(source.threads) <= before + 1


def test_what_never_expires_is_fetched_once_unless_it_is_dropped() -> None:
    source = Source(seconds=None)
    value = source.value()
    assert get(value) == 1
    source.now += 1e9
    assert get(value) == 1
    assert value.drop(1)
    assert get(value) == 2
    assert not value.drop(2)  # it is new
    assert value.drop(1)  # another one is in use by now
    assert get(value) == 2


def test_a_loop_that_ended_does_not_hurt() -> None:
    source = Source()
    source.gate.clear()
    value = source.value()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(value.get(), 0.01)

    asyncio.run(leave())
    source.gate.set()
    wait_until(lambda: source.fetched == 1)
    assert get(value) == 1
