"""Requests of other programs, rendered as they were sent: kept, or refused with the path."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import normalisations_page, traces
from support.exchanges import needs_exchanges

from anaphora import wire
from anaphora.errors import InvalidRequest
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.wire.cutting import check_kept, cut

PAGE = Path(__file__).parents[2] / "docs" / "wire-normalisations.md"

HI = {"role": "user", "content": "Hi"}
MARK = {"cache_control": {"type": "ephemeral"}}
SCOPED = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
POINT = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h", "new": [1]}}
FUNCTION_CALL = {"name": "f", "arguments": "{}"}
CLAUDE, GPT, OLD_GPT, NOVA = "claude-sonnet-4-5", "gpt-5.6", "gpt-4o", "amazon.nova-lite-v1:0"
CONVERSE = f"/model/{NOVA}/converse"
GEMINI = "/v1beta/models/gemini-2.5-flash:generateContent"


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def rendered(name: str, body: dict[str, Any], path: str = "") -> tuple[wire.Wire, Rendered]:
    codec = wire.get(name)
    return codec, cut(codec, json.dumps(body).encode(), path)


def sent(name: str, body: dict[str, Any], path: str = "") -> dict[str, Any]:
    codec, request = rendered(name, body, path)
    check_kept(request)
    plan = Plan(marks=request.marks, automatic=request.automatic)
    decoded: dict[str, Any] = json.loads(codec.assemble(request, plan).body.join())
    return decoded


def claude(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": CLAUDE, "max_tokens": 9, **more, "messages": list(messages)}


def chat(*messages: Any, model: str = OLD_GPT, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}
SEARCH = {
    "type": "search_result",
    "source": "s",
    "title": "t",
    "content": [text("a"), text("b", **MARK)],
}
SOURCE = {"type": "content", "content": [text("a", **SCOPED), text("b")]}
DOCUMENT = {"type": "document", "source": SOURCE, "title": "t"}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return user({"type": "tool_result", "tool_use_id": "c", "content": content, **more})


#: Bodies that come out equal.
KEPT: list[tuple[str, dict[str, Any]]] = [
    # Blank texts, empty messages, and reasoning that nothing follows.
    ("anthropic", claude(user(text("Hi")), assistant(text(" "), text("")), user(text("x")))),
    ("anthropic", claude(user(text("Hi")), assistant(THOUGHT))),
    ("anthropic", claude(user(text("Hi")), assistant(), user(), user(text("x")))),
    ("anthropic", claude(user(text("a")), {**user(), "extra": 1}, user(text("b")))),
    ("anthropic", claude(result([text("")]), system=[text(" "), text("s", **SCOPED), text("", **MARK)])),
    ("anthropic", claude(result("  "), assistant(text("x")), result([]))),
    # System messages where they stand.
    ("anthropic", claude({"role": "system", "content": [text("s")]}, user(text("a")))),
    ("anthropic", claude(user(text("a")), {"role": "system", "content": [text("s")]}, user(text("b")))),
    # Markers with unknown members, in blocks inside others, and where none may stand.
    ("anthropic", claude(user(text("a", **SCOPED)), tools=[{"name": "f", "input_schema": {}, **SCOPED}])),
    ("anthropic", claude(user(SEARCH, text("x")), assistant(text("x")), result([SEARCH, DOCUMENT, text("y", **MARK)]))),
    ("anthropic", claude(user(DOCUMENT), assistant({**THOUGHT, **SCOPED}, text("", **MARK)))),
    ("anthropic", {**claude(user(text("a"))), **SCOPED}),
    ("deepseek/anthropic", {**claude(user(text("a", **SCOPED))), **SCOPED}),
    # What counting requests leave out, and what a model would be spared.
    ("anthropic", {"model": CLAUDE, "messages": [user(text("Hi"))]}),
    ("anthropic", claude(user(text("a")), temperature=3.0, thinking={"type": "enabled", "budget_tokens": 1})),
    # Chat: strings and lists on a model without breakpoints, and the fields of hosts.
    ("openai_chat", chat({"role": "system", "content": "s"}, HI)),
    ("openai_chat", chat({"role": "developer", "content": [text("s")]}, user(text("Hi")))),
    ("openai_chat", chat({"role": "developer", "content": ""}, HI, {"role": "system", "content": "t"})),
    ("openai_chat", chat(user(text("a", **POINT)), assistant(text("b")), HI)),
    ("openai_chat", chat(HI, {"role": "tool", "tool_call_id": "c", "content": [text("r")]})),
    ("openai_chat", chat(HI, {"role": "tool", "tool_call_id": "c", "content": "r"}, model="deepseek-chat")),
    ("deepseek", chat(HI, assistant(text("b")), user(text("c"), text("d")), model="deepseek-chat")),
    ("deepseek", chat(HI, {"role": "assistant", "reasoning_content": "Hm"}, HI, model="deepseek-chat")),
    ("openai_chat", chat(HI, max_tokens=5)),
    ("openai_chat", chat(HI, max_completion_tokens=5, model="gpt-4")),
    ("openai_chat", chat(HI, {"role": "assistant", "content": "a", "refusal": "no"})),
    ("openai_chat", chat(HI, {"role": "assistant", "function_call": FUNCTION_CALL}, {"role": "function", "name": "f", "content": "1"})),
    ("openai_chat", chat(HI, {"role": "function", "name": "f", "content": "1"})),
    ("openai_chat", chat(HI, prompt_cache_options={"mode": "explicit"})),
    ("openai_chat", chat(user(text("a", **POINT)), model=GPT)),
    # Responses.
    ("openai_responses", {"model": OLD_GPT, "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "s", **POINT}]}, {"type": "reasoning", "id": "rs", "summary": []}]}),
    ("openai_responses", {"model": GPT, "instructions": " ", "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]}]}),
    ("openai_responses", {"prompt": {"id": "pmpt_1"}}),
    ("openai_responses", {"model": GPT, "previous_response_id": "resp", "store": False, "input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}]}),
]  # fmt: skip


@pytest.mark.parametrize("name, body", KEPT, ids=range(len(KEPT)))
def test_request_is_kept(name: str, body: dict[str, Any]) -> None:
    assert sent(name, body) == body


def nova(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


POINT_1H = {"cachePoint": {"type": "default", "ttl": "1h", "new": 1}}
KEPT_BY_PATH: list[tuple[str, dict[str, Any], str]] = [
    ("bedrock", nova(user({"text": ""}, {"text": " "}), system=[{"text": " "}, POINT_1H]), CONVERSE),
    ("bedrock", nova(user({"text": "a"}, POINT_1H), assistant({"reasoningContent": {"reasoningText": {"text": "Hm"}}})), CONVERSE),
    ("bedrock", nova(user({"toolResult": {"toolUseId": "c", "content": [{"text": ""}], "status": "error"}}, POINT_1H)), CONVERSE),
    ("bedrock", nova(user({"toolResult": {"toolUseId": "c", "content": []}})), CONVERSE),
    ("gemini", {"contents": [{"role": "user", "parts": [{"text": ""}]}, {"role": "model", "parts": [{"text": "Hm", "thought": True}]}], "systemInstruction": {"parts": [{"text": " "}]}}, GEMINI),
    ("gemini", {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "skip_thought_signature_validator"}]}], "cachedContent": "cachedContents/x", "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {}}]}]}, GEMINI),
]  # fmt: skip


@pytest.mark.parametrize("name, body, path", KEPT_BY_PATH, ids=range(len(KEPT_BY_PATH)))
def test_request_to_a_path_is_kept(name: str, body: dict[str, Any], path: str) -> None:
    assert sent(name, body, path) == body


@pytest.mark.parametrize(
    "name, body, place",
    [
        ("anthropic", claude(assistant({"type": "tool_use", "id": "c", "name": "f", "input": 5})), "arguments"),
        ("openai_chat", chat({"role": "user", "content": []}, HI), "conversation[0]"),
        ("openai_chat", chat({"role": "system"}, HI), "conversation[0]"),
        ("openai_chat", chat(HI, service_tier="standard_only"), "params.service_tier"),
    ],
    ids=range(4),
)  # fmt: skip
def test_request_that_cannot_be_kept_is_refused(
    name: str, body: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sent(name, body)
    assert place in caught.value.path


@pytest.mark.parametrize("name, model", [("openai_chat", GPT), ("openai_chat", OLD_GPT), ("deepseek", "deepseek-chat"), ("anthropic", CLAUDE)])  # fmt: skip
@pytest.mark.parametrize("form", [str, list])
def test_turn_with_a_moving_mark_begins_with_the_bytes_of_the_turn_before(
    name: str, model: str, form: type
) -> None:
    def message(role: str, value: str, marked: bool) -> dict[str, Any]:
        marker = MARK if name == "anthropic" else POINT
        if form is str and not (marked and model in (GPT, CLAUDE)):
            return {"role": role, "content": value}
        return {"role": role, "content": [text(value, **(marker if marked else {}))]}

    before = b""
    for turn in range(1, 4):
        messages = [message("user", f"{at}", at == turn - 1) for at in range(turn)]
        body = [each for m in messages for each in (m, {"role": "assistant", "content": "ok"})]
        request = {"model": model, "messages": body[:-1]}
        _, made = rendered(name, request | ({"max_tokens": 1} if name == "anthropic" else {}))
        assert made.data().startswith(before)
        before = made.data()


# ── Recordings ───────────────────────────────────────────────────────────────────────────────────


@needs_exchanges
def test_page_of_normalisations_is_made_from_the_recorded_requests() -> None:
    """Each recorded request is sent with the same meaning, but for the forms that it lists."""
    text = normalisations_page.page()
    if os.environ.get("ANAPHORA_UPDATE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text


@pytest.mark.skipif(traces.missing() is not None, reason=str(traces.missing()))
@pytest.mark.parametrize("name", ["pi_claude", "deepseek_reasonix", "gemini_cli", "inspect_openai"])
def test_turn_of_a_recorded_conversation_begins_with_the_turn_before(name: str) -> None:
    turns = 0
    for trace in traces.traces(name)[:6]:
        own = trace.sent[0].rendered.wire
        home = wire.PROVIDERS[own] == trace.profile.provider
        codec = wire.get(own if home else f"{trace.profile.provider}/{own}")
        before, sent_before = b"", b""
        for call in trace.sent[:30]:
            prompt = call.rendered.data()
            last = [at for at in range(len(call.rendered)) if call.rendered.chunk(at).splice]
            marks = tuple(Mark(at, next(iter(call.rendered.markers))) for at in last[-1:])
            request = codec.assemble(call.rendered, Plan(marks=marks))
            data = cut(codec, request.body.join(), request.path).data()
            grown = prompt.startswith(sent_before)
            assert data.startswith(before) or not grown
            before, sent_before, turns = data, prompt, turns + grown
    assert turns > 5


@given(st.lists(st.tuples(st.text(max_size=8), st.booleans()), min_size=2, max_size=6), st.data())
def test_sent_bytes_grow_however_marks_and_forms_change(
    texts: list[tuple[str, bool]], data: st.DataObject
) -> None:
    """Where a model takes marks, texts and lists with one text have one form."""
    before = b""
    for turn in range(1, len(texts) + 1):
        marked, messages = data.draw(st.integers(0, turn - 1)), []
        for at, (value, _) in enumerate(texts[:turn]):
            form = data.draw(st.booleans()) or (at == marked and value != "")
            marker = POINT if at == marked and value else {}
            content = [text(value, **marker)] if form else value
            messages += [
                {"role": "user", "content": content},
                {"role": "assistant", "content": "ok"},
            ]
        _, made = rendered("openai_chat", {"model": GPT, "messages": messages[:-1]})
        assert made.data().startswith(before)
        before = made.data()
