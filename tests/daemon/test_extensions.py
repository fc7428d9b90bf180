"""`extensions.yaml`: strict, and deny by default (SPEC D2, D11)."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.client.config import ClientConfig
from anaphora.daemon.access.grants import AppGrant, GroupLimits, LlmGrant
from anaphora.daemon.home import EXTENSIONS_YAML, LLM_YAML
from anaphora.daemon.home.extensions import AppTable, Grants, LlmTable
from anaphora.errors import InvalidConfig

MARKETING = """
marketing:
  requires: [llm_complete]
  capabilities_grant: [llm_complete, llm_stream]
  uids: [1000]
  llm:
    providers: [anthropic-default, main]
    models: ["claude-haiku-*", deepseek-v4-flash]
    max_tokens: 2048
    n: 1
    requests_per_minute: 60
    tokens_per_minute: 200000
    max_body_bytes: 1000000
    usd_per_day: 5.00
    usd_per_month: 60.00
    tools: [search_*]
    allow: [server_tools, betas: [files-api-2025-04-14], fields: [top_k]]
    approved_prompt: null
    place_markers: false
    share_cache: true
"""
CONFIG = ClientConfig.from_text(
    "providers: {anthropic-default: {wire: anthropic}}\n"
    "routes: {main: [{provider: anthropic-default}]}"
)


def llm(fields: str, capabilities: str = "llm_complete") -> LlmGrant:
    text = f"app: {{capabilities_grant: [{capabilities}], llm: {{{fields}}}}}"
    return Grants.from_text(text).apps["app"].llm


def refused(text: str, config: ClientConfig | None = None) -> str:
    with pytest.raises(InvalidConfig) as raised:
        Grants.from_text(text, "extensions.yaml", config)
    return str(raised.value)


def test_every_field() -> None:
    assert Grants.from_text(MARKETING, config=CONFIG).apps["marketing"] == AppGrant(
        app="marketing",
        capabilities=frozenset({"llm_complete", "llm_stream"}),
        requires=frozenset({"llm_complete"}),
        uids=frozenset({1000}),
        llm=LlmGrant(
            providers=("anthropic-default", "main"),
            models=("claude-haiku-*", "deepseek-v4-flash"),
            max_tokens=2048,
            n=1,
            requests_per_minute=60,
            tokens_per_minute=200_000,
            max_body_bytes=1_000_000,
            nano_usd_per_day=5_000_000_000,
            nano_usd_per_month=60_000_000_000,
            tools=("search_*",),
            permissions=frozenset({"server_tools"}),
            betas=frozenset({"files-api-2025-04-14"}),
            fields=frozenset({"top_k"}),
            place_markers=False,
            share_cache=True,
        ),
    )


def test_an_absent_field_grants_nothing() -> None:
    """D11"""
    assert Grants.from_text("").apps == {}
    assert Grants.from_text("app: {}").apps["app"] == AppGrant(app="app")
    granted = llm("usd_per_day: 1")
    assert (granted.providers, granted.models, granted.tools) == ((), (), ())
    assert granted.permissions | granted.betas | granted.fields == frozenset()


@each_row(
    "text, message",
    [
        ("a: {capability_grant: []}", "1: a: unknown field 'capability_grant'; did you mean"),
        ("a:\n  llm:\n    usd_per_week: 1", "3: a.llm: unknown field 'usd_per_week'; did you mean"),
        (
            "a: {capabilities_grant: [llm_complet]}",
            "1: a.capabilities_grant[0]: 'llm_complet' is none of llm_complete, llm_narrow,"
            " llm_stream",
        ),
        ("a: {requires: llm_complete}", "1: a.requires: expected a list, found a text"),
        ("a: [llm_complete]", "1: a: expected a mapping, found a list; write `capabilities_grant:"),
        ("a:\na: {}", "2: a is given twice"),
        ("'../x': {}", "an app's id has 1 to 64 letters"),
        ("a: {llm: {models: claude-*}}", "1: a.llm.models: expected a list, found a text"),
        ("a: {llm: {models: ['']}}", "1: a.llm.models[0]: expected a non-empty text"),
        ("a: {llm: {max_tokens: 0}}", "1: a.llm.max_tokens: expected a whole number >= 1, found 0"),
        ("a: {llm: {n: true}}", "1: a.llm.n: expected a whole number, found true or false"),
        ("a: {uids: [-1]}", "1: a.uids[0]: expected a whole number >= 0, found -1"),
        (
            "a: {llm: {allow: [anything]}}",
            "1: a.llm.allow: 'anything' is none of server_tools, remote_mcp,"
            " stored_responses, stored_prompts, service_tiers, embeddings, betas: [...], fields: [...]",
        ),
        ("a: {llm: {allow: [{beta: [x]}]}}", "a.llm.allow[0]: unknown field 'beta'; did you mean"),
        ("a: {llm: {share_cache: 1}}", "a.llm.share_cache: expected true or false, found a number"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str) -> None:
    """D11: as strictly as llm.yaml, with the line."""
    assert message in refused(text)


@pytest.mark.parametrize(
    "fields", ["", "usd_per_day: null", "usd_per_month: unlimited", "models: [x]"]
)
def test_llm_complete_needs_a_dollar_limit(fields: str) -> None:
    """D11"""
    message = refused(f"a:\n  capabilities_grant: [llm_complete]\n  llm: {{{fields}}}")
    assert message.startswith("extensions.yaml:3: a.llm: llm_complete needs a limit in dollars")
    llm(fields, capabilities="")


def test_unlimited_is_written_out() -> None:
    """D11"""
    assert not llm("usd_per_day: unlimited").has_spend_limit
    assert llm("usd_per_day: unlimited, usd_per_month: 60").nano_usd_per_month == 60 * 10**9
    assert llm("usd_per_month: 60").has_spend_limit


@given(st.decimals(0, 999_999_999, places=9, allow_nan=False))
def test_dollars_are_exact(amount: Decimal) -> None:
    assert llm(f"usd_per_day: {amount:f}").nano_usd_per_day == int(amount.scaleb(9))


@each_row(
    "amount, message",
    [
        ("-1", "in plain digits"),
        ("010", "in plain digits"),
        ("1:30", "in plain digits"),
        ("1_000", "in plain digits"),
        ("1.0e+3", "in plain digits"),
        (".inf", "has no JSON form"),
        ("0.0000000001", "nine decimals at most"),
        ("1000000000", "at most 999,999,999; or write unlimited"),
        ("'5.00'", "expected dollars in digits, such as 5.00, or unlimited, found '5.00'"),
        ("Unlimited", "found 'Unlimited'"),
        ("true", "expected a number or a text, found true or false"),
    ],
)
def test_amounts_that_are_not_dollars(amount: str, message: str) -> None:
    text = f"a:\n  capabilities_grant: [llm_complete]\n  llm:\n    usd_per_day: {amount}"
    assert refused(text).startswith("extensions.yaml:4: a.llm.usd_per_day: ")
    assert message in refused(text)


def test_merged_amounts() -> None:
    """Of several merged mappings the first decides, for the value and for its digits."""
    text = """
x: {llm: &x {usd_per_day: 1.10}}
y: {llm: &y {usd_per_day: 2.20}}
a: {llm: {<<: [*x, *y]}}
b: {llm: {<<: *x, usd_per_day: 3.30}}
"""
    apps = Grants.from_text(text).apps
    assert apps["a"].llm.nano_usd_per_day == 1_100_000_000
    assert apps["b"].llm.nano_usd_per_day == 3_300_000_000


def test_providers_exist_in_llm_yaml() -> None:
    message = refused(MARKETING.replace("main]", "anthropic-defualt]"), CONFIG)
    assert message == (
        "extensions.yaml:7: marketing.llm.providers[1]: llm.yaml has no provider or route"
        " 'anthropic-defualt'; did you mean anthropic-default?"
    )


def test_warnings() -> None:
    """D11: required and not granted; a grant without a token."""
    grants = Grants.from_text(
        "a: {requires: [llm_complete]}\n"
        "b: {capabilities_grant: [llm_complete], llm: {usd_per_day: 1}}\n"
        "c: {capabilities_grant: [llm_stream], llm: {models: [x]}}\n",
        "e.yaml",
    )
    assert grants.unmet == {"a": {"llm_complete"}}
    assert grants.warnings({"a", "c"}) == (
        "e.yaml:1: a: requires llm_complete, which it is not granted: all its calls are refused",
        "e.yaml:2: b: has no token; create one with: anaphora apps add b",
        "e.yaml:2: b: llm.providers is empty: no provider is granted",
        "e.yaml:2: b: llm.models is empty: no model is granted",
        "e.yaml:3: c: llm_stream is of no use without llm_complete",
        "e.yaml:3: c: has an llm section and no llm_complete in capabilities_grant",
    )


def test_the_first_version_of_a_home_is_valid() -> None:
    grants = Grants.from_text(EXTENSIONS_YAML, config=ClientConfig.from_text(LLM_YAML))
    assert grants.warnings({"my-app"}) == ()


def test_a_key_in_the_file_is_not_shown() -> None:
    key = "sk-canary-9aF3xLq8wZ"
    for text in (f"a: {key}", f"{key}: {{}}\n{key}: 1", f"a: {{llm: {{usd_per_day: {key}}}}}"):
        assert key not in refused(text)


# ── Groups ────────────────────────────────────────────────────────────────────────────────────────

GROUPED = """
groups:
  sales: {usd_per_day: 20.5, usd_per_month: unlimited}
  lab: {usd_per_month: 100}
  free: {usd_per_day: unlimited}
shop: {group: sales, capabilities_grant: [llm_complete], llm: {usd_per_day: unlimited}}
desk: {group: sales, capabilities_grant: [llm_complete], llm: {usd_per_day: 1}}
probe: {group: lab}
bench: {group: free}
alone: {capabilities_grant: [llm_complete], llm: {usd_per_day: unlimited}}
"""


def test_apps_have_the_limits_of_their_group() -> None:
    apps = Grants.from_text(GROUPED).apps
    sales = GroupLimits(nano_usd_per_day=20_500_000_000)
    assert apps["shop"].group_limits == apps["desk"].group_limits == sales
    assert apps["probe"].group_limits == GroupLimits(nano_usd_per_month=100_000_000_000)
    assert apps["alone"].group_limits is None
    limited = {app for app, grant in apps.items() if grant.llm.has_spend_limit}
    assert limited == {"shop", "desk", "probe"}


def test_without_the_section_groups_have_any_name_and_no_limit() -> None:
    app = Grants.from_text("app: {group: anything}").apps["app"]
    assert app == AppGrant(app="app", group="anything")


@each_row(
    "text, message",
    [
        (
            "groups: {sales: {usd_per_day: 1}}\na: {group: sales}\nb: {group: sale}",
            "3: b.group: `groups` has no 'sale'; did you mean sales?",
        ),
        ("a: {group: x}\ngroups: {}", "1: a.group: `groups` has no 'x'"),
        (
            "groups:\n  x: {usd_per_day: 1}\n  y: {usd_per_day: 1}\na: {group: x}",
            "3: groups.y: no app has `group: y`",
        ),
        ("groups: {x: {}}\na: {group: x}", "1: groups.x: a group needs a limit in dollars"),
        ("groups: {'../x': {usd_per_day: 1}}", "1: groups.../x: the name of a group has 1 to 64"),
        ("groups: {x: {usd_per_week: 1}}", "1: groups.x: unknown field 'usd_per_week'; did you"),
        ("groups: {x: {usd_per_day: much}}", "1: groups.x.usd_per_day: expected dollars in"),
        ("groups: {x: 5}", "1: groups.x: expected a mapping, found a number; write `NAME: {usd"),
        ("groups: [x]", "1: groups: expected a mapping, found a list"),
        (
            "a: {}\ngroups: {capabilities_grant: [llm_complete], llm: {usd_per_day: 1}}",
            "2: groups: is a section of this file and cannot be an app's id; rename the app, for"
            " example to groups-app, and create a token for the new id with: anaphora apps add"
            " groups-app",
        ),
    ],
)
def test_refused_groups(text: str, message: str) -> None:
    assert message in refused(text)


def test_a_group_may_have_the_name_of_a_field() -> None:
    text = "groups: {llm: {usd_per_day: 2}, requires: {usd_per_month: 3}}\na: {group: llm}\nb: {group: requires}"
    assert Grants.from_text(text).apps["a"].group_limits == GroupLimits(nano_usd_per_day=2 * 10**9)


# ── Alerts ────────────────────────────────────────────────────────────────────────────────────────

HOOK = "webhook: {url: 'https://x', key: {secret: K}}"


def test_alerts_without_levels_have_defaults() -> None:
    rules = Grants.from_text(f"alerts: {{{HOOK}}}\na: {{}}").alerts
    assert rules is not None
    assert (rules.limits, rules.budgets) == ((50, 80, 100), ())


@each_row(
    "text, message",
    [
        ("alerts: {}", "1: alerts: webhook is missing"),
        ("alerts: {to: {}}", "1: alerts: unknown field 'to'"),
        (
            "alerts: {webhook: {url: 'ftp://x', key: {secret: K}}}",
            "alerts.webhook.url: needs http:// or https://, and a host",
        ),
        (
            "alerts: {webhook: {url: 'https://x:port', key: {secret: K}}}",
            "alerts.webhook.url: needs http:// or https://, and a host",
        ),
        (
            "alerts: {webhook: {url: 'https://x:99999', key: {secret: K}}}",
            "alerts.webhook.url: needs http:// or https://, and a host",
        ),
        (
            "alerts: {webhook: {url: 'https://a..b', key: {secret: K}}}",
            "alerts.webhook.url: needs http:// or https://, and a host",
        ),
        (
            "alerts: {webhook: {url: 'https://x', key: {env: K}}}",
            "alerts.webhook.key: write `key: {secret: NAME}`",
        ),
        (f"alerts: {{limits: [101], {HOOK}}}", "alerts.limits[0]: expected a whole number <= 100"),
        (
            "alerts:\n  capabilities_grant: [llm_complete]",
            "1: alerts: is a section of this file and cannot be an app's id; rename the app, for",
        ),
    ],
)
def test_refused_alerts(text: str, message: str) -> None:
    assert message in refused(text)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "unlimited", "llm_complete", "server_tools"])
)
_NAMES = st.sampled_from(["betas", "fields", "llm", "models", "usd_per_day", "other"])
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3)
)
_FIELDS = st.sampled_from([*AppTable.__struct_fields__, *LlmTable.__struct_fields__])


@given(_FIELDS, _VALUES)
def test_any_value_of_a_field_is_read_or_refused(field: str, value: object) -> None:
    table: dict[str, object] = {"llm": {"usd_per_day": 1}, "capabilities_grant": ["llm_complete"]}
    if field in AppTable.__struct_fields__:
        table[field] = value
    else:
        table["llm"] = {"usd_per_day": 1, field: value}
    with contextlib.suppress(InvalidConfig):
        Grants.from_mapping({"app": table})
