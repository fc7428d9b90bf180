"""What we say before sending, and what the engine's own count says afterwards.

A slot keeps the prompt and the answer but for its last token, and reads again what the next prompt
begins with. How that is rendered is up to the chat template, which the client never sees.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.llama import Llama
from support.llama_calls import LOOK, WIRES, ask, conversation, request
from support.llama_client import LOOPING, OWN, apart, changed, registry, with_client

from anaphora.client.client import AsyncClient
from anaphora.client.response import Response
from anaphora.values import Conversation, Message

every_wire = pytest.mark.parametrize("name", WIRES)

TURNS = 20
SYSTEM = "You are a careful assistant, and you say one word at a time. " * 4


def right(answers: list[Response]) -> int:
    """How many turns were predicted within one token."""
    return sum(abs(apart(answered)) <= 1 for answered in answers)


# ── What really happens ──────────────────────────────────────────────────────────────────────────


def test_a_slot_keeps_the_prompt_and_the_answer_but_for_its_last_token(llama: Llama) -> None:
    """The engine renders and tokenizes both prompts for us: what they share, the answer between
    them, is what it then says it has read."""
    history = Conversation([Message.user("hi")])
    made = conversation(history, system=SYSTEM)
    reply = ask(llama, "openai_chat", made)
    then = conversation(history.append(reply.message, Message.user("more")), system=SYSTEM)
    kept = tokens(llama, made) + spelled(llama, reply.text)
    assert len(kept) == (reply.usage.input or 0) + (reply.usage.output or 0) - 1
    shared = common(kept, tokens(llama, then))
    assert shared == len(kept)
    assert ask(llama, "openai_chat", then).usage.read == shared


def test_a_call_of_a_tool_is_written_anew(llama: Llama) -> None:
    """The template makes the model call with a cue that its history does not have, so the next
    prompt parts from the slot before the answer begins."""
    history = Conversation([Message.user("hi")])
    made = conversation(history, system=SYSTEM, tools=(LOOK,))
    reply = ask(llama, "openai_chat", made)
    (called,) = reply.tool_calls
    then = history.append(reply.message, Message.tool(called.id, "It rains."))
    later = conversation(then, system=SYSTEM, tools=(LOOK,))
    kept, prompt = tokens(llama, made), tokens(llama, later)
    assert common(kept, prompt) == len(kept) - 1
    assert ask(llama, "openai_chat", later).usage.read == len(kept) - 1


def tokens(llama: Llama, made: Any) -> list[int]:
    """A call's prompt as the engine computes it."""
    body = json.loads(request("openai_chat", made).body.join())
    shown = llama.post("/apply-template", json.dumps(body).encode())
    return spelled(llama, json.loads(shown.body)["prompt"])


def spelled(llama: Llama, text: str) -> list[int]:
    requested = json.dumps({"content": text, "parse_special": True}).encode()
    tokens: list[int] = json.loads(llama.post("/tokenize", requested).body)["tokens"]
    return tokens


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


# ── What we say of it ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, streamed, turns",
    [
        ("openai_chat", True, TURNS),
        ("openai_responses", False, 8),
        ("anthropic", False, 8),
        *(
            pytest.param(name, streamed, TURNS, marks=pytest.mark.soak)
            for name in WIRES
            for streamed in (False, True)
        ),
    ],
)
def test_a_tool_loop_of_twenty_turns(
    start: Callable[..., Llama], name: str, streamed: bool, turns: int
) -> None:
    async def loop(client: AsyncClient) -> Any:
        chat = client.session(name, system=SYSTEM, tools=registry(), max_tokens=200)
        run = chat.run("Go on until I tell you to stop.", max_turns=turns)
        if streamed:
            async for _ in run:
                pass
        else:
            await run
        return run.result

    ran = with_client(start(template=LOOPING), loop)
    assert (ran.stop_reason, ran.turns) == ("turns", turns)
    assert all(answered.reply.tool_calls for answered in ran.responses)
    assert right(ran.responses) >= 0.95 * turns, [apart(answered) for answered in ran.responses]
    # And there was something to predict: all but the new result is read, turn after turn.
    reads = [answered.usage.read for answered in ran.responses]
    assert reads == sorted(reads)
    assert reads[-1] > reads[1] > len(SYSTEM)
    assert {answered.verdict.result for answered in ran.responses[1:]} == {"hit"}


@pytest.mark.parametrize(
    "name, rounds",
    [
        ("openai_chat", 4),
        ("openai_responses", 4),
        ("anthropic", 10),
        *(pytest.param(name, 10, marks=pytest.mark.soak) for name in WIRES if name != "anthropic"),
    ],
)
def test_questions_tools_and_answers_in_turn(
    start: Callable[..., Llama], name: str, rounds: int
) -> None:
    """Calls are rewritten, answers come back unchanged: two kinds of turn, two ends."""

    async def history(client: AsyncClient) -> list[Response]:
        chat = client.session(name, system=SYSTEM, tools=registry(), max_tokens=200)
        answers: list[Response] = []
        for turn in range(rounds):
            answers += (await chat.run(f"Question {turn}: how is the weather?")).responses
        return answers

    answers = with_client(start(), history)
    assert [bool(answered.reply.tool_calls) for answered in answers] == [True, False] * rounds
    assert right(answers) >= 0.95 * 2 * rounds, [apart(answered) for answered in answers]


#: What a template may do, and from which turn on it is known.
_OPENING = "<|turn|>{{ message.role }}\n"
_CUED = changed(
    LOOPING,
    _OPENING,
    _OPENING + "{% if tools and message.role == 'assistant' %}<|act|>{% endif -%}\n",
)
_COMPACT = changed(
    _CUED, "asked.arguments | tojson", "asked.arguments | tojson(separators=(',', ':'))"
)


@pytest.mark.parametrize(
    "name, template",
    [
        *(pytest.param(name, _CUED, id=f"{name}-spaced") for name in WIRES),
        pytest.param("openai_chat", _COMPACT, id="openai_chat-compact"),
        *(
            pytest.param(name, _COMPACT, id=f"{name}-compact", marks=pytest.mark.soak)
            for name in WIRES
            if name != "openai_chat"
        ),
    ],
)
def test_a_call_that_is_kept_in_part(start: Callable[..., Llama], name: str, template: str) -> None:
    """The history has the cue, and the call is written with other spaces than the model put there:
    the prompts part in the middle of the answer. That is only known from a bill."""

    async def loop(client: AsyncClient) -> Any:
        chat = client.session(name, system=SYSTEM, tools=registry(), max_tokens=200)
        return await chat.run("Go on.", max_turns=6)

    answers = with_client(start(template=template), loop).responses
    first, taught, *others = map(apart, answers)
    assert first == 0
    assert taught > 1
    assert others == [0] * 4


_THINKING = changed(OWN, "{%- elif last.content and 'think' in last.content -%}", "{%- else -%}")
_THINKING = changed(
    _THINKING, "\n{%- elif last.content and 'accent' in last.content -%}<|accent|>", ""
)


@every_wire
def test_thinking(start: Callable[..., Llama], name: str) -> None:
    """The cue that makes the model think is not in the history either."""

    async def history(client: AsyncClient) -> list[Response]:
        chat = client.session(name, system=SYSTEM, max_tokens=200)
        return [await chat.send(f"Question {turn}?") for turn in range(4)]

    answers = with_client(start(template=_THINKING), history)
    assert all(len(answered.reply.message.parts) == 2 for answered in answers)
    assert right(answers) == 4, [apart(answered) for answered in answers]


@every_wire
def test_a_state_that_is_sent_once(start: Callable[..., Llama], name: str) -> None:
    """What was true of one call stands at its end and is gone in the next. How long it is, is an
    estimate the first time; after that only what it got longer by."""

    async def history(client: AsyncClient) -> list[Response]:
        hours = iter(range(10, 24))
        chat = client.session(
            name, system=SYSTEM, state=lambda: f"It is {next(hours)} o'clock.", max_tokens=50
        )
        return [await chat.send(f"Question {turn}?") for turn in range(6)]

    answers = with_client(start(), history)
    assert right(answers[2:]) == 4, [apart(answered) for answered in answers]


@every_wire
def test_one_unusual_turn_does_not_change_predictions(
    start: Callable[..., Llama], name: str
) -> None:
    """`accent` has a cue of its own. The next turn is as usual."""

    async def history(client: AsyncClient) -> list[Response]:
        chat = client.session(name, system=SYSTEM, max_tokens=50)
        questions = ("hi", "hi again", "accent", "so", "and so", "on")
        return [await chat.send(text) for text in questions]

    *usual, odd, after, later = with_client(start(), history)
    assert right(usual) == 3
    assert abs(apart(odd)) > 1
    assert right([after, later]) == 2


@every_wire
def test_a_preview_predicts_the_same_and_sends_nothing(
    start: Callable[..., Llama], name: str
) -> None:
    async def history(client: AsyncClient) -> Any:
        chat = client.session(name, system=SYSTEM, max_tokens=50)
        await chat.send("hi")
        await chat.send("more")
        predicted = [chat.preview("and more").usage.read for _ in range(3)]
        return predicted, await chat.send("and more")

    predicted, answered = with_client(start(), history)
    assert predicted == [answered.usage.read] * 3 == [answered.record.predicted] * 3


@every_wire
def test_a_new_conversation_reads_what_another_began_with(
    start: Callable[..., Llama], name: str
) -> None:
    """It has no bill of its own, but others have shown how many tokens the server counts."""

    async def history(client: AsyncClient) -> Response:
        for question in ("One?", "Two?"):
            answered = await client.session(name, system=SYSTEM, max_tokens=50).send(question)
        return answered

    answered = with_client(start(), history)
    assert (answered.usage.read or 0) > len(SYSTEM)
    assert answered.record.predicted == pytest.approx(answered.usage.read, rel=0.05)
