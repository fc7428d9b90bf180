"""A session's prompt: its forms, when it is requested, the meaning of its conversation, and how
the history is compacted."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

import msgspec
import pytest
from support.bodies import marked, message_texts, system_texts
from support.emulated_client import LONG, MODELS, WIRES, connected, settings
from support.tables import each_row
from support.waiting import PATIENCE

from anaphora import Client, errors
from anaphora.client.session import Session
from anaphora.emulator.server import Emulator
from anaphora.prompt import (
    Call,
    Params,
    PartMark,
    PromptCachePlan,
    PromptIR,
    RenderedContext,
    Segment,
)
from anaphora.tools import ToolRegistry
from anaphora.values import Conversation, Message, SegmentRole, ToolCall, ToolResult

every = pytest.mark.parametrize("name", WIRES)
EDITED = pytest.mark.breaks_prefix(reason="the app edits the history on purpose")
COMPACTED = pytest.mark.breaks_prefix(reason="a compaction changes the beginning on purpose")
R = SegmentRole
PAGE = "This page is long. " * 700


def texts(chat: Session) -> list[str]:
    return [message.text for message in chat.messages]


def codes(chat: Session) -> list[str]:
    assert chat.last is not None
    return [notice.code for notice in chat.last.notices]


def conversation(*texts: str) -> Conversation:
    """Turns of user and assistant, one after the other."""
    return Conversation(
        Message.assistant(text) if at % 2 else Message.user(text) for at, text in enumerate(texts)
    )


# ── Valid prompts ────────────────────────────────────────────────────────────────────────────────


@each_row(
    "keyword, value",
    [
        ("system", "You are terse."),
        ("messages", [Message.user("Hello")]),
        ("messages", (Message.user("Hello") for _ in range(1))),
        ("state", "It is 09:41."),
        ("state", lambda: "It is 09:41."),
        ("cache", PromptCachePlan()),
    ],
)
def test_prompt_excludes_the_other_arguments(emu: Emulator, keyword: str, value: Any) -> None:
    """The error names both keywords."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(
                errors.InvalidRequest, match=f"prompt and {keyword} cannot be combined"
            ):
                emulated.client.session("anthropic", prompt=PromptIR(), **{keyword: value})

    asyncio.run(main())


async def late() -> PromptIR:
    return PromptIR()


@pytest.mark.parametrize(
    "prompt, reason",
    [
        ("You are terse.", "not str; a text is given as system="),
        (7, "not int"),
        ([Message.user("Hello")], "not list"),
        (late, "async function.*chat.prompt = await"),
    ],
)
def test_invalid_prompt_is_named(emu: Emulator, prompt: Any, reason: str) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(errors.InvalidRequest, match=reason) as caught:
                emulated.client.session("anthropic", prompt=prompt)
            assert caught.value.path == "prompt"
            chat = emulated.client.session("anthropic", prompt=PromptIR())
            with pytest.raises(errors.InvalidRequest, match=reason):
                chat.prompt = prompt

    asyncio.run(main())


@pytest.mark.parametrize(
    "returned, kind", [(None, "NoneType"), ("text", "str"), (late, "coroutine")]
)
def test_result_of_a_prompt_function_is_checked(emu: Emulator, returned: Any, kind: str) -> None:
    """At the turn; nothing is sent, and the next turn may go."""
    result = returned

    def render() -> Any:
        return result() if callable(result) else result

    async def main() -> None:
        nonlocal result
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", prompt=render)
            with pytest.raises(errors.InvalidRequest, match=f"returned {kind}") as caught:
                await chat.send("Hello")
            assert caught.value.path == "prompt"
            assert emulated.transport.sent == []
            result = PromptIR(system_text="SYSTEM")
            await chat.send("Hello")
            assert system_texts(emulated.transport.bodies[-1]) == ["SYSTEM"]

    asyncio.run(main())


def test_state_and_prompt_are_not_combined_in_a_turn(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", prompt=PromptIR())
            with pytest.raises(errors.InvalidRequest, match="state and prompt"):
                chat.state = "It is 09:41."
            chat = emulated.client.session("anthropic", system="A", state="It is 09:41.")
            with pytest.raises(errors.InvalidRequest, match="prompt and state"):
                chat.prompt = PromptIR(system_text="B")
            chat.state = None
            chat.prompt = PromptIR(system_text="B")
            await chat.send("Hello")
            assert system_texts(emulated.transport.bodies[-1]) == ["B"]

    asyncio.run(main())


@every
def test_keywords_are_a_short_form_of_a_prompt(emu: Emulator, name: str) -> None:
    """The same bytes, whichever way they were given."""
    start = conversation("u0", "a1")
    cache = PromptCachePlan(key="mine")
    ir = PromptIR.chat(start, system=LONG, tail=[Message.user("It is 09:41.")], cache=cache)

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            keywords = emulated.client.session(
                name, system=LONG, messages=start, state=lambda: "It is 09:41.", cache=cache
            )
            prompt = emulated.client.session(name, prompt=ir)
            assert keywords.prompt == PromptIR(system_text=LONG, cache=cache)
            bodies = []
            for chat in (keywords, prompt):
                emu.reset()
                await chat.send("u2")
                bodies.append(emulated.transport.bodies[-1])
            assert bodies[0] == bodies[1]

    asyncio.run(main())


# ── When it is requested ─────────────────────────────────────────────────────────────────────────


class CountingPrompt:
    """Counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> PromptIR:
        self.calls += 1
        tail = Segment.of(R.VOLATILE_TAIL, Message.user(f"call {self.calls}"))
        return PromptIR(system_text=LONG, segments=(tail,))


ROUTE = {"main": [{"provider": "anthropic"}, {"provider": "openai_responses"}]}


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_function_is_called_once_per_turn(emu: Emulator, stream: bool) -> None:
    """Retries and fallbacks do not call it again."""
    prompt = CountingPrompt()

    async def main() -> None:
        retry = {"max_attempts": 2, "first_wait": 0.01}
        names = ["anthropic", "openai_responses"]
        async with connected(emu, names, routes=ROUTE, retry=retry) as emulated:
            chat = emulated.client.session("main", prompt=prompt)
            assert prompt.calls == 0
            emulated.transport.faults = ["529", "529", None]
            if stream:
                async for _ in chat.send("One"):
                    pass
            else:
                await chat.send("One")
            assert len(emulated.transport.sent) == 3
            assert prompt.calls == 1
            assert [message_texts(body)[-1] for body in emulated.transport.bodies] == ["call 1"] * 3
            chat.preview("Two")
            assert prompt.calls == 2
            await chat.send("Two")
            assert prompt.calls == 3
            emulated.transport.faults = ["spend-cap"]
            with pytest.raises(errors.QuotaExhausted):
                await chat.send("Three")
            assert prompt.calls == 4
            emulated.transport.faults = []
            await chat.prewarm()
            assert prompt.calls == 5

    asyncio.run(main())


@EDITED
def test_new_parts_take_effect_at_the_next_turn(emu: Emulator) -> None:
    """Not in the middle of one: what was sent again is what was sent first."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", prompt=PromptIR(system_text="A"))
            turn = chat.send("One")
            chat.prompt = PromptIR(system_text="B")
            await turn
            assert system_texts(emulated.transport.bodies[-1]) == ["B"]
            async with chat.send("Two") as events:
                await anext(events)
                chat.prompt = PromptIR(system_text="C")
                async for _ in events:
                    pass
            assert system_texts(emulated.transport.bodies[-1]) == ["B"]
            await chat.send("Three")
            assert system_texts(emulated.transport.bodies[-1]) == ["C"]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.mark.breaks_prefix(reason="new dynamic context is the point")
@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses", "gemini"])
def test_new_dynamic_context_does_not_break_the_prefix(emu: Emulator, name: str) -> None:
    """Dynamic context may change: a notice has the cost, and `on_prefix_break="raise"` lets it pass. A
    stable prefix that changes is refused."""
    turn = 0

    def render(stable: str = "Guide") -> PromptIR:
        dynamic = [Message.user(f"Fact {number}") for number in range(turn % 3)]
        return PromptIR(
            system_text=LONG,
            segments=(
                Segment.of(R.STABLE_PREFIX, Message.user(stable)),
                Segment.of(R.DYNAMIC_CONTEXT, Message.user(f"Turn {turn}"), *dynamic),
            ),
        )

    async def main() -> None:
        nonlocal turn
        async with connected(emu, [name]) as emulated:
            chat = emulated.client.session(name, prompt=render, on_prefix_break="raise")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for turn in range(4):
                    await chat.send(f"u{turn}")
            chat.prompt = render("Another guide")
            with pytest.raises(errors.PrefixBroken):
                await chat.send("u4")

    asyncio.run(main())


# ── Its conversation ─────────────────────────────────────────────────────────────────────────────


def test_the_same_conversation_changes_nothing(emu: Emulator) -> None:
    """A prompt that is kept, or copied with another state, holds the history it started from."""
    start = conversation("u0", "a1")

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            first = RenderedContext(turns=start, state_turn=Message.user("1"))
            chat = emulated.client.session("anthropic", prompt=first, on_prefix_break="raise")
            assert texts(chat) == ["u0", "a1"]
            await chat.send("u2")
            chat.prompt = msgspec.structs.replace(first, state_turn=Message.user("2"))
            await chat.send("u4")
            assert texts(chat)[::2] == ["u0", "u2", "u4"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "theirs", [("other", "a1"), ("u0",), ("u0", "a1", "u2"), ("u0", "a1", "u2", "a3", "u4")]
)
@pytest.mark.parametrize("made", [RenderedContext, PromptIR])
def test_any_other_conversation_is_refused(
    emu: Emulator, theirs: tuple[str, ...], made: type
) -> None:
    """The session owns the history from the first turn on; nothing is sent."""

    def prompt(*texts: str) -> RenderedContext | PromptIR:
        turns = conversation(*texts)
        if made is PromptIR:
            return PromptIR.chat(turns, system=LONG)
        return RenderedContext(system_stable=LONG, turns=turns)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", prompt=prompt("u0", "a1"))
            await chat.send("u2")
            before = chat.messages
            chat.prompt = lambda: prompt(*theirs)
            with pytest.raises(
                errors.InvalidRequest, match=r"client\.send\(call, conversation=True\)"
            ) as caught:
                await chat.send("u4")
            assert caught.value.path == "prompt"
            assert len(emulated.transport.sent) == 1
            assert chat.messages == before
            for own in ((), ("u0", "a1"), [message.text for message in before]):
                chat.prompt = prompt(*own)
                await chat.send("u4")
                if len(own) == 2:
                    break  # the third is no longer its own
            assert texts(chat)[:2] == ["u0", "a1"]
            assert texts(chat)[::2] == ["u0", "u2", "u4", "u4"]

    asyncio.run(main())


def test_opening_is_taken_with_the_first_answered_turn(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            opening = conversation("other", "a1")
            chat = emulated.client.session(
                "anthropic", prompt=lambda: RenderedContext(turns=opening)
            )
            chat.append(Message.user("u2"))
            emulated.transport.faults = ["spend-cap", None]
            with pytest.raises(errors.QuotaExhausted):
                await chat.send()
            assert texts(chat) == ["u2"]
            opening = conversation("u0", "a1")
            await chat.send()
            assert texts(chat)[:3] == ["u0", "a1", "u2"]
            await chat.send("u4")
            assert message_texts(emulated.transport.bodies[-1]) == texts(chat)[:-1]

    asyncio.run(main())


@EDITED
@pytest.mark.parametrize("store", [None, True])
def test_messages_appended_during_a_turn_are_kept(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch, store: bool | None
) -> None:
    """Between two attempts, too; and a stored response without it is not continued."""

    async def main() -> None:
        retry = {"max_attempts": 1}
        names = ["anthropic", "openai_responses"]
        async with connected(emu, names, routes=ROUTE, retry=retry) as emulated:
            chat = emulated.client.session("main", prompt=PromptIR(system_text=LONG), store=store)
            send = emulated.transport.send
            sent = 0

            async def appending(outgoing: Any) -> Any:
                nonlocal sent
                sent += 1
                if sent == 1:
                    chat.append(Message.user("by the way"))
                return await send(outgoing)

            monkeypatch.setattr(emulated.transport, "send", appending)
            emulated.transport.faults = ["529", None]
            await chat.send("One")
            assert sent == 2
            assert texts(chat)[:2] == ["by the way", "One"]
            assert message_texts(emulated.transport.bodies[-1]) == ["One"]
            await chat.send("Two")
            assert message_texts(emulated.transport.bodies[-1]) == texts(chat)[:-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(main())


def registry() -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool
    def fare(city: str) -> str:
        """The fare to a city."""
        return f"{city}: 89 EUR"

    return tools


@every
def test_run_accepts_a_function_that_returns_the_saved_history(emu: Emulator, name: str) -> None:
    """An app that renders from its own store sees every message there, calls and results too."""
    saved: list[Message] = []

    def render() -> RenderedContext:
        return RenderedContext(system_stable=LONG, turns=Conversation(saved))

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            chat = emulated.client.session(
                name, prompt=render, tools=registry(), save=saved.append, on_prefix_break="raise"
            )
            for text in ("Find the fare to Rome.", "And to Athens."):
                ran = await chat.run(text, max_turns=4)
                assert ran.stop_reason == "done"
            assert chat.messages == tuple(saved)
            assert [message.role for message in saved][:4] == [
                "user",
                "assistant",
                "tool",
                "assistant",
            ]

    asyncio.run(main())


@every
def test_run_accepts_a_function_that_returns_the_earlier_history(emu: Emulator, name: str) -> None:
    """Messages appended since the last turn are kept."""
    past = conversation("u0", "a1")

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            chat = emulated.client.session(
                name,
                prompt=lambda: RenderedContext(system_stable=LONG, turns=past),
                tools=registry(),
            )
            ran = await chat.run("Find the fare to Rome.", max_turns=4)
            assert ran.stop_reason == "done"
            assert texts(chat)[:3] == ["u0", "a1", "Find the fare to Rome."]

    asyncio.run(main())


def test_same_history_is_not_compared_by_content(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn costs what it adds: messages that the session has given are recognised as they are."""
    compared = 0
    same = Message.same_content

    def counting(self: Message, other: Message) -> bool:
        nonlocal compared
        compared += 1
        return same(self, other)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            start = conversation(*(str(at) for at in range(200)))
            chat = emulated.client.session("anthropic", messages=start, system=LONG)

            def view() -> RenderedContext:
                return RenderedContext(system_stable=LONG, turns=chat.conversation)

            def copy() -> RenderedContext:
                return RenderedContext(system_stable=LONG, turns=Conversation(chat.messages))

            monkeypatch.setattr(Message, "same_content", counting)
            for prompt in (view, copy):
                chat.prompt = prompt
                for at in range(3):
                    await chat.send(f"u{at}")
            assert compared == 0

    asyncio.run(main())


def test_marks_of_a_call_name_messages_by_the_apps_own_ids(emu: Emulator) -> None:
    """An app that brings its whole history with each call numbers it as it likes."""
    kept: list[Message] = []

    def call() -> Call:
        turns = Conversation(Message(role=each.role, parts=each.parts) for each in kept)
        cache = PromptCachePlan()
        if len(turns) > 2:
            cache = PromptCachePlan(marks=(PartMark(turns[1].id),), frozen_through=turns[-2].id)
        ir = PromptIR.chat(turns, system="Ada", cache=cache)
        return Call(ir=ir, model=MODELS["anthropic"], params=Params(max_tokens=64))

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            for at in range(3):
                kept.append(Message.user(f"u{at} {PAGE}"))
                answered = await emulated.client.send(call(), "anthropic", conversation=True)
                kept.append(answered.reply.message)
                found = {notice.code for notice in answered.notices}
                assert not {"mark_left_out", "frozen_boundary_missing"} & found
            assert {kept[1].text, kept[3].text} <= set(marked(emulated.transport.bodies[-1]))

    asyncio.run(main())


def test_routing_ignores_the_dynamic_context(emu: Emulator) -> None:
    """Hops with a weight share conversations by what they begin with and keep."""
    hops = [{"provider": name, "weight": 1} for name in ("anthropic", "openai_chat")]

    def prompt(number: int) -> PromptIR:
        dynamic = Segment.of(R.DYNAMIC_CONTEXT, Message.user(f"Fact {number}"))
        state = Segment.of(R.VOLATILE_TAIL, Message.user(f"State {number}"))
        return PromptIR(system_text="SYSTEM", segments=(dynamic, state), state_position="head")

    async def main() -> None:
        names = ["anthropic", "openai_chat"]
        async with connected(emu, names, routes={"main": hops}) as emulated:
            homes = set()
            for number in range(12):
                chat = emulated.client.session("main", prompt=prompt(number))
                homes.add(chat.preview("Hello").provider)
            assert len(homes) == 1

    asyncio.run(main())


def test_fork_keeps_prompt_and_history(emu: Emulator) -> None:
    """Both continue with separate prompts."""
    context = RenderedContext(
        system_stable=LONG, turns=conversation("u0", "a1"), state_turn=Message.user("state")
    )

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", prompt=context, on_prefix_break="raise")
            await chat.send("u2")
            other = chat.fork()
            other.prompt = msgspec.structs.replace(context, state_turn=Message.user("other"))
            await other.send("right")
            assert message_texts(emulated.transport.bodies[-1])[-2:] == ["right", "other"]
            await chat.send("left")
            assert message_texts(emulated.transport.bodies[-1])[-2:] == ["left", "state"]
            assert texts(chat)[:4] == texts(other)[:4]

    asyncio.run(main())


# ── Compaction ───────────────────────────────────────────────────────────────────────────────────


@each_row("value", [0, 1, -5, 0.0, 1.5, True, "half", float("nan"), [1000]], ids=repr)
def test_invalid_compact_at_is_named(emu: Emulator, value: Any) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(errors.InvalidRequest, match="number of input tokens") as caught:
                emulated.client.session("anthropic", compact_at=value)
            assert caught.value.path == "compact_at"

    asyncio.run(main())


def test_share_of_an_unknown_window_is_rejected(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(errors.InvalidRequest, match="states none for some-model"):
                emulated.client.session("anthropic", model="some-model", compact_at=0.5)
            emulated.client.session("anthropic", model="some-model", compact_at=50_000)

    asyncio.run(main())


@pytest.mark.parametrize(
    "arguments, path",
    [
        ({"budget": 0}, "budget"),
        ({"budget": "many"}, "budget"),
        ({"budget": True}, "budget"),
        ({"budget": 10, "summary": 7}, "summary"),
    ],
)
def test_invalid_arguments_of_compact_are_named(
    emu: Emulator, arguments: dict[str, Any], path: str
) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", messages=conversation("u0", "a1"))
            with pytest.raises(errors.InvalidRequest) as caught:
                chat.compact(**arguments)
            assert caught.value.path == path

    asyncio.run(main())


def test_no_compaction_while_a_turn_is_under_way(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", messages=conversation("u0", "a1"))
            async with chat.send("u2") as events:
                await anext(events)
                with pytest.raises(errors.InvalidRequest, match="turn in flight"):
                    chat.compact(10)
                async for _ in events:
                    pass

    asyncio.run(main())


def test_empty_history_needs_no_compaction(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            assert emulated.client.session("anthropic").compact(10).dropped == 0

    asyncio.run(main())


@COMPACTED
@every
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_long_prompt_is_compacted_before_sending(emu: Emulator, name: str, stream: bool) -> None:
    """The notice names the removed messages and the boundary; `on_prefix_break="raise"` lets it pass."""

    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            chat = emulated.client.session(name, compact_at=15_000, on_prefix_break="raise")
            compactions = []
            for turn in range(8):
                if stream:
                    async for _ in chat.send(f"u{turn} {PAGE}"):
                        pass
                else:
                    await chat.send(f"u{turn} {PAGE}")
                assert chat.last is not None
                assert (chat.last.usage.input or 0) <= 16_000
                notices = [n for n in chat.last.notices if n.code == "compacted"]
                compactions.append(len(notices))
                for notice in notices:
                    assert notice.tokens is not None
                    assert notice.tokens > 0
                    frozen = notice.message.rpartition(" ")[2]
                    assert frozen in [message.id for message in chat.messages]
                assert message_texts(emulated.transport.bodies[-1]) == texts(chat)[:-1]
                assert texts(chat)[-2].startswith(f"u{turn} ")
            # Half is left to grow into: not at every turn.
            assert 0 < sum(compactions) < 5
            assert chat.messages[0].role == "user"

    asyncio.run(main())


def test_compact_at_is_a_share_of_the_models_window(emu: Emulator) -> None:
    """A preview shows it, too, and changes nothing."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            turns = conversation(*(f"{at} {PAGE}" for at in range(8)))
            chat = emulated.client.session("anthropic", messages=turns, compact_at=0.1)
            preview = chat.preview("u8")
            assert "compacted" in [notice.code for notice in preview.notices]
            assert (preview.usage.input or 0) <= 10_000
            assert len(chat.messages) == 8
            await chat.send("u8")
            assert "compacted" in codes(chat)
            assert len(chat.messages) == 4

    asyncio.run(main())


def test_compaction_changes_only_the_history(emu: Emulator) -> None:
    """System prompt, stable prefix and the new message stay; a loop stays whole."""
    loop = [
        Message.user(f"old {PAGE}"),
        Message.assistant(f"answer {PAGE}"),
        Message.user("Look."),
        Message.assistant(ToolCall("c1", "fare", '{"city":"Rome"}')),
    ]

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            ir = PromptIR(
                system_text="SYSTEM",
                segments=(
                    Segment.of(R.STABLE_PREFIX, Message.user("PREFIX")),
                    Segment(R.CONVERSATION, Conversation(loop)),
                    Segment.of(R.VOLATILE_TAIL, Message.user("STATE")),
                ),
            )
            chat = emulated.client.session(
                "anthropic", prompt=ir, compact_at=5_000, tools=registry()
            )
            await chat.send(ToolResult("c1", "89 EUR"))
            assert "compacted" in codes(chat)
            body = json.loads(emulated.transport.bodies[-1])
            assert system_texts(emulated.transport.bodies[-1]) == ["SYSTEM"]
            texts = message_texts(emulated.transport.bodies[-1])
            assert (texts[0], texts[1], texts[-1]) == ("PREFIX", "Look.", "STATE")
            kinds = [block["type"] for message in body["messages"] for block in message["content"]]
            assert kinds == ["text", "text", "tool_use", "tool_result", "text"]

    asyncio.run(main())


SMALL = "gpt-4"
"""A model with a window of 8,192 tokens."""


@pytest.mark.parametrize("compact_at", [10_000_000, 24_000], ids=["estimate off", "limit off"])
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_prompt_rejected_as_too_long_is_compacted_again(
    emu: Emulator, compact_at: int, stream: bool
) -> None:
    """With `compact_at` above the model's window: one more attempt with a shorter history."""
    page = "word " * 1_000

    async def main() -> None:
        async with connected(emu, ["openai_chat"]) as emulated:
            length = 12 if compact_at > 100_000 else 60
            turns = conversation(*(f"{at} {page}" for at in range(length)))
            chat = emulated.client.session(
                "openai_chat", model=SMALL, messages=turns, compact_at=compact_at, max_tokens=100
            )
            if stream:
                async for _ in chat.send("last"):
                    pass
            else:
                await chat.send("last")
            assert chat.last is not None
            assert [attempt.error for attempt in chat.last.attempts] == ["ContextOverflow", None]
            assert "compacted" in codes(chat)
            assert 2 < len(chat.messages) < length
            assert texts(chat)[-2] == "last"
            # Without compact_at the error is the app's to handle.
            chat = emulated.client.session("openai_chat", model=SMALL, messages=turns)
            with pytest.raises(errors.ContextOverflow):
                await chat.send("last")

    asyncio.run(main())


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_overflow_is_compacted_on_every_wire(emu: Emulator, name: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            turns = conversation(*(f"{at} " + "word " * 500 for at in range(12)))
            chat = emulated.client.session(name, messages=turns, compact_at=10_000_000)
            emulated.transport.faults = ["context-overflow", None]
            if stream:
                async for _ in chat.send("last"):
                    pass
            else:
                await chat.send("last")
            assert chat.last is not None
            assert [attempt.error for attempt in chat.last.attempts] == ["ContextOverflow", None]
            assert "compacted" in codes(chat)
            assert len(emulated.transport.bodies[1]) < len(emulated.transport.bodies[0])

    asyncio.run(main())


def test_prompt_that_cannot_be_compacted_is_an_overflow(emu: Emulator) -> None:
    """One message that is too long: the provider's error, and no second request."""

    async def main() -> None:
        async with connected(emu, ["openai_chat"]) as emulated:
            chat = emulated.client.session("openai_chat", model=SMALL, compact_at=10_000_000)
            chat.append(Message.user("word " * 20_000))
            with pytest.raises(errors.ContextOverflow) as caught:
                await chat.send()
            assert caught.value.status == 400
            assert len(emulated.transport.sent) == 1
            assert len(chat.messages) == 1

    asyncio.run(main())


@COMPACTED
def test_opening_in_a_later_prompt_does_not_undo_a_compaction(emu: Emulator) -> None:
    """Removed messages stay removed in later turns, and the prefix is stable in between."""
    opening = conversation(*(f"u{at} {PAGE}" if at % 2 == 0 else "a" for at in range(10)))

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            prompt = RenderedContext(system_stable="Ada", turns=opening)
            chat = emulated.client.session("anthropic", prompt=lambda: prompt)
            await chat.send(f"u10 {PAGE}")
            done = chat.compact(25, tokens=lambda _: 10)
            assert done.dropped == 10
            deep = chat.messages[-1].text
            for at in range(6, 9):
                await chat.send(f"u{at} {PAGE}")
                assert len(chat.messages) == 2 + 2 * (at - 5)
                assert deep in marked(emulated.transport.bodies[-1])
                if at > 6:
                    assert "prefix_breaks" not in codes(chat)

    asyncio.run(main())


@COMPACTED
def test_compacted_history_is_saved_and_restored(emu: Emulator) -> None:
    """`save` gets new messages only; an app stores the remaining ones and continues from them."""
    saved: list[Message] = []

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", system=LONG, save=saved.append)
            for at in range(3):
                await chat.send(f"u{at}")
            chat.compact(25, tokens=lambda _: 10)
            saved[:] = chat.messages
            await chat.send("u3")
            assert tuple(saved) == chat.messages
            assert len(saved) == 4
            again = emulated.client.session("anthropic", system=LONG, messages=saved)
            response = await again.send("u4")
            assert response.usage.read

    asyncio.run(main())


def test_appended_messages_survive_a_compaction(emu: Emulator) -> None:
    """It has no reply yet, so it is kept whatever is removed before it."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", messages=conversation(*"abcd"))
            chat.append(Message.user("new"))
            chat.compact(35, tokens=lambda _: 10)
            assert texts(chat) == ["c", "d", "new"]
            await chat.send()
            assert message_texts(emulated.transport.bodies[-1]) == ["c", "d", "new"]

    asyncio.run(main())


def test_ids_stay_unique_after_a_compaction(emu: Emulator) -> None:
    """The boundary id names exactly one message in a long conversation."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", messages=conversation(*"abcdefgh"))
            chat.compact(45, tokens=lambda _: 10)
            for at in range(6):
                await chat.send(f"u{at}")
            ids = [message.id for message in chat.messages]
            assert len(set(ids)) == len(ids)

    asyncio.run(main())


# ── Without async ────────────────────────────────────────────────────────────────────────────────


def test_sync_client_supports_prompts_and_compaction(emu: Emulator) -> None:
    calls: list[str] = []

    def render() -> RenderedContext:
        calls.append("called")
        return RenderedContext(system_stable=LONG, state_turn=Message.user(f"{len(calls)}"))

    config = {"providers": settings(emu.url, ["anthropic"])}
    with Client.from_config(config, environ={"KEY": "any"}) as client:
        chat = client.session("anthropic", prompt=render, compact_at=0.9)
        chat.send("One").result()
        assert calls == ["called"]
        assert chat.prompt is render
        chat.prompt = PromptIR(system_text=LONG)
        chat.send("Two").result()
        done = chat.compact(25, tokens=lambda _: 10)
        assert done.dropped == 2
        assert chat.messages[0].text == "Two"
        assert len(chat.conversation) == 2
        with pytest.raises(errors.InvalidRequest, match="prompt and system"):
            client.session("anthropic", prompt=render, system="A")
        with pytest.raises(errors.InvalidRequest, match="not int"):
            chat.prompt = 7  # type: ignore[assignment]
