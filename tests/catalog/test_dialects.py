"""Dialect rows: their format, and finding them."""

from __future__ import annotations

import datetime
import gzip
import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.catalog import Dialect, dialects
from anaphora.catalog.dialect_rows import FILE, decode_dialects
from anaphora.errors import InvalidCatalog, InvalidRequest

EXCHANGES = Path(__file__).parents[3] / "shared" / "exchanges" / "exchanges.jsonl.gz"
SOURCE = Path(catalog.__file__).with_name(FILE)
ROWS = dialects().rows
every_row = each_row("row", ROWS, ids=lambda row: row.name)

ROW = """
[[dialect]]
provider = "acme"
wire = "openai_chat"
source = "me"
date = 2026-11-15
base_url = "https://acme.example"
"""
NAME = "dialect[0] (acme/openai_chat)"


# ── Strictness ───────────────────────────────────────────────────────────────────────────────────


@each_row(
    ("text", "row", "message"),
    [
        (ROW + "colour = 1", NAME, "unknown field `colour`"),
        (ROW + 'auth = "basic"', NAME, "Invalid enum value 'basic' - at `$.auth`"),
        (ROW + 'hosts = "acme.example"', NAME, "Expected `array`, got `str`"),
        (ROW + "omitted = [1]", NAME, "Expected `str`, got `int`"),
        (ROW + "fields = { mood = false }", NAME, "Invalid enum value 'mood'"),
        (ROW + "fields = { seed = true }", NAME, "fields"),
        (ROW + "fields = { seed = 3 }", NAME, "fields"),
        (ROW + "fields = { seed = {} }", NAME, "fields.seed needs either `at` or `header`"),
        (ROW + 'fields = { seed = "" }', NAME, "fields.seed needs either `at` or `header`"),
        (
            ROW + 'fields = { seed = { at = "a", header = "b" } }',
            NAME,
            "fields.seed needs either `at` or `header`",
        ),
        (ROW + 'fields = { seed = { at = "a", word = "b" } }', NAME, "unknown field `word`"),
        (ROW + 'fields = { seed = { at = "a", values = { x = [] } } }', NAME, "values"),
        (ROW + "markers = { 7m = {} }", NAME, "Invalid enum value '7m'"),
        (ROW + "markers = { 5m = 1 }", NAME, "Expected `object`, got `int`"),
        (ROW + 'usage = { cached = ["x"] }', NAME, "unknown field `cached`"),
        (ROW + 'usage = { written_ttl = "7m" }', NAME, "Invalid enum value '7m'"),
        (ROW + 'errors = { kinds = { 7 = "sad" } }', NAME, "Invalid enum value 'sad'"),
        (ROW + "errors = { fine = [0] }", NAME, "Expected `str`, got `int`"),
        (ROW + 'stops = { error = "crash" }', NAME, "Invalid enum value 'crash'"),
        (ROW.replace('source = "me"\n', ""), NAME, "required field `source`"),
        (ROW.replace('"me"', '""'), NAME, "length >= 1 - at `$.source`"),
        (ROW.replace("date = 2026-11-15\n", ""), NAME, "required field `date`"),
        (ROW.replace("2026-11-15", '"2026-11-15"'), NAME, "Expected `date`"),
        (re.sub("base_url.*", "", ROW), NAME, "required field `base_url`"),
        (re.sub("provider.*", "", ROW), "dialect[0] (openai_chat)", "required field `provider`"),
        (re.sub("wire.*", "", ROW), "dialect[0] (acme)", "required field `wire`"),
        (ROW + 'surface = "x"\ncolour = 1', "dialect[0] (acme/openai_chat/x)", "`colour`"),
        (ROW + ROW + "colour = 1", "dialect[1] (acme/openai_chat)", "unknown field `colour`"),
        ("[dialect]\n", "dialect", "write rows as [[dialect]]"),
        ("dialect = [1]\n", "dialect", "write rows as [[dialect]]"),
        ("[[rules]]\n", "", "'rules' is not a kind of row; use [[dialect]]"),
        ("provider = ", "", "Invalid value"),
    ],
)
def test_invalid_rows_are_rejected(text: str, row: str, message: str) -> None:
    with pytest.raises(InvalidCatalog) as raised:
        dialects().with_rows(text, file="mine.toml")
    assert (raised.value.file, raised.value.row) == ("mine.toml", row)
    assert message in str(raised.value)
    assert str(raised.value).startswith("mine.toml")


def test_minimal_row() -> None:
    (row,) = decode_dialects(ROW).rows
    assert (row.name, row.auth, row.path, row.surface) == ("acme/openai_chat", "bearer", "", "")
    assert (row.fields, row.omitted, row.stops) == ({}, (), {})
    assert row.markers is None
    assert row.usage is None
    assert row.errors is None


# ── All rows ─────────────────────────────────────────────────────────────────────────────────────


def test_no_row_hides_another() -> None:
    assert SOURCE.read_text(encoding="utf-8").count("\n[[dialect]]\n") == len(ROWS)


@every_row
def test_provider_and_wire_exist(row: Dialect) -> None:
    assert row.provider in catalog.shipped().entries
    assert row.wire in wire.WIRES
    assert catalog.profile(row.provider, "some-model").provider == row.provider


#: Gateways that are known by the logs of others: their calls are predicted, not made.
FROM_LOGS = {"litellm", "opencode", "copilot"}


def test_every_provider_of_the_catalog_has_a_row() -> None:
    assert catalog.shipped().entries.keys() - FROM_LOGS == {row.provider for row in ROWS}


@each_row("provider", sorted({row.provider for row in ROWS}))
def test_default_models_are_known_priced_and_not_retired(provider: str) -> None:
    """Every provider with a key and models of its own has one, on its first row."""
    first, *others = [row for row in ROWS if row.provider == provider]
    assert [row.name for row in others if row.default_model] == []
    if (row := first.default_model) is None:
        needs_account = first.cloud or "{" in first.base_url
        assert needs_account or first.auth == "none" or not catalog.models(provider)
        return
    profile = catalog.profile(provider, row.value)
    now = datetime.datetime.now(datetime.UTC)
    assert profile.known
    assert profile.retires is None or profile.retires.value > now.date()
    unpriced = {"ollama", "huggingface"}
    assert provider in unpriced or catalog.price(provider, row.value, now) is not None
    assert catalog.default_model(provider, now.date()) == row.value


def test_default_model_that_has_retired_is_not_used() -> None:
    row = catalog.default_model_row("deepseek")
    assert row is not None
    late = datetime.date(2100, 1, 1)
    retiring = [one for one in catalog.models("deepseek") if one.retires is not None]
    assert retiring
    assert catalog.default_model("deepseek", late) not in {one.id for one in retiring}


@every_row
def test_base_url_and_path_form_a_url(row: Dialect) -> None:
    assert re.fullmatch(r"https?://[a-z0-9{}.:/_-]+[a-z0-9}]", row.base_url)
    assert row.hosts
    assert all(re.fullmatch(r"[a-z0-9.*:-]+", host) for host in row.hosts)
    assert re.fullmatch(r"(/[A-Za-z0-9{}.:_-]+)*(\?api-version=\{api_version\})?", row.path)
    host = re.sub(r"\{[a-z]+\}", "x", row.base_url).split("/")[2]
    assert dialects().at_host(host, row.wire, row.path) is not None


@every_row
def test_no_two_parameters_share_a_place(row: Dialect) -> None:
    places = [row.place(param) for param in row.fields]
    taken = [place.at or place.header for place in places if place is not None]
    assert all(taken)
    for one, two in combinations(taken, 2):
        assert one != two
        assert not f"{one}.".startswith(f"{two}.")
        assert not f"{two}.".startswith(f"{one}.")


@each_row("row", [row for row in ROWS if "reasoning.mode" in row.fields], ids=lambda row: row.name)
def test_every_common_mode_has_a_value(row: Dialect) -> None:
    """The enabled value is read as `enabled`, or as `adaptive` where the provider calls it that."""
    place = row.place("reasoning.mode")
    assert place is not None
    on, off = place.values["enabled"], place.values.get("disabled", "disabled")
    assert place.values["adaptive"] == on
    assert off in (False, "disabled")
    mode = next(ours for ours, theirs in place.values.items() if theirs == on)
    assert mode == ("adaptive" if on == "adaptive" else "enabled")


@each_row("row", [row for row in ROWS if row.router], ids=lambda row: row.name)
def test_router_names_its_host_in_one_place(row: Dialect) -> None:
    router = row.router
    assert router is not None
    assert bool(router.answer) != bool(router.answer_header)
    assert router.pin in router.chosen_by or (not router.pin and router.chosen_models)


def test_retention_is_sent_to_openai_only() -> None:
    openai_rows = [row for row in ROWS if row.wire.startswith("openai_")]
    providers = {row.provider for row in openai_rows if "cache.retention" not in row.fields}
    assert providers == {"openai", "azure", "bedrock"}
    assert not any(
        "cache.retention" in row.fields for row in openai_rows if row.provider in providers
    )


@each_row("row", [row for row in ROWS if row.errors], ids=lambda row: row.name)
def test_success_codes_are_no_errors(row: Dialect) -> None:
    assert row.errors is not None
    assert not set(row.errors.fine) & row.errors.kinds.keys()
    assert row.errors.kinds


@each_row(
    ("provider", "wire_name"),
    [
        ("openai", "openai_chat"),
        ("anthropic", "anthropic"),
        ("google", "gemini"),
        ("ollama", "openai_chat"),
        ("azure", "openai_chat"),
        ("bedrock", "bedrock"),
        ("deepseek", "openai_chat"),
        ("minimax", "openai_chat"),
        ("vllm", "openai_chat"),
    ],
)
def test_first_row_is_the_default_wire(provider: str, wire_name: str) -> None:
    assert dialects().find(provider).wire == wire_name


# ── Lookup ───────────────────────────────────────────────────────────────────────────────────────


@each_row(
    ("host", "on", "path", "found"),
    [
        ("api.deepseek.com", "openai_chat", "/chat/completions", "deepseek/openai_chat"),
        ("api.deepseek.com", "anthropic", "/anthropic/v1/messages", "deepseek/anthropic"),
        ("api.deepseek.com", "openai_chat", "/beta/chat/completions", "deepseek/openai_chat"),
        ("api.deepseek.com", "gemini", "", None),
        ("corp.openai.azure.com", "openai_chat", "", "azure/openai_chat"),
        ("a.b.openai.azure.com", "openai_responses", "", "azure/openai_responses"),
        ("openai.azure.com", "openai_chat", "", None),
        ("corp.openai.azure.com.example", "openai_chat", "", None),
        ("europe-west4-aiplatform.googleapis.com", "gemini", "", "google/gemini/vertex"),
        ("aiplatform.googleapis.com", "gemini", "", "google/gemini/vertex"),
        ("generativelanguage.googleapis.com", "gemini", "", "google/gemini"),
        (
            "bedrock-mantle.eu-west-1.api.aws",
            "openai_responses",
            "/v1/responses",
            "bedrock/openai_responses/gpt-oss",
        ),
        (
            "bedrock-mantle.eu-west-1.api.aws",
            "openai_responses",
            "/openai/v1/responses",
            "bedrock/openai_responses",
        ),
        ("bedrock-mantle.eu-west-1.api.aws", "openai_responses", "", "bedrock/openai_responses"),
        ("router.huggingface.co", "openai_chat", "/together/v1/chat", "huggingface/openai_chat"),
        ("api.together.xyz", "openai_chat", "/v1/chat/completions", "together/openai_chat"),
        ("org-acc.snowflakecomputing.com", "openai_chat", "", "snowflake/openai_chat"),
        ("localhost", "openai_chat", "", "ollama/openai_chat"),
        ("localhost:8000", "openai_chat", "", "vllm/openai_chat"),
        ("127.0.0.1:8080", "anthropic", "", "llamacpp/anthropic"),
        ("localhost:9999", "openai_chat", "", None),
        ("API.DEEPSEEK.COM", "openai_chat", "", None),  # hosts are lowercase
    ],
)
def test_at_host(host: str, on: str, path: str, found: str | None) -> None:
    row = dialects().at_host(host, on, path)
    assert (None if row is None else row.name) == found


def recorded() -> Iterator[tuple[str, str, str]]:
    with gzip.open(EXCHANGES, "rt", encoding="utf-8") as lines:
        for line in lines:
            exchange = json.loads(line)
            yield exchange["host"], exchange["wire"], exchange["path"]


@pytest.mark.skipif(not EXCHANGES.exists(), reason=f"no recorded exchanges at {EXCHANGES}")
def test_every_recorded_host_has_its_row() -> None:
    hosts = {one for one in recorded() if one[1] in wire.WIRES}
    assert len(hosts) > 30
    missing = [one for one in sorted(hosts) if dialects().at_host(*one) is None]
    assert not missing


@pytest.mark.skipif(not EXCHANGES.exists(), reason=f"no recorded exchanges at {EXCHANGES}")
def test_recorded_requests_match_the_row() -> None:
    """But for routers, whose paths name who is behind them, and a gateway."""
    differing = set()
    for host, on, path in set(recorded()):
        row = dialects().at_host(host, on, path) if on in wire.WIRES else None
        if row is None or on in ("gemini", "bedrock"):
            continue
        own = {"openai_chat": "/v1/chat/completions", "openai_responses": "/v1/responses"}
        if path != (row.path or own.get(on, "/v1/messages")):
            differing.add(row.provider)
    assert differing == {"huggingface"}


@pytest.mark.parametrize(
    ("key", "path", "message"),
    [
        (("missing",), "provider", "no dialect of 'missing'; there are openai, anthropic"),
        (("deepseek", "gemini"), "wire", "only openai_chat, openai_responses, anthropic"),
        (("google", "gemini", "moon"), "surface", "no surface 'moon' for 'gemini', only '', 'vert"),
        (("groq", "openai_chat", "x"), "surface", "only ''"),
    ],
)
def test_not_found(key: tuple[str, ...], path: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        dialects().find(*key)
    assert raised.value.path == path
    assert message in str(raised.value)


def test_custom_rows_replace_shipped_ones() -> None:
    mine = ROW.replace("acme", "groq").replace("https://groq.example", "https://proxy.example")
    changed = dialects().with_rows(mine)
    assert changed.find("groq").base_url == "https://proxy.example"
    assert changed.find("groq").fields == {}
    assert len(changed.rows) == len(ROWS)
    assert dialects().find("groq").base_url == "https://api.groq.com"
    order = [row.name for row in changed.rows]
    assert order == [row.name for row in ROWS]


def test_custom_rows_are_added() -> None:
    more = ROW + 'hosts = ["acme.example"]\n' + ROW + 'surface = "beta"\n'
    changed = dialects().with_rows(more)
    assert [row.name for row in changed.rows[len(ROWS) :]] == [
        "acme/openai_chat",
        "acme/openai_chat/beta",
    ]
    assert changed.at_host("acme.example", "openai_chat") is changed.find("acme")
    assert changed.find("acme", "openai_chat", "beta").surface == "beta"
