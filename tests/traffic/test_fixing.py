"""Changes of requests that change no meaning: what they change, and that they never cost more."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.planted import GUIDE, PLACES, Place, body, grown, spec
from support.tables import each_row

from anaphora import catalog, emulator, wire
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.catalog import dialects
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call
from anaphora.proxy.observing import Observer
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import running
from anaphora.traffic.calls import ProxyRoute, UpstreamRequest
from anaphora.traffic.judging import Judge
from anaphora.traffic.placing import AppliedFix, Placer
from anaphora.traffic.planning import in_tool_order, own_plan, read_request, tool_order
from anaphora.wire.reading import object_members, request_error

Json = dict[str, Any]
ANTHROPIC = PLACES["anthropic"]
BEGIN = 1_800_000_000.0
NOW = datetime.datetime(2026, 11, 14, tzinfo=datetime.UTC)


def path_of(place: Place) -> str:
    rows = [row for row in dialects().rows if row.provider == place.provider]
    return next(r.request_path for r in rows if r.wire == place.wire.rpartition("/")[2])


def request(place: Place, data: bytes, at: float = BEGIN, number: int = 0) -> UpstreamRequest:
    return UpstreamRequest(
        method="POST",
        route=ProxyRoute(prefix="", provider=place.provider, upstream="https://api.example.com"),
        path=path_of(place).replace("{model}", place.model).replace("{method}", "generateContent"),
        query="",
        headers=(("authorization", "Bearer any"),),
        body=data,
        started=at,
        number=number,
    )


def program(turns: int, **changes: Any) -> list[bytes]:
    prompts = [spec() | changes]
    for _ in range(turns - 1):
        prompts.append(grown(prompts[-1]))
    return [body(ANTHROPIC, prompt) for prompt in prompts]


# ── The order of tools ───────────────────────────────────────────────────────────────────────────


def read(place: Place, data: bytes) -> Call:
    path = "/v1beta/models/g:generateContent" if place.wire == "gemini" else ""
    return wire.get(place.wire).parse(data, path)


def order_of(data: bytes) -> tuple[bytes, ...]:
    return tool_order(read(ANTHROPIC, data))


@pytest.mark.parametrize("name", PLACES)
@given(seed=st.integers(0, 999), marked=st.booleans())
def test_tools_return_to_the_order_of_the_earlier_call(name: str, seed: int, marked: bool) -> None:
    """Nothing but the order changes."""
    place, prompt = PLACES[name], spec() | {"marked": marked}
    first = read(place, body(place, prompt))
    random.Random(seed).shuffle(prompt["tools"])
    later = read(place, body(place, prompt))
    found = in_tool_order(later, tool_order(first))
    if tool_order(later) == tool_order(first):
        assert found is None
        return
    assert found is not None
    assert found.tools == first.tools
    assert found == replace(later, tools=found.tools, ir=found.ir)


def edited(change: Callable[[Json], None]) -> tuple[Call, Call]:
    first, later = spec(), spec()
    later["tools"].reverse()
    change(later)
    return read(ANTHROPIC, body(ANTHROPIC, first)), read(ANTHROPIC, body(ANTHROPIC, later))


@each_row(
    "change",
    [
        lambda prompt: prompt["tools"].pop(),
        lambda prompt: prompt["tools"].append(prompt["tools"][0]),
        lambda prompt: prompt["tools"][0].update(description="Another."),
        lambda prompt: prompt.update(tools=[]),
    ],
)
def test_other_tools_are_left_as_they_are(change: Callable[[Json], None]) -> None:
    first, later = edited(change)
    assert in_tool_order(later, tool_order(first)) is None


def test_tools_with_two_markers_are_left_as_they_are() -> None:
    fields = json.loads(body(ANTHROPIC, spec()))
    for ttl, tool in zip(("1h", "5m"), fields["tools"], strict=False):
        tool["cache_control"] = {"type": "ephemeral", "ttl": ttl}
    order = order_of(json.dumps(fields).encode())
    fields["tools"].reverse()
    assert in_tool_order(read(ANTHROPIC, json.dumps(fields).encode()), order) is None


def test_only_the_conversation_itself_sets_the_order() -> None:
    """Tools are never sorted: each conversation keeps the order that it began with."""
    fixes = list[AppliedFix]()
    placer = Placer(fix=True, on_fix=fixes.append)
    prompt = spec()
    placer(request(ANTHROPIC, body(ANTHROPIC, prompt)))
    other = spec() | {"messages": [("user", ["Something quite different, please."])]}
    other["tools"].reverse()
    sent = body(ANTHROPIC, other)
    placed = placer(request(ANTHROPIC, sent, BEGIN + 5)) or sent
    assert order_of(placed) == order_of(sent)
    later = grown(prompt)
    later["tools"].reverse()
    placed = placer(request(ANTHROPIC, body(ANTHROPIC, later), BEGIN + 10)) or b""
    assert order_of(placed) == order_of(body(ANTHROPIC, prompt))
    assert [fix.kind for fix in fixes if fix.kind == "keep_tools"] == ["keep_tools"]


# ── Lifetimes ────────────────────────────────────────────────────────────────────────────────────


def test_own_markers_live_longer_after_pauses() -> None:
    fixes = list[AppliedFix]()
    placer = Placer(fix=True, on_fix=fixes.append)
    found = []
    for turn, data in enumerate(program(5)):
        data = data.replace(b'"type":"ephemeral"', b'"type":"ephemeral", "scope": "mine"')
        placed = placer(request(ANTHROPIC, data, BEGIN + 600 * turn)) or data
        found.append(placed.count(b'"ttl":"1h"'))
        if found[-1]:
            bare = placed.replace(b',"ttl":"1h"', b"")
            own = data.count(b"cache_control")
            assert placed.count(b'"ttl":"1h","scope":"mine"') == own  # nothing else in them
            assert bare.count(b'"scope":"mine"') == own
    assert not found[0]
    assert found[-1] >= 2
    assert "longer_ttl" in {fix.kind for fix in fixes}
    assert any("cache for 60 min" in str(fix) for fix in fixes)


@each_row("pauses", [(20, 20, 20, 20), (280, 280, 280, 280), (5000, 5000, 5000, 5000)])
def test_lifetime_stays_where_a_longer_one_would_not_have_paid(pauses: tuple[int, ...]) -> None:
    placer, at = Placer(fix=True), BEGIN
    for data, pause in zip(program(5), (0, *pauses), strict=True):
        at += pause
        assert b'"1h"' not in (placer(request(ANTHROPIC, data, at)) or data)
    assert not placer.fixes["longer_ttl"]


# ── Never dearer ─────────────────────────────────────────────────────────────────────────────────


def costs(place: Place, calls: list[tuple[float, bytes]]) -> tuple[Decimal, Decimal]:
    """The bills of the same calls without and with fixes, by the rules."""
    placer, total = Placer(fix=True), [Decimal(0), Decimal(0)]
    rules = catalog.rules(place.provider, place.model, place.wire.rpartition("/")[2])
    simulators = Simulator(rules), Simulator(rules)
    for at, data in calls:
        placed = placer(request(place, data, at)) or data
        for index, sent in enumerate((data, placed)):
            read = read_request("POST", place.provider, path_of(place), {}, sent)
            assert read is not None
            members = object_members(sent, "$", request_error)
            plan = own_plan(read.rendered, rules, members)
            prompt = RenderedPrompt(read.rendered, plan)
            outcome = simulators[index].call(prompt, at=at)
            price = catalog.price(place.provider, place.model, NOW)
            assert price is not None
            marked = bool(plan.marks) or plan.automatic is not None
            cost = price.of(outcome.usage(0), marked=marked)
            assert cost is not None
            total[index] += cost
    return total[0], total[1]


def chat(*texts: str, marked: bool = False) -> bytes:
    """A request whose messages are these, in turns."""
    messages = [(("user", "assistant")[at % 2], [text]) for at, text in enumerate(texts)]
    return body(ANTHROPIC, {**spec(), "messages": messages, "tools": [], "marked": marked})


@pytest.mark.parametrize("turns", range(3, 9))
@pytest.mark.parametrize("marked", [False, True])
def test_message_that_moves_behind_each_turn(turns: int, marked: bool) -> None:
    """As aider does: a reminder and the files end each prompt, and move behind the next turn."""
    calls, past = [], list[str]()
    for turn in range(turns):
        question = f"Question {turn}. " * 40
        calls.append((BEGIN + 20 * turn, chat(*past, question + GUIDE * 2, marked=marked)))
        past += [question, f"Answer {turn}. " * 40]
    without, having = costs(ANTHROPIC, calls)
    assert having <= without


def test_text_that_changes_at_the_beginning_is_not_marked() -> None:
    """A clock in the system prompt: nothing is read again, so that nothing is worth writing."""
    calls = []
    for turn in range(8):
        prompt = spec() | {"marked": False}
        prompt["system"] = [f"It is 10:{turn:02}. " + prompt["system"][0], GUIDE]
        for _ in range(turn):
            prompt = grown(prompt)
        prompt["tools"] = []
        calls.append((BEGIN + 30 * turn, body(ANTHROPIC, prompt)))
    without, having = costs(ANTHROPIC, calls)
    assert having <= without


@each_row("clocks", ["aaaabcdddd", "aaaabcddddefgggg", "aaabbbcccddd"])
def test_breakpoint_of_the_provider_stays_while_it_pays(clocks: str) -> None:
    """A clock in the system prompt that mostly stays for some calls."""
    place, calls = Place("openai_responses", "openai", "gpt-5.6"), []
    prompt = spec() | {"marked": False, "tools": []}
    for turn, clock in enumerate(clocks):
        shown = prompt | {"system": [f"It is 10:{clock}. " + GUIDE]}
        calls.append((BEGIN + 30 * turn, body(place, shown)))
        prompt = grown(prompt)
    without, having = costs(place, calls)
    assert having <= without


@given(st.lists(st.sampled_from([20.0, 400.0, 2000.0, 5000.0]), min_size=1, max_size=3))
def test_programs_without_reuse_pay_nothing_more(pauses: list[float]) -> None:
    """Single questions, all different."""
    calls, at = [], BEGIN
    for number, pause in enumerate(pauses):
        prompt = {**spec(), "system": [f"{number} {GUIDE}"], "tools": [], "marked": False}
        calls.append((at, body(ANTHROPIC, prompt | {"messages": [("user", [f"{number}?"])]})))
        at += pause
    without, having = costs(ANTHROPIC, calls)
    assert having == without


# ── Through the proxy ────────────────────────────────────────────────────────────────────────────


def test_sdk_pays_less_after_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of the SDK, with markers of its own and pauses of ten minutes."""
    import time

    real, shift = time.time, 0.0
    monkeypatch.setattr("time.time", lambda: real() + shift)
    bills, read = [], []
    for placer in (None, Placer(fix=True)):
        judge, messages = Judge(), list[Any]()
        observers: list[Observer] = [judge] if placer is None else [judge, placer]
        with emulator.running() as emu:
            routes = default_routes({"anthropic": emu.url})
            with running(routes, observers=observers, place=placer) as proxy:
                client = anthropic.Anthropic(base_url=proxy.url_of("anthropic"), api_key="any")
                for turn in range(6):
                    messages.append({"role": "user", "content": f"Question {turn}?"})
                    shift += 600
                    with client.messages.stream(
                        model="claude-opus-5-5",
                        max_tokens=30,
                        cache_control={"type": "ephemeral"},
                        system=[{"type": "text", "text": GUIDE}],
                        messages=messages,
                    ) as stream:
                        reply = stream.get_final_message()
                    text = getattr(reply.content[0], "text", "")
                    messages.append({"role": "assistant", "content": text})
            calls = emu.requests()
            bills.append(sum(Decimal(call["cost_usd"]) for call in calls))
            read.append(sum(call["read"] for call in calls))
        kinds = [c.verdict.remedy.kind for c in judge.calls if c.verdict and c.verdict.remedy]
        assert kinds.count("longer_ttl") >= (5 if placer is None else 1)
    assert read[0] == 0 < read[1]
    assert bills[1] < bills[0]


def routed(emu: Emulator, placer: Placer, turns: int) -> tuple[list[str], int, int]:
    """The hosts that answered a conversation at a router, tokens read, and all."""
    hosts, read, total = [], 0, 0
    messages = [{"role": "system", "content": GUIDE * 3}]
    routes = default_routes({"openrouter": f"{emu.url}/openrouter"})
    with running(routes, observers=[placer], place=placer) as proxy:
        url = proxy.url_of("openrouter") + "/api/v1/chat/completions"
        for turn in range(turns):
            messages.append({"role": "user", "content": f"Question {turn}?"})
            sent = {"model": "deepseek/deepseek-v4-flash", "messages": messages}
            answer = httpx.post(url, json=sent, headers={"authorization": "Bearer any"}).json()
            assert proxy.settle(10)
            hosts.append(answer["provider"])
            usage = answer["usage"]
            read += usage["prompt_tokens_details"]["cached_tokens"]
            total += usage["prompt_tokens"]
            messages.append(answer["choices"][0]["message"])
    return hosts, read, total


def test_conversation_stays_at_the_host_of_a_router() -> None:
    options = EmulatorOptions(router_hosts=("DeepInfra", "Novita", "Together"))
    fixes = list[AppliedFix]()
    with emulator.running(options) as emu:
        hosts, read, total = routed(emu, Placer(fix=True, on_fix=fixes.append), 10)
        assert len(set(hosts)) == 1
        assert read > 0.6 * total
        hosts, _, _ = routed(emu, Placer(), 10)
        assert len(set(hosts)) > 1
    assert [fix.kind for fix in fixes] == ["pin_host"]
    assert str(fixes[0]).startswith("fix: deepseek/deepseek-v4-flash: stay at ")


def test_request_that_chooses_its_host_is_not_pinned() -> None:
    place = Place("openai_chat", "openrouter", "deepseek/deepseek-v4-flash")
    fields = {"model": place.model, "messages": [{"role": "user", "content": GUIDE}]}
    chosen = json.dumps(fields | {"provider": {"order": ["Together"]}}).encode()
    placer = Placer(fix=True)
    assert placer(request(place, chosen, number=1)) is None
    assert placer(request(place, chosen, BEGIN + 5, number=2)) is None


def test_rejected_request_is_left_alone() -> None:
    """After a failed fix the request goes upstream as it came."""
    placer = Placer(fix=True)
    broken = request(ANTHROPIC, b'{"model":"claude-sonnet-4-5","tools":[{}],"tools":[{}]}')
    assert placer(broken) is None
    assert placer(msgspec.structs.replace(broken, body=b"not JSON")) is None
    assert set(placer.unchanged) == {"that cannot be read"}


def test_signed_request_is_left_alone_unless_the_proxy_signs() -> None:
    placer = Placer(fix=True)
    calls = [request(ANTHROPIC, data, BEGIN + 5 * at) for at, data in enumerate(program(3))]
    scope = "AKIA/20260101/us-east-1/bedrock/aws4_request"
    signed = ("authorization", f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host")
    for call in calls:
        assert placer(msgspec.structs.replace(call, headers=(signed,))) is None
    assert placer.unchanged == {"signed by the command": 3}


def test_tools_of_converse_and_gemini_return_to_their_order() -> None:
    """Cache points stay where they are, and declarations inside their tool."""
    tools = [{"toolSpec": {"name": name, "inputSchema": {"json": {}}}} for name in "abc"]
    point = {"cachePoint": {"type": "default"}}
    path = "/model/us.anthropic.claude-sonnet-5/converse"
    first, later = (
        wire.get("bedrock").parse(
            json.dumps({"toolConfig": {"tools": [*each, point]}, "messages": []}).encode(), path
        )
        for each in (tools, tools[::-1])
    )
    assert first.ir.cache.marks
    assert in_tool_order(later, tool_order(first)) == first
    declared = [{"name": name} for name in "abc"]
    first, later = (
        wire.get("gemini").parse(
            json.dumps({"tools": [{"functionDeclarations": each}, {"googleSearch": {}}]}).encode(),
            "/v1beta/models/g:generateContent",
        )
        for each in (declared, [declared[1], declared[0], declared[2]])
    )
    assert in_tool_order(later, tool_order(first)) == first
