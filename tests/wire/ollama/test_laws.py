"""The laws of SPEC G on Ollama's wire, which has no markers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some

from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call, OutputSchema, Params, PromptBlock, PromptIR, Reasoning
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Bytes,
    Conversation,
    Image,
    Message,
    Opaque,
    Part,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    from_json,
    to_json,
)
from anaphora.wire import ollama
from anaphora.wire.replies import reply_events

MODEL = "qwen3"
PNG = Bytes(b"\x89PNG\r\n\x1a\n..", "image/png")

#: Parts of this wire's own, beside those that every wire is tried with.
own_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Image, st.just(PNG)),
    st.builds(Opaque, st.just("ollama"), st.just("image"), st.just('{"data":"not base64"}')),
    st.builds(Opaque, st.just("ollama"), st.just("message"), st.just('{"name":"n"}')),
    st.builds(Opaque, st.just("ollama"), st.just("x"), st.just('{"type":"x"}')),
    st.builds(Thinking, some.texts, provider=st.just("ollama")),
    st.builds(
        ToolCall,
        some.words,
        some.words,
        some.arguments,
        st.just({"ollama.form": '{"missing":["id"],"index":0}'}),
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


def render(call: Call, previous: Rendered | None = None) -> Rendered:
    """Warm and cold are the same."""
    profile = catalog.profile("ollama", call.model)
    rendered = ollama.render(call, profile, previous)
    cold = ollama.render(call, profile)
    assert rendered.data() == cold.data()
    assert [chunk.path for chunk in rendered] == [chunk.path for chunk in cold]
    assert rendered.notices == cold.notices
    one, two = rendered.envelope, cold.envelope
    assert (one.head, one.tail) == (two.head, two.tail)
    return rendered


def body_of(rendered: Rendered) -> bytes:
    return ollama.assemble(rendered, Plan()).body.join()


def framed(frame: some.Frame, conversation: Conversation, tail: str | None = None) -> Call:
    return msgspec.structs.replace(frame.call(conversation, tail), model=MODEL)


def grown(turns: list[list[Message]]) -> list[Conversation]:
    conversation = Conversation([Message.user("hello")])
    seen = [conversation]
    for added in turns:
        conversation = conversation.append(*added)
        seen.append(conversation)
    return seen


@given(some.frames(), turns, some.texts)
def test_law_1_what_was_cacheable_begins_the_next_turn(
    frame: some.Frame, turns: list[list[Message]], state: str
) -> None:
    previous: Rendered | None = None
    certificate = None
    for index, conversation in enumerate(grown(turns)):
        rendered = render(framed(frame, conversation, f"{state} {index}"), previous)
        json.loads(body_of(rendered))
        fingerprint = cache.fingerprint(rendered)
        if previous is not None and certificate is not None:
            assert rendered.cacheable_data().startswith(previous.cacheable_data())
            assert fingerprint.extends(certificate)
        previous, certificate = rendered, fingerprint


@given(some.frames(), turns, st.none() | some.texts)
def test_laws_2_and_4_no_chunk_takes_a_marker(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    call = framed(frame, grown(turns)[-1], state)
    rendered = render(call)
    assert all(chunk.splice is None for chunk in rendered)
    plan = plan_once(rendered, catalog.rules("ollama", MODEL), reuse_expected=True)
    assert (plan.marks, plan.automatic) == ((), None)
    left = [notice for notice in rendered.notices if notice.code == "mark_left_out"]
    assert len(left) == len(call.ir.cache.marks)
    for message in json.loads(body_of(rendered))["messages"]:
        assert isinstance(message["content"], str)


@given(some.frames(), turns)
def test_laws_3_and_9_a_stored_message_renders_the_same(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    live = grown(turns)[-1]
    first = render(framed(frame, live))
    reloaded = from_json(to_json(live), Conversation)
    assert render(framed(frame, reloaded), first).data() == first.data()


@given(st.none() | st.integers(0, 9999), st.none() | st.integers(0, 9999))
def test_law_7_cached_tokens_are_not_reported(prompt: int | None, output: int | None) -> None:
    told: dict[str, Any] = {"model": "m", "message": {"role": "assistant", "content": "x"}}
    told |= {"done": True, "prompt_eval_count": prompt, "eval_count": output}
    usage = ollama.read_reply(json.dumps(told).encode()).usage
    assert (usage.input, usage.uncached, usage.output) == (prompt, prompt, output)
    assert usage.read is None
    assert usage.written is None
    reader = ollama.reader()
    end = (reader.feed(json.dumps(told).encode()) + reader.close())[-1]
    assert isinstance(end, ReplyEnd)
    assert end.reply.usage == usage


# ── Law 11 ───────────────────────────────────────────────────────────────────────────────────────

Spoken = tuple[str, list[Any]]


def project(call: Call) -> list[Spoken]:
    """What of a prompt can be said here, as the wire has it: no ids, a message for each text of a
    user's and each result, one text of the assistant's, images before text, fields with the first.
    """
    said: list[Spoken] = []
    calls: dict[str, ToolCall] = {}
    for message in call.ir.body_chat():
        parts, fields = message.parts, [p for p in message.parts if is_fields(p)][:1]
        if message.role == "assistant":
            calls = {p.id: p for p in parts if isinstance(p, ToolCall)}
            said += spoken("assistant", assistant(parts), fields)
            continue
        if message.role in ("user", "tool"):
            results = [p for p in parts if isinstance(p, ToolResult)]
            said += [("tool", [result(p, calls.get(p.call_id))]) for p in results]
        role = "system" if message.role == "system" else "user"
        for group in apart(parts):
            said += spoken(role, group, fields)
            fields = []
    return said


def spoken(role: str, parts: list[Any], fields: list[Part]) -> list[Spoken]:
    """An empty text is said only where nothing else is."""
    if not parts:
        return []
    rest = [part for part in parts if part != Text("")] or [Text("")]
    return [(role, [*rest, *fields])]


def assistant(parts: tuple[Part, ...]) -> list[Any]:
    thought = "".join(p.text for p in parts if isinstance(p, Thinking) and p.provider == "ollama")
    texts = [p.text for p in parts if isinstance(p, Text | Refusal)]
    calls, images = (any(map(of, parts)) for of in (lambda p: isinstance(p, ToolCall), is_image))
    if thought and not (calls or images or any(texts)):
        return []  # cut off inside its reasoning
    found: list[Any] = [Thinking(thought, provider="ollama")] if thought else []
    found += [seen(p) for p in parts if is_image(p)]
    found += [Text("".join(texts))] if texts else []
    return found + [called(p) for p in parts if isinstance(p, ToolCall)]


def apart(parts: tuple[Part, ...]) -> list[list[Any]]:
    groups: list[list[Any]] = []
    images: list[Any] = []
    for part in parts:
        if isinstance(part, Text):
            groups.append([*images, part])
            images = []
        elif is_image(part):
            images.append(seen(part))
    if images and groups:
        groups[-1] = [*groups[-1][:-1], *images, groups[-1][-1]]
    elif images:
        groups.append(images)
    return groups


def result(part: ToolResult, call: ToolCall | None) -> Any:
    content = (Text(part.content),) if isinstance(part.content, str) else part.content
    text = "".join(p.text for p in content if isinstance(p, Text))
    images = [seen(p) for p in content if is_image(p)]
    return ("result", part.name or (call.name if call else None), text, images)


def called(part: ToolCall) -> Any:
    arguments = part.arguments.strip()
    if not arguments:
        arguments = "{}"
    elif not arguments.startswith("{"):
        arguments = json.dumps({"invalid_arguments": part.arguments}, separators=(",", ":"))
    made_up = part.extras is not None
    return ("call", None if made_up else part.id, part.name, arguments)


def is_image(part: Any) -> bool:
    if isinstance(part, Opaque):
        return (part.provider, part.kind) == ("ollama", "image")
    return isinstance(part, Image) and isinstance(part.source, Bytes)


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == ("ollama", "message")


def seen(part: Any) -> Any:
    """The bytes of a picture: nothing else of it is said."""
    import base64

    if isinstance(part, Opaque):
        return ("image", json.loads(part.json)["data"])
    return ("image", base64.b64encode(part.source.data).decode())


def read_back(part: Part) -> Any:
    if isinstance(part, ToolCall):
        return called(part)
    if is_image(part):
        return seen(part)
    if isinstance(part, ToolResult):
        content = (Text(part.content),) if isinstance(part.content, str) else part.content
        text = "".join(p.text for p in content if isinstance(p, Text))
        return ("result", part.name, text, [seen(p) for p in content if is_image(p)])
    return part


params = st.builds(
    Params,
    max_tokens=st.none() | st.integers(0, 999),
    temperature=st.none() | st.sampled_from([0.0, 0.5]),
    top_p=st.none() | st.just(0.9),
    top_k=st.none() | st.just(40),
    seed=st.none() | st.just(7),
    frequency_penalty=st.none() | st.just(0.5),
    presence_penalty=st.none() | st.just(0.5),
    stop=st.sampled_from([(), ("END",), ("a", "b")]),
    reasoning=st.none()
    | st.sampled_from([Reasoning("enabled"), Reasoning("disabled"), Reasoning(effort="max")]),
    output=st.none() | st.builds(OutputSchema, some.schemas),
    stream=st.booleans(),
)


@given(turns, some.tools, some.blocks, params)
def test_law_11_parsing_a_rendered_call_gives_the_call(
    turns: list[list[Message]],
    tools: tuple[Tool, ...],
    blocks: tuple[PromptBlock, ...],
    params: Params,
) -> None:
    ir = PromptIR.chat(grown(turns)[-1], system=blocks)
    call = Call(ir=ir, model=MODEL, tools=tools, params=params)
    again = ollama.parse(body_of(render(call)))
    assert again.ir.system_field() == ir.system_field()
    assert [(t.name, t.description, t.schema) for t in again.tools if isinstance(t, Tool)] == [
        (t.name, t.description, t.schema) for t in tools
    ]
    assert (again.params, again.extras) == (params, None)
    found = [(m.role, [read_back(p) for p in m.parts]) for m in again.ir.body_chat()]
    assert found == project(call)


@given(turns, some.tools, some.blocks, params)
def test_law_11_rendering_a_parsed_request_gives_the_request(
    turns: list[list[Message]],
    tools: tuple[Tool, ...],
    blocks: tuple[PromptBlock, ...],
    params: Params,
) -> None:
    """What we wrote ourselves is normal already: the same bytes, and nothing left to tell."""
    ir = PromptIR.chat(grown(turns)[-1], system=blocks)
    body = body_of(render(Call(ir=ir, model=MODEL, tools=tools, params=params)))
    again = render(ollama.parse(body))
    assert body_of(again) == body
    assert again.notices == ()


@given(turns, some.blocks)
def test_unknown_fields_do_not_change_messages(
    turns: list[list[Message]], blocks: tuple[PromptBlock, ...]
) -> None:
    ir = PromptIR.chat(grown(turns)[-1], system=blocks)
    body = json.loads(body_of(render(Call(ir=ir, model=MODEL))))
    quick = ollama.parse(json.dumps(body).encode())
    for message in body["messages"]:
        message["unheard_of"] = None  # says nothing, and makes every message unusual
    assert ollama.parse(json.dumps(body).encode()) == quick


@given(some.frames(), turns)
def test_a_split_request_assembles_to_the_same_body(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    rendered = render(framed(frame, grown(turns)[-1], "now"))
    body = body_of(rendered)
    cut = ollama.split(body)
    assert body_of(cut) == body
    if rendered.runs[0].section == "system":
        # Without a system prompt a leading system message is taken for one.
        assert cut.data() == rendered.data()


# ── Law 12 ───────────────────────────────────────────────────────────────────────────────────────

counts = st.integers(0, 10_000)
replies = st.builds(
    Reply,
    id=st.just(""),
    model=some.words,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        parts=st.lists(some.assistant_parts | own_parts, max_size=4).map(tuple),
    ),
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "refusal"]),
    usage=st.builds(Usage, uncached=counts, output=counts),
    extras=st.none() | st.just({"ollama": '{"created_at":"2026-01-01T00:00:00Z","x":[1]}'}),
)


def pieces(body: bytes, sizes: list[int]) -> list[bytes]:
    cut, at = [], 0
    while at < len(body):
        size = sizes[at % len(sizes)]
        cut.append(body[at : at + size])
        at += size
    return cut


@given(replies, st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_law_12_a_stream_is_read_the_same_in_any_pieces(reply: Reply, sizes: list[int]) -> None:
    writer = ollama.writer()
    body = b"".join(writer.write(event) for event in reply_events(reply))
    whole = ollama.reader()
    expected = whole.feed(body) + whole.close()
    reader = ollama.reader()
    events = [event for piece in pieces(body, sizes) for event in reader.feed(piece)]
    assert events + reader.close() == expected
    last = expected[-1]
    assert isinstance(last, ReplyEnd)
    # A stream and a single answer say the same.
    single = ollama.read_reply(ollama.write_reply(reply))
    assert last.reply.text == single.text
    # (White space in arguments is the model's; a line break in it would end the line.)
    assert [(c.name, json.loads(c.arguments)) for c in last.reply.tool_calls] == [
        (c.name, json.loads(c.arguments)) for c in single.tool_calls
    ]
    assert (last.reply.stop_reason, last.reply.usage) == (single.stop_reason, single.usage)
    # And what was read is written and read again without a change.
    writer, again = ollama.writer(), ollama.reader()
    told = again.feed(b"".join(writer.write(event) for event in expected)) + again.close()
    assert told[-1] == last
    assert ollama.read_reply(ollama.write_reply(single)) == single


# ── Nothing but our errors ───────────────────────────────────────────────────────────────────────

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "model messages role content thinking images tool_calls function name arguments id"
                " index tool_name tool_call_id tools type parameters stream format think options"
                " num_predict stop keep_alive message done done_reason created_at error"
                " prompt_eval_count eval_count logprobs".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
messages = st.dictionaries(
    st.sampled_from("role content thinking images tool_calls tool_name tool_call_id x".split()),
    st.sampled_from(["assistant", "tool", "user", "", None, 1, [], ["QUJD"], {}]) | json_values,
    max_size=5,
)
lines = json_values | st.fixed_dictionaries(
    {"message": messages}, optional={"done": st.booleans(), "created_at": json_values}
)


@given(
    json_values | st.binary(max_size=40) | messages.map(lambda m: {"model": "", "messages": [m]})
)
def test_readers_raise_only_our_errors(value: Any) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    for read in (ollama.parse, ollama.split, ollama.read_reply):
        try:
            read(body)
        except AnaphoraError:
            pass
    assert isinstance(ollama.read_error(500, {}, body), AnaphoraError)


@given(st.lists(lines, max_size=4), st.binary(max_size=10))
def test_any_stream_ends(values: list[Any], rest: bytes) -> None:
    body = b"".join(json.dumps(value).encode() + b"\n" for value in values) + rest
    reader = ollama.reader()
    events = reader.feed(body) + reader.close()
    assert isinstance(events[-1], ReplyEnd | ReplyFail)
    ends = [event for event in events if isinstance(event, ReplyEnd | ReplyFail)]
    assert len(ends) == 1
