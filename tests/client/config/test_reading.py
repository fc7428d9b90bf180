"""Reading llm.yaml, and its error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.client.config import (
    BreakerConfig,
    ClientConfig,
    Hop,
    Key,
    LimitsConfig,
    ModelPrice,
    PriceTier,
    ProviderConfig,
    Rate,
    RetryConfig,
    Timeouts,
)
from anaphora.errors import InvalidConfig, Io

WHOLE = """
providers:
  claude:
    wire: anthropic
    base_url: https://example.com
    key: {env: CLAUDE_KEY}
    headers: {X-Team: search}
    model: claude-sonnet-4-5
    known_models: [claude-sonnet-4-5, claude-opus-4-8]
    max_tokens: 4096
    temperature: 0
    timeouts: {connect: 1, first_byte: 2, idle: 3, total: 4.5}
    retry: {max_attempts: 1, first_wait: 0.1, longest_wait: 2}
    breaker: {failures: 2, within: 10, open_for: 5, probes: 3}
    limits:
      requests_per_minute: 50
      models:
        claude-opus-4-8: {tokens_per_minute: 10_000, concurrency: 2}
    prices:
      claude-opus-4-8: {input: 4.5, output: 20, tiers: [{above: 200_000, input: 9, output: 40}]}
    proxy: http://proxy:3128
    ca: certificates.pem
    max_response_bytes: 1000
  google:
    dialect: google/gemini/vertex
    region: europe-west1
    account: {project: mine}
    key: {secret: VERTEX}
routes:
  main:
    - {provider: claude, weight: 2}
    - {provider: google, model: gemini-2.5-flash}
"""


def test_every_field_is_read() -> None:
    assert ClientConfig.from_text(WHOLE) == ClientConfig(
        providers={
            "claude": ProviderConfig(
                wire="anthropic",
                base_url="https://example.com",
                key=Key(env="CLAUDE_KEY"),
                headers={"X-Team": "search"},
                model="claude-sonnet-4-5",
                known_models=("claude-sonnet-4-5", "claude-opus-4-8"),
                max_tokens=4096,
                temperature=0.0,
                timeouts=Timeouts(connect=1, first_byte=2, idle=3, total=4.5),
                retry=RetryConfig(max_attempts=1, first_wait=0.1, longest_wait=2),
                breaker=BreakerConfig(failures=2, within=10, open_for=5, probes=3),
                limits=LimitsConfig(
                    requests_per_minute=50,
                    models={"claude-opus-4-8": Rate(tokens_per_minute=10_000, concurrency=2)},
                ),
                prices={
                    "claude-opus-4-8": ModelPrice(
                        input=4.5,
                        output=20.0,
                        tiers=(PriceTier(above=200_000, input=9.0, output=40.0),),
                    )
                },
                proxy="http://proxy:3128",
                ca="certificates.pem",
                max_response_bytes=1000,
            ),
            "google": ProviderConfig(
                dialect="google/gemini/vertex",
                region="europe-west1",
                account={"project": "mine"},
                key=Key(secret="VERTEX"),
            ),
        },
        routes={
            "main": (
                Hop(provider="claude", weight=2),
                Hop(provider="google", model="gemini-2.5-flash"),
            )
        },
    )


def test_numbers_are_converted_to_the_fields_type() -> None:
    config = ClientConfig.from_text("providers: {a: {max_tokens: 64, timeouts: {total: 5}}}")
    assert type(config.providers["a"].max_tokens) is int
    assert type(config.providers["a"].timeouts.total) is float


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "providers: {}\n"])
def test_empty_file_is_an_empty_configuration(text: str) -> None:
    assert ClientConfig.from_text(text) == ClientConfig()


def test_anchors_and_merges() -> None:
    config = ClientConfig.from_text(
        """
        providers:
          a: &base
            wire: anthropic
            retry: &often {max_attempts: 7}
          b: {<<: *base, wire: ollama}
          c: {wire: gemini, retry: {<<: [*often, {max_attempts: 9, first_wait: 2}]}}
        """
    )
    assert config.providers["b"] == ProviderConfig(wire="ollama", retry=RetryConfig(max_attempts=7))
    assert config.providers["c"].retry == RetryConfig(max_attempts=7, first_wait=2)


WRONG = [
    # unknown, doubled, missing
    ("provider: {}\n", 1, "unknown field 'provider'; did you mean providers? there are providers, routes"),
    ("providers:\n  a:\n    retries: {}\n", 3, "providers.a: unknown field 'retries'; did you mean retry?"),
    ("providers:\n  a:\n    retry:\n      max_attempt: 2\n", 4, "providers.a.retry: unknown field 'max_attempt'; did you mean max_attempts?"),
    ("providers:\n  a:\n    limits:\n      models:\n        m: {rpm: 3}\n", 5, "providers.a.limits.models.m: unknown field 'rpm'; there are requests_per_minute"),
    ("providers:\n  a:\n    wire: x\n    wire: y\n", 4, "providers.a: wire is given twice"),
    ("providers:\n  a: {}\n  b: {}\n  a: {}\n", 4, "providers: a is given twice"),
    ("routes:\n  r:\n  - provider: a\n  - model: m\n", 4, "routes.r[1]: provider is missing"),
    # the wrong kind
    ("providers:\n- a\n", 1, "providers: expected a mapping, found a list"),
    ("[]\n", 1, "expected a mapping, found a list"),
    ("providers:\n  a:\n    wire: ollama\nroutes:\n  main: [a]\n", 5, "routes.main[0]: expected a mapping, found a text; write `{provider: ID}`"),
    ("providers:\n  a:\n    wire: ollama\n    retry: 3\n", 4, "providers.a.retry: expected a mapping, found a number; write `retry: {max_attempts: 3}`"),
    ("providers:\n  a:\n", 2, "providers.a: expected a mapping, found nothing; leave it out, or give it a value"),
    ("providers:\n  a:\n    model: 4\n", 3, "providers.a.model: expected a text, found a number; put it in quotes"),
    ("providers:\n  a:\n    region: no\n", 3, "providers.a.region: expected a text, found true or false; put it in quotes"),
    ("providers:\n  a:\n    account:\n      since: 2026-01-01\n", 4, "providers.a.account.since: a date is not a JSON value; put it in quotes"),
    ("providers:\n  on: {}\n", 2, "providers: the name on is not a text; put it in quotes"),
    ("providers:\n  a:\n    known_models: m\n", 3, "providers.a.known_models: expected a list, found a text"),
    ("providers:\n  a:\n    known_models:\n    - m\n    - ''\n", 5, "providers.a.known_models[1]: expected a non-empty text"),
    ("providers:\n  a:\n    max_tokens: true\n", 3, "providers.a.max_tokens: expected a whole number, found true or false"),
    ("providers:\n  a:\n    timeouts: {total: 1e3}\n", 3, "providers.a.timeouts.total: expected a number, found a text; write it in digits, without quotes"),
    ("providers:\n  a: !secret x\n", 2, "not YAML: could not determine a constructor for the tag '!secret'"),
    # the wrong value
    ("providers:\n  a:\n    max_tokens: 0\n", 3, "providers.a.max_tokens: expected a whole number >= 1, found 0"),
    ("providers:\n  a:\n    max_tokens: 1.5\n", 3, "providers.a.max_tokens: expected a whole number, found 1.5"),
    ("providers:\n  a:\n    temperature: 2.1\n", 3, "providers.a.temperature: expected a number <= 2, found 2.1"),
    ("providers:\n  a:\n    retry: {first_wait: 0}\n", 3, "providers.a.retry.first_wait: expected a number > 0, found 0"),
    ("providers:\n  a:\n    timeouts:\n      idle: .inf\n", 4, "providers.a.timeouts.idle: inf has no JSON form"),
    ("providers:\n  a:\n    max_tokens: 0x_\n", 3, "providers.a.max_tokens: looks like int"),
    ("providers:\n  a:\n    max_tokens: !!int ''\n", 3, "providers.a.max_tokens: looks like int"),
    pytest.param("providers:\n  a:\n    max_tokens: -0x" + "f" * 9000, 3, "providers.a.max_tokens: the number is too large", id="huge"),
    ("providers:\n  a:\n    wire: ''\n", 3, "providers.a.wire: expected a non-empty text"),
    ("providers:\n  '': {}\n", 1, "providers: expected a non-empty text as a key"),
    ('providers:\n  a:\n    wire: "\\ud800"\n', 3, "providers.a.wire: lone surrogate U+D800"),
    # prices
    ("providers:\n  a:\n    prices:\n      m: {input: 1}\n", 4, "providers.a.prices.m: output is missing"),
    ("providers:\n  a:\n    prices:\n      m: {input: -1, output: 2}\n", 4, "providers.a.prices.m.input: expected a number >= 0"),
    ("providers:\n  a:\n    prices:\n      m: {input: .inf, output: 2}\n", 4, "providers.a.prices.m.input: inf has no JSON form"),
    ("providers:\n  a:\n    prices:\n      m: {input: cheap, output: 2}\n", 4, "providers.a.prices.m.input: expected a number, found a text"),
    ("providers:\n  a:\n    prices:\n      m: {input: 1, output: 2, tiers: [{above: 9, input: 1, output: 1}, {above: 9, input: 1, output: 1}]}\n", 4, "providers.a.prices.m: tiers must be listed once each, lowest first"),
    # keys
    ("providers:\n  a:\n    key:\n      {}\n", 3, "providers.a.key: name either `env` or `secret`"),
    ("providers:\n  a:\n    key: {env: A, secret: B}\n", 3, "providers.a.key: name either `env` or `secret`"),
    ("providers:\n  a:\n    key: {secret: ../A}\n", 3, "providers.a.key: secret is the plain name"),
    ("providers:\n  a:\n    key: {secret: .A}\n", 3, "providers.a.key: secret is the plain name"),
    ("providers:\n  a:\n    key: {secret: 'a\\b'}\n", 3, "providers.a.key: secret is the plain name"),
    ("providers:\n  a:\n    key: {env: 'A B'}\n", 3, "providers.a.key: env is the name of an environment variable"),
    # no YAML
    ("providers: {a\n", 2, "not YAML: the file ends inside of a list, a mapping or a quoted text"),
    ("providers: {a b: [}\n", 1, "not YAML: expected the node content, but found '}'"),
    ("providers: 'a\n", 2, "not YAML: the file ends inside of a quoted text"),
    ("providers:\n  a: {}\n b: {}\n", 3, "not YAML: the indentation does not fit the lines above"),
    ("providers:\n  a: b: c\n", 2, "not YAML: a colon in a value; quote the value"),
    ("providers:\n  a: {}\n  b\n  c: {}\n", 4, "not YAML: a key without a colon"),
    ("providers:\n  a:\n\t\twire: anthropic\n", 3, "not YAML: a tab; YAML is indented with spaces"),
    ("providers: *missing\n", 1, "not YAML: found undefined alias"),
    ("providers: {}\n---\nproviders: {}\n", 2, "not YAML: a second document begins here"),
    ("providers:\n  a: \0\n", 2, "not YAML: special characters"),
    ("providers: &a {<<: *a}\n", 1, "providers: a value that contains itself"),
]  # fmt: skip


@each_row("text, line, reason", WRONG)
def test_errors_name_the_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClientConfig.from_text(text, "llm.yaml")
    assert (raised.value.file, raised.value.line) == ("llm.yaml", line)
    assert str(raised.value).startswith(f"llm.yaml:{line}: {reason}")


def test_deep_nesting_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        ClientConfig.from_text("[" * 1_000_000)


@each_row(
    "text",
    [
        "providers: {a: {key: sk-canary}}",
        "providers: {a: {key: {env: sk-canary}}}",
        "providers: {a: {key: {secret: 'sk-canary!'}}}",
        "providers: {a: {key: {env: A, secret: sk-canary}}}",
        "providers: {a: {headers: sk-canary}}",
        "providers: {a: {max_tokens: sk-canary}}",
        "providers: {a: {key: {env: [sk-canary]}}}",
        "providers: {a: {key: 'sk-canary",
    ],
)
def test_misplaced_keys_are_not_shown(text: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClientConfig.from_text(text)
    assert "canary" not in str(raised.value)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def test_config_keeps_its_file_and_lines(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text("providers:\n  a:\n    wire: anthropic\n    key: {env: A}\n")
    config = ClientConfig.read(file)
    assert config.origin.file == str(file)
    assert config.origin.line("providers", "a", "key") == 4
    assert config.origin.line("providers", "a", "model") == 2, (
        "a missing key has the line of its table"
    )
    assert config == ClientConfig.from_mapping(
        {"providers": {"a": {"wire": "anthropic", "key": {"env": "A"}}}}
    )


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_bytes(b"\xef\xbb\xbfproviders: {a: {wire: ollama}}")
    assert ClientConfig.read(file).providers == {"a": ProviderConfig(wire="ollama")}


def test_invalid_utf8_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_bytes(b"providers:\n  a: {model: \xe9}\n")
    with pytest.raises(InvalidConfig, match="not UTF-8") as raised:
        ClientConfig.read(file)
    assert (raised.value.file, raised.value.line) == (str(file), 2)


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    for missing in (tmp_path / "llm.yaml", tmp_path):
        with pytest.raises(Io, match=r"cannot be read: (No such file|Is a directory)"):
            ClientConfig.read(missing)


def test_too_long_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_bytes(b"#" * (5 * 1024 * 1024))
    with pytest.raises(InvalidConfig, match="longer than"):
        ClientConfig.read(file)


# ── Without a file ───────────────────────────────────────────────────────────────────────────────


def test_mapping_is_checked_like_a_file() -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClientConfig.from_mapping({"providers": {"a": {"retry": {"max_attempts": "3"}}}})
    assert str(raised.value) == (
        "providers.a.retry.max_attempts: expected a whole number, found a text;"
        " write it in digits, without quotes"
    )
    assert (raised.value.file, raised.value.line) == ("", None)
    with pytest.raises(InvalidConfig, match="wire: object is not a JSON value"):
        ClientConfig.from_mapping({"providers": {"a": {"wire": object()}}})


def test_recursive_mapping_is_rejected() -> None:
    endless: dict[str, Any] = {}
    endless["providers"] = {"a": {"account": endless}}
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        ClientConfig.from_mapping(endless)


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────

FIELDS = sorted(
    {
        *ClientConfig.__struct_fields__,
        *ProviderConfig.__struct_fields__,
        *Key.__struct_fields__,
        *Timeouts.__struct_fields__,
        *RetryConfig.__struct_fields__,
        *LimitsConfig.__struct_fields__,
        *Hop.__struct_fields__,
        "x",
    }
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 4), st.floats(-1, 3), st.sampled_from(["", "a", "7"])
)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
    ),
    max_leaves=12,
)


def table(kind: type[msgspec.Struct], **tables: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nearly right: its own fields, mostly with what belongs there."""
    names = st.lists(st.sampled_from(kind.__struct_fields__), unique=True, max_size=3)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: tables.get(name, leaves) for name in chosen})
    )


providers = table(
    ProviderConfig,
    key=table(Key),
    timeouts=table(Timeouts),
    retry=table(RetryConfig),
    limits=table(LimitsConfig, models=st.dictionaries(st.just("m"), table(Rate))),
    headers=st.dictionaries(st.just("h"), leaves),
    known_models=st.lists(leaves, max_size=2),
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "providers": st.dictionaries(st.sampled_from(["a", ""]), providers, max_size=2),
        "routes": st.dictionaries(st.just("r"), st.lists(table(Hop), max_size=2)),
    },
)


@given(configs | st.dictionaries(st.sampled_from(FIELDS), anything, max_size=2))
def test_accepts_the_values_msgspec_accepts(data: dict[str, Any]) -> None:
    """Our reader accepts the values that msgspec accepts for the same types."""
    try:
        expected = msgspec.convert(data, ClientConfig)
    except msgspec.ValidationError:
        with pytest.raises(InvalidConfig):
            ClientConfig.from_mapping(data)
    else:
        assert ClientConfig.from_mapping(data) == expected
        again = msgspec.to_builtins(expected)
        assert ClientConfig.from_mapping(again) == expected


@given(st.text(st.sampled_from("ab:{}[]-&*<> \n\"'!|>#%@`?,0.1\t\0\ud800é"), max_size=40))
def test_any_text_is_read_or_rejected(text: str) -> None:
    problem = refused(text)
    if problem is not None:
        assert problem.file == "llm.yaml"
        assert problem.line is None or 1 <= problem.line <= text.count("\n") + 2


def refused(text: str) -> InvalidConfig | None:
    try:
        ClientConfig.from_text(text, "llm.yaml")
    except InvalidConfig as problem:
        return problem
    return None


def test_aliases_of_aliases_are_bounded() -> None:
    levels = "\n".join(
        f"x{level}: &x{level} [*x{level - 1}, *x{level - 1}]" for level in range(1, 40)
    )
    with pytest.raises(InvalidConfig, match="more than 100,000 values"):
        ClientConfig.from_text(f"x0: &x0 [1]\n{levels}\n")


def test_value_that_its_tag_cannot_read_is_named() -> None:
    with pytest.raises(InvalidConfig, match="looks like timestamp") as raised:
        ClientConfig.from_text("providers:\n  a:\n    wire: anthropic\n    model: !!timestamp x\n")
    assert raised.value.line == 4
