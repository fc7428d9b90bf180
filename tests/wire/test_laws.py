"""The laws of SPEC G on every wire. What a wire needs for them is in `support.laws`."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some
from support.laws import anthropic, bedrock, gemini, openai_chat, openai_responses
from support.laws.case import WireCase, counts_of, grown, to_bytes
from support.tables import each_row

from anaphora import cache
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call, Continuation, Params, PartMark, PromptCachePlan, PromptIR
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tools import ToolRegistry
from anaphora.values import (
    Conversation,
    Message,
    Part,
    PartEnd,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    Usage,
    UsageUpdate,
    from_json,
    to_json,
)

MODULES = (anthropic, openai_chat, openai_responses, gemini, bedrock)
CASES = [*(module.CASE for module in MODULES), bedrock.UNMARKED]

every_wire = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


def draw_call(case: WireCase, data: st.DataObject) -> Call:
    """A call with everything that a prompt can hold."""
    frame, turns = data.draw(case.frames(), "frame"), data.draw(case.turns, "turns")
    return frame.call(grown(turns)[-1], data.draw(some.tails, "tail"))


# ── Law 1: the cacheable prefix is stable ────────────────────────────────────────────────────────


@every_wire
@given(data=st.data())
@pytest.mark.long
def test_law_1_cacheable_prefix_begins_the_next_turn(case: WireCase, data: st.DataObject) -> None:
    frame, turns = data.draw(case.frames()), data.draw(case.turns)
    state = data.draw(some.texts)
    previous: Rendered | None = None
    certificate = None
    for index, conversation in enumerate(grown(turns)):
        rendered = case.render(frame.call(conversation, f"{state} {index}"), previous)
        case.check_body(json.loads(case.assemble(rendered)))
        fingerprint = cache.fingerprint(rendered)
        if previous is not None and certificate is not None:
            assert rendered.cacheable_data().startswith(previous.cacheable_data())
            assert fingerprint.extends(certificate)
            assert fingerprint.first_difference(certificate) is None
        previous, certificate = rendered, fingerprint


@given(openai_responses.CASE.frames(), openai_responses.CASE.turns, some.texts)
def test_law_1_holds_while_a_stored_response_is_continued(
    frame: some.Frame, turns: list[list[Message]], state: str
) -> None:
    """The effective prompt grows; the body holds only messages that the chain does not."""
    case = openai_responses.CASE
    frame.around = tuple(s for s in frame.around if s.role is SegmentRole.STABLE_PREFIX)
    conversation = Conversation([Message.user("hello")])
    previous = case.render(frame.call(conversation, state))
    for index, added in enumerate(turns):
        answer = Message.assistant(f"answer {index}", id=f"a{index}")
        conversation = conversation.append(answer, Message.user("and?"), *added)
        call = frame.call(conversation, f"{state} {index}")
        ir = PromptIR(
            system_blocks=call.ir.system_blocks,
            segments=call.ir.segments,
            cache=call.ir.cache,
            continuation=Continuation(f"resp_{index}", answer.id),
        )
        rendered = case.render(Call(ir=ir, model=call.model, tools=call.tools), previous)
        assert rendered.cacheable_data().startswith(previous.cacheable_data())
        body = json.loads(case.assemble(rendered))
        assert body["previous_response_id"] == f"resp_{index}"
        assert body["input"][0]["content"] == [{"type": "input_text", "text": "and?"}]
        previous = rendered


# ── Laws 2 and 4: markers ────────────────────────────────────────────────────────────────────────


@every_wire
@given(data=st.data())
@pytest.mark.long
def test_laws_2_and_4_markers(case: WireCase, data: st.DataObject) -> None:
    call = draw_call(case, data)
    rendered = case.render(call)
    if case.exact_paths:
        check_paths(rendered, json.loads(case.assemble(rendered)))
    if call.model in case.marked_models:
        check_moved_markers(case, rendered, data)
    else:
        assert all(chunk.splice is None for chunk in rendered)
        assert rendered.markers == {}
    check_planned_markers(case, call, rendered)


def check_moved_markers(case: WireCase, rendered: Rendered, data: st.DataObject) -> None:
    """Law 2: a marker changes nothing around it."""
    assert rendered.markers == case.markers
    markable = [chunk.index for chunk in rendered if chunk.splice is not None]
    ttl = data.draw(st.sampled_from([*case.markers]))
    chosen = sorted(data.draw(st.sets(st.sampled_from(markable), max_size=4)))
    marked = case.assemble(rendered, Plan(marks=tuple(Mark(at, ttl) for at in chosen)))
    assert marked.replace(case.markers[ttl], b"") == case.assemble(rendered)
    body = json.loads(marked)
    assert len(case.find_markers(body)) == len(chosen)
    case.check_body(body)


def check_planned_markers(case: WireCase, call: Call, rendered: Rendered) -> None:
    """Law 4: the planner's markers are few, long TTLs first, and only where they are allowed."""
    plan = case.plan(rendered)
    body = json.loads(case.assemble(rendered, plan))
    case.check_body(body)
    found = case.find_markers(body)
    assert len(found) == len(plan.marks)
    if call.model not in case.marked_models:
        assert (plan.marks, plan.automatic) == ((), None)
        assert not [notice for notice in plan.notices if notice.code == "marker_left_out"]
        left_out = [notice for notice in rendered.notices if notice.code == "mark_left_out"]
        assert len(left_out) == len(call.ir.cache.marks)
        return
    # A breakpoint that the provider places takes a slot.
    assert len(found) <= (4 if plan.automatic is None else 3)
    longest_first = [*case.markers]
    ttls = [mark.ttl for mark in plan.marks]
    assert ttls == sorted(ttls, key=longest_first.index)
    for block, _ in found:
        case.check_marked(block)
    marked = [rendered.chunk(mark.chunk) for mark in plan.marks]
    assert all(chunk.role is not SegmentRole.VOLATILE_TAIL for chunk in marked)


def check_paths(rendered: Rendered, body: Any) -> None:
    """Every chunk stands at its path."""
    for chunk in rendered:
        value = body
        for step in chunk.path.replace("]", "").replace("[", ".").split("."):
            value = value[int(step) if step.isdecimal() else step]
        # Read back from the chunk, behind its glue.
        start = chunk.data.index(next(iter(value)).encode()) - 2
        assert json.JSONDecoder().raw_decode(chunk.data[start:].decode())[0] == value


# ── Laws 3, 9 and 10: equal calls give equal bytes ───────────────────────────────────────────────


@every_wire
@given(data=st.data())
@pytest.mark.long
def test_laws_3_9_and_10_stored_conversation_and_new_tail(
    case: WireCase, data: st.DataObject
) -> None:
    frame, turns = data.draw(case.frames()), data.draw(case.turns)
    live = grown(turns)[-1]
    call = frame.call(live)
    first = case.render(call)
    body = case.assemble(first, case.plan(first))
    # Law 3: a round trip through JSON or SQLite changes no byte.
    stored = from_json(to_json(live), Conversation)
    assert case.encode_planned(frame.call(stored)) == body
    assert case.encode_planned(from_json(to_json(call), Call)) == body
    assert case.encode_planned(frame.call(through_sqlite(live))) == body
    # Law 9: a replayed message renders as the live one did.
    replayed = Conversation(from_json(to_json(message), Message) for message in live)
    again = case.render(frame.call(replayed), first)
    assert again.data() == first.data()
    assert cache.fingerprint(again) == cache.fingerprint(first)
    # Law 10: a new date in the tail touches only the tail.
    monday = case.render(frame.call(live, "Today is 2026-11-16."))
    tuesday = case.render(frame.call(live, "Today is 2026-11-17."), monday)
    assert cache.fingerprint(monday) == cache.fingerprint(tuesday)
    before, after = monday.data(), tuesday.data()
    changed = next(at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    assert changed >= monday.offset(monday.cacheable)
    assert before[changed + 1 :] == after[changed + 1 :]


def through_sqlite(live: Conversation) -> Conversation:
    db = sqlite3.connect(":memory:")
    try:
        db.execute("create table messages (position integer primary key, body text)")
        db.executemany("insert into messages values (?, ?)", enumerate(map(shuffled_json, live)))
        rows = db.execute("select body from messages order by position").fetchall()
    finally:
        db.close()
    return Conversation(from_json(body, Message) for (body,) in rows)


def shuffled_json(message: Message) -> str:
    """A message as a jsonb column gives it back: keys in another order."""

    def reverse(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reverse(value[key]) for key in sorted(value, reverse=True)}
        return [reverse(item) for item in value] if isinstance(value, list) else value

    return json.dumps(reverse(json.loads(to_json(message))))


@every_wire
@given(tools=some.tools, shuffle=st.randoms(use_true_random=False))
def test_law_3_order_of_registration_changes_no_byte(
    case: WireCase, tools: tuple[Tool, ...], shuffle: random.Random
) -> None:
    def body(order: list[Tool]) -> bytes:
        registry = ToolRegistry()
        for tool in order:
            registry.add_schema(tool.name, tool.description, tool.schema, lambda **_: "")
        ir = PromptIR.chat(Conversation([Message.user("hello")]))
        call = Call(
            ir=ir, model=case.models[0], tools=registry.tools(), params=Params(max_tokens=9)
        )
        return case.encode_planned(call)

    reordered = list(tools)
    shuffle.shuffle(reordered)
    assert body(list(tools)) == body(reordered)


HASH_SEED_PROGRAM = """
from anaphora import cache, catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.tools import ToolRegistry
from anaphora.values import Conversation, Message, ToolCall
from typing import Literal

registry = ToolRegistry()
def search(query: str, kinds: list[Literal["a", "b"]] | None = None, limit: int = 3) -> str:
    '''Look something up.'''
    return query
def write(path: str, text: str) -> None:
    '''Write a file.'''
for name in {"alpha", "beta", "gamma", "delta"}:          # set order: differs by hash seed
    registry.add_schema(name, name, {"type": "object", "properties": {"x": {}}}, lambda **_: "")
for function in {search, write}:
    registry.add(function)
conversation = Conversation([
    Message.user("hi"),
    Message.assistant(ToolCall("1", "search", '{"query": "x"}')),
    Message.tool("1", "found"),
])
ir = PromptIR.chat(conversation, system=[PromptBlock.cached_long("identity", "You are terse.")])
params = Params(max_tokens=9, metadata={"a": "1", "b": "2"})
for name, provider, model in CASES:
    codec = wire.get(name)
    call = Call(ir=ir, model=model, tools=registry.tools(), params=params)
    rendered = codec.render(call, catalog.profile(provider, model))
    plan = plan_once(rendered, catalog.rules(provider, model), reuse_expected=True)
    print(codec.assemble(rendered, plan).body.join().hex(), cache.fingerprint(rendered).hex)
"""


@pytest.mark.long
def test_law_3_hash_seed_changes_no_byte() -> None:
    cases = [(case.name, case.provider, case.models[0]) for case in CASES]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", f"CASES = {cases}\n{HASH_SEED_PROGRAM}"],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42", "4711")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 2 * len(CASES)


# ── Law 11: requests round trip ──────────────────────────────────────────────────────────────────


@every_wire
@given(data=st.data())
@pytest.mark.long
def test_law_11_parsed_or_split_request_gives_the_same_bytes(
    case: WireCase, data: st.DataObject
) -> None:
    call = draw_call(case, data)
    rendered = case.render(call)
    check_split(case, call, rendered)
    while not call.ir.system_field().strip():
        # A system message that leads the conversation is read as the system prompt; a blank one is
        # left out, and the next one leads.
        normal = case.parse(case.encode(call))
        if normal == call:
            break
        call = normal
    body = case.encode(call)
    read = case.parse(body)
    # A rendered request is normalised already: the same bytes, and no notices.
    assert case.encode(read) == body
    assert case.render(read).notices == ()
    assert case.parse(case.encode(read)) == read


def check_split(case: WireCase, call: Call, rendered: Rendered) -> None:
    """A split request has the chunks of its rendering."""
    plan = case.own_plan(rendered)
    body = case.assemble(rendered, plan)
    cut = case.split(body)
    again = case.assemble(cut, Plan(marks=cut.marks, automatic=cut.automatic))
    assert json.loads(again) == json.loads(body)
    assert again == body or not case.split_keeps_bytes
    if not call.ir.system_field().strip():
        return  # a system message that leads the conversation is read as the system prompt
    assert cut.data() == rendered.data()
    if case.separate_blocks(call.model):
        assert [chunk.data for chunk in cut] == [chunk.data for chunk in rendered]
        assert [chunk.path for chunk in cut] == [chunk.path for chunk in rendered]
    if call.model in case.marked_models:
        assert [chunk.splice for chunk in cut] == [chunk.splice for chunk in rendered]
    assert cut.marks == plan.marks
    assert cut.frozen_with == rendered.frozen_with
    assert dict(cut.envelope.cache_params) == dict(rendered.envelope.cache_params)


@every_wire
@given(data=st.data(), tools=some.tools, blocks=some.blocks)
@pytest.mark.long
def test_law_11_parsed_request_equals_the_call(
    case: WireCase, data: st.DataObject, tools: tuple[Tool, ...], blocks: tuple[Any, ...]
) -> None:
    """Apart from labels, ids, policies, and all that has a notice."""
    model, params = data.draw(st.sampled_from(case.models)), data.draw(case.params)
    ir = PromptIR.chat(grown(data.draw(case.turns))[-1], system=blocks)
    call = Call(ir=ir, model=model, tools=tools, params=params)
    read = case.parse(case.encode(call))
    assert (read.model, read.params, read.extras) == (model, params, None)
    if case.separate_blocks(model):
        texts = [block.text for block in blocks if block.text.strip()]
        assert [block.text for block in read.ir.system_blocks] == texts
    else:
        text = ir.system_field()
        assert read.ir.system_field() == (text.strip() if case.strips_system else text)
    assert read.tools == tuple(
        Tool(t.name, t.description, t.schema, t.strict if case.strict_tools else None)
        for t in tools
    )
    assert case.read_back(read.ir.body_chat()) == case.project(call)


@each_row(
    "case, thought",
    [
        (anthropic.CASE, Thinking("Hm.", "", provider="anthropic")),
        (bedrock.CASE, Thinking("Hm.", provider="bedrock")),
        (bedrock.CASE, Thinking("Hm.", "", "data", provider="bedrock")),
    ],
)
def test_law_11_unsigned_reasoning_is_left_out_of_any_message(
    case: WireCase, thought: Thinking
) -> None:
    user = Message(id="u1", role="user", parts=(thought, Text("a"), Text("b")))
    plan = PromptCachePlan(marks=(PartMark("u1", (1,), "5m"),))
    ir = PromptIR.chat([user, Message(role="user", parts=(thought,))], cache=plan)
    call = Call(ir=ir, model=case.models[0], params=Params(max_tokens=64))
    rendered = case.render(call)
    assert [notice.code for notice in rendered.notices].count("unsigned_thinking") == 2
    (mark,) = rendered.marks
    assert b'"a"' in rendered.chunk(mark.chunk).data
    assert case.read_back(case.parse(case.encode(call)).ir.body_chat()) == case.project(call)


def test_law_11_reasoning_of_a_user_ends_the_turn_before() -> None:
    """The assistant's reasoning before it is not followed by anything of the assistant."""
    case, redacted = bedrock.UNMARKED, Thinking(data="_", provider="bedrock")
    turns = (
        Message(role="user", parts=(Text("hello"),)),
        Message(role="assistant", parts=(Thinking("Hm."),)),
        Message(role="user", parts=(redacted,)),
        Message(role="assistant", parts=(Text("0"),)),
    )
    call = Call(ir=PromptIR.chat(turns), model=bedrock.LLAMA, params=Params(max_tokens=64))
    read = case.read_back(case.parse(case.encode(call)).ir.body_chat())
    assert [role for role, *_ in read] == ["user", "assistant"]
    assert read == case.project(call)


# ── Laws 7 and 12: replies ───────────────────────────────────────────────────────────────────────


@every_wire
@given(data=st.data())
def test_law_7_usage_is_a_partition_of_the_input(case: WireCase, data: st.DataObject) -> None:
    encoded, expected = data.draw(case.usages)
    reply = case.codec.read_reply(json.dumps(case.reply_with_usage(encoded)).encode())
    assert counts_of(reply.usage) == counts_of(expected)
    assert reply.usage.input == expected.input
    bare = msgspec.structs.replace(reply, usage=msgspec.structs.replace(reply.usage, raw=None))
    again = case.codec.read_reply(case.codec.write_reply(bare)).usage
    assert counts_of(again) == counts_of(expected)


@pytest.mark.parametrize(
    "case, encoded, expected",
    [
        (
            openai_chat.CASE,
            {
                "prompt_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 4},
                "completion_tokens": 1,
            },
            Usage(uncached=0, read=3, written={"30m": 2}, output=1),
        ),
        (
            gemini.CASE,
            {"promptTokenCount": 5, "cachedContentTokenCount": 9, "candidatesTokenCount": 1},
            Usage(uncached=0, read=5, output=1),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, WireCase) else "",
)
def test_law_7_counts_that_overlap_are_still_a_partition(
    case: WireCase, encoded: dict[str, Any], expected: Usage
) -> None:
    """The input is the provider's total; its cache fields stay in `raw`."""
    body = json.dumps(case.reply_with_usage(encoded), separators=(",", ":"))
    usage = case.codec.read_reply(body.encode()).usage
    assert counts_of(usage) == counts_of(expected)
    assert (usage.input, usage.overlap) == (5, 2 if case is openai_chat.CASE else 4)
    assert usage.raw == json.dumps(encoded, separators=(",", ":"))


def test_law_7_empty_gemini_reply_has_no_output() -> None:
    case = gemini.CASE
    counts = {"promptTokenCount": 14, "totalTokenCount": 14}
    body = json.dumps(case.reply_with_usage(counts)).encode()
    usage = case.codec.read_reply(body).usage
    assert (usage.input, usage.output) == (14, 0)
    body = json.dumps(case.reply_with_usage({"promptTokenCount": 14})).encode()
    assert case.codec.read_reply(body).usage.output is None


@every_wire
@given(data=st.data())
def test_law_7_stream_and_single_reply_agree_and_are_written_as_read(
    case: WireCase, data: st.DataObject
) -> None:
    reply = data.draw(case.replies)
    body = case.codec.write_reply(reply)
    single = case.codec.read_reply(body)
    events = case.read_stream(case.write_stream(reply))
    end = events[-1]
    assert isinstance(end, ReplyEnd)
    case.check_reply(reply, single)
    case.check_reply(reply, end.reply)
    assert case.alike(end.reply) == case.alike(single)
    ended = {event.index: event.part for event in events if isinstance(event, PartEnd)}
    assert [ended[index] for index in sorted(ended)] == list(end.reply.message.parts)
    # Written again.
    again = case.codec.write_reply(single)
    assert case.codec.read_reply(again) == single
    if not any(part in (Text(""), Refusal("")) for part in reply.message.parts):
        # An empty part is not read back.
        assert json.loads(again) == json.loads(body)
    writer = case.codec.writer()
    stream = b"".join(writer.write(event) for event in events)
    assert case.read_stream(stream)[-1] == end


def test_law_7_a_signature_without_text_ends_a_thought() -> None:
    """So that the text of the next one does not become its own."""
    thoughts = (
        Thinking("", "", provider="gemini"),
        Thinking("", "c2ln", provider="gemini"),
        Thinking("0", provider="gemini"),
    )
    message = Message(role="assistant", parts=thoughts)
    reply = Reply(id="r1", model="gemini-3-pro", message=message, stop_reason="end")
    events = gemini.CASE.read_stream(gemini.CASE.write_stream(reply))
    assert isinstance(events[-1], ReplyEnd)
    assert events[-1].reply.message.parts == thoughts
    writer = gemini.CASE.codec.writer()
    again = b"".join(writer.write(event) for event in events)
    assert gemini.CASE.read_stream(again)[-1] == events[-1]


@each_row(
    "part",
    [Text(" ", bedrock.CITED), Text("", bedrock.CITED), Thinking(data="", provider="bedrock")],
)
def test_law_7_a_block_of_converse_may_be_empty_or_blank(part: Part) -> None:
    case = bedrock.CASE
    message = Message(role="assistant", parts=(part,))
    reply = Reply(id="", model="", message=message, stop_reason="end")
    body = case.codec.write_reply(reply)
    end = case.read_stream(case.write_stream(reply))[-1]
    assert isinstance(end, ReplyEnd)
    single = case.codec.read_reply(body)
    assert single.message.parts == end.reply.message.parts == (part,)
    assert case.codec.write_reply(single) == body


@every_wire
@given(data=st.data())
@pytest.mark.long
def test_law_12_stream_events_do_not_depend_on_chunking(
    case: WireCase, data: st.DataObject
) -> None:
    stream = data.draw(case.stream_forms(case.write_stream(data.draw(case.replies))))
    expected = case.read_stream(stream)
    assert isinstance(expected[-1], ReplyEnd)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert case.read_stream(*pieces) == expected
    assert case.read_stream(*(stream[at : at + 1] for at in range(len(stream)))) == expected


# ── Arbitrary input ──────────────────────────────────────────────────────────────────────────────


def filled(template: bytes, value: Any) -> bytes:
    return template.replace(b"%b", to_bytes(value))


@every_wire
@given(data=st.data())
def test_readers_raise_only_our_errors(case: WireCase, data: st.DataObject) -> None:
    """And a request that is read can be rendered."""
    value = data.draw(case.values | st.binary(max_size=60))
    for template in case.request_templates:
        body = filled(template, value)
        for read in (case.split, lambda body: case.render(case.parse(body))):
            try:
                read(body)
            except AnaphoraError:
                pass
    for template in case.reply_templates:
        try:
            case.codec.read_reply(filled(template, value))
        except AnaphoraError:
            pass
    assert isinstance(case.codec.read_error(500, {}, to_bytes(value)), AnaphoraError)


@pytest.mark.parametrize(
    "case, line",
    [
        (openai_chat.CASE, b'data: {"usage": {}}\n\n'),
        (gemini.CASE, b'data: {"usageMetadata": {}}\n\n'),
    ],
    ids=["openai_chat", "gemini"],
)
def test_stream_that_begins_with_usage_begins(case: WireCase, line: bytes) -> None:
    first, second, *_ = case.read_stream(line)
    assert isinstance(first, ReplyStart)
    assert isinstance(second, UsageUpdate)


@every_wire
@given(data=st.data())
def test_any_stream_begins_and_ends_once(case: WireCase, data: st.DataObject) -> None:
    templates = st.sampled_from(case.stream_templates)
    values = case.values | st.binary(max_size=60).map(lambda b: b.translate(None, b"\r\n"))
    lines = data.draw(st.lists(st.builds(filled, templates, values), min_size=1, max_size=4))
    events = case.read_stream(b"".join(map(case.framed, lines)) + data.draw(st.binary(max_size=10)))
    assert isinstance(events[0], ReplyStart)
    ends = [event for event in events if isinstance(event, ReplyEnd | ReplyFail)]
    assert ends == [events[-1]]
