"""Streams of a real engine, cut anywhere: the same events, and the same answer as without one."""

from __future__ import annotations

import pytest
from support.llama import Llama
from support.llama_calls import LOOK, NOW, WIRES, ask, call, read, stream

from anaphora.prompt import Call, ToolChoice
from anaphora.values import (
    Event,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
)

every_wire = pytest.mark.parametrize("name", WIRES)

FORCED = ToolChoice("required")
CALLS = {
    "text": call("hi", system="You are terse."),
    "several turns": call("one", "two", "three"),
    "thinking": call("think"),
    "two bytes a character": call("accent"),
    "cut": call("hi", max_tokens=3),
    "stopped": call("hi", stop=(".",)),
    "a tool": call("hi", tools=(LOOK,), tool_choice=FORCED),
    "a tool without parameters": call("hi", tools=(NOW,), tool_choice=FORCED),
    "a tool, cut": call("hi", tools=(LOOK,), tool_choice=FORCED, max_tokens=44),
}
#: A single answer of /v1/messages does not have the input of a call that was cut: that is in
#: test_llama_deviations.py.
COMPARABLE = [
    pytest.param(name, made, id=f"{kind}-{name}")
    for name in WIRES
    for kind, made in CALLS.items()
    if (name, kind) != ("anthropic", "a tool, cut")
]
every_call = pytest.mark.parametrize("made", CALLS.values(), ids=CALLS)


def ended(events: list[Event]) -> Reply:
    assert isinstance(events[-1], ReplyEnd), events[-1]
    return events[-1].reply


def meant(part: Part) -> tuple[object, ...]:
    """What two answers to one question share: not their ids."""
    match part:
        case Text() | Thinking():
            return type(part), part.text
        case ToolCall():
            return type(part), part.name, part.arguments
    raise AssertionError(part)


@every_wire
@every_call
def test_however_it_is_cut_the_events_are_the_same(llama: Llama, name: str, made: Call) -> None:
    body = stream(llama, name, made)
    whole = read(name, body)
    for size in (1, 7, 4096):
        assert read(name, body, size) == whole


@every_wire
@every_call
def test_a_stream_is_well_formed(llama: Llama, name: str, made: Call) -> None:
    events = read(name, stream(llama, name, made))
    assert isinstance(events[0], ReplyStart)
    reply = ended(events)
    open_parts: dict[int, str] = {}
    whole: dict[int, Part] = {}
    for event in events[1:]:
        match event:
            case PartStart():
                assert event.index not in open_parts
                open_parts[event.index] = ""
            case PartDelta():
                open_parts[event.index] += event.delta
            case PartEnd():
                part, text = event.part, open_parts.pop(event.index)
                assert text == (part.arguments if isinstance(part, ToolCall) else part.text)  # type: ignore[union-attr]
                whole[event.index] = part
            case ReplyStart() | ReplyFail():
                raise AssertionError(event)
    assert not open_parts
    # What an item is called may change with the last event; what it says may not.
    assert [meant(whole[at]) for at in sorted(whole)] == [meant(p) for p in reply.message.parts]


@pytest.mark.parametrize("name, made", COMPARABLE)
def test_a_stream_equals_a_whole_answer(llama: Llama, name: str, made: Call) -> None:
    single, streamed = ask(llama, name, made), ended(read(name, stream(llama, name, made)))
    assert [meant(p) for p in streamed.message.parts] == [meant(p) for p in single.message.parts]
    assert (streamed.stop_reason, streamed.stop_sequence) == (
        single.stop_reason,
        single.stop_sequence,
    )
    assert streamed.usage.output == single.usage.output
    if made is not CALLS["two bytes a character"]:  # where a beginning is missing, so are counts
        assert streamed.usage.input == single.usage.input
        assert streamed.model == single.model


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
def test_several_calls_in_a_stream_stay_apart(llama: Llama, name: str) -> None:
    """Not allowed to end its turn (token 2), the model calls on until it is cut."""
    bias = {name: '{"logit_bias":[[2,false]]}'}
    made = call("hi", tools=(LOOK,), extras=bias, tool_choice=FORCED)
    single, body = ask(llama, name, made), stream(llama, name, made)
    streamed = ended(read(name, body, 7))
    assert len(streamed.tool_calls) > 2
    assert len({one.id for one in streamed.tool_calls}) == len(streamed.tool_calls)
    assert [meant(one) for one in streamed.tool_calls] == [meant(one) for one in single.tool_calls]


@every_wire
def test_a_stream_that_breaks_off_is_a_failure_with_what_there_is(llama: Llama, name: str) -> None:
    body = stream(llama, name, call("hi"))
    whole = ended(read(name, body)).text
    for share in (0.4, 0.6, 0.8):
        broken = read(name, body[: int(len(body) * share)])[-1]
        if isinstance(broken, ReplyFail):
            assert broken.error == "Transport"
            assert broken.partial is not None
            assert whole.startswith(broken.partial.text)
        else:
            # Chat's reason to stop had come already; only the count is missing.
            assert name == "openai_chat"
            assert ended([broken]).text == whole
