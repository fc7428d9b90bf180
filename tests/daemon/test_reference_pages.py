"""docs/extensions.md, and the daemon's section of docs/config.md, match the structs."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema_rs
import msgspec
import yaml
from support.tables import each_row

from anaphora.client.config import ClientConfig
from anaphora.daemon.home import LLM_YAML
from anaphora.daemon.home.config import DaemonConfig, TlsConfig, UiConfig, schema
from anaphora.daemon.home.extensions import AppTable, Grants, LlmTable
from anaphora.daemon.home.groups import AlertRules, GroupTable, Webhook

DOCS = Path(__file__).parents[2] / "docs"
EXTENSIONS = (DOCS / "extensions.md").read_text()
CONFIG = (DOCS / "config.md").read_text()
SECTIONS: list[tuple[str, str, type[msgspec.Struct]]] = [
    (EXTENSIONS, "<app>", AppTable),
    (EXTENSIONS, "<app>.llm", LlmTable),
    (EXTENSIONS, "groups.<name>", GroupTable),
    (EXTENSIONS, "alerts", AlertRules),
    (EXTENSIONS, "alerts.webhook", Webhook),
    (CONFIG, "daemon", DaemonConfig),
    (CONFIG, "daemon.ui", UiConfig),
    (CONFIG, "daemon.tls", TlsConfig),
]


@each_row("page, section, kind", SECTIONS, ids=[each[1] for each in SECTIONS])
def test_fields_and_defaults(page: str, section: str, kind: type[msgspec.Struct]) -> None:
    [body] = re.findall(rf"^##+ `{re.escape(section)}`\n(.*?)(?=^##|\Z)", page, re.M | re.S)
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", body, re.M))
    assert list(rows) == list(kind.__struct_fields__)
    for field in msgspec.structs.fields(kind):
        cell, default = rows[field.name], field.default
        assert (cell == "required") == field.required
        if isinstance(default, bool):
            assert cell == str(default).lower()
        elif isinstance(default, int | float):
            assert cell == f"{default:.16g}"
        elif isinstance(default, str):
            assert cell == f"`{default}`"


def test_the_examples_are_valid() -> None:
    config = ClientConfig.from_text(LLM_YAML)
    names: list[str] = []
    for example in re.findall(r"^```yaml\n(.*?)^```$", EXTENSIONS, re.M | re.S):
        grants = Grants.from_text(example, config=config)
        assert grants.warnings(set(grants.apps)) == ()
        names += grants.apps
    assert names == ["marketing", "reports", "papers", "patents"]


def test_the_schema_of_llm_yaml() -> None:
    validator = jsonschema_rs.validator_for(schema())
    assert validator.is_valid(yaml.safe_load(LLM_YAML))
    assert validator.is_valid({"daemon": {"port": 0, "tls": {"cert": "c", "key": "k"}}})
    for wrong in ({"prot": 1}, {"port": -1}, {"tls": {"cert": "c"}}, {"host": ""}):
        assert not validator.is_valid({"daemon": wrong}), wrong
