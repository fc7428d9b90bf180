"""`client.budget`: concurrent calls never exceed it, and everything that was sent is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from decimal import ROUND_CEILING, Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as checked
from hypothesis import strategies as st
from support.emulated_client import KEY, LONG, WIRES, connected, settings
from support.waiting import until

from anaphora import AsyncClient, Client, emulator
from anaphora.client.budget import Budget
from anaphora.client.costs import holds
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator
from anaphora.errors import BudgetExceeded, InvalidRequest, Overloaded, Transport
from anaphora.values import TextDelta

pytestmark = pytest.mark.usefixtures("more_faults")

#: Wires and dialects whose requests differ; Ollama's models have no price.
PRICED = (
    "anthropic",
    "openai_chat",
    "openai_responses",
    "gemini",
    "bedrock",
    "deepseek",
    "openrouter",
)
SCRIPT = """
replies:
  - match: {text: delegate, tool: research}
    reply:
      tool_calls:
        - {name: research, id: call_1, arguments: {topic: ships}}
        - {name: research, id: call_2, arguments: {topic: trains}}
  - match: {result_of: research}
    reply: {text: Both are researched.}
"""
NANO, NOTHING = Decimal(10) ** -9, Decimal(0)


@pytest.fixture(scope="module")
def _running() -> Iterator[Emulator]:
    script = Script.decode(SCRIPT, "script.yaml")
    options = EmulatorOptions(batch_seconds=0, script=script)
    with emulator.running(options) as running:
        yield running


@pytest.fixture
def emu(_running: Emulator) -> Emulator:
    _running.reset()
    return _running


def billed(emu: Emulator) -> Decimal:
    """The provider's bills, each rounded up to a nano-dollar."""
    bills = [Decimal(each["cost_usd"]) for each in emu.requests() if each.get("cost_usd")]
    return sum((bill.quantize(NANO, ROUND_CEILING) for bill in bills), Decimal(0))


def state(budget: Budget) -> tuple[Decimal, int]:
    return budget.held_usd, budget.calls


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.parametrize("name", PRICED)
def test_the_maximum_is_held_and_replaced_by_the_bill(
    emu: Emulator, name: str, stream: bool
) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            client, held = emulated.client, Decimal(0)
            async with client.budget(usd=1) as budget:
                if stream:
                    async for _ in client.stream("Hello", name, system=LONG, max_tokens=50):
                        held = max(held, budget.held_usd)
                else:
                    await client.complete("Hello", name, system=LONG, max_tokens=50)
                    held = budget.spent_usd
            assert 0 < budget.spent_usd == billed(emu) <= held
            assert state(budget) == (NOTHING, 1)
            assert budget.left_usd == 1 - budget.spent_usd
            (record,) = emulated.records
            assert record.cost_usd is not None
            assert budget.spent_usd - record.cost_usd < NANO

    asyncio.run(main())


@pytest.mark.parametrize("name", PRICED)
def test_a_call_that_could_exceed_it_is_not_sent(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            async with emulated.client.budget(usd="0.001") as budget:
                with pytest.raises(BudgetExceeded) as refused:
                    await emulated.client.complete("Hello", name, max_tokens=5000)
            error = refused.value
            assert (error.limit, error.spent, error.held) == (Decimal("0.001"), NOTHING, NOTHING)
            assert error.bound is not None
            assert error.bound > error.limit
            text = str(error)
            assert text.startswith("not sent: it may cost $0.")
            assert "$0.0010 of $0.0010 are left in the budget ($0 spent, $0 held" in text
            assert text.endswith("a smaller max_tokens than 5,000 lowers its maximum cost")
            assert not emulated.transport.sent
            assert budget.spent_usd == 0
            assert state(budget) == (NOTHING, 0)
            assert budget.exceeded
            (record,) = emulated.records
            assert record.error == "BudgetExceeded"

    asyncio.run(main())


def test_without_max_tokens_the_longest_output_counts(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["openai_chat"]) as emulated, emulated.client.budget(usd=1):
            with pytest.raises(BudgetExceeded) as refused:
                await emulated.client.complete("Hello", "openai_chat")
            assert str(refused.value).endswith(
                "without max_tokens, the longest output of gpt-5.2 counts, 128,000 tokens: set"
                " max_tokens"
            )
            await emulated.client.complete("Hello", "openai_chat", max_tokens=100)

    asyncio.run(main())


def test_the_missing_limit_is_named_as_the_app_writes_it(emu: Emulator) -> None:
    async def main() -> None:
        prices = {"unknown-1": {"input": 1, "output": 2}}
        config = {"providers": settings(emu.url, ["openai_chat"])}
        config["providers"]["openai_chat"] |= {"model": "unknown-1", "prices": prices}
        async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
            with pytest.raises(BudgetExceeded, match=r"has no limit: set max_tokens$"):
                await client.complete("Hello", budget=client.budget(usd=1))

    asyncio.run(main())


def test_a_model_without_a_price_needs_permission(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["ollama"]) as emulated:
            client = emulated.client
            async with client.budget(usd=1):
                with pytest.raises(BudgetExceeded, match="no price is known for qwen3") as told:
                    await client.complete("Hello", "ollama")
                assert "allow_unpriced=True" in str(told.value)
                assert told.value.bound is None
                async with client.budget(usd=1, allow_unpriced=True):
                    with pytest.raises(BudgetExceeded):  # the outer one does not
                        await client.complete("Hello", "ollama")
            async with client.budget(usd=1, allow_unpriced=True) as budget:
                await client.complete("Hello", "ollama")
            assert budget.spent_usd == 0
            assert state(budget) == (NOTHING, 1)
            assert len(emulated.transport.sent) == 1

    asyncio.run(main())


def test_calls_inside_count_in_every_budget_around_them(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client = emulated.client

            async def ask() -> Decimal:
                return (
                    await client.complete("Hello", "anthropic", max_tokens=20)
                ).cost_usd or Decimal(0)

            before = await ask()
            async with client.budget(usd=1) as outer:
                first = await ask()
                async with client.budget(usd="0.5") as inner:
                    second = await ask()
                async with client.budget(usd=5), client.budget(usd="0.00001"):
                    with pytest.raises(BudgetExceeded) as refused:
                        await ask()
                third = await ask()
            after = await ask()
            assert refused.value.limit == Decimal("0.00001")
            assert before == after == second == inner.spent_usd
            assert outer.spent_usd == first + second + third
            assert (inner.calls, outer.calls) == (1, 3)
            # A larger one inside does not extend the outer one.
            async with client.budget(usd="0.00001") as small, client.budget(usd=5) as large:
                with pytest.raises(BudgetExceeded) as refused:
                    await ask()
            assert refused.value.limit == small.limit_usd
            assert large.held_usd == large.calls == 0

    asyncio.run(main())


def test_budgets_of_generators_that_take_turns(emu: Emulator) -> None:
    """They are left in another order than entered; none stays in force, none ends early."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client = emulated.client

            async def ask() -> None:
                await client.complete("Hello", "anthropic", max_tokens=20)

            outer, first, second = (client.budget(usd=1) for _ in range(3))
            with outer:
                first.__enter__()
                second.__enter__()
                await ask()
                first.__exit__(None, None, None)
                await ask()
                second.__exit__(None, None, None)
                await ask()
            await ask()
            assert (outer.calls, first.calls, second.calls) == (3, 1, 2)
            with outer, outer:
                await ask()
            assert outer.calls == 4, "entered twice, it counts once"

    asyncio.run(main())


def test_a_session_with_a_budget_of_its_own(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["openai_responses"]) as emulated:
            client = emulated.client
            budget = client.budget(usd=1)
            chat = client.session("openai_responses", store=True, max_tokens=50, budget=budget)
            for question in ("Which cities?", "And Rome?", "And Oslo?"):
                await chat.send(question)
            assert budget.spent_usd == chat.cost_usd == billed(emu)
            branch = chat.fork()
            await branch.send("And Athens?")
            assert budget.calls == 4
            await client.complete("Hello", "openai_responses", max_tokens=20, budget=budget)
            async with client.budget(usd=1) as around:
                await chat.send("And Lisbon?")
            assert (budget.calls, around.calls) == (6, 1)
            assert b"previous_response_id" in emulated.transport.bodies[2]
            with pytest.raises(InvalidRequest, match="budget: must be made by client"):
                client.session("openai_responses", budget=0.5)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="usd: must be an amount in dollars"):
                client.budget(usd=-1)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses", "gemini"])
def test_sub_agents_in_tools_share_it(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            client, costs = emulated.client, list[Decimal]()

            async def research(topic: str) -> str:
                """Researches a topic."""
                found = await client.session(name, max_tokens=50).run(f"About {topic}")
                costs.append(found.cost_usd or Decimal(0))
                return found.text

            async with client.budget(usd=1) as budget:
                chat = client.session(name, tools=[research], max_tokens=200)
                done = await chat.run("delegate")
            assert (done.stop_reason, done.text) == ("done", "Both are researched.")
            assert budget.calls == 4
            assert budget.spent_usd == billed(emu) == sum(costs) + (done.cost_usd or 0)

    asyncio.run(main())


def test_a_run_that_reaches_it_keeps_its_responses(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client = emulated.client

            def research(topic: str) -> str:
                """Researches a topic."""
                return "A very long report. " * 2000

            async with client.budget(usd="0.05") as budget:
                chat = client.session("anthropic", tools=[research], max_tokens=300)
                done = await chat.run("delegate")
                assert (done.stop_reason, done.turns) == ("cost_usd", 1)
                (notice,) = [each for each in done.notices if each.code == "budget_exceeded"]
                assert notice.message.startswith("not sent: it may cost")
                assert [message.role for message in chat.messages] == ["user", "assistant", "tool"]
                with pytest.raises(BudgetExceeded):
                    await chat.run()
            assert (await chat.run()).text == "Both are researched."
            assert budget.calls == 1

    asyncio.run(main())


def test_tasks_started_inside_share_it_also_after_its_end(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client = emulated.client

            async def ask(number: int) -> None:
                await client.complete(f"Number {number}", "anthropic", max_tokens=30)

            async with client.budget(usd=1) as budget:
                async with asyncio.TaskGroup() as group:
                    for number in range(5):
                        group.create_task(ask(number))
                late = asyncio.create_task(ask(6))
            await ask(7)
            await late
            assert budget.calls == 6
            assert len(emulated.records) == 7

    asyncio.run(main())


def test_threads_of_the_sync_client(emu: Emulator) -> None:
    config = {"providers": settings(emu.url, ["anthropic"])}
    with Client.from_config(config, environ={"KEY": KEY}) as client:

        def research(topic: str) -> str:
            """Researches a topic."""
            return client.session(max_tokens=50).send(topic).result().text

        with client.budget(usd=1) as budget:
            done = client.session(tools=[research], max_tokens=200).run("delegate").result()
            assert done.text == "Both are researched."
            for piece in client.send("Hello", max_tokens=20).text:
                assert piece
                assert budget.held_usd > 0
            assert budget.calls == 5

            def ask(number: int) -> None:
                with budget:  # a new thread has no context of the caller's
                    client.complete(f"Number {number}", max_tokens=20)
                client.complete(f"Outside {number}", max_tokens=20)
                client.complete(f"With it {number}", max_tokens=20, budget=budget)

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(ask, range(6)))
        client.complete("Afterwards", max_tokens=20)
        assert budget.calls == 5 + 12
        assert budget.held_usd == 0
        spent = billed(emu)
        assert 0 < budget.spent_usd < spent


# ── Calls that end early, or are repeated ────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*WIRES[:4], "bedrock"])
def test_a_stream_that_is_left_is_settled(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            client = emulated.client
            async with client.budget(usd=1) as budget:
                events = client.stream("Tell me a story", name, system=LONG, max_tokens=400)
                async with aclosing(events) as coming:
                    async for event in coming:
                        held = budget.held_usd
                        if isinstance(event, TextDelta):
                            break
            assert budget.held_usd == 0
            assert 0 < billed(emu) <= budget.spent_usd <= held
            assert budget.calls == 1

    asyncio.run(main())


@pytest.mark.long
def test_a_cancelled_call_may_cost_all_that_was_held(emu: Emulator) -> None:
    """A request without stream is billed in full, and its bill never comes."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client, transport = emulated.client, emulated.transport
            transport.faults = ["slow-drip; seconds=6"]
            async with client.budget(usd=1) as budget:
                call = asyncio.create_task(client.complete("Hello", "anthropic", max_tokens=50))
                await until(lambda: transport.received)
                held = budget.held_usd
                assert held > 0
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            assert (budget.held_usd, budget.spent_usd) == (NOTHING, held)

    asyncio.run(main())


def test_each_attempt_is_held(emu: Emulator) -> None:
    async def main() -> None:
        retry = {"first_wait": 0.001, "max_attempts": 3}
        async with connected(emu, ["anthropic"], retry=retry) as emulated:
            client = emulated.client
            emulated.transport.faults = ["529", "529", None]
            async with client.budget(usd=1) as budget:
                await client.complete("Hello", "anthropic", max_tokens=50)
            assert budget.calls == 3
            assert budget.spent_usd == billed(emu)
            emulated.transport.faults = ["cut; after=3", None]
            async with client.budget(usd=1) as budget:
                with pytest.raises(Transport):
                    async for _ in client.stream("Hello again", "anthropic", max_tokens=50):
                        pass
            assert state(budget) == (NOTHING, 1)
            assert budget.spent_usd > 0

    asyncio.run(main())


def test_a_fallback_is_held_at_its_own_price(emu: Emulator) -> None:
    async def main() -> None:
        names = ["anthropic", "openai_chat"]
        routes = {"both": [{"provider": name} for name in names]}
        retry = {"first_wait": 0.001, "max_attempts": 1}
        async with connected(emu, names, routes=routes, retry=retry) as emulated:
            emulated.transport.faults = ["529", None]
            async with emulated.client.budget(usd=1) as budget:
                response = await emulated.client.complete("Hello", "both", max_tokens=50)
            assert response.record.provider == "openai_chat"
            assert budget.calls == 2
            assert budget.spent_usd == billed(emu)

    asyncio.run(main())


def test_nothing_is_charged_for_what_was_not_sent(emu: Emulator) -> None:
    async def main() -> None:
        config = {"providers": settings("http://127.0.0.1:9", ["anthropic"])}
        config["providers"]["anthropic"]["retry"] = {"max_attempts": 1}
        async with AsyncClient.from_config(config, environ={"KEY": KEY}) as client:
            async with client.budget(usd=1) as budget:
                with pytest.raises(Transport):
                    await client.complete("Hello", max_tokens=50)
            assert budget.spent_usd == 0
            assert state(budget) == (NOTHING, 0)

    asyncio.run(main())


def test_a_failure_to_settle_loses_no_answer(emu: Emulator, monkeypatch: Any) -> None:
    def failing(*_: Any) -> Any:
        raise LookupError("no rates")

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            monkeypatch.setattr(holds, "billed_rates", failing)
            async with emulated.client.budget(usd=1) as budget:
                response = await emulated.client.complete("Hello", "anthropic", max_tokens=50)
            assert response.text
            assert "settle_failed" in [notice.code for notice in response.notices]
            assert budget.held_usd == 0
            assert budget.spent_usd > (response.cost_usd or 0) > 0

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_a_budget_that_fails_loses_no_answer(emu: Emulator, monkeypatch: Any, stream: bool) -> None:
    def failing(*_: Any) -> Any:
        raise ArithmeticError("no sum")

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            monkeypatch.setattr(Budget, "settle", failing)
            async with emulated.client.budget(usd=1):
                turn = emulated.client.send("Hello", "anthropic", max_tokens=50)
                if stream:
                    async for _ in turn:
                        pass
                response = turn.response if stream else await turn
            assert response is not None
            assert response.text
            assert "settle_failed" in [notice.code for notice in response.notices]

    asyncio.run(main())


# ── map ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_map_sends_as_many_at_a_time_as_it_admits(emu: Emulator) -> None:
    """A call may cost a hundred times its bill: the others wait for it, and are sent."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client, prompts = emulated.client, [f"What is {number}?" for number in range(30)]
            async with client.budget(usd="0.1") as budget:
                result = await client.map(prompts, max_tokens=2000)
            assert not result.errors
            assert (result.stop_reason, result.progress.calls) == ("done", 30)
            assert budget.spent_usd == billed(emu) < Decimal("0.1")
            assert budget.calls == 30

    asyncio.run(main())


@pytest.mark.parametrize("name", ["anthropic", "openai_responses", "gemini"])
def test_a_map_that_exhausts_it_returns_the_others(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            client, prompts = emulated.client, [f"What is {number}?" for number in range(12)]
            async with client.budget(usd="0.15") as budget:
                result = await client.map(
                    prompts, system=LONG, max_tokens=300, visibility_delay=0, max_cost_usd=50
                )
            assert budget.held_usd == 0
            assert 0 < billed(emu) == budget.spent_usd <= Decimal("0.15")
            assert len(result.items) == 12
            assert len(result.errors) < 12
            assert all(isinstance(item.error, BudgetExceeded) for item in result.errors)
            assert (result.stop_reason == "cost_usd") == bool(result.errors)

    asyncio.run(main())


# ── The law ──────────────────────────────────────────────────────────────────────────────────────

one_call = st.tuples(
    st.sampled_from(PRICED[:5]),
    st.integers(1, 400),  # max_tokens
    st.integers(0, 300),  # words
    st.sampled_from(["complete", "stream", "leave", "cancel", "529", "run"]),
)


@checked(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(one_call, min_size=1, max_size=12),
    limit=st.integers(1, 400),
    inner=st.integers(1, 400),
)
def test_concurrent_calls_never_exceed_it(
    emu: Emulator, calls: list[tuple[str, int, int, str]], limit: int, inner: int
) -> None:
    emu.reset()

    async def main() -> None:
        retry = {"first_wait": 0.001, "max_attempts": 2}
        async with connected(emu, PRICED[:5], retry=retry) as emulated:
            client = emulated.client
            budget = client.budget(usd=Decimal(limit) / 10_000)
            with budget:
                part = client.budget(usd=Decimal(inner) / 10_000)

            async def make(index: int, name: str, most: int, words: int, how: str) -> None:
                text = f"Call {index}: " + "word " * words
                with part if index % 2 else budget:
                    if how == "leave":
                        async with aclosing(client.stream(text, name, max_tokens=most)) as events:
                            async for event in events:
                                check()
                                if isinstance(event, TextDelta):
                                    return
                    elif how == "stream":
                        async for _ in client.stream(text, name, max_tokens=most):
                            check()
                    elif how == "run":
                        await client.session(name, max_tokens=most).run(text)
                    elif how == "cancel":
                        async with asyncio.timeout(0.003):
                            await client.complete(text, name, max_tokens=most)
                    else:
                        if how == "529":
                            emulated.transport.faults = ["529", None]
                        await client.complete(text, name, max_tokens=most)
                check()

            def check() -> None:
                for each in (budget, part):
                    assert each.limit_usd is not None
                    assert each.spent_usd + each.held_usd <= each.limit_usd
                assert part.spent_usd <= budget.spent_usd

            results = await asyncio.gather(
                *(make(index, *call) for index, call in enumerate(calls)), return_exceptions=True
            )
            for result in results:
                assert result is None or isinstance(
                    result, BudgetExceeded | TimeoutError | Overloaded
                ), result
            check()
            assert budget.held_usd == part.held_usd == 0
            assert billed(emu) <= budget.spent_usd

    asyncio.run(main())
