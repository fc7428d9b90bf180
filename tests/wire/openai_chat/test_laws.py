"""The laws of SPEC G on Chat Completions: with breakpoints and without."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some
from support.system_place import without_places

from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import (
    Conversation,
    Document,
    Image,
    Message,
    Opaque,
    Part,
    Reply,
    ReplyEnd,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    from_json,
    to_json,
)
from anaphora.wire import openai_chat
from anaphora.wire.openai_chat.markers import MARKERS
from anaphora.wire.openai_chat.reply import read_usage, write_usage
from anaphora.wire.replies import reply_events

models = st.sampled_from(["gpt-5.6", "gpt-5", "gpt-4o"])

#: Parts of this wire's own, beside those that every wire is tried with.
own_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Opaque, st.just("openai_chat"), st.just("x"), st.just('{"type":"x","a":[1]}')),
    st.builds(Opaque, st.just("openai_chat"), st.just("message"), st.just('{"name":"n"}')),
    st.builds(
        Thinking,
        some.texts,
        provider=st.just("openai_chat"),
        extras=st.sampled_from(["reasoning", "reasoning_content", "content"]).map(
            lambda field: {"openai_chat": f'{{"field":"{field}"}}'}
        ),
    ),
)
own_messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system", "tool"]),
    parts=st.lists(
        own_parts | some.user_parts | some.assistant_parts | some.results, max_size=4
    ).map(tuple),
)
turns = st.lists(st.lists(some.messages | own_messages, max_size=4), min_size=1, max_size=5)


def of_openai(call: Call, model: str) -> Call:
    return msgspec.structs.replace(call, model=model)


def render(call: Call, previous: Rendered | None = None) -> Rendered:
    """Warm and cold rendering give the same result."""
    profile = catalog.profile("openai", call.model)
    rendered = openai_chat.render(call, profile, previous)
    cold = openai_chat.render(call, profile)
    assert rendered.data() == cold.data()
    assert [chunk.path for chunk in rendered] == [chunk.path for chunk in cold]
    assert [chunk.splice for chunk in rendered] == [chunk.splice for chunk in cold]
    assert rendered.notices == cold.notices
    one, two = rendered.envelope, cold.envelope
    assert (one.head, one.tail) == (two.head, two.tail)
    return rendered


def body_of(rendered: Rendered, plan: Plan | None = None) -> Any:
    return json.loads(openai_chat.assemble(rendered, plan or Plan()).body.join())


def grown(turns: list[list[Message]]) -> list[Conversation]:
    conversation = Conversation([Message.user("hello")])
    seen = [conversation]
    for added in turns:
        conversation = conversation.append(*added)
        seen.append(conversation)
    return seen


@given(some.frames(), turns, some.texts, models)
def test_law_1_cacheable_prefix_begins_the_next_turn(
    frame: some.Frame, turns: list[list[Message]], state: str, model: str
) -> None:
    previous: Rendered | None = None
    certificate = None
    for index, conversation in enumerate(grown(turns)):
        call = of_openai(frame.call(conversation, f"{state} {index}"), model)
        rendered = render(call, previous)
        body_of(rendered)
        fingerprint = cache.fingerprint(rendered)
        if previous is not None and certificate is not None:
            assert rendered.cacheable_data().startswith(previous.cacheable_data())
            assert fingerprint.extends(certificate)
        previous, certificate = rendered, fingerprint


@given(some.frames(), turns, st.data())
def test_law_2_moving_a_marker_changes_nothing_around_it(
    frame: some.Frame, turns: list[list[Message]], data: st.DataObject
) -> None:
    rendered = render(of_openai(frame.call(grown(turns)[-1], "now"), "gpt-5.6"))
    markable = [chunk.index for chunk in rendered if chunk.splice is not None]
    chosen = sorted(data.draw(st.sets(st.sampled_from(markable), max_size=4)))
    plan = Plan(marks=tuple(Mark(at, "30m") for at in chosen))
    marked = openai_chat.assemble(rendered, plan).body.join()
    assert marked.replace(MARKERS["30m"], b"") == openai_chat.assemble(rendered, Plan()).body.join()
    assert len(breakpoints(json.loads(marked))) == len(chosen)
    for message in json.loads(marked)["messages"]:
        assert isinstance(message.get("content", []), list)


@given(some.frames(), turns, st.none() | some.texts, models)
def test_law_4_breakpoints_are_few_and_only_where_allowed(
    frame: some.Frame, turns: list[list[Message]], state: str | None, model: str
) -> None:
    call = of_openai(frame.call(grown(turns)[-1], state), model)
    rendered = render(call)
    plan = plan_once(rendered, catalog.rules("openai", model), reuse_expected=True)
    body = body_of(rendered, plan)
    found = breakpoints(body)
    slots = 4 if plan.automatic is None else 3  # one that the provider places takes a slot
    assert len(found) <= (slots if model == "gpt-5.6" else 0)
    for role, part in found:
        assert role != "assistant"
        assert part["type"] in ("text", "image_url", "file", "input_audio")
        assert part.get("text") != ""
    assert b"cache_control" not in openai_chat.assemble(rendered, plan).body.join()


def breakpoints(body: Any) -> list[tuple[str, Any]]:
    assert "prompt_cache_breakpoint" not in json.dumps(body.get("tools", []))
    return [
        (message["role"], part)
        for message in body["messages"]
        for part in message.get("content", [])
        if "prompt_cache_breakpoint" in part
    ]


@given(some.frames(), turns, models)
def test_laws_3_and_9_stored_message_renders_the_same(
    frame: some.Frame, turns: list[list[Message]], model: str
) -> None:
    live = grown(turns)[-1]
    first = render(of_openai(frame.call(live), model))
    reloaded = from_json(to_json(live), Conversation)
    again = render(of_openai(frame.call(reloaded), model), first)
    assert again.data() == first.data()


# ── Law 7 ────────────────────────────────────────────────────────────────────────────────────────

counts = st.integers(0, 10_000)


@given(counts, counts, st.none() | counts, st.none() | counts)
def test_law_7_input_is_a_partition(
    uncached: int, output: int, read: int | None, written: int | None
) -> None:
    notices: dict[str, Any] = {
        "prompt_tokens": uncached + (read or 0) + (written or 0),
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }
    usage = read_usage(json.dumps(notices).encode(), "usage")
    assert (usage.uncached, usage.read, usage.written_total) == (uncached, read, written)
    assert usage.input == notices["prompt_tokens"]
    again = read_usage(write_usage(msgspec.structs.replace(usage, raw=None)), "usage")
    assert (again.uncached, again.read, again.written_total, again.output) == (
        uncached,
        read,
        written,
        output,
    )


def test_law_7_counts_that_overlap_are_still_a_partition() -> None:
    """The input is the provider's total; its cache fields stay in `raw`."""
    raw = (
        b'{"prompt_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":4},"completion_tokens":1}'
    )
    usage = read_usage(raw, "usage")
    assert (usage.uncached, usage.read, usage.written, usage.input) == (0, 3, {"30m": 2}, 5)
    assert usage.raw == raw.decode()


def test_usage_of_another_provider_is_converted() -> None:
    """A usage object of another provider has no counts for this wire."""
    raw = '{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}'
    usage = Usage(uncached=3, read=4, output=5, raw=raw)
    assert json.loads(write_usage(usage)) == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


# ── Law 11 ───────────────────────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[tuple[str, tuple[Part, ...]]]:
    """What of a prompt can be encoded here, as the wire has it: no ids, one role a message, results
    first, text before calls, message fields last."""
    encoded: list[tuple[str, tuple[Part, ...]]] = []
    for message in call.ir.body_chat():
        fields = [p for p in message.parts if is_fields(p)]
        if message.role == "assistant":
            spoken = [p for p in message.parts if in_assistant(p)]
            thought = [p for p in spoken if isinstance(p, Thinking)]
            content = [p for p in spoken if not isinstance(p, Thinking | ToolCall)]
            calls = [p for p in spoken if isinstance(p, ToolCall)]
            if content or calls or fields:  # reasoning alone is left out
                encoded.append(("assistant", (*thought, *content, *calls, *fields)))
            continue
        if message.role in ("user", "tool"):
            results = [part for part in message.parts if isinstance(part, ToolResult)]
            encoded += [("tool", (plain_result(part),)) for part in results]
        role = "system" if message.role == "system" else "user"
        parts = [named(p) for p in message.parts if in_list(p, role)]
        if parts:
            encoded.append((role, (*parts, *fields)))
    return encoded


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == ("openai_chat", "message")


def in_assistant(part: Part) -> bool:
    if isinstance(part, Opaque):
        return part.provider == "openai_chat" and not is_fields(part)
    if isinstance(part, Thinking):
        return part.provider == "openai_chat"
    return type(part).__name__ in ("Text", "Refusal", "ToolCall")


def in_list(part: Part, role: str) -> bool:
    if isinstance(part, Text):
        return True
    if isinstance(part, Opaque):
        return part.provider == "openai_chat" and not is_fields(part)
    if role != "user" or not isinstance(part, Image | Document):
        return False
    kind = type(part.source).__name__
    if isinstance(part, Image):
        return kind != "FileId"
    return kind == "Bytes" or getattr(part.source, "provider", "") == "openai"


def named(part: Part) -> Part:
    if isinstance(part, Document) and part.title is None and hasattr(part.source, "data"):
        pdf = getattr(part.source, "media_type", "") == "application/pdf"
        return Document(part.source, "document.pdf" if pdf else "document")
    return part


def plain_result(part: ToolResult) -> ToolResult:
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    texts = tuple(p for p in content if isinstance(p, Text) or in_list(p, "tool"))
    return ToolResult(part.call_id, texts or (Text(""),))


def comparable(parts: tuple[Part, ...]) -> list[Any]:
    """Reasoning in one field is one text, wherever in the message it stood."""
    texts: dict[str, str] = {}
    others: list[Any] = []
    for part in parts:
        if isinstance(part, Thinking) and part.extras is not None:
            field = json.loads(part.extras["openai_chat"])["field"]
            texts[field] = texts.get(field, "") + part.text
        elif is_fields(part):
            continue
        else:
            others.append(part)
    return [texts, others]


single_thought = turns.map(
    lambda turns: [
        [m for m in turn if sum(isinstance(p, Thinking) for p in m.parts) <= 1] for turn in turns
    ]
)
audio_free = single_thought.map(
    lambda turns: [
        [m for m in turn if "Audio" not in {type(p).__name__ for p in m.parts}] for turn in turns
    ]
)


@given(audio_free, some.tools, some.blocks, models)
def test_law_11_parsing_a_rendered_call_gives_the_supported_parts(
    turns: list[list[Message]], tools: tuple[Tool, ...], blocks: tuple[PromptBlock, ...], model: str
) -> None:
    params = Params(max_tokens=5, seed=1, stream=True)
    ir = PromptIR.chat(grown(turns)[-1], system=blocks, cache=PromptCachePlan(key="k"))
    call = Call(ir=ir, model=model, tools=tools, params=params)
    again = openai_chat.parse(openai_chat.assemble(render(call), Plan()).body.join())
    assert [t.text for t in again.ir.system_blocks] == [b.text for b in blocks if b.text.strip()]
    assert [
        (t.name, t.description, t.schema, t.strict) for t in again.tools if isinstance(t, Tool)
    ] == [(t.name, t.description, t.schema, t.strict) for t in tools]
    assert (again.params, again.ir.cache) == (params, call.ir.cache)
    found = [(m.role, comparable(m.parts)) for m in without_places(again.ir.body_chat())]
    assert found == [(role, comparable(parts)) for role, parts in project(call)]


@given(audio_free, some.tools, some.blocks, models)
def test_law_11_rendering_a_parsed_request_gives_the_request(
    turns: list[list[Message]], tools: tuple[Tool, ...], blocks: tuple[PromptBlock, ...], model: str
) -> None:
    """A rendered request is normalised already: the same bytes, and no notices."""
    ir = PromptIR.chat(grown(turns)[-1], system=blocks)
    rendered = render(Call(ir=ir, model=model, tools=tools))
    body = openai_chat.assemble(rendered, Plan()).body.join()
    again = render(openai_chat.parse(body))
    assert json.loads(openai_chat.assemble(again, Plan()).body.join()) == json.loads(body)
    assert again.notices == ()


@given(some.frames(), turns)
def test_split_request_assembles_again(frame: some.Frame, turns: list[list[Message]]) -> None:
    rendered = render(of_openai(frame.call(grown(turns)[-1], "now"), "gpt-5.6"))
    plan = plan_once(rendered, catalog.rules("openai", "gpt-5.6"), reuse_expected=True)
    body = openai_chat.assemble(rendered, plan).body.join()
    cut = openai_chat.split(body)
    assert openai_chat.assemble(cut, Plan(marks=cut.marks)).body.join() == body
    if rendered.runs[0].section == "system":
        # Without a system prompt a leading system message is taken for one.
        assert cut.data() == rendered.data()
        assert cut.marks == plan.marks


# ── Law 12 ───────────────────────────────────────────────────────────────────────────────────────

replies = st.builds(
    Reply,
    id=some.words,
    model=some.words,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        parts=st.lists(some.assistant_parts, max_size=4).map(tuple),
    ),
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "refusal"]),
    usage=st.builds(Usage, uncached=counts, read=st.none() | counts, output=counts),
)


@given(replies, st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_law_12_stream_events_do_not_depend_on_chunking(reply: Reply, sizes: list[int]) -> None:
    writer = openai_chat.writer()
    body = b"".join(writer.write(event) for event in reply_events(reply))
    whole = openai_chat.reader()
    expected = whole.feed(body) + whole.close()
    reader = openai_chat.reader()
    events, at = [], 0
    while at < len(body):
        size = sizes[at % len(sizes)]
        events += reader.feed(body[at : at + size])
        at += size
    assert events + reader.close() == expected
    last = expected[-1]
    assert isinstance(last, ReplyEnd)
    # A stream and a single answer say the same.
    single = openai_chat.read_reply(openai_chat.write_reply(reply))
    assert (last.reply.text, last.reply.tool_calls) == (single.text, single.tool_calls)
    assert (last.reply.stop_reason, last.reply.usage.input) == (
        single.stop_reason,
        single.usage.input,
    )


# ── Nothing but our errors ───────────────────────────────────────────────────────────────────────

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "model messages role content type text tool_calls function name arguments id choices"
                " delta message index usage prompt_tokens error code finish_reason tools stop"
                " image_url url refusal reasoning prompt_cache_breakpoint mode thinking".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values | st.binary(max_size=40))
def test_readers_raise_only_our_errors(value: Any) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    for read in (openai_chat.parse, openai_chat.split, openai_chat.read_reply):
        try:
            read(body)
        except AnaphoraError:
            pass
    openai_chat.read_error(500, {}, body)
    reader = openai_chat.reader()
    events = reader.feed(b"data: " + body.replace(b"\n", b"") + b"\n\n") + reader.close()
    assert type(events[-1]).__name__ in ("ReplyEnd", "ReplyFail")
