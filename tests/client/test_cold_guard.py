"""`on_cold` and `cold_above_usd`: a call whose cached beginning is gone is stopped before anything is
sent, by the lower end of its additional cost."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_client import KEY, LONG
from support.emulated_client import settings as providers
from support.virtual_emulator import VirtualEmulator, run_virtual

from anaphora import AsyncClient, Client, Message, ToolRegistry, emulator
from anaphora.cache.cold import COLD_ABOVE_USD, PASS_SECONDS, ColdPasses, cold_prefix
from anaphora.catalog import CacheRules, Price, rules
from anaphora.catalog.pricing import PriceBook
from anaphora.client.oneshot import OneShot
from anaphora.client.session import Preview, Session
from anaphora.client.turn import Turn
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.errors import ColdCache, InvalidRequest
from anaphora.integrations.framework_client import FrameworkClient
from anaphora.prompt import PromptCachePlan
from anaphora.values import Usage

CENT = Decimal("0.01")
#: Long enough for every provider's cache to be gone for sure.
PAUSES = {"anthropic": 7200.0, "bedrock": 7200.0, "openai_chat": 90_000.0, "deepseek": 9e6}
TOOLS = Script.decode(
    """
replies:
  - match: {result_of: look}
    reply: {text: It is sunny.}
  - match: {text: weather}
    reply: {tool_calls: [{name: look, arguments: {city: Rome}}]}
  - reply: {text: In May.}
""",
    "script.yaml",
)
NOW = 1_795_000_000.0
SHORT = PromptCachePlan(message_ttl="5m")
TEXT = "I have been there before. "


async def warmed(virtual: VirtualEmulator, name: str = "anthropic", **options: Any) -> Session:
    chat = virtual.client.session(name, system=LONG, **options)
    for city in ("Rome", "Athens"):
        await chat.send(f"{city}? " + TEXT * 300, on_cold="send")
    return chat


async def collected(turn: Turn[Any]) -> None:
    async for _ in turn:
        pass


def sent(virtual: VirtualEmulator) -> int:
    return len(virtual.transport.bodies)


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PAUSES)
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_expired_turn_is_stopped_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch, name: str, stream: bool
) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        limit = Decimal("0.0005")
        chat = await warmed(virtual, name, on_cold="raise", cold_above_usd=limit)
        await asyncio.sleep(PAUSES[name])
        before, calls, observed = chat.conversation, sent(virtual), len(virtual.records)
        with pytest.raises(ColdCache, match=r"has expired: the last call was .* more than") as cold:
            await (collected(chat.send("And Oslo?")) if stream else chat.send("And Oslo?"))
        assert sent(virtual) == calls
        assert chat.conversation is before
        preview: Preview = cold.value.preview
        assert preview.cold is not None
        assert preview.cold.idle == PAUSES[name]
        assert preview.cold.range_usd is not None
        low, high = preview.cold.range_usd
        assert preview.cold.extra_usd is not None
        assert limit < low <= preview.cold.extra_usd <= high
        assert cold.value.attempts == ()
        assert [record.error for record in virtual.records[observed:]] == ["ColdCache"]

        response = await chat.send("And Oslo?", on_cold="send")
        assert not response.usage.read
        assert response.cost_usd is not None
        await chat.send("And Bern?")  # warm again
        assert len(chat.messages) == 8

    run_virtual(monkeypatch, main, name)


def test_calls_below_the_limit_are_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = await warmed(virtual, on_cold="raise")  # 7,000 tokens: two cents
        await asyncio.sleep(7200)
        preview = chat.preview("And Oslo?")
        assert preview.cold is not None
        assert preview.cold.range_usd is not None
        assert preview.cold.range_usd[1] < COLD_ABOVE_USD
        assert (await chat.send("And Oslo?")).text
        await asyncio.sleep(7200)
        low = chat.preview("And Bern?").cold
        assert low is not None
        assert low.range_usd is not None
        # The lower end is compared: at exactly the limit nothing is stopped.
        assert (await chat.send("And Bern?", cold_above_usd=low.range_usd[0])).text

    run_virtual(monkeypatch, main)


def test_functions_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Preview] = []

    def refuse(preview: Preview) -> bool:
        asked.append(preview)
        return False

    async def slow(preview: Preview) -> bool:
        asked.append(preview)
        await asyncio.sleep(5000)  # longer than the time limit of the call
        return True

    async def main(virtual: VirtualEmulator) -> None:
        chat = await warmed(virtual, cold_above_usd=CENT)
        await asyncio.sleep(7200)
        calls = sent(virtual)
        with pytest.raises(ColdCache):
            await chat.send("And Oslo?", on_cold=refuse)
        assert sent(virtual) == calls
        assert (await chat.send("And Oslo?", on_cold=slow)).text
        assert (await chat.send("And Bern?", on_cold=slow)).text  # warm: nothing is asked
        assert [each.cold.reason for each in asked if each.cold] == ["expired"] * 2

        def fails(preview: Preview) -> bool:
            raise LookupError(preview.model)

        await asyncio.sleep(7200)
        calls = sent(virtual)
        with pytest.raises(LookupError):
            await chat.send("And Rome?", on_cold=fails)
        assert sent(virtual) == calls
        assert (await chat.send("And Rome?")).text  # the session itself has no `on_cold`

    run_virtual(monkeypatch, main)


def test_prompt_that_was_never_cached_counts_by_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        said = [Message.user("Rome? " * 40_000), Message.assistant("Yes.")]
        chat = virtual.client.session(
            "anthropic", messages=said, on_cold="raise", cold_above_usd="0.10"
        )
        with pytest.raises(ColdCache, match="no earlier call is known that sent them"):
            await chat.send("And Oslo?")
        short = virtual.client.session("anthropic", system=LONG, on_cold="raise")
        assert (await short.send("Rome?")).text
        assert sent(virtual) == 1

    run_virtual(monkeypatch, main)


def test_fork_of_a_warm_conversation_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        chat = await warmed(virtual, on_cold="raise", cold_above_usd=CENT)
        one, two = chat.fork(), chat.fork()
        await asyncio.sleep(200)
        assert (await one.send("And Oslo?")).text
        await asyncio.sleep(200)  # the fork has refreshed what this one begins with
        assert (await two.send("And Bern?")).usage.read
        await asyncio.sleep(7200)
        with pytest.raises(ColdCache):
            await two.send("And Lyon?")

    run_virtual(monkeypatch, main)


def test_stored_conversation_is_judged_by_its_saved_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        shared: dict[str, bytes] = {}
        config = {"providers": providers("http://emulator.invalid", ("anthropic",))}

        def client() -> AsyncClient:
            return AsyncClient.from_config(
                config, environ={"KEY": KEY}, transport=virtual.transport, conversations=shared
            )

        async def resumed(first: AsyncClient, history: tuple[Message, ...]) -> str:
            chat = first.session(
                "anthropic", system=LONG, id="c", messages=history, on_cold="raise",
                cold_above_usd=CENT,
            )  # fmt: skip
            text = (await chat.send("And Oslo?")).text
            messages[:] = chat.messages
            return text

        messages: list[Message] = []
        async with client() as begun:
            chat = begun.session("anthropic", system=LONG, id="c")
            for city in ("Rome", "Athens"):
                await chat.send(f"{city}? " + TEXT * 300)
            messages[:] = chat.messages
        async with client() as after:
            await asyncio.sleep(120)
            assert await resumed(after, tuple(messages))  # another process within the TTL
        async with client() as late:
            await asyncio.sleep(7200)
            with pytest.raises(ColdCache, match=r"the last call was 2\.0 h ago"):
                await resumed(late, tuple(messages))

    run_virtual(monkeypatch, main)


# ── Runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_running_loop_is_not_cold_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [5.0]
    registry = ToolRegistry()

    @registry.tool
    async def look(city: str) -> str:
        """Look up the weather of a city."""
        await asyncio.sleep(seconds[0])
        return f"{city}: sunny."

    async def main(virtual: VirtualEmulator) -> None:
        chat = await warmed(virtual, tools=registry, on_cold="raise", cold_above_usd=CENT)
        run = await chat.run("What is the weather?")
        assert (run.turns, run.text) == (2, "It is sunny.")

        seconds[0] = 7200.0  # a tool that takes longer than the cache lives
        with pytest.raises(ColdCache):
            await chat.run("And the weather now?")
        assert chat.messages[-1].role == "tool"  # nothing is lost
        done = await chat.run(on_cold="send")
        assert (done.turns, done.text) == (1, "It is sunny.")

    run_virtual(monkeypatch, main, options=EmulatorOptions(script=TOOLS))


# ── Single calls ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "deepseek"])
def test_single_calls_know_the_calls_before_them(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    guard: dict[str, Any] = {"on_cold": "raise", "cold_above_usd": "0.0005"}

    async def main(virtual: VirtualEmulator) -> None:
        client, history = virtual.client, [{"role": "user", "content": "Rome? " + TEXT * 600}]
        with pytest.raises(ColdCache, match="no earlier call is known"):
            await client.complete(history, name, system=LONG, **guard)
        assert not sent(virtual)
        first = await client.complete(
            history, name, system=LONG, conversation=True, **guard | {"on_cold": "send"}
        )
        history += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "?"}]
        await asyncio.sleep(60)
        second = await client.complete(history, name, system=LONG, **guard)
        history += [{"role": "assistant", "content": second.text}, {"role": "user", "content": "!"}]
        await asyncio.sleep(PAUSES[name])
        with pytest.raises(ColdCache, match="has expired: the last call was"):
            await client.send(history, name, system=LONG, **guard)
        assert sent(virtual) == 2

    run_virtual(monkeypatch, main, name)


def test_failure_to_remember_a_call_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise LookupError("no prompt")

    async def main(virtual: VirtualEmulator) -> None:
        monkeypatch.setattr(OneShot, "_sent", failing)
        response = await virtual.client.complete("Rome?", "anthropic", on_cold="raise")
        assert response.text
        assert "verdict_failed" in [notice.code for notice in response.notices]

    run_virtual(monkeypatch, main)


def test_client_sets_the_guard_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        config = {"providers": providers("http://emulator.invalid", ("anthropic",))}
        async with AsyncClient.from_config(
            config,
            environ={"KEY": KEY},
            transport=virtual.transport,
            on_cold="raise",
            cold_above_usd=CENT,
        ) as client:
            prompt = LONG * 3
            with pytest.raises(ColdCache):
                await client.complete(prompt, "anthropic")
            with pytest.raises(ColdCache):
                await client.session("anthropic", system=prompt).send("Rome?")
            assert (await client.complete(prompt, "anthropic", on_cold="send")).text
            chat = client.session("anthropic", system=prompt, cold_above_usd=1)
            assert (await chat.send("Rome?")).text

    run_virtual(monkeypatch, main)


def test_sync_client_asks_in_its_own_thread() -> None:
    asked: list[str] = []

    def decide(preview: Preview) -> bool:
        asked.append(str(preview.cold))
        return len(asked) > 1

    with emulator.running() as emu:
        config = {"providers": providers(emu.url, ("anthropic",))}
        with Client.from_config(
            config, environ={"KEY": KEY}, on_cold=decide, cold_above_usd=CENT
        ) as client:
            chat = client.session("anthropic", system=LONG * 3)
            with pytest.raises(ColdCache):
                chat.send("Rome?").result()
            assert chat.send("Rome?").result().text
            assert chat.send("Oslo?").result().usage.read
    assert len(asked) == 2


# ── Maps and frameworks ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["anthropic", "openai_chat"])
def test_map_is_checked_before_its_first_call(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked: list[Preview] = []

    def agree(preview: Preview) -> bool:
        asked.append(preview)
        return True

    async def main(virtual: VirtualEmulator) -> None:
        client, prompts = virtual.client, ["Rome?", "Oslo?", "Bern?"]
        options: dict[str, Any] = {"system": LONG * 3, "cold_above_usd": "0.0005"}
        with pytest.raises(ColdCache, match="no earlier call is known"):
            await client.map(prompts, name, on_cold="raise", **options)
        refused = aiter(client.map(prompts, name, on_cold=lambda _: False, **options))
        with pytest.raises(ColdCache):
            await anext(refused)
        assert not sent(virtual)
        result = await client.map(prompts, name, on_cold=agree, **options)
        assert len(result.texts) == 3
        assert len(asked) == 1, "the first call of a group writes what the others read"
        assert (await client.map(prompts, name, on_cold="raise", **options)).texts  # warm
        await asyncio.sleep(PAUSES[name])
        with pytest.raises(ColdCache, match="has expired: the last call was"):
            await client.map(prompts, name, on_cold="raise", **options)

    run_virtual(monkeypatch, main, name)


def test_calls_of_frameworks_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> None:
        config = {"providers": providers("http://emulator.invalid", ("anthropic",))}
        async with AsyncClient.from_config(
            config,
            environ={"KEY": KEY},
            transport=virtual.transport,
            on_cold="raise",
            cold_above_usd=CENT,
        ) as client:
            gate, prompt = client.call_gate, LONG * 3
            calls = (gate.complete(f"{city}?", system=prompt) for city in ("Rome", "Oslo", "Bern"))
            refused = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in refused] == [ColdCache] * 3
            assert not sent(virtual)
            calls = (
                gate.complete(f"{c}?", system=prompt, on_cold="send") for c in ("Rome", "Oslo")
            )
            await asyncio.gather(*calls)
            assert (await gate.complete("Bern?", system=prompt)).usage.read
            assert (await gate.complete("Hello")).text, "too short for a cache"

    run_virtual(monkeypatch, main)


def test_framework_model_raises_before_a_cold_call() -> None:
    with emulator.running() as emu:
        config = {"providers": providers(emu.url, ("anthropic",))}
        with Client.from_config(
            config, environ={"KEY": KEY}, on_cold="raise", cold_above_usd=CENT
        ) as client:
            model, prompt = FrameworkClient(client), [Message.user(LONG * 3)]
            with pytest.raises(ColdCache):
                model.complete(prompt)
            with pytest.raises(ColdCache):
                list(model.stream(prompt))
            with pytest.raises(ColdCache):
                model.complete_several(3, prompt)
            assert not emu.requests()
            assert model.complete(prompt, on_cold="send").text
            assert model.complete_several(2, prompt)[1].text


def test_wrong_values_are_named() -> None:
    with Client.from_config(
        {"providers": providers("http://emulator.invalid", ("anthropic",))}, environ={"KEY": KEY}
    ) as client:
        chat = client.session("anthropic")
        with pytest.raises(InvalidRequest, match=r"^on_cold: must be 'raise', 'send' or a func"):
            chat.send("Rome?", on_cold="ask")  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match=r"^cold_above_usd: must be an amount in doll"):
            client.session("anthropic", cold_above_usd=-1)
        with pytest.raises(InvalidRequest, match=r"^cold_above_usd: must be an amount in doll"):
            chat.run("Rome?", cold_above_usd="much")


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────


@given(
    model=st.sampled_from(
        [
            ("anthropic", "claude-sonnet-4-5"),
            ("openai", "gpt-5.2"),
            ("deepseek", "deepseek-v4-flash"),
        ]
    ),
    total=st.integers(1, 900_000),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    margin=st.floats(0, 0.5),
)
@settings(deadline=None)
def test_range_contains_the_additional_cost(
    model: tuple[str, str], total: int, shares: tuple[float, float], margin: float
) -> None:
    found: CacheRules = rules(*model, None)
    rates: Price | None = PriceBook(NOW).price(*model, NOW)
    read = int(total * shares[0])
    written = int((total - read) * shares[1])
    ttl = found.ttls.value[-1]
    usage = Usage(uncached=total - read - written, read=read, written={ttl: written}, output=0)
    bounds = int(total * (1 - margin)), int(total * (1 + margin)) + 1
    cold = cold_prefix(usage, None, left=0, rules=found, price=rates, at=0.0, bounds=bounds)
    if cold is None:
        could = found.whole_granules(total)
        assert read >= could / 2 or found.read_price.value >= 1
        return
    assert cold.extra_usd is not None
    assert cold.range_usd is not None
    low, high = cold.range_usd
    assert 0 <= low <= cold.extra_usd <= high
    assert 0 < cold.tokens <= total
    assert cold.costs_more_than(low) is False
    if low:
        assert cold.costs_more_than(low - Decimal("0.0000000001"))


def test_passes_are_bounded_and_end() -> None:
    async def run() -> None:
        with emulator.running() as emu:
            async with AsyncClient.from_config(
                {"providers": providers(emu.url, ("anthropic",))}, environ={"KEY": KEY}
            ) as client:
                once = client.single_call(
                    [{"role": "user", "content": "Rome?"}, {"role": "assistant", "content": "Yes."},
                     {"role": "user", "content": "Oslo?"}], "anthropic",
                )  # fmt: skip
                other = client.single_call("Bern?", "anthropic")
        passes, prompt = ColdPasses(), once.render()
        assert not passes.allows("app", prompt, 0.0)
        passes.add(passes.key("app", prompt), 0.0)
        assert passes.allows("app", prompt, PASS_SECONDS)
        assert not passes.allows("app", prompt, PASS_SECONDS + 1)
        assert not passes.allows("another app", prompt, 1.0)
        passes.add(passes.key("beside", prompt), 10.0, since=12.0)
        assert not passes.allows("beside", prompt, 11.0)
        passes.add(passes.key("beside", prompt), 11.0, since=14.0)
        assert passes.allows("beside", prompt, 13.0), "it was sent after the first refusal"
        assert not passes.allows("app", other.render(), 1.0)
        for number in range(10_000):
            passes.add(number, 0.0)
        assert not passes.allows("app", prompt, 1.0)

    asyncio.run(run())
