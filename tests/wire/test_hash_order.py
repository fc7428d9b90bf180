"""Chat Completions of providers that hash tools before the system prompt: the runs of a rendered or
split request are in that order, and its bytes are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.simulator import Simulator
from anaphora.cache.simulator.prompt import RenderedPrompt
from anaphora.catalog import dialects
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.wire.cutting import cut

TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Look. " * 3000, "parameters": {}},
    }
]


def body(model: str, system: str = "Be terse. " * 3000, **more: Any) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello?"}]
    return json.dumps({"model": model, "messages": messages, "tools": TOOLS, **more}).encode()


def split(provider: str, model: str, **more: Any) -> Rendered:
    return cut(wire.codec_for(dialects().find(provider)), body(model, **more))


@each_row(
    "provider, model, first",
    [
        ("zai", "glm-4.6", "tools"),
        ("openrouter", "z-ai/glm-4.6", "tools"),
        ("openrouter", "deepseek/deepseek-v4-flash", "system"),
        ("deepseek", "deepseek-v4-flash", "system"),
        ("moonshot", "kimi-k3", "system"),
        ("openai", "gpt-5.5", "system"),
    ],
)
def test_order_of_runs(provider: str, model: str, first: str) -> None:
    order = catalog.rules(provider, model).hash_order.value
    codec = wire.codec_for(dialects().find(provider))
    made = cut(codec, body(model))
    call, profile = codec.parse(body(model)), catalog.profile(provider, model)
    rendered = codec.render(call, profile)
    for each in (made, rendered, codec.render(call, profile, rendered)):
        assert [run.section for run in each.runs] == list(order)
        assert each.runs[0].section == first
    for each in (made, rendered):
        sent = json.loads(codec.assemble(each, Plan()).body.join())
        assert list(sent) == ["model", "tools", "messages"]
        assert [message["role"] for message in sent["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("provider", "model", "keeps"), [("zai", "glm-4.6", "tools"), ("openai", "gpt-5.2", "")]
)
def test_another_system_prompt_keeps_the_tools_where_they_come_first(
    provider: str, model: str, keeps: str
) -> None:
    simulator = Simulator(catalog.rules(provider, model))
    first, second = split(provider, model), split(provider, model, system="No. " * 3000)
    simulator.call(RenderedPrompt(first, Plan()), at=0.0)
    read = simulator.call(RenderedPrompt(second, Plan()), at=60.0).read
    tools = Counts(first).tokens(1) if keeps else 0
    assert tools <= read <= tools + 32
    assert (read > 1000) == bool(keeps)
