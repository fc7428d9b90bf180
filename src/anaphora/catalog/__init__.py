"""What models are and how their caches behave, as dated data with sources.

    catalog.profile("anthropic", "claude-opus-5-5").mid_conversation_system.value
    catalog.rules("anthropic", "claude-opus-5-5").minimum_tokens.value
    catalog.rules("minimax", "MiniMax-M2.7", wire="anthropic").slots.value

    catalog.price("anthropic", "claude-opus-5-5", when).of(usage)

The rows are TOML files beside this module; a question about a provider reads that provider's.
`Catalog.with_rows` lays your own rows over them. Prices are a table beside them.
"""

from __future__ import annotations

import datetime

from .cache_rules import (
    Breakpoint,
    CacheRules,
    Isolation,
    Knob,
    Lifetime,
    LookbackUnit,
    Mechanism,
    Moment,
)
from .dialects import Dialect, Dialects, Place, decode_dialects, dialects, otel_provider
from .figure import Disputed, Figure
from .load import Catalog, decode, shipped
from .price_rows import PriceRows, decode_prices
from .price_table import PRICE_SLOT, price_table_date
from .prices import Difference, Price, Rates, Tier, price
from .profiles import (
    Capability,
    Effort,
    Feature,
    MaxTokensField,
    Profile,
    SystemRole,
    SystemSlot,
)


def profile(provider: str, model: str) -> Profile:
    """The model's profile; for an unknown one its provider's defaults, `known=False`."""
    return shipped().profile(provider, model)


def rules(provider: str, model: str, wire: str | None = None) -> CacheRules:
    """The model's cache rules, on a wire where they differ by it; for an unknown model its
    provider's careful defaults."""
    return shipped().rules(provider, model, wire)


def provider_named(name: str) -> str | None:
    """The catalog's name of a provider, which may be given by an alias or by its host."""
    return dialects().provider_named(name, shipped().providers)


def models(provider: str | None = None) -> tuple[Profile, ...]:
    """Every known model, of one provider or of all."""
    return shipped().models(provider)


def default_model(provider: str, today: datetime.date) -> str | None:
    """The first model of a provider that has not retired."""
    for profile in models(provider):
        if profile.retires is None or profile.retires.value > today:
            return profile.id
    return None


__all__ = [
    "PRICE_SLOT",
    "Breakpoint",
    "CacheRules",
    "Capability",
    "Catalog",
    "Dialect",
    "Dialects",
    "Difference",
    "Disputed",
    "Effort",
    "Feature",
    "Figure",
    "Isolation",
    "Knob",
    "Lifetime",
    "LookbackUnit",
    "MaxTokensField",
    "Mechanism",
    "Moment",
    "Place",
    "Price",
    "PriceRows",
    "Profile",
    "Rates",
    "SystemRole",
    "SystemSlot",
    "Tier",
    "decode",
    "decode_dialects",
    "decode_prices",
    "default_model",
    "dialects",
    "models",
    "otel_provider",
    "price",
    "price_table_date",
    "profile",
    "provider_named",
    "rules",
    "shipped",
]
