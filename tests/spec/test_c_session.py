"""SPEC C through a session: the canonical request reaches the wire at every turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from support.bodies import marked, message_texts, system_texts
from support.emulated_client import LONG, WIRES, Connected, connected

from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.errors import NotFound, QuotaExhausted
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Segment,
)
from anaphora.values import Conversation, Message, SegmentRole

every = pytest.mark.parametrize("name", WIRES)
R = SegmentRole
NEW = pytest.mark.breaks_prefix(reason="new dynamic context and remainder are the point")

START = Conversation([Message.user("u0"), Message.assistant("a1")])


def whole(turn: int = 0, **more: Any) -> PromptIR:
    """Every role, in an order that means nothing."""
    return PromptIR(
        system_text="SYSTEM",
        segments=(
            Segment.of(R.VOLATILE_TAIL, Message.user(f"VOLATILE {turn}")),
            Segment(R.CONVERSATION, START),
            Segment.of(R.SYSTEM_REMAINDER, Message.system(f"REMAINDER {turn}")),
            Segment.of(R.STABLE_PREFIX, Message.user("PREFIX")),
            Segment.of(R.DYNAMIC_CONTEXT, Message.user(f"DYNAMIC {turn}")),
        ),
        **more,
    )


def run(emu: Emulator, name: str, test: Callable[[Connected], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            await test(emulated)

    asyncio.run(main())


def codes(chat: Session) -> list[str]:
    assert chat.last is not None
    return [notice.code for notice in chat.last.notices]


def fields(emulated: Connected) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(emulated.transport.bodies[-1])
    return found


# ── C1 to C3 ─────────────────────────────────────────────────────────────────────────────────────


@every
def test_c1_the_system_text_is_authoritative(emu: Emulator, name: str) -> None:
    """C1: byte for byte on wires with one system field; blocks where the wire has them."""
    blocks = (PromptBlock.plain("base", "Base."), PromptBlock.plain("env", "Env."))
    ir = PromptIR(system_text="Base.\n\nEnv.", system_blocks=blocks)

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=ir)
        await chat.send("u0")
        await chat.send("u2")
        assert all(
            "\n\n".join(system_texts(b)) == ir.system_text for b in emulated.transport.bodies
        )

    run(emu, name, test)


def test_c1_the_cache_plan_is_the_authority_on_breakpoints(emu: Emulator) -> None:
    """C1: marks on a block and on a message of the history are on every request."""
    ir = PromptIR(
        system_blocks=(PromptBlock.plain("guide", LONG), PromptBlock.plain("today", "Monday.")),
        segments=(Segment(R.CONVERSATION, START),),
        cache=PromptCachePlan(marks=(BlockMark(0), PartMark(START[1].id))),
    )

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session("anthropic", prompt=ir)
        for text in ("u2", "u4"):
            await chat.send(text)
            assert {LONG, "a1"} <= set(marked(emulated.transport.bodies[-1]))

    run(emu, "anthropic", test)


@NEW
@every
def test_c2_every_role_reaches_the_wire_at_every_turn(emu: Emulator, name: str) -> None:
    """C2: new dynamic context, system remainder and state take effect at the next turn."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=whole(0), on_prefix_break="off")
        assert [message.text for message in chat.messages] == ["u0", "a1"]
        for turn in range(3):
            chat.prompt = whole(turn)
            await chat.send(f"u{turn}")
            texts = message_texts(emulated.transport.bodies[-1])
            for role in ("DYNAMIC", "REMAINDER", "VOLATILE"):
                assert [text for text in texts if text.startswith(role)] == [f"{role} {turn}"]
        assert [message.text for message in chat.messages][:5:2] == ["u0", "u0", "u1"]
        assert len(chat.messages) == 8

    run(emu, name, test)


@every
def test_c3_blank_blocks_leave_no_gap(emu: Emulator, name: str) -> None:
    """C3: without an authoritative text, the blocks that are not blank."""
    blocks = tuple(PromptBlock.plain(text.strip() or "blank", text) for text in ("A", "  ", "B"))

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=PromptIR(system_blocks=blocks))
        await chat.send("u0")
        assert "\n\n".join(system_texts(emulated.transport.bodies[-1])) == "A\n\nB"

    run(emu, name, test)


# ── C4 ───────────────────────────────────────────────────────────────────────────────────────────


@every
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_c4_the_order_of_the_body(emu: Emulator, name: str, stream: bool) -> None:
    """C4: stable prefix, dynamic context, system remainder, conversation, volatile tail."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(name, prompt=whole, on_prefix_break="off")
        for text in ("u2", "u4"):
            if stream:
                async for _ in chat.send(text):
                    pass
            else:
                await chat.send(text)
            history = [message.text for message in chat.messages[:-1]]
            lead = ["PREFIX", "DYNAMIC 0", "REMAINDER 0"]
            assert message_texts(emulated.transport.bodies[-1]) == [*lead, *history, "VOLATILE 0"]
        assert history[-1] == "u4"

    run(emu, name, test)


@NEW
@every
def test_c4_positions_can_be_chosen(emu: Emulator, name: str) -> None:
    """C4 and F: `dynamic_position` and `state_position` hold in a session."""

    async def test(emulated: Connected) -> None:
        ir = whole(dynamic_position="tail")
        chat = emulated.client.session(name, prompt=ir, on_prefix_break="off")
        await chat.send("u2")
        texts = message_texts(emulated.transport.bodies[-1])
        assert texts[:2] == ["PREFIX", "REMAINDER 0"]
        assert texts[-3:] == ["u2", "DYNAMIC 0", "VOLATILE 0"]
        chat.prompt = msgspec.structs.replace(ir, state_position="head")
        await chat.send("u4")
        assert message_texts(emulated.transport.bodies[-1])[0] == "VOLATILE 0"

    run(emu, name, test)


# ── C5 to C7: continuation ───────────────────────────────────────────────────────────────────────

RESPONSES = "openai_responses"


@NEW
def test_c5_a_stored_conversation_sends_the_delta_in_its_own_order(emu: Emulator) -> None:
    """C5: system remainder first, dynamic context, conversation tail, volatile tail."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(
            RESPONSES, prompt=whole(0), store=True, on_prefix_break="off"
        )
        await chat.send("u2")
        assert "previous_response_id" not in fields(emulated)
        assert chat.last is not None
        before = chat.last.reply.id
        chat.prompt = whole(1)
        await chat.send("u4")
        assert fields(emulated)["previous_response_id"] == before
        texts = message_texts(emulated.transport.bodies[-1])
        assert [*system_texts(emulated.transport.bodies[-1]), *texts] == [
            "REMAINDER 1",
            "DYNAMIC 1",
            "u4",
            "VOLATILE 1",
        ]
        assert [message.text for message in chat.messages][::2] == ["u0", "u2", "u4"]

    run(emu, RESPONSES, test)


async def stored(emulated: Connected) -> tuple[str, Message]:
    """A response that the provider keeps, and the answer in it."""
    first = emulated.client.session(RESPONSES, system=LONG, store=True)
    answered = await first.send("u0")
    return answered.reply.id, answered.reply.message


@pytest.mark.parametrize(
    "boundary, sent",
    [
        ("answer", ["u2", "u4"]),  # strictly after the committed message
        (None, ["u0", "ANSWER", "u2", "u4"]),  # all of it
        ("missing", ["u0", "ANSWER", "u2", "u4"]),
    ],
)
def test_c6_the_prompts_own_continuation_holds_for_the_first_turn(
    emu: Emulator, boundary: str | None, sent: list[str]
) -> None:
    """C6: what comes after the committed assistant message, found by id; then the session goes on
    from its own answers."""

    async def test(emulated: Connected) -> None:
        previous, answer = await stored(emulated)
        answer = msgspec.structs.replace(answer, id="answer")
        turns = Conversation([Message.user("u0"), answer, Message.user("u2")])
        ir = PromptIR(
            system_text=LONG,
            segments=(Segment(R.CONVERSATION, turns),),
            continuation=Continuation(previous, boundary),
        )
        chat = emulated.client.session(RESPONSES, prompt=ir, on_prefix_break="off")
        await chat.send("u4")
        assert fields(emulated)["previous_response_id"] == previous
        texts = message_texts(emulated.transport.bodies[-1])
        assert texts == [answer.text if text == "ANSWER" else text for text in sent]
        assert chat.last is not None
        own = chat.last.reply.id
        await chat.send("u6")
        assert fields(emulated)["previous_response_id"] == own
        assert message_texts(emulated.transport.bodies[-1]) == ["u6"]

    run(emu, RESPONSES, test)


def test_c6_a_continuation_is_used_once_it_was_answered(emu: Emulator) -> None:
    """C6: a call that failed used nothing up."""

    async def test(emulated: Connected) -> None:
        previous, _ = await stored(emulated)
        ir = PromptIR(system_text=LONG, continuation=Continuation(previous))
        chat = emulated.client.session(RESPONSES, prompt=ir, on_prefix_break="off")
        emulated.transport.faults = ["spend-cap", None]
        with pytest.raises(QuotaExhausted):
            await chat.send("u2")
        await chat.send("u2")
        assert fields(emulated)["previous_response_id"] == previous

    run(emu, RESPONSES, test)


@pytest.mark.breaks_prefix(reason="a compaction changes the beginning on purpose")
def test_c6_a_history_that_was_shortened_continues_no_stored_response(emu: Emulator) -> None:
    """C6: the provider would still read the dropped part; all that is left is sent instead."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(RESPONSES, system=LONG, store=True)
        for text in ("u0", "u2", "u4"):
            await chat.send(text)
        assert "previous_response_id" in fields(emulated)
        chat.compact(25, tokens=lambda _: 10)
        await chat.send("u6")
        assert "previous_response_id" not in fields(emulated)
        texts = message_texts(emulated.transport.bodies[-1])
        assert texts == [message.text for message in chat.messages[:-1]]
        assert texts[0] == "u4"
        await chat.send("u8")
        assert "previous_response_id" in fields(emulated)
        assert message_texts(emulated.transport.bodies[-1]) == ["u8"]

    run(emu, RESPONSES, test)


@pytest.mark.breaks_prefix(reason="the beginning of the prompt is changed on purpose")
@pytest.mark.parametrize("changed", ["SYSTEM", "PREFIX"])
@pytest.mark.parametrize("model", ["gpt-5.6", "gpt-5.2"])
def test_c6_a_new_beginning_continues_no_stored_response(
    emu: Emulator, model: str, changed: str
) -> None:
    """C6: a stored response holds the old system prompt and stable prefix, and they are not sent
    with what continues it. A new one takes effect at the next turn."""

    def prompt(**parts: str) -> PromptIR:
        prefix = Segment.of(R.STABLE_PREFIX, Message.user(parts.get("PREFIX", "PREFIX")))
        return PromptIR(system_text=parts.get("SYSTEM", "SYSTEM"), segments=(prefix,))

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(
            RESPONSES, model=model, prompt=prompt(), store=True, on_prefix_break="off"
        )
        for text in ("u0", "u2"):
            await chat.send(text)
        assert "previous_response_id" in fields(emulated)
        chat.prompt = prompt(**{changed: "ANOTHER"})
        await chat.send("u4")
        assert "previous_response_id" not in fields(emulated)
        assert b'"ANOTHER"' in emulated.transport.bodies[-1]
        assert b'"u0"' in emulated.transport.bodies[-1]
        await chat.send("u6")
        assert "previous_response_id" in fields(emulated)

    run(emu, RESPONSES, test)


@pytest.mark.parametrize("through", ["client", "session", "session, later"])
@pytest.mark.parametrize("known", [False, True])
def test_c6_what_only_a_lost_response_held_is_not_left_out(
    emu: Emulator, through: str, known: bool
) -> None:
    """C6: when the stored response is gone, the whole conversation is sent instead. Where the app
    has only the new messages, the model would answer without the rest, so the error is raised."""

    async def test(emulated: Connected) -> None:
        previous, answer = await stored(emulated)
        turns = (Message.user("u0"), answer) if known else ()
        continuation = Continuation(previous, answer.id)
        if through == "client":
            emu.reset()
            ir = PromptIR(
                system_text=LONG,
                segments=(Segment.of(R.CONVERSATION, *turns, Message.user("u2")),),
                continuation=continuation,
            )
            sending = emulated.client.send(Call(ir=ir, model="gpt-5.6"), RESPONSES)
        else:
            ir = PromptIR(
                system_text=LONG,
                segments=(Segment.of(R.CONVERSATION, *turns),),
                continuation=continuation,
            )
            chat = emulated.client.session(RESPONSES, prompt=ir, on_prefix_break="off")
            if through == "session, later":
                await chat.send("u2")
            emu.reset()
            sending = chat.send("u4")
        if not known:
            with pytest.raises(NotFound):
                await sending
            assert "previous_response_id" in fields(emulated)
            return
        await sending
        assert "previous_response_id" not in fields(emulated)
        assert message_texts(emulated.transport.bodies[-1])[:2] == ["u0", answer.text]

    run(emu, RESPONSES, test)


@pytest.mark.parametrize("system, instructions", [("  SYSTEM \n", "SYSTEM"), ("   ", None)])
def test_c7_instructions_are_trimmed_and_left_out_when_blank(
    emu: Emulator, system: str, instructions: str | None
) -> None:
    """C7: on models that take the system prompt as `instructions`."""

    async def test(emulated: Connected) -> None:
        prompt = PromptIR(system_text=system)
        chat = emulated.client.session(RESPONSES, model="gpt-5.2", prompt=prompt, store=False)
        await chat.send("u0")
        assert fields(emulated).get("instructions") == instructions
        assert fields(emulated)["store"] is False
        assert message_texts(emulated.transport.bodies[-1]) == ["u0"]

    run(emu, RESPONSES, test)


def test_c7_the_callers_policy_is_kept(emu: Emulator) -> None:
    """C7: store, verbosity, include and truncation are the caller's."""

    async def test(emulated: Connected) -> None:
        chat = emulated.client.session(
            RESPONSES,
            prompt=whole(),
            store=False,
            verbosity="low",
            include=("reasoning.encrypted_content",),
            truncation="auto",
        )
        await chat.send("u2")
        body = fields(emulated)
        assert body["text"]["verbosity"] == "low"
        assert body["include"] == ["reasoning.encrypted_content"]
        assert (body["store"], body["truncation"]) == (False, "auto")
        assert message_texts(emulated.transport.bodies[-1])[-1] == "VOLATILE 0"

    run(emu, RESPONSES, test)


def test_c7_without_storing_the_whole_input_goes_out_with_a_notice(emu: Emulator) -> None:
    """C7 and F: the real service refuses `store: false` with a response to continue."""

    async def test(emulated: Connected) -> None:
        ir = whole(continuation=Continuation("resp_earlier", START[1].id))
        chat = emulated.client.session(RESPONSES, prompt=ir, store=False)
        await chat.send("u2")
        assert "previous_response_id" not in fields(emulated)
        assert message_texts(emulated.transport.bodies[-1])[:4] == [
            "PREFIX",
            "DYNAMIC 0",
            "REMAINDER 0",
            "u0",
        ]
        assert "continuation_not_stored" in codes(chat)

    run(emu, RESPONSES, test)


@pytest.mark.parametrize("name", [name for name in WIRES if name != RESPONSES])
def test_c7_other_wires_leave_a_continuation_out_with_a_notice(emu: Emulator, name: str) -> None:
    """C7 and F: they are stateless, so everything is sent."""

    async def test(emulated: Connected) -> None:
        ir = whole(continuation=Continuation("resp_earlier", START[1].id))
        chat = emulated.client.session(name, prompt=ir)
        await chat.send("u2")
        assert "continuation_left_out" in codes(chat)
        assert "u0" in message_texts(emulated.transport.bodies[-1])

    run(emu, name, test)
