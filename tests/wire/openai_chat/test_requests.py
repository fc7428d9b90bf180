"""Whole requests, both ways: messages, tools and parameters, the call on one side and the exact
bytes on the other."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.system_place import without_places
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
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
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import (
    CachePolicy,
    Conversation,
    Image,
    Message,
    Opaque,
    ProviderTool,
    SegmentRole,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire import openai_chat
from anaphora.wire.cutting import cut
from anaphora.wire.openai_chat.types import LEGACY

#: A model with breakpoints; one without, that speaks as "developer"; one that speaks as "system".
MARKS, PLAIN, OLD = "gpt-5.6", "gpt-5", "gpt-4o"


def render(call: Call, profile: Profile | None = None) -> Rendered:
    return openai_chat.render(call, profile or catalog.profile("openai", call.model))


def encoded(call: Call) -> tuple[bytes, list[str]]:
    rendered = render(call)
    body = openai_chat.assemble(rendered, Plan(marks=rendered.marks)).body.join()
    return body, [notice.code for notice in rendered.notices]


def chat(*messages: Message, model: str = PLAIN, **fields: Any) -> Call:
    ir = PromptIR.chat(
        Conversation(messages), system=fields.pop("system", ()), cache=fields.pop("cache", None)
    )
    return Call(ir=ir, model=model, **fields)


def parsed(body: bytes) -> Call:
    return openai_chat.parse(body)


U = Message.user("hi")
HI = b'{"role":"user","content":"hi"}'
MARKED_HI = b'{"role":"user","content":[{"type":"text","text":"hi"}]}'


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────

MESSAGES: list[tuple[tuple[Message, ...], bytes]] = [
    ((U,), HI),
    ((U, U), HI + b"," + HI),
    (
        (Message.user("a", "b"),),
        b'{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}',
    ),
    (
        (Message.user("a", Opaque("openai_chat", "message", '{"name":"n"}')),),
        b'{"role":"user","name":"n","content":"a"}',
    ),
    ((U, Message.system("s")), HI + b',{"role":"developer","content":"s"}'),
    (
        (U, Message.assistant(ToolCall("c", "f")), Message.tool("c", (Text("ok"), Text("!"))), U),
        HI
        + b',{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}'
        + b',{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"ok"},{"type":"text","text":"!"}]},'
        + HI,
    ),
    (
        (
            Message(
                role="tool",
                parts=(ToolResult("c", "ok", name="f", extras={"openai_chat": '{"name":"f"}'}),),
            ),
        ),
        b'{"role":"tool","tool_call_id":"c","name":"f","content":"ok"}',
    ),
]


@each_row("messages, data", MESSAGES)
def test_messages_become_these_bytes(messages: tuple[Message, ...], data: bytes) -> None:
    assert encoded(chat(*messages)) == (b'{"model":"gpt-5","messages":[' + data + b"]}", [])


@each_row("messages, data", MESSAGES)
def test_these_bytes_decode_to_the_messages(messages: tuple[Message, ...], data: bytes) -> None:
    call = parsed(b'{"model":"gpt-5","messages":[' + data + b"]}")
    ir = call.ir.revised(lambda message: without_places([message])[0])
    assert msgspec.structs.replace(call, ir=ir) == chat(*messages)


def test_results_in_a_user_message_become_tool_messages_first() -> None:
    """As Anthropic's requests have them."""
    mixed = Message.user(ToolResult("c", "one"), ToolResult("d", "two"), "and now?")
    body, notices = encoded(chat(mixed))
    roles = [(m["role"], m.get("tool_call_id")) for m in json.loads(body)["messages"]]
    assert roles == [("tool", "c"), ("tool", "d"), ("user", None)]
    assert notices == []


@each_row(
    "message, codes",
    [
        (Message.tool("c", "boom", error=True), ["error_flag_left_out"]),
        (Message.tool("c", (Image(Url("u")), Text("t"))), ["part_left_out"]),
        (Message.tool("c", (Image(Url("u")),)), ["part_left_out"]),
        (Message.user("look", ToolResult("c", "t")), ["parts_reordered"]),
        (Message.user(), ["empty_message"]),
        (Message.assistant(), ["empty_message"]),
        (Message.user(Opaque("openai_chat", "message", '{"name":"n"}')), ["fields_left_out"]),
    ],
)
def test_unsupported_parts_of_a_message_give_notices(message: Message, codes: list[str]) -> None:
    body, notices = encoded(chat(U, message))
    assert notices == codes
    if message.role == "tool":
        assert isinstance(json.loads(body)["messages"][1]["content"], str)


def test_segment_without_supported_parts_gives_notices() -> None:
    ir = PromptIR(
        segments=(
            Segment.of(SegmentRole.CONVERSATION, U),
            Segment.of(SegmentRole.VOLATILE_TAIL, Message.user(Opaque("x", "y", "{}"))),
        )
    )
    assert encoded(Call(ir=ir, model=PLAIN))[1] == ["foreign_block"]


def test_the_system_prompt_leads_and_the_profile_names_its_role() -> None:
    blocks = (PromptBlock("a", "one"), PromptBlock("b", " "), PromptBlock("c", "two"))
    for model, role in ((PLAIN, b"developer"), (OLD, b"system")):
        body, _ = encoded(chat(U, model=model, system=blocks))
        assert body == (
            b'{"model":"%b","messages":[{"role":"%b","content":[{"type":"text","text":"one"},'
            b'{"type":"text","text":"two"}]},%b]}' % (model.encode(), role, HI)
        )


def test_system_prompt_alone_is_a_request() -> None:
    body, _ = encoded(chat(system="s"))
    assert json.loads(body)["messages"] == [{"role": "developer", "content": "s"}]
    assert [b.text for b in parsed(body).ir.system_blocks] == ["s"]


def test_empty_prompt_is_rejected() -> None:
    with pytest.raises(InvalidRequest):
        encoded(chat(tools=(Tool("f"),)))


def test_system_is_hashed_before_tools_and_sent_after_them() -> None:
    rendered = render(chat(U, system="s", tools=(Tool("f"),)))
    assert [run.section for run in rendered.runs] == ["system", "tools", "messages"]
    assert rendered.body_order == (1, 0, 2)
    assert list(json.loads(openai_chat.assemble(rendered, Plan()).body.join())) == [
        "model",
        "tools",
        "messages",
    ]
    assert [chunk.path for chunk in rendered][-1] == "messages[1].content[0]"


def test_name_of_a_leading_system_message_is_kept() -> None:
    body = b'{"model":"gpt-5","messages":[{"role":"developer","name":"n","content":"s"}]}'
    call = parsed(body)
    assert [block.text for block in call.ir.system_blocks] == ["s"]
    assert encoded(call)[0] == body


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────

TOOLS: list[tuple[Any, bytes]] = [
    (
        Tool("f", "does", '{"type" : "object"}', True),
        b'{"type":"function","function":{"name":"f","description":"does","parameters":{"type" : "object"},"strict":true}}',
    ),
    (
        Tool("f", schema="{}", extras={"openai_chat": '{"function":{"x":1},"cache_control":{}}'}),
        b'{"type":"function","function":{"name":"f","parameters":{},"x":1},"cache_control":{}}',
    ),
    (
        ProviderTool("openai_chat", "custom", '{"type":"custom","custom":{"name":"c"}}'),
        b'{"type":"custom","custom":{"name":"c"}}',
    ),
]


@pytest.mark.parametrize("tool, data", TOOLS)
def test_tool_round_trip(tool: Any, data: bytes) -> None:
    body = b'{"model":"gpt-5","tools":[' + data + b'],"messages":[' + HI + b"]}"
    assert encoded(chat(U, tools=(tool,))) == (body, [])
    assert parsed(body).tools == (tool,)


def test_a_function_without_parameters_or_type() -> None:
    body = b'{"model":"m","messages":[],"tools":[{"function":{"name":"f"}}]}'
    assert parsed(body).tools == (Tool("f"),)


def test_foreign_tool_is_left_out_with_a_notice() -> None:
    foreign = ProviderTool("anthropic", "web_search", '{"type":"web_search_20250305"}')
    body, notices = encoded(chat(U, tools=(foreign,)))
    assert "tools" not in json.loads(body)
    assert notices == ["foreign_tool"]


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────

SCHEMA = '{"type":"object"}'
PARAMS: list[tuple[dict[str, Any], bytes]] = [
    ({"max_tokens": 9}, b'"max_completion_tokens":9'),
    ({"temperature": 1.0, "top_p": 1.0}, b'"temperature":1.0,"top_p":1.0'),
    ({"n": 2, "seed": 7}, b'"n":2,"seed":7'),
    (
        {"frequency_penalty": 0.5, "presence_penalty": -0.5},
        b'"frequency_penalty":0.5,"presence_penalty":-0.5',
    ),
    ({"user": "u"}, b'"user":"u"'),
    ({"metadata": {"b": "1", "a": "2"}}, b'"metadata":{"b":"1","a":"2"}'),
    ({"service_tier": "flex"}, b'"service_tier":"flex"'),
    ({"store": False}, b'"store":false'),
    ({"verbosity": "low"}, b'"verbosity":"low"'),
    ({"reasoning": Reasoning(effort="high")}, b'"reasoning_effort":"high"'),
    ({"tool_choice": ToolChoice("auto")}, b'"tool_choice":"auto"'),
    ({"tool_choice": ToolChoice("none")}, b'"tool_choice":"none"'),
    (
        {"tool_choice": ToolChoice("required", None, False)},
        b'"tool_choice":"required","parallel_tool_calls":false',
    ),
    (
        {"tool_choice": ToolChoice("tool", "f")},
        b'"tool_choice":{"type":"function","function":{"name":"f"}}',
    ),
    (
        {"output": OutputSchema(SCHEMA, "n", "d", True)},
        b'"response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","schema":{"type":"object"},"strict":true}}',
    ),
    (
        {"output": OutputSchema(SCHEMA)},
        b'"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}',
    ),
    ({"output": "json"}, b'"response_format":{"type":"json_object"}'),
    ({"stream": True}, b'"stream":true,"stream_options":{"include_usage":true}'),
]


@each_row("params, data", PARAMS)
def test_parameter_round_trip(params: dict[str, Any], data: bytes) -> None:
    body = b'{"model":"gpt-5","messages":[' + HI + b"]," + data + b"}"
    assert encoded(chat(U, params=Params(**params))) == (body, [])
    assert parsed(body).params == Params(**params)
    # The same when something unusual makes the parser go field by field.
    unusual = parsed(body[:-1] + b',"logprobs":true}')
    assert unusual.params == Params(**params)
    assert unusual.extras == {"openai_chat": '{"logprobs":true}'}


def test_legacy_function_call_is_read_as_a_tool_call() -> None:
    """A result with the role `function` answers the `function_call` before it."""
    body = json.dumps(
        {
            "model": "gpt-4o",
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "look", "arguments": '{"a":1}'},
                },
                {"role": "function", "name": "look", "content": "Sunny."},
            ],
        }
    ).encode()
    _, called, answered = parsed(body).ir.body_chat()
    assert called.parts == (ToolCall("call_1", "look", '{"a":1}', LEGACY),)
    assert answered.role == "tool"
    assert answered.parts == (ToolResult("call_1", "Sunny.", name="look", extras=LEGACY),)
    sent, notices = encoded(parsed(body))
    messages = json.loads(sent)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call_1"
    assert not notices


def test_function_message_without_a_call_is_read() -> None:
    body = b'{"model":"gpt-4o","messages":[{"role":"function","name":"f","content":"1"}]}'
    (message,) = parsed(body).ir.body_chat()
    assert message.parts == (ToolResult("call_0", "1", name="f", extras=LEGACY),)


def test_stop_sequences_round_trip() -> None:
    """Of a model that takes them: gpt-5 does not."""
    body = b'{"model":"gpt-4.1","messages":[' + HI + b'],"stop":["a","b"]}'
    call = parsed(body)
    assert call.params == Params(stop=("a", "b"))
    assert encoded(call) == (body, [])


CACHE: list[tuple[PromptCachePlan, bytes]] = [
    (PromptCachePlan(key="k"), b'"prompt_cache_key":"k"'),
    (PromptCachePlan(mode="explicit"), b'"prompt_cache_options":{"mode":"explicit"}'),
    (
        PromptCachePlan(mode="implicit", automatic="30m"),
        b'"prompt_cache_options":{"mode":"implicit","ttl":"30m"}',
    ),
    (PromptCachePlan(retention="24h"), b'"prompt_cache_retention":"24h"'),
]


@pytest.mark.parametrize("cache, data", CACHE)
def test_cache_option_round_trip(cache: PromptCachePlan, data: bytes) -> None:
    body = b'{"model":"gpt-5.6","messages":[' + MARKED_HI + b"]," + data + b"}"
    assert encoded(chat(U, model=MARKS, cache=cache)) == (body, [])
    assert parsed(body).ir.cache == cache


@each_row(
    "field",
    [
        '"response_format":{"type":"text"}',
        '"response_format":{"type":"json_object","novel":1}',
        '"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}',
        '"tool_choice":{"type":"allowed_tools"},"parallel_tool_calls":false',
        '"functions":[{"name":"f"}],"function_call":"auto"',
        '"logit_bias":{"50256":-100}',
        '"metadata":{"a":1}',
        '"prompt_cache_options":{"mode":"explicit","novel":1}',
        '"stream_options":{"include_obfuscation":false}',
        '"modalities":["text","audio"],"audio":{"voice":"alloy","format":"wav"}',
    ],
)
def test_unknown_fields_come_back_unchanged(field: str) -> None:
    body = b'{"model":"gpt-5.6","messages":[' + MARKED_HI + b"]," + field.encode() + b"}"
    assert encoded(parsed(body)) == (body, [])


def test_stream_options_are_kept_and_usage_is_requested() -> None:
    options = {"include_obfuscation": False, "include_usage": False}
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    again = json.loads(encoded(parsed(json.dumps(body | {"stream_options": options}).encode()))[0])
    assert again["stream_options"] == {"include_usage": True, "include_obfuscation": False}


def test_max_tokens_is_accepted() -> None:
    body = b'{"model":"m","messages":[],"max_tokens":5}'
    assert parsed(body).params.max_tokens == 5
    both = b'{"model":"m","messages":[],"max_tokens":5,"max_completion_tokens":%d}'
    assert parsed(both % 5).params.max_tokens == 5
    with pytest.raises(InvalidRequest) as caught:
        parsed(both % 6)
    assert caught.value.path == "$.max_tokens"
    profile = catalog.profile("openai", PLAIN)
    assert profile.max_tokens_field is not None
    older = msgspec.structs.replace(
        profile,
        max_tokens_field=msgspec.structs.replace(profile.max_tokens_field, value="max_tokens"),
    )
    rendered = render(chat(U, params=Params(max_tokens=5)), older)
    assert rendered.envelope.tail == b',"max_tokens":5}'


def test_profile_without_openai_fields_gets_the_newest_names() -> None:
    rendered = render(chat(U, system="s"), catalog.profile("anthropic", "claude-sonnet-4-5"))
    assert b'"role":"developer"' in rendered.data()
    assert rendered.markers == {}


@each_row(
    "params, code",
    [
        ({"top_k": 5}, "param_left_out"),
        ({"reasoning": Reasoning("enabled")}, "param_left_out"),
        ({"reasoning": Reasoning(budget_tokens=2000)}, "param_left_out"),
        ({"reasoning": Reasoning(display="omitted")}, "param_left_out"),
        ({"reasoning": Reasoning(summary="auto")}, "param_left_out"),
        ({"include": ("x",)}, "param_left_out"),
        ({"truncation": "auto"}, "param_left_out"),
    ],
)
def test_unsupported_parameter_gives_a_notice(params: dict[str, Any], code: str) -> None:
    body, notices = encoded(chat(U, params=Params(**params)))
    assert notices == [code]
    assert list(json.loads(body)) == ["model", "messages"]


@pytest.mark.parametrize(
    "cache",
    [
        PromptCachePlan(prewarm=True),
        PromptCachePlan(diagnose=True),
        PromptCachePlan(mode="explicit"),
    ],
)
def test_unsupported_cache_option_gives_a_notice(cache: PromptCachePlan) -> None:
    body, notices = encoded(chat(U, cache=cache))
    assert notices == ["cache_option_left_out"]
    assert list(json.loads(body)) == ["model", "messages"]


def test_chat_is_stateless() -> None:
    """SPEC F: the whole prompt goes out, never a delta."""
    ir = msgspec.structs.replace(
        PromptIR.chat([U, Message.assistant("a", id="x"), U]),
        continuation=Continuation("resp_1", "x"),
    )
    body, notices = encoded(Call(ir=ir, model=PLAIN))
    assert len(json.loads(body)["messages"]) == 3
    assert notices == ["continuation_left_out"]


@each_row(
    "model, params, path",
    [
        ("o3", {"temperature": 0.5}, "params.temperature"),
        ("gpt-5", {"top_p": 0.5}, "params.top_p"),
        (PLAIN, {"max_tokens": -1}, "params.max_tokens"),
        (PLAIN, {"tool_choice": ToolChoice("tool")}, "params.tool_choice.name"),
    ],
)
def test_unsupported_feature_of_the_model_is_rejected(
    model: str, params: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encoded(chat(U, model=model, params=Params(**params)))
    assert caught.value.path == path


# ── Breakpoints ──────────────────────────────────────────────────────────────────────────────────

MARKER = b',"prompt_cache_breakpoint":{"mode":"explicit"}'


def test_breakpoints_round_trip() -> None:
    body = (
        b'{"model":"gpt-5.6","messages":[{"role":"developer","content":[{"type":"text","text":"s"%b}]},'
        b'{"role":"user","content":[{"type":"text","text":"a"%b},{"type":"image_url","image_url":{"url":"u"}%b}]},'
        b'{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"x"},{"type":"text","text":"y"%b}]}]}'
        % (MARKER, MARKER, MARKER, MARKER.replace(b"}", b',"ttl":"12h"}'))
    )
    call = parsed(body)
    assert call.ir.cache.marks == (
        BlockMark(0, "30m"),
        PartMark("m0", (0,), "30m"),
        PartMark("m0", (1,), "30m"),
        PartMark("m1", (0, 1), "12h"),
    )
    assert encoded(call) == (body, [])
    made = cut(openai_chat, body)
    assert openai_chat.assemble(made, Plan(marks=made.marks)).body.join() == body


@each_row(
    "mark, codes",
    [
        (PartMark("m0", (), "5m"), ["ttl_changed"]),
        (PartMark("m0", (0,), "1h"), ["ttl_changed"]),
        (PartMark("m0", (0,), "30m"), []),
        (PartMark("m2", (0,), "30m"), []),
        (PartMark("m2", (0, 1), "30m"), ["mark_left_out"]),
        (PartMark("m1", (), "30m"), ["mark_left_out"]),
        (PartMark("m9", (), "30m"), ["mark_left_out"]),
        (BlockMark(0, "30m"), []),
        (BlockMark(4, "30m"), ["mark_left_out"]),
        (ToolMark("f", "30m"), ["mark_left_out"]),
    ],
)
def test_mark_finds_its_part_or_gives_a_notice(mark: Any, codes: list[str]) -> None:
    conversation = (U, Message.assistant(ToolCall("c", "f")), Message.tool("c", "ok"))
    cache = PromptCachePlan(marks=(mark,))
    system = [PromptBlock("s", "s")]
    call = chat(*conversation, model=MARKS, system=system, tools=(Tool("f"),), cache=cache)
    body, notices = encoded(call)
    assert notices == codes
    assert body.count(MARKER) == (codes != ["mark_left_out"])


def test_model_without_breakpoints_gets_none() -> None:
    cache = PromptCachePlan(marks=(PartMark("m0"), BlockMark(0)))
    call = chat(U, system=[PromptBlock.cached_long("s", "s")], cache=cache)
    rendered = render(call)
    assert rendered.markers == {}
    assert all(chunk.splice is None for chunk in rendered)
    assert [notice.code for notice in rendered.notices] == ["mark_left_out"] * 2
    assert plan_once(rendered, catalog.rules("openai", PLAIN), reuse_expected=True).marks == ()


def test_the_planner_marks_system_and_history_and_no_tool() -> None:
    tools = (Tool("f", cache=CachePolicy.EPHEMERAL_1H),)
    system = [PromptBlock.cached_long("s", "s"), PromptBlock.cached_short("t", "t")]
    rendered = render(chat(U, Message.assistant("a"), U, model=MARKS, tools=tools, system=system))
    planned = plan_once(rendered, catalog.rules("openai", MARKS), reuse_expected=True)
    marked = [rendered.chunk(mark.chunk) for mark in planned.marks]
    # Four are written, and one of them is OpenAI's own.
    assert len(marked) == 3
    assert all(
        chunk.section != "tools" and mark.ttl == "30m"
        for chunk, mark in zip(marked, planned.marks, strict=True)
    )
    json.loads(openai_chat.assemble(rendered, planned).body.join())
    codes = [notice.code for notice in rendered.notices]
    assert codes == ["tool_policy_left_out", "ttl_changed", "ttl_changed"]


def test_explicit_mode_leaves_all_four_breakpoints() -> None:
    system = [PromptBlock.cached_long("s", "s"), PromptBlock.cached_short("t", "t")]
    cache = PromptCachePlan(mode="explicit", marks=(BlockMark(0, "30m"),))
    rendered = render(chat(U, Message.assistant("a"), U, model=MARKS, system=system, cache=cache))
    assert len(plan_once(rendered, catalog.rules("openai", MARKS), reuse_expected=True).marks) == 4


def test_a_tool_or_an_assistant_chunk_cannot_be_marked() -> None:
    rendered = render(chat(U, Message.assistant("a"), model=MARKS, tools=(Tool("f"),)))
    for chunk in (0, 2):
        with pytest.raises(InvalidRequest):
            openai_chat.assemble(rendered, Plan(marks=(Mark(chunk, "30m"),)))


# ── Malformed ────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "body, path",
    [
        (b"", "$"),
        (b"[]", "$"),
        (b"\xff", "$"),
        (b'{"messages":[]}', "$.model"),
        (b'{"model":"m"}', "$.messages"),
        (b'{"model":"m","messages":{}}', "$.messages"),
        (b'{"model":"m","messages":[1]}', "$.messages[0]"),
        (b'{"model":"m","messages":[{"content":"a"}]}', "$.messages[0].role"),
        (b'{"model":"m","messages":[{"role":"narrator","content":"a"}]}', "$.messages[0].role"),
        (
            b'{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}',
            "$.messages[0].content[0].text",
        ),
        (b'{"model":"m","messages":[{"role":"user","content":7}]}', "$.messages[0].content"),
        (b'{"model":"m","messages":[],"temperature":"hot"}', "$.temperature"),
        (
            b'{"model":"m","messages":[],"tools":[{"type":"function","function":{}}]}',
            "$.tools[0].name",
        ),
    ],
)
def test_a_malformed_request_names_the_field(body: bytes, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(body)
    assert caught.value.path.startswith(path[: path.rindex(".")] if "tools" in path else path)
