"""Cache rules for tests whose prompts are a few words long."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora import catalog
from anaphora.catalog import CacheRules


def without_minimum(provider: str, model: str) -> CacheRules:
    """The provider's rules, but any prefix is long enough to be cached."""
    rules = catalog.rules(provider, model)
    return replace(rules, minimum_tokens=replace(rules.minimum_tokens, value=0))
