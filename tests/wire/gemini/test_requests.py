"""Calls and requests side by side: our values on one side, Gemini's bytes on the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.errors import InvalidRequest
from anaphora.prompt import (
    Call,
    Continuation,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Audio,
    Bytes,
    Conversation,
    Document,
    Extras,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    ProviderTool,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire import detect, gemini
from anaphora.wire.cutting import cut

MODEL = "gemini-2.5-flash"
PATH = f"/v1beta/models/{MODEL}:generateContent"
SIGNED = {"gemini": '{"thoughtSignature":"c2ln"}'}
MADE = {"gemini.form": '{"id":null}'}


def chat(*messages: Message, **fields: Any) -> Call:
    system = fields.pop("system", ())
    cache = fields.pop("cache", None)
    ir = PromptIR.chat(Conversation(messages or [Message.user("hi")]), system=system, cache=cache)
    return Call(ir=ir, **{"model": MODEL, **fields})


def render(call: Call, previous: Rendered | None = None) -> Rendered:
    return gemini.render(call, catalog.profile("google", call.model), previous)


def body_of(call: Call) -> Any:
    return json.loads(gemini.assemble(render(call), Plan()).body.join())


def parse(body: Any, path: str = PATH) -> Call:
    return gemini.parse(json.dumps(body).encode(), path)


def codes(call: Call) -> list[str]:
    return [notice.code for notice in render(call).notices]


# ── Parts, both ways ─────────────────────────────────────────────────────────────────────────────

BOTH_WAYS: dict[str, tuple[Part, Any]] = {
    "text": (Text("hi"), {"text": "hi"}),
    "an empty text": (Text(""), {"text": ""}),
    "a signed text": (Text("hi", SIGNED), {"text": "hi", "thoughtSignature": "c2ln"}),
    "a thought": (Thinking("hm", provider="gemini"), {"text": "hm", "thought": True}),
    "a signed thought": (
        Thinking("hm", "c2ln", provider="gemini"),
        {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
    ),
    "an image": (
        Image(Bytes(b"\x89PNG", "image/png")),
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
    ),
    "an image at an address": (
        Image(Url("https://x.test/a", "image/webp")),
        {"fileData": {"mimeType": "image/webp", "fileUri": "https://x.test/a"}},
    ),
    "an image in a bucket": (
        Image(FileId("google", "gs://b/a", "image/png")),
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a"}},
    ),
    "an uploaded file": (
        Document(
            FileId(
                "google",
                "https://generativelanguage.googleapis.com/v1beta/files/x",
                "application/pdf",
            )
        ),
        {
            "fileData": {
                "mimeType": "application/pdf",
                "fileUri": "https://generativelanguage.googleapis.com/v1beta/files/x",
            }
        },
    ),
    "a document": (
        Document(Bytes(b"%PDF", "application/pdf")),
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
    ),
    "audio": (
        Audio(Bytes(b"RIFF", "audio/wav")),
        {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
    ),
    "a name beside the bytes": (
        Image(
            Bytes(b"\x89PNG", "image/png"),
            extras={"gemini": '{"mediaResolution":{},"inlineData":{"displayName":"a"}}'},
        ),
        {
            "inlineData": {"mimeType": "image/png", "data": "iVBORw==", "displayName": "a"},
            "mediaResolution": {},
        },
    ),
    "a video": (
        Opaque(
            "gemini",
            "fileData",
            '{"fileData": {"mimeType": "video/mp4", "fileUri": "https://youtu.be/x"}}',
        ),
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://youtu.be/x"}},
    ),
    "code": (
        Opaque("gemini", "executableCode", '{"executableCode": {"code": "1", "id": "e"}}'),
        {"executableCode": {"code": "1", "id": "e"}},
    ),
    "something new": (
        Opaque("gemini", "hologram", '{"hologram": {}, "thought": true}'),
        {"hologram": {}, "thought": True},
    ),
    "a call": (
        ToolCall("c1", "look", '{"q": "x"}'),
        {"functionCall": {"id": "c1", "name": "look", "args": {"q": "x"}}},
    ),
    "a signed call": (
        ToolCall("c1", "look", "{}", SIGNED),
        {"functionCall": {"id": "c1", "name": "look", "args": {}}, "thoughtSignature": "c2ln"},
    ),
    "a call with something new in it": (
        ToolCall("c1", "look", "{}", {"gemini": '{"functionCall":{"mood":"calm"}}'}),
        {"functionCall": {"id": "c1", "name": "look", "args": {}, "mood": "calm"}},
    ),
    "a call without an id": (
        ToolCall("call_0_0", "look", "{}", MADE),
        {"functionCall": {"name": "look", "args": {}}},
    ),
    "a text result": (
        ToolResult("c1", "found", name="look"),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"output": "found"}}},
    ),
    "an object result": (
        ToolResult("c1", '{"rows": [1, 2]}', name="look"),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"rows": [1, 2]}}},
    ),
    "a text that looks like an answer": (
        ToolResult("c1", '{"output":"x"}', name="look"),
        {
            "functionResponse": {
                "id": "c1",
                "name": "look",
                "response": {"output": '{"output":"x"}'},
            }
        },
    ),
    "a text that looks like a failure": (
        ToolResult("c1", '{"error":"x"}', name="look"),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"output": '{"error":"x"}'}}},
    ),
    "an object in a text": (
        ToolResult(
            "c1",
            '{"a":1}',
            name="look",
            extras={"gemini.form": '{"response":{"output": "{\\"a\\":1}"}}'},
        ),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"output": '{"a":1}'}}},
    ),
    "an output that is no text": (
        ToolResult("c1", '{"output": [1]}', name="look"),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"output": [1]}}},
    ),
    "an empty result": (
        ToolResult("c1", "{}", name="look"),
        {"functionResponse": {"id": "c1", "name": "look", "response": {}}},
    ),
    "a failure": (
        ToolResult("c1", "no", error=True, name="look"),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"error": "no"}}},
    ),
    "a failure in an object": (
        ToolResult(
            "c1",
            '{"code": 5}',
            error=True,
            name="look",
            extras={"gemini.form": '{"response":{"error": {"code": 5}}}'},
        ),
        {"functionResponse": {"id": "c1", "name": "look", "response": {"error": {"code": 5}}}},
    ),
    "a result with a picture": (
        ToolResult("c1", (Text("see"), Image(Bytes(b"\x89PNG", "image/png"))), name="look"),
        {
            "functionResponse": {
                "id": "c1",
                "name": "look",
                "response": {"output": "see"},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}],
            }
        },
    ),
    "a result that is a picture": (
        ToolResult("c1", (Image(Bytes(b"\x89PNG", "image/png")),), name="look"),
        {
            "functionResponse": {
                "id": "c1",
                "name": "look",
                "response": {},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}],
            }
        },
    ),
    "a result that goes on": (
        ToolResult(
            "c1", "x", name="look", extras={"gemini": '{"functionResponse":{"willContinue":true}}'}
        ),
        {
            "functionResponse": {
                "id": "c1",
                "name": "look",
                "response": {"output": "x"},
                "willContinue": True,
            }
        },
    ),
    "a result without an id": (
        ToolResult("call_0_0", "x", name="look", extras=MADE),
        {"functionResponse": {"name": "look", "response": {"output": "x"}}},
    ),
}


@each_row("name", BOTH_WAYS)
def test_a_part_both_ways(name: str) -> None:
    part, sent = BOTH_WAYS[name]
    body = body_of(chat(Message.user(part)))
    assert body["contents"] == [{"role": "user", "parts": [sent]}]
    (message,) = parse({"contents": [{"role": "user", "parts": [sent]}]}).ir.body_chat()
    assert [json_equal(p) for p in message.parts] == [json_equal(part)]
    assert codes(chat(Message.user(part))) == []


def json_equal(part: Part) -> Any:
    """Texts that are JSON compare as JSON: the tables are written with other spaces."""
    if isinstance(part, Opaque):
        return part.provider, part.kind, json.loads(part.json)
    if isinstance(part, ToolCall):
        return part.id, part.name, json.loads(part.arguments), loaded(part.extras)
    extras = getattr(part, "extras", None)
    return repr(part).partition("extras=")[0], loaded(extras)


def loaded(extras: Extras | None) -> Any:
    return {name: json.loads(text) for name, text in (extras or {}).items()}


LEFT_OUT: dict[str, tuple[Part, str]] = {
    "another's thoughts": (Thinking("hm", "sig", provider="anthropic"), "foreign_thinking"),
    "redacted thoughts": (Thinking(data="x", provider="gemini"), "redacted_left_out"),
    "another's block": (Opaque("anthropic", "x", "{}"), "foreign_block"),
    "another's file": (Document(FileId("openai", "f")), "foreign_file"),
    "audio that is none": (Audio(Bytes(b"x", "application/pdf")), "audio_source"),
}


@each_row("name", LEFT_OUT)
def test_parts_left_out_have_a_notice(name: str) -> None:
    part, code = LEFT_OUT[name]
    call = chat(Message.user("hi"), Message.assistant(part, Text("x")))
    assert body_of(call)["contents"][1] == {"role": "model", "parts": [{"text": "x"}]}
    (notice,) = render(call).notices
    assert (notice.code, notice.path.partition(".parts[0]")[0]) == (code, "conversation[1]")


OTHERWISE: dict[str, tuple[Part, Any, str]] = {
    "a refusal": (Refusal("no"), {"text": "no"}, "refusal_as_text"),
    "arguments that are no object": (
        ToolCall("c", "f", "[1]"),
        {"functionCall": {"id": "c", "name": "f", "args": {"invalid_arguments": "[1]"}}},
        "arguments_not_an_object",
    ),
    "a picture of some kind": (
        Image(Url("https://x.test/a")),
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x.test/a"}},
        "media_type_guessed",
    ),
    "a detail": (
        Image(Url("https://x.test/a.png?v=1"), "high"),
        {"fileData": {"mimeType": "image/png", "fileUri": "https://x.test/a.png?v=1"}},
        "detail_unsupported",
    ),
    "a title": (
        Document(Url("https://x.test/a.pdf"), "title"),
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x.test/a.pdf"}},
        "title_unsupported",
    ),
    "two texts": (
        ToolResult("c", (Text("a"), Text("b")), name="f"),
        {"functionResponse": {"id": "c", "name": "f", "response": {"output": "a\n\nb"}}},
        "texts_joined",
    ),
    "a result of nothing that was asked": (
        ToolResult("c", "x"),
        {"functionResponse": {"id": "c", "name": "c", "response": {"output": "x"}}},
        "result_without_call",
    ),
}


@each_row("name", OTHERWISE)
def test_changed_parts_have_a_notice(name: str) -> None:
    part, sent, code = OTHERWISE[name]
    call = chat(Message.user(part))
    assert body_of(call)["contents"] == [{"role": "user", "parts": [sent]}]
    assert codes(call) == [code]


def test_an_image_must_be_one() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(chat(Message.user(Image(Bytes(b"x", "application/pdf")))))
    assert caught.value.path == "conversation[0].parts[0].source.media_type"


# ── Who speaks ───────────────────────────────────────────────────────────────────────────────────


def test_results_of_one_turn_stand_in_one_content() -> None:
    """Gemini refuses a turn that answers fewer calls than there were."""
    calls = [ToolCall("c1", "look", "{}"), ToolCall("c2", "read", "{}")]
    call = chat(
        Message.user("hi"),
        Message.assistant(*calls),
        Message.tool("c2", "two"),
        Message.tool("c1", "one"),
        Message.user("go on"),
    )
    contents = body_of(call)["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user", "user"]
    assert [part["functionResponse"]["name"] for part in contents[2]["parts"]] == ["read", "look"]
    # One that comes a turn later joins them without moving a byte.
    before, after = render(chat(*call.ir.body_chat()[:3])), render(chat(*call.ir.body_chat()[:4]))
    assert after.data().startswith(before.data())
    assert [chunk.path for chunk in after][-2:] == ["contents[2].parts[0]", "contents[2].parts[1]"]


def test_neighbours_of_one_role_stay_apart() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "user", "parts": [{"text": "b"}]},
        {"role": "model", "parts": [{"text": "c"}]},
        {"role": "model", "parts": [{"text": "d"}]},
    ]
    assert body_of(parse({"contents": contents}))["contents"] == contents


def test_a_system_message_in_the_history_is_sent_as_user_text() -> None:
    call = chat(Message.user("hi"), Message.system("in French"))
    assert body_of(call)["contents"][1] == {"role": "user", "parts": [{"text": "in French"}]}
    (notice,) = render(call).notices
    assert (notice.code, notice.path) == ("system_as_user", "conversation[1]")


def test_a_call_without_an_id_is_answered_without_one() -> None:
    """AI Studio leaves ids out. The app pairs by the one made here; Gemini never sees it."""
    raw = b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"look","args":{}}}]}}],"responseId":"r7"}'
    reply = gemini.read_reply(raw)
    (call,) = reply.tool_calls
    assert call.id == "call_r7_0"
    conversation = chat(Message.user("hi"), reply.message, Message.tool(call.id, "found"))
    assert body_of(conversation)["contents"][1:] == [
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "look", "response": {"output": "found"}}}],
        },
    ]
    # Another provider gets the id, in both places.
    other = wire.get("openai_chat")
    rendered = other.render(
        Call(ir=conversation.ir, model="gpt-5"), catalog.profile("openai", "gpt-5")
    )
    sent = other.assemble(rendered, Plan()).body.join()
    assert sent.count(b'"call_r7_0"') == 2
    assert rendered.notices == ()


@pytest.mark.parametrize("model", ["gemini-3-flash-preview", "gemini-pro-latest"])
def test_calls_of_other_models_are_sent_without_a_signature(model: str) -> None:
    """Gemini 3 refuses a call without one, unless a documented value skips the check."""
    calls = ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")
    messages = [
        Message.user("u"),
        Message.assistant(*calls),
        Message.tool("a", "x"),
        Message.tool("b", "x"),
        Message.assistant(ToolCall("c", "look", "{}", SIGNED)),
        Message.tool("c", "x"),
    ]
    body = body_of(chat(*messages, model=model))
    parts = [part for content in body["contents"] for part in content["parts"]]
    signatures = [part.get("thoughtSignature") for part in parts if "functionCall" in part]
    assert signatures == ["skip_thought_signature_validator", None, "c2ln"]
    older = body_of(parse(body))
    assert older == body_of(chat(*messages))
    assert "skip_thought" not in json.dumps(older)
    # A model that is not known gets what came.
    path = "/v1beta/models/gemini-99-unheard:generateContent"
    assert body_of(parse(body, path)) == body
    assert body_of(parse(older, path)) == older


def test_results_without_ids_are_paired_by_function_and_order() -> None:
    def call(name: str) -> Any:
        return {"functionCall": {"name": name, "args": {}}}

    def answer(name: str) -> Any:
        return {"functionResponse": {"name": name, "response": {"output": name}}}

    parsed = parse(
        {
            "contents": [
                {"role": "model", "parts": [call("a"), call("b"), call("a")]},
                {"role": "user", "parts": [answer("b"), answer("a"), answer("a"), answer("c")]},
            ]
        }
    )
    calls, results = parsed.ir.body_chat()
    assert [p.id for p in calls.parts if isinstance(p, ToolCall)] == [
        "call_0_0",
        "call_0_1",
        "call_0_2",
    ]
    assert [p.call_id for p in results.parts if isinstance(p, ToolResult)] == [
        "call_0_1",
        "call_0_0",
        "call_0_2",
        "call_1_3",
    ]
    assert b'"id"' not in gemini.assemble(render(parsed), Plan()).body.join()


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────

OPEN_API = {
    "type": "OBJECT",
    "properties": {
        "q": {"type": "STRING", "nullable": True},
        "n": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1"},
        "one": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]},
    },
    "propertyOrdering": ["q", "n", "one"],
    "required": ["q"],
}
AS_JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "q": {"type": ["string", "null"]},
        "n": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "one": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
    },
    "required": ["q"],
}


def test_tools_are_sent_as_json_schema() -> None:
    tool = Tool("look", "Looks.", '{"type":"object"}')
    assert body_of(chat(tools=(tool,)))["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "look",
                    "description": "Looks.",
                    "parametersJsonSchema": {"type": "object"},
                }
            ]
        }
    ]


def test_a_schema_in_geminis_form_goes_back_in_it_and_elsewhere_as_json_schema() -> None:
    tools = [{"functionDeclarations": [{"name": "look", "parameters": OPEN_API}]}]
    parsed = parse({"contents": [{"role": "user", "parts": [{"text": "x"}]}], "tools": tools})
    (tool,) = parsed.tools
    assert isinstance(tool, Tool)
    assert json.loads(tool.schema) == AS_JSON_SCHEMA
    assert body_of(parsed)["tools"] == tools
    other = wire.get("openai_chat")
    rendered = other.render(
        Call(ir=parsed.ir, model="gpt-5", tools=parsed.tools), catalog.profile("openai", "gpt-5")
    )
    body = json.loads(other.assemble(rendered, Plan()).body.join())
    assert body["tools"][0]["function"]["parameters"] == AS_JSON_SCHEMA
    assert rendered.notices == ()
    # Once an app changed the schema, what had come means nothing any more.
    changed = Tool("look", "", '{"type":"object"}', extras=tool.extras)
    assert body_of(chat(tools=(changed,)))["tools"][0]["functionDeclarations"] == [
        {"name": "look", "parametersJsonSchema": {"type": "object"}}
    ]


def test_tools_of_all_kinds_keep_their_order() -> None:
    tools = (
        ProviderTool("gemini", "googleSearch", '{"googleSearch":{}}'),
        Tool("a"),
        Tool("b", strict=True),
        ProviderTool("gemini", "codeExecution", '{"codeExecution":{}}'),
        ProviderTool("anthropic", "web_search", "{}"),
        Tool("c"),
    )
    call = chat(tools=tools)
    sent = body_of(call)["tools"]
    assert [list(tool) for tool in sent] == [
        ["googleSearch"],
        ["functionDeclarations"],
        ["codeExecution"],
        ["functionDeclarations"],
    ]
    assert [[f["name"] for f in t.get("functionDeclarations", ())] for t in sent] == [
        [],
        ["a", "b"],
        [],
        ["c"],
    ]
    assert [notice.path for notice in render(call).notices] == ["tools[4]", "tools[2].strict"]
    assert [chunk.path for chunk in render(call)][:5] == [
        "tools[0]",
        "tools[1].functionDeclarations[0]",
        "tools[1].functionDeclarations[1]",
        "tools[2]",
        "tools[3].functionDeclarations[0]",
    ]
    assert [tool.name for tool in parse(body_of(call)).tools] == [
        "googleSearch",
        "a",
        "b",
        "codeExecution",
        "c",
    ]


def test_one_object_may_hold_several_tools() -> None:
    contents = [{"role": "user", "parts": [{"text": "x"}]}]
    sent = {
        "google_search": {"time_range": 1},
        "function_declarations": [{"name": "a", "response": {"type": "STRING"}}],
    }
    parsed = parse({"contents": contents, "tools": sent})
    assert [tool.name for tool in parsed.tools] == ["a", "googleSearch"]
    assert body_of(parsed)["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "a",
                    "parametersJsonSchema": {"properties": {}, "type": "object"},
                    "response": {"type": "STRING"},
                }
            ]
        },
        {"google_search": {"time_range": 1}},
    ]


# ── Parameters, both ways ────────────────────────────────────────────────────────────────────────

PARAMS: dict[str, tuple[Params, Any]] = {
    "nothing": (Params(), {}),
    "sampling": (
        Params(temperature=0.5, top_p=0.9, top_k=4, seed=1),
        {"generationConfig": {"temperature": 0.5, "topP": 0.9, "topK": 4, "seed": 1}},
    ),
    "the rest of it": (
        Params(max_tokens=9, n=2, stop=("A",), presence_penalty=0.1, frequency_penalty=0.2),
        {
            "generationConfig": {
                "maxOutputTokens": 9,
                "candidateCount": 2,
                "stopSequences": ["A"],
                "presencePenalty": 0.1,
                "frequencyPenalty": 0.2,
            }
        },
    ),
    "a schema": (
        Params(output=OutputSchema('{"type": "object"}')),
        {
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseJsonSchema": {"type": "object"},
            }
        },
    ),
    "JSON without a schema": (
        Params(output="json"),
        {"generationConfig": {"responseMimeType": "application/json"}},
    ),
    "a level": (
        Params(reasoning=Reasoning(effort="low", display="summarized")),
        {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}}},
    ),
    "a budget": (
        Params(reasoning=Reasoning("enabled", budget_tokens=512, display="omitted")),
        {"generationConfig": {"thinkingConfig": {"thinkingBudget": 512, "includeThoughts": False}}},
    ),
    "off": (
        Params(reasoning=Reasoning("disabled")),
        {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
    ),
    "as it likes": (
        Params(reasoning=Reasoning("adaptive")),
        {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}},
    ),
    "auto": (
        Params(tool_choice=ToolChoice("auto")),
        {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
    ),
    "required": (
        Params(tool_choice=ToolChoice("required")),
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
    ),
    "none": (
        Params(tool_choice=ToolChoice("none")),
        {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
    ),
    "one tool": (
        Params(tool_choice=ToolChoice("tool", "f")),
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}},
    ),
    "a tier, labels, storing": (
        Params(service_tier="priority", metadata={"team": "a"}, store=False),
        {"serviceTier": "priority", "labels": {"team": "a"}, "store": False},
    ),
}


@each_row("name", PARAMS)
def test_parameters_both_ways(name: str) -> None:
    params, sent = PARAMS[name]
    body = body_of(chat(params=params))
    contents = body.pop("contents")
    assert body == sent
    parsed = parse({"contents": contents, **sent})
    assert (parsed.params, parsed.extras) == (params, None)
    assert codes(chat(params=params)) == []


CARRIED: dict[str, tuple[Any, Params]] = {
    "a mode of Gemini's": (
        {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}},
        Params(),
    ),
    "several functions": (
        {
            "toolConfig": {
                "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]}
            }
        },
        Params(tool_choice=ToolChoice("required")),
    ),
    "more of a tool config": (
        {
            "toolConfig": {
                "functionCallingConfig": {"mode": "AUTO"},
                "includeServerSideToolInvocations": True,
            }
        },
        Params(tool_choice=ToolChoice("auto")),
    ),
    "another media type": (
        {
            "generationConfig": {
                "responseMimeType": "text/x.enum",
                "responseSchema": {"type": "STRING", "enum": ["a"]},
            }
        },
        Params(),
    ),
    "modalities, a token limit": (
        {"generationConfig": {"responseModalities": ["TEXT"], "maxOutputTokens": 5}},
        Params(max_tokens=5),
    ),
    "a level and a budget, which Gemini refuses": (
        {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW", "thinkingBudget": 5}}},
        Params(reasoning=Reasoning(effort="low")),
    ),
    "a level of tomorrow": (
        {"generationConfig": {"thinkingConfig": {"thinkingLevel": "EXTREME"}}},
        Params(),
    ),
    "numbers as texts": ({"generationConfig": {"maxOutputTokens": "5", "topK": 2.5}}, Params()),
    "labels in another script": ({"labels": {"équipe": "a"}}, Params()),
    "an unknown tier": ({"serviceTier": "first_class"}, Params()),
    "safety, a handle, a continuation": (
        {
            "safetySettings": [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "OFF"}],
            "cachedContent": "cachedContents/x",
            "continuationToken": "dG9r",
        },
        Params(),
    ),
    "something new": ({"telepathy": {"on": True}}, Params()),
}


@each_row("name", CARRIED)
def test_unknown_settings_are_kept(name: str) -> None:
    sent, params = CARRIED[name]
    parsed = parse({"contents": [{"role": "user", "parts": [{"text": "x"}]}], **sent})
    assert parsed.params == params
    body = body_of(parsed)
    del body["contents"]
    assert body == sent
    # Other wires leave it out, with a notice.
    other = wire.get("openai_chat")
    call = Call(ir=parsed.ir, model="gpt-4o", params=Params(), extras=parsed.extras)
    rendered = other.render(call, catalog.profile("openai", "gpt-4o"))
    assert "foreign_fields" in [notice.code for notice in rendered.notices]


def test_a_response_schema_in_geminis_form_goes_back_in_it() -> None:
    config = {"responseMimeType": "application/json", "responseSchema": OPEN_API}
    contents = [{"role": "user", "parts": [{"text": "x"}]}]
    parsed = parse({"contents": contents, "generationConfig": config})
    assert isinstance(parsed.params.output, OutputSchema)
    assert json.loads(parsed.params.output.schema) == AS_JSON_SCHEMA
    assert body_of(parsed)["generationConfig"] == config


NO_PLACE: dict[str, tuple[Params, list[str]]] = {
    "user": (Params(user="u"), ["params.user"]),
    "verbosity": (Params(verbosity="low"), ["params.verbosity"]),
    "include": (Params(include=("x",), truncation="auto"), ["params.include", "params.truncation"]),
    "parallel": (
        Params(tool_choice=ToolChoice("auto", parallel=False)),
        ["params.tool_choice.parallel"],
    ),
    "another's tier": (Params(service_tier="standard_only"), ["params.service_tier"]),
    "metadata that is no label": (
        Params(metadata={"User Id": "x", "team": "NOT THIS"}),
        ["params.metadata.User Id", "params.metadata.team"],
    ),
    "all but the schema": (
        Params(output=OutputSchema("{}", "n", "d", False)),
        ["params.output.name", "params.output.description", "params.output.strict"],
    ),
    "more effort than there is": (
        Params(reasoning=Reasoning(effort="max")),
        ["params.reasoning.effort"],
    ),
    "an unknown effort": (Params(reasoning=Reasoning(effort="some")), ["params.reasoning.effort"]),
    "a level and a budget": (
        Params(reasoning=Reasoning("enabled", "low", 2048)),
        ["params.reasoning.budget_tokens"],
    ),
    "when to think": (Params(reasoning=Reasoning("between_tools")), ["params.reasoning.mode"]),
    "thinking without more": (Params(reasoning=Reasoning("enabled")), ["params.reasoning.mode"]),
    "a summary": (Params(reasoning=Reasoning(summary="auto")), ["params.reasoning.summary"]),
}


@each_row("name", NO_PLACE)
def test_parameters_without_a_field_have_a_notice(name: str) -> None:
    params, paths = NO_PLACE[name]
    assert [notice.path for notice in render(chat(params=params)).notices] == paths


def test_cache_options_and_continuations_have_a_notice() -> None:
    plan = PromptCachePlan(
        marks=(PartMark("m0"),), key="k", mode="explicit", prewarm=True, frozen_through="m0"
    )
    call = chat(Message.user("hi", id="m0"), cache=plan)
    rendered = render(call)
    assert [notice.path for notice in rendered.notices] == [
        "cache.key",
        "cache.mode",
        "cache.prewarm",
        "cache.marks[0]",
    ]
    assert rendered.frozen == 0
    ir = PromptIR(segments=call.ir.segments, continuation=Continuation("r"))
    assert codes(Call(ir=ir, model=MODEL)) == ["continuation_left_out"]


# ── What is refused ──────────────────────────────────────────────────────────────────────────────


@each_row(
    "call, path",
    [
        (chat(model=""), "model"),
        (chat(model="a b"), "model"),
        (chat(model="../x"), "model"),
        (chat(model="x?key=1"), "model"),
        (chat(params=Params(max_tokens=-1)), "params.max_tokens"),
        (chat(params=Params(tool_choice=ToolChoice("tool"))), "params.tool_choice.name"),
        (chat(params=Params(temperature=float("nan"))), "params.temperature"),
        (chat(params=Params(output=OutputSchema("[]"))), "params.output.schema"),
        (chat(tools=(Tool("f", "", "{"),)), "tools[0].schema"),
        (chat(extras={"gemini": '{"contents":[]}'}), "extras.gemini.contents"),
        (
            chat(
                params=Params(max_tokens=1),
                extras={"gemini": '{"generationConfig":{"maxOutputTokens":2}}'},
            ),
            "extras.gemini.generationConfig.maxOutputTokens",
        ),
        (chat(extras={"gemini": "[]"}), "extras.gemini"),
        (Call(ir=PromptIR(system_text="alone"), model=MODEL), "ir"),
    ],
)
def test_invalid_calls_are_rejected(call: Call, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(call)
    assert caught.value.path == path


@each_row(
    "feature, params, path",
    [
        ("forced_tools", Params(tool_choice=ToolChoice("required")), "params.tool_choice"),
        ("disabled_thinking", Params(reasoning=Reasoning("disabled")), "params.reasoning.mode"),
        (
            "budgeted_thinking",
            Params(reasoning=Reasoning("enabled", budget_tokens=9)),
            "params.reasoning.mode",
        ),
        ("sampling", Params(top_k=3), "params.top_k"),
        ("altered_sampling", Params(temperature=0.2), "params.temperature"),
    ],
)
def test_model_differences_are_data(feature: str, params: Params, path: str) -> None:
    row = f"""
        provider = "google"
        [[profiles]]
        source = "a test"
        date = 2026-11-15
        models = ["{MODEL}"]
        refusals = ["{feature}"]
    """
    profile = catalog.shipped().with_rows(row).profile("google", MODEL)
    with pytest.raises(InvalidRequest) as caught:
        gemini.render(chat(params=params), profile)
    assert caught.value.path == path
    render(chat(params=params))


# ── Requests as they come ────────────────────────────────────────────────────────────────────────


@each_row(
    "path, model, stream",
    [
        ("", "", False),
        ("/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro", False),
        ("/v1/models/gemini-2.5-pro:streamGenerateContent?alt=sse", "gemini-2.5-pro", True),
        ("/v1beta/models/gemini-2.5-pro:streamGenerateContent", "gemini-2.5-pro", True),
        ("/v1beta/tunedModels/mine-1:generateContent", "tunedModels/mine-1", False),
        (
            "/v1/projects/p/locations/global/publishers/google/models/gemini-3:generateContent",
            "gemini-3",
            False,
        ),
        ("/gateway/v1beta1/publishers/google/models/g:generateContent", "g", False),
        ("/v1/projects/p/locations/l/endpoints/77:generateContent", "endpoints/77", False),
    ],
)
def test_the_path_names_the_model(path: str, model: str, stream: bool) -> None:
    body = {"contents": [{"parts": [{"text": "x"}]}]}
    call = parse(body, path)
    assert (call.model, call.params.stream) == (model, stream)
    made = cut(gemini, json.dumps(body).encode(), path)
    assert made.model == model
    if model:
        again = gemini.assemble(render(call), Plan()).path
        assert parse(body, again).model == model
        assert again.endswith(":streamGenerateContent?alt=sse" if stream else ":generateContent")


def test_the_model_of_the_body_is_used_without_a_path() -> None:
    body = {"model": "models/gemini-3", "contents": [{"parts": [{"text": "x"}]}]}
    assert parse(body, "").model == "gemini-3"
    assert parse(body, PATH).model == MODEL


def test_other_paths_are_rejected() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"contents": []}, "/v1beta/models/x:countTokens")
    assert caught.value.path == "path"


def test_snake_case_is_read_as_well() -> None:
    body = {
        "system_instruction": {"parts": {"text": "terse"}},
        "contents": {
            "role": "user",
            "parts": [
                {"inline_data": {"mime_type": "image/png", "data": "-__-"}},
                {"function_response": {"name": "f", "response": {"keep_this": 1}}},
            ],
        },
        "generation_config": {"max_output_tokens": 5, "thinking_config": {"thinking_level": "low"}},
        "tool_config": {
            "function_calling_config": {"mode": "ANY", "allowed_function_names": ["f"]}
        },
    }
    assert body_of(parse(body)) == {
        "systemInstruction": {"parts": [{"text": "terse"}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"inlineData": {"mimeType": "image/png", "data": "+//+"}},
                    {"functionResponse": {"name": "f", "response": {"keep_this": 1}}},
                ],
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"maxOutputTokens": 5, "thinkingConfig": {"thinkingLevel": "LOW"}},
    }


@each_row(
    "body, path",
    [
        ({"contents": [{"role": "narrator", "parts": []}]}, "$.contents[0].role"),
        ({"contents": "x"}, "$.contents"),
        ({"contents": [{"parts": 5}]}, "$.contents[0].parts"),
        ({"contents": [{"parts": [[]]}]}, "$.contents[0].parts[0]"),
        (
            {"contents": [], "tools": [{"functionDeclarations": [{}]}]},
            "$.tools[0].functionDeclarations[0].name",
        ),
        ({"contents": [], "tool_config": {}, "toolConfig": {}}, "$.toolConfig"),
        (
            {"contents": [{"parts": [{"functionCall": {"id": 5}}]}]},
            "$.contents[0].parts[0].functionCall.id",
        ),
    ],
)
def test_invalid_requests_name_the_path(body: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.path == path


def test_a_system_instruction_with_other_parts_is_kept_whole() -> None:
    sent = {"parts": [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}
    parsed = parse({"systemInstruction": sent, "contents": [{"parts": [{"text": "x"}]}]})
    assert parsed.ir.system_blocks == ()
    assert body_of(parsed)["systemInstruction"] == sent
    with_system = Call(
        ir=PromptIR.chat(parsed.ir.body_chat(), system=[PromptBlock("a", "b")]),
        model=MODEL,
        extras=parsed.extras,
    )
    with pytest.raises(InvalidRequest, match="already"):
        render(with_system)


def test_requests_are_detected() -> None:
    assert detect(b'{"contents":[{"parts":[{"text":"x"}]}]}') == "gemini"
