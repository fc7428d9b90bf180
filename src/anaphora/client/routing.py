"""Which of a route's hops a call goes to, and what it costs when a conversation moves.

Hops with a weight share the conversations by it, each conversation at one of them: the hop is drawn
by hashing the beginning of the conversation with the name of each hop (weighted rendezvous
hashing). So nothing has to be remembered, every process comes to the same answer, and when a hop
comes or goes only the conversations move that it wins or loses. Hops without a weight are
fallbacks, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from blake3 import blake3

from anaphora.cache.verdict import format_usd
from anaphora.catalog import Price
from anaphora.client.config.values import Hop
from anaphora.values import Ttl

_RANGE = 1 << 53


def order(
    hops: Sequence[Hop], key: bytes, current: int | None, available: Sequence[bool]
) -> tuple[int, ...]:
    """All hops by their index, the one to try first in front.

    `key` stands for the conversation's beginning. A conversation that is already somewhere
    (`current`) stays there. Hops that are not available come last, in the same order: when none is,
    the call still learns why.
    """
    if len(hops) == 1:
        return (0,)
    ranked = sorted(range(len(hops)), key=lambda at: _rank(hops[at], at, key, current))
    return tuple(sorted(ranked, key=lambda at: not available[at]))


def models_asked(
    hops: Sequence[Hop],
    model: str | None,
    known: Sequence[bool],
    own: Sequence[str | None],
) -> list[str | None]:
    """Which model each hop is asked for, when the call names `model`: `known` says which hops'
    providers are known to have it, `own` what they are asked for otherwise.

    What a hop names goes first. A fallback at another house has not the model that was meant for
    the first; one that nobody is known to have is asked for everywhere.
    """
    everywhere = not any(known)
    return [
        hop.model or (model if has or everywhere else mine or model)
        for hop, has, mine in zip(hops, known, own, strict=True)
    ]


def _rank(hop: Hop, at: int, key: bytes, current: int | None) -> tuple[int, float, int]:
    if at == current:
        return 0, 0.0, at
    if hop.weight > 0:
        return 1, _draw(hop, key) / hop.weight, at
    return 2, 0.0, at


def _draw(hop: Hop, key: bytes) -> float:
    """An exponential variate, the same one for the same hop and key: the least of several, each
    divided by its weight, falls to each as often as its weight says."""
    name = f"{hop.provider}\0{hop.model or ''}\0".encode()
    number = int.from_bytes(blake3(name + key).digest(length=8), "big") % _RANGE
    return -math.log((number + 0.5) / _RANGE)


def price_of_moving(
    tokens_cached: int,
    from_price: Price | None,
    to_price: Price | None,
    *,
    ttl: Ttl | None = None,
) -> Decimal | None:
    """How many dollars more a conversation pays for its prefix because it moved: written at the new
    place, where that has a price, or else plain input there, instead of read at the old one. Less
    than nothing where the new place is that much cheaper; None where a price is unknown.

    `ttl` is what the new place writes for; left out, the cheapest that it has.
    """
    if from_price is None or to_price is None:
        return None
    there = to_price.at(tokens_cached)
    read = from_price.at(tokens_cached).read
    again = there.writing(ttl) if ttl is not None else min(there.write.values(), default=None)
    if again is None:
        again = there.input
    if read is None or again is None:
        return None
    return (tokens_cached * (again - read)).scaleb(-6)


def moving_said(left: str, reached: str, tokens_cached: int, cost_usd: Decimal | None) -> str:
    """The price of moving as a sentence."""
    said = f"moving from {left} to {reached} pays {tokens_cached:,} tokens of prefix again"
    if cost_usd is None:
        return f"{said}: dollars unknown"
    if cost_usd < 0:
        return f"{said}, and {format_usd(-cost_usd)} less for them"
    return f"{said}: {format_usd(cost_usd)}"
