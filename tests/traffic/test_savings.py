"""What the same traffic would have cost with Anaphora's markers, checked by really placing them."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import anthropic
import pytest
from support.planted import GUIDE, Place, body, grown, spec

from anaphora.catalog import dialects
from anaphora.emulator.server import Emulator
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.traffic import savings as savings_module
from anaphora.traffic.calls import ProxyRoute, RelayedCall, ResponsePiece
from anaphora.traffic.judging import Judge
from anaphora.traffic.placing import Placer
from anaphora.traffic.savings import SavingsResult, TokenCosts

Json = dict[str, Any]

PLACES = {
    "anthropic": Place("anthropic", "anthropic", "claude-sonnet-4-5"),
    "openai_chat": Place("openai_chat", "openai", "gpt-5.6"),
    "openai_responses": Place("openai_responses", "openai", "gpt-5.6"),
    "gpt-5": Place("openai_chat", "openai", "gpt-5"),
    "openrouter": Place("openai_chat", "openrouter", "anthropic/claude-sonnet-4.5"),
    "alibaba": Place("openai_chat", "alibaba", "qwen3-max"),
    "minimax": Place("minimax/anthropic", "minimax", "MiniMax-M2.7"),
    "deepseek": Place("deepseek", "deepseek", "deepseek-v4-pro"),
}


@contextlib.contextmanager
def watched(emu: Emulator, *, place: bool) -> Iterator[tuple[Proxy, Judge]]:
    judge = Judge()
    upstreams = {row.provider: f"{emu.url}/{row.provider}" for row in dialects().rows}
    routes = default_routes(upstreams)
    with running(routes, observers=[judge], place=Placer(fix=True) if place else None) as proxy:
        yield proxy, judge


def send(proxy: Proxy, place: Place, data: bytes) -> None:
    wire = "openai_chat" if place.wire == "deepseek" else place.wire.rpartition("/")[2]
    rows = [row for row in dialects().rows if row.provider == place.provider]
    path = next(row.request_path for row in rows if row.wire == wire)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    headers |= {"authorization": "Bearer k", "x-api-key": "k"}
    address = proxy.url_of(place.provider) + path
    with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as response:
        response.read()


def near(one: Decimal, two: Decimal, share: float = 0.01) -> bool:
    return abs(one - two) <= Decimal(str(share)) * max(one, two)


def same(one: TokenCosts, two: TokenCosts, *, costs: bool = True) -> bool:
    """Whether the two have about the same tokens and costs."""
    total = one.uncached + one.read + one.written
    pairs = ((one.uncached, two.uncached), (one.read, two.read), (one.written, two.written))
    agree = all(abs(mine - theirs) <= total / 100 for mine, theirs in pairs)
    return agree and (not costs or near(one.cost_usd, two.cost_usd))


def check_prediction(without: SavingsResult, placed: SavingsResult, *, costs: bool = True) -> None:
    """Of the same program without and with --fix: each run predicts the other's bill."""
    assert (without.calls, without.left_out, without.placed) == (placed.calls, 0, 0)
    assert same(without.simulated, without.billed)
    assert same(placed.with_markers, placed.billed)
    assert same(without.with_markers, placed.billed, costs=costs)
    assert same(placed.simulated, without.billed, costs=costs)


def talk(proxy: Proxy, place: Place) -> None:
    """Six turns of one conversation, and between them single calls with the same beginning."""
    prompt = spec() | {"marked": False}
    for turn in range(6):
        send(proxy, place, body(place, prompt))
        if turn % 2:
            other = spec() | {"marked": False}
            other["messages"] = [("user", [f"Another question, number {turn}."])]
            send(proxy, place, body(place, other))
        prompt = grown(prompt)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.long
def test_prediction_is_what_placing_really_costs(emu: Emulator, name: str) -> None:
    results = []
    for place in (False, True):
        with watched(emu, place=place) as (proxy, judge):
            talk(proxy, PLACES[name])
        bills = [Decimal(call["cost_usd"]) for call in emu.requests()]
        result = judge.summary().savings
        assert near(result.billed.cost_usd, sum(bills, Decimal(0)))
        results.append(result)
        emu.reset()
    # The emulator's replies depend on the cache key, which is placed here, and so does their length.
    check_prediction(results[0], results[1], costs=name != "gpt-5")
    if name in ("anthropic", "openrouter"):
        assert results[0].share > 0.5
        # Nothing is marked before a second call shows that the prompt comes back.
        assert results[1].placed == results[1].calls - 1
    else:
        assert results[0].share > -0.01


def agent(client: anthropic.Anthropic) -> None:
    """An agent with the vendor's SDK, which knows nothing of caching."""
    tools: Any = [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}]
    messages: list[Any] = [{"role": "user", "content": "Read the files."}]
    for turn in range(5):
        with client.messages.stream(
            model="claude-opus-4-8", max_tokens=200, system=GUIDE, tools=tools, messages=messages
        ) as stream:
            reply = stream.get_final_message()
        answers = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"file {turn} " * 400}
            for block in reply.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "assistant", "content": reply.content})
        messages.append({"role": "user", "content": answers or "Go on. " * 100})


def test_agent_of_the_sdk(emu: Emulator) -> None:
    results = []
    for place in (False, True):
        with watched(emu, place=place) as (proxy, judge):
            address = proxy.url_of("anthropic")
            with anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as client:
                agent(client)
        results.append(judge.summary().savings)
        emu.reset()
    assert results[0].calls == 5
    assert results[0].share > 0.4
    check_prediction(results[0], results[1])


def test_program_with_markers_of_its_own(emu: Emulator) -> None:
    with watched(emu, place=False) as (proxy, judge):
        prompt = spec()
        for _ in range(4):
            send(proxy, PLACES["anthropic"], body(PLACES["anthropic"], prompt))
            prompt = grown(prompt)
    result = judge.savings.result()
    assert near(result.simulated.cost_usd, result.billed.cost_usd)
    assert near(result.with_markers.cost_usd, result.simulated.cost_usd)
    assert "for the same 4 calls (both simulated; billed: $" in str(result)
    assert "--fix" not in str(result)


@pytest.mark.parametrize("billed", [2_000, 20_000])
def test_tokens_are_counted_by_the_bill(billed: int) -> None:
    """The provider counts far fewer, or far more, than the estimate."""
    judge, place = Judge(), PLACES["anthropic"]
    route = ProxyRoute(prefix="", provider="anthropic", upstream="https://api.example.com")
    usage = {"input_tokens": billed, "output_tokens": 9}
    reply: Json = {"id": "m", "type": "message", "role": "assistant", "model": place.model}
    reply |= {"content": [], "stop_reason": "end_turn", "usage": usage}
    prompt = spec() | {"marked": False}
    for number in range(3):
        call = RelayedCall(
            number=number + 1,
            started=1_794_800_000.0 + 60 * number,
            method="POST",
            route=route,
            path="/v1/messages",
            query="",
            request_headers=(),
            request_body=body(place, prompt),
            status=200,
            response_headers=(("content-type", "application/json"),),
            pieces=[ResponsePiece(1.0, json.dumps(reply).encode())],
            ended=2.0,
        )
        judge.call_ended(call)
        prompt = grown(prompt)
    result = judge.savings.result()
    for costs in (result.billed, result.simulated, result.with_markers):
        assert costs.uncached + costs.read + costs.written == 3 * billed
    assert result.simulated.cost_usd == result.billed.cost_usd
    assert result.with_markers.read > 0.6 * billed  # of the third call


def test_calls_without_a_bill_or_a_price_are_left_out(emu: Emulator) -> None:
    place = PLACES["gpt-5"]
    with watched(emu, place=False) as (proxy, judge):
        fields = json.loads(body(place, spec())) | {"stream": True}
        send(proxy, place, json.dumps(fields).encode())
    result = judge.savings.result()
    assert (result.calls, result.left_out) == (0, 1)
    assert "no call has a bill" in str(result)


@pytest.mark.parametrize("most", [0, 2, 100])
def test_calls_that_wait_are_compared_when_asked_for(
    most: int, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many wait; the result is that of all calls, a quick one that of a few more."""
    monkeypatch.setattr(savings_module, "_MOST_WAITING", most)
    monkeypatch.setattr(savings_module, "_FEW", 1)
    place = PLACES["anthropic"]
    with watched(emu, place=False) as (proxy, judge):
        for _ in range(3):
            send(proxy, place, body(place, spec()))
    assert judge.savings.waiting == min(most, 3)
    assert judge.savings.result(quick=True).calls == min(3, 4 - min(most, 3))
    assert judge.savings.result().calls == 3
    assert judge.savings.waiting == 0


def test_failed_comparison_loses_no_verdict(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(savings_module, "_simulate", fail)
    with watched(emu, place=False) as (proxy, judge):
        send(proxy, PLACES["anthropic"], body(PLACES["anthropic"], spec()))
    assert judge.calls[0].usage is not None
    assert judge.savings.result().left_out == 1


@pytest.mark.parametrize(
    ("placed", "simulated", "with_markers", "sentence"),
    [
        (
            0,
            "0.2",
            "0.05",
            "Anaphora's markers would have saved $0.1500 (75%): $0.0500 instead of $0.2000 for the same"
            " 3 calls (both simulated; billed: $0.1900). --fix places them.",
        ),
        (
            0,
            "0.2",
            "0.2",
            "Anaphora's markers would have saved $0 (0%): $0.2000 instead of $0.2000 for the same 3"
            " calls (both simulated; billed: $0.1900).",
        ),
        (
            0,
            "0.2",
            "0.199",
            "Anaphora's markers would have saved $0.0010 (0.5%): $0.1990 instead of $0.2000 for the same 3"
            " calls (both simulated; billed: $0.1900).",
        ),
        (
            0,
            "0.2",
            "0.22",
            "Anaphora's markers would have cost $0.0200 more (10%): $0.2200 instead of $0.2000 for the"
            " same 3 calls (both simulated; billed: $0.1900).",
        ),
        (
            3,
            "0.2",
            "0.05",
            "Anaphora's markers saved $0.1500 (75%): $0.0500 instead of $0.2000 for the same 3 calls"
            " (both simulated; billed: $0.1900).",
        ),
    ],
)
def test_result_in_a_sentence(
    placed: int, simulated: str, with_markers: str, sentence: str
) -> None:
    result = SavingsResult(
        calls=3,
        left_out=0,
        placed=placed,
        billed=TokenCosts(cost_usd=Decimal("0.19")),
        simulated=TokenCosts(cost_usd=Decimal(simulated)),
        with_markers=TokenCosts(cost_usd=Decimal(with_markers)),
    )
    assert str(result) == sentence
