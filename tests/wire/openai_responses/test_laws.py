"""The laws of SPEC G on the Responses wire: with breakpoints and without, warm and cold alike."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some
from support.system_place import without_places

from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call, Continuation
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import (
    Conversation,
    Document,
    Image,
    Message,
    Opaque,
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
    ToolCall,
    ToolResult,
    Usage,
    from_json,
    to_json,
)
from anaphora.wire import openai_responses as wire
from anaphora.wire.replies import reply_events

#: A model with breakpoints and a system message, and two without.
MODELS = ("gpt-5.6", "gpt-5", "gpt-4o")
WIRE, ITEM = "openai_responses", "openai_responses.item"

own_thinking = st.builds(
    lambda name, text, data: Thinking(
        text,
        data=data,
        provider=WIRE,
        extras={
            WIRE: json.dumps(
                {"id": name, "summary": [{"type": "summary_text", "text": text}] if text else []},
                separators=(",", ":"),
                ensure_ascii=False,
            )
        },
    ),
    some.words,
    some.texts,
    st.none() | some.texts,
)
items = st.sampled_from(
    [
        Opaque(WIRE, "compaction", '{"type":"compaction","id":"c","encrypted_content":"x"}'),
        Opaque(WIRE, "web_search_call", '{"type":"web_search_call","id":"w","status":"completed"}'),
        Opaque(WIRE, "input_audio", '{"type":"input_audio","data":"x"}'),
        Opaque(WIRE, "additional_tools", '{"type":"additional_tools","role":"developer"}'),
    ]
)
output_messages = st.builds(
    lambda name, text, phase: Text(
        text, {WIRE: '{"annotations":[]}', ITEM: f'{{"id":"{name}","phase":"{phase}"}}'}
    ),
    some.words,
    some.texts,
    st.sampled_from(["commentary", "final_answer"]),
)
answers: st.SearchStrategy[Message] = st.builds(
    lambda parts: Message(role="assistant", parts=tuple(parts)),
    st.lists(
        st.one_of(
            own_thinking,
            output_messages,
            st.builds(Text, some.texts, st.just({WIRE: '{"annotations":[]}'})),
            st.builds(Refusal, some.texts),
            st.builds(
                ToolCall, some.words, some.words, some.arguments, st.just({WIRE: '{"id":"fc"}'})
            ),
            items.filter(lambda item: item.kind != "input_audio"),
        ),
        max_size=4,
    ),
)
others: st.SearchStrategy[Message] = st.builds(
    lambda part: Message(role="user", parts=(Text("so"), part, Text("well"))), items
)
turns = st.lists(st.lists(some.messages | answers | others, max_size=4), min_size=1, max_size=4)


@st.composite
def frames(draw: st.DrawFn) -> some.Frame:
    frame = draw(some.frames())
    frame.model = draw(st.sampled_from(MODELS))
    return frame


def render(call: Call, previous: Rendered | None = None) -> Rendered:
    """A rendering; a warm one is what a cold one gives."""
    profile = catalog.profile("openai", call.model)
    rendered = wire.render(call, profile, previous)
    if previous is not None:
        cold = wire.render(call, profile)
        assert rendered.data() == cold.data()
        assert [c.path for c in rendered] == [c.path for c in cold]
        assert [c.splice for c in rendered] == [c.splice for c in cold]
        assert rendered.notices == cold.notices
        assert rendered.marks == cold.marks
        bodies = {wire.assemble(r, Plan(marks=r.marks)).body.join() for r in (rendered, cold)}
        assert len(bodies) == 1
    return rendered


def encoded(call: Call) -> bytes:
    """The request with the caller's own marks and no others."""
    rendered = render(call)
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    return wire.assemble(rendered, plan).body.join()


def grown(turns: list[list[Message]]) -> list[Conversation]:
    conversation = Conversation([Message.user("hello")])
    seen = [conversation]
    for added in turns:
        conversation = conversation.append(*added)
        seen.append(conversation)
    return seen


@given(frames(), turns, some.texts)
def test_law_1_cacheable_prefix_begins_the_next_turn(
    frame: some.Frame, turns: list[list[Message]], state: str
) -> None:
    previous: Rendered | None = None
    certificate = None
    for index, conversation in enumerate(grown(turns)):
        rendered = render(frame.call(conversation, f"{state} {index}"), previous)
        json.loads(wire.assemble(rendered, Plan()).body.join())
        fingerprint = cache.fingerprint(rendered)
        if previous is not None and certificate is not None:
            assert rendered.cacheable_data().startswith(previous.cacheable_data())
            assert fingerprint.extends(certificate)
        previous, certificate = rendered, fingerprint


@given(frames(), turns, some.texts)
def test_law_1_holds_while_a_stored_response_is_continued(
    frame: some.Frame, turns: list[list[Message]], state: str
) -> None:
    """The effective prompt grows; the body holds only messages that the chain does not."""
    frame.around = tuple(s for s in frame.around if s.role is SegmentRole.STABLE_PREFIX)
    conversation = Conversation([Message.user("hello")])
    previous = render(frame.call(conversation, state))
    for index, added in enumerate(turns):
        answer = Message.assistant(f"answer {index}", id=f"a{index}")
        conversation = conversation.append(answer, Message.user("and?"), *added)
        call = frame.call(conversation, f"{state} {index}")
        stored = Continuation(f"resp_{index}", answer.id)
        ir = call.ir.__class__(
            system_blocks=call.ir.system_blocks,
            segments=call.ir.segments,
            cache=call.ir.cache,
            continuation=stored,
        )
        rendered = render(Call(ir=ir, model=call.model, tools=call.tools), previous)
        assert rendered.cacheable_data().startswith(previous.cacheable_data())
        body = json.loads(wire.assemble(rendered, Plan()).body.join())
        assert body["previous_response_id"] == f"resp_{index}"
        assert body["input"][0]["content"] == [{"type": "input_text", "text": "and?"}]
        previous = rendered


@given(frames(), turns, st.data())
def test_law_2_moving_a_marker_changes_nothing_around_it(
    frame: some.Frame, turns: list[list[Message]], data: st.DataObject
) -> None:
    rendered = render(frame.call(grown(turns)[-1], "now"))
    markable = [chunk.index for chunk in rendered if chunk.splice is not None]
    bare = wire.assemble(rendered, Plan()).body.join()
    if frame.model != "gpt-5.6":
        assert markable == []
        assert rendered.markers == {}
        return
    chosen = sorted(data.draw(st.sets(st.sampled_from(markable), max_size=4)))
    marked = wire.assemble(rendered, Plan(marks=tuple(Mark(at, "30m") for at in chosen)))
    marker = b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}'
    assert marked.body.join().replace(marker, b"") == bare
    body = json.loads(marked.body.join())
    assert len(breakpoints(body)) == len(chosen)
    for item in body["input"]:
        if item["type"] == "message" and item["role"] != "assistant":
            assert isinstance(item["content"], list)


@given(frames(), turns)
def test_law_3_a_round_trip_through_json_changes_no_byte(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    live = grown(turns)[-1]
    reloaded = from_json(to_json(live), Conversation)
    assert encoded(frame.call(live)) == encoded(frame.call(reloaded))


@given(frames(), turns, st.none() | some.texts)
def test_law_4_markers_are_few_falling_and_only_where_allowed(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    call = frame.call(grown(turns)[-1], state)
    rendered = render(call)
    plan = plan_once(rendered, catalog.rules("openai", call.model), reuse_expected=True)
    body = json.loads(wire.assemble(rendered, plan).body.join())
    found = breakpoints(body)
    # The provider's own takes one of the four.
    slots = 4 if plan.automatic is None else 3  # one that the provider places takes a slot
    assert len(found) <= (slots if frame.model == "gpt-5.6" else 0)
    ttls = [part["prompt_cache_breakpoint"]["ttl"] for part in found]
    assert ttls == sorted(ttls, key=["12h", "30m"].index)
    for part in found:
        assert part["type"].startswith("input_")
        assert part.get("text") != ""


def breakpoints(body: Any) -> list[dict[str, Any]]:
    """Every part that carries a breakpoint, in hash order."""
    found = []
    for item in body["input"]:
        inside = item.get("content") or item.get("output") or ()
        found += [p for p in inside if isinstance(p, dict) and "prompt_cache_breakpoint" in p]
    assert json.dumps(body).count("prompt_cache_breakpoint") == len(found)
    return found


@given(frames(), turns)
def test_law_10_a_new_date_in_the_tail_touches_only_the_tail(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    conversation = grown(turns)[-1]
    monday = render(frame.call(conversation, "Today is 2026-11-16."))
    tuesday = render(frame.call(conversation, "Today is 2026-11-17."), monday)
    assert cache.fingerprint(monday) == cache.fingerprint(tuesday)


@given(frames(), turns, st.none() | some.texts)
def test_law_11_parsed_request_renders_the_same_bytes(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    call = frame.call(grown(turns)[-1], state)
    if not call.ir.system_field().strip():
        # A system message that leads the input is the system prompt: encoded as one.
        call = wire.parse(encoded(call))
    body = encoded(call)
    read = wire.parse(body)
    assert encoded(read) == body
    assert wire.parse(encoded(read)) == read


@given(frames(), turns)
def test_law_11_parsed_request_equals_the_call(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    """`project` drops labels, ids, policies, and all that has a notice."""
    frame.around = ()
    talk = grown(turns)[-1]
    call = wire.parse(encoded(frame.call(talk)))
    messages = without_places(call.ir.body_chat())
    read = [(message.role, list(message.parts)) for message in messages]
    assert read == projected(talk)
    texts = [block.text for block in frame.blocks if block.text.strip()]
    blocks = [block.text for block in call.ir.system_blocks]
    if frame.model == "gpt-5.6":
        assert blocks == texts
    else:
        assert blocks == ([joined] if (joined := "\n\n".join(texts).strip()) else [])
    assert call.tools == tuple(Tool(t.name, t.description, t.schema, t.strict) for t in frame.tools)


def projected(talk: Conversation) -> list[tuple[str, list[Part]]]:
    """The messages as this wire can say them: who speaks is decided item by item, and what the
    assistant encoded in a row is one message."""
    messages: list[tuple[str, list[Part]]] = []
    for index, message in enumerate(talk):
        inside = False
        for at, part in enumerate(message.parts):
            found = _meant(part, message, at, inside)
            if found is None or (isinstance(part, Thinking) and not _followed(talk, index, at)):
                continue
            role, meant, content = found
            begins = not inside or ITEM in (getattr(part, "extras", None) or ())
            goes_on = role == "assistant" and messages and messages[-1][0] == "assistant"
            if goes_on and isinstance(meant, Text) and not meant.extras and not inside:
                meant = _apart(meant, messages[-1][1])
            if goes_on or (content and not begins):
                messages[-1][1].append(meant)
            else:
                messages.append((role, [meant]))
            inside = content
    return messages


def _followed(talk: Conversation, index: int, at: int) -> bool:
    """Whether the next item that is no reasoning is one of the model's."""
    rest = [(p, talk[index]) for p in talk[index].parts[at + 1 :]]
    rest += [(p, message) for message in talk[index + 1 :] for p in message.parts]
    for part, message in rest:
        found = None if isinstance(part, Thinking) else _meant(part, message, 0, False)
        if found is not None:
            return found[0] == "assistant"
    return False


def _apart(part: Text, before: list[Part]) -> Text:
    """Plain text after a message that it could belong to is kept apart."""
    for other in reversed(before):
        if isinstance(other, ToolCall | Thinking | Opaque):
            break
        if ITEM in (other.extras or ()):
            return Text(part.text, {ITEM: "{}"})
    return part


def _meant(part: Part, message: Message, at: int, inside: bool) -> tuple[str, Part, bool] | None:
    role = {"tool": "user"}.get(message.role, message.role)
    said_by_model = role == "assistant"
    match part:
        case ToolCall():
            return "assistant", part, False
        case ToolResult():
            content = (Text(part.content),) if isinstance(part.content, str) else part.content
            kept = tuple(p for p in map(_input, content) if p is not None)
            return "tool", ToolResult(part.call_id, kept), False
        case Thinking():
            return ("assistant", part, False) if part.provider == WIRE else None
        case Opaque() if part.provider != WIRE:
            return None
        case Opaque(kind="input_audio"):
            return role, part, True
        case Opaque():
            app = part.kind == "additional_tools"
            return "user" if app else "assistant", part, False
        case Text() if said_by_model:
            extras = part.extras or {}
            if not extras and not inside:
                return role, part, False  # a message by itself
            if not inside and ITEM not in extras:
                part = Text(part.text, {**extras, ITEM: "{}"})
            return role, part, True
        case Refusal() if said_by_model:
            return (role, part, True) if inside else (role, Text(part.text), False)
        case _ if said_by_model:
            return None
        case _:
            meant = _input(part)
            return None if meant is None else (role, meant, True)


def _input(part: Any) -> Any:
    match part:
        case Text():
            return part
        case Refusal():
            return Text(part.text)
        case Image() | Document() if getattr(part.source, "provider", "openai") != "openai":
            return None
        case Image():
            return Image(part.source, "auto")
        case Document():
            name = {"application/pdf": "document.pdf"}
            media = getattr(part.source, "media_type", None)
            title = part.title
            if title is None and hasattr(part.source, "data"):
                title = name.get(media or "", "document")
            return Document(part.source, title)
        case _:
            return None


@given(frames(), turns, st.none() | some.texts)
def test_split_cuts_a_rendered_request_where_render_did(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    frame.around = ()
    rendered = render(frame.call(grown(turns)[-1], state))
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    body = wire.assemble(rendered, plan).body.join()
    cut = wire.split(body)
    assert [chunk.data for chunk in cut] == [chunk.data for chunk in rendered]
    assert [chunk.path for chunk in cut] == [chunk.path for chunk in rendered]
    if frame.model == "gpt-5.6":
        assert [chunk.splice for chunk in cut] == [chunk.splice for chunk in rendered]
    assert cut.marks == plan.marks
    assert dict(cut.envelope.cache_params) == dict(rendered.envelope.cache_params)
    assert wire.assemble(cut, Plan(marks=cut.marks)).body.join() == body


# ── Answers and streams ──────────────────────────────────────────────────────────────────────────

counts = st.none() | st.integers(0, 10**6)
usages = st.builds(
    Usage,
    uncached=st.integers(0, 10**6),
    read=st.integers(0, 10**6),
    written=st.fixed_dictionaries(
        {}, optional={"30m": st.integers(1, 99), "12h": st.integers(1, 99)}
    )
    | st.just({"unsplit": 7}),
    output=st.integers(0, 10**6),
    reasoning=st.integers(0, 10**6),
)
replied = st.lists(
    st.one_of(
        output_messages,
        st.builds(Text, some.texts, st.just({WIRE: '{"annotations":[]}'})),
        own_thinking,
        st.builds(ToolCall, some.words, some.words, some.arguments, st.just({WIRE: '{"id":"fc"}'})),
        st.builds(Refusal, some.texts, st.just({ITEM: '{"id":"r"}'})),
        st.just(Opaque(WIRE, "web_search_call", '{"type":"web_search_call","id":"w"}')),
    ),
    max_size=5,
).map(tuple)
replies = st.builds(
    lambda parts, usage, stop: Reply(
        id="resp_1",
        model="gpt-5.6",
        message=Message(id="resp_1", role="assistant", parts=parts),
        stop_reason=stop,
        usage=usage,
    ),
    replied,
    usages,
    st.sampled_from(["end", "length", "refusal"]),
)


def counted(usage: Usage) -> tuple[Any, ...]:
    return usage.uncached, usage.read, usage.written, usage.output, usage.reasoning


def plain(parts: tuple[Part, ...]) -> list[Part]:
    """The parts without the items that were generated for them."""
    return [
        Text(part.text, {WIRE: (part.extras or {})[WIRE]}) if isinstance(part, Text) else part
        for part in parts
    ]


@given(replies)
def test_law_7_stream_and_single_reply_agree_and_add_up(reply: Reply) -> None:
    single = wire.read_reply(wire.write_reply(reply))
    writer, reader = wire.writer(), wire.reader()
    events = reader.feed(b"".join(writer.write(event) for event in reply_events(reply)))
    assert reader.close() == []
    (end,) = events[-1:]
    assert isinstance(end, ReplyEnd)
    assert end.reply == single
    called = any(isinstance(part, ToolCall) for part in reply.message.parts)
    stop = "tool_calls" if called and reply.stop_reason == "end" else reply.stop_reason
    for read in (single, end.reply):
        assert plain(read.message.parts) == plain(reply.message.parts)
        assert read.stop_reason == stop
        assert counted(read.usage) == counted(reply.usage)
    usage = single.usage
    written = usage.written_total or 0
    assert usage.input == (usage.uncached or 0) + (usage.read or 0) + written
    # What the stream encoded on the way is what its end says.
    ended = {event.index: event.part for event in events if isinstance(event, PartEnd)}
    assert [ended[index] for index in sorted(ended)] == list(end.reply.message.parts)


@given(replies)
def test_own_reply_is_written_as_received(reply: Reply) -> None:
    first = wire.read_reply(wire.write_reply(reply))
    assert json.loads(wire.write_reply(first)) == json.loads(wire.write_reply(reply))
    assert wire.read_reply(wire.write_reply(first)).message == first.message


@given(replies, st.data())
def test_law_12_stream_events_do_not_depend_on_chunking(reply: Reply, data: st.DataObject) -> None:
    writer = wire.writer()
    stream = b"".join(writer.write(event) for event in reply_events(reply))
    ending = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    stream = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + stream.replace(b"\n", ending)
    whole = wire.reader()
    expected = whole.feed(stream) + whole.close()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = wire.reader()
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.close()
    assert events == expected
    bytewise = wire.reader()
    one_by_one = [e for at in range(len(stream)) for e in bytewise.feed(stream[at : at + 1])]
    assert one_by_one + bytewise.close() == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type role content text model input output tools instructions id name arguments"
                " call_id usage output_index content_index delta item part response error status"
                " summary encrypted_content prompt_cache_breakpoint prompt_cache_options".split()
            ),
            inner
            | st.sampled_from(
                "message function_call function_call_output reasoning input_text output_text"
                " refusal input_image input_file response response.output_item.added"
                " response.output_item.done response.completed response.output_text.delta"
                " error user assistant developer".split()
            ),
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_readers_raise_only_our_errors(data: bytes) -> None:
    requests = (b'{"model":"m","input":%b}' % data, b'{"model":"m","input":[%b]}' % data, data)
    for body in requests:
        for read in (wire.parse, wire.split):
            try:
                read(body)
            except AnaphoraError:
                pass
    for body in (b'{"id":"r","model":"m","output":[%b]}' % data, data):
        try:
            wire.read_reply(body)
        except AnaphoraError:
            pass
    wire.read_error(500, {}, data)
    for template in (
        b"%b",
        b'{"type":"response.output_item.added","item":%b}',
        b'{"type":"response.output_item.done","output_index":0,"item":%b}',
        b'{"type":"response.completed","response":%b}',
    ):
        reader = wire.reader()
        payload = b"data: " + template % data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"
        events = reader.feed(payload) + reader.close()
        assert isinstance(events[0], ReplyStart)
        assert isinstance(events[-1], ReplyEnd | ReplyFail)
