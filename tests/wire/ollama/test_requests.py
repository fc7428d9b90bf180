"""Whole requests, both ways: messages, tools and parameters, the call on one side and the exact
bytes on the other."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import cache, catalog
from anaphora.cache.plan import plan_once
from anaphora.errors import InvalidRequest
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
    Segment,
    ToolChoice,
    ToolMark,
)
from anaphora.rendered import Kind, Plan, Rendered
from anaphora.values import (
    Audio,
    Bytes,
    Conversation,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    ProviderTool,
    Refusal,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire import ollama

MODEL = "qwen3"
PNG = Bytes(b"\x89PNG\r\n\x1a\n", "image/png")
B64 = base64.b64encode(PNG.data)
SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}}}'


def render(call: Call, **figures: Any) -> Rendered:
    known = catalog.shipped()
    if figures:
        rows = "\n".join(f"{name} = {json.dumps(value)}" for name, value in figures.items())
        row = f'[[profiles]]\nsource = "the test"\ndate = 2026-11-15\nmodels = ["{MODEL}"]\n{rows}'
        known = known.with_rows(f'provider = "ollama"\n{row}')
    return ollama.render(call, known.profile("ollama", call.model))


def rendered_body(call: Call) -> tuple[bytes, list[str]]:
    rendered = render(call)
    body = ollama.assemble(rendered, Plan()).body.join()
    return body, [notice.code for notice in rendered.notices]


def chat(*messages: Message, **fields: Any) -> Call:
    ir = PromptIR.chat(
        Conversation(messages), system=fields.pop("system", ()), cache=fields.pop("cache", None)
    )
    return Call(ir=ir, model=MODEL, **fields)


def around(messages: bytes) -> bytes:
    return b'{"model":"qwen3","messages":[' + messages + b'],"stream":false}'


U = Message.user("hi")
HI = b'{"role":"user","content":"hi"}'
CALL = b'{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"name":"f","arguments":{}}}]}'
MADE_UP = {"ollama.form": '{"missing":["id"]}'}
NUMBERED = {"ollama.form": '{"missing":["id"],"index":3}'}
NO_ID = {"ollama.form": '{"missing":["tool_call_id"]}'}
NO_NAME = {"ollama.form": '{"missing":["tool_name"]}'}
NEITHER = {"ollama.form": '{"missing":["tool_call_id","tool_name"]}'}


# ── Messages, both ways ──────────────────────────────────────────────────────────────────────────

BOTH_WAYS: list[tuple[str, tuple[Message, ...], bytes]] = [
    ("a text", (U,), HI),
    ("neighbours stay apart", (U, U), HI + b"," + HI),
    ("an empty text", (Message.user(""),), b'{"role":"user","content":""}'),
    (
        "an image before its text",
        (Message.user(Image(PNG), "what?"),),
        b'{"role":"user","content":"what?","images":["' + B64 + b'"]}',
    ),
    (
        "an image alone",
        (Message.user(Image(PNG)),),
        b'{"role":"user","content":"","images":["' + B64 + b'"]}',
    ),
    (
        "an image of no known kind",
        (Message.user(Opaque("ollama", "image", '{"data":"QUJD"}'), "what?"),),
        b'{"role":"user","content":"what?","images":["QUJD"]}',
    ),
    (
        "unknown fields",
        (Message.user("hi", Opaque("ollama", "message", '{"name":"n","x":[1, 2]}')),),
        b'{"role":"user","name":"n","x":[1, 2],"content":"hi"}',
    ),
    (
        "a system message inside",
        (U, Message.system("s")),
        HI + b',{"role":"system","content":"s"}',
    ),
    (
        "a blank system message in front",
        (Message.system(""), U),
        b'{"role":"system","content":""},' + HI,
    ),
    (
        "all fields of an assistant",
        (
            U,
            Message.assistant(
                Thinking("hm", provider="ollama"),
                Text("I look."),
                ToolCall("c1", "f", '{"b": 1, "a": [2]}'),
                ToolCall("c2", "g"),
            ),
        ),
        HI + b',{"role":"assistant","content":"I look.","thinking":"hm","tool_calls":['
        b'{"id":"c1","function":{"name":"f","arguments":{"b": 1, "a": [2]}}},'
        b'{"id":"c2","function":{"name":"g","arguments":{}}}]}',
    ),
    (
        "an answer with the id and the name",
        (U, Message.assistant(ToolCall("c", "f")), Message.tool("c", "ok", name="f")),
        HI + b"," + CALL + b',{"role":"tool","tool_name":"f","tool_call_id":"c","content":"ok"}',
    ),
    (
        "an answer with an image",
        (
            U,
            Message.assistant(ToolCall("c", "f")),
            Message.tool("c", (Image(PNG), Text("ok")), name="f"),
        ),
        HI
        + b","
        + CALL
        + b',{"role":"tool","tool_name":"f","tool_call_id":"c","content":"ok","images":["'
        + B64
        + b'"]}',
    ),
    (
        "calls without ids, answered by name and in order",
        (
            U,
            Message.assistant(
                ToolCall("call_1_0", "f", "{}", MADE_UP), ToolCall("call_1_1", "g", "{}", NUMBERED)
            ),
            Message(role="tool", parts=(ToolResult("call_1_1", "G", name="g", extras=NO_ID),)),
            Message(role="tool", parts=(ToolResult("call_1_0", "F", extras=NEITHER),)),
            Message(role="tool", parts=(ToolResult("", "?", extras=NEITHER),)),
        ),
        HI + b',{"role":"assistant","content":"","tool_calls":['
        b'{"function":{"name":"f","arguments":{}}},'
        b'{"function":{"index":3,"name":"g","arguments":{}}}]},'
        b'{"role":"tool","tool_name":"g","content":"G"},'
        b'{"role":"tool","content":"F"},'
        b'{"role":"tool","content":"?"}',
    ),
    (
        "a result without the fields of its call",
        (
            U,
            Message.assistant(ToolCall("c", "f")),
            Message(role="tool", parts=(ToolResult("c", "ok", extras=NO_NAME),)),
        ),
        HI + b"," + CALL + b',{"role":"tool","tool_call_id":"c","content":"ok"}',
    ),
    (
        "unknown fields of calls and answers",
        (
            U,
            Message.assistant(ToolCall("c", "f", "{}", {"ollama": '{"function":{"y":2},"x":1}'})),
            Message(
                role="tool",
                parts=(ToolResult("c", "ok", name="f", extras={"ollama": '{"z":3}'}),),
            ),
        ),
        HI + b',{"role":"assistant","content":"","tool_calls":['
        b'{"id":"c","function":{"name":"f","arguments":{},"y":2},"x":1}]},'
        b'{"role":"tool","tool_name":"f","tool_call_id":"c","z":3,"content":"ok"}',
    ),
    (
        "fields of an assistant's in a user's message",
        (Message.user("hi", Opaque("ollama", "message", '{"thinking":"hm"}')),),
        b'{"role":"user","thinking":"hm","content":"hi"}',
    ),
]


@each_row("messages, data", [row[1:] for row in BOTH_WAYS], ids=[r[0] for r in BOTH_WAYS])
def test_messages_both_ways(messages: tuple[Message, ...], data: bytes) -> None:
    assert rendered_body(chat(*messages)) == (around(data), [])
    again = ollama.parse(around(data))
    assert [(m.role, m.parts) for m in again.ir.body_chat()] == [
        (m.role, m.parts) for m in messages
    ]


# ── Messages that change on the wire ────────────────────────────────────────────────────────────

ONE_WAY: list[tuple[str, tuple[Message, ...], bytes, list[str]]] = [
    (
        "texts are messages of their own",
        (Message.user("a", "b"),),
        b'{"role":"user","content":"a"},{"role":"user","content":"b"}',
        [],
    ),
    (
        "images go with the text behind them",
        (Message.user("a", Image(PNG), "b"),),
        b'{"role":"user","content":"a"},{"role":"user","content":"b","images":["' + B64 + b'"]}',
        [],
    ),
    (
        "an image behind the last text",
        (Message.user("what?", Image(PNG)),),
        b'{"role":"user","content":"what?","images":["' + B64 + b'"]}',
        ["parts_reordered"],
    ),
    (
        "fields stand in the first",
        (Message.user("a", "b", Opaque("ollama", "message", '{"name":"n"}')),),
        b'{"role":"user","name":"n","content":"a"},{"role":"user","content":"b"}',
        [],
    ),
    (
        "an assistant's texts are one",
        (U, Message.assistant("It is ", "raining.")),
        HI + b',{"role":"assistant","content":"It is raining."}',
        ["texts_joined"],
    ),
    (
        "text behind a call, a refusal",
        (U, Message.assistant(ToolCall("c", "f"), Refusal("no"))),
        HI + b',{"role":"assistant","content":"no","tool_calls":'
        b'[{"id":"c","function":{"name":"f","arguments":{}}}]}',
        ["refusal_as_text", "parts_reordered"],
    ),
    (
        "reasoning of another provider, and of none",
        (U, Message.assistant(Thinking("a", "sig", provider="anthropic"), Thinking("b"), "ok")),
        HI + b',{"role":"assistant","content":"ok"}',
        ["foreign_thinking", "foreign_thinking"],
    ),
    (
        "reasoning with a signature",
        (U, Message.assistant(Thinking("a", "sig", provider="ollama"), "b")),
        HI + b',{"role":"assistant","content":"b","thinking":"a"}',
        ["signature_left_out"],
    ),
    (
        "arguments that are no object",
        (U, Message.assistant(ToolCall("c", "f", "{cut"), ToolCall("d", "f", " "))),
        HI + b',{"role":"assistant","content":"","tool_calls":['
        b'{"id":"c","function":{"name":"f","arguments":{"invalid_arguments":"{cut"}}},'
        b'{"id":"d","function":{"name":"f","arguments":{}}}]}',
        ["arguments_not_an_object"],
    ),
    (
        "a result names its tool, and has no error flag",
        (U, Message.assistant(ToolCall("c", "f")), Message.tool("c", "no", error=True)),
        HI + b"," + CALL + b',{"role":"tool","tool_name":"f","tool_call_id":"c","content":"no"}',
        ["error_flag_left_out"],
    ),
    (
        "a result to a call that had no id",
        (
            U,
            Message.assistant(ToolCall("call_0", "f", "{}", MADE_UP)),
            Message.tool("call_0", "ok"),
        ),
        HI + b',{"role":"assistant","content":"","tool_calls":'
        b'[{"function":{"name":"f","arguments":{}}}]},'
        b'{"role":"tool","tool_name":"f","content":"ok"}',
        [],
    ),
    (
        "a result's parts",
        (
            Message.tool(
                "c", (Text("a"), Text("b"), Image(PNG), Document(Bytes(b"x", "text/plain")))
            ),
        ),
        b'{"role":"tool","tool_call_id":"c","content":"ab","images":["' + B64 + b'"]}',
        ["parts_reordered", "part_left_out", "texts_joined"],
    ),
    (
        "results come before other parts",
        (Message.user("and?", ToolResult("c", "ok")),),
        b'{"role":"tool","tool_call_id":"c","content":"ok"},{"role":"user","content":"and?"}',
        ["parts_reordered"],
    ),
    (
        "pictures that are elsewhere, and what is no picture",
        (
            Message.user(
                Image(Url("https://x.test/a.png")),
                Image(FileId("openai", "file-1")),
                Document(Bytes(b"%PDF", "application/pdf")),
                Audio(Bytes(b"RIFF", "audio/wav")),
                Opaque("anthropic", "search_result", "{}"),
                Opaque("ollama", "x", "{}"),
                "hi",
            ),
        ),
        HI,
        [*["image_source"] * 2, *["part_left_out"] * 2, "foreign_block", "part_left_out"],
    ),
    (
        "a picture's kind and detail",
        (Message.user(Image(Bytes(b"ABC", "image/png"), "low"), "hi"),),
        b'{"role":"user","content":"hi","images":["QUJD"]}',
        ["media_type_left_out", "detail_unsupported"],
    ),
    (
        "fields of what is only a text",
        (Message.user(Text("hi", {"ollama": '{"x":1}'})),),
        HI,
        ["fields_left_out"],
    ),
    (
        "empty messages",
        (
            U,
            Message.user(),
            Message.assistant(Thinking("", provider="ollama")),
            Message.assistant(Opaque("ollama", "message", '{"x":1}')),
            Message.user(Opaque("ollama", "message", '{"x":1}')),
            Message.system(ToolResult("c", "x")),
        ),
        HI,
        ["empty_message", "empty_message", "fields_left_out", "fields_left_out", "part_left_out"],
    ),
]


@each_row("messages, data, notices", [row[1:] for row in ONE_WAY], ids=[row[0] for row in ONE_WAY])
def test_changed_parts_have_a_notice(
    messages: tuple[Message, ...], data: bytes, notices: list[str]
) -> None:
    assert rendered_body(chat(*messages)) == (around(data), notices)


def test_notices_and_errors_name_the_path() -> None:
    tool = Message.tool("c", (Text("a"), Image(Url("https://x.test/a.png"))))
    rendered = render(chat(U, tool))
    assert [n.path for n in rendered.notices] == ["conversation[1].parts[0].content[1]"]
    pdf = Image(Bytes(b"%PDF", "application/pdf"))
    for message, path in (
        (Message.user("a", pdf), "conversation[1].parts[1].source.media_type"),
        (Message.tool("c", (pdf,)), "conversation[1].parts[0].content[0].source.media_type"),
        (Message.assistant("a", pdf), "conversation[1].parts[1].source.media_type"),
        (Message.assistant(ToolCall("c", "f", "\ud800")), "conversation[1].parts[0].arguments"),
        (
            Message.assistant(ToolCall("c", "f", "{}", {"ollama.form": "[]"})),
            "conversation[1].parts[0].extras.ollama.form",
        ),
    ):
        with pytest.raises(InvalidRequest) as caught:
            render(chat(U, message))
        assert caught.value.path == path


@each_row(
    "data, kind",
    [
        (b"\x89PNG\r\n\x1a\nrest", "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF89arest", "image/gif"),
        (b"RIFF1234WEBPrest", "image/webp"),
        (b"RIFF1234WAVErest", None),
        (b"", None),
    ],
)
def test_image_types_by_their_first_bytes(data: bytes, kind: str | None) -> None:
    encoded = base64.b64encode(data).decode()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "images": [encoded]}]}).encode()
    (part,) = ollama.parse(body).ir.body_chat()[0].parts
    if kind is None:
        assert part == Opaque(
            "ollama", "image", json.dumps({"data": encoded}, separators=(",", ":"))
        )
    else:
        assert part == Image(Bytes(data, kind))


# ── System ───────────────────────────────────────────────────────────────────────────────────────


def test_system_blocks_are_one_text_and_a_chunk_each() -> None:
    blocks = [PromptBlock("one", 'a "b"'), PromptBlock("blank", " "), PromptBlock("two", "c\n")]
    rendered = render(chat(U, system=blocks, tools=(Tool("f"),)))
    body = json.loads(ollama.assemble(rendered, Plan()).body.join())
    assert list(body) == ["model", "tools", "messages", "stream"]
    assert body["messages"][0] == {"role": "system", "content": 'a "b"\n\nc\n'}
    assert [(c.label, c.path) for c in rendered if c.kind is Kind.SYSTEM] == [
        ("one", "messages[0].content[0]"),
        ("two", "messages[0].content[1]"),
    ]
    assert [run.section for run in rendered.runs] == ["system", "tools", "messages"]
    assert rendered.chunk(3).path == "messages[1].content[0]"


def test_system_text_is_sent_where_it_differs_from_the_blocks() -> None:
    ir = PromptIR(
        system_text="the text",
        system_blocks=(PromptBlock("one", "a block"),),
        segments=(Segment.of(SegmentRole.CONVERSATION, U),),
    )
    body, notices = rendered_body(Call(ir=ir, model=MODEL))
    assert body == around(b'{"role":"system","content":"the text"},' + HI)
    assert notices == []


def test_a_system_prompt_alone() -> None:
    assert rendered_body(chat(system="s"))[0] == around(b'{"role":"system","content":"s"}')


@pytest.mark.parametrize(
    "first",
    [
        {"role": "system", "content": " "},
        {"role": "system", "content": "s", "images": ["QUJD"]},
        {"role": "system", "content": "s", "x": 1},
    ],
)
def test_other_system_messages_stay_messages(first: dict[str, Any]) -> None:
    body = json.dumps({"model": MODEL, "messages": [first, {"role": "user", "content": "u"}]})
    call = ollama.parse(body.encode())
    assert call.ir.system_field() == ""
    assert call.ir.body_chat()[0].role == "system"
    again, _ = rendered_body(call)
    assert json.loads(again)["messages"][0] == first


# ── Without messages ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body", [b'{"model":"m"}', b'{"model":"m","messages":[],"keep_alive":0,"stream":false}']
)
def test_a_request_that_only_loads_or_unloads(body: bytes) -> None:
    sent = {"messages": [], "stream": True} | json.loads(body)
    assert json.loads(rendered_body(ollama.parse(body))[0]) == sent
    assert json.loads(ollama.assemble(ollama.split(body), Plan()).body.join()) == {
        "messages": [],
        **json.loads(body),
    }


def test_a_request_with_a_handle_can_be_planned_and_certified() -> None:
    rendered = render(chat())
    assert plan_once(rendered, catalog.rules("ollama", MODEL), reuse_expected=True) == Plan()
    empty = cache.fingerprint(rendered)
    assert (empty.size, empty.chunks) == (0, 0)
    assert cache.fingerprint(render(chat(U))).extends(empty)


def test_empty_messages_do_not_become_a_load_request() -> None:
    with pytest.raises(InvalidRequest, match="all messages are empty"):
        render(chat(Message.user()))


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "tool, data",
    [
        (
            Tool("f", "Does.", SCHEMA),
            b'{"type":"function","function":{"name":"f","description":"Does.","parameters":'
            + SCHEMA.encode()
            + b"}}",
        ),
        (
            Tool("f", extras={"ollama": '{"function":{"strict":true},"items":1}'}),
            b'{"type":"function","function":{"name":"f","parameters":{"properties":{},'
            b'"type":"object"},"strict":true},"items":1}',
        ),
        (
            ProviderTool("ollama", "web_search", '{"type":"web_search", "x":1}'),
            b'{"type":"web_search", "x":1}',
        ),
    ],
)
def test_a_tool_both_ways(tool: Any, data: bytes) -> None:
    body, notices = rendered_body(chat(U, tools=(tool,)))
    assert (body, notices) == (b'{"model":"qwen3","tools":[' + data + b"]," + around(HI)[17:], [])
    assert ollama.parse(body).tools == (tool,)


def test_unsupported_tool_settings_have_a_notice() -> None:
    tools = (Tool("f", strict=True), Tool("g", strict=False), ProviderTool("openai", "w", "{}"))
    body, notices = rendered_body(chat(U, tools=tools))
    assert notices == ["foreign_tool", "strict_left_out"]
    assert b"strict" not in body


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────


@each_row(
    "params, tail",
    [
        (Params(), b'"stream":false'),
        (Params(stream=True), b'"stream":true'),
        (
            Params(max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, seed=7, stop=("a", "b")),
            b'"stream":false,"options":{"num_predict":9,"temperature":0.5,"top_p":0.9,"top_k":40,'
            b'"seed":7,"stop":["a","b"]}',
        ),
        (
            Params(frequency_penalty=0.1, presence_penalty=0.2),
            b'"stream":false,"options":{"frequency_penalty":0.1,"presence_penalty":0.2}',
        ),
        (Params(reasoning=Reasoning("enabled")), b'"stream":false,"think":true'),
        (Params(reasoning=Reasoning("disabled")), b'"stream":false,"think":false'),
        *(
            (
                Params(reasoning=Reasoning(effort=level)),
                b'"stream":false,"think":"%b"' % level.encode(),
            )
            for level in ("low", "medium", "high", "max")
        ),
        (Params(output=OutputSchema(SCHEMA)), b'"stream":false,"format":' + SCHEMA.encode()),
        (Params(output="json"), b'"stream":false,"format":"json"'),
    ],
)
def test_parameters_both_ways(params: Params, tail: bytes) -> None:
    body, notices = rendered_body(chat(U, params=params))
    assert (body, notices) == (around(HI).replace(b'"stream":false', tail), [])
    assert ollama.parse(body).params == params


@each_row(
    "carried",
    [
        {"format": "yaml"},
        {"format": ""},
        {"format": True},
        {"think": "ultra"},
        {"keep_alive": "5m", "truncate": False, "shift": True},
        {"keep_alive": -1, "logprobs": True, "top_logprobs": 3},
        {"options": {"num_ctx": 4096, "num_predict": -1, "stop": "a text", "seed": "x"}},
        {"options": [1]},
        {"unknown_field": {"a": [1, None]}},
    ],
)
def test_unknown_settings_are_kept(carried: dict[str, Any]) -> None:
    sent = {"model": MODEL, "messages": [{"role": "user", "content": "u"}], "stream": False}
    call = ollama.parse(json.dumps({**sent, **carried}).encode())
    assert call.params == Params()
    body, notices = rendered_body(call)
    assert (json.loads(body), notices) == ({**sent, **carried}, [])


def test_known_and_unknown_options_are_merged() -> None:
    options = {"temperature": 1, "num_ctx": 4096, "num_predict": 5, "mirostat": 2, "stop": ["a"]}
    sent = {"model": MODEL, "messages": [], "stream": True, "options": options}
    call = ollama.parse(json.dumps(sent).encode())
    assert call.params == Params(temperature=1, max_tokens=5, stop=("a",), stream=True)
    assert call.extras == {"ollama": '{"options":{"num_ctx":4096,"mirostat":2}}'}
    assert json.loads(rendered_body(call)[0]) == sent


def test_a_field_given_twice_is_rejected() -> None:
    call = chat(U, params=Params(temperature=1), extras={"ollama": '{"options":{"temperature":0}}'})
    with pytest.raises(InvalidRequest) as caught:
        render(call)
    assert caught.value.path == "extras.ollama.options.temperature"


@each_row(
    "params, tail, notices",
    [
        (Params(reasoning=Reasoning(effort="none")), b',"think":false', []),
        (
            Params(reasoning=Reasoning(effort="minimal")),
            b',"think":"low"',
            ["params.reasoning.effort"],
        ),
        (
            Params(reasoning=Reasoning(effort="xhigh")),
            b',"think":"max"',
            ["params.reasoning.effort"],
        ),
        (Params(reasoning=Reasoning("enabled", "high")), b',"think":"high"', []),
        (Params(reasoning=Reasoning("adaptive")), b',"think":true', ["params.reasoning.mode"]),
        (
            Params(reasoning=Reasoning("disabled", "high")),
            b',"think":false',
            ["params.reasoning.effort"],
        ),
        (
            Params(reasoning=Reasoning(None, None, 2048, "omitted", "auto")),
            b"",
            [f"params.reasoning.{name}" for name in ("budget_tokens", "display", "summary")],
        ),
        (Params(tool_choice=ToolChoice("auto", parallel=True)), b"", []),
        (Params(tool_choice=ToolChoice("none")), b"", ["params.tool_choice"]),
        (
            Params(tool_choice=ToolChoice("tool", "f", False)),
            b"",
            ["params.tool_choice", "params.tool_choice.parallel"],
        ),
        (
            Params(output=OutputSchema("{}", "n", "d", False)),
            b',"format":{}',
            ["params.output.name", "params.output.description", "params.output.strict"],
        ),
        (Params(n=1), b"", []),
        (
            Params(n=2, user="u", metadata={"a": "b"}, service_tier="flex"),
            b"",
            ["params.n", "params.metadata", "params.user", "params.service_tier"],
        ),
        (
            Params(verbosity="low", store=False, include=("x",), truncation="auto"),
            b"",
            [f"params.{name}" for name in ("verbosity", "store", "include", "truncation")],
        ),
    ],
)
def test_unsupported_options_have_a_notice(params: Params, tail: bytes, notices: list[str]) -> None:
    rendered = render(chat(U, tools=(Tool("f"),), params=params))
    assert rendered.envelope.tail == b',"stream":false' + tail + b"}"
    assert [notice.path for notice in rendered.notices] == notices
    assert b'"tools":' in ollama.assemble(rendered, Plan()).body.join()


@each_row(
    "params, path",
    [
        (Params(max_tokens=-1), "params.max_tokens"),
        (Params(temperature=float("nan")), "params.temperature"),
        (Params(reasoning=Reasoning(effort="a lot")), "params.reasoning.effort"),
        (Params(tool_choice=ToolChoice("tool")), "params.tool_choice.name"),
        (Params(output=OutputSchema("[]")), "params.output.schema"),
    ],
)
def test_invalid_calls_are_rejected(params: Params, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(chat(U, params=params))
    assert caught.value.path == path


@pytest.mark.parametrize(
    "params, feature, path",
    [
        (Params(reasoning=Reasoning("disabled")), "disabled_thinking", "params.reasoning"),
        (Params(top_k=1), "sampling", "params.top_k"),
        (Params(top_p=0.5), "altered_sampling", "params.top_p"),
        (Params(stop=("x",)), "stop", "params.stop"),
    ],
)
def test_settings_that_the_model_refuses_are_rejected(
    params: Params, feature: str, path: str
) -> None:
    call = chat(U, params=params)
    with pytest.raises(InvalidRequest, match="qwen3 refuses") as caught:
        render(call, refusals=[feature])
    assert caught.value.path == path
    render(call, refusals=[])


# ── The cache ────────────────────────────────────────────────────────────────────────────────────


def test_marks_have_a_notice_and_are_not_sent() -> None:
    requested = PromptCachePlan(
        marks=(BlockMark(0), ToolMark("f"), PartMark("m0")), mode="explicit", key="k", prewarm=True
    )
    block = PromptBlock.cached_long("one", "s")
    rendered = render(chat(U, system=[block], tools=(Tool("f"),), cache=requested))
    assert [(n.code, n.path) for n in rendered.notices] == [
        *(("cache_option_left_out", f"cache.{name}") for name in ("mode", "key", "prewarm")),
        *(("mark_left_out", f"cache.marks[{index}]") for index in range(3)),
    ]
    plan = plan_once(rendered, catalog.rules("ollama", MODEL), reuse_expected=True)
    assert (
        ollama.assemble(rendered, plan).body.join() == ollama.assemble(rendered, Plan()).body.join()
    )


@pytest.mark.parametrize("strips", [True, False])
def test_a_state_turn_that_drops_thinking_has_a_notice(strips: bool) -> None:
    thought = Thinking("hm", provider="ollama")
    loop = (U, Message.assistant(thought, ToolCall("c", "f")), Message.tool("c", "ok"))

    def codes(
        *conversation: Message, tail: tuple[Message, ...] = (Message.user("state"),)
    ) -> list[str]:
        call = Call(ir=PromptIR.chat(conversation, tail=tail), model=MODEL)
        return [notice.code for notice in render(call, strips_thinking=strips).notices]

    assert codes(*loop) == (["state_strips_thinking"] if strips else [])
    assert codes(*loop, tail=()) == []
    assert codes(*loop, tail=(Message.system("state"),)) == []
    assert codes(*loop, Message.assistant("done")) == []
    assert codes(U, Message.assistant(ToolCall("c", "f")), Message.tool("c", "ok")) == []
    assert codes(Message.tool("c", "ok")) == []


# ── Requests that are none ───────────────────────────────────────────────────────────────────────


@each_row(
    "body, path",
    [
        ({"messages": []}, "$.model"),
        ({"model": "m", "messages": {}}, "$.messages"),
        ({"model": "m", "messages": [1]}, "$.messages[0]"),
        ({"model": "m", "messages": [{"content": "x"}]}, "$.messages[0].role"),
        ({"model": "m", "messages": [{"role": "narrator"}]}, "$.messages[0].role"),
        ({"model": "m", "messages": [{"role": "user", "content": []}]}, "$.messages[0].content"),
        ({"model": "m", "messages": [{"role": "user", "images": [1]}]}, "$.messages[0].images[0]"),
        (
            {"model": "m", "messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "$.messages[0].tool_calls[0].function",
        ),
        (
            {
                "model": "m",
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                    }
                ],
            },
            "$.messages[0].tool_calls[0].function.arguments",
        ),
        ({"model": "m", "stream": "yes"}, "$.stream"),
        (
            {"model": "m", "tools": [{"type": "function", "function": {}}]},
            "$.tools[0].function.name",
        ),
    ],
)
def test_invalid_requests_name_the_path(body: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ollama.parse(json.dumps(body).encode())
    assert caught.value.path == path


def test_split_keeps_the_bytes_of_every_message() -> None:
    system = b'{"role":"system","x":1,"content":"s"}'
    odd = b'{ "content":"u" , "role":"User"}'
    body = b'{"think":"high","tools":[{"x":1}],"messages":[%b,%b],"model":"m"}' % (system, odd)
    cut = ollama.split(body)
    assert ollama.assemble(cut, Plan()).body.join() == (
        b'{"model":"m","tools":[{"x":1}],"messages":[%b,%b],"think":"high"}' % (system, odd)
    )
    assert cut.envelope.cache_params == (("model", b'"m"'), ("thinking", b'"high"'))
    assert [chunk.label for chunk in cut] == ["system0", "tools0", "conversation m0"]
