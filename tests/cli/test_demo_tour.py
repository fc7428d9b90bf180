"""The figures of the tour, compared with the emulator's records and the catalog."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
from collections import Counter
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any, Literal

import msgspec
import pytest
from support.emulated_client import AT_ONCE

from anaphora import AsyncClient, catalog, emulator, wire
from anaphora.client.transport import HttpRequest
from anaphora.client.transport.over_aiohttp import AiohttpResponse, AiohttpTransport
from anaphora.emulator import EmulatorOptions
from tour import INDEXED, STORY, TURNS, Workspace, script, state
from tour.play import REBUILT, Comparison, PrefixBreak, SdkAgent, TourReport, play, tour

TODAY = datetime.datetime.now(datetime.UTC)


class Toured(msgspec.Struct, frozen=True):
    providers: tuple[Comparison, ...]
    broken: PrefixBreak
    watched: list[int]
    requests: list[dict[str, Any]]
    """The emulator's journal, the oldest first."""


@pytest.fixture(scope="module")
def toured() -> Toured:
    """The five home wires."""
    watched: list[int] = []

    def watch(turn: int, providers: Sequence[Comparison]) -> None:
        assert {len(cost.turns) for one in providers for cost in one.costs} == {turn}
        watched.append(turn)

    with emulator.running(EmulatorOptions(script=script(), latency=AT_ONCE)) as emu:
        providers, broken = asyncio.run(tour(emu, STORY.stops[:5], watch))
        return Toured(providers, broken, watched, emu.requests()[::-1])


def of(toured: Toured, one: Comparison) -> list[dict[str, Any]]:
    provider, _, wire_name = one.dialect.partition("/")
    return [
        request
        for request in toured.requests
        if (request["provider"], request["wire"]) == (provider, wire_name)
        and request["operation"] == "generate"
    ]


# ── The bills ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_twenty_turns_in_each_layout(toured: Toured) -> None:
    assert TURNS == 20
    assert toured.watched == list(range(1, 21))
    assert {request["status"] for request in toured.requests} == {200}
    for one in toured.providers:
        requested = of(toured, one)
        extra = len(STORY.afterwards) if one is toured.providers[0] else 0
        assert len(requested) == 3 * TURNS + extra
        assert len({request["workspace"] for request in requested}) == 3, "a cache for each layout"
        assert all(request["scripted"] for request in requested)


def by_layout(requested: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The requests of each layout, in the order of `LAYOUTS`: each has a workspace of its own."""
    workspaces = list(dict.fromkeys(request["workspace"] for request in requested))
    return [[r for r in requested if r["workspace"] == one][:TURNS] for one in workspaces]


@pytest.mark.long
def test_bills_equal_the_emulators(toured: Toured) -> None:
    """Dollars and tokens as the server's own books have them."""
    for one in toured.providers:
        for bill, requests in zip(one.costs, by_layout(of(toured, one)), strict=True):
            assert [turn.output for turn in bill.turns] == [r["output"] for r in requests]
            if one.dialect != "ollama/openai_chat":
                assert [turn.read or 0 for turn in bill.turns] == [r["read"] for r in requests]
                billed = [Decimal(request["cost_usd"]) for request in requests]
                assert [turn.cost_usd for turn in bill.turns] == billed
            else:
                assert bill.cost_usd is None
                assert bill.read is None


@pytest.mark.long
def test_only_the_layout_differs(toured: Toured) -> None:
    """Every layout has the same output and, but for the place of the state, the same input."""
    for one in toured.providers:
        for careless, usual, ours in zip(*(cost.turns for cost in one.costs), strict=True):
            assert careless.output == usual.output == ours.output
            assert usual.input == ours.input
            assert abs(careless.input - ours.input) < 60


def test_usual_layout_is_a_fair_one(toured: Toured) -> None:
    """It reads its system prompt from the second turn on, or everything where no marker is needed;
    a careless one reads nothing."""
    for one in toured.providers:
        assert not one.careless.read
        if one.usual.read is None:
            continue
        system = one.usual.turns[0].input
        read = [turn.read or 0 for turn in one.usual.turns[3:]]
        assert min(read) > 0.7 * system
        assert one.saved is not None
        assert one.saved >= 0
        assert (one.careless.cost_usd or 0) > 2 * (one.usual.cost_usd or 0)
    saved = {one.dialect: round(100 * (one.saved or 0)) for one in toured.providers}
    assert saved["anthropic/anthropic"] > 50, "the history is marked as well"
    assert saved["openai/openai_chat"] == saved["google/gemini"] == 0, "they need no marker"


@pytest.mark.parametrize(
    "layout",
    ["usual", pytest.param("careless", marks=pytest.mark.breaks_prefix(reason="it is careless"))],
)
def test_one_marker_at_the_end_of_the_system_prompt(layout: Literal["usual", "careless"]) -> None:
    bodies: list[bytes] = []

    async def three_turns(url: str) -> None:
        stop = STORY.stops[0]
        name = f"{stop.dialect} {layout}"
        provider = {
            "dialect": stop.dialect,
            "base_url": f"{url}/{stop.provider}",
            "key": {"env": "K"},
        }
        config = {"providers": {name: provider}}
        async with AsyncClient.from_config(config, environ={"K": "any"}) as client:
            one = SdkAgent(client, stop, layout)
            for turn, step in enumerate(STORY.steps[:3], 1):
                await one.take(turn, step)

    real = AiohttpTransport.send

    async def send(self: AiohttpTransport, request: HttpRequest) -> AiohttpResponse:
        bodies.append(request.body)
        return await real(self, request)

    with (
        pytest.MonkeyPatch.context() as patch,
        emulator.running(EmulatorOptions(script=script(), latency=AT_ONCE)) as emu,
    ):
        patch.setattr(AiohttpTransport, "send", send)
        asyncio.run(three_turns(emu.url))
    assert len(bodies) == 3
    for body in map(json.loads, bodies):
        assert json.dumps(body).count("cache_control") == 1
        assert body["system"][-1]["cache_control"] == {"type": "ephemeral"}
    systems = {json.dumps(json.loads(body)["system"]) for body in bodies}
    tools = {json.dumps(json.loads(body)["tools"]) for body in bodies}
    stable = layout == "usual"
    assert (len(systems) == 1, len(tools) == 1) == (stable, stable)


def test_every_turn_reads_what_the_one_before_cached(toured: Toured) -> None:
    one = toured.providers[0]
    for before, after in zip(one.anaphora.turns, one.anaphora.turns[1:], strict=False):
        assert after.read == (before.read or 0) + (before.written or 0)
        assert after.read == after.predicted


# ── The break ────────────────────────────────────────────────────────────────────────────────────


def test_planted_break_is_found(toured: Toured) -> None:
    found, last = toured.broken, toured.providers[0].anaphora.turns[-1]
    assert (found.label, found.path) == ("tool search", "tools[4].description")
    assert INDEXED[8:] in found.before
    assert REBUILT[8:] in found.after
    for text in (found.warning, found.verdict):
        assert re.search(r"a date changed at character \d+ of tools\[4\]\.description", text)
    assert found.verdict.startswith("Miss")
    left = (last.read or 0) + (last.written or 0)
    assert (found.lost, found.restored_read) == (left, left)


def test_cost_of_the_break_follows_the_price_list(toured: Toured) -> None:
    found = toured.broken
    price = catalog.price("anthropic", found.model, TODAY)
    assert price is not None
    assert price.read is not None
    again = price.write["5m"] - price.read
    assert found.cost_usd == found.lost * again / 1_000_000


def test_emulator_reports_the_break(toured: Toured) -> None:
    broken, mended = of(toured, toured.providers[0])[-2:]
    assert broken["verdict"]["cause"] == "tools_changed"
    assert broken["read"] == 0
    assert mended["read"] == toured.broken.restored_read


# ── Where it goes ────────────────────────────────────────────────────────────────────────────────


def test_native_wires_come_first() -> None:
    assert [wire.dialect_of(stop.dialect).wire for stop in STORY.stops[:4]] == [
        "anthropic",
        "openai_responses",
        "openai_chat",
        "gemini",
    ]


def test_every_provider_with_a_price_is_visited() -> None:
    priced = {
        row.provider
        for row in catalog.dialects().rows
        if any(
            catalog.price(row.provider, model.id, TODAY) is not None
            for model in catalog.models(row.provider)
        )
    }
    assert priced <= {stop.provider for stop in STORY.stops}


@pytest.mark.breaks_prefix(reason="a prompt that breaks its prefix is what the tour shows")
@pytest.mark.long
def test_every_provider_answers_in_every_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three turns; `make soak` has all of them."""
    short = msgspec.structs.replace(STORY, steps=STORY.steps[:3])
    monkeypatch.setattr("tour.play.STORY", short)
    report = play(stops=STORY.stops)
    assert [one.dialect for one in report.providers] == [stop.dialect for stop in STORY.stops]
    for one in report.providers:
        assert [len(cost.turns) for cost in one.costs] == [3, 3, 3], one.dialect


def test_models_are_not_retired() -> None:
    for stop in STORY.stops:
        retires = catalog.profile(stop.provider, stop.model).retires
        assert retires is None or retires.value > TODAY.date(), stop.dialect


# ── The story ────────────────────────────────────────────────────────────────────────────────────


def test_rounding_example_is_right() -> None:
    """The numbers in the story are right: half even gives one cent less than half up."""

    def total(rule: str) -> Decimal:
        net = Decimal("83.65") * Decimal("0.90")
        cent = Decimal("0.01")
        return net.quantize(cent, rule) + (net * Decimal("0.10")).quantize(cent, rule)

    assert (total(ROUND_HALF_EVEN), total(ROUND_HALF_UP)) == (Decimal("82.81"), Decimal("82.82"))
    row = next(r for r in Workspace().list_invoices("2024-05").splitlines() if "2024-117" in r)
    assert row.split() == ["2024-117", "83.65", "0.10", "82.81", "82.82", "-0.01"]


def test_tools_accept_the_scripted_calls() -> None:
    workspace = Workspace()
    assert workspace.failing()
    for step in STORY.steps:
        for name, arguments in step.tool_calls:
            assert getattr(workspace, name)(**arguments)
    assert not workspace.failing()
    assert "ROUND_HALF_EVEN" not in "".join(workspace.files.values())
    assert "2024-117" in workspace.files["CHANGES.md"]
    offered = {tool.name for tool in workspace.tools().tools()}
    assert {name for step in STORY.steps for name, _ in step.tool_calls} == offered


def test_state_differs_in_every_turn() -> None:
    states = [state(turn, 0, []) for turn in range(1, TURNS + 1)]
    assert max(Counter(states).values()) == 1


# ── As data ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.breaks_prefix(reason="a prompt that breaks its prefix is what the tour shows")
def test_report_is_deterministic() -> None:
    def once() -> dict[str, Any]:
        report = play()
        data = msgspec.json.encode(report)
        assert msgspec.json.decode(data, type=TourReport) == report
        found: dict[str, Any] = msgspec.json.decode(data)
        assert found.pop("seconds") > 0
        return found

    assert once() == once()
