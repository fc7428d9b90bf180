"""SPEC B through a session: a rendered context reaches the wire at every turn."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from support.bodies import marked, message_texts, system_texts
from support.emulated_client import LONG, MODELS, WIRES, Connected, connected

from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, Params, RenderedContext
from anaphora.values import Conversation, Message, ToolCall, to_json

every = pytest.mark.parametrize("name", WIRES)

IDENTITY, KNOWLEDGE = "I am Ada. " + LONG, "The office is in Rome. " + LONG
PAGE = "This page is long. " * 700
"""Above every provider's minimum by itself."""


def history(length: int, text: str = "") -> Conversation:
    """u0 a1 u2 a3 …"""
    return Conversation(
        Message.assistant(f"a{at} {text}".strip())
        if at % 2
        else Message.user(f"u{at} {text}".strip())
        for at in range(length)
    )


def state(text: str) -> Message:
    return Message.user(f"state: {text}")


def run(emu: Emulator, name: str, test: Callable[[Connected], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            await test(emulated)

    asyncio.run(main())


def call(context: RenderedContext, name: str) -> Call:
    """A prompt with its whole history, sent as it is."""
    return Call(ir=context.to_ir(), model=MODELS[name], params=Params(max_tokens=500))


def texts_of(chat: Session) -> list[str]:
    return [message.text for message in chat.messages]


def codes(chat: Session) -> list[str]:
    assert chat.last is not None
    return [notice.code for notice in chat.last.notices]


# ── B1 ───────────────────────────────────────────────────────────────────────────────────────────


@every
def test_b1_both_system_slots_reach_every_turn(emu: Emulator, name: str) -> None:
    """B1: identity and knowledge lead every request; as one text where the wire has one field."""
    context = RenderedContext(system_stable="I am Ada.", system_knowledge="Rome.", turns=history(2))

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=context)
        await chat.send("u2")
        await chat.send("u4")
        for body in emulated.transport.bodies:
            assert "\n\n".join(system_texts(body)) == context.system_text
        assert message_texts(emulated.transport.bodies[-1]) == texts_of(chat)[:-1]
        assert texts_of(chat)[:3] == ["u0", "a1", "u2"]

    run(emu, name, test)


def test_b1_each_system_slot_carries_a_marker(emu: Emulator) -> None:
    """B1: system[0] and system[1] are marked, so a change of the second spares the first."""
    context = RenderedContext(system_stable=IDENTITY, system_knowledge=KNOWLEDGE)

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session("anthropic", prompt=context)
        await chat.send("u0")
        system = json.loads(emulated.transport.bodies[-1])["system"]
        assert ["cache_control" in block for block in system] == [True, True]

    run(emu, "anthropic", test)


@pytest.mark.breaks_prefix(reason="new knowledge is the point")
def test_b1_new_knowledge_takes_effect_at_the_next_turn(emu: Emulator) -> None:
    """B1: the context is rendered by the app; the session keeps the history."""
    context = RenderedContext(system_stable=IDENTITY, system_knowledge=KNOWLEDGE)

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session("anthropic", prompt=context, on_prefix_break="off")
        await chat.send("u0")
        chat.prompt = msgspec.structs.replace(context, system_knowledge="It moved to Athens.")
        await chat.send("u2")
        assert system_texts(emulated.transport.bodies[-1]) == [IDENTITY, "It moved to Athens."]
        assert message_texts(emulated.transport.bodies[-1])[::2] == ["u0", "u2"]

    run(emu, "anthropic", test)


# ── B2 ───────────────────────────────────────────────────────────────────────────────────────────


@every
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_b2_the_state_turn_is_last_and_never_kept(emu: Emulator, name: str, stream: bool) -> None:
    """B2: rebuilt at every call; what was sent before it does not change by a byte."""
    turn = 0

    def render() -> RenderedContext:
        return RenderedContext(system_stable=LONG, state_turn=state(str(turn)))

    async def test(emulated: Connected) -> None:
        nonlocal turn
        chat = emulated.client.session(name, prompt=render, on_prefix_break="raise")
        for turn in range(3):
            if stream:
                async for _ in chat.send(f"u{turn}"):
                    pass
            else:
                await chat.send(f"u{turn}")
            texts = message_texts(emulated.transport.bodies[-1])
            assert texts[-1] == f"state: {turn}"
            assert texts[:-1] == texts_of(chat)[:-1]
        assert not any(text.startswith("state") for text in texts_of(chat))
        assert chat.last is not None
        assert chat.last.verdict is not None
        assert chat.last.verdict.result == "hit"

    run(emu, name, test)


def test_b2_the_state_turn_stands_behind_the_last_marker(emu: Emulator) -> None:
    """B2: on Anthropic it is the unmarked end."""

    async def test(emulated: Connected) -> None:
        context = RenderedContext(system_stable=LONG, turns=history(2), state_turn=state("now"))
        chat = emulated.client.session("anthropic", prompt=context)
        await chat.send("u2")
        assert message_texts(emulated.transport.bodies[-1])[-1] == "state: now"
        assert marked(emulated.transport.bodies[-1])[-1] == "u2"

    run(emu, "anthropic", test)


# ── B3 ───────────────────────────────────────────────────────────────────────────────────────────


def test_b3_the_deep_breakpoint_stays_while_the_tail_rolls(emu: Emulator) -> None:
    """B3: one marker at the frozen boundary, one at the tail, turn after turn."""
    context = RenderedContext(system_stable="Ada", turns=history(4, PAGE), frozen_prefix_len=2)
    deep = context.turns[1].text

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session("anthropic", prompt=context)
        for text in ("u4", "u6"):
            await chat.send(text)
            marks = marked(emulated.transport.bodies[-1])
            assert deep in marks
            assert marks[-1] == text

    run(emu, "anthropic", test)


@pytest.mark.parametrize("frozen, boundary", [(2, 1), (3, 2), (99, 3), (0, None), (-1, None)])
def test_b3_a_new_boundary_takes_effect_at_the_next_turn(
    emu: Emulator, frozen: int, boundary: int | None
) -> None:
    """B3: counted in the session's history where the context brings none; clamped."""
    turns = history(4, PAGE)

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(
            "anthropic", prompt=RenderedContext(system_stable="Ada", turns=turns)
        )
        chat.prompt = RenderedContext(system_stable="Ada", frozen_prefix_len=frozen)
        await chat.send("u4")
        marks = marked(emulated.transport.bodies[-1])
        assert marks[-1] == "u4"
        deep = [turn.text for turn in turns if turn.text in marks]
        assert deep == [turns[2 if boundary is None else boundary].text]  # None: the rolling pair

    run(emu, "anthropic", test)


def test_b3_the_boundary_is_found_whatever_ids_the_app_uses(emu: Emulator) -> None:
    """B3: an app that rebuilds its turns at every call numbers them anew."""
    kept: list[str] = []

    def render() -> RenderedContext:
        texts = (Message.assistant(t) if n % 2 else Message.user(t) for n, t in enumerate(kept))
        turns = Conversation(texts)
        frozen = len(turns) - 1 or None
        return RenderedContext(system_stable="Ada", turns=turns, frozen_prefix_len=frozen)

    async def test(emulated: Connected) -> None:
        for at in range(3):
            kept.append(f"u{at} {PAGE}")
            answered = await emulated.client.send(call(render(), "anthropic"), conversation=True)
            kept.append(answered.text)
            found = {notice.code for notice in answered.notices}
            assert not {"frozen_boundary_missing", "prefix_breaks"} & found
        # The last frozen message was an answer of the provider's.
        body = emulated.transport.bodies[-1]
        assert kept[3] in marked(body)
        assert message_texts(body) == kept[:-1]

    run(emu, "anthropic", test)


def test_b3_without_a_boundary_the_rolling_pair_is_used(emu: Emulator) -> None:
    """B3: the last message, and the last user turn before it."""
    turns = history(4, PAGE)

    async def test(emulated: Connected) -> None:
        context = RenderedContext(system_stable="Ada", turns=turns)
        chat = emulated.client.session("anthropic", prompt=context)
        await chat.send("u4")
        assert marked(emulated.transport.bodies[-1])[-2:] == [turns[2].text, "u4"]

    run(emu, "anthropic", test)


# ── B4 ───────────────────────────────────────────────────────────────────────────────────────────


def older_shape(*turns: Message) -> RenderedContext:
    data = {
        "system_stable": LONG,
        "system_knowledge": "",
        "turns": [json.loads(to_json(turn)) for turn in turns],
    }
    return RenderedContext.from_json(json.dumps(data))


@every
def test_b4_the_older_shape_is_sent_with_a_notice_of_its_cost(emu: Emulator, name: str) -> None:
    """B4: turns[0] holds the state and changes at every call. No message is marked, nothing is
    certified for messages, and the notice is in the response."""
    kept: list[Message] = []

    async def test(emulated: Connected) -> None:
        for turn in range(3):
            kept.append(Message.user(f"u{turn}"))
            context = older_shape(state(str(turn)), *kept)
            answered = await emulated.client.send(call(context, name), conversation=True)
            assert [notice.code for notice in answered.notices].count("state_in_turns") == 1
            texts = message_texts(emulated.transport.bodies[-1])
            assert texts == [f"state: {turn}", *(message.text for message in kept)]
            kept.append(Message.assistant(answered.text))
            if name == "anthropic":
                messages = json.loads(emulated.transport.bodies[-1])["messages"]
                assert not any("cache_control" in b for m in messages for b in m["content"])

    run(emu, name, test)


# ── B5 ───────────────────────────────────────────────────────────────────────────────────────────


@every
def test_b5_a_sessions_turns_extend_each_other(emu: Emulator, name: str) -> None:
    """B5: the fingerprint of the context certifies what the session will reuse; an edit that the
    session brings into the history ends that."""
    context = RenderedContext(system_stable=LONG, turns=history(2), state_turn=state("0"))

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=context)

        def fingerprint() -> Any:
            return msgspec.structs.replace(context, turns=chat.conversation).prefix_fingerprint()

        prints = [context.prefix_fingerprint()]
        for text in ("u2", "u4"):
            await chat.send(text)
            prints.append(fingerprint())
        assert prints[2].extends(prints[1])
        assert prints[1].extends(prints[0])
        assert not prints[1].extends(prints[2])
        assert prints[2].common_turn_prefix(prints[0]) == 2
        chat.compact(1)
        assert not fingerprint().extends(prints[2])

    run(emu, name, test)


# ── B6 ───────────────────────────────────────────────────────────────────────────────────────────


def ten(_: Message) -> int:
    return 10


LOOP = [
    Message.user("old"),
    Message.assistant("answer"),
    Message.user("look it up"),
    Message.assistant(ToolCall("c1", "search", "{}")),
    Message.tool("c1", "found"),
    Message.assistant("here it is"),
]


@pytest.mark.breaks_prefix(reason="a compaction changes the beginning on purpose")
@every
@pytest.mark.parametrize("on_prefix_break", ["warn", "raise"])
def test_b6_the_remaining_messages_are_sent_and_frozen(
    emu: Emulator, name: str, on_prefix_break: Any
) -> None:
    """B6: newest kept first, loops whole; a compaction on purpose is no broken prefix."""

    async def test(emulated: Connected) -> None:
        prompt = RenderedContext(system_stable=LONG, turns=Conversation(LOOP))
        chat = emulated.client.session(name, prompt=prompt, on_prefix_break=on_prefix_break)
        await chat.send("more")
        answer = texts_of(chat)[-1]
        done = chat.compact(65, tokens=ten)
        assert done.dropped == 2
        assert done.context.frozen_prefix_len == len(chat.messages) == 6
        assert [notice.code for notice in done.notices] == ["compaction_uncaches"]
        assert texts_of(chat)[0] == "look it up"
        assert texts_of(chat)[-1] == answer
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await chat.send("and more")
        assert "old" not in message_texts(emulated.transport.bodies[-1])
        assert {"prefix_breaks"} <= set(codes(chat))
        # From here on it is a prefix like any other.
        await chat.send("and again")
        assert "prefix_breaks" not in codes(chat)
        assert chat.last is not None
        assert chat.last.verdict is not None
        assert chat.last.verdict.result == "hit"

    run(emu, name, test)


@pytest.mark.breaks_prefix(reason="a compaction changes the beginning on purpose")
def test_b6_the_boundary_moves_with_a_compaction_and_stays_until_the_next(emu: Emulator) -> None:
    """B6 and B3: the deep breakpoint stands at the end of what was left, turn after turn."""

    async def test(emulated: Connected) -> None:
        context = RenderedContext(system_stable="Ada", turns=history(6, PAGE), frozen_prefix_len=2)
        chat = emulated.client.session("anthropic", prompt=context)
        await chat.send("u6")
        assert context.turns[1].text in marked(emulated.transport.bodies[-1])
        chat.compact(45, tokens=ten)
        deep = chat.messages[-1]
        assert len(chat.messages) == 4
        for text in ("u8", "u10"):
            await chat.send(text)
            assert marked(emulated.transport.bodies[-1])[-1] == text
            assert "frozen_boundary_missing" not in codes(chat)
        assert deep.text in marked(emulated.transport.bodies[-1])
        # The prompt's own boundary counts again when it is a new one.
        chat.prompt = msgspec.structs.replace(context, turns=Conversation(), frozen_prefix_len=1)
        await chat.send("u12")
        assert chat.messages[0].text in marked(emulated.transport.bodies[-1])

    run(emu, "anthropic", test)


def test_b6_within_the_budget_nothing_changes(emu: Emulator) -> None:
    """B6: no byte changed, so the boundary does not move and nothing is written again."""

    async def test(emulated: Connected) -> None:
        context = RenderedContext(system_stable=LONG, turns=history(2), frozen_prefix_len=1)
        chat = emulated.client.session("anthropic", prompt=context, on_prefix_break="raise")
        await chat.send("u2")
        before = chat.conversation
        done = chat.compact(10_000)
        assert (done.dropped, done.notices) == (0, ())
        assert done.context.frozen_prefix_len == 1
        assert chat.conversation is before
        await chat.send("u4")

    run(emu, "anthropic", test)


@every
def test_b6_a_summary_replaces_the_dropped_messages(emu: Emulator, name: str) -> None:
    """B6: it stands first, and the newest messages follow."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=RenderedContext(turns=Conversation(LOOP)))
        done = chat.compact(55, summary="They talked.", tokens=ten)
        assert done.dropped == 2
        assert done.context.frozen_prefix_len == 5
        await chat.send("more")
        texts = message_texts(emulated.transport.bodies[-1])
        assert texts[:2] == ["They talked.", "look it up"]
        assert texts[-1] == "more"

    run(emu, name, test)


@pytest.mark.breaks_prefix(reason="a compaction changes the beginning on purpose")
def test_b6_tokens_are_the_models_estimate(emu: Emulator) -> None:
    """B6: without a counter of the app's the budget is in the provider's tokens."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session("anthropic", prompt=RenderedContext(turns=history(8, PAGE)))
        await chat.send("u8")
        assert chat.last is not None
        billed = chat.last.usage.input
        assert billed is not None
        chat.compact(round(0.6 * billed))  # two of the four exchanges fit
        assert chat.preview("u10").usage.input == pytest.approx(billed / 2, rel=0.05)

    run(emu, "anthropic", test)


# ── B7 ───────────────────────────────────────────────────────────────────────────────────────────


@every
def test_b7_a_context_and_its_prompt_send_the_same_bytes(emu: Emulator, name: str) -> None:
    """B7: through `to_ir()`, and in no other way; given, returned by a function, or assigned."""
    context = RenderedContext(
        system_stable=LONG,
        system_knowledge="Rome.",
        turns=history(4),
        state_turn=state("open"),
        frozen_prefix_len=2,
    )

    async def test(emulated: Connected) -> None:
        sessions = [
            emulated.client.session(name, prompt=context),
            emulated.client.session(name, prompt=context.to_ir()),
            emulated.client.session(name, prompt=lambda: context),
            emulated.client.session(name),
        ]
        sessions[-1].prompt = context
        for text in ("u4", "u6"):
            bodies = []
            for chat in sessions:
                chat.conversation = Conversation(
                    [*chat.messages[:4], *history(len(chat.messages))[4:]]
                )
                emu.reset()
                await chat.send(text)
                bodies.append(emulated.transport.bodies[-1])
            assert len(set(bodies)) == 1
            assert message_texts(bodies[0])[-1] == "state: open"

    run(emu, name, test)
