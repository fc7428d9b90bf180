"""Services of several nodes with one Redis: limits, breakers, conversations and explanations of one
hold on the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support.delegation import Delegating, app_of, delegating
from support.emulated_client import LONG, MODELS
from support.waiting import until

from anaphora.daemon.shared_state.redis import RedisState
from anaphora.daemon.shared_state.redis_connection import RedisAddress
from anaphora.emulator.server import Emulator
from anaphora.errors import GrantRateLimited, Overloaded, RateLimited, Throttled, Unavailable

NAMES = ["anthropic"]


def body(*words: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": word} for n, word in enumerate(words)]
    model = MODELS["anthropic"]
    return {"model": model, "max_tokens": 20, "system": LONG, "messages": messages, **fields}


@asynccontextmanager
async def nodes(
    emu: Emulator, folder: Path, url: str, **settings: Any
) -> AsyncIterator[tuple[Delegating, Delegating]]:
    """Two nodes at one provider."""
    async with AsyncExitStack() as stack:
        services = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            state = RedisState(RedisAddress.parse(url), nodes=lambda: 2, timeout=10.0)
            await state.start()
            stack.push_async_callback(state.close)
            opened = delegating(emu, folder / name, NAMES, shared_state=state, **settings)
            services.append(await stack.enter_async_context(opened))
        yield services[0], services[1]


def test_conversation_goes_on_at_the_other_node(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url) as (one, two):
            words, results = ["One?"], []
            for number, node in enumerate((one, two, one, two, one)):
                reply = await node.service.complete(node.request("anthropic", body(*words)))
                assert reply.verdict is not None
                results.append(reply.verdict.result)
                words += [f"{number}", "Next?"]
                await node.service.tools.shared_state.get("anything")  # it was saved
            assert results == ["first", "miss", "hit", "hit", "hit"]

    asyncio.run(main())


def test_changed_system_prompt_is_named_at_the_other_node(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}

    def turn(date: str, *words: str) -> dict[str, Any]:
        block = {"type": "text", "text": f"Today is {date}. {LONG}", **cached}
        return {**body(*words), "system": [block]}

    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url) as (one, two):
            before = turn("2026-11-15", "One?", "1", "Two?")
            await one.service.complete(one.request("anthropic", before))
            await one.service.tools.shared_state.get("anything")
            after = turn("2026-11-16", "One?", "1", "Two?", "2", "Three?")
            reply = await two.service.complete(two.request("anthropic", after))
            verdict = reply.verdict
            assert verdict is not None
            assert verdict.change is not None
            assert (verdict.result, verdict.causes[0].kind) == ("miss", "changed")
            assert (verdict.change.kind, verdict.change.path) == ("block_changed", "system[0]")
            assert verdict.lost > 0

    asyncio.run(main())


def test_rates_of_a_grant_hold_over_all_nodes(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    app = app_of("limited", providers=NAMES, requests_per_minute=2)

    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url) as (one, two):
            for node in (one, two):
                await node.service.complete(node.request("anthropic", body("One?"), app=app))
            for node in (one, two):
                with pytest.raises(GrantRateLimited, match="requests_per_minute"):
                    await node.service.complete(node.request("anthropic", body("Two?"), app=app))

    asyncio.run(main())


@pytest.mark.parametrize("limits", [{"requests_per_minute": 1}, {"tokens_per_minute": 6000}])
def test_limits_of_a_provider_hold_over_all_nodes(
    emu: Emulator, tmp_path: Path, redis_url: str, limits: dict[str, int]
) -> None:
    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url, limits=limits) as (one, two):
            await one.service.complete(one.request("anthropic", body("One?")))
            call = two.request("anthropic", body("Two?"), timeout=5.0)
            with pytest.raises(Throttled, match="all nodes share"):
                await two.service.complete(call)
            assert two.sent == []

    asyncio.run(main())


def test_running_calls_are_limited_over_all_nodes(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    async def main() -> None:
        limits = {"concurrency": 1}
        async with nodes(emu, tmp_path, redis_url, limits=limits) as (one, two):
            stream = one.service.stream(one.request("anthropic", body("One?", stream=True)))
            await stream.head()
            waiting = asyncio.ensure_future(
                two.service.complete(two.request("anthropic", body("Two?")))
            )
            await two.service.tools.shared_state.get("anything")
            assert two.sent == []
            async for _ in stream:
                pass
            assert (await waiting).verdict is not None

    asyncio.run(main())


def test_breaker_that_one_node_opens_is_open_on_all(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    settings = {
        "retry": {"max_attempts": 1},
        "breaker": {"failures": 2, "within": 60, "open_for": 600},
    }

    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url, **settings) as (one, two):
            one.transport.faults = ["503", "503"]
            for _ in range(2):
                with pytest.raises(Overloaded):
                    await one.service.complete(one.request("anthropic", body("One?")))

            # No call meanwhile: its success would make up for one of the failures.
            endpoint = two.service.tools.pool.endpoint(two.providers["anthropic"])

            async def is_open() -> bool:
                return endpoint.breaker.state(monotonic()) == "open"

            await until(is_open, "the breaker is open on the other node")
            with pytest.raises(Unavailable):
                await two.service.complete(two.request("anthropic", body("Two?")))
            assert two.sent == []

    asyncio.run(main())


def test_wait_that_the_provider_asks_for_holds_on_all_nodes(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url, retry={"max_attempts": 1}) as (one, two):
            await two.service.complete(two.request("anthropic", body("Two?")))
            one.transport.faults = ["rate-limit; seconds=600"]
            with pytest.raises(RateLimited):
                await one.service.complete(one.request("anthropic", body("One?")))

            async def throttled() -> bool:
                try:
                    await two.service.complete(two.request("anthropic", body("Two?"), timeout=5.0))
                except Throttled:
                    return True
                return False

            await until(throttled, "the other node waits")

    asyncio.run(main())


def test_call_is_explained_on_any_node(emu: Emulator, tmp_path: Path, redis_url: str) -> None:
    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url) as (one, two):
            call = one.request("anthropic", body("One?"))
            await one.service.complete(call)
            await one.service.tools.shared_state.get("anything")
            here = await one.service.explain(one.app, call.request_id)
            there = await two.service.explain(two.app, call.request_id)
            assert here is not None
            assert there is not None
            assert there["usage"] == here["usage"]
            assert there["verdict"]["sentence"] == here["verdict"]["sentence"]
            assert await two.service.explain(app_of("other"), call.request_id) is None

    asyncio.run(main())


def test_app_is_charged_for_its_own_reads_on_any_node(
    emu: Emulator, tmp_path: Path, redis_url: str
) -> None:
    """What another app wrote stays hidden; what the app itself wrote through another node does
    not."""
    mine, other = (app_of(name, providers=NAMES) for name in ("mine", "other"))
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]

    async def main() -> None:
        async with nodes(emu, tmp_path, redis_url) as (one, two):
            for node in (one, two):
                node.service.use_grants([mine.grant, other.grant])
            question = body("One?", system=system)
            await one.service.complete(one.request("anthropic", question, app=mine))
            await one.service.tools.shared_state.get("anything")
            question = body("Another?", system=system)
            hidden = await two.service.complete(two.request("anthropic", question, app=other))
            own = await two.service.complete(two.request("anthropic", question, app=mine))
            assert hidden.usage.read == 0
            assert (own.usage.read or 0) > 3000

    asyncio.run(main())
