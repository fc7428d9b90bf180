"""The cost of calls: base prices from price data, cache prices from the rules, to the last digit."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog
from anaphora.catalog import Price, price
from anaphora.catalog.load import SHIPPED
from anaphora.catalog.price_data import decode_prices
from anaphora.catalog.prices import Rates
from anaphora.catalog.pricing import NAMES, Service, listed
from anaphora.errors import InvalidRequest
from anaphora.values import Usage

D = Decimal
WHEN = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)  # a Monday
CALL = Usage(uncached=1_000, read=20_000, written={"5m": 300, "1h": 40}, output=77)


def priced(provider: str, model: str, when: datetime.datetime = WHEN) -> Price:
    found = price(provider, model, when)
    assert found is not None
    return found


def test_one_price_in_full() -> None:
    found = priced("anthropic", "claude-opus-5-5")
    assert (found.input, found.output, found.read) == (D(4), D(20), D("0.2"))
    assert found.write == {"1h": D(8), "5m": D(5)}
    assert (found.storage, found.tiers, found.assumed, found.differences) == (None, (), (), ())
    assert found.source.startswith("genai-prices ")
    assert found.source.endswith("anthropic: claude-opus-5-5")
    assert found.of(CALL) == D("0.01136")
    assert (1_000 * 4 + 20_000 * D("0.2") + 300 * 5 + 40 * 8 + 77 * 20) / D(10**6) == D("0.01136")


@each_row(
    ("usage", "cost_usd"),
    [
        (Usage(uncached=1, output=0), D("0.000004")),
        (Usage(uncached=0, output=1), D("0.00002")),
        (Usage(uncached=0, read=1, output=0), D("0.0000002")),
        (Usage(uncached=0, written={"1h": 1}, output=0), D("0.000008")),
        (Usage(uncached=0, output=0), D(0)),
        (Usage(uncached=10**12, output=0), D(4_000_000)),
        (Usage(uncached=None, output=5), None),
        (Usage(uncached=5, output=None), None),
        (Usage(), None),
        (Usage(uncached=1, written={"12h": 1}, output=1), None),  # it has no such TTL
        (Usage(uncached=1, written={"unsplit": 1}, output=1), None),  # 5 or 8 dollars
        (Usage(uncached=1, written={"unsplit": 0}, output=0), D("0.000004")),
    ],
)
def test_cost_of_a_call(usage: Usage, cost_usd: Decimal | None) -> None:
    assert priced("anthropic", "claude-opus-5-5").of(usage) == cost_usd


def test_unsplit_writes_use_the_callers_ttl() -> None:
    usage = Usage(uncached=0, written={"unsplit": 1_000}, output=0)
    found = priced("anthropic", "claude-opus-5-5")
    assert found.of(usage, unsplit="5m") == D("0.005")
    assert found.of(usage, unsplit="1h") == D("0.008")
    # One price for all of them leaves nothing to know.
    grok = priced("xai", "grok-4.7")
    assert grok.of(usage) == grok.of(Usage(uncached=1_000, output=0))


@each_row(
    ("provider", "model"),
    [
        ("anthropic", "claude-next"),
        ("anthropic", "claude-fable-5-2"),
        ("ollama", "gpt-oss:20b-cloud"),
        ("vllm", "any/model"),
        ("huggingface", "deepseek-ai/DeepSeek-R1"),
        ("alibaba", "qwen-plus-latest"),
    ],
)
def test_unstated_price_is_unknown_and_not_free(provider: str, model: str) -> None:
    assert price(provider, model, WHEN) is None


def test_stated_zero_is_zero() -> None:
    found = priced("zai", "glm-4.7-flash")
    assert found.of(CALL) is None  # it has no TTL of an hour
    assert found.of(Usage(uncached=10, output=10)) == 0


@pytest.mark.parametrize(
    ("model", "like"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-mythos-5-1-20260901", "claude-mythos-5-1"),
    ],
)
def test_model_aliases_have_the_same_price(model: str, like: str) -> None:
    assert priced("anthropic", model).of(CALL) == priced("anthropic", like).of(CALL)


# ── Rows of ours, and of yours ───────────────────────────────────────────────────────────────────


def test_own_rows_fill_gaps_of_the_price_data() -> None:
    found = priced("anthropic", "claude-mythos-5-1")
    assert (found.input, found.output, found.source) == (D(10), D(50), "[L]")
    assert found.date == datetime.date(2026, 11, 14)
    assert (found.read, found.write) == (D("0.25"), {"1h": D(20), "5m": D("12.5")})
    doubled = [
        (row.provider, model)
        for row in SHIPPED.prices.prices
        for model in row.models
        if listed(row.provider, model, WHEN, Service(row.tier))
    ]
    assert doubled == []
    fast = catalog.price("anthropic", "claude-opus-4-8", WHEN, service_tier="fast")
    assert fast is not None
    assert (fast.input, fast.output, fast.read) == (D(10), D(50), D(1))


MINE = """
[[price]]
provider = "anthropic"
source = "our contract"
date = 2026-11-15
models = ["claude-opus-5-5", "claude-house"]
input = 3.6
output = 18
tiers = [{ above = 100, input = 7.2, output = 36 }]
"""


def test_custom_rows_win() -> None:
    mine = decode_prices(MINE)
    found = price("anthropic", "claude-opus-5-5-20260901", WHEN, own=mine)
    assert found is not None
    assert (found.input, found.source) == (D("3.6"), "our contract")
    # Longer prompts cost more, cached tokens included.
    assert (found.read, found.tiers[0].read) == (D("0.18"), D("0.36"))
    assert found.of(Usage(uncached=100, output=0)) == D("0.00036")
    assert found.of(Usage(uncached=1, read=100, output=0)) == D("0.0000432")
    house = price("anthropic", "claude-house", WHEN, own=mine)
    assert house is not None
    assert "read" in house.assumed
    other = price("anthropic", "claude-opus-5", WHEN, own=mine)
    assert other == priced("anthropic", "claude-opus-5")


# ── Rules and price data ─────────────────────────────────────────────────────────────────────────


def test_rules_win_and_the_difference_is_listed() -> None:
    found = priced("xai", "grok-code-fast-1")
    (difference,) = found.differences
    assert (difference.field, difference.rules, difference.data) == ("read", D("0.04"), D("0.02"))
    assert difference.source == "[L]"
    assert found.read == D("0.04")


def test_rounded_multiple_uses_the_listed_price() -> None:
    # 0.26 of 1.40 dollars is published as 0.186 times.
    found = priced("zai", "glm-5.3")
    assert (found.input, found.read, found.differences) == (D("1.4"), D("0.26"), ())


def test_stated_price_replaces_a_stand_in() -> None:
    rules = catalog.rules("openai", "gpt-5.1-mini")
    assert (rules.read_price.value, rules.read_price.verified) == (1.0, False)
    found = priced("openai", "gpt-5.1-mini")
    assert found.input is not None
    assert found.read == found.input / 10
    assert found.differences == ()


def test_assumed_prices_are_listed() -> None:
    found = priced("openai", "gpt-6-sol")
    assert found.assumed == ("write.12h",)
    assert "write.30m" not in found.assumed


def test_automatic_hit_may_have_another_price() -> None:
    found = price("alibaba", "qwen3.7-max", WHEN, wire="openai_chat")
    assert found is not None
    usage = Usage(uncached=0, read=1_000_000, output=0)
    assert (found.of(usage), found.of(usage, marked=False)) == (D("0.25"), D("0.5"))
    assert priced("alibaba", "qwen3.7-max").of(usage) == D("0.5")


def test_custom_rules_apply() -> None:
    text = 'provider = "anthropic"\n[[rules]]\nsource = "x"\ndate = 2026-11-15\nread_price = 0.5\n'
    rules = catalog.shipped().with_rows(text).rules("anthropic", "claude-opus-5-5")
    found = price("anthropic", "claude-opus-5-5", WHEN, rules=rules)
    assert found is not None
    assert found.read == D("2.0")
    assert [d.field for d in found.differences] == ["read"]


def test_google_bills_cache_storage() -> None:
    assert priced("google", "gemini-3.1-pro-preview").storage == D("4.5")
    assert priced("anthropic", "claude-opus-5").storage is None


# ── When, how long, which service ────────────────────────────────────────────────────────────────


@each_row(
    ("day", "hour", "peak"),
    [
        (16, 0, False),
        (16, 1, True),
        (16, 4, False),
        (16, 7, True),
        (16, 10, False),
        (20, 7, True),  # Friday
        (21, 7, False),  # Saturday
        (22, 2, False),  # Sunday
        (23, 2, True),
    ],
)
def test_deepseeks_peak_hours_are_those_of_working_days(day: int, hour: int, peak: bool) -> None:
    usual, now = (
        priced("deepseek", "deepseek-v4-flash", WHEN.replace(day=d, hour=h))
        for d, h in ((16, 12), (day, hour))
    )
    assert usual.input is not None
    assert usual.read is not None
    assert (now.input, now.read) == (usual.input * (1 + peak), usual.read * (1 + peak))


def test_hours_are_those_of_utc() -> None:
    shanghai = datetime.timezone(datetime.timedelta(hours=8))
    there = WHEN.replace(hour=7).astimezone(shanghai)
    assert priced("deepseek", "deepseek-v4-pro", there) == priced(
        "deepseek", "deepseek-v4-pro", WHEN.replace(hour=7)
    )


def test_time_without_a_zone_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="time zone") as raised:
        price("anthropic", "claude-opus-5", WHEN.replace(tzinfo=None))
    assert raised.value.path == "when"


def test_changed_price_has_a_date() -> None:
    before = priced("openai", "gpt-5.6-sol", WHEN.replace(month=8, day=20))
    after = priced("openai", "gpt-5.6-sol")
    assert before.input is not None
    assert after.input == before.input * D("0.8")
    assert after.date == datetime.date(2026, 8, 21)


def test_long_prompt_raises_the_price_of_the_whole_call() -> None:
    found = priced("openai", "gpt-5.6-sol")
    (tier,) = found.tiers
    assert tier.above == 272_000
    assert (tier.input, tier.read, tier.write["30m"]) == (D(8), D("0.8"), D(10))
    assert found.at(272_000) is found
    assert found.at(272_001) is tier
    just = Usage(uncached=2_000, read=270_000, output=0)
    over = Usage(uncached=2_001, read=270_000, output=0)
    assert found.of(just) == (2_000 * 4 + 270_000 * D("0.4")) / 10**6
    assert found.of(over) == (2_001 * 8 + 270_000 * D("0.8")) / 10**6


def test_service_tiers_have_their_own_prices() -> None:
    usual = price("openai", "gpt-5", WHEN, service_tier="default")
    flex = price("openai", "gpt-5", WHEN, service_tier="flex")
    batch = price("openai", "gpt-5", WHEN, batch=True)
    assert usual == priced("openai", "gpt-5")
    assert usual is not None
    assert flex is not None
    assert batch is not None
    assert usual.input == D("1.25")
    assert flex.input == batch.input == D("0.625")
    assert price("openai", "gpt-5", WHEN, service_tier="moonlight") is None
    # Our own rows are of the usual service.
    assert price("anthropic", "claude-mythos-5", WHEN, batch=True) is None


# ── Held against the library's own calculation ───────────────────────────────────────────────────

STATED = [
    (profile.provider, profile.id)
    for profile in catalog.models()
    if (found := listed(profile.provider, profile.id, WHEN, Service()))
    and found.levels[0].read is not None
]
AGREEING = [key for key in STATED if not priced(*key).differences]

counts = st.integers(min_value=0, max_value=400_000)


def test_many_prices_are_compared() -> None:
    assert len(AGREEING) > 150
    assert len(STATED) - len(AGREEING) < 20


@given(st.sampled_from(AGREEING), counts, counts, counts, counts)
def test_cost_equals_genai_prices_where_prices_agree(
    key: tuple[str, str], uncached: int, read: int, written: int, output: int
) -> None:
    provider, model = key
    found = priced(provider, model)
    default = catalog.rules(provider, model).default_ttl
    assert default is not None
    # A write that costs no more than input is plain input in its data; a price that we assume for
    # it is not to be found there.
    stated = f"write.{default.value}" not in found.assumed
    costs_more = stated and found.write[default.value] != found.input
    usage = Usage(
        uncached=uncached,
        read=read,
        written={default.value: written} if costs_more else None,
        output=output,
    )
    theirs = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=uncached + read + (written if costs_more else 0),
            cache_read_tokens=read,
            cache_write_tokens=written if costs_more else 0,
            output_tokens=output,
        ),
        model,
        provider_id=NAMES[provider],
        genai_request_timestamp=WHEN,
    )
    ours = found.of(usage)
    assert ours is not None
    assert abs(ours - theirs.total_price) <= D("1e-18")  # it divides, and rounds at 28 digits


@given(st.lists(counts, min_size=4, max_size=4), st.lists(counts, min_size=4, max_size=4))
def test_costs_add_up_within_a_tier(one: list[int], other: list[int]) -> None:
    def used(n: list[int]) -> Usage:
        return Usage(uncached=n[0], read=n[1], written={"5m": n[2]}, output=n[3])

    rates = Rates(input=D("0.1"), output=D("0.7"), read=D("0.0333"), write={"5m": D("1.25")})
    flat = Price(
        provider="p", model="m", source="s", date=None,
        input=rates.input, output=rates.output, read=rates.read, write=rates.write,
    )  # fmt: skip
    parts = [flat.of(used(one)), flat.of(used(other))]
    both = flat.of(used([a + b for a, b in zip(one, other, strict=True)]))
    assert None not in parts
    assert both == sum(part for part in parts if part is not None)


# ── Prices are loaded on demand, and nothing is fetched ──────────────────────────────────────────


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_and_looking_up_load_no_price_data() -> None:
    run(
        "import sys, anaphora.catalog as c, anaphora.cache, anaphora.wire\n"
        "c.profile('openai', 'gpt-5'); c.rules('openai', 'gpt-5')\n"
        "from anaphora.catalog.load import SHIPPED\n"
        "assert 'price_table' not in vars(SHIPPED)\n"
        "assert not {'genai_prices', 'pydantic', 'httpx2', 'asyncio'} & set(sys.modules)"
    )


def test_price_lookup_uses_no_network() -> None:
    run(
        "import socket\n"
        "def refused(*_, **__): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = socket.create_connection = refused\n"
        "import datetime, threading, anaphora.catalog as c\n"
        "when = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)\n"
        "assert c.price('openai', 'gpt-5', when).input\n"
        "assert threading.active_count() == 1, 'something updates itself'\n"
        "import sys; assert not {'genai_prices', 'pydantic', 'httpx2'} & set(sys.modules)"
    )
