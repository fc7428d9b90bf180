"""What a call is billed beyond its tokens at the listed price: fees of server tools, and multiples
of the price for fast mode and data residency."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from anaphora.catalog.api_limits import price_multiple, server_tool_of
from anaphora.client.endpoint import Target
from anaphora.values import Opaque, Reply

from .request_facts import RequestFacts

_ONE = Decimal(1)
#: The version of a tool at the end of its type.
_VERSION = re.compile(r"(_preview)?(_\d{4}_?\d{2}_?\d{2})?\Z")


class Surcharge(NamedTuple):
    """The cost of tokens times `factor`, plus `usd`."""

    factor: Decimal = _ONE
    usd: Decimal = Decimal(0)

    def applied(self, usd: Decimal) -> Decimal:
        return usd * self.factor + self.usd


NO_SURCHARGE = Surcharge()


def surcharge_of(facts: RequestFacts, target: Target, reply: Reply) -> Surcharge | None:
    """The surcharge of an answered request, by the calls of server tools in the reply; None where
    it is not known."""
    if not (facts.server_tools or facts.tiers or facts.geo):
        return NO_SURCHARGE
    factor = price_factor(facts, target.endpoint.system)
    if factor is None:
        return None
    if factor is _ONE and not facts.server_tools:
        return NO_SURCHARGE
    usd = Decimal(0)
    kinds = [part.kind for part in reply.message.parts if isinstance(part, Opaque)]
    for tool in facts.server_tools:
        row = server_tool_of(target.endpoint.system, tool.type, target.model)
        if row is None:
            return None
        name = _VERSION.sub("", tool.type)
        # Code execution has results of several kinds: `bash_code_execution_tool_result`.
        calls = sum(
            kind == f"{name}_call" or kind.endswith(f"{name}_tool_result") for kind in kinds
        )
        usd += row.usd_per_call * calls
        if calls or not tool.type.islower():  # Gemini's tools leave no part in a reply
            usd += row.usd_per_request
    return Surcharge(factor, usd) if usd or factor != 1 else NO_SURCHARGE


def price_factor(facts: RequestFacts, provider: str) -> Decimal | None:
    """By how much fast mode and data residency multiply the price of a request, bill and bound
    alike; None where that is unknown."""
    if not facts.tiers and not facts.geo:
        return _ONE
    factor = _ONE
    fields = [(param, value) for param, value in facts.tiers if param == "speed"]
    if facts.geo:
        fields.append(("inference_geo", facts.geo))
    for field, value in fields:
        known = price_multiple(provider, field, value)
        if known is None:
            return None
        factor *= known
    return factor
