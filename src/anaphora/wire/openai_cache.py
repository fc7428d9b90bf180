"""What OpenAI's two wires share: its cache options and breakpoints."""

from __future__ import annotations

import msgspec

from anaphora.prompt import Call
from anaphora.values import Extras, Ttl
from anaphora.wire.fields import Fields
from anaphora.wire.reading import ErrorFactory, request_error

#: Says that nothing is written but what is marked.
ONLY_MARKS = b',"prompt_cache_options":{"mode":"explicit"}'


#: What stands before a cache key.
KEY = b',"prompt_cache_key":'


class Breakpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: str
    ttl: str | None = None


def take_breakpoint(fields: Fields, wire: str) -> tuple[Ttl | None, Extras | None] | None:
    """The lifetime of a part's breakpoint (None: the request's), and the breakpoint's fields that
    have no name here."""
    inner = fields.nested("prompt_cache_breakpoint")
    if inner is None:
        return None
    marker = Breakpoint(inner.take("mode", str), inner.maybe("ttl", str))
    inner.drop_nulls()
    return breakpoint_ttl(marker, inner.path, fields.failure), inner.rest_for(wire)


def breakpoint_ttl(marker: Breakpoint, path: str, fail: ErrorFactory) -> Ttl | None:
    if marker.mode != "explicit":
        raise fail(f"{marker.mode!r} is not a mode; use explicit", f"{path}.mode")
    if marker.ttl is None:
        return None
    if marker.ttl == "30m":
        return "30m"
    if marker.ttl == "12h":
        return "12h"
    raise fail(f"{marker.ttl!r} is not a TTL; use 30m or 12h", f"{path}.ttl")


def key_place(call: Call) -> bytes | None:
    """Where the planner's key goes; None when the caller has chosen one."""
    return KEY if call.ir.cache.key is None and _unsaid(call, "prompt_cache_key") else None


def options_free(call: Call) -> bool:
    """Whether the caller left the options to the planner."""
    cache = call.ir.cache
    asked = (cache.mode, cache.automatic, cache.compare_with)
    if cache.prewarm or any(option is not None for option in asked):
        return False
    return _unsaid(call, "prompt_cache_options")


def _unsaid(call: Call, field: str) -> bool:
    """Whether no extras of the caller's say that field."""
    return call.extras is None or not any(
        field in Fields(text, "extras", request_error)
        for wire, text in call.extras.items()
        if wire in ("openai_chat", "openai_responses")
    )
