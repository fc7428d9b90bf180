"""Calls that wait for the limits, on a real event loop with virtual time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import virtual_time
from support.virtual_time import clock

from anaphora import catalog, errors
from anaphora.client.config import LimitsConfig, Rate
from anaphora.client.limits import Gate
from anaphora.values import Usage


class Calls:
    """Calls through gates of one provider, and what became of them."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.gate = Gate.of(limits, clock)
        self.started: list[tuple[str, float, int]] = []
        self.running = self.most = 0

    async def call(
        self,
        name: str,
        *,
        tokens: int = 1,
        takes: float = 0.0,
        model: str = "m",
        deadline: float | None = None,
        on_wait: Callable[[float], None] | None = None,
        ends: BaseException | None = None,
    ) -> float:
        gate = self.gate.of_model(model)
        async with gate.admit(tokens, deadline, on_wait) as admission:
            self.started.append((name, clock(), tokens))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(takes)
            finally:
                self.running -= 1
            if ends is not None:
                raise ends
        return admission.queued

    @property
    def names(self) -> str:
        return "".join(name for name, _, _ in self.started)

    def is_clean(self) -> bool:
        limiter, waiting = self.gate.limiter, self.gate.waiting
        windows = [limiter.shared, *(lane.own for lane in limiter._lanes.values())]
        return (
            not limiter.waiting
            and not waiting._futures
            and waiting._timer is None
            and all(window is None or window.running == 0 for window in windows)
        )


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual_time.run(main())


def test_calls_start_in_order_as_the_rate_allows() -> None:
    async def main() -> None:
        calls, begun = Calls(LimitsConfig(requests_per_minute=2)), clock()
        waits: list[float] = []
        queued = await asyncio.gather(*(calls.call(name, on_wait=waits.append) for name in "abcde"))
        assert calls.names == "abcde"
        assert [at - begun for _, at, _ in calls.started] == [0, 0, 60, 60, 120]
        assert waits == [60, 60, 60], "at least, with no regard to the calls before"
        assert queued == [0, 0, 60, 60, 120]
        assert calls.is_clean()

    run(main)


def test_concurrency_limit_holds() -> None:
    async def main() -> None:
        calls = Calls(LimitsConfig(concurrency=3, models={"m": Rate(concurrency=2)}))
        await asyncio.gather(*(calls.call(name, takes=5.0) for name in "abcde"))
        assert (calls.names, calls.most) == ("abcde", 2)
        both = [calls.call(name, takes=5.0, model=name) for name in "mnopq"]
        calls.most = 0
        await asyncio.gather(*both)
        assert calls.most == 3
        assert calls.is_clean()

    run(main)


def test_too_long_wait_is_rejected_at_once() -> None:
    async def main() -> None:
        calls = Calls(LimitsConfig(requests_per_minute=1))
        waits: list[float] = []
        await calls.call("a")
        begun = clock()
        with pytest.raises(errors.Throttled, match=r"delay the call by 60\.0 s") as raised:
            await calls.call("b", deadline=begun + 59, on_wait=waits.append)
        assert (raised.value.wait, clock(), waits) == (60.0, begun, [])
        await calls.call("c", deadline=begun + 61)
        assert calls.names == "ac"
        assert calls.is_clean()

    run(main)


def test_wait_for_concurrency_ends_at_the_deadline() -> None:
    async def main() -> None:
        calls, begun = Calls(LimitsConfig(concurrency=1)), clock()
        long = asyncio.create_task(calls.call("a", takes=100.0))
        await asyncio.sleep(0)
        waits: list[float] = []
        with pytest.raises(errors.Throttled, match="no call start before the deadline"):
            await calls.call("b", deadline=begun + 10, on_wait=waits.append)
        assert (clock() - begun, waits) == (10.0, [0.0])
        await calls.call("c", deadline=begun + 101)
        await long
        assert calls.names == "ac"
        assert calls.is_clean()

    run(main)


def test_rate_limit_blocks_the_lane_and_fails_late_calls_at_once() -> None:
    async def main() -> None:
        calls, begun = Calls(LimitsConfig(concurrency=1)), clock()
        refused = errors.RateLimited("slow", retry_after=20.0)
        first = asyncio.create_task(calls.call("a", takes=1.0, ends=refused))
        await asyncio.sleep(0)
        patient = asyncio.create_task(calls.call("b"))
        hasty = asyncio.create_task(calls.call("c", deadline=begun + 15))
        with pytest.raises(errors.RateLimited):
            await first
        with pytest.raises(errors.Throttled):
            await hasty
        assert clock() - begun == 1.0
        assert await patient == pytest.approx(21.0)
        assert calls.is_clean()

    run(main)


def test_unsent_calls_do_not_count() -> None:
    async def main() -> None:
        calls = Calls(LimitsConfig(requests_per_minute=1))
        for phase, wait in (("connect", 0.0), ("body", 0.0), ("connect", 60.0)):
            broken = errors.Transport("no", phase=phase)  # type: ignore[arg-type]
            begun = clock()
            with pytest.raises(errors.Transport):
                await calls.call("a", ends=broken)
            assert clock() - begun == wait

    run(main)


def test_headers_and_usage_change_later_start_times() -> None:
    async def main() -> None:
        gate = Gate.of(LimitsConfig(tokens_per_minute=100), clock).of_model("m")
        begun = clock()

        async def other() -> float:
            async with gate.admit(80):
                return clock() - begun

        async with gate.admit(80) as admission:
            task = asyncio.create_task(other())
            await asyncio.sleep(3.0)
            used_up = {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-reset-requests": "10m0s",
            }
            admission.update(used_up, 0.0)
            admission.settle(Usage(uncached=10))
        # The tokens are there at once, a request comes back after 10 s.
        assert await task == pytest.approx(13.0, abs=1e-3)

    run(main)


def test_exception_in_on_wait_frees_the_place() -> None:
    async def main() -> None:
        calls = Calls(LimitsConfig(requests_per_minute=1))
        await calls.call("a")

        def refuse(_: float) -> None:
            raise KeyError("no")

        with pytest.raises(KeyError):
            await calls.call("b", on_wait=refuse)
        assert calls.is_clean()

    run(main)


@pytest.mark.parametrize("before", [True, False])
def test_cancelled_calls_slot_goes_to_the_next(before: bool) -> None:
    async def main() -> None:
        calls = Calls(LimitsConfig(concurrency=1))
        async with calls.gate.of_model("m").admit(1):
            second, third = (asyncio.create_task(calls.call(name)) for name in "bc")
            await asyncio.sleep(1.0)
            if before:
                second.cancel()
        # The place is free and the next one's turn has come, but its task has not run yet.
        if not before:
            second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await third
        assert calls.names == "c"
        assert calls.is_clean()

    run(main)


def test_one_gate_per_model_and_cache_reads_count_by_the_rules() -> None:
    gate = Gate.of(LimitsConfig())
    anthropic = gate.of_model("a", catalog.rules("anthropic", "claude-sonnet-4-5"))
    openai = gate.of_model("o", catalog.rules("openai", "gpt-5.6"))
    unknown = gate.of_model("u", catalog.rules("ollama", "something"))
    assert [each.lane.counts_reads for each in (anthropic, openai, unknown)] == [False, True, True]
    assert gate.of_model("a").lane is anthropic.lane


plans = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 1.0, 15.0]),  # when it comes, after the one before
        st.sampled_from([0.0, 2.0, 30.0]),  # how long it takes
        st.integers(0, 40),  # how many tokens
        st.sampled_from("ab"),
        st.none()
        | st.sampled_from([0.0, 1.0, 2.0, 31.0, 60.0, 61.0]),  # cancelled, since its start
        st.none() | st.sampled_from([0.5, 20.0, 70.0, 200.0]),  # its deadline
    ),
    max_size=14,
)


@given(
    plans=plans,
    requests=st.none() | st.integers(1, 4),
    tokens=st.none() | st.integers(40, 90),
    places=st.none() | st.integers(1, 2),
)
def test_cancelled_calls_do_not_block_others(
    plans: list[tuple[float, float, int, str, float | None, float | None]],
    requests: int | None,
    tokens: int | None,
    places: int | None,
) -> None:
    async def main() -> None:
        calls = Calls(
            LimitsConfig(
                requests_per_minute=requests,
                tokens_per_minute=tokens,
                concurrency=places,
                models={"a": Rate(requests_per_minute=3, concurrency=1)},
            )
        )
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[float]] = []
        for at, (gap, takes, amount, model, cancelled, patience) in enumerate(plans):
            await asyncio.sleep(gap)
            deadline = None if patience is None else clock() + patience
            name = f"{model}{at:02}"
            coming = calls.call(name, tokens=amount, takes=takes, model=model, deadline=deadline)
            tasks.append(asyncio.create_task(coming))
            if cancelled is not None:
                loop.call_later(cancelled, tasks[-1].cancel)
        # The event loop fails when a call is never woken.
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome, (*_, cancelled, patience) in zip(ended, plans, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                assert cancelled is not None
            elif isinstance(outcome, errors.Throttled):
                assert patience is not None
            else:
                assert isinstance(outcome, float)
        for model in "ab":
            mine = [name for name, _, _ in calls.started if name[0] == model]
            assert mine == sorted(mine)
        assert calls.most <= (places or len(plans))
        starts = [at for _, at, _ in calls.started]
        for begin in starts:
            inside = [n for _, at, n in calls.started if begin <= at < begin + 60]
            assert len(inside) <= (requests or len(plans))
            assert sum(inside) <= (tokens or 10**9)
        await asyncio.sleep(0)
        assert calls.is_clean()

    run(main)


def test_admission_without_a_wait_needs_no_task_future_or_timer() -> None:
    async def main() -> None:
        made: list[str] = []

        def watch(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name in (
                "create_task",
                "create_future",
                "call_later",
                "call_at",
                "call_soon",
            ):
                made.append(frame.f_code.co_name)

        full = Rate(requests_per_minute=9, tokens_per_minute=99, concurrency=2)
        limits = LimitsConfig(
            requests_per_minute=9, tokens_per_minute=99, concurrency=2, models={"m": full}
        )
        gate = Gate.of(limits, clock).of_model("m")
        sys.setprofile(watch)
        try:
            async with gate.admit(5, clock() + 9, made.append) as admission:  # type: ignore[arg-type]
                admission.update({"x-ratelimit-remaining-requests": "5"}, 0.0)
                admission.settle(Usage(uncached=7))
        finally:
            sys.setprofile(None)
        assert made == []
        sys.setprofile(watch)
        try:
            await asyncio.sleep(0.001)
        finally:
            sys.setprofile(None)
        assert "call_later" in made  # the watch does see them

    run(main)


def test_exit_without_entry_is_harmless() -> None:
    async def main() -> None:
        gate = Gate.of(LimitsConfig(tokens_per_minute=5), clock)
        with pytest.raises(errors.Throttled):
            async with gate.admit(6):
                pass
        assert gate.wait(5) == 0.0

    run(main)


def test_counts_tokens_with_a_token_limit_or_while_calls_wait() -> None:
    async def main() -> None:
        assert Gate.of(LimitsConfig(tokens_per_minute=100), clock).of_model("m").counts_tokens
        calls = Calls(LimitsConfig())
        gate = calls.gate.of_model("m")
        counted = [gate.counts_tokens]
        with pytest.raises(errors.RateLimited):
            await calls.call("a", ends=errors.RateLimited("slow", retry_after=5.0))
        counted.append(gate.counts_tokens)  # a call now waits, and limits may be learned meanwhile
        await asyncio.sleep(6.0)
        counted.append(gate.counts_tokens)
        async with gate.admit(1) as admission:
            scarce = {
                "x-ratelimit-remaining-tokens": "10",
                "x-ratelimit-limit-tokens": "100",
                "x-ratelimit-reset-tokens": "60s",
            }
            admission.update(scarce, 0.0)
        counted.append(gate.counts_tokens)
        assert counted == [False, True, False, True]

    run(main)


ABSURD = {
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-limit-requests": "50",
    "x-ratelimit-reset-requests": "1000000000s",
}


async def exchange(gate: Gate, log: list[float], outcome: BaseException | dict[str, str]) -> None:
    """A call that takes ten seconds; its response begins after five."""
    async with gate.admit(1) as admission:
        log.append(clock())
        await asyncio.sleep(5.0)
        if isinstance(outcome, BaseException):
            raise outcome
        admission.update(outcome, 0.0)
        await asyncio.sleep(5.0)


def test_a_stated_wait_is_at_most_the_longest() -> None:
    async def main() -> None:
        gate = Gate.of(LimitsConfig(longest_wait=100.0), clock).of_model("m")
        log: list[float] = []
        begun = clock()
        refused = errors.RateLimited("slow", retry_after=1e9)
        await asyncio.gather(exchange(gate, log, refused), return_exceptions=True)
        await asyncio.gather(*(exchange(gate, log, {}) for _ in range(3)))
        assert [at - begun for at in log] == [0, 105, 105, 105]

    run(main)


def test_what_is_left_until_a_late_reset_may_be_used_at_once() -> None:
    """A daily quota may be reset tomorrow: what is left of it may be used at once."""

    async def main() -> None:
        gate = Gate.of(LimitsConfig(), clock).of_model("m")
        log: list[float] = []
        left = ABSURD | {"x-ratelimit-remaining-requests": "4"}
        await exchange(gate, log, left)
        begun = clock()
        await asyncio.gather(*(exchange(gate, log, left) for _ in range(4)))
        assert [at - begun for at in log[1:]] == [0.0] * 4

    run(main)
