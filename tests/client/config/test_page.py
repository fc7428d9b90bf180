"""docs/config.md and the schema match the structs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
from support.tables import each_row

from anaphora.client.config import (
    BreakerConfig,
    ClientConfig,
    Hop,
    Key,
    LimitsConfig,
    ModelPrice,
    NamedModel,
    PriceTier,
    ProviderConfig,
    Rate,
    RetryConfig,
    Timeouts,
    schema,
)
from anaphora.client.config.accounts import (
    AwsAccount,
    AzureAccount,
    CloudCredentials,
    GoogleAccount,
)
from anaphora.client.config.resolve import check, resolve

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "config.md").read_text()
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "providers.<id>": ProviderConfig,
    "key": Key,
    "credentials": CloudCredentials,
    "credentials.aws": AwsAccount,
    "credentials.google": GoogleAccount,
    "credentials.azure": AzureAccount,
    "timeouts": Timeouts,
    "retry": RetryConfig,
    "breaker": BreakerConfig,
    "limits": LimitsConfig,
    "models.<name>": NamedModel,
    "prices.<model>": ModelPrice,
    "prices.<model>.tiers[]": PriceTier,
    "routes.<name>": Hop,
}
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*) ?\|$", re.MULTILINE)
[EXAMPLE] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows(section: str) -> list[tuple[str, str]]:
    [body] = re.findall(rf"^##+ `{re.escape(section)}`\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    return [(name, default) for name, default, _ in ROW.findall(body)]


@each_row("section, kind", SECTIONS.items())
def test_every_field_is_documented(section: str, kind: type[msgspec.Struct]) -> None:
    assert [name for name, _ in rows(section)] == list(kind.__struct_fields__)


@each_row("section, kind", SECTIONS.items())
def test_documented_defaults_are_the_real_ones(section: str, kind: type[msgspec.Struct]) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, cell in rows(section):
        default = fields[name].default
        if isinstance(default, bool):
            assert cell == str(default).lower(), name
        elif isinstance(default, int | float):
            assert cell == f"{default:.16g}", name
        else:
            assert not cell[0].isdigit(), name
        assert (cell == "required") == fields[name].required


def test_every_table_is_documented() -> None:
    """A struct that becomes a field also gets a section."""
    kinds: list[type] = [*SECTIONS.values(), ClientConfig, Rate]
    assert set(schema()["$defs"]) == {kind.__name__ for kind in kinds}


def test_example_is_valid(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "AZURE_EU.txt").write_text("sk-3\n")
    environ = {"ANTHROPIC_API_KEY": "sk-1", "DEEPSEEK_API_KEY": "sk-2"}
    config = ClientConfig.from_text(EXAMPLE, str(tmp_path / "llm.yaml"))
    found = resolve(config, environ=environ)
    assert {one.id: (one.wire, one.base_url) for one in found.values()} == {
        "anthropic-default": ("anthropic", "https://api.anthropic.com"),
        "azure-eu": ("azure/openai_responses", "https://my-company.openai.azure.com"),
        "deepseek": ("deepseek/anthropic", "https://api.deepseek.com"),
        "llama": ("openai_chat", "http://localhost:8080"),
    }
    assert found["deepseek"].provider.timeouts == Timeouts(first_byte=300, total=900)
    assert not [
        notice for one in found.values() for notice in one.notices if notice.code != "key_exposed"
    ]


def test_local_example_needs_no_key() -> None:
    found = check(ClientConfig.read(DOCS / "examples" / "local.yaml"))
    assert all(one.provider.key is None and one.notices == () for one in found.values())


# ── The schema ───────────────────────────────────────────────────────────────────────────────────

VALID: list[dict[str, Any]] = [
    {},
    {"providers": {"a": {"wire": "anthropic", "key": {"env": "A"}, "temperature": 0.5}}},
    {"routes": {"r": [{"provider": "a", "weight": 1}]}},
]
INVALID: list[dict[str, Any]] = [
    {"provider": {}},
    {"providers": {"a": {"retries": {}}}},
    {"providers": {"a": {"retry": {"max_attempts": 0}}}},
    {"providers": {"a": {"timeouts": {"total": 0}}}},
    {"providers": {"a": {"temperature": 3}}},
    {"providers": {"a": {"key": {}}}},
    {"providers": {"a": {"key": {"env": "A", "secret": "B"}}}},
    {"providers": {"a": {"key": "sk-1"}}},
    {"providers": {"": {}}},
    {"routes": {"r": [{}]}},
]


def test_schema_accepts_valid_files_only() -> None:
    validator = jsonschema_rs.validator_for(schema())
    for data in VALID:
        assert validator.is_valid(data), data
        ClientConfig.from_mapping(data)
    for data in INVALID:
        assert not validator.is_valid(data), data


def test_examples_match_the_schema() -> None:
    import yaml

    validator = jsonschema_rs.validator_for(schema())
    for text in (EXAMPLE, (DOCS / "examples" / "local.yaml").read_text()):
        validator.validate(yaml.safe_load(text))


def test_schema_is_json() -> None:
    assert json.loads(msgspec.json.encode(schema()))["title"] == "llm.yaml"
