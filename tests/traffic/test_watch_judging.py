"""The judge beside the relay: real requests through the proxy to the emulator, whose own journal
knows what happened."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from support.planted import PLACES, Place, body, grown, spec

from anaphora.catalog import dialects
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.emulator.server import running as running_emulator
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.calls import ProxyRoute, RelayedCall
from anaphora.traffic.judging import Judge

KEY = "sk-canary-9aF3xLq8ZpQ"
Json = dict[str, Any]


@contextlib.contextmanager
def watched(emu: Emulator, **options: Any) -> Iterator[tuple[Proxy, Judge]]:
    """A proxy before the emulator. The judge has every call when the block has ended."""
    judge = Judge(**options)
    providers = {row.provider for row in dialects().rows}
    upstreams = {name: f"{emu.url}/{name}" for name in providers}
    with running(default_routes(upstreams), observers=[judge]) as proxy:
        yield proxy, judge


def post(url: str, data: bytes, **headers: str) -> bytes:
    headers = {"content-type": "application/json", "x-api-key": KEY, **headers}
    headers |= {"authorization": f"Bearer {KEY}", "x-goog-api-key": KEY}
    headers["anthropic-version"] = "2023-06-01"
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request) as response:
        answer: bytes = response.read()
    return answer


def url_of(proxy: Proxy, place: Place) -> str:
    """Where requests of a place go."""
    row = next(
        row
        for row in dialects().rows
        if row.provider == place.provider and place.wire in (row.wire, row.name, row.provider)
    )
    path = row.request_path
    if row.wire == "gemini":
        path += f"/{place.model}:generateContent"
    return proxy.url_of(place.provider) + path


# ── The verdict ──────────────────────────────────────────────────────────────────────────────────


def test_change_is_no_cause_where_nothing_was_cached_for_want_of_markers(emu: Emulator) -> None:
    """A date that changes at each call, in a program without markers: to move the date would save
    nothing alone."""
    place, prompts = PLACES["anthropic"], [spec() | {"marked": False}]
    for day in (16, 17, 18):
        prompts.append(grown(prompts[-1]))
        system = prompts[-1]["system"]
        system[0] = system[0].replace(f"2026-11-{day - 1}", f"2026-11-{day}")
    with watched(emu) as (proxy, judge):
        for prompt in prompts:
            post(url_of(proxy, place), body(place, prompt))
    saved = Decimal(0)
    for call in judge.calls[1:]:
        verdict = call.verdict
        assert verdict is not None
        assert [cause.kind for cause in verdict.causes] == ["no_marker", "system_changed"]
        remedy = verdict.remedy
        assert remedy is not None
        assert remedy.saving is not None
        assert (remedy.kind, remedy.fixable) == ("move_to_end", False)
        assert "the date" in remedy.text
        assert "markers" in remedy.text
        assert remedy.saving.expected > saved
        saved = remedy.saving.expected


def test_uuid_before_a_prompt_without_markers_is_worth_most_of_the_bill(emu: Emulator) -> None:
    """Neither change would save anything alone. The remedy of the last call says what both would
    have saved over the conversation."""
    place, prompt = PLACES["anthropic"], spec() | {"marked": False}
    with watched(emu) as (proxy, judge):
        for turn in range(8):
            id = f"{turn:08x}-6d2f-4f0e-9a51-0c3e8b7d{turn:04x}"
            system = [f"{id} is this request.", *prompt["system"]]
            post(url_of(proxy, place), body(place, prompt | {"system": system, "tools": []}))
            prompt = grown(prompt)
    last, bills = judge.calls[-1], Decimal(0)
    for call in judge.calls:
        assert call.cost_usd is not None
        bills += call.cost_usd - (call.output_usd or 0)
    assert last.verdict is not None
    remedy = last.verdict.remedy
    assert remedy is not None
    assert remedy.saving is not None
    assert (remedy.kind, remedy.calls, remedy.fixable) == ("move_to_end", 8, False)
    assert str(remedy).startswith("Move the UUID into the newest message, and let Anaphora place")
    assert bills * Decimal("0.7") < remedy.saving.expected < bills


def test_tools_with_another_field_are_named_at_the_first_call_of_a_conversation(
    emu: Emulator,
) -> None:
    """A program that streams adds a field to the tools that it sent without. Tools of other
    programs are not compared."""
    tools = [
        {"name": name, "description": "Looks it up. " * 400, "input_schema": {"type": "object"}}
        for name in ("look_up", "write")
    ]
    eager = [tool | {"eager_input_streaming": True} for tool in tools]
    with watched(emu) as (proxy, judge):
        for offered, question in ((tools, "one"), (eager, "two"), (tools[:1], "three")):
            system = [{"type": "text", "text": "Help.", "cache_control": {"type": "ephemeral"}}]
            prompt = {"model": "claude-opus-5", "max_tokens": 9, "system": system, "tools": offered}
            prompt["messages"] = [{"role": "user", "content": question}]
            post(f"{proxy.url_of('anthropic')}/v1/messages", json.dumps(prompt).encode())
    first, second, third = (str(call.verdict) for call in judge.calls)
    assert first == "First call: nothing cached yet."
    assert second == "Not cached: tools differ from the call before: eager_input_streaming."
    assert third == "First call: nothing cached yet."
    assert judge.summary().side_calls.calls == 0


@pytest.mark.parametrize("name", PLACES)
def test_change_is_named_with_its_field_its_tokens_and_its_cost(emu: Emulator, name: str) -> None:
    """Two turns, and a third that says another date in its system prompt."""
    place = PLACES[name]
    first = spec()
    second = grown(first)
    third = grown(second)
    third["system"][0] = third["system"][0].replace("2026-11-15", "2026-11-16")
    with watched(emu) as (proxy, judge):
        for prompt in (first, second, third):
            post(url_of(proxy, place), body(place, prompt))
    one, two, three = judge.calls
    assert [call.conversation for call in judge.calls] == [1, 1, 1]
    assert [call.turn for call in judge.calls] == [1, 2, 3]
    assert one.verdict is not None
    assert one.verdict.result == "first"
    assert two.verdict is not None
    assert two.verdict.result == "hit"
    assert three.broke
    assert three.change is not None
    assert three.change.kind == "date"
    assert three.change.section == "system"
    assert "2026-11-15" in three.change.before
    assert "2026-11-16" in three.change.after
    assert three.lost > 1000
    journal = emu.requests()[0]
    assert three.usage is not None
    assert (three.usage.read or 0, three.usage.uncached) == (journal["read"], journal["uncached"])
    assert str(three.cost_usd) == journal["cost_usd"]
    assert journal["verdict"]["change"]["path"] == three.change.path
    summary = judge.summary()
    assert (summary.calls, summary.conversations, summary.breaks) == (3, 1, 1)
    assert summary.lost == three.lost
    assert summary.lost_usd == three.lost_usd
    assert list(summary.losses) == ["system_changed"]
    assert summary.worst == (three,)
    assert summary.spent_usd == sum(Decimal(call["cost_usd"]) for call in emu.requests())


def test_the_keys_of_many_accounts_are_never_shown() -> None:
    route = ProxyRoute(prefix="/anthropic", provider="anthropic", upstream="https://api.invalid")
    judge = Judge()
    for number in range(60):
        key = f"sk-canary-{number % 20:04}-9aF3xLq8"
        judge.call_ended(
            RelayedCall(
                number=number + 1,
                started=1e9,
                method="GET",
                route=route,
                path=f"/v1/files/{key}",
                query="",
                request_headers=(("x-api-key", key),),
                request_body=b"",
                status=200,
                pieces=[],
            )
        )
    assert {call.path for call in judge.calls} == {"/v1/files/<secret>"}


def test_hosts_behind_a_router_are_named() -> None:
    """Other programs are not pinned: the verdict says which host had the prefix."""
    messages = [{"role": "system", "content": "A rule of the house. " * 2000}]
    options = EmulatorOptions(router_hosts=("Novita", "Together"), tool_calls=False)
    with running_emulator(options) as emu, watched(emu) as (proxy, judge):
        url = f"{proxy.url_of('openrouter')}/api/v1/chat/completions"
        hosts = []
        for turn in range(8):
            messages.append({"role": "user", "content": f"Question {turn}?"})
            body = {"model": "deepseek/deepseek-v4-flash", "messages": messages}
            answer = json.loads(post(url, json.dumps(body).encode()))
            messages.append(answer["choices"][0]["message"])
            hosts.append(answer["provider"])
    verdicts = [call.verdict for call in judge.calls if call.verdict is not None]
    assert [verdict.host for verdict in verdicts] == hosts
    moved = [at for at in range(1, 8) if hosts[at] != hosts[at - 1]]
    assert moved
    first = verdicts[moved[0]]
    assert first.cause == "other_route"
    assert f"to {first.host}, and the prefix was cached at {hosts[moved[0] - 1]}" in str(first)
