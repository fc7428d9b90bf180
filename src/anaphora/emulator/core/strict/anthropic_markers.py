"""Where Anthropic takes a marker, how many, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.errors import Upstream
from anaphora.values import TTL_SECONDS, Ttl

from .case import Case, Object, objects
from .paths import refused_at


class Place(msgspec.Struct, frozen=True):
    """Something that could carry a marker, in the order it is hashed."""

    path: str
    block: Object
    nested: bool = False
    """Inside a tool result or a document: no place for the automatic one."""

    @property
    def marker(self) -> Any:
        return self.block.get("cache_control")

    @property
    def is_empty_text(self) -> bool:
        return self.block.get("type") == "text" and not self.block.get("text")

    @property
    def takes_one(self) -> bool:
        thinking = self.block.get("type") in ("thinking", "redacted_thinking")
        return not (self.nested or thinking or self.is_empty_text)


def places(case: Case, marked: bool = False) -> Iterator[Place]:
    """Tools, system, messages; all, or those that are marked."""
    for at, tool in objects(case.body.get("tools")):
        if not marked or "cache_control" in tool:
            yield Place(f"tools.{at}", tool)
    yield from _blocks(case.body.get("system"), "system", marked)
    for at, message in case.unusual:
        if not isinstance(message.get("content"), str):
            yield from _blocks(message.get("content"), f"messages.{at}.content", marked)


def _blocks(content: Any, path: str, marked: bool, nested: bool = False) -> Iterator[Place]:
    for at, block in objects(content):
        # What is inside is hashed before the block ends.
        if isinstance(block.get("content"), list):
            yield from _blocks(block["content"], f"{path}.{at}.content", marked, nested=True)
        source = block.get("source")
        if isinstance(source, dict):
            inner = f"{path}.{at}.source.content"
            yield from _blocks(source.get("content"), inner, marked, nested=True)
        if not marked or "cache_control" in block:
            yield Place(f"{path}.{at}", block, nested)


def check(case: Case) -> Upstream | None:
    marked = [place for place in places(case, marked=True) if place.marker is not None]
    if not marked and "cache_control" not in case.body:
        return None
    return (
        form(case, marked)
        or _too_many(case, len(marked))
        or order(case, marked)
        or automatic(case, len(marked))
    )


def form(case: Case, marked: list[Place]) -> Upstream | None:
    """Source: CacheControlEphemeralParam; empty text: askalf/dario#1066. Thinking has no such
    field at all, which the check of fields says."""
    top = case.body.get("cache_control")
    found = [(place.path, place.marker) for place in marked]
    if top is not None:
        found.append(("", top))
    for path, marker in found:
        field = f"{path}.cache_control" if path else "cache_control"
        if not isinstance(marker, dict):
            return refused_at(field, "Input should be an object")
        if marker.get("type") != "ephemeral":
            return refused_at(f"{field}.type", "Input should be 'ephemeral'")
        if marker.get("ttl") not in (None, *case.rules.ttls.value):
            return refused_at(f"{field}.ttl", "Input should be '5m' or '1h'")
    for place in marked:
        if place.is_empty_text:
            reason = "cache_control cannot be set for empty text blocks"
            return refused_at(f"{place.path}.text", reason)
    return None


def _too_many(case: Case, found: int) -> Upstream | None:
    """anthropics/claude-code#8901, with the number found."""
    most = case.rules.slots.value
    if found <= most:
        return None
    reason = f"A maximum of {most} blocks with cache_control may be provided. Found {found}."
    return refused_at("", reason)


def order(case: Case, marked: list[Place]) -> Upstream | None:
    """A longer lifetime may not follow a shorter one: cnighswonger/claude-code-cache-fix#44."""
    if not case.rules.longer_ttl_first.value:
        return None
    sequence = [(place.path, _ttl(case, place.marker)) for place in marked]
    top = case.body.get("cache_control")
    if top is not None:
        sequence.append(("", _ttl(case, top)))  # it stands behind all others
    shortest: Ttl | None = None
    for path, ttl in sequence:
        if shortest is not None and TTL_SECONDS[ttl] > TTL_SECONDS[shortest]:
            field = f"{path}.cache_control.ttl" if path else "cache_control.ttl"
            reason = (
                f"a ttl='{ttl}' cache_control block must not come after a ttl='{shortest}' "
                "cache_control block. Note that blocks are processed in the following order: "
                "`tools`, `system`, `messages`."
            )
            return refused_at(field, reason)
        shortest = ttl
    return None


def automatic(case: Case, count: int) -> Upstream | None:
    """`cache_control` of the whole request takes a slot of its own, unless the block that it
    lands on is marked for as long already (PROVIDERS.md, caching)."""
    top = case.body.get("cache_control")
    clashes = case.rules.automatic_refused
    if top is None or clashes is None:
        return None
    last = next((place for place in reversed(list(places(case))) if place.takes_one), None)
    if last is None:
        return None
    if last.marker is None:
        slots_full = "slots_full" in clashes.value
        return _too_many(case, count + 1) if slots_full else None
    if "other_ttl" in clashes.value and _ttl(case, last.marker) != _ttl(case, top):
        return refused_at("cache_control", f"{last.path} is marked with another ttl")
    return None


def _ttl(case: Case, marker: Object) -> Ttl:
    default = case.rules.default_ttl
    stated: Ttl | None = marker.get("ttl")
    return stated or (default.value if default is not None else "5m")
