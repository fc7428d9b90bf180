"""Parts, items and parameters beside their bytes, in both directions from one table."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.system_place import without_places
from support.tables import each_row

from anaphora import catalog
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    Earlier,
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
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    AnyTool,
    Audio,
    Bytes,
    Conversation,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
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
from anaphora.wire import openai_responses as wire

WIRE, ITEM = "openai_responses", "openai_responses.item"
NEW, OLD = "gpt-5.6", "gpt-5"


def profile(model: str = NEW) -> Profile:
    return catalog.profile("openai", model)


def render(call: Call) -> Rendered:
    return wire.render(call, profile(call.model))


def body_of(rendered: Rendered) -> bytes:
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    return wire.assemble(rendered, plan).body.join()


def chat(*messages: Message, model: str = NEW, **fields: Any) -> Call:
    cache, system = fields.pop("cache", None), fields.pop("system", ())
    return Call(
        ir=PromptIR.chat(Conversation(messages), system=system, cache=cache), model=model, **fields
    )


def input_of(*messages: Message, **fields: Any) -> bytes:
    body = body_of(render(chat(*messages, **fields)))
    return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["input"])


PNG, PDF = Bytes(b"\x89PNG", "image/png"), Bytes(b"%PDF", "application/pdf")

#: What stands in a user's message, and its bytes.
CONTENT: list[tuple[Part, bytes]] = [
    (Text('say "hi"\n'), rb'{"type":"input_text","text":"say \"hi\"\n"}'),
    (Text(""), b'{"type":"input_text","text":""}'),
    (Text("x", {WIRE: '{"new":[1]}'}), b'{"type":"input_text","text":"x","new":[1]}'),
    (
        Image(PNG, "high"),
        b'{"type":"input_image","image_url":"data:image/png;base64,iVBORw==","detail":"high"}',
    ),
    (
        Image(Url("https://x.test/a.png"), "auto"),
        b'{"type":"input_image","image_url":"https://x.test/a.png","detail":"auto"}',
    ),
    (
        Image(FileId("openai", "file-1"), "low"),
        b'{"type":"input_image","file_id":"file-1","detail":"low"}',
    ),
    (
        Image(Url("data:image/png;base64,not base64"), "auto"),
        b'{"type":"input_image","image_url":"data:image/png;base64,not base64","detail":"auto"}',
    ),
    (
        Document(PDF, "a.pdf"),
        b'{"type":"input_file","file_data":"data:application/pdf;base64,JVBERg=="'
        b',"filename":"a.pdf"}',
    ),
    (
        Document(Url("https://x.test/a.pdf")),
        b'{"type":"input_file","file_url":"https://x.test/a.pdf"}',
    ),
    (Document(FileId("openai", "file-2")), b'{"type":"input_file","file_id":"file-2"}'),
    (
        Document(FileId("openai", "file-2"), extras={WIRE: '{"detail":"low"}'}),
        b'{"type":"input_file","file_id":"file-2","detail":"low"}',
    ),
    (
        Opaque(WIRE, "input_audio", '{"type":"input_audio","data":"UklGRg=="}'),
        b'{"type":"input_audio","data":"UklGRg=="}',
    ),
    (
        Opaque(WIRE, "input_file", '{"type":"input_file","file_data":"JVBERg=="}'),
        b'{"type":"input_file","file_data":"JVBERg=="}',
    ),
]

#: What is an item by itself, who says it, and its bytes.
ITEMS: list[tuple[str, tuple[Part, ...], bytes]] = [
    ("assistant", (Text("hm"),), b'{"type":"message","role":"assistant","content":"hm"}'),
    (
        "assistant",
        (Text("hm", {ITEM: '{"phase":"commentary"}'}),),
        b'{"type":"message","role":"assistant","phase":"commentary","content":"hm"}',
    ),
    (
        "assistant",
        (
            Text(
                "a",
                {
                    WIRE: '{"annotations":[],"logprobs":[]}',
                    ITEM: '{"id":"msg_1","status":"completed","phase":"final_answer"}',
                },
            ),
            Text("b", {WIRE: '{"annotations":[{"type":"file_path"}]}'}),
            Refusal("no"),
        ),
        b'{"type":"message","role":"assistant","id":"msg_1","status":"completed"'
        b',"phase":"final_answer","content":['
        b'{"type":"output_text","text":"a","annotations":[],"logprobs":[]},'
        b'{"type":"output_text","text":"b","annotations":[{"type":"file_path"}]},'
        b'{"type":"refusal","refusal":"no"}]}',
    ),
    (
        "assistant",
        (ToolCall("call_1", "f", '{ "a": 1.0 }'),),
        b'{"type":"function_call","call_id":"call_1","name":"f","arguments":"{ \\"a\\": 1.0 }"}',
    ),
    (
        "assistant",
        (ToolCall("call_1", "f", "not json", {WIRE: '{"id":"fc_1","status":"completed"}'}),),
        b'{"type":"function_call","call_id":"call_1","name":"f","arguments":"not json"'
        b',"id":"fc_1","status":"completed"}',
    ),
    (
        "assistant",
        (
            Thinking(
                "one\n\ntwo",
                data="gAAA",
                provider=WIRE,
                extras={
                    WIRE: '{"id":"rs_1","summary":[{"type":"summary_text","text":"one"},'
                    '{"type":"summary_text","text":"two"}]}'
                },
            ),
            ToolCall("call_1", "f"),
        ),
        b'{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"one"},'
        b'{"type":"summary_text","text":"two"}],"encrypted_content":"gAAA"},'
        b'{"type":"function_call","call_id":"call_1","name":"f","arguments":"{}"}',
    ),
    (
        "assistant",
        (
            Thinking(
                "raw",
                provider=WIRE,
                extras={
                    WIRE: '{"id":"rs_1","summary":[],"content":[{"type":"reasoning_text",'
                    '"text":"raw"}],"encrypted_content":null}'
                },
            ),
            ToolCall("call_1", "f"),
        ),
        b'{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text",'
        b'"text":"raw"}],"encrypted_content":null},'
        b'{"type":"function_call","call_id":"call_1","name":"f","arguments":"{}"}',
    ),
    *(
        ("assistant", (Opaque(WIRE, kind, f'{{"type":"{kind}","id":"i","new":[ 1 ]}}'),), encoded)
        for kind, encoded in (
            (kind, f'{{"type":"{kind}","id":"i","new":[ 1 ]}}'.encode())
            for kind in (
                "compaction",
                "web_search_call",
                "tool_search_call",
                "mcp_call",
                "mcp_list_tools",
                "code_interpreter_call",
                "custom_tool_call",
            )
        )
    ),
    *(
        ("user", (Opaque(WIRE, kind, f'{{"type":"{kind}","id":"i"}}'),), encoded)
        for kind, encoded in (
            (kind, f'{{"type":"{kind}","id":"i"}}'.encode())
            for kind in ("item_reference", "additional_tools", "configuration_update")
        )
    ),
    (
        "tool",
        (ToolResult("call_1", (Text("a"), Image(PNG, "auto"), Document(PDF, "a.pdf"))),),
        b'{"type":"function_call_output","call_id":"call_1","output":['
        b'{"type":"input_text","text":"a"},'
        b'{"type":"input_image","image_url":"data:image/png;base64,iVBORw==","detail":"auto"},'
        b'{"type":"input_file","file_data":"data:application/pdf;base64,JVBERg=="'
        b',"filename":"a.pdf"}]}',
    ),
    (
        "tool",
        (ToolResult("call_1", (), extras={WIRE: '{"id":"fco","status":"completed"}'}),),
        b'{"type":"function_call_output","call_id":"call_1","id":"fco","status":"completed"'
        b',"output":[]}',
    ),
    (
        "user",
        (Text("hi", {ITEM: '{"id":"m","status":"completed"}'}), Text("there")),
        b'{"type":"message","role":"user","id":"m","status":"completed","content":['
        b'{"type":"input_text","text":"hi"},{"type":"input_text","text":"there"}]}',
    ),
    (
        "system",
        (Text("in French"),),
        b'{"type":"message","role":"developer","content":[{"type":"input_text","text":"in French"}]}',
    ),
    (
        "assistant",
        (Opaque(WIRE, "message", '{"type":"message","role":"assistant","content":[]}'),),
        b'{"type":"message","role":"assistant","content":[]}',
    ),
    (
        "user",
        (Opaque(WIRE, "message", '{"type":"message","role":"critic","content":"x"}'),),
        b'{"type":"message","role":"critic","content":"x"}',
    ),
]


@each_row("part, data", CONTENT)
def test_content_round_trip(part: Part, data: bytes) -> None:
    head = b'[{"type":"message","role":"user","content":['
    assert input_of(Message.user(part)) == head + data + b"]}]"
    call = wire.parse(b'{"model":"gpt-5.6","input":' + head + data + b"]}]}")
    assert call.ir.body_chat() == [Message(id="m0", role="user", parts=(part,))]


@each_row("role, parts, data", ITEMS)
def test_items_round_trip(role: Any, parts: tuple[Part, ...], data: bytes) -> None:
    first = b'{"type":"message","role":"user","content":[{"type":"input_text","text":"u"}]}'
    encoded = input_of(Message.user("u"), Message(role=role, parts=parts))
    assert encoded == b"[" + first + b"," + data + b"]"
    call = wire.parse(b'{"model":"gpt-5.6","input":' + encoded + b"}")
    read = without_places(call.ir.body_chat()[1:])
    assert read == [Message(id="m1", role=role, parts=parts)]


@each_row(
    "data, parts",
    [
        pytest.param(b'{"role":"user","content":"hi"}', (Text("hi"),), id="the easy form"),
        pytest.param(
            b'{"type":"message","role":"assistant","content":[{"type":"input_text","text":"x"}]}',
            (Text("x", {ITEM: "{}"}),),
            id="the assistant's input is output",
        ),
        pytest.param(
            b'{"type":"function_call_output","call_id":"c","output":"x"}',
            (ToolResult("c", "x"),),
            id="a tool's text",
        ),
        pytest.param(
            b'{"role":"user","content":"hi","name":"bob"}',
            (Text("hi", {ITEM: '{"name":"bob"}'}),),
            id="a field that belongs to another item",
        ),
        pytest.param(
            b'{"role":"user","content":[{"type":"novel","x":1}]}',
            (Opaque(WIRE, "message", '{"role":"user","content":[{"type":"novel","x":1}]}'),),
            id="content that cannot be told from an item",
        ),
    ],
)
def test_items_that_are_encoded_differently(data: bytes, parts: tuple[Part, ...]) -> None:
    (message,) = wire.parse(b'{"model":"m","input":[' + data + b"]}").ir.body_chat()
    assert message.parts == parts


def test_successive_assistant_items_are_one_message() -> None:
    answer = Message.assistant(
        Thinking(provider=WIRE, extras={WIRE: '{"id":"rs","summary":[]}'}),
        Text("a", {WIRE: '{"annotations":[]}', ITEM: '{"id":"msg_1","status":"completed"}'}),
        Text("b", {WIRE: '{"annotations":[]}', ITEM: '{"id":"msg_2","status":"completed"}'}),
        ToolCall("c1", "f"),
        ToolCall("c2", "f"),
        id="m1",
    )
    conversation = [
        Message.user("u", id="m0"),
        answer,
        Message.tool("c1", (Text("x"),), id="m2"),
        Message.tool("c2", (Text("y"),), id="m3"),
    ]
    encoded = input_of(*conversation)
    kinds = [item["type"] for item in json.loads(encoded)]
    assert kinds == [
        "message",
        "reasoning",
        "message",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert wire.parse(b'{"model":"m","input":' + encoded + b"}").ir.body_chat() == conversation


@each_row(
    "message, code",
    [
        (Message.user(Audio(Url("https://x.test/a.wav"))), "audio_unsupported"),
        (Message.user(Refusal("no")), "refusal_as_text"),
        (Message.user(Image(FileId("anthropic", "f"))), "foreign_file"),
        (Message.user(Document(PDF, "t", "context")), "context_unsupported"),
        (Message.user(Opaque("anthropic", "x", "{}")), "foreign_block"),
        (Message.assistant(Thinking("t", "sig", provider="anthropic")), "foreign_thinking"),
        (Message.assistant(Thinking("t")), "foreign_thinking"),
        (Message.assistant(Image(PNG)), "image_unsupported"),
        (Message.assistant(Refusal("no")), "refusal_as_text"),
        (Message.tool("c", "failed", error=True), "error_unsupported"),
    ],
)
def test_unsupported_content_gives_a_notice(message: Message, code: str) -> None:
    rendered = render(chat(Message.user("u"), message))
    (notice,) = rendered.notices
    assert (notice.code, notice.path) == (code, "conversation[1].parts[0]") or notice.path.endswith(
        "context"
    )


# ── System text and tools ────────────────────────────────────────────────────────────────────────

BLOCKS = (PromptBlock.cached_long("identity", "You are terse."), PromptBlock.plain("e", " "))


def test_system_text_uses_the_slot_of_the_model() -> None:
    old = json.loads(body_of(render(chat(Message.user("u"), model=OLD, system=BLOCKS))))
    assert old["instructions"] == "You are terse."
    assert len(old["input"]) == 1
    new = json.loads(body_of(render(chat(Message.user("u"), system=BLOCKS))))
    assert "instructions" not in new
    assert new["input"][0] == {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "You are terse."}],
    }


def test_the_system_text_is_hashed_before_the_tools() -> None:
    for model in (NEW, OLD):
        rendered = render(chat(Message.user("u"), model=model, system=BLOCKS, tools=(Tool("f"),)))
        assert [run.section for run in rendered.runs] == ["system", "tools", "messages"]
        body = body_of(rendered)
        assert (body.index(b"terse") < body.index(b'"tools"')) == (model == OLD)


@pytest.mark.parametrize(
    "tool, data",
    [
        (
            Tool("f", "Does f.", '{"type": "object"}', True),
            b'{"type":"function","name":"f","description":"Does f."'
            b',"parameters":{"type": "object"},"strict":true}',
        ),
        (
            Tool("f", schema="{}", extras={WIRE: '{"defer_loading":true}'}),
            b'{"type":"function","name":"f","parameters":{},"strict":null,"defer_loading":true}',
        ),
        (
            ProviderTool(WIRE, "web_search", '{"type":"web_search","filters":[ ]}'),
            b'{"type":"web_search","filters":[ ]}',
        ),
        (
            ProviderTool(WIRE, "ns", '{"type":"namespace","name":"ns","tools":[]}'),
            b'{"type":"namespace","name":"ns","tools":[]}',
        ),
    ],
)
def test_tools_round_trip(tool: AnyTool, data: bytes) -> None:
    body = body_of(render(chat(Message.user("u"), tools=(tool,))))
    assert b'"tools":[' + data + b"]" in body
    assert wire.parse(body).tools == (tool,)


def test_foreign_tool_is_left_out() -> None:
    tools = (ProviderTool("anthropic", "web_search", '{"type":"web_search_20250305"}'), Tool("f"))
    rendered = render(chat(Message.user("u"), tools=tools))
    assert [notice.code for notice in rendered.notices] == ["foreign_tool"]
    assert b"20250305" not in body_of(rendered)


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────

PARAMS: list[tuple[Params, dict[str, Any]]] = [
    (Params(max_tokens=9), {"max_output_tokens": 9}),
    (Params(temperature=0.5, top_p=0.9), {"temperature": 0.5, "top_p": 0.9}),
    (Params(tool_choice=ToolChoice("auto")), {"tool_choice": "auto"}),
    (Params(tool_choice=ToolChoice("none")), {"tool_choice": "none"}),
    (
        Params(tool_choice=ToolChoice("required", parallel=False)),
        {"tool_choice": "required", "parallel_tool_calls": False},
    ),
    (
        Params(tool_choice=ToolChoice("tool", "f", True)),
        {"tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": True},
    ),
    (
        Params(reasoning=Reasoning(effort="high", summary="auto")),
        {"reasoning": {"effort": "high", "summary": "auto"}},
    ),
    (Params(output="json"), {"text": {"format": {"type": "json_object"}}}),
    (
        Params(output=OutputSchema('{"type": "object"}', "a", "An a.", True), verbosity="low"),
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "a",
                    "description": "An a.",
                    "schema": {"type": "object"},
                    "strict": True,
                },
                "verbosity": "low",
            }
        },
    ),
    (Params(metadata={"a": "1"}, user="u"), {"metadata": {"a": "1"}, "user": "u"}),
    (Params(service_tier="flex"), {"service_tier": "flex"}),
    (Params(store=False), {"store": False}),
    (Params(truncation="auto"), {"truncation": "auto"}),
    (
        Params(include=("reasoning.encrypted_content",)),
        {"include": ["reasoning.encrypted_content"]},
    ),
    (Params(stream=True), {"stream": True}),
]


@each_row("params, fields", PARAMS)
def test_params_round_trip(params: Params, fields: dict[str, Any]) -> None:
    rendered = render(chat(Message.user("u"), params=params))
    assert rendered.notices == ()
    body = json.loads(body_of(rendered))
    for fixed in ("model", "input"):
        del body[fixed]
    assert body == fields
    assert wire.parse(body_of(rendered)).params == params


@each_row(
    "params, path",
    [
        (Params(stop=("END",)), "params.stop"),
        (Params(seed=1), "params.seed"),
        (Params(n=2), "params.n"),
        (Params(top_k=5), "params.top_k"),
        (Params(frequency_penalty=0.1), "params.frequency_penalty"),
        (Params(presence_penalty=0.1), "params.presence_penalty"),
        (Params(reasoning=Reasoning("adaptive")), "params.reasoning.mode"),
        (Params(reasoning=Reasoning(budget_tokens=9)), "params.reasoning.budget_tokens"),
        (Params(reasoning=Reasoning(display="omitted")), "params.reasoning.display"),
    ],
)
def test_unsupported_params_give_notices(params: Params, path: str) -> None:
    rendered = render(chat(Message.user("u"), params=params))
    assert [(notice.code, notice.path) for notice in rendered.notices] == [("param_left_out", path)]
    assert set(json.loads(body_of(rendered))) == {"model", "input"}


@pytest.mark.parametrize(
    "params, path",
    [
        (Params(max_tokens=-1), "params.max_tokens"),
        (Params(temperature=float("nan")), "params.temperature"),
        (Params(tool_choice=ToolChoice("tool")), "params.tool_choice.name"),
        (Params(output=OutputSchema("[]")), "params.output.schema"),
    ],
)
def test_invalid_params_are_rejected(params: Params, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(chat(Message.user("u"), params=params))
    assert caught.value.path == path


def test_unsupported_feature_of_the_model_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match=r"params\.temperature: gpt-5 refuses"):
        render(chat(Message.user("u"), model=OLD, params=Params(temperature=0.5)))
    assert render(chat(Message.user("u"), model=OLD, params=Params(temperature=1.0)))


def test_unknown_fields_come_back_unchanged() -> None:
    notices = {
        "model": NEW,
        "input": [{"type": "message", "role": "user", "content": []}, {"type": "novel", "x": [1]}],
        "reasoning": {"effort": "low", "context": "all_turns"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
        "parallel_tool_calls": False,
        "conversation": "conv_1",
        "background": True,
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        "prompt": {"id": "p"},
        "prompt_cache_options": {"mode": "explicit", "novel": 1},
        "metadata": {"a": 1},
        "safety_identifier": "s",
    }
    call = wire.parse(json.dumps(notices).encode())
    assert json.loads(body_of(render(call))) == notices


# ── The cache's surface ──────────────────────────────────────────────────────────────────────────


def test_cache_fields_round_trip() -> None:
    plan = PromptCachePlan(
        key="k",
        mode="explicit",
        automatic="12h",
        prewarm=True,
        diagnose=True,
        compare_with=Earlier("openai", "resp_1"),
        retention="24h",
    )
    rendered = render(chat(Message.user("u"), cache=plan))
    assert rendered.notices == ()
    body = json.loads(body_of(rendered))
    assert body["prompt_cache_key"] == "k"
    assert body["prompt_cache_retention"] == "24h"
    assert body["prompt_cache_options"] == {
        "mode": "explicit",
        "ttl": "12h",
        "prewarm": True,
        "comparison_response_id": "resp_1",
    }
    assert wire.parse(body_of(rendered)).ir.cache == plan


def test_breakpoints_round_trip() -> None:
    marks = (
        BlockMark(0, "12h"),
        PartMark("m0", (0,), "30m"),
        PartMark("m2", (0, 0), "30m"),
        PartMark("m2", (0, 1), "30m"),
    )
    conversation = (
        Message.user("u"),
        Message.assistant("a"),
        Message.tool("c", (Text("x"), Text("y"))),
    )
    call = chat(*conversation, system=BLOCKS[:1], cache=PromptCachePlan(marks=marks))
    rendered = render(call)
    assert [notice.code for notice in rendered.notices] == ["ttl_changed"]  # the block's policy
    body = json.loads(body_of(rendered))
    marker = {"mode": "explicit", "ttl": "30m"}
    assert body["input"][0]["content"][0]["prompt_cache_breakpoint"]["ttl"] == "12h"
    assert body["input"][1]["content"][0]["prompt_cache_breakpoint"] == marker
    assert [part["prompt_cache_breakpoint"] for part in body["input"][3]["output"]] == [marker] * 2
    assert wire.parse(body_of(rendered)).ir.cache.marks == marks


@each_row(
    "mark, model, reason",
    [
        (PartMark("m0"), OLD, "takes no breakpoints"),
        (BlockMark(0), OLD, "takes no breakpoints"),
        (ToolMark("f"), NEW, "a tool cannot carry"),
        (BlockMark(1), NEW, "no system block 1"),
        (PartMark("m1", (0,), "30m"), NEW, "may not carry"),
        (PartMark("m2", (0, 7), "30m"), NEW, "no part"),
        (PartMark("m9"), NEW, "no message m9"),
        (PartMark("m0", (1,), "30m"), NEW, "may not carry"),
        (PartMark("m0", (2,), "30m"), NEW, "left out"),
    ],
)
def test_marks_without_a_target_give_notices(mark: Any, model: str, reason: str) -> None:
    call = chat(
        Message.user("u", "", Audio(Url("https://x.test/a.wav"))),
        Message.assistant("a"),
        Message.tool("c", "x"),
        model=model,
        system=BLOCKS,
        tools=(Tool("f"),),
        cache=PromptCachePlan(marks=(mark,)),
    )
    rendered = render(call)
    assert rendered.marks == ()
    (notice,) = (n for n in rendered.notices if n.code == "mark_left_out")
    assert reason in notice.message


@pytest.mark.parametrize("requested, encoded", [("5m", "30m"), ("1h", "30m"), ("24h", "12h")])
def test_unsupported_ttl_becomes_the_nearest(requested: Any, encoded: str) -> None:
    call = chat(Message.user("u"), cache=PromptCachePlan(marks=(PartMark("m0", (0,), requested),)))
    rendered = render(call)
    assert [notice.code for notice in rendered.notices] == ["ttl_changed"]
    assert [mark.ttl for mark in rendered.marks] == [encoded]


def test_unsupported_options_give_notices() -> None:
    plan = PromptCachePlan(
        mode="explicit", prewarm=True, automatic="30m", compare_with=Earlier("openai", "r")
    )
    rendered = render(chat(Message.user("u"), model=OLD, cache=plan))
    assert {notice.path for notice in rendered.notices} == {
        "cache.mode",
        "cache.prewarm",
        "cache.automatic",
        "cache.compare_with",
    }
    assert b"prompt_cache" not in body_of(rendered)


# ── Continuation ─────────────────────────────────────────────────────────────────────────────────


def continued(store: bool | None, boundary: str | None = "a", model: str = OLD) -> Rendered:
    conversation = (Message.user("one"), Message.assistant("two", id="a"), Message.user("three"))
    ir = PromptIR(
        system_blocks=BLOCKS,
        segments=(
            Segment.of(SegmentRole.STABLE_PREFIX, Message.user("guide")),
            Segment.of(SegmentRole.SYSTEM_REMAINDER, Message.system("rest")),
            Segment(SegmentRole.CONVERSATION, Conversation(conversation)),
            Segment.of(SegmentRole.VOLATILE_TAIL, Message.user("state")),
        ),
        continuation=Continuation("resp_1", boundary),
    )
    return render(Call(ir=ir, model=model, params=Params(store=store)))


def said_in(rendered: Rendered) -> list[str]:
    items = json.loads(body_of(rendered))["input"]
    return [
        item["content"] if isinstance(item["content"], str) else item["content"][0]["text"]
        for item in items
    ]


@pytest.mark.parametrize("model", [OLD, NEW])
def test_unstored_response_is_sent_whole(model: str) -> None:
    rendered = continued(store=False, model=model)
    body = json.loads(body_of(rendered))
    assert "previous_response_id" not in body
    assert said_in(rendered)[-5:] == ["rest", "one", "two", "three", "state"]
    assert rendered.notices[0].code == "continuation_not_stored"


@pytest.mark.parametrize("store", [True, None])
@pytest.mark.parametrize("model", [OLD, NEW])
def test_stored_response_is_continued_with_the_delta(store: bool | None, model: str) -> None:
    """The system message stands in the chain already; instructions never do."""
    rendered = continued(store, model=model)
    body = json.loads(body_of(rendered))
    assert body["previous_response_id"] == "resp_1"
    assert said_in(rendered) == ["rest", "three", "state"]
    assert ("instructions" in body) == (model == OLD)
    assert rendered.notices[0].code == "stays_in_chain"
    # The chunks are the effective prompt.
    everything = rendered.data()
    places = [everything.index(b'"%b"' % word) for word in (b"guide", b"one", b"two", b"three")]
    assert places == sorted(places)


def test_without_a_boundary_the_whole_conversation_is_sent() -> None:
    assert said_in(continued(None, boundary=None)) == ["rest", "one", "two", "three", "state"]
    new = continued(None, boundary=None, model=NEW)
    assert said_in(new)[0] == "You are terse."


def test_mark_on_a_stored_message_gives_a_notice() -> None:
    conversation = (Message.user("one"), Message.assistant("two", id="a"), Message.user("three"))
    marks = (PartMark("m0", (0,), "30m"), PartMark("m2", (0,), "30m"))
    ir = PromptIR(
        segments=(Segment(SegmentRole.CONVERSATION, Conversation(conversation)),),
        cache=PromptCachePlan(marks=marks),
        continuation=Continuation("resp_1", "a"),
    )
    rendered = render(Call(ir=ir, model=NEW))
    assert [notice.path for notice in rendered.notices] == ["cache.marks[0]"]
    body = json.loads(body_of(rendered))
    assert body["input"][0]["content"][0]["prompt_cache_breakpoint"]["ttl"] == "30m"


# ── Requests that cannot be ──────────────────────────────────────────────────────────────────────


@each_row(
    "body, path",
    [
        (b"[]", "$"),
        (b"{}", "$.model"),
        (b'{"model":"m","input":[{"role":"user"}]}', "$.input[0].content"),
        (b'{"model":"m","input":[{"type":"message","content":"x"}]}', "$.input[0].role"),
        (
            b'{"model":"m","input":[{"role":"user","content":[{"type":"input_text"}]}]}',
            "$.input[0].content[0].text",
        ),
        (
            b'{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x",'
            b'"prompt_cache_breakpoint":{"mode":"explicit","ttl":"2h"}}]}]}',
            "$.input[0].content[0].prompt_cache_breakpoint.ttl",
        ),
        (b'{"model":"m","input":7}', "$.input"),
        (b'{"model":"m","max_output_tokens":"many"}', "$.max_output_tokens"),
    ],
)
def test_invalid_request_is_rejected_with_its_path(body: bytes, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.parse(body)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "part, path",
    [
        (Text("\ud800"), "conversation[0].parts[0]"),
        (ToolCall("c", "f", "\ud800"), "conversation[0].parts[0].arguments"),
        (ToolResult("c", (Text("\ud800"),)), "conversation[0].parts[0].content[0]"),
        (Opaque(WIRE, "x", "[]"), "conversation[0].parts[0].json"),
    ],
)
def test_invalid_part_is_rejected_with_its_path(part: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(chat(Message(role="user", parts=(part,))))
    assert caught.value.path == path


def test_empty_request_is_rejected() -> None:
    with pytest.raises(InvalidRequest):
        render(chat())
    with pytest.raises(InvalidRequest):
        render(chat(model=OLD, system="You are terse."))
    stored = render(chat(extras={WIRE: '{"prompt":{"id":"p"}}'}))
    assert json.loads(body_of(stored)) == {"model": NEW, "prompt": {"id": "p"}}
