"""CASES C where a request moves: to a surface without markers, or to a fallback provider."""

from __future__ import annotations

import json

from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PartMark, PromptCachePlan, PromptIR, ToolMark
from anaphora.values import Message, Tool

ASKED = PromptCachePlan(marks=(ToolMark("look"), PartMark("u1", (0,))))


def call(model: str) -> Call:
    ir = PromptIR.chat([Message.user("question", id="u1")], cache=ASKED)
    return Call(ir=ir, model=model, tools=(Tool("look"),), params=Params(max_tokens=16))


def sent_by(name: str, provider: str, model: str) -> tuple[bytes, list[str]]:
    codec = wire.get(name)
    rendered = codec.render(call(model), catalog.profile(provider, model))
    plan = plan_once(rendered, catalog.rules(provider, model, rendered.wire), reuse_expected=True)
    sent = codec.assemble(rendered, plan).body.join()
    return sent, [notice.code for notice in (*rendered.notices, *plan.notices)]


@each_row(
    "name, provider, model",
    [
        ("bedrock/openai_responses", "bedrock", "openai.gpt-5.6"),
        ("bedrock/openai_chat", "bedrock", "openai.gpt-oss-120b"),
        ("openai_chat", "openai", "gpt-5.6"),
        ("openai_responses", "openai", "gpt-5.6"),
        ("gemini", "google", "gemini-2.5-pro"),
    ],
)
def test_bifrost_5629_a_tools_marker_is_kept_or_reported(
    name: str, provider: str, model: str
) -> None:
    sent, notices = sent_by(name, provider, model)
    tools = json.dumps(json.loads(sent)["tools"])
    kept = "cache" in tools
    assert kept or {"mark_left_out", "marks_left_out"} & set(notices), notices


def test_bifrost_5629_where_tools_take_markers_it_is_kept() -> None:
    sent, notices = sent_by("anthropic", "anthropic", "claude-sonnet-4-5")
    assert json.loads(sent)["tools"][0]["cache_control"] == {"type": "ephemeral"}
    assert not notices


@each_row(
    "name, provider, model, foreign",
    [
        ("openai_chat", "openai", "gpt-5.6", b"cache_control"),
        ("openai_responses", "openai", "gpt-5.6", b"cache_control"),
        ("deepseek", "deepseek", "deepseek-v4-pro", b"cache_control"),
        ("gemini", "google", "gemini-2.5-pro", b"cache_control"),
        ("anthropic", "anthropic", "claude-sonnet-4-5", b"prompt_cache_breakpoint"),
    ],
)
def test_langchain_33709_a_fallback_is_rendered_anew_and_no_foreign_marker_leaks(
    name: str, provider: str, model: str, foreign: bytes
) -> None:
    """The request of the first provider, with its markers, is parsed and rendered again."""
    first = ("openai_responses", "openai", "gpt-5.6") if name == "anthropic" else None
    origin = first or ("anthropic", "anthropic", "claude-sonnet-4-5")
    sent, _ = sent_by(*origin)
    from msgspec.structs import replace

    again = replace(wire.get(origin[0]).parse(sent), model=model)
    codec = wire.get(name)
    rendered = codec.render(again, catalog.profile(provider, model))
    plan = plan_once(rendered, catalog.rules(provider, model, rendered.wire), reuse_expected=True)
    assert foreign not in codec.assemble(rendered, plan).body.join()
