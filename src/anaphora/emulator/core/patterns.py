"""Names in files that may stand for several: `gpt-*`."""

from __future__ import annotations

from anaphora import catalog
from anaphora.yaml_values import YamlValue


def provider_pattern(value: YamlValue) -> str:
    """A provider, or a pattern of providers. A misspelt one would never be met."""
    pattern = value.text()
    known = dict.fromkeys(row.provider for row in catalog.dialects().rows)
    if not any(letter in pattern for letter in "*?[") and pattern not in known:
        value.wrong(f"{pattern!r} is none of the providers {', '.join(known)}")
    return pattern
