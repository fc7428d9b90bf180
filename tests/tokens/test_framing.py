"""What frames texts on OpenAI's wires: texts to the token, and the measured rows around them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anaphora import catalog, wire
from anaphora.errors import InvalidRequest
from anaphora.tokens import Count, Tokenizer, count_chunks, tokenizer
from anaphora.tokens.declaring import declaration
from anaphora.tokens.figures import figures, framing, unseen

Json = dict[str, Any]


def o200k() -> Tokenizer:
    found = tokenizer("o200k")
    assert found is not None
    return found


def n(*texts: str) -> int:
    return sum(o200k().count(text).tokens for text in texts)


def total(name: str, body: Json, model: str = "gpt-4o") -> Count:
    rendered = wire.get(name).split(json.dumps({"model": model, **body}).encode())
    return count_chunks(rendered, catalog.profile("openai", model), tokenizer=o200k()).total


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city":"Paris"}'}}
OTHER = {**CALL, "id": "c2"}
SAID = {"role": "user", "content": "How are you today?"}
HOW = n("How are you today?")
CALLED = n("f", '{"city":"Paris"}')

#: Messages, then what of them is text and what frames it.
CHATS: dict[str, tuple[list[Json], int, int]] = {
    "one message": ([SAID], HOW, 3 + 4),
    "blocks": (
        [{"role": "user", "content": [{"type": "text", "text": t} for t in ("One", "Two")]}],
        n("One", "Two"),
        3 + 4,
    ),
    "system and user": (
        [{"role": "system", "content": "Be brief."}, SAID],
        n("Be brief.") + HOW,
        3 + 4 + 4,
    ),
    "quotes, accents and line breaks are as they read": (
        [{"role": "user", "content": 'A "quoted" café\n\n日本語'}],
        n('A "quoted" café\n\n日本語'),
        3 + 4,
    ),
    "words that look like fields": (
        [{"role": "user", "content": '{"role":"user","tool_call_id":"x","arguments":"y"}'}],
        n('{"role":"user","tool_call_id":"x","arguments":"y"}'),
        3 + 4,
    ),
    "a call and its result": (
        [
            SAID,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
        ],
        HOW + CALLED + n("Sunny."),
        3 + 4 + (4 + 5) + (4 + 2),
    ),
    "two calls at once": (
        [
            SAID,
            {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, OTHER]},
            {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
            {"role": "tool", "tool_call_id": "c2", "content": "Rain."},
        ],
        HOW + n("Let me see.") + 2 * CALLED + n("Sunny.", "Rain."),
        3 + 4 + (4 + 2 * 5 + 19) + 2 * (4 + 2),
    ),
}


@pytest.mark.parametrize("messages, text, frame", CHATS.values(), ids=CHATS)
def test_chat(messages: list[Json], text: int, frame: int) -> None:
    counted = total("openai_chat", {"messages": messages})
    assert counted.tokens == text + frame
    # The texts are exact: only the framing is unsure, by a quarter of it and some rounding.
    assert text + frame * 0.5 < counted.low < counted.tokens < counted.high < text + frame * 1.6


ITEMS: dict[str, tuple[Json, int]] = {
    "a text": ({"input": "How are you today?"}, HOW + 3 + 4),
    "instructions": (
        {"instructions": "Be brief.", "input": [{"role": "user", "content": "Hi"}]},
        n("Be brief.", "Hi") + 3 + 4 + 4,
    ),
    "a call and its result": (
        {
            "input": [
                SAID,
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "Sunny."},
            ]
        },
        HOW + n("f", "{}", "Sunny.") + 3 + 4 + (4 + 5) + (4 + 2),
    ),
}


@pytest.mark.parametrize("body, tokens", ITEMS.values(), ids=ITEMS)
def test_responses(body: Json, tokens: int) -> None:
    assert total("openai_responses", body).tokens == tokens


def test_encrypted_reasoning_is_between_nothing_and_its_characters() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x" * 2916}
    without = total("openai_responses", {"input": [SAID]}, "gpt-5")
    having = total("openai_responses", {"input": [SAID, reasoning]}, "gpt-5")
    assert having.low == without.low
    assert having.holds(without.tokens + 330)  # as one of that length was billed


def test_a_stand_in_tokenizer_is_not_called_exact() -> None:
    """Which vocabulary gpt-6 has, nobody published."""
    stated = catalog.profile("openai", "gpt-6-sol").token_error.value
    body: Json = {"messages": [{"role": "user", "content": "word " * 1000}]}
    assert total("openai_chat", body, "gpt-5").error < 0.01
    assert total("openai_chat", body, "gpt-6-sol").error == pytest.approx(stated, abs=0.01)


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def schema(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


TOOLS: dict[str, tuple[Json, str]] = {
    "no parameters": ({"name": "f"}, "type f = () => any;\n\n"),
    "a description": (
        {"name": "f", "description": "Does f.", "parameters": schema()},
        "// Does f.\ntype f = () => any;\n\n",
    ),
    "required and not": (
        {
            "name": "f",
            "parameters": {
                **schema(a={"type": "string"}, b={"type": "integer"}),
                "required": ["a"],
            },
        },
        "type f = (_: {\na: string,\nb?: number,\n}) => any;\n\n",
    ),
    "described fields": (
        {"name": "f", "parameters": schema(a={"type": "boolean", "description": "Whether."})},
        "type f = (_: {\n// Whether.\na?: boolean,\n}) => any;\n\n",
    ),
    "choices": (
        {"name": "f", "parameters": schema(a={"enum": ["x", 1]}, b={"const": None})},
        'type f = (_: {\na?: "x" | 1,\nb?: null,\n}) => any;\n\n',
    ),
    "several types": (
        {
            "name": "f",
            "parameters": schema(
                a={"type": ["string", "null"]}, b={"anyOf": [{"type": "number"}, {}]}
            ),
        },
        "type f = (_: {\na?: string | null,\nb?: number | any,\n}) => any;\n\n",
    ),
    "nested": (
        {
            "name": "f",
            "parameters": schema(
                a={"type": "array", "items": schema(b={"$ref": "#/$defs/Place"})},
                c={"type": "object"},
            ),
        },
        "type f = (_: {\na?: {\nb?: Place,\n}[],\nc?: object,\n}) => any;\n\n",
    ),
    "nonsense is no error": (
        {"name": "f", "parameters": {"properties": {"a": 7}, "required": "a"}},
        "type f = (_: {\na?: any,\n}) => any;\n\n",
    ),
}


@pytest.mark.parametrize("tool, declared", TOOLS.values(), ids=TOOLS)
def test_declarations(tool: Json, declared: str) -> None:
    assert declaration(tool) == declared


def test_a_schema_that_goes_down_forever_ends() -> None:
    endless: Json = {"type": "object"}
    endless["properties"] = {"a": endless}
    assert declaration({"name": "f", "parameters": endless}).endswith("=> any;\n\n")


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1", "gpt-5"])
def test_tools_are_their_declarations_and_once_for_having_any(name: str, model: str) -> None:
    said: Json = {"messages": [SAID]} if name == "openai_chat" else {"input": [SAID]}
    functions = [{"name": "f", "parameters": schema()}, {"name": "g", "parameters": schema()}]
    tools = [
        {"type": "function", **({"function": one} if name == "openai_chat" else one)}
        for one in functions
    ]
    row = framing(name, catalog.profile("openai", model))
    having, without = total(name, {**said, "tools": tools}, model), total(name, said, model)
    assert having.tokens - without.tokens == row.tools + n(*map(declaration, functions))


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "model, older",
    [
        ("gpt-4o", True),
        ("gpt-4.1-mini", True),
        ("gpt-3.5-turbo", True),
        ("gpt-5", False),
        ("o3", False),
        ("gpt-5.6-sol", False),
    ],
)
def test_which_row_is_for_which_model(model: str, older: bool) -> None:
    row = framing("openai_chat", catalog.profile("openai", model))
    assert (row.prompt == 3) == older


def test_a_host_may_name_the_maker() -> None:
    profile = catalog.profile("openrouter", "openai/gpt-4o-mini")
    assert framing("openai_chat", profile).prompt == 3


def test_unmeasured_wires_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not on anthropic"):
        framing("anthropic", catalog.profile("openai", "gpt-4o"))


def test_a_wires_own_row_is_before_the_one_for_all() -> None:
    assert unseen("tools", "anthropic").tokens > unseen("tools", "gemini").tokens == 0


def test_every_row_says_where_it_comes_from() -> None:
    rows = figures()
    for row in (*rows.framing, *rows.unseen, rows.output, rows.dress, rows.media, rows.encrypted):
        assert row.source
        assert row.date.year >= 2026
