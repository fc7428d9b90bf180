"""One planner behind every entry point: `send`, `complete` and streams place the same markers."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.emulated_client import LONG, MODELS, Connected, connected

from anaphora import Message, PromptBlock, Tool
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, PromptCachePlan, PromptIR, ToolChoice
from anaphora.values import CachePolicy

NONE, SHORT, HOUR = CachePolicy.NONE, CachePolicy.EPHEMERAL_5M, CachePolicy.EPHEMERAL_1H
POLICIES = [
    *((tool, (one, two)) for tool in (NONE, HOUR) for one in CachePolicy for two in CachePolicy),
    (SHORT, (HOUR, NONE, SHORT)),
    (NONE, ()),
]


def markers(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Every marker in a request body, with its path and TTL."""
    if isinstance(value, list):
        return [hit for at, item in enumerate(value) for hit in markers(item, f"{path}[{at}]")]
    if not isinstance(value, dict):
        return []
    inside = [hit for key in value for hit in markers(value[key], f"{path}.{key}".strip("."))]
    own = value.get("cache_control") or value.get("prompt_cache_breakpoint")
    return inside if own is None else [*inside, (path, own.get("ttl", ""))]


def sent_markers(emulated: Connected) -> list[tuple[str, str]]:
    return markers(json.loads(emulated.transport.bodies[-1]))


def blocks(policies: tuple[CachePolicy, ...]) -> tuple[PromptBlock, ...]:
    return tuple(PromptBlock(f"block {at}", LONG, policy) for at, policy in enumerate(policies))


def single(
    system: tuple[PromptBlock, ...], tools: tuple[Tool, ...], text: str, name: str = "anthropic"
) -> Call:
    ir = PromptIR.chat([Message.user(text)], system=system)
    return Call(ir=ir, model=MODELS[name], tools=tools)


# ── One planner ──────────────────────────────────────────────────────────────────────────────────


def combinations() -> Iterator[Any]:
    """Every dialect with all policies and with all histories; `make soak` runs the rest."""
    names = ("anthropic", "openai_responses", "minimax/anthropic")
    histories = ("none", "a session", "two sessions", "a single call")
    for at, (tool_policy, policies) in enumerate(POLICIES):
        for (one, name), (two, history) in itertools.product(
            enumerate(names), enumerate(histories)
        ):
            marks = () if two == (at + one) % 4 else (pytest.mark.soak,)
            yield pytest.param(name, tool_policy, policies, history, marks=marks)


@pytest.mark.parametrize("name, tool_policy, policies, history", list(combinations()))
@pytest.mark.long
def test_session_and_single_call_place_the_same_markers(
    emu: Emulator,
    name: str,
    tool_policy: CachePolicy,
    policies: tuple[CachePolicy, ...],
    history: str,
) -> None:
    """The same prompt after the same history, through either entry point. Without policy, mark or
    an earlier call that began alike, a single call is not expected to be used again."""
    system, tools = blocks(policies), (Tool("look", LONG, cache=tool_policy),)

    async def earlier(emulated: Connected) -> None:
        if history == "a single call":
            await emulated.client.complete(single(system, tools, "Earlier?", name), name)
        for number in range({"a session": 1, "two sessions": 2}.get(history, 0)):
            chat = emulated.client.session(name, system=system, tools=tools)
            await chat.send(f"Earlier {number}?", tool_choice=ToolChoice("none"))
            await chat.send("And?", tool_choice=ToolChoice("none"))

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            await earlier(emulated)
            await emulated.client.session(name, system=system, tools=tools).send("Now?")
            by_session = sent_markers(emulated)
        async with connected(emu, [name]) as emulated:
            await earlier(emulated)
            await emulated.client.complete(single(system, tools, "Now?", name), name)
            by_single_call = sent_markers(emulated)
        # Tools carry no breakpoint on Responses: their policy asks for nothing there, and without
        # a system prompt no other call could read what this one writes.
        given = policies if name == "openai_responses" else (tool_policy, *policies)
        alike = history != "none" and (bool(policies) or name != "openai_responses")
        if set(given) - {NONE} or alike:
            assert by_single_call == by_session
        else:
            assert by_single_call == []
        assert bool(by_session) or name != "anthropic"
        assert len(by_session) <= 4

    asyncio.run(main())


def test_a1_a4_session_keeps_the_identity_cached_for_the_next_caller(emu: Emulator) -> None:
    """A1 and A4: the marker is on the cached block, for one hour, and not on the plain one."""

    def system(sender: str) -> list[PromptBlock]:
        return [
            PromptBlock.cached_long("identity", LONG),
            PromptBlock.plain("sender", f"You emulated to {sender}."),
        ]

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            for sender in ("Ann", "Bob"):
                chat = emulated.client.session("anthropic", system=system(sender))
                response = await chat.send("Hello?")
                found = dict(sent_markers(emulated))
                assert found["system[0]"] == "1h"
                assert "system[1]" not in found
        assert response.usage.read is not None
        assert response.usage.read > 2000

    asyncio.run(main())


# ── Single calls ─────────────────────────────────────────────────────────────────────────────────

DIALECTS = [
    {"wire": "anthropic", "model": "claude-sonnet-5-5"},
    {"wire": "openai_responses", "model": "gpt-5.6"},
    {"wire": "openai_chat", "model": "gpt-5.6"},
    {"dialect": "openrouter", "model": "openai/gpt-5.6-sol"},
    {"dialect": "alibaba", "model": "qwen3-max"},
    {"dialect": "minimax/anthropic", "model": "MiniMax-M2.7"},
]


def provider(emu: Emulator, row: dict[str, str]) -> dict[str, Any]:
    house = row.get("dialect", "").partition("/")[0]
    return {**row, "base_url": f"{emu.url}/{house}".rstrip("/"), "key": {"env": "KEY"}}


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: " ".join(row.values()))
@pytest.mark.parametrize("system", ["", "Answer in one word."])
def test_unrelated_single_calls_write_nothing(
    emu: Emulator, row: dict[str, str], system: str
) -> None:
    """Five different long texts: no call pays for a cache entry that none reads, also where the
    provider would write one by itself, and a short common system prompt changes nothing."""
    from anaphora import AsyncClient

    config = {"providers": {"any": provider(emu, row)}}

    async def main() -> None:
        async with AsyncClient.from_config(config, environ={"KEY": "k"}) as client:
            for number in range(5):
                ir = PromptIR.chat([Message.user(f"Text {number}: " + LONG)], system=system)
                response = await client.complete(Call(ir=ir, model=row["model"]), "any")
                assert not response.usage.written_total

    asyncio.run(main())


@pytest.mark.parametrize("row", DIALECTS[:4], ids=lambda row: " ".join(row.values()))
def test_single_calls_with_a_common_prefix_are_cached_from_the_second_on(
    emu: Emulator, row: dict[str, str]
) -> None:
    """One long system prompt, different long questions: the system prompt is written once and read
    from then on; the questions are never written."""
    from anaphora import AsyncClient

    config = {"providers": {"any": provider(emu, row)}}

    async def main() -> None:
        read, written = [], []
        async with AsyncClient.from_config(config, environ={"KEY": "k"}) as client:
            for number in range(4):
                text = f"Text {number}: " + LONG
                ir = PromptIR.chat([Message.user(text)], system=[PromptBlock.plain("s", LONG)])
                response = await client.complete(Call(ir=ir, model=row["model"]), "any")
                read.append(response.usage.read or 0)
                written.append(response.usage.written_total or 0)
        assert [bool(count) for count in written] == [False, True, False, False]
        assert [bool(count) for count in read] == [False, False, True, True]
        assert written[1] == read[2] == read[3]

    asyncio.run(main())


def test_single_calls_that_continue_each_other_are_cached_like_a_session(emu: Emulator) -> None:
    """An app that keeps its own history and sends all of it in each call."""

    async def main() -> None:
        history = [Message.user("Begin: " + LONG)]
        usages = []
        async with connected(emu, ["anthropic"]) as emulated:
            for _ in range(4):
                call = Call(ir=PromptIR.chat(history), model="claude-sonnet-4-5")
                response = await emulated.client.complete(call, "anthropic")
                usages.append(response.usage)
                history += [response.reply.message, Message.user("More: " + LONG)]
        assert [bool(usage.written_total) for usage in usages] == [False, True, True, True]
        for before, after in itertools.pairwise(usages[1:]):
            assert after.read == (before.read or 0) + (before.written_total or 0)

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [True, False])
def test_marked_single_call_is_written_at_once(emu: Emulator, streamed: bool) -> None:
    call = single((PromptBlock.cached_short("guide", LONG),), (), "Hello?")

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            for _ in range(2):
                turn = emulated.client.send(call, "anthropic")
                if streamed:
                    async for _ in turn:
                        pass
                response = await turn
        assert response.usage.read

    asyncio.run(main())


# ── Prompts that change ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["anthropic", "openai_responses"])
def test_a_clock_in_the_system_prompt_is_not_written_again_and_again(
    emu: Emulator, name: str
) -> None:
    """What changes at every call is not written any more; the verdict names the cause, and a prompt
    that stays is cached again."""

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            written, read, causes = list[int](), list[int](), list[str]()
            asked, named = name == "anthropic", list[bool]()
            cache = PromptCachePlan(message_ttl="5m") if asked else None
            for clock in "abcdefffg":
                system = f"The time is {clock}. {LONG}"
                chat = emulated.client.session(
                    name, id="careless", system=system, cache=cache, on_prefix_break="off"
                )
                answer = await chat.send("Now?")
                named.append("marker_left_out" in [notice.code for notice in answer.notices])
                assert answer.verdict is not None
                written.append(answer.usage.written_total or 0)
                read.append(answer.usage.read or 0)
                causes.append(answer.verdict.causes[0].kind if answer.verdict.causes else "")
            assert min(written[:2]) > 1000
            assert written[2:6] == [0] * 4
            assert named == [False] * 2 + [asked] * 4 + [False] * 3
            assert causes[1:6] == ["system_changed"] * 5
            assert written[6] > 1000
            assert read[:7] == [0] * 7
            assert read[7] > 1000
            assert causes[8] == "system_changed"

    asyncio.run(main())


def test_conversations_with_the_same_first_message_are_written_from_their_first_call_on(
    emu: Emulator,
) -> None:
    """Their system prompts differ, but each of them is sent again."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            for customer in range(5):
                history = [Message.user("Begin.")]
                usages = []
                for turn in range(3):
                    answer = await emulated.client.complete(
                        history,
                        "anthropic",
                        system=f"Customer {customer}. {LONG}",
                        tools=(Tool("look", "Looks."),),
                        conversation=True,
                    )
                    usages.append(answer.usage)
                    history += [Message.assistant(f"Done {turn}."), Message.user("Go on.")]
                assert (usages[0].written_total or 0) > 1000
                assert all((usage.read or 0) > 1000 for usage in usages[1:])

    asyncio.run(main())


def test_agents_in_turn_are_written_from_their_first_call_on(emu: Emulator) -> None:
    """Each has a system prompt of its own that was sent before, and all share the first message and
    the history: no clock, but several agents."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            for chat in range(2):
                history, written = [Message.user("Discuss.")], list[int]()
                for turn in range(10):
                    answer = await emulated.client.complete(
                        history,
                        "anthropic",
                        system=f"Agent {turn % 5}. {LONG}",
                        tools=(Tool("look", "Looks."),),
                        conversation=True,
                    )
                    written.append(answer.usage.written_total or 0)
                    more = f"Chat {chat}, answer {turn}. " + LONG
                    history += [Message.assistant(more), Message.user("Go on.")]
            # The first call repeats that of the first chat.
            assert all(tokens > 1000 * turn for turn, tokens in enumerate(written[:5]) if turn)

    asyncio.run(main())
