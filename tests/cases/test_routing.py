"""CASES E: providers and routing. Each test is named after the thread it comes from."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from support.planted import GUIDE, PLACES, body, grown, spec, split, verdict_of

from anaphora import catalog, wire
from anaphora.cache.plan import AppMemory, Planner
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.cache.verdict import SentCall, judge
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Conversation, Message, Usage

Json = dict[str, Any]


def rendered(
    name: str,
    provider: str,
    model: str,
    conversation: Conversation,
    tail: str = "",
    key: str = "",
    guide: str = GUIDE,
) -> Rendered:
    ir = PromptIR.chat(
        conversation,
        system=[PromptBlock.cached_long("identity", guide)],
        tail=[Message.user(tail)] if tail else [],
        cache=PromptCachePlan(key=key or None),
    )
    call = Call(ir=ir, model=model, params=Params(max_tokens=64))
    return wire.get(name).render(call, catalog.profile(provider, model))


def conversation_of(turns: int) -> Conversation:
    return Conversation(
        Message.assistant(f"answer {at}") if at % 2 else Message.user(f"question {at}")
        for at in range(turns)
    )


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
def test_codex_35300_a_stable_prefix_with_a_changing_tail_is_read(name: str) -> None:
    """GPT-5.6 writes where a message ends, and reads where one ends again: with a tail that changes
    that is nowhere. An explicit breakpoint at the end of the stable prefix is read."""
    model = "gpt-5.6"
    rules = catalog.rules("openai", model)
    reads: dict[str, int] = {}
    for strategy in ("the provider's own", "ours"):
        cache, planner = Simulator(rules), Planner(AppMemory(rules))
        for turn in range(4):
            now = rendered(name, "openai", model, conversation_of(1), tail=f"It is 09:4{turn}.")
            automatic = Plan(automatic=now.automatic)
            plan = planner.plan(now, at=turn * 30.0) if strategy == "ours" else automatic
            outcome = cache.call(RenderedPrompt(now, plan), at=turn * 30.0)
            planner.sent(now, plan, at=turn * 30.0)
            reads[strategy] = outcome.read
    assert reads["ours"] >= 3000
    assert reads["ours"] > reads["the provider's own"]


def test_codex_35300_the_verdict_names_a_breakpoint_on_what_changes() -> None:
    rules = catalog.rules("openai", "gpt-5.6")
    place = PLACES["openai_responses"]._replace(model="gpt-5.6")
    options = {"prompt_cache_options": {"mode": "explicit"}}

    def split_at(clock: str) -> Rendered:
        body_json = json.loads(body(place, {**spec(), "params": options}))
        state = {"type": "input_text", "text": f"It is {clock}."}
        body_json["input"][-1]["content"].append(
            {**state, "prompt_cache_breakpoint": {"mode": "explicit"}}
        )
        return split(place, json.dumps(body_json).encode())

    one, two = split_at("09:41"), split_at("09:42")
    usage = Usage(uncached=0, read=0, written={"30m": Counts(one).total}, output=1)
    match = judge(
        SentCall(rendered=one, at=0.0, usage=usage),
        SentCall(rendered=two, at=60.0, usage=usage),
        rules,
    )
    assert (match.result, match.cause) == ("miss", "marker_on_volatile")


def planned(model: str, pause: float, calls: int = 6) -> Plan:
    """The plan for Gemini after some calls with that pause."""
    rules = catalog.rules("google", model, "gemini")
    planner = Planner(AppMemory(rules), Decimal("1.25"))
    now = rendered("gemini", "google", model, conversation_of(1))
    for turn in range(calls):
        now = rendered("gemini", "google", model, conversation_of(2 * turn + 1), guide=GUIDE * 8)
        planner.sent(now, planner.plan(now, at=turn * pause), at=turn * pause)
    return planner.plan(now, at=calls * pause)


def test_software_agent_sdk_3585_nothing_is_frozen_where_that_costs_more() -> None:
    """A model that caches by itself, and one whose handle would be stored for hours unused."""
    assert planned("gemini-2.5-pro", pause=20.0).preludes == ()
    assert planned("gemini-2.0-flash", pause=9 * 3600.0).preludes == ()


def test_rig_2375_what_pays_is_held_explicitly() -> None:
    """The same weighing the other way round: five quick turns on a model without implicit hits."""
    plan = planned("gemini-2.0-flash", pause=20.0, calls=5)
    assert [type(prelude).__name__ for prelude in plan.preludes] == ["CreateHandle"]


# ── By the rules of the model, not by its name ───────────────────────────────────────────────────


@pytest.mark.parametrize("thread", ["hermes#17332", "pi#5605"])
def test_hermes_17332_pi_5605_markers_on_minimax_without_claude_in_the_name(thread: str) -> None:
    rules = catalog.rules("minimax", "MiniMax-M2.7", "anthropic")
    now = rendered("minimax/anthropic", "minimax", "MiniMax-M2.7", conversation_of(9))
    planner = Planner(AppMemory(rules))
    marks: tuple[Any, ...] = ()
    for turn in range(3):
        plan = planner.plan(now, at=turn * 30.0)
        planner.sent(now, plan, at=turn * 30.0)
        marks = plan.marks
    codec = wire.get("minimax/anthropic")
    sent = codec.assemble(now, Plan(marks=marks)).body.join()
    assert rules.slots.value == 4, thread
    assert sent.count(b'"cache_control"') == len(marks)


def test_hermes_83678_a_model_that_ignores_markers_gets_none() -> None:
    """M3 is known to ignore them; and a model called Claude elsewhere is no reason to mark."""
    for model in ("MiniMax-M3", "claude-like"):
        rules = catalog.rules("minimax", model, "anthropic")
        now = rendered("minimax/anthropic", "minimax", model, conversation_of(9))
        assert Planner(AppMemory(rules)).plan(now, at=0.0).marks == ()


def test_hermes_83678_a_marker_that_is_ignored_anyhow_breaks_nothing() -> None:
    place = PLACES["minimax"]._replace(model="MiniMax-M3")
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    match = verdict_of(place, one, two, read=Counts(one).total)
    assert match.result == "hit"


# ── Routers ──────────────────────────────────────────────────────────────────────────────────────


def test_denkeeper_194_one_conversation_keeps_one_key_through_all_its_turns() -> None:
    """What a router goes by is the caller's key: it is in every request, and never changes."""
    for name in ("openrouter", "xai", "openai_chat"):
        provider = wire.provider_of(name)
        keys = set()
        for turns in (1, 3, 5):
            now = rendered(name, provider, "x-model", conversation_of(turns), key="talk-1")
            request = wire.get(name).assemble(now, Plan())
            sent = json.loads(request.body.join())
            key = sent.get("session_id") or sent.get("prompt_cache_key")
            keys.add(key or dict(request.headers).get("x-grok-conv-id"))
        assert keys == {"talk-1"}, name


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "deepseek", "anthropic"])
def test_hermes_71576_a_conversation_that_was_moved_to_another_host_is_named(name: str) -> None:
    place = PLACES[name]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    match = verdict_of(place, one, two, earlier={"route": "host-a"}, later={"route": "host-b"})
    assert (match.result, match.cause) == ("miss", "other_route")
    assert "host-a" not in match.sentence


def test_ai_sdk_provider_499_a_router_reads_nothing_on_another_host() -> None:
    """The simulator keeps hosts apart: what one wrote, the other does not have."""
    rules = catalog.rules("openrouter", "x-model")
    place = PLACES["openai_chat"]
    prompt = RenderedPrompt(split(place, body(place, {**spec(), "system": [GUIDE * 4]})), Plan())
    cache = Simulator(rules)
    cache.call(prompt, at=0.0, scope="host-a")
    assert cache.predict(prompt, at=30.0, scope="host-b").read == 0
    assert cache.predict(prompt, at=30.0, scope="host-a").read > 0
