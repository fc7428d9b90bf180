"""Resolving the providers of llm.yaml."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.catalog import Dialect
from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import check, resolve, resolve_each
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.errors import InvalidConfig, MissingSecret
from anaphora.prompt import Call, Params, PromptIR
from anaphora.values import Message

ENVIRON = {"KEY": "sk-1"}


def resolved(environ: dict[str, str] = ENVIRON, **fields: Any) -> ResolvedProvider:
    return resolve(ClientConfig.from_mapping({"providers": {"it": fields}}), environ=environ)["it"]


RESOLVED = [
    ({"wire": "anthropic"}, "anthropic", "https://api.anthropic.com", "x-api-key"),
    ({"wire": "openai_responses"}, "openai_responses", "https://api.openai.com", "authorization"),
    ({"dialect": "openai"}, "openai_chat", "https://api.openai.com", "authorization"),
    ({"dialect": "openai", "wire": "openai_responses"}, "openai_responses", "https://api.openai.com", "authorization"),
    ({"wire": "gemini"}, "gemini", "https://generativelanguage.googleapis.com", "x-goog-api-key"),
    ({"wire": "ollama"}, "ollama/openai_chat", "http://localhost:11434", "authorization"),
    ({"dialect": "ollama", "wire": "anthropic"}, "ollama/anthropic", "http://localhost:11434", "x-api-key"),
    ({"wire": "deepseek"}, "deepseek/openai_chat", "https://api.deepseek.com", "authorization"),
    ({"dialect": "deepseek", "wire": "anthropic"}, "deepseek/anthropic", "https://api.deepseek.com", "x-api-key"),
    ({"dialect": "deepseek/anthropic"}, "deepseek/anthropic", "https://api.deepseek.com", "x-api-key"),
    ({"dialect": "deepseek/anthropic", "wire": "anthropic"}, "deepseek/anthropic", "https://api.deepseek.com", "x-api-key"),
    ({"dialect": "azure/openai_responses", "account": {"resource": "mine"}}, "azure/openai_responses", "https://mine.openai.azure.com", "api-key"),
    ({"dialect": "bedrock", "region": "eu-west-1"}, "bedrock", "https://bedrock-runtime.eu-west-1.amazonaws.com", "authorization"),
    ({"dialect": "bedrock/openai_responses", "region": "eu-west-1"}, "bedrock/openai_responses", "https://bedrock-mantle.eu-west-1.api.aws", "authorization"),
    (
        {"dialect": "google/gemini/vertex", "region": "global", "account": {"project": "p-1"}},
        "google/gemini/vertex",
        "https://aiplatform.googleapis.com/v1/projects/p-1/locations/global/publishers/google",
        "authorization",
    ),
    ({"wire": "openai_chat", "base_url": "http://[::1]:8080/llm/"}, "openai_chat", "http://[::1]:8080/llm", "authorization"),
    ({"wire": "openai_chat", "base_url": "https://{host}.example/{region}", "region": "eu", "account": {"host": "h"}}, "openai_chat", "https://h.example/eu", "authorization"),
]  # fmt: skip


@each_row("fields, name, address, header", RESOLVED)
def test_wire_address_and_header(
    fields: dict[str, Any], name: str, address: str, header: str
) -> None:
    one = resolved(key={"env": "KEY"}, **fields)
    assert (one.id, one.wire, one.base_url, one.auth_header) == ("it", name, address, header)
    assert one.notices == ()
    assert wire.get(one.wire)
    if one.dialect is None:
        assert one.wire in wire.WIRES
    else:
        assert one.dialect == wire.dialect_of(one.wire)
    bearer = "Bearer " if header == "authorization" else ""
    assert one.headers() == {header: bearer + "sk-1"}


@each_row("row", catalog.dialects().rows, ids=lambda row: str(row.name))
def test_every_dialect_can_be_configured(row: Dialect) -> None:
    account = dict.fromkeys(("resource", "project", "account", "workspace"), "mine")
    one = resolved(dialect=row.name, region="eu", account=account)
    assert "{" not in one.base_url
    assert wire.provider_of(one.wire) == row.provider


@each_row("name", wire.WIRES)
def test_request_paths_match_the_wire(name: str) -> None:
    """Base URLs are checked against the paths that the wires really use."""
    provider = wire.PROVIDERS[name]
    call = Call(ir=PromptIR.chat([Message.user("Hello")]), model="m-1", params=Params(max_tokens=9))
    rendered = wire.get(name).render(call, catalog.profile(provider, "m-1"))
    request = wire.get(name).assemble(
        rendered, plan_once(rendered, catalog.rules(provider, "m-1"), reuse_expected=True)
    )
    assert request.path.startswith(catalog.dialects().find(provider, name).request_path)


def test_no_key_means_no_key_header() -> None:
    one = resolved({}, wire="openai_chat", base_url="http://localhost:8080")
    assert one.secret is None
    assert one.headers() == {}


def test_headers_are_in_lower_case() -> None:
    one = resolved(wire="anthropic", headers={"X-Team": "search"}, key={"env": "KEY"})
    assert one.headers() == {"x-team": "search", "x-api-key": "sk-1"}


# ── Invalid values ──────────────────────────────────────────────────────────────────────────────

UNFIT = [
    # wires
    ("model: m", 3, "name a `wire` or a `dialect`"),
    ("wire: antropic", 4, "wire: no wire 'antropic'; did you mean anthropic?"),
    ("wire: carrier-pigeon", 4, "wire: no wire 'carrier-pigeon'; `anaphora models PROVIDER` lists"),
    ("dialect: depseek", 4, "dialect: no dialect 'depseek'; did you mean deepseek?"),
    ("dialect: deepseek/gemini", 4, "dialect: deepseek does not support 'gemini', only"),
    ("dialect: google/gemini/moon", 4, "dialect: google has no surface 'moon'"),
    ("dialect: deepseek\n    wire: gemini", 5, "wire: deepseek does not support 'gemini', only"),
    ("dialect: minimax/anthropic\n    wire: openai_chat", 5, "wire: minimax/anthropic is a dialect of anthropic, not"),
    ("dialect: minimax\n    wire: deepseek", 5, "wire: deepseek is a dialect; leave"),
    ("dialect: minimax\n    wire: antropic", 5, "wire: no wire 'antropic'; did you mean anthropic?"),
    # addresses
    ("wire: ollama\n    base_url: localhost:11434", 5, "base_url: does not begin with"),
    ("wire: ollama\n    base_url: ftp://host", 5, "base_url: does not begin with"),
    ("wire: ollama\n    base_url: 'https://'", 5, "base_url: has no valid host"),
    ("wire: ollama\n    base_url: https://host:99999", 5, "base_url: is not a URL"),
    ("wire: ollama\n    base_url: https://host:0", 5, "base_url: has no valid host"),
    ("wire: ollama\n    base_url: 'https://[::1'", 5, "base_url: is not a URL"),
    ("wire: ollama\n    base_url: 'https://a\\b.example'", 5, "base_url: has no valid host"),
    ("wire: ollama\n    base_url: https://me:canary@host", 5, "base_url: contains a user"),
    ("wire: ollama\n    base_url: https://host/?key=canary", 5, "base_url: ends with a query"),
    ("wire: ollama\n    base_url: 'https://host/#x'", 5, "base_url: ends with a query"),
    ("wire: ollama\n    base_url: 'https://ho st'", 5, "base_url: is not a URL"),
    ("wire: ollama\n    base_url: 'https://hö.example'", 5, "base_url: is not a URL"),
    ("wire: ollama\n    base_url: 'https://host/{a-b}'", 5, "base_url: has braces"),
    ("wire: openai_chat\n    base_url: https://host/v1/", 5, "base_url: ends with /v1, which request paths begin with"),
    ("wire: openai_chat\n    base_url: https://host/x/v1/chat/completions", 5, "base_url: ends with /v1/chat/completions"),
    ("dialect: groq\n    base_url: https://host/openai/v1", 5, "base_url: ends with /openai/v1"),
    ("dialect: azure", 3, "the URL contains {resource}; set it with `account: {resource: …}`"),
    ("dialect: azure\n    account: {resorce: a}", 3, "the URL contains {resource}; set it with `account: {resource: …}` (is resorce a misspelling?)"),
    ("dialect: bedrock", 3, "the URL contains {region}; set it with `region`"),
    ("dialect: azure\n    account:\n      resource: evil.example/#", 6, "account.resource: is part of the URL"),
    ("dialect: bedrock\n    region: ''", 5, "region: is part of the URL"),
    ("wire: ollama\n    proxy: proxy:3128", 5, "proxy: does not begin with"),
    ("wire: ollama\n    proxy: http://me:canary@proxy/path", 5, "proxy: must be only a proxy's address"),
    ("wire: ollama\n    ca: nowhere.pem", 5, "ca: there is no file"),
    # headers
    ("wire: ollama\n    headers:\n      'X Y': z", 6, "headers.X Y: is not a valid header name"),
    ("wire: ollama\n    headers:\n      X: \"canary\\nY: z\"", 6, "headers.X: has an invalid character"),
    ("wire: ollama\n    headers:\n      X: ' canary'", 6, "headers.X: has an invalid character"),
    ("wire: ollama\n    headers:\n      X: canary→", 6, "headers.X: has an invalid character"),
    ("wire: ollama\n    headers:\n      Authorization: Bearer canary", 6, "headers.Authorization: is the header of the key"),
    ("wire: anthropic\n    headers:\n      X-API-Key: canary", 6, "headers.X-API-Key: is the header of the key"),
    ("wire: ollama\n    headers:\n      Content-Length: '3'", 6, "headers.Content-Length: is set by the transport"),
    ("wire: ollama\n    headers:\n      X: a\n      x: b", 7, "headers.x: is given twice"),
    # models
    ("wire: ollama\n    model: llama3\n    known_models: [llama3.2]", 5, "model: 'llama3' is not among the known_models of it; did you mean llama3.2?"),
    ("wire: ollama\n    known_models: [a]\n    limits:\n      models:\n        b: {}", 8, "limits.models.b: 'b' is not among the known_models of it: a"),
]  # fmt: skip


@each_row("fields, line, reason", UNFIT)
def test_invalid_providers_name_the_line(fields: str, line: int, reason: str) -> None:
    config = ClientConfig.from_text(f"# ours\nproviders:\n  it:\n    {fields}\n", "llm.yaml")
    with pytest.raises(InvalidConfig) as raised:
        resolve(config, environ={})
    place = f"llm.yaml:{line}: providers.it"
    message = str(raised.value)
    assert message.startswith((f"{place}.{reason}", f"{place}: {reason}"))
    assert (raised.value.file, raised.value.line) == ("llm.yaml", line)
    assert "canary" not in message


ROUTES = [
    ("[]", 5, "routes.r: is empty"),
    ("\n  - {provider: A}", 6, "routes.r[0].provider: no provider 'A'"),
    ("\n  - {provider: alpha}\n  - {provider: alpa}", 7, "routes.r[1].provider: no provider 'alpa'; did you mean alpha?"),
    ("\n  - {provider: beta, model: m1}\n  - {provider: beta, model: m3}", 7, "routes.r[1].model: 'm3' is not among the known_models of beta"),
    ("[{provider: alpha}]\n  beta: [{provider: alpha}]", 6, "routes.beta: is also the id of a provider"),
]  # fmt: skip


@each_row("hops, line, reason", ROUTES)
def test_routes_must_name_known_providers(hops: str, line: int, reason: str) -> None:
    text = (
        "providers:\n  alpha: {wire: ollama}\n  beta: {wire: gemini, known_models: [m1, m2]}\n"
        f"routes:\n  r: {hops}\n"
    )
    with pytest.raises(InvalidConfig) as raised:
        resolve(ClientConfig.from_text(text, "llm.yaml"), environ={})
    assert str(raised.value).startswith(f"llm.yaml:{line}: {reason}")


def test_configuration_without_providers_is_rejected() -> None:
    with pytest.raises(InvalidConfig, match=r"^llm\.yaml: there are no providers$"):
        resolve(ClientConfig.from_text("", "llm.yaml"), "llm.yaml")
    with pytest.raises(InvalidConfig, match=r"^empty\.yaml: there are no providers$"):
        resolve(ClientConfig.from_text("# nothing yet", "empty.yaml"))
    with pytest.raises(InvalidConfig, match=r"^there are no providers$"):
        resolve(ClientConfig())


# ── Notices ──────────────────────────────────────────────────────────────────────────────────────


def codes(**fields: Any) -> list[tuple[str, str]]:
    return [(notice.code, notice.path) for notice in resolved(**fields).notices]


def test_unused_placeholder_values_give_a_notice() -> None:
    """An emulator's address takes no region; that is no reason to take the region out."""
    here = "http://127.0.0.1:8787/azure"
    found = codes(dialect="azure", base_url=here, account={"resource": "mine"}, region="eu")
    assert found == [
        ("fills_nothing", "providers.it.account.resource"),
        ("fills_nothing", "providers.it.region"),
    ]


@each_row(
    "address, expect_notice",
    [
        ("http://example.com", True),
        ("http://8.8.8.8", True),
        ("https://example.com", False),
        ("http://localhost:1", False),
        ("http://127.0.0.1:1", False),
        ("http://[::1]:1", False),
        ("http://10.0.0.7", False),
        ("http://vllm:8000", False),
    ],
)
def test_key_without_encryption_gives_a_notice(address: str, expect_notice: bool) -> None:
    found = codes(wire="openai_chat", base_url=address, key={"env": "KEY"})
    assert found == ([("key_in_clear", "providers.it.key")] if expect_notice else [])
    assert codes(wire="openai_chat", base_url=address) == []


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def test_relative_paths_start_at_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "MINE.txt").write_text("sk-2\n")
    (tmp_path / "ours.pem").write_text("")
    file = tmp_path / "llm.yaml"
    file.write_text("providers: {a: {wire: anthropic, key: {secret: MINE}, ca: ours.pem}}")
    for one in (
        resolve(ClientConfig.read(file))["a"],
        resolve(ClientConfig.from_text(file.read_text()), file)["a"],
    ):
        assert one.secret is not None
        assert one.secret.reveal() == "sk-2"
        assert one.provider.ca == str(tmp_path / "ours.pem")


def test_environment_defaults_to_os_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS_AND_NOBODYS", "sk-3")
    config = ClientConfig.from_mapping(
        {"providers": {"a": {"wire": "gemini", "key": {"env": "OURS_AND_NOBODYS"}}}}
    )
    assert resolve(config)["a"].headers() == {"x-goog-api-key": "sk-3"}
    with pytest.raises(MissingSecret):
        resolve(config, environ={})


def test_missing_key_error_names_the_line() -> None:
    text = "providers:\n  a: {wire: ollama}\n  b:\n    wire: anthropic\n    key:\n      env: MINE\n"
    config = ClientConfig.from_text(text, "conf/llm.yaml")
    with pytest.raises(MissingSecret) as raised:
        resolve(config, environ={})
    assert str(raised.value) == (
        "conf/llm.yaml:5: providers.b.key: the environment variable $MINE is not set"
    )
    found = [(one.id, missing is None) for one, missing in resolve_each(config, environ={})]
    assert found == [("a", True), ("b", False)]
    assert set(check(config)) == {"a", "b"}, "that needs no keys"


def test_invalid_file_is_reported_before_missing_keys() -> None:
    text = "providers:\n  a: {wire: anthropic, key: {env: MINE}}\n  b: {wire: nobodys}\n"
    with pytest.raises(InvalidConfig, match="no wire 'nobodys'"):
        resolve(ClientConfig.from_text(text), environ={})


def test_only_the_configuration_reads_the_environment() -> None:
    client = Path(inspect.getfile(ResolvedProvider)).parents[1]
    readers = {
        str(file.relative_to(client))
        for file in client.rglob("*.py")
        if re.search(r"os\.(environ|getenv)", file.read_text())
    }
    assert readers == {"config/environment.py", "config/folders.py", "config/secrets.py"}
