"""`wire.splice` adds a plan's markers to a request, and changes nothing else that a model reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.exchanges import needs_exchanges, records
from support.meaning import base, meaning
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.compared_prompt import CallHints
from anaphora.cache.plan import AppMemory, Planner
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptCachePlan
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.traffic.planning import read_split
from anaphora.values import TTL_SECONDS, Ttl
from anaphora.wire.cutting import cut
from anaphora.wire.reading import decode_members

Json = dict[str, Any]
Draw = Callable[..., Any]

#: Every form of markers: the wires' own, and those of dialects.
MARKED = (
    "anthropic",
    "openai_chat",
    "openai_responses",
    "bedrock",
    "minimax/anthropic",
    "moonshot/anthropic",
    "alibaba",
    "openrouter",
)
UNMARKED = ("gemini", "deepseek/anthropic", "vllm/anthropic", "bedrock")


def split(name: str, body: bytes) -> Rendered:
    path = "/v1beta/models/g:generateContent"
    if name == "bedrock":
        path = "" if b'"modelId"' in body else "/model/us.anthropic.claude-sonnet-5/converse"
    return cut(wire.get(name), body, path)


def splice(name: str, body: bytes, *marks: Mark, **options: Any) -> bytes:
    return wire.splice(body, Plan(marks=marks), wire=name, **options).body


def markable(rendered: Rendered) -> list[int]:
    return [chunk.index for chunk in rendered if chunk.splice is not None]


def check_laws(name: str, body: bytes, marks: tuple[Mark, ...]) -> bytes:
    """All that holds for a request without markers of its own."""
    before = split(name, body)
    spliced = wire.splice(body, Plan(marks=marks), wire=name)
    after = split(name, spliced.body)
    assert spliced.notices == ()
    assert spliced.marks == after.marks == marks
    assert [(c.path, c.data, c.splice) for c in after] == [
        (c.path, c.data, c.splice) for c in before
    ]
    assert after.envelope.tail == before.envelope.tail
    assert meaning(name, spliced.body) == meaning(name, body)
    assert len(wire.get(name).parse(spliced.body).ir.cache.marks) == len(marks)
    # The other way: taking them out again, and putting nothing in.
    assert split(name, splice(name, spliced.body, replace=True)).marks == ()
    assert splice(name, spliced.body) == spliced.body
    return spliced.body


# ── Bodies of any form ───────────────────────────────────────────────────────────────────────────

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12
).map(lambda text: text + "x") | st.sampled_from(
    [
        '","cache_control":{"type":"ephemeral"}',
        'a "quoted" \\ text }] ,',
        "\ud55c\U0001f600\u2028 {[",
        '{"type":"text","text":"x"}',
    ]
)
SPACE = st.sampled_from(["", "", " ", "\n  ", "\t", "\r\n"])


@st.composite
def spelled(draw: Draw, value: Any) -> str:
    """A JSON text of the value with white space, escapes and key order of its own."""

    def text(each: str) -> str:
        if draw(st.integers(0, 3)) == 0:
            return '"' + "".join(_escaped(letter) for letter in each) + '"'
        return json.dumps(each, ensure_ascii=draw(st.booleans()))

    def write(each: Any) -> str:
        if isinstance(each, str):
            return text(each)
        if isinstance(each, dict):
            items = draw(st.permutations(list(each.items())))
            members = [
                f"{draw(SPACE)}{text(k)}{draw(SPACE)}:{draw(SPACE)}{write(v)}{draw(SPACE)}"
                for k, v in items
            ]
            return "{" + ",".join(members) + "}"
        if isinstance(each, list):
            return "[" + ",".join(draw(SPACE) + write(e) + draw(SPACE) for e in each) + "]"
        return json.dumps(each)

    return str(draw(SPACE) + write(value) + draw(SPACE))


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))


@st.composite
def requests(draw: Draw, wire_name: str) -> Json:
    """A request that the wire accepts, with content in every form."""

    def texts(kind: str = "text") -> Any:
        if draw(st.booleans()):
            return draw(TEXTS)
        count = draw(st.integers(1, 3))
        return [{"type": kind, "text": draw(TEXTS)} for _ in range(count)]

    schema = {"type": "object", "properties": {"cache_control": {"const": 1.50}}}
    request: Json = {"model": "m", "temperature": 1.0, "metadata": {"a": draw(TEXTS)}}
    turns = draw(st.integers(1, 3))
    if wire_name == "anthropic":
        messages: list[Json] = []
        for turn in range(turns):
            messages.append({"role": "user", "content": texts()})
            if draw(st.booleans()):
                messages.append({"role": "user", "content": texts()})
            if turn + 1 < turns:
                call = {"type": "tool_use", "id": f"t{turn}", "name": "f", "input": {"a": 1e2}}
                thought = {"type": "thinking", "thinking": "…", "signature": "c2ln"}
                messages.append({"role": "assistant", "content": [thought, call]})
                result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": texts()}
                messages.append({"role": "user", "content": [result]})
        request |= {"max_tokens": 10, "messages": messages}
        request["tools"] = [{"name": name, "input_schema": schema} for name in ("f", "g")]
        if draw(st.booleans()):
            request["system"] = texts()
    elif wire_name == "openai_chat":
        messages = [{"role": "system", "content": texts()}] if draw(st.booleans()) else []
        for turn in range(turns):
            messages.append({"role": "user", "content": texts()})
            if turn + 1 < turns:
                function = {"name": "f", "arguments": '{"a": 1}'}
                calls = [{"id": f"t{turn}", "type": "function", "function": function}]
                messages.append({"role": "assistant", "content": None, "tool_calls": calls})
                messages.append({"role": "tool", "tool_call_id": f"t{turn}", "content": texts()})
        request["messages"] = messages
        request["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    elif wire_name == "bedrock":
        request = {"modelId": "us.anthropic.claude-sonnet-5", "requestMetadata": {"a": "b"}}
        messages = []
        for turn in range(turns):
            messages.append({"role": "user", "content": converse_texts(draw)})
            if draw(st.booleans()):
                messages.append({"role": "user", "content": converse_texts(draw)})
            if turn + 1 < turns:
                called = {"toolUseId": f"t{turn}", "name": "f", "input": {"a": 1e2}}
                reasoning = {"reasoningText": {"text": "…", "signature": "c2ln"}}
                content: list[Json] = [{"reasoningContent": reasoning}, {"toolUse": called}]
                messages.append({"role": "assistant", "content": content})
                result = {"toolUseId": f"t{turn}", "content": converse_texts(draw)}
                messages.append({"role": "user", "content": [{"toolResult": result}]})
        tools = [{"toolSpec": {"name": n, "inputSchema": {"json": schema}}} for n in ("f", "g")]
        request |= {"messages": messages, "toolConfig": {"tools": tools}}
        if draw(st.booleans()):
            request["system"] = converse_texts(draw)
    else:
        items: list[Json] = []
        if draw(st.booleans()):
            items.append({"role": "developer", "content": texts("input_text")})
        for turn in range(turns):
            items.append({"role": "user", "content": texts("input_text")})
            if turn + 1 < turns:
                call = {"type": "function_call", "call_id": f"t{turn}", "name": "f"}
                items.append({**call, "arguments": "{}"})
                result = {"type": "function_call_output", "call_id": f"t{turn}"}
                items.append({**result, "output": texts("input_text")})
        request["input"] = draw(TEXTS) if draw(st.integers(0, 5)) == 0 else items
        request["tools"] = [{"type": "function", "name": "f", "parameters": schema}]
        if draw(st.booleans()):
            request["instructions"] = draw(TEXTS)
    return request


def converse_texts(draw: Draw) -> list[Json]:
    return [{"text": draw(TEXTS)} for _ in range(draw(st.integers(1, 3)))]


@st.composite
def spliced_cases(draw: Draw) -> tuple[str, bytes, tuple[Mark, ...]]:
    name = draw(st.sampled_from(MARKED))
    body = draw(spelled(draw(requests(base(name))))).encode()
    rendered = split(name, body)
    places = markable(rendered)
    chosen = draw(st.lists(st.sampled_from(places), max_size=4, unique=True)) if places else []
    ttls = sorted(rendered.markers, key=lambda ttl: TTL_SECONDS[ttl], reverse=True)
    long = draw(st.integers(0, len(chosen)))
    marks = [
        Mark(chunk, ttls[0] if position < long else ttls[-1])
        for position, chunk in enumerate(sorted(chosen))
    ]
    return name, body, tuple(marks)


TWO_TOOLS = (
    b'{"modelId":"us.anthropic.claude-sonnet-5","messages":[{"role":"user","content":[{"text":"x"}'
    b']}],"\\u0074oolConfig":{"tools":[{"toolSpec":{"name":"f","inputSchema":{"json":{}}}},'
    b'{"toolSpec":{"name":"g","inputSchema":{"json":{}}}}]}}'
)


@given(spliced_cases())
@example(("bedrock", TWO_TOOLS, (Mark(0, "1h"), Mark(2, "5m"))))
def test_only_markers_are_added(case: tuple[str, bytes, tuple[Mark, ...]]) -> None:
    check_laws(*case)


@needs_exchanges
@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses"])
def test_recorded_requests_take_every_marker(name: str) -> None:
    read = 0
    for record in records(name):
        request = json.loads(record["request"])
        if request.get("tool_choice") == "any":
            continue  # Mistral's word for OpenAI's `required`
        if name != "anthropic":
            request["model"] = "gpt-5.6"  # of a model that takes markers
        body = json.dumps(request).encode()
        rendered = split(name, body)
        if rendered.marks:
            continue
        ttl: Ttl = next(iter(rendered.markers))
        places = markable(rendered)
        for start in range(0, len(places), 4):
            check_laws(name, body, tuple(Mark(chunk, ttl) for chunk in places[start : start + 4]))
            read += 1
    assert read > 50


# ── Turns of a conversation ──────────────────────────────────────────────────────────────────────

LISTS = {"openai_responses": "input", "gemini": "contents"}


def turns_of(name: str, request: Json) -> list[bytes]:
    """The requests of the conversation that a request ends: each ends with a message of the app."""
    field = LISTS.get(base(name), "messages")
    items = request[field] if isinstance(request.get(field), list) else []
    theirs = [item.get("role") in ("assistant", "model") or "arguments" in item for item in items]
    ends = [at for at in range(1, len(items) + 1) if not theirs[at - 1]]
    ends = [at for at in ends if at == len(items) or theirs[at]]
    return [json.dumps(request | {field: items[:at]}).encode() for at in ends]


def check_turns(name: str, bodies: list[bytes], path: str = "") -> int:
    """Each turn is marked at its end, and begins with the bytes of the turn before, besides the
    marker: text that was a list stays one."""
    codec, before, compared = wire.get(name), b"", 0
    for body in bodies:
        rendered = cut(codec, body, path)
        places = [] if rendered.marks or not rendered.markers else markable(rendered)
        marks = tuple(Mark(place, next(iter(rendered.markers))) for place in places[-1:])
        spliced = wire.splice(body, Plan(marks=marks), wire=name, path=path)
        bare = spliced.body
        for mark in spliced.marks:
            marker = mark.marker or rendered.markers[mark.ttl]
            assert bare.count(marker) >= 1
            bare = bare.replace(marker, b"")
        closing = len(rendered.runs[-1].close) + len(rendered.envelope.tail)
        assert bare.startswith(before)
        compared += bool(before)
        before = bare[: len(bare) - closing]
    return compared


@given(st.data(), st.sampled_from((*MARKED, "deepseek", "minimax/anthropic", "vllm")))
def test_turn_begins_with_the_bytes_of_the_turn_before(data: Any, name: str) -> None:
    request = data.draw(requests(base(name)))
    if base(name).startswith("openai") and data.draw(st.booleans()):
        request["model"] = "gpt-5.6"  # a model that takes marks in texts
    bodies = turns_of(name, request)
    check_turns(name, bodies)
    if base(name) == "openai_chat" and name in ("deepseek", "vllm"):
        texts = [m["content"] for m in request["messages"] if m.get("content") is not None]
        sent = json.loads(wire.splice(bodies[-1], Plan(), wire=name).body)["messages"]
        assert [m["content"] for m in sent if "content" in m] == texts


@needs_exchanges
@pytest.mark.parametrize("name", wire.WIRES)
def test_turns_of_recorded_conversations(name: str) -> None:
    compared = 0
    for record in records({"bedrock": "bedrock_converse"}.get(name, name)):
        try:
            cut(wire.get(name), record["request"].encode(), record["path"])
        except InvalidRequest:
            continue  # another test counts these
        request = json.loads(record["request"])
        compared += check_turns(name, turns_of(name, request), record["path"])
    assert compared > (10 if name != "bedrock" else -1), compared


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────

SHORT = b',"cache_control":{"type":"ephemeral"}'
LONG = b',"cache_control":{"type":"ephemeral","ttl":"1h"}'
BREAK = b',"prompt_cache_breakpoint":{"mode":"explicit"}'
BREAK_30 = b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}'


USER = b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"%b"%b}]}]%b}'
OUTPUT = b'{"model":"gpt-5.6","input":[{"type":"function_call_output","call_id":"c","output":%b}]}'


@each_row(
    ("name", "body", "chunk", "ttl", "expected"),
    [
        pytest.param(
            "anthropic",
            b'{ "model":"m", "messages":[ {"role":"user","content":"h\\u0069" } ], "top_k":1}',
            0,
            "5m",
            USER % (b"hi", SHORT, b',"top_k":1'),
            id="text becomes a block",
        ),
        pytest.param(
            "anthropic",
            b'{"tools":[{"name":"a"},{"name":"b" }],"model":"m","messages":[{"role":"user",'
            b'"content":[{"type":"text","text":"x"}]}]}',
            1,
            "1h",
            (USER % (b"x", b"", b"")).replace(
                b'"m",', b'"m","tools":[{"name":"a"},{"name":"b"' + LONG + b"}],"
            ),
            id="tool",
        ),
        pytest.param(
            "anthropic",
            b'{"model":"m","system":"s","messages":[{"role":"user","content":"x"}]}',
            0,
            "5m",
            (USER % (b"x", b"", b"")).replace(
                b'"m",', b'"m","system":[{"type":"text","text":"s"' + SHORT + b"}],"
            ),
            id="system text",
        ),
        pytest.param(
            "openai_responses",
            b'{"model":"gpt-5.6","input":"x"}',
            0,
            "30m",
            b'{"model":"gpt-5.6","input":[{"type":"message","role":"user","content":[{"type":'
            b'"input_text","text":"x"' + BREAK_30 + b"}]}]}",
            id="input text",
        ),
        pytest.param(
            "openai_responses",
            OUTPUT % b'"x"',
            0,
            "30m",
            OUTPUT % (b'[{"type":"input_text","text":"x"' + BREAK_30 + b"}]"),
            id="output text",
        ),
        pytest.param(
            "openai_responses",
            OUTPUT % b'[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"}]',
            0,
            "30m",
            OUTPUT
            % (
                b'[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"'
                + BREAK_30
                + b"}]"
            ),
            id="last part of an output",
        ),
        pytest.param(
            "openai_chat",
            b'{"model":"gpt-5.6","messages":[{"content":"s","role":"system"}]}',
            0,
            "30m",
            b'{"model":"gpt-5.6","messages":[{"role":"system","content":[{"type":"text","text":"s"'
            + BREAK
            + b"}]}]}",
            id="system message",
        ),
        pytest.param(
            "openrouter",
            b'{"model":"m","messages":[{"role":"user","content":[{"text":"x","type":"text"\n}]}]}',
            0,
            "1h",
            USER % (b"x", LONG, b""),
            id="dialect",
        ),
    ],
)
def test_bytes_of_a_marked_request(
    name: str, body: bytes, chunk: int, ttl: Ttl, expected: bytes
) -> None:
    assert splice(name, body, Mark(chunk, ttl)) == expected


RESULT = {
    "type": "tool_result",
    "content": [
        {"type": "text", "text": "A"},
        {"cache_control": {"type": "ephemeral"}, "type": "text", "text": "B"},
        {"type": "text", "text": "C"},
    ],
    "tool_use_id": "t",
    "is_error": False,
}


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("anthropic", {"model": "m", "messages": [{"role": "user", "content": [RESULT]}]}),
        (
            "openai_responses",
            {
                "model": "gpt-5.6",
                "input": [
                    {
                        "type": "function_call_output",
                        "output": [
                            {"type": "input_text", "text": "A"},
                            {
                                "type": "input_text",
                                "text": "B",
                                "prompt_cache_breakpoint": {"mode": "explicit"},
                            },
                            {"type": "input_text", "text": "C"},
                        ],
                        "call_id": "c",
                    }
                ],
            },
        ),
    ],
)
def test_markers_inside_a_tool_result(name: str, request_: Json) -> None:
    body = json.dumps(request_, indent=1).encode()
    marks = split(name, body).marks
    assert [mark.splice is None for mark in marks] == [False]
    without = splice(name, body, replace=True)
    assert split(name, without).marks == ()
    assert split(name, splice(name, without, *marks)).marks == marks


def test_marker_inside_a_marked_tool_result() -> None:
    inner = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    result = {"type": "tool_result", "content": inner, "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": [{**result, "tool_use_id": "t"}]}
    plain = json.dumps({"model": "m", "messages": [message]}).encode()
    inner[0]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    both = json.dumps({"model": "m", "messages": [message]}).encode()
    marks = split("anthropic", both).marks
    assert len(marks) == 2
    assert split("anthropic", splice("anthropic", plain, *marks)).marks == marks


def in_turn(*blocks: Json) -> list[Json]:
    """A text before these blocks, and a marked one behind them."""
    marked = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    return [{"type": "text", "text": "a"}, *blocks, marked]


def inner_document(*blocks: Json) -> Json:
    source = {"type": "content", "content": in_turn(*blocks), "note": []}
    return {"type": "document", "source": source, "title": "T", "content": []}


def inner_search(*blocks: Json) -> Json:
    return {"content": in_turn(*blocks), "type": "search_result", "source": "https://e.example"}


def inner_result(*blocks: Json) -> Json:
    return {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": in_turn(*blocks),
        "is_error": True,
    }


def inner_page(*blocks: Json) -> Json:
    page = {"type": "web_fetch_result", "url": "u", "content": inner_document(*blocks)}
    return {"type": "web_fetch_tool_result", "tool_use_id": "t", "content": page}


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (inner_document(), 1),
        (inner_search(), 1),
        (inner_page(), 1),
        (inner_result(inner_search(), inner_document()), 3),
        (inner_result(inner_document(inner_search()), {"type": "new", "content": in_turn()}), 4),
        ({**inner_document(), "cache_control": {"type": "ephemeral", "ttl": "1h"}}, 2),
        ({"type": "new", "content": ["text", 7, *in_turn()], "source": {}}, 1),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_markers_inside_documents_and_search_results(
    block: Json, count: int, indent: int | None
) -> None:
    """All of them are found, removed and put back, whatever the white space around them."""
    message = {"role": "user", "content": [{"type": "text", "text": "x"}, block]}
    body = json.dumps({"model": "m", "messages": [message]}, indent=indent).encode()
    marked = split("anthropic", body)
    assert len(marked.marks) == count == body.count(b"cache_control")
    assert {mark.ttl for mark in marked.marks} == {"1h"}
    without = splice("anthropic", body, replace=True)
    assert b"cache_control" not in without
    assert meaning("anthropic", without) == meaning("anthropic", body)
    unmarked = split("anthropic", without)
    assert (unmarked.marks, unmarked.data()) == ((), marked.data())
    again = splice("anthropic", without, *marked.marks)
    assert split("anthropic", again).marks == marked.marks
    assert json.loads(again) == json.loads(body)


def test_parsed_request_knows_the_markers_inside_documents() -> None:
    """Rendered again it has no more markers than before."""
    content = [inner_search(), {"type": "text", "text": "x"}, inner_document()]
    request = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    codec = wire.get("anthropic")
    call = codec.parse(json.dumps(request).encode())
    rendered = codec.render(call, catalog.profile("anthropic", "m"))
    assert [mark.chunk for mark in rendered.marks] == [0, 2]
    sent = codec.assemble(rendered, Plan(marks=rendered.marks)).body.join()
    assert sent.count(b"cache_control") == 2


def test_empty_object_takes_a_marker() -> None:
    body = b'{"model":"m","tools":[{}],"messages":[{"role":"user","content":"x"}]}'
    spliced = splice("anthropic", body, Mark(0, "5m"))
    assert b'"tools":[{"cache_control":{"type":"ephemeral"}}]' in spliced


OWN = (
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text",'
    b'"cache_control":{"type":"ephemeral"},"text":"b"},{"type":"text","text":"c"}]}]}'
)


def test_markers_of_the_request_stay() -> None:
    spliced = wire.splice(OWN, Plan(marks=(Mark(0, "5m"), Mark(2, "5m"))), wire="anthropic")
    assert [mark.chunk for mark in spliced.marks] == [0, 1, 2]
    assert split("anthropic", spliced.body).marks == spliced.marks
    assert (spliced.body.count(SHORT), meaning("anthropic", spliced.body)) == (
        3,
        meaning("anthropic", OWN),
    )


def test_markers_of_the_request_are_replaced_when_asked() -> None:
    spliced = wire.splice(OWN, Plan(marks=(Mark(2, "1h"),)), wire="anthropic", replace=True)
    assert spliced.marks == split("anthropic", spliced.body).marks == (Mark(2, "1h"),)
    other_ttl = wire.splice(OWN, Plan(marks=(Mark(1, "1h"),)), wire="anthropic", replace=True)
    assert split("anthropic", other_ttl.body).marks == (Mark(1, "1h"),)


@pytest.mark.parametrize(
    "block",
    [
        b'{"cache_control":{"type":"ephemeral"},"type":"text","text":"a"}',
        b'{"type":"text", "cache_control" : {"type":"ephemeral"} ,"text":"a"}',
        b'{"type":"text","text":"a" , "cache_control":{"type":"ephemeral"} }',
        b'{"type":"text","text":"a","c\\u0061che_control":{"type":"ephemeral","ttl":"5m"}}',
    ],
)
def test_marker_is_removed_wherever_it_stands(block: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":[%b]}]}' % block
    without = splice("anthropic", body, replace=True)
    assert json.loads(without)["messages"][0]["content"] == [{"type": "text", "text": "a"}]


def test_slots_count_the_markers_of_the_request() -> None:
    plan = Plan(marks=(Mark(0, "5m"), Mark(2, "5m")))
    spliced = wire.splice(OWN, plan, wire="anthropic", slots=2)
    assert [mark.chunk for mark in spliced.marks] == [1, 2]
    (notice,) = spliced.notices
    assert (notice.code, notice.path) == ("marker_left_out", "messages[0].content[0]")


def test_ttls_fall_around_the_markers_of_the_request() -> None:
    after = wire.splice(OWN, Plan(marks=(Mark(0, "5m"), Mark(2, "1h"))), wire="anthropic")
    assert [mark.ttl for mark in after.marks] == ["5m", "5m", "5m"]
    assert [notice.code for notice in after.notices] == ["ttl_changed"]
    long = OWN.replace(b'"ephemeral"', b'"ephemeral","ttl":"1h"')
    before = wire.splice(long, Plan(marks=(Mark(0, "5m"), Mark(2, "5m"))), wire="anthropic")
    assert [mark.ttl for mark in before.marks] == ["1h", "1h", "5m"]


def test_null_marker_is_replaced() -> None:
    body = OWN.replace(b'{"type":"ephemeral"}', b"null")
    spliced = splice("anthropic", body, Mark(1, "1h"))
    assert split("anthropic", spliced).marks == (Mark(1, "1h"),)
    assert spliced.count(b"cache_control") == 1


def test_marker_of_another_form_stays() -> None:
    body = OWN.replace(b'"ephemeral"', b'"lasting"')
    spliced = wire.splice(body, Plan(marks=(Mark(1, "5m"),)), wire="openrouter")
    assert json.loads(spliced.body) == json.loads(body)
    assert [notice.code for notice in spliced.notices] == ["marker_left_out"]


# ── Markers that are elements ────────────────────────────────────────────────────────────────────

CONVERSE = (
    b'{"toolConfig": {"tools": [ {"toolSpec":{"name":"f","inputSchema":{"json":{}}}} ,'
    b' {"toolSpec":{"name":"g","inputSchema":{"json":{}}}} ]}, "system":[{"text":"s"}],"messages":[{"role":"user","content":[ {"text":"a"} ,%b {"text":"b"}, {"text":'
    b'"c"} ]}], "modelId":"us.%b"}'
)


def sent(body: bytes) -> Json:
    """A request without its model, which is in the path."""
    return {name: value for name, value in json.loads(body).items() if name != "modelId"}


CLAUDE, NOVA = b"anthropic.claude-sonnet-5", b"amazon.nova-pro-v1:0"
FIVE, HOUR = (
    b',{"cachePoint":{"type":"default"}}',
    b',{"cachePoint":{"type":"default","ttl":"1h"}}',
)


@each_row(
    ("own", "marks", "after"),
    [
        (b"", (Mark(1, "1h"),), {b'"g","inputSchema":{"json":{}}}}': HOUR}),
        (b"", (Mark(2, "1h"), Mark(5, "5m")), {b'"s"}': HOUR, b'"c"}': FIVE}),
        (b'{"cachePoint":{"type":"default"}},', (Mark(4, "5m"),), {b'"b"}': FIVE}),
        (b'{"cachePoint":{"type":"default"}},', (Mark(5, "1h"),), {b'"c"}': FIVE}),
    ],
)
def test_marker_follows_its_block(
    own: bytes, marks: tuple[Mark, ...], after: dict[bytes, bytes]
) -> None:
    body = expected = CONVERSE % (own, CLAUDE)
    for block, marker in after.items():
        expected = expected.replace(block, block + marker)
    spliced = wire.splice(body, Plan(marks=marks), wire="bedrock")
    assert sent(spliced.body) == sent(expected)
    assert spliced.marks == split("bedrock", expected).marks


def test_own_elements_are_replaced() -> None:
    own = b'{"cachePoint":{"type":"default", "ttl":"1h"}} ,'
    body, bare = CONVERSE % (own, CLAUDE), CONVERSE % (b"", CLAUDE)
    assert split("bedrock", body).marks == (Mark(3, "1h"),)
    assert sent(splice("bedrock", body, replace=True)) == sent(bare)
    moved = splice("bedrock", body, Mark(3, "5m"), Mark(4, "5m"), replace=True)
    marked = bare.replace(b'"a"}', b'"a"}' + FIVE).replace(b'"b"}', b'"b"}' + FIVE)
    assert sent(moved) == sent(marked)


def test_element_of_another_form_stays() -> None:
    body = CONVERSE % (b'{"cachePoint":{"type":"new"}},', CLAUDE)
    spliced = wire.splice(body, Plan(marks=(Mark(3, "5m"),)), wire="bedrock")
    assert sent(spliced.body) == sent(body)
    assert [notice.code for notice in spliced.notices] == ["marker_left_out"]


@each_row(
    ("mark", "reason"),
    [
        (Mark(1, "5m"), r"toolConfig.tools\[1\] takes no marker"),
        (Mark(2, "1h"), "no TTL of 1h; use 5m"),
    ],
)
def test_family_limits_where_an_element_may_stand(mark: Mark, reason: str) -> None:
    body = CONVERSE % (b"", NOVA)
    marked = splice("bedrock", body, Mark(2, "5m"))
    assert sent(marked) == sent(body.replace(b'"s"}', b'"s"}' + FIVE))
    with pytest.raises(InvalidRequest, match=reason):
        splice("bedrock", body, mark)


# ── Fields of the request ────────────────────────────────────────────────────────────────────────

CHAT = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
LISTED = CHAT.replace(b'"x"', b'[{"type":"text","text":"x"}]')


def test_automatic_breakpoint_is_added_once() -> None:
    plan = Plan(automatic="5m")
    spliced = wire.splice(CHAT, plan, wire="anthropic").body
    assert spliced == LISTED[:-1] + SHORT + b"}"
    assert wire.splice(spliced, plan, wire="anthropic").body == spliced
    assert wire.splice(spliced, Plan(), wire="anthropic").body == spliced
    assert wire.splice(spliced, Plan(), wire="anthropic", replace=True).body == LISTED


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
def test_key_and_options_are_added_only_where_absent(name: str) -> None:
    body = (CHAT if name == "openai_chat" else b'{"model":"m","input":"x"}').replace(
        b'"m"', b'"gpt-5.6"'
    )
    plan = Plan(key='k"1', only_marks=True)
    spliced = wire.splice(body, plan, wire=name).body
    fields = json.loads(spliced)
    assert fields["prompt_cache_key"] == 'k"1'
    assert fields["prompt_cache_options"] == {"mode": "explicit"}
    again = wire.splice(spliced, Plan(key="other", only_marks=True), wire=name).body
    assert json.loads(again) == fields


def test_key_of_a_header_is_returned_beside_the_body() -> None:
    spliced = wire.splice(CHAT, Plan(key="abc"), wire="xai")
    assert spliced.body == CHAT
    assert dict(spliced.request.headers)["x-grok-conv-id"] == "abc"


# ── Providers without markers, and bodies that are not what they seem ────────────────────────────


@pytest.mark.parametrize("name", UNMARKED)
def test_provider_without_markers_gets_none(name: str) -> None:
    body = LISTED
    if name == "gemini":
        body = b'{"contents":[{"role":"user","parts":[{"text":"x"}]}]}'
    elif name == "bedrock":
        body = b'{"modelId":"meta.llama4-maverick-17b-instruct-v1:0",' + LISTED[13:].replace(
            b'"type":"text",', b""
        )
    path = "/v1beta/models/g:generateContent" if name == "gemini" else ""
    spliced = wire.splice(body, Plan(marks=(Mark(0, "5m"),)), wire=name, path=path)
    assert sent(spliced.body) == sent(body)
    assert [notice.code for notice in spliced.notices] == ["markers_left_out"]


@each_row(
    "body",
    [
        b'{"model":"m","messages":[],"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"xxxx","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}'
        b"]}]}",
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a",'
        b'"cache_control":null,"cache_control":null}]}]}',
        b'{"a":{"x":1,"model":"m"},"model":"m","messages":[{"role":"user","content":"x"}],"a":{}}',
        # Read with the length of the last "a", the rest looks like the members that msgspec saw.
        CHAT[:-1] + b',"a":1,"b":22,"a":{"q":0,      "b":1}}',
        b"\xef\xbb\xbf" + CHAT,
        CHAT + b"}",
        CHAT[:-1],
        b"[]",
        b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_ambiguous_or_invalid_body_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        splice("anthropic", body, Mark(0, "5m"))


@pytest.mark.parametrize(
    ("mark", "reason"),
    [(Mark(0, "30m"), "no TTL of 30m; use 5m or 1h"), (Mark(0, "5m", 3), "no block inside")],
)
def test_impossible_marks_are_rejected(mark: Mark, reason: str) -> None:
    body = CHAT.replace(b'"x"', b'[{"type":"text","text":"x"}]')
    with pytest.raises(InvalidRequest, match=reason):
        splice("anthropic", body, mark)


@each_row("text", ["", " \n", "\u2003"])
@each_row("place", ["system", "system block", "message", "block"])
def test_blank_text_takes_no_marker(text: str, place: str) -> None:
    """Anthropic rejects a marker on it."""
    content = [{"type": "text", "text": text}] if "block" in place else text
    request: Json = {"model": "claude-sonnet-4-5", "max_tokens": 1, "messages": []}
    message = {"role": "user", "content": content if "system" not in place else "Hello?"}
    request["messages"].append(message)
    if "system" in place:
        request["system"] = content
    body = json.dumps(request).encode()
    assert markable(split("anthropic", body)) == ([1] if "system" in place else [])
    with pytest.raises(InvalidRequest, match="takes no marker"):
        splice("anthropic", body, Mark(0, "5m"))


def test_marker_on_a_blank_text_is_removed_when_markers_are_replaced() -> None:
    block = {"type": "text", "text": " ", "cache_control": {"type": "ephemeral"}}
    request = {"model": "claude-sonnet-4-5", "max_tokens": 1}
    body = json.dumps({**request, "messages": [{"role": "user", "content": [block]}]}).encode()
    assert b"cache_control" not in splice("anthropic", body, replace=True)


def test_thinking_takes_no_marker() -> None:
    thought = b'[{"type":"thinking","thinking":"","signature":""}]'
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[0\] takes no marker"):
        splice("anthropic", CHAT.replace(b'"x"', thought), Mark(0, "5m"))


def test_large_body() -> None:
    turn = [{"role": "user", "content": "ab\u00e9 " * 2000}, {"role": "assistant", "content": "o"}]
    body = json.dumps({"model": "m", "messages": turn * 400, "system": "s" * 4_000_000}).encode()
    assert len(body) > 8_000_000
    last = len(split("anthropic", body)) - 1
    spliced = splice("anthropic", body, Mark(0, "5m"), Mark(last, "5m"))
    assert json.loads(spliced.replace(SHORT, b"")) == json.loads(splice("anthropic", body))
    assert spliced.count(SHORT) == 2


# ── Planning a given request ─────────────────────────────────────────────────────────────────────


@each_row(
    ("name", "model", "options", "expected"),
    [
        ("openai_chat", "gpt-5.6", None, (True, True)),
        ("openai_chat", "gpt-5.6", {"mode": "explicit"}, (False, False)),
        ("openai_chat", "gpt-4o", None, (False, False)),
        ("openai_responses", "gpt-5.6", None, (True, True)),
        ("openai_responses", "gpt-5.6", {"mode": "implicit"}, (True, False)),
        ("openai_responses", "gpt-4o", None, (False, False)),
    ],
)
def test_request_that_was_read_knows_the_provider_s_own_breakpoint(
    name: str, model: str, options: Json | None, expected: tuple[bool, bool]
) -> None:
    request: Json = {"model": model}
    if options is not None:
        request["prompt_cache_options"] = options
    request |= {"input": "x"} if name == "openai_responses" else json.loads(CHAT) | request
    body = json.dumps(request).encode()
    rules = catalog.rules("openai", model, name)
    read = read_split(
        split(name, body), decode_members(body), CallHints(), rules, "openai", dialect=None
    )
    rendered = read.rendered
    assert (rendered.automatic is not None, rendered.only_marks is not None) == expected
    assert rendered.key_place == b',"prompt_cache_key":'


def test_plan_of_the_planner_fits() -> None:
    body = json.dumps(
        {
            "model": "claude-opus-4-8",
            "tools": [{"name": "f", "input_schema": {"description": "d" * 20_000}}],
            "system": "s" * 20_000,
            "messages": [{"role": "user", "content": "x" * 20_000}],
        }
    ).encode()
    rendered = split("anthropic", body)
    rules = catalog.rules("anthropic", "claude-opus-4-8", "anthropic")
    plan = Planner(AppMemory(rules)).plan(rendered, at=0.0)
    spliced = wire.splice(body, plan, wire="anthropic", slots=rules.slots.value)
    assert split("anthropic", spliced.body).marks == plan.marks
    assert [rendered.chunk(mark.chunk).section for mark in plan.marks] == [
        "tools",
        "system",
        "messages",
    ]


def test_parsed_marks_are_those_of_the_plan() -> None:
    spliced = splice("anthropic", CHAT[:-1] + b',"max_tokens":1}', Mark(0, "1h"))
    cache: PromptCachePlan = wire.get("anthropic").parse(spliced).ir.cache
    assert [mark.ttl for mark in cache.marks] == ["1h"]


# ── The host of a router ─────────────────────────────────────────────────────────────────────────

HOST_PINS = [
    ("openrouter", '"x": 1', '"x":1,"provider":{"order":["A b"]}'),
    ("openrouter", '"provider": { }', '"provider":{"order":["A b"]}'),
    ("openrouter", '"provider" :{"zdr" :true }', '"provider":{"zdr":true,"order":["A b"]}'),
    ("openrouter", '"provider": {"order": ["B"]}', None),
    ("openrouter", '"provider": {"order": null}', None),
    ("openrouter", '"provider": {"sort": "price"}', None),
    ("openrouter", '"provider": null', '"provider":{"order":["A b"]}'),
    ("openrouter", '"provider": "B"', None),
    ("vercel", '"x": 1', '"x":1,"providerOptions":{"gateway":{"order":["A b"]}}'),
    (
        "vercel",
        '"providerOptions": {"anthropic": {}}',
        '"providerOptions":{"anthropic":{},"gateway":{"order":["A b"]}}',
    ),
    ("vercel", '"providerOptions": {"gateway": {"only": []}}', None),
]


@each_row(("name", "fields", "pinned"), HOST_PINS)
def test_host_is_added_to_a_request_that_chooses_none(
    name: str, fields: str, pinned: str | None
) -> None:
    body = CHAT[:-1] + f",{fields}}}\n".encode()
    pinning = json.loads(wire.splice(body, Plan(host="A b"), wire=name).body)
    plain = json.loads(wire.splice(body, Plan(), wire=name).body)
    assert pinning == plain | json.loads(f"{{{fields if pinned is None else pinned}}}")
    for field, value in json.loads(f"{{{fields}}}").items():
        assert plain.get(field) == value


@each_row(
    ("model", "sent"),
    [("some/model", "some/model:A-b"), ("some/model:fastest", "some/model:fastest")],
)
def test_host_follows_the_name_of_the_model(model: str, sent: str) -> None:
    body = CHAT[:-1].replace(b'"m"', b'"%b"') + b', "x": 1}'
    spliced = wire.splice(body % model.encode(), Plan(host="A-b"), wire="huggingface")
    assert json.loads(spliced.body) == json.loads(body % sent.encode())
