"""What if: estimates from an audit log, held against what the same traffic really costs."""

from __future__ import annotations

import asyncio
import datetime
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import htpy
import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_client import settings as provider_settings

from anaphora import AsyncClient, PromptBlock, catalog, emulator
from anaphora.audit import AuditBlock, AuditEnvelope, AuditLog, AuditUsage, calls
from anaphora.dashboard.pages.what_if import WhatIfPage
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.site import Section, Site, page_request
from anaphora.dashboard.values import ShownCall
from anaphora.dashboard.what_if import (
    ProviderModel,
    ScenarioRow,
    TtlChoice,
    WhatIf,
    what_if,
)
from anaphora.emulator import Emulator, EmulatorOptions, Latency, Script
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptCachePlan
from anaphora.values import CachePolicy, Ttl, Usage

RULES = "You are terse and to the point. " * 450
REPLY = "Rome, Oslo and Lisbon are by the water; Madrid is not."
SCRIPT = f"replies: [{{reply: {{text: '{REPLY}'}}}}]"
#: Seconds before each turn; both TTLs expire at some of them.
GAPS = (0, 20, 200, 400, 30, 4000, 100)
POLICIES: dict[Ttl, CachePolicy] = {
    "5m": CachePolicy.EPHEMERAL_5M,
    "1h": CachePolicy.EPHEMERAL_1H,
}
SONNET = ProviderModel("anthropic", "claude-sonnet-4-5")

Log = Sequence[AuditEnvelope]


# ── The same traffic, sent twice ─────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def provider() -> Iterator[Emulator]:
    script = Script.decode(SCRIPT, "script.yaml")
    options = EmulatorOptions(latency=Latency(first=0.0), any_model=True, script=script)
    with emulator.running(options) as running:
        yield running


class Traffic:
    """Sends the same two conversations in one way or another, each way once."""

    def __init__(self, provider: Emulator, folder: Path) -> None:
        self._provider = provider
        self._folder = folder
        self._logs: dict[tuple[object, ...], Log] = {}

    def log(self, name: str, ttl: Ttl | None = None, model: str | None = None) -> Log:
        way = name, ttl, model
        if way not in self._logs:
            path = self._folder / f"log-{len(self._logs)}"
            self._logs[way] = asyncio.run(self._send(path, name, ttl, model))
        return self._logs[way]

    async def _send(self, path: Path, name: str, ttl: Ttl | None, model: str | None) -> Log:
        self._provider.reset()
        policy = CachePolicy.NONE if ttl is None else POLICIES[ttl]
        config = {"providers": provider_settings(self._provider.url, (name,))}
        options: dict[str, Any] = {} if model is None else {"model": model}
        idle, moments = 0.0, []
        with AuditLog(path) as log:
            async with AsyncClient.from_config(config, environ={"KEY": "k"}, audit=log) as client:
                chats = [
                    client.session(
                        name,
                        system=[PromptBlock("rules", RULES, policy)],
                        cache=PromptCachePlan(message_ttl=ttl),
                        max_tokens=200,
                        **options,
                    )
                    for _ in range(2)
                ]
                for turn, gap in enumerate(GAPS):
                    self._provider.advance(gap)
                    idle += gap
                    for number, chat in enumerate(chats[: 1 + turn % 2]):
                        await chat.send(question(number, turn))
                        moments.append(idle)
        found = [call for _, call in calls(path)]
        # The clock of the log is real; the one of the provider was moved.
        return [
            msgspec.structs.replace(call, at=call.at + moment)
            for call, moment in zip(found, moments, strict=True)
        ]

    def without_caching(self) -> Decimal:
        """What the provider bills for the same prompts without any marker."""
        self._provider.reset()
        price = price_of(SONNET)
        total = Decimal(0)
        histories: list[list[dict[str, str]]] = [[], []]
        turns = [(turn, number) for turn in range(len(GAPS)) for number in range(1 + turn % 2)]
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        with httpx.Client(base_url=self._provider.url, headers=headers) as client:
            for turn, number in turns:
                history = histories[number]
                history.append({"role": "user", "content": question(number, turn)})
                body = {"model": SONNET.model, "max_tokens": 200, "system": RULES}
                reply = client.post("/v1/messages", json={**body, "messages": history}).json()
                history.append({"role": "assistant", "content": reply["content"][0]["text"]})
                usage = reply["usage"]
                cost = price.of(
                    Usage(uncached=usage["input_tokens"], output=usage["output_tokens"])
                )
                assert cost is not None
                total += cost
        return total


def question(conversation: int, turn: int) -> str:
    return f"Which cities of country {conversation}, in part {turn}? " * 40


def price_of(model: ProviderModel) -> catalog.Price:
    found = catalog.price(*model[:2], datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def traffic(provider: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    return Traffic(provider, tmp_path_factory.mktemp("logs"))


def billed(log: Log) -> int:
    return sum(call.cost_nano_usd or 0 for call in log)


def row_of(result: WhatIf, part: str) -> ScenarioRow:
    """The only row with that in its title."""
    (found,) = [row for row in result.rows if part in row.scenario.title]
    return found


MOVES: dict[str, tuple[tuple[str, Ttl | None], ProviderModel, TtlChoice | None, tuple[Any, ...]]]
MOVES = {
    "to another model of the provider": (
        ("anthropic", "5m"),
        ProviderModel("anthropic", "claude-opus-4-5"),
        None,
        ("anthropic", "5m", "claude-opus-4-5"),
    ),
    "to a provider that caches by itself": (
        ("anthropic", "5m"),
        ProviderModel("openai", "gpt-5.2"),
        None,
        ("openai_chat",),
    ),
    "to a provider that keeps units": (
        ("anthropic", "5m"),
        ProviderModel("deepseek", "deepseek-v4-flash"),
        None,
        ("deepseek",),
    ),
    "from a provider without markers to one with": (
        ("openai_chat", None),
        SONNET,
        "1h",
        ("anthropic", "1h"),
    ),
}


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_estimate_with_another_ttl_is_what_it_costs(traffic: Traffic, ttl: Ttl) -> None:
    other: Ttl = "1h" if ttl == "5m" else "5m"
    row = row_of(what_if(traffic.log("anthropic", ttl)), f"TTL of {other}")
    really = traffic.log("anthropic", other)
    assert row.cost is not None
    assert row.cost.low <= billed(really) <= row.cost.high
    assert row.cost.estimate == pytest.approx(billed(really), rel=0.01)
    assert row.difference is not None
    assert row.difference.estimate == row.cost.estimate - billed(traffic.log("anthropic", ttl))


def test_estimate_without_caching_is_what_it_costs(traffic: Traffic) -> None:
    row = row_of(what_if(traffic.log("anthropic", "5m")), "Without caching")
    assert row.cost is not None
    assert row.cost.low == row.cost.high == row.cost.estimate, "counts and prices are known"
    assert row.cost.estimate == pytest.approx(int(traffic.without_caching() * 10**9), rel=0.002)
    assert row.read_share == 0


@pytest.mark.parametrize("move", MOVES)
def test_range_on_another_model_holds_what_it_costs(traffic: Traffic, move: str) -> None:
    way, model, ttl, real_way = MOVES[move]
    result = what_if(traffic.log(*way), model=model, ttl=ttl)
    title = f"On {model.provider}/{model.model}" + (f", TTL {ttl}" if ttl else "")
    (row,) = [one for one in result.rows if one.scenario.title == title]
    assert row.cost is not None
    assert row.cost.low <= billed(traffic.log(*real_way)) <= row.cost.high


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses", "deepseek"])
def test_calls_as_they_were_sent_cost_their_bill(traffic: Traffic, name: str) -> None:
    """Client logs name no conversation: digests and counts link the calls."""
    ttl: Ttl | None = "5m" if name == "anthropic" else None
    log = traffic.log(name, ttl)
    result = what_if(log)
    assert (result.calls, result.played, result.left_out) == (len(log), len(log), {})
    assert result.billed_nano_usd == billed(log)
    assert result.check.error is not None
    assert result.check.error < 0.03
    assert result.links["none"] == 2, "the first call of each conversation"


# ── Made rows ────────────────────────────────────────────────────────────────────────────────────


def made_log(
    seed: int = 0,
    *,
    conversations: int = 3,
    model: ProviderModel = SONNET,
    named: bool = True,
) -> list[AuditEnvelope]:
    """Conversations of several turns, as an audit log may hold them, with a bill that may be any:
    a random part of what was sent before is read."""
    draw = random.Random(seed)
    log = []
    rules, price = catalog.rules(*model), price_of(model)
    marked = rules.slots.value > 0 and rules.mechanism.value != "implicit"
    ttl = rules.ttls.value[-1]
    for number in range(conversations):
        at, chunks, history, before = 1.79e9 + draw.random() * 3600, 0, 0, 0
        for turn in range(draw.randint(1, 5)):
            at += draw.choice((3.0, 60.0, 400.0, 5000.0))
            chunks, history = chunks + draw.randint(1, 30), history + draw.randint(20, 3000)
            total = 3000 + history
            read = draw.choice((0, before)) if turn else 0
            new = total - read
            usage = AuditUsage(
                uncached=0 if marked else new,
                read=read,
                written={ttl: new} if marked else None,
                output=draw.randint(1, 500),
            )
            cost = price.of(msgspec.convert(msgspec.structs.asdict(usage), Usage), marked=marked)
            assert cost is not None
            marker: dict[str, Any] = {"marker": True, "ttl": ttl} if marked else {}
            log.append(
                AuditEnvelope(
                    at=at,
                    provider=model.provider,
                    system=model.provider,
                    model=model.model,
                    seconds=1.0,
                    usage=usage,
                    cost_nano_usd=int(cost * 10**9),
                    conversation=f"c{number}" if named else "",
                    turn=turn,
                    verdict="hit" if turn else "first",
                    blocks=(
                        AuditBlock(
                            label="rules", kind="system", tokens=3000, digest="rules", **marker
                        ),
                        AuditBlock(
                            label="conversation",
                            kind="messages",
                            chunks=chunks,
                            tokens=history,
                            digest=f"{number}-{turn}",
                            **marker,
                        ),
                    ),
                )
            )
            before = total
    return log


MODELS = (
    SONNET,
    ProviderModel("openai", "gpt-5.2"),
    ProviderModel("openai", "gpt-5.6"),
    ProviderModel("deepseek", "deepseek-v4-flash"),
)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    model=st.sampled_from(MODELS),
    other=st.sampled_from(MODELS),
    named=st.booleans(),
)
def test_estimate_is_within_its_range_in_any_order(
    seed: int, model: ProviderModel, other: ProviderModel, named: bool
) -> None:
    log = made_log(seed, model=model, named=named)
    result = what_if(log, model=other)
    for row in result.rows:
        if row.cost is None:
            assert row.unavailable
            continue
        assert 0 <= row.cost.low <= row.cost.estimate <= row.cost.high
        assert row.read_share is not None
        assert 0 <= row.read_share <= 1
    shuffled = list(log)
    random.Random(seed).shuffle(shuffled)
    assert what_if(shuffled, model=other) == result


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_automatic_caching_is_never_dearer_than_none(seed: int) -> None:
    log = made_log(seed, model=ProviderModel("openai", "gpt-5.2"))
    result = what_if(log, model=ProviderModel("deepseek", "deepseek-v4-flash"))
    without = row_of(result, "Without caching").cost
    assert without is not None
    assert without.estimate >= result.billed_nano_usd - len(log)
    there = [row.cost for row in result.rows if row.scenario.model is not None]
    assert there[0] is not None
    assert there[1] is not None
    assert there[0].estimate <= there[1].estimate


def test_empty_view() -> None:
    result = what_if([], model=SONNET)
    assert (result.calls, result.billed_nano_usd, result.read_share) == (0, 0, None)
    assert all(row.cost is None and row.unavailable for row in result.rows)


LEFT_OUT: dict[str, dict[str, Any]] = {
    "failed": {"outcome": "RateLimited", "usage": AuditUsage(), "repeats": 3},
    "no_usage": {"usage": AuditUsage()},
    "no_blocks": {"blocks": ()},
    "no_price": {"model": "claude-unheard-of", "cost_nano_usd": None},
    "unknown_provider": {"provider": "acme", "system": "acme"},
}


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_calls_that_cannot_be_compared_are_counted(reason: str) -> None:
    log = made_log()
    changed = msgspec.structs.replace(log[0], **LEFT_OUT[reason])
    result = what_if([*log, changed])
    assert result.left_out == {reason: changed.repeats}
    assert result.calls == len(log)


def test_unknown_price_of_another_model_gives_no_amount() -> None:
    result = what_if(made_log(), model=ProviderModel("ollama", "qwen3:0.6b"))
    row = row_of(result, "qwen3:0.6b, without")
    assert row.cost is None
    assert row.unavailable == "no price is known for ollama/qwen3:0.6b"


@pytest.mark.parametrize(
    ("model", "ttl", "reason"),
    [
        (
            ProviderModel("openai", "gpt-5.2"),
            "1h",
            "caches automatically: there is no TTL to choose",
        ),
        (ProviderModel("openai", "gpt-5.6"), "1h", "offers 30m and 12h, not 1h"),
    ],
)
def test_ttl_that_another_model_does_not_offer(
    model: ProviderModel, ttl: TtlChoice, reason: str
) -> None:
    row = row_of(what_if(made_log(), model=model, ttl=ttl), f"TTL {ttl}")
    assert reason in row.unavailable


def test_sample_holds_the_estimate_of_all_calls() -> None:
    log = made_log(conversations=120)
    whole = what_if(log)
    sampled = what_if(log, most_played=100)
    assert not whole.sampled
    assert sampled.sampled
    assert sampled.played < 110
    assert sampled.billed_nano_usd == whole.billed_nano_usd
    for one, all_calls in zip(sampled.rows, whole.rows, strict=True):
        if one.cost is not None and all_calls.cost is not None:
            assert one.cost.low <= all_calls.cost.estimate <= one.cost.high
    without, exact = (row_of(one, "Without caching").cost for one in (sampled, whole))
    assert without is not None
    assert exact is not None
    assert without.high > without.low, "a sample is not certain"


def test_price_other_than_the_listed_one_is_kept() -> None:
    """A batch at half the price: the same share is assumed of another TTL."""
    log = made_log()
    half = [
        msgspec.structs.replace(call, cost_nano_usd=(call.cost_nano_usd or 0) // 2) for call in log
    ]
    listed, batch = (row_of(what_if(one), "Without caching").cost for one in (log, half))
    assert listed is not None
    assert batch is not None
    assert batch.estimate == pytest.approx(listed.estimate / 2, rel=1e-6)
    assert what_if(half).other_price == len(log)
    assert batch.low < batch.estimate < batch.high


def test_edited_history_keeps_only_what_was_read() -> None:
    """A change in the middle: with any TTL, what follows it is written again."""
    first, second, third = (
        call_of(turn, tokens, read, broke=turn == 2)
        for turn, (tokens, read) in enumerate([(2000, 0), (4000, 5000), (6000, 5000)])
    )
    kept = [first, second, msgspec.structs.replace(third, broke=False)]
    edited = what_if([first, second, third], model=ProviderModel("openai", "gpt-5.2"))
    unchanged = what_if(kept, model=ProviderModel("openai", "gpt-5.2"))
    assert edited.check.error == pytest.approx(0, abs=0.01)
    assert unchanged.check.error is not None
    assert unchanged.check.error > 0.1, "the bill shows a miss that nothing explains"
    there, elsewhere = (one.rows[-2].read_share for one in (edited, unchanged))
    assert there is not None
    assert elsewhere is not None
    assert there < elsewhere


def test_conversation_with_an_edited_beginning_began_among_the_calls() -> None:
    """A clock in the rules: no call continues another, and all of them are known."""
    log = []
    for turn in range(3):
        call = call_of(turn, 2000, 0, broke=turn > 0)
        rules, history = call.blocks
        rules = msgspec.structs.replace(rules, digest=f"rules at {turn}")
        log.append(msgspec.structs.replace(call, blocks=(rules, history)))
    assert what_if(log).began_before == 0
    assert what_if(log[1:]).began_before == 1


def call_of(turn: int, history: int, read: int, *, broke: bool) -> AuditEnvelope:
    """A call after 3,000 tokens of rules, all of it marked; a minute after the one before."""
    total = 3000 + history
    new = total - read
    usage = AuditUsage(uncached=0, read=read, written={"5m": new}, output=10)
    cost = price_of(SONNET).of(Usage(uncached=0, read=read, written={"5m": new}, output=10))
    assert cost is not None
    block = AuditBlock(
        label="conversation",
        kind="messages",
        chunks=2 * turn + 1,
        tokens=history,
        digest=f"history-{turn}",
        marker=True,
        ttl="5m",
    )
    rules = AuditBlock(label="rules", kind="system", tokens=3000, digest="rules")
    return AuditEnvelope(
        at=1.79e9 + 60 * turn,
        provider="anthropic",
        model=SONNET.model,
        seconds=1.0,
        usage=usage,
        cost_nano_usd=int(cost * 10**9),
        conversation="c",
        turn=turn,
        verdict="partial" if turn else "first",
        broke=broke,
        blocks=(rules, block),
    )


# ── The page ─────────────────────────────────────────────────────────────────────────────────────

SITE = Site(root="/ui", title="Tested", sections=(Section("what-if", "What if"),))
HOSTILE = "<script>alert(1)</script>"


def page(log: Log, query: str = "", *, now: float = 1.79e9 + 20_000) -> str:
    source = MemoryCalls()
    for number, call in enumerate(log):
        source.add(ShownCall(id=str(number), call=call))
    request = page_request("GET", "what-if", query, now)
    content = WhatIfPage(source).content(request, SITE)
    return str(htpy.div[content.main])


def test_page_compares_with_the_chosen_model() -> None:
    html = page(made_log(), "on=openai/gpt-5.2&ttl=&app=")
    for text in ("As billed", "Without caching", "On openai/gpt-5.2", "Range", "As billed: $"):
        assert text in html
    assert '<option value="openai/gpt-5.2" selected>' in html
    assert re.search(r"stated to ±\d", html)


def test_page_keeps_the_view_in_its_form() -> None:
    html = page(made_log(), "range=week&provider=anthropic")
    assert '<input type="hidden" name="range" value="week">' in html
    assert '<input type="hidden" name="provider" value="anthropic">' in html


def test_page_without_calls_says_so() -> None:
    assert "No calls in this range" in page([])


def test_page_names_calls_that_are_left_out() -> None:
    log = [msgspec.structs.replace(call, blocks=()) for call in made_log()]
    assert f"Left out: {len(log)} that have no blocks in the log." in page(log)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("on=gpt-5.2", "on: 'gpt-5.2' is not of the form provider/model"),
        ("on=acme/gpt-5.2", "unknown provider 'acme'"),
        (f"on=openai/{HOSTILE}", "unknown model '<script>"),
        ("ttl=2h", "'2h' is none of 5m, 30m, 1h, 12h, 24h, none"),
    ],
)
def test_page_rejects_a_wrong_choice(query: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        page(made_log(), query)


@pytest.mark.parametrize("end", [HOSTILE, "\u202e", "x" * 10_000])
def test_page_shows_hostile_names_as_text(end: str) -> None:
    hostile = f"claude-sonnet-4-5-{end}"
    log = [msgspec.structs.replace(call, model=hostile) for call in made_log()]
    html = page(log, "on=openai/gpt-5.2")
    assert "one token of anthropic/claude-sonnet-4-5-" in html
    assert end not in html
    assert "<script" not in html
    served = page(made_log(), urlencode({"on": f"llamacpp/{hostile}"}))
    assert "no price is known for llamacpp/claude-sonnet-4-5-" in served
    assert served.count(end) == 0
