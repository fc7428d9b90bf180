"""An independent engine accepts what we send, and all of its answers are read."""

from __future__ import annotations

import json
import re

import pytest
from support.llama import Llama
from support.llama_calls import (
    LOOK,
    NOW,
    WIRES,
    ask,
    call,
    conversation,
    rendered,
    request,
    streaming,
)
from support.roundtrip import RecordedExchange
from support.roundtrip.rules import check

from anaphora import wire
from anaphora.prompt import (
    BlockMark,
    Call,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.rendered import Plan
from anaphora.values import Conversation, Message, Text, Thinking, ToolCall, ToolResult

every_wire = pytest.mark.parametrize("name", WIRES)

#: All that the tiny model ever says: a capital, six small letters, a full stop.
WORD = re.compile(r"[A-Z][a-d][e-h][i-l][m-p][q-t][u-z]\.")


@every_wire
def test_text(llama: Llama, name: str) -> None:
    reply = ask(llama, name, call("hi"))
    assert WORD.fullmatch(reply.text)
    assert [type(part) for part in reply.message.parts] == [Text]
    assert (reply.stop_reason, reply.model) == ("end", "tiny")
    assert reply.id
    assert reply.usage.output == len("Capital.") + 1


def test_one_call_is_one_prompt_on_every_wire(llama: Llama) -> None:
    """The engine counts what it was given after its chat template, and says how much of it is what
    it was given before: nothing went missing on the way to any of its three doors."""
    made = call("hi", Message.assistant("What?"), "Say a word.", system="You are terse.")
    turns = ("system", "You are terse.", "user", "hi", "assistant", "What?", "user", "Say a word.")
    # A turn begins and ends with a token and has two line feeds; the answer's is only begun.
    tokens = sum(map(len, turns)) + 4 * 4 + len("assistant") + 2
    ask(llama, WIRES[-1], made)
    for name in WIRES:
        usage = ask(llama, name, made).usage
        assert usage.input == tokens
        # The last token is always computed: it is what the answer follows from.
        assert usage.read == tokens - 1


@every_wire
def test_every_turn_reaches_the_model(llama: Llama, name: str) -> None:
    history = [call(*(f"turn {at} of {turns}" for at in range(turns))) for turns in (1, 2, 5)]
    one, two, five = (ask(llama, name, made).usage.input or 0 for made in history)
    assert 0 < one < two < five


@every_wire
def test_a_length_limit_cuts(llama: Llama, name: str) -> None:
    whole, cut = ask(llama, name, call("hi")), ask(llama, name, call("hi", max_tokens=3))
    assert cut.text == whole.text[:3]
    assert cut.usage.output == 3
    # What a cut response is called is in test_llama_deviations.py.
    assert name == "openai_responses" or cut.stop_reason == "length"


@pytest.mark.parametrize("name, stop", [("anthropic", "stop_sequence"), ("openai_chat", "end")])
def test_a_stop_sequence_stops(llama: Llama, name: str, stop: str) -> None:
    reply = ask(llama, name, call("hi", stop=(".",)))
    assert WORD.fullmatch(reply.text + ".")
    assert reply.stop_reason == stop
    assert reply.stop_sequence == ("." if name == "anthropic" else None)


def test_responses_have_no_stop_sequences_with_a_notice(llama: Llama) -> None:
    made = rendered("openai_responses", call("hi", stop=(".",)))
    assert [notice.path for notice in made.notices] == ["params.stop"]
    assert WORD.fullmatch(ask(llama, "openai_responses", made).text)


@every_wire
@pytest.mark.parametrize(
    "choice",
    [None, ToolChoice("auto"), ToolChoice("required"), ToolChoice("tool", "look")],
    ids=["unsaid", "auto", "required", "named"],
)
def test_a_tool_is_called(llama: Llama, name: str, choice: ToolChoice | None) -> None:
    """Forced, the engine holds the model to a grammar; asked, the tiny model always calls."""
    reply = ask(llama, name, call("hi", tools=(LOOK,), tool_choice=choice))
    (made,) = reply.tool_calls
    assert reply.message.parts == (made,)
    assert reply.stop_reason == "tool_calls"
    assert made.name == "look"
    assert made.id
    arguments = json.loads(made.arguments)
    assert WORD.fullmatch(arguments.pop("city"))
    assert isinstance(arguments.pop("days"), int)
    assert not arguments


@every_wire
def test_a_tool_without_parameters_is_called(llama: Llama, name: str) -> None:
    (made,) = ask(llama, name, call("hi", tools=(NOW,))).tool_calls
    assert (made.name, made.arguments) == ("now", "{}")


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
def test_several_tools_are_called_at_once(llama: Llama, name: str) -> None:
    """Not allowed to end its turn (token 2), the model calls on until it is cut."""
    bias = {name: '{"logit_bias":[[2,false]]}'}
    made = call("hi", tools=(LOOK,), extras=bias, tool_choice=ToolChoice("required"))
    calls = ask(llama, name, made).tool_calls
    assert len(calls) > 2
    assert len({one.id for one in calls}) == len(calls)
    for one in calls[:-1]:
        assert set(json.loads(one.arguments)) == {"city", "days"}
    # The last one is what there is of it: text, not an object.
    assert calls[0].arguments.startswith(calls[-1].arguments[:8])


@every_wire
def test_a_result_is_fed_back(llama: Llama, name: str) -> None:
    history = Conversation([Message.user("Is it raining?")])
    reply = ask(llama, name, conversation(history, tools=(LOOK,)))
    (made,) = reply.tool_calls
    history = history.append(reply.message, Message.tool(made.id, "It rains."))
    closing = ask(llama, name, conversation(history, tools=(LOOK,)))
    assert WORD.fullmatch(closing.text)
    assert closing.stop_reason == "end"
    bare = ask(llama, name, conversation(history.prefix(1), tools=(LOOK,)))
    added = (closing.usage.input or 0) - (bare.usage.input or 0)
    assert (
        added > len(f'<tool_call>{{"name": "look", "arguments": {made.arguments}}}It rains.') - 20
    )


@every_wire
def test_results_of_several_calls_are_fed_back(llama: Llama, name: str) -> None:
    history = (
        Message.user("hi"),
        Message.assistant(
            "Let me see.",
            ToolCall("one", "look", '{"city": "Ulm", "days": 2}'),
            ToolCall("two", "now", "{}"),
        ),
        Message(
            role="tool",
            parts=(
                ToolResult("one", (Text("It"), Text("rains."))),
                ToolResult("two", "late", True),
            ),
        ),
    )
    reply = ask(llama, name, call(*history, tools=(LOOK, NOW)))
    assert WORD.fullmatch(reply.text)


@every_wire
def test_reasoning_is_read_and_given_back(llama: Llama, name: str) -> None:
    history = Conversation([Message.user("think")])
    reply = ask(llama, name, conversation(history))
    thought, text = reply.message.parts
    assert isinstance(thought, Thinking)
    assert re.fullmatch("[0-4][5-9]", thought.text)
    assert WORD.fullmatch(reply.text)
    history = history.append(reply.message, Message.user("hi"))
    with_it = ask(llama, name, conversation(history))
    without = (history[0], Message.assistant(text), history[2])
    again = ask(llama, name, call(*without))
    tokens = len(thought.text) + 2  # and where it begins and ends
    assert (with_it.usage.input or 0) - (again.usage.input or 0) == tokens


def test_structured_output_by_schema(llama: Llama) -> None:
    schema = (
        '{"additionalProperties":false,"properties":{"name":{"type":"string"},'
        '"kind":{"enum":["cat","dog"]},"ages":{"items":{"type":"integer"},"maxItems":2,'
        '"minItems":2,"type":"array"}},"required":["name","kind","ages"],"type":"object"}'
    )
    reply = ask(llama, "openai_chat", call("hi", output=OutputSchema(schema)))
    decoded = json.loads(reply.text)
    assert list(decoded) == ["name", "kind", "ages"]
    assert WORD.fullmatch(decoded["name"])
    assert decoded["kind"] in ("cat", "dog")
    assert len(decoded["ages"]) == 2


@pytest.mark.parametrize(
    "name, model",
    [
        ("anthropic", "claude-sonnet-4-5"),
        ("openai_chat", "gpt-5.6"),
        ("openai_responses", "gpt-5.6"),
    ],
)
def test_marked_requests_are_taken(llama: Llama, name: str, model: str) -> None:
    """Markers of ours and of the caller's: an engine that knows none of them reads around them."""
    plan = PromptCachePlan(marks=(BlockMark(0), PartMark("q")))
    ir = PromptIR.chat(
        [
            Message(id="q", role="user", parts=(Text("hi"),)),
            Message.assistant("What?"),
            Message.user("again"),
        ],
        system=[PromptBlock.cached_long("identity", "You are terse."), PromptBlock("x", "Or not.")],
        cache=plan,
    )
    made = Call(ir=ir, model=model, tools=(LOOK,), params=Params(max_tokens=100))
    ours = rendered(name, made)
    assert len(ours.marks) == 2
    theirs = wire.get(name).assemble(ours, Plan(marks=ours.marks, automatic=ours.automatic))
    marker = b"cache_control" if name == "anthropic" else b"prompt_cache_breakpoint"
    planned = request(name, ours)
    assert theirs.body.join().count(marker) == 2
    assert planned.body.join().count(marker) > 2
    bare = wire.get(name).assemble(ours, Plan())
    counts = set()
    for one in (theirs, planned, bare):
        given = llama.send(one)
        assert given.status == 200
        counts.add(wire.get(name).read_reply(given.body).usage.input)
    assert len(counts) == 1


@every_wire
def test_every_parameter_is_taken(llama: Llama, name: str) -> None:
    made = call(
        "hi",
        temperature=0.0,
        top_p=0.9,
        top_k=4,
        seed=3,
        user="someone",
        metadata={"user_id": "someone"},
        service_tier="auto",
        store=False,
        verbosity="low",
        frequency_penalty=0.0,
        presence_penalty=0.0,
        reasoning=Reasoning(effort="low"),
    )
    assert WORD.fullmatch(ask(llama, name, made).text)


@every_wire
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "made",
    [
        call("hi", system="You are terse."),
        call("think"),
        call("hi", max_tokens=3),
        call("hi", stop=(".",)),
        call("hi", tools=(LOOK, NOW), tool_choice=ToolChoice("required")),
        call("hi", tools=(LOOK,), max_tokens=40),
        call("x" * 20_000),
    ],
    ids=["text", "thinking", "cut", "stopped", "tool", "cut-tool", "overflow"],
)
def test_an_exchange_round_trips_without_loss(
    llama: Llama, name: str, made: Call, streamed: bool
) -> None:
    made = streaming(made) if streamed else made
    sent = request(name, made)
    given = llama.send(sent)
    outcome = check(
        RecordedExchange(
            id="live",
            wire=name,
            request=sent.body.join().decode(),
            response=given.body.decode(),
            status=given.status,
            stream=streamed,
        )
    )
    assert outcome.good, outcome
