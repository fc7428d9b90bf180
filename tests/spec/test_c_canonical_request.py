"""SPEC C: the canonical request, its views, its marks, and the call around it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.rules import without_minimum
from support.tables import each_row

import anaphora.wire
from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import (
    BlockMark,
    Call,
    Continuation,
    MarkRequest,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ResponsesRequestOptions,
    Segment,
    ToolChoice,
    ToolMark,
)
from anaphora.rendered import Plan
from anaphora.values import (
    Conversation,
    Message,
    Opaque,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    from_json,
    to_json,
)
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = without_minimum("anthropic", MODEL)

ROLES = list(SegmentRole)


def whole(**changes: Any) -> PromptIR:
    """A prompt with something in every place; the segments stand in no particular order."""
    ir = PromptIR(
        system_text="SYSTEM",
        segments=(
            Segment.of(SegmentRole.VOLATILE_TAIL, Message.user("volatile", id="v")),
            Segment.of(
                SegmentRole.CONVERSATION,
                Message.user("u1", id="u1"),
                Message.assistant("a1", id="a1"),
                Message.user("u2", id="u2"),
            ),
            Segment.of(SegmentRole.SYSTEM_REMAINDER, Message.system("remainder", id="r")),
            Segment.of(SegmentRole.STABLE_PREFIX, Message.user("prefix", id="p")),
            Segment.of(SegmentRole.DYNAMIC_CONTEXT, Message.user("dynamic", id="d")),
        ),
    )
    return msgspec.structs.replace(ir, **changes)


def texts_of(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def call_with(ir: PromptIR, **fields: Any) -> Call:
    fields.setdefault("params", Params(max_tokens=16))
    return Call(ir=ir, model=MODEL, **fields)


def send(call: Call) -> tuple[dict[str, Any], list[str]]:
    """The body, and the codes of its notices."""
    rendered = anthropic.render(call, PROFILE)
    planned = plan_once(rendered, RULES, reuse_expected=True)
    body = json.loads(anthropic.assemble(rendered, planned).body.join())
    return body, [notice.code for notice in (*rendered.notices, *planned.notices)]


def unmarked(call: Call) -> bytes:
    return anthropic.assemble(anthropic.render(call, PROFILE), Plan()).body.join()


def test_c1_one_prompt_a_round() -> None:
    """C1: text, blocks, segments, cache plan and continuation; all empty is a prompt too."""
    assert PromptIR() == PromptIR(
        system_text="", system_blocks=(), segments=(), cache=PromptCachePlan(), continuation=None
    )
    with pytest.raises(AttributeError):
        PromptIR().system_text = "changed"  # type: ignore[misc]


def test_c1_a_prompt_survives_storage() -> None:
    """C1 and law 3: written and read back it is the same value and the same bytes on the wire."""
    ir = whole(
        system_blocks=(PromptBlock.cached_long("base", "SYSTEM", "base"),),
        cache=PromptCachePlan(marks=(PartMark("u2", (0,)), ToolMark("t", "1h"), BlockMark(0))),
        continuation=Continuation("resp_1", "a1"),
    )
    back = from_json(to_json(ir), PromptIR)
    assert back == ir
    assert unmarked(call_with(back)) == unmarked(call_with(ir))


def test_c1_the_cache_plan_is_the_only_authority_on_breakpoints() -> None:
    """C1: a plan that allows none on messages gets none, whatever the segments are."""
    body, _ = send(call_with(whole(cache=PromptCachePlan(messages=False))))
    assert "cache_control" not in json.dumps(body["messages"])


def test_c2_five_roles() -> None:
    """C2: what a run of messages is for, in the words that files use."""
    assert [role.value for role in SegmentRole] == [
        "stable_prefix",
        "dynamic_context",
        "system_remainder",
        "conversation",
        "volatile_tail",
    ]


@each_row(
    "text, blocks, field",
    [
        ("", [], ""),
        ("text", [], "text"),
        ("text", ["block"], "text"),
        ("  text\n", ["block"], "  text\n"),
        ("", ["a", "b"], "a\n\nb"),
        ("", ["a", "", "  ", "b"], "a\n\nb"),
        ("", [" a "], " a "),
        ("", ["", " "], ""),
        (" ", ["block"], " "),
    ],
)
def test_c3_system_field(text: str, blocks: list[str], field: str) -> None:
    """C3: the text has the last word; without one, the blocks that say something."""
    ir = PromptIR(
        system_text=text, system_blocks=tuple(PromptBlock.plain("x", block) for block in blocks)
    )
    assert ir.system_field() == field


def test_c4_body_chat_and_flatten() -> None:
    """C4: the view decides the order, not the order of the segments."""
    body = ["prefix", "dynamic", "remainder", "u1", "a1", "u2", "volatile"]
    assert texts_of(whole().body_chat()) == body
    assert texts_of(whole().flatten()) == ["SYSTEM", *body]
    assert whole().flatten()[0].role == "system"


@pytest.mark.parametrize(
    "system, lead", [("  padded\n", ["padded"]), ("", []), ("   ", []), ("\n\n", [])]
)
def test_c4_flatten_trims_the_system_message(system: str, lead: list[str]) -> None:
    """C4: trimmed, and left out when nothing remains."""
    ir = PromptIR(
        system_text=system, segments=(Segment.of(SegmentRole.CONVERSATION, Message.user("u")),)
    )
    assert texts_of(ir.flatten()) == [*lead, "u"]


def test_c5_continuation_delta_is_ordered_on_its_own() -> None:
    """C5: the remainder leads the delta and follows dynamic context in the body. If this fails,
    the two orders were unified: give each its own again."""
    ir = whole(continuation=Continuation("resp_1", "a1"))
    body, delta = texts_of(ir.body_chat()), texts_of(ir.continuation_delta())
    assert delta == ["remainder", "dynamic", "u2", "volatile"]
    assert body.index("dynamic") < body.index("remainder") < body.index("u1")
    assert delta.index("remainder") < delta.index("dynamic")
    assert "prefix" in body
    assert "prefix" not in delta


def test_c5_the_two_views_share_no_order() -> None:
    """C5: written independently. Neither calls the other, and no table of roles serves both."""
    source = (Path(anaphora.wire.__path__[0]).parent / "prompt" / "ir.py").read_text()
    functions = {
        node.name: {
            inner.attr if isinstance(inner, ast.Attribute) else inner.id
            for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute | ast.Name)
        }
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    body = functions["body_chat"] | functions["body_runs"]
    delta = functions["continuation_delta"]
    own = {"self", "list", "Message", "SegmentRole", "run", *(role.name for role in ROLES)}
    assert not delta & {"body_chat", "body_runs", "_CHAT_ORDER", "_DYNAMIC_LAST"}
    assert not (body & delta) - own


def history(*texts: str) -> Segment:
    """u… by the user, a… by the assistant, each with its text for an id."""
    speakers = {"u": Message.user, "a": Message.assistant}
    return Segment.of(
        SegmentRole.CONVERSATION, *(speakers[text[0]](text, id=text) for text in texts)
    )


@each_row(
    "turns, boundary, tail",
    [
        (["u1", "a1", "u2"], "a1", ["u2"]),
        (["u1", "a1", "u2", "a2", "u3"], "a1", ["u2", "a2", "u3"]),
        (["u1", "a1", "u2"], None, ["u1", "a1", "u2"]),
        (["u1", "a1", "u2"], "gone", ["u1", "a1", "u2"]),
        (["u1", "a1"], "a1", ["u1", "a1"]),
        ([], "a1", []),
        # Ids may repeat where an app numbers carelessly: the last one counts.
        (["u1", "a1", "u2", "a1", "u3"], "a1", ["u3"]),
    ],
)
def test_c6_conversation_tail(turns: list[str], boundary: str | None, tail: list[str]) -> None:
    """C6: strictly after the committed answer; everything when that says nothing."""
    ir = PromptIR(segments=(history(*turns),), continuation=Continuation("resp_1", boundary))
    assert texts_of(ir.continuation_delta()) == tail


def test_c6_without_a_continuation_all_is_new() -> None:
    """C6: nothing was committed, so the tail is the conversation."""
    assert texts_of(PromptIR(segments=(history("u1", "a1"),)).continuation_delta()) == ["u1", "a1"]


def test_c7_responses_input_is_the_body() -> None:
    """C7: the system prompt travels as instructions, not in the list."""
    assert whole().responses_input() == whole().body_chat()


def test_c7_the_callers_policy_is_kept() -> None:
    """C7: what the caller decided stays; what the prompt says is set."""
    base = ResponsesRequestOptions(
        store=False,
        text_verbosity="high",
        reasoning_summary="auto",
        include=("reasoning.encrypted_content",),
        truncation="disabled",
        instructions="left over",
        input_messages=(Message.user("left over"),),
    )
    ir = whole(system_text="  SYSTEM \n", continuation=Continuation("resp_1"))
    assert ir.responses_request_options(base) == msgspec.structs.replace(
        base,
        input_messages=tuple(ir.body_chat()),
        instructions="SYSTEM",
        previous_response_id="resp_1",
    )


@pytest.mark.parametrize("system", ["", "   "])
def test_c7_a_blank_system_prompt_gives_no_instructions(system: str) -> None:
    """C7: none, and not an empty string; no continuation, no response to continue."""
    options = PromptIR(system_text=system).responses_request_options()
    assert options == ResponsesRequestOptions(input_messages=())


def test_c8_the_same_views_give_the_same_bytes() -> None:
    """C8: a wire sees the views only, so how the segments are stored cannot matter."""
    ir = whole(system_text="")
    shuffled = msgspec.structs.replace(ir, segments=tuple(reversed(ir.segments)))
    with_empties = msgspec.structs.replace(
        ir, segments=(*ir.segments, *(Segment.of(role) for role in ROLES))
    )
    assert unmarked(call_with(shuffled)) == unmarked(call_with(ir))
    assert unmarked(call_with(with_empties)) == unmarked(call_with(ir))
    as_text = whole(system_text="SYSTEM")
    as_block = whole(system_text="", system_blocks=(PromptBlock.plain("x", "SYSTEM"),))
    assert unmarked(call_with(as_text)) == unmarked(call_with(as_block))


def test_c8_wires_read_no_fields_of_the_prompt() -> None:
    """C8: the fields that views are made from are named nowhere in the wire layer."""
    behind_views = {"system_text", "system_blocks", "segments"}
    found = [
        f"{file.name}:{node.lineno} .{node.attr}"
        for file in sorted(Path(anaphora.wire.__path__[0]).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in behind_views
    ]
    assert found == []


def test_c9_two_segments_of_one_role_are_merged() -> None:
    """C9: in order, in every view, and on the wire. Nothing is lost."""
    ir = PromptIR(
        segments=(
            Segment.of(SegmentRole.CONVERSATION, Message.user("u1", id="1")),
            Segment.of(SegmentRole.VOLATILE_TAIL, Message.user("v1", id="2")),
            Segment.of(SegmentRole.CONVERSATION, Message.assistant("a1", id="3")),
            Segment.of(SegmentRole.VOLATILE_TAIL, Message.user("v2", id="4")),
        )
    )
    assert texts_of(list(ir.run(SegmentRole.CONVERSATION))) == ["u1", "a1"]
    assert texts_of(ir.body_chat()) == ["u1", "a1", "v1", "v2"]
    assert texts_of(ir.continuation_delta()) == ["u1", "a1", "v1", "v2"]
    body, _ = send(call_with(ir))
    assert [(m["role"], [b["text"] for b in m["content"]]) for m in body["messages"]] == [
        ("user", ["u1"]),
        ("assistant", ["a1"]),
        ("user", ["v1", "v2"]),
    ]


# ── C10: marks ───────────────────────────────────────────────────────────────────────────────────

TOOLS = (Tool("alpha"), Tool("beta"))
SYSTEM = (
    PromptBlock.plain("one", "first"),
    PromptBlock.plain("blank", "  "),
    PromptBlock.plain("two", "second"),
)
TALK = (
    Message.user("u", "more", id="ask"),
    Message.user("and this", id="merged"),
    Message.assistant(
        Thinking("hm", signature="sig"),
        Text(""),
        Text("calling"),
        ToolCall("c", "alpha"),
        id="call",
    ),
    Message.tool("c", (Text("page 1"), Text(" "), Text("page 2")), id="result"),
    Message.user("go on", id="last"),
)


def marked_by(*marks: MarkRequest) -> tuple[list[str], list[str]]:
    """The paths that carry a marker because of these marks alone, and the notices."""
    cache = PromptCachePlan(marks=marks)
    call = call_with(PromptIR.chat(TALK, system=SYSTEM, cache=cache), tools=TOOLS)
    rendered = anthropic.render(call, PROFILE)
    planned = plan_once(rendered, RULES)
    assert set(rendered.marks) <= set(planned.marks)
    body = json.loads(anthropic.assemble(rendered, Plan(marks=rendered.marks)).body.join())
    return _marked(body), [notice.code for notice in rendered.notices]


def _marked(value: Any, path: str = "") -> list[str]:
    """Every path with a marker; nested blocks come before their block."""
    if isinstance(value, list):
        return [hit for at, item in enumerate(value) for hit in _marked(item, f"{path}[{at}]")]
    if not isinstance(value, dict):
        return []
    inside = [hit for key in value for hit in _marked(value[key], f"{path}.{key}".strip("."))]
    return [*inside, path] if "cache_control" in value else inside


@each_row(
    "mark, path",
    [
        (ToolMark("alpha"), "tools[0]"),
        (ToolMark("beta", "1h"), "tools[1]"),
        (BlockMark(0), "system[0]"),
        (BlockMark(2), "system[1]"),  # the blank block before it is not sent
        (PartMark("ask", (0,)), "messages[0].content[0]"),
        (PartMark("ask", (1,)), "messages[0].content[1]"),
        (PartMark("ask"), "messages[0].content[1]"),
        (PartMark("call", (2,)), "messages[1].content[1]"),  # the empty text before it is not sent
        (PartMark("call", (3,)), "messages[1].content[2]"),
        (PartMark("call"), "messages[1].content[2]"),
        (PartMark("result", (0,)), "messages[2].content[0]"),
        # Inside the tool result; the blank part between the pages is not sent.
        (PartMark("result", (0, 0)), "messages[2].content[0].content[0]"),
        (PartMark("result", (0, 2)), "messages[2].content[0].content[1]"),
    ],
)
def test_c10_a_mark_names_what_it_marks(mark: MarkRequest, path: str) -> None:
    """C10: a tool by name, a block by index, a part by its message's id and its path."""
    assert marked_by(mark) == ([path], ["blank_text", "blank_text"])


def test_c10_merging_moves_no_mark() -> None:
    """C10: two user messages are one on the wire; the mark stays on the part it named."""
    ir = PromptIR.chat(
        [Message.user("u", id="ask"), Message.user("and this", "too", id="merged")],
        cache=PromptCachePlan(marks=(PartMark("merged", (0,)),)),
    )
    body, _ = send(call_with(ir))
    (message,) = body["messages"]
    assert ["cache_control" in block for block in message["content"]] == [False, True, True]
    longer = PromptIR.chat(
        [
            Message.user("before", id="new"),
            Message.user("u", id="ask"),
            Message.user("and this", "too", id="merged"),
        ],
        cache=PromptCachePlan(marks=(PartMark("merged", (0,)),)),
    )
    body, _ = send(call_with(longer))
    (message,) = body["messages"]
    assert "cache_control" in message["content"][2]


def test_c10_marks_around_and_inside_a_tool_result() -> None:
    """C10: both pages of a result and the result itself, each where it belongs."""
    marks = (PartMark("result", (0,)), PartMark("result", (0, 2)), PartMark("result", (0, 0)))
    paths, _ = marked_by(*marks)
    assert paths == [
        "messages[2].content[0].content[0]",
        "messages[2].content[0].content[1]",
        "messages[2].content[0]",
    ]


@each_row(
    "mark",
    [
        ToolMark("gamma"),
        BlockMark(1),  # blank, so it is not sent
        BlockMark(9),
        BlockMark(-1),
        PartMark("unknown"),
        PartMark("ask", (7,)),
        PartMark("ask", (-1,)),
        PartMark("ask", (0, 0)),  # nothing is nested in a text
        PartMark("call", (0,)),  # thinking takes no marker
        PartMark("call", (1,)),  # empty, so it is not sent
        PartMark("result", (0, 1)),  # blank
        PartMark("result", (0, 9)),
        PartMark("result", (0, 0, 0)),
    ],
)
def test_c10_a_mark_that_matches_nothing_gives_a_notice(mark: MarkRequest) -> None:
    """C10: never put on a neighbour instead, and never silently dropped."""
    paths, codes = marked_by(mark)
    assert paths == []
    assert "mark_left_out" in codes


def test_c10_a_nested_block_that_takes_no_marker_gets_none() -> None:
    """C10 and law 4: a block that takes no marker takes none inside a tool result either."""
    odd = Opaque("anthropic", "future_block", '{"type":"future_block"}')
    ir = PromptIR.chat(
        [
            Message.assistant(ToolCall("c", "alpha"), id="call"),
            Message.user(ToolResult("c", (odd, Text("page"))), id="result"),
            Message.user("go on", id="last"),
        ],
        cache=PromptCachePlan(marks=(PartMark("result", (0, 0)),)),
    )
    body, codes = send(call_with(ir))
    assert "cache_control" not in body["messages"][1]["content"][0]["content"][0]
    assert "mark_left_out" in codes


def test_c10_a_number_means_a_message_of_the_conversation() -> None:
    """C10 and B3: segments number their messages each for itself; the frozen boundary is one of
    the history, so a stable prefix with a message of the same number does not catch it."""
    conversation = Conversation([Message.user("u0"), Message.assistant("a1"), Message.user("u2")])
    ir = PromptIR(
        segments=(
            Segment.of(SegmentRole.STABLE_PREFIX, Message.user("guide"), Message.assistant("ok")),
            Segment(SegmentRole.CONVERSATION, conversation),
        ),
        cache=PromptCachePlan(frozen_through=conversation[1].id),
    )
    body, _ = send(call_with(ir))
    assert _marked(body)[1:] == ["messages[3].content[0]", "messages[4].content[0]"]


# ── C11: the call ────────────────────────────────────────────────────────────────────────────────

SCHEMA = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}}}'

PARAMS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 5}, {"max_tokens": 5}),
    ("temperature", {"temperature": 0.5}, {"temperature": 0.5}),
    ("top_p", {"top_p": 0.9}, {"top_p": 0.9}),
    ("top_k", {"top_k": 40}, {"top_k": 40}),
    ("stop", {"stop": ("END", "\n")}, {"stop_sequences": ["END", "\n"]}),
    ("tool_choice", {"tool_choice": ToolChoice("required")}, {"tool_choice": {"type": "any"}}),
    (
        "reasoning",
        {"reasoning": Reasoning("enabled", "high", 2048, "omitted")},
        {
            "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "omitted"},
            "output_config": {"effort": "high"},
        },
    ),
    (
        "output",
        {"output": OutputSchema(SCHEMA)},
        {"output_config": {"format": {"type": "json_schema", "schema": json.loads(SCHEMA)}}},
    ),
    ("metadata", {"metadata": {"user_id": "7"}}, {"metadata": {"user_id": "7"}}),
    ("user", {"user": "8"}, {"metadata": {"user_id": "8"}}),
    ("service_tier", {"service_tier": "standard_only"}, {"service_tier": "standard_only"}),
    ("stream", {"stream": True}, {"stream": True}),
]


@each_row("given, fields", [(given, fields) for _, given, fields in PARAMS])
def test_c11_every_parameter_reaches_the_body(given: Any, fields: dict[str, Any]) -> None:
    """C11: under the name that the official SDK gives it, and nothing else comes along."""
    ir = PromptIR.chat([Message.user("u")])
    params = Params(**{"max_tokens": 16, **given})
    body, _ = send(Call(ir=ir, model=MODEL, params=params))
    rest = {k: v for k, v in body.items() if k not in ("model", "messages")}
    assert rest == {"max_tokens": 16, **fields}


def test_c11_no_parameter_is_forgotten() -> None:
    """C11: every parameter has a row above."""
    left_out: dict[str, Any] = {
        "seed": 7,
        "n": 2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "verbosity": "low",
        "store": True,
        "include": ("reasoning.encrypted_content",),
        "truncation": "auto",
    }
    sent = [name for name, _, _ in PARAMS]
    assert {*sent, *left_out} == {f.name for f in msgspec.structs.fields(Params)}
    call = call_with(PromptIR.chat([Message.user("u")]), params=Params(max_tokens=16, **left_out))
    rendered = anthropic.render(call, catalog.profile("anthropic", MODEL))
    assert {notice.path for notice in rendered.notices} == {f"params.{name}" for name in left_out}


def test_c11_model_tools_and_extras() -> None:
    """C11: the call names the model and the tools; what has no name here travels along unharmed."""
    schema = '{"required":["b"], "properties":{"b":{},"a":{}},"type":"object"}'
    call = call_with(
        PromptIR.chat([Message.user("u")]),
        tools=(
            Tool("t", "Does it.", schema, True, extras={"anthropic": '{"defer_loading": true}'}),
        ),
        extras={"anthropic": '{"speed":"fast","inference_geo":"eu"}', "openai": '{"seed":1}'},
    )
    body = unmarked(call)
    assert json.loads(body)["model"] == MODEL
    assert (
        b'"tools":[{"name":"t","description":"Does it.","input_schema":'
        + schema.encode()
        + b',"strict":true,"defer_loading":true}]'
    ) in body
    assert body.endswith(b',"speed":"fast","inference_geo":"eu"}')
    assert b"seed" not in body


def test_c11_a_call_survives_storage() -> None:
    """C11 and law 3: a call written and read back renders to the same bytes."""
    call = Call(
        ir=PromptIR.chat(TALK, system=SYSTEM),
        model=MODEL,
        tools=TOOLS,
        params=Params(
            max_tokens=16,
            temperature=0.1,
            tool_choice=ToolChoice("tool", "alpha", False),
            output=OutputSchema(SCHEMA),
        ),
        extras={"anthropic": '{"speed" : "fast"}'},
    )
    back = from_json(to_json(call), Call)
    assert back == call
    assert unmarked(back) == unmarked(call)
