"""Every field of llm.yaml and extensions.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from anaphora.client import config
from anaphora.client.config import accounts
from anaphora.daemon.home import config as daemon
from anaphora.daemon.home import extensions, groups
from anaphora.daemon.home.config import schema

from .markdown import page
from .schemas import fields_table

INTRO = """\
Fields, types and defaults of the two configuration files: `llm.yaml`, which library, commands
and daemon read, and `extensions.yaml`, the grants of the daemon's apps."""

LLM_YAML = """\
[Keys and configuration](../config.md) explains each field with examples. `anaphora config schema`
prints the same as JSON Schema, for editors."""

EXTENSIONS = """\
The file maps names of apps to their tables; `groups` and `alerts` are sections of their own.
[Grants of apps](../extensions.md) explains each field with examples."""


#: The pages that explain fields, and the sections of structs there.
DOCS = Path(__file__).resolve().parents[2] / "docs"
_SECTIONS = {
    "config.md": {
        "ProviderConfig": "providers.<id>",
        "Key": "key",
        "CloudCredentials": "credentials",
        "AwsAccount": "credentials.aws",
        "GoogleAccount": "credentials.google",
        "AzureAccount": "credentials.azure",
        "Timeouts": "timeouts",
        "RetryConfig": "retry",
        "BreakerConfig": "breaker",
        "LimitsConfig": "limits",
        "NamedModel": "models.<name>",
        "ModelPrice": "prices.<model>",
        "PriceTier": "prices.<model>.tiers[]",
        "Hop": "routes.<name>",
        "DaemonConfig": "daemon",
        "UiConfig": "daemon.ui",
        "TlsConfig": "daemon.tls",
    },
    "extensions.md": {
        "AppTable": "<app>",
        "LlmTable": "<app>.llm",
        "GroupTable": "groups.<name>",
        "AlertRules": "alerts",
        "Webhook": "alerts.webhook",
    },
}
_ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]*?) ?\|$", re.MULTILINE)


def pages() -> dict[str, str]:
    return {"configuration.md": page("Configuration", INTRO, _lines())}


def _lines() -> Iterator[str]:
    yield from ("## llm.yaml", "", LLM_YAML, "")
    yield from _structs("config.md", schema()["$defs"], _all_structs(config, accounts, daemon))
    yield from ("## extensions.yaml", "", EXTENSIONS, "")
    kinds = [extensions.AppTable, groups.GroupTable, groups.AlertRules]
    _, found = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    yield from _structs("extensions.md", found, _all_structs(extensions, groups))


def _all_structs(*modules: Any) -> dict[str, type[msgspec.Struct]]:
    """The structs of modules by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }


def _structs(
    document: str, definitions: dict[str, Any], kinds: dict[str, type[msgspec.Struct]]
) -> Iterator[str]:
    links = {name: name.lower() for name in definitions if name in kinds}
    text = (DOCS / document).read_text()
    for name, definition in definitions.items():
        section = _SECTIONS[document].get(name, "")
        yield f"### {name}"
        yield ""
        if section:
            slug = re.sub(r"[^\w-]", "", section)
            yield f"[`{section}`](../{document}#{slug})"
            yield ""
        told = _told(document, text, section) if section else {}
        yield from fields_table(kinds[name], definition, links, told)


def _told(document: str, text: str, section: str) -> dict[str, str]:
    """What a page says about the fields of a section, with links that lead from here."""
    [body] = re.findall(rf"^##+ `{re.escape(section)}`\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    told = {name: what for name, what in _ROW.findall(body) if what}
    return {
        name: re.sub(r"\]\((?!https?:)(?!#)", "](../", what).replace("](#", f"](../{document}#")
        for name, what in told.items()
    }
