"""The laws of SPEC G on Gemini. It takes no markers, so law 2 has nothing to move."""

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
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Audio,
    Bytes,
    Conversation,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    Refusal,
    Reply,
    ReplyEnd,
    ResultPart,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    Usage,
    from_json,
    to_json,
)
from anaphora.wire import gemini
from anaphora.wire.gemini.reply import read_usage, write_usage
from anaphora.wire.replies import reply_events

MODEL = "gemini-2.5-flash"
PATH = f"/v1beta/models/{MODEL}:generateContent"
SIGNED = {"gemini": '{"thoughtSignature":"c2ln"}'}

#: Parts of this wire's own, beside those that every wire is tried with.
own_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(
        Opaque,
        st.just("gemini"),
        st.just("executableCode"),
        st.just('{"executableCode":{"code":"1","language":"PYTHON"}}'),
    ),
    st.builds(Opaque, st.just("gemini"), st.just("content"), st.just('{"mood":"calm"}')),
    st.builds(Thinking, some.texts, st.none() | st.just("c2ln"), provider=st.just("gemini")),
    st.builds(Text, some.texts, st.just(SIGNED)),
    st.builds(ToolCall, some.words, some.words, some.arguments, st.just(SIGNED)),
    st.builds(Image, st.just(FileId("google", "gs://bucket/a", "image/png"))),
    st.builds(Audio, st.builds(Bytes, st.binary(max_size=5), st.just("audio/wav"))),
)
own_messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system", "tool"]),
    parts=st.lists(
        own_parts | some.user_parts | some.assistant_parts | some.results, max_size=4
    ).map(tuple),
)
turns = st.lists(st.lists(some.messages | own_messages, max_size=4), min_size=1, max_size=5)


def of_google(call: Call) -> Call:
    return msgspec.structs.replace(call, model=MODEL)


def render(call: Call, previous: Rendered | None = None) -> Rendered:
    """Warm and cold are the same."""
    profile = catalog.profile("google", call.model)
    rendered = gemini.render(call, profile, previous)
    cold = gemini.render(call, profile)
    assert rendered.data() == cold.data()
    assert [chunk.path for chunk in rendered] == [chunk.path for chunk in cold]
    assert rendered.notices == cold.notices
    one, two = rendered.envelope, cold.envelope
    assert (one.head, one.tail, rendered.frozen_with) == (two.head, two.tail, cold.frozen_with)
    return rendered


def body_of(rendered: Rendered) -> bytes:
    return gemini.assemble(rendered, Plan()).body.join()


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
        rendered = render(of_google(frame.call(conversation, f"{state} {index}")), previous)
        json.loads(body_of(rendered))
        fingerprint = cache.fingerprint(rendered)
        if previous is not None and certificate is not None:
            assert rendered.cacheable_data().startswith(previous.cacheable_data())
            assert fingerprint.extends(certificate)
        previous, certificate = rendered, fingerprint


@given(some.frames(), turns)
def test_every_chunk_stands_at_its_path(frame: some.Frame, turns: list[list[Message]]) -> None:
    rendered = render(of_google(frame.call(grown(turns)[-1], "now")))
    body = json.loads(body_of(rendered))
    for chunk in rendered:
        found: Any = body
        for step in chunk.path.replace("]", "").replace("[", ".").split("."):
            found = found[int(step) if step.isdecimal() else step]
        # Read back from the chunk, behind its glue.
        begin = chunk.data.index(next(iter(found)).encode()) - 2
        assert json.JSONDecoder().raw_decode(chunk.data[begin:].decode())[0] == found


@given(some.frames(), turns, st.none() | some.texts)
def test_law_4_there_are_no_markers(
    frame: some.Frame, turns: list[list[Message]], state: str | None
) -> None:
    rendered = render(of_google(frame.call(grown(turns)[-1], state)))
    plan = plan_once(rendered, catalog.rules("google", MODEL), reuse_expected=True)
    assert plan.marks == ()
    assert not [notice for notice in plan.notices if notice.code == "marker_left_out"]
    left_out = [notice for notice in rendered.notices if notice.code == "mark_left_out"]
    assert len(left_out) == len(frame.cache.marks)
    assert b"cache_control" not in gemini.assemble(rendered, plan).body.join()


@given(some.frames(), turns)
def test_laws_3_and_9_a_stored_message_renders_the_same(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    live = grown(turns)[-1]
    first = render(of_google(frame.call(live)))
    reloaded = from_json(to_json(live), Conversation)
    again = render(of_google(frame.call(reloaded)), first)
    assert again.data() == first.data()


# ── Law 7 ────────────────────────────────────────────────────────────────────────────────────────

counts = st.integers(0, 10_000)


@given(counts, st.none() | counts, st.none() | counts, counts, st.none() | counts)
def test_law_7_input_is_a_partition(
    uncached: int, read: int | None, tools: int | None, candidates: int, thoughts: int | None
) -> None:
    prompt = uncached + (read or 0)
    told = {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": read,
        "toolUsePromptTokenCount": tools,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + (tools or 0) + candidates + (thoughts or 0),
    }
    usage = read_usage(json.dumps(told).encode(), "usage")
    assert (usage.uncached, usage.read) == (uncached + (tools or 0), read)
    assert usage.written is None  # nobody tells, which is not the same as none
    assert usage.total == told["totalTokenCount"]
    assert (usage.output, usage.reasoning) == (candidates + (thoughts or 0), thoughts)
    again = read_usage(write_usage(msgspec.structs.replace(usage, raw=None)), "usage")
    assert (again.input, again.read, again.output, again.reasoning) == (
        usage.input,
        usage.read,
        usage.output,
        usage.reasoning,
    )


def test_law_7_counts_that_overlap_are_still_a_partition() -> None:
    raw = b'{"promptTokenCount":5,"cachedContentTokenCount":9,"candidatesTokenCount":1}'
    usage = read_usage(raw, "usage")
    assert (usage.uncached, usage.read, usage.input, usage.overlap) == (0, 5, 5, 4)
    assert usage.raw == raw.decode()


def test_law_7_an_empty_answer_has_no_output() -> None:
    usage = read_usage(b'{"promptTokenCount":14,"totalTokenCount":14}', "usage")
    assert (usage.input, usage.output) == (14, 0)
    assert read_usage(b'{"promptTokenCount":14}', "usage").output is None


# ── Law 11 ───────────────────────────────────────────────────────────────────────────────────────


def project(call: Call) -> list[tuple[str, list[Part]]]:
    """What of a prompt can be said here, as the wire has it: user and model, results together,
    no ids of messages."""
    said: list[tuple[str, list[Part]]] = []
    calls: dict[str, str] = {}
    last = ""
    for message in call.ir.body_chat():
        calls |= {p.id: p.name for p in message.parts if isinstance(p, ToolCall)}
        fields = [p for p in message.parts if is_fields(p)]
        found = [seen(p, calls) for p in message.parts if not is_fields(p)]
        parts = [p for p in found if p is not None]
        spoken = message.role == "assistant"
        if not parts or (spoken and all(isinstance(p, Thinking) for p in parts)):
            continue  # reasoning alone is left out
        if message.role == last == "tool" and not fields:
            said[-1][1].extend(parts)
        else:
            role = "assistant" if message.role == "assistant" else "user"
            said.append((role, parts))
        last = message.role
    return said


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == ("gemini", "content")


def seen(part: Part, calls: dict[str, str]) -> Part | None:
    if isinstance(part, Refusal):
        return Text(part.text)
    if isinstance(part, Opaque):
        return part if part.provider == "gemini" else None
    if isinstance(part, Thinking):
        if part.data is not None and not part.text and part.signature is None:
            return None
        return Thinking(part.text, part.signature, provider="gemini")
    if isinstance(part, ToolCall):
        if part.arguments == "not json":
            return msgspec.structs.replace(part, arguments='{"invalid_arguments":"not json"}')
        return msgspec.structs.replace(part, arguments=part.arguments or "{}")
    if isinstance(part, ToolResult):
        return result(part, calls.get(part.call_id, part.call_id))
    said: Part | None = media(part)
    return said


def media(part: Any) -> Any:
    if isinstance(part, Image):
        source = sayable(part.source, "image/png")
        return None if source is None else Image(source)
    if isinstance(part, Document):
        source = sayable(part.source, "application/pdf")
        return None if source is None else Document(source)
    if isinstance(part, Audio):
        if isinstance(part.source, Bytes) and part.source.media_type != "audio/wav":
            return None
        source = sayable(part.source, "audio/mpeg")
        return None if source is None else Audio(source)
    return part


def sayable(source: Source, media_type: str) -> Source | None:
    if isinstance(source, Url):
        return Url(source.url, media_type)
    return None if isinstance(source, FileId) and source.provider != "google" else source


def result(part: ToolResult, name: str) -> ToolResult:
    content: str | tuple[ResultPart, ...] = part.content
    if not isinstance(content, str):
        texts = [p.text for p in content if isinstance(p, Text)]
        others = [media(p) for p in content if not isinstance(p, Text)]
        beside = [p for p in others if p is not None]
        text = "\n\n".join(texts)
        told = (Text(text), *beside) if texts or part.error else tuple(beside)
        content = told if beside else text
    return ToolResult(part.call_id, content, part.error, name)


@given(turns, some.tools, some.blocks)
def test_law_11_parsing_a_rendered_call_gives_the_call(
    turns: list[list[Message]], tools: tuple[Tool, ...], blocks: tuple[PromptBlock, ...]
) -> None:
    params = Params(max_tokens=5, seed=1, top_k=3, stop=("END",), metadata={"team": "a"})
    ir = PromptIR.chat(grown(turns)[-1], system=blocks)
    call = Call(ir=ir, model=MODEL, tools=tools, params=params)
    again = gemini.parse(body_of(render(call)), PATH)
    assert (again.model, again.params) == (MODEL, params)
    assert [t.text for t in again.ir.system_blocks] == [b.text for b in blocks if b.text.strip()]
    assert [(t.name, t.description, t.schema) for t in again.tools if isinstance(t, Tool)] == [
        (t.name, t.description, t.schema) for t in tools
    ]
    found = [(m.role, [p for p in m.parts if not is_fields(p)]) for m in again.ir.body_chat()]
    assert found == project(call)


@given(turns, some.tools, some.blocks)
def test_law_11_rendering_a_parsed_request_gives_the_request(
    turns: list[list[Message]], tools: tuple[Tool, ...], blocks: tuple[PromptBlock, ...]
) -> None:
    """What we wrote ourselves is normal already: the same bytes, and nothing left to tell."""
    body = body_of(
        render(Call(ir=PromptIR.chat(grown(turns)[-1], system=blocks), model=MODEL, tools=tools))
    )
    again = render(gemini.parse(body, PATH))
    assert json.loads(body_of(again)) == json.loads(body)
    assert again.notices == ()


@given(some.frames(), turns)
def test_a_split_request_assembles_to_the_same_body(
    frame: some.Frame, turns: list[list[Message]]
) -> None:
    rendered = render(of_google(frame.call(grown(turns)[-1], "now")))
    body = body_of(rendered)
    cut = gemini.split(body, path=PATH)
    assert gemini.assemble(cut, Plan()).body.join() == body
    assert (cut.data(), cut.frozen_with) == (rendered.data(), rendered.frozen_with)
    assert [chunk.path for chunk in cut] == [chunk.path for chunk in rendered]


# ── Law 12 ───────────────────────────────────────────────────────────────────────────────────────

replies = st.builds(
    Reply,
    id=some.words,
    model=some.words,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        parts=st.lists(some.assistant_parts | own_parts, max_size=4).map(tuple),
    ),
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "refusal"]),
    usage=st.builds(Usage, uncached=counts, read=st.none() | counts, output=counts),
)


@given(replies, st.lists(st.integers(1, 60), min_size=1, max_size=30), st.booleans())
def test_law_12_a_stream_is_read_the_same_in_any_pieces(
    reply: Reply, sizes: list[int], as_list: bool
) -> None:
    writer = gemini.writer()
    body = b"".join(writer.write(event) for event in reply_events(reply))
    if as_list:
        chunks = [event.replace(b"data: ", b"") for event in body.split(b"\n\n") if event]
        body = b"[" + b",\r\n".join(chunks) + b"]"
    whole = gemini.reader()
    expected = whole.feed(body) + whole.close()
    reader = gemini.reader()
    events, at = [], 0
    while at < len(body):
        size = sizes[at % len(sizes)]
        events += reader.feed(body[at : at + size])
        at += size
    assert events + reader.close() == expected
    last = expected[-1]
    assert isinstance(last, ReplyEnd)
    # A stream and a single answer say the same.
    single = gemini.read_reply(gemini.write_reply(reply))
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
                "model contents role parts text thought thoughtSignature functionCall name args id"
                " functionResponse response output error inlineData mimeType data fileData fileUri"
                " tools functionDeclarations function_declarations parameters googleSearch"
                " systemInstruction system_instruction toolConfig functionCallingConfig mode"
                " generationConfig thinkingConfig thinkingLevel thinkingBudget responseMimeType"
                " responseSchema candidates content finishReason index usageMetadata"
                " promptTokenCount promptFeedback blockReason code status details message".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=14,
)


@given(json_values | st.binary(max_size=40))
def test_readers_raise_only_our_errors(value: Any) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    for read in (gemini.parse, gemini.split, gemini.read_reply):
        try:
            read(body)
        except AnaphoraError:
            pass
    gemini.read_error(500, {}, body)
    for stream in (b"data: " + body.replace(b"\n", b"") + b"\n\n", body):
        reader = gemini.reader()
        events = reader.feed(stream) + reader.close()
        assert type(events[-1]).__name__ in ("ReplyEnd", "ReplyFail")


@given(json_values)
def test_a_parsed_request_renders(value: Any) -> None:
    """Whatever a request holds: if it is read, rendering it raises nothing but our errors."""
    body = json.dumps({"contents": [{"parts": [{"text": "x"}, value]}], "tools": [value]}).encode()
    try:
        render(gemini.parse(body, PATH))
    except AnaphoraError:
        pass
