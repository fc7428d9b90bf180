"""What a wire cannot express gives a notice, and what it can express in part is sent in part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Earlier, Params, PromptBlock, PromptCachePlan, PromptIR, Reasoning
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Event,
    Message,
    OpaqueDelta,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    TextDelta,
    TextPieces,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolResult,
)
from anaphora.wire.replies import reply_events

MODELS = {"anthropic": "claude-sonnet-4-5", "openai_chat": "gpt-5.6", "openai_responses": "gpt-5.6"}
every_wire = pytest.mark.parametrize("name", sorted(MODELS))


def render(name: str, call: Call) -> Rendered:
    return wire.get(name).render(call, catalog.profile(wire.PROVIDERS[name], call.model))


def body(name: str, call: Call) -> Any:
    rendered = render(name, call)
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    return json.loads(wire.get(name).assemble(rendered, plan).body.join())


def call(name: str, *messages: Message, **fields: Any) -> Call:
    ir = PromptIR.chat(
        list(messages) or [Message.user("hi")],
        cache=fields.pop("cache", PromptCachePlan()),
        system=fields.pop("system", ()),
    )
    fields.setdefault("params", Params(max_tokens=9))
    return Call(ir=ir, model=MODELS[name], **fields)


def parsed(name: str, **fields: Any) -> Call:
    encoded: dict[str, Any] = {"model": MODELS[name]}
    encoded["input" if name == "openai_responses" else "messages"] = [
        {"role": "user", "content": "x"}
    ]
    if name == "anthropic":
        encoded["max_tokens"] = 5000
    return wire.get(name).parse(json.dumps(encoded | fields).encode())


def reported(rendered: Rendered, code: str) -> list[str]:
    return [notice.path for notice in rendered.notices if notice.code == code]


# ── Objects that are understood in part ──────────────────────────────────────────────────────────

IN_PART = [
    ("openai_responses", "reasoning", {"effort": "low", "context": "all_turns"}),
    ("openai_responses", "text", {"verbosity": "low", "tone": "dry"}),
    ("openai_responses", "prompt_cache_options", {"mode": "explicit", "scope": "team"}),
    ("openai_chat", "prompt_cache_options", {"mode": "explicit", "scope": "team"}),
    ("anthropic", "thinking", {"type": "enabled", "budget_tokens": 1024, "block_binding": {}}),
    ("anthropic", "output_config", {"effort": "low", "task_budget": 5}),
    ("anthropic", "metadata", {"user_id": "u", "team": "t"}),
    ("anthropic", "diagnostics", {"previous_message_id": "m", "depth": 2}),
]


@each_row("name, field, value", IN_PART)
def test_object_with_unknown_member_round_trips(
    name: str, field: str, value: dict[str, Any]
) -> None:
    requested = parsed(name, **{field: value})
    assert body(name, requested)[field] == value
    left = json.loads((requested.extras or {})[name])
    assert list(left) == [field]
    assert len(left[field]) == 1, "what is understood is a parameter, not an extra"


def test_effort_beside_unknown_field_reaches_other_wires() -> None:
    requested = parsed("openai_responses", reasoning={"effort": "low", "context": "all_turns"})
    assert requested.params.reasoning == Reasoning(effort="low")
    chat = render("openai_chat", requested)
    assert reported(chat, "foreign_fields") == ["extras.openai_responses"]
    assert body("openai_chat", requested)["reasoning_effort"] == "low"


def test_object_of_unknown_kind_is_kept() -> None:
    requested = parsed("anthropic", thinking={"type": "unheard_of", "budget_tokens": 1024})
    assert requested.params.reasoning is None
    assert body("anthropic", requested)["thinking"] == {"type": "unheard_of", "budget_tokens": 1024}


# ── Extras that repeat what is sent already ─────────────────────────────────────────────────────────


@every_wire
def test_field_in_params_and_extras_is_an_error(name: str) -> None:
    twice = call(
        name, params=Params(max_tokens=9, temperature=1), extras={name: '{"temperature":0}'}
    )
    with pytest.raises(InvalidRequest, match=rf"extras\.{name}\.temperature"):
        render(name, twice)


@every_wire
def test_prompt_field_in_extras_is_an_error(name: str) -> None:
    field = "input" if name == "openai_responses" else "messages"
    with pytest.raises(InvalidRequest, match=rf"extras\.{name}\.{field}"):
        render(name, call(name, extras={name: f'{{"{field}":[]}}'}))


def test_member_in_params_and_extras_is_an_error() -> None:
    params = Params(max_tokens=9, reasoning=Reasoning(effort="low"))
    extras = {"openai_responses": '{"reasoning":{"effort":"high"}}'}
    with pytest.raises(InvalidRequest, match=r"extras\.openai_responses\.reasoning\.effort"):
        render("openai_responses", call("openai_responses", params=params, extras=extras))


# ── What another wire left in the parts ──────────────────────────────────────────────────────────


@every_wire
def test_foreign_part_fields_give_notices_with_paths(name: str) -> None:
    cited = {"elsewhere": '{"citations":[{"cited":"a"}],"empty":[]}'}
    conversation = [
        Message.user("hi"),
        Message.assistant(Text("said", cited), ToolCall("c", "f", "{}", extras=cited)),
        Message(role="tool", parts=(ToolResult("c", (Text("r", cited),)),)),
    ]
    rendered = render(name, call(name, *conversation))
    assert reported(rendered, "foreign_fields") == [
        "conversation[1].parts[0].extras.elsewhere",
        "conversation[1].parts[1].extras.elsewhere",
        "conversation[2].parts[0].content[0].extras.elsewhere",
    ]
    assert all("citations of elsewhere" in str(notice) for notice in rendered.notices)


@pytest.mark.parametrize("name", ["anthropic", "openai_chat"])
def test_item_ids_and_states_give_no_notice(name: str) -> None:
    text = Text(
        "said",
        {
            "openai_responses": '{"annotations":[],"logprobs":[]}',
            "openai_responses.item": '{"id":"msg_1","status":"completed","phase":"final_answer"}',
        },
    )
    made = ToolCall("c", "f", "{}", extras={"openai_responses": '{"id":"fc_1","status":"done"}'})
    conversation = [
        Message.user("hi"),
        Message.assistant(text, made),
        Message(role="tool", parts=(ToolResult("c", "r"),)),
    ]
    assert reported(render(name, call(name, *conversation)), "foreign_fields") == []


@every_wire
def test_foreign_system_block_fields_give_notices(name: str) -> None:
    block = PromptBlock("rules", "Be terse.", extras={"elsewhere": '{"citations":{}}'})
    rendered = render(name, call(name, system=(block,)))
    assert reported(rendered, "foreign_fields") == ["system[0].extras.elsewhere"]


@every_wire
def test_notice_disappears_with_its_message(name: str) -> None:
    """Notices on tools are not kept with the envelope, which does not know the tools."""
    from anaphora.values import Tool

    foreign = call(name, tools=(Tool("f", extras={"elsewhere": '{"x":1}'}),))
    codec, profile = wire.get(name), catalog.profile(wire.PROVIDERS[name], MODELS[name])
    first = codec.render(foreign, profile)
    assert reported(first, "foreign_fields")
    second = codec.render(call(name, tools=(Tool("f"),)), profile, first)
    assert not reported(second, "foreign_fields")


@every_wire
def test_empty_message_gives_notice(name: str) -> None:
    rendered = render(name, call(name, Message.user("hi"), Message(role="user", parts=())))
    assert reported(rendered, "empty_message") == ["conversation[1]"]


# ── Cache options ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, whose", [("anthropic", "openai"), ("openai_responses", "anthropic")]
)
def test_law_6_a_response_to_compare_with_stays_with_its_provider(name: str, whose: str) -> None:
    plan = PromptCachePlan(diagnose=True, compare_with=Earlier(whose, "id_of_theirs"))
    rendered = render(name, call(name, cache=plan))
    assert b"id_of_theirs" not in rendered.envelope.tail
    assert "cache.compare_with" in reported(rendered, "cache_option_left_out")


def test_request_ttl_round_trips_between_openai_wires() -> None:
    for one, other in (("openai_chat", "openai_responses"), ("openai_responses", "openai_chat")):
        requested = parsed(one, prompt_cache_options={"ttl": "30m"})
        assert requested.ir.cache.automatic == "30m"
        assert body(other, requested)["prompt_cache_options"] == {"ttl": "30m"}
        assert render(other, requested).notices == ()


def test_ttl_unknown_to_chat_gives_notice() -> None:
    requested = parsed("openai_responses", prompt_cache_options={"ttl": "12h"})
    assert reported(render("openai_chat", requested), "ttl_changed") == ["cache.automatic"]
    assert body("openai_chat", requested)["prompt_cache_options"] == {"ttl": "30m"}


def test_cache_options_unknown_to_chat_give_notices() -> None:
    plan = PromptCachePlan(automatic="5m", compare_with=Earlier("openai", "r"), prewarm=True)
    old = Call(ir=PromptIR.chat([Message.user("x")], cache=plan), model="gpt-4.1")
    assert set(reported(render("openai_chat", old), "cache_option_left_out")) == {
        "cache.automatic",
        "cache.compare_with",
        "cache.prewarm",
    }


# ── Counts ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, usage",
    [
        ("openai_chat", {"prompt_tokens": -1, "completion_tokens": -2}),
        ("openai_responses", {"input_tokens": -1, "output_tokens": -2}),
        ("anthropic", {"input_tokens": -1, "output_tokens": -2}),
    ],
)
def test_negative_count_is_unknown(name: str, usage: dict[str, int]) -> None:
    read = _usage(name, usage)
    assert (read.input, read.output) == (None, None)
    assert json.loads(read.raw or "") == usage


@pytest.mark.parametrize(
    "name, total, details",
    [
        ("openai_chat", "prompt_tokens", "prompt_tokens_details"),
        ("openai_responses", "input_tokens", "input_tokens_details"),
    ],
)
def test_law_7_tokens_counted_twice_are_in_the_partition_once(
    name: str, total: str, details: str
) -> None:
    read = _usage(name, {total: 10, details: {"cached_tokens": 8, "cache_write_tokens": 5}})
    assert (read.uncached, read.read, read.written_total, read.input) == (0, 8, 2, 10)
    assert read.overlap == 3


def _usage(name: str, usage: dict[str, Any]) -> Any:
    import importlib

    module = importlib.import_module(f"anaphora.wire.{name}.reply")
    return module.read_usage(json.dumps(usage).encode())


# ── Arguments while they come ────────────────────────────────────────────────────────────────────


@every_wire
def test_arguments_are_written_as_they_come(name: str) -> None:
    """A caller that shows arguments while the model writes them must not wait for the last."""
    writer = wire.get(name).writer()
    made = ToolCall("c", "f", '{"a":1}')
    head: list[Event] = [ReplyStart("r", "m"), PartStart(0, "tool_call", "c", "f")]
    written = [
        writer.write(event)
        for event in [*head, *(ToolArgumentsDelta(0, d) for d in made.arguments)]
    ]
    assert b"".join(written[:5])
    assert all(written[5:]), "from the second on, every delta is written at once"
    message = Message(role="assistant", parts=(made,))
    reply = Reply(id="r", model="m", message=message, stop_reason="tool_calls")
    rest = writer.write(PartEnd(0, made)) + writer.write(ReplyEnd(reply))
    reader = wire.get(name).reader()
    end = (reader.feed(b"".join(written) + rest) + reader.close())[-1]
    assert isinstance(end, ReplyEnd)
    read = end.reply.tool_calls[0]
    assert (read.id, read.name, read.arguments) == ("c", "f", '{"a":1}')


@every_wire
def test_interleaved_call_arguments_are_kept_apart(name: str) -> None:
    writer = wire.get(name).writer()
    calls = ToolCall("a", "f", "[1,2,3]"), ToolCall("b", "g", "[4,5,6]")
    events: list[Event] = [ReplyStart("r", "m")]
    events += [PartStart(i, "tool_call", made.id, made.name) for i, made in enumerate(calls)]
    for letters in zip(*(made.arguments for made in calls), strict=True):
        events += [ToolArgumentsDelta(i, letter) for i, letter in enumerate(letters)]
    events += [PartEnd(1, calls[1]), PartEnd(0, calls[0])]
    reply = Reply(
        id="r", model="m", message=Message(role="assistant", parts=calls), stop_reason="tool_calls"
    )
    data = b"".join(writer.write(event) for event in [*events, ReplyEnd(reply)])
    reader = wire.get(name).reader()
    end = (reader.feed(data) + reader.close())[-1]
    assert isinstance(end, ReplyEnd)
    assert [(c.id, c.name, c.arguments) for c in end.reply.tool_calls] == [
        (c.id, c.name, c.arguments) for c in calls
    ]


# ── Kinds of deltas ──────────────────────────────────────────────────────────────────────────────

DELTAS: dict[str, type[PartDelta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_call": ToolArgumentsDelta,
}


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses", "gemini"])
def test_every_delta_is_of_its_parts_kind(name: str) -> None:
    thinking = {
        "anthropic": Thinking("hm", "signature", provider="anthropic"),
        "openai_chat": Thinking(
            "hm", provider=name, extras={name: '{"field":"reasoning_content"}'}
        ),
    }.get(name, Thinking("hm", provider=name))
    parts = (thinking, Text("Hi"), ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "{}"))
    message = Message(role="assistant", parts=parts)
    reply = Reply(id="r", model="m", message=message, stop_reason="tool_calls")
    writer, reader = wire.get(name).writer(), wire.get(name).reader()
    written = b"".join(writer.write(event) for event in reply_events(reply))
    starts: dict[int, PartStart] = {}
    kinds = []
    for event in reader.feed(written) + reader.close():
        if isinstance(event, PartStart):
            starts[event.index] = event
        elif isinstance(event, PartDelta):
            start = starts[event.index]
            kinds.append(start.kind)
            assert isinstance(event, DELTAS[start.kind])
            if isinstance(event, ToolArgumentsDelta):
                assert (event.call_id, event.name) == (start.id, start.name)
                assert (start.id, start.name) in (("c1", "f"), ("c2", "g"))
    assert kinds == ["thinking", "text", "tool_call", "tool_call"]


def test_deltas_of_a_providers_own_tool_are_opaque() -> None:
    start = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "r", "model": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"query": "Rome"}'},
        },
    ]
    reader = wire.get("anthropic").reader()
    lines = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
    deltas = [e for line in lines for e in reader.feed(line) if isinstance(e, PartDelta)]
    assert deltas == [OpaqueDelta(0, '{"query": "Rome"}')]


def test_text_pieces_are_the_text_of_the_reply() -> None:
    """Also of a part that came without deltas, and of several replies."""
    parts = (Thinking("hm"), Text("Good "), Refusal("no"), Text("morning"), ToolCall("c", "f"))
    message = Message(role="assistant", parts=parts)
    reply = Reply(id="r", model="m", message=message, stop_reason="end")
    events = reply_events(reply)
    whole = [event for event in events if event != TextDelta(1, "Good ")]
    plain, all_texts = TextPieces(), TextPieces(refusals=True)
    assert "".join(map(plain.feed, [*events, *whole])) == 2 * reply.text == 2 * "Good morning"
    assert "".join(map(all_texts.feed, [*whole, *events])) == 2 * "Good nomorning"
