"""The facts of a request that differs from the one before only in its last messages."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.wire.body_memory import ListElements
from anaphora.wire.reading import Members

from .content_facts import are_plain
from .request_facts import RequestFacts

#: The wire or dialect, the path and the headers of a request.
Asked: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]


class KnownFacts(NamedTuple):
    """The facts of a request whose messages hold only text and tool calls."""

    asked: Asked
    rest: list[tuple[str, msgspec.Raw]]
    """The other members of its body."""
    facts: RequestFacts
    size: int
    """As in the facts, without the messages."""


def remember_facts(
    asked: Asked, members: Members, elements: ListElements, facts: RequestFacts
) -> None:
    """Keeps the facts with the messages of the request."""
    name = elements.name
    if name not in members or elements.plain < len(elements.raws):
        return
    # Copies: the originals keep the whole body in memory.
    rest = [(key, raw.copy()) for key, raw in members.items() if key != name]
    size = facts.size - memoryview(members[name]).nbytes
    elements.facts = KnownFacts(asked, rest, facts, size)


def facts_before(
    asked: Asked, wire: str, members: Members, elements: ListElements
) -> RequestFacts | None:
    """The facts that are kept with the messages, where the request has the same other members in
    the same order, and there are still only text and tool calls in its messages; else None."""
    before, name = elements.facts, elements.name
    if not isinstance(before, KnownFacts) or before.asked != asked:
        return None
    rest = [item for item in members.items() if item[0] != name]
    if rest != before.rest or not are_plain(wire, elements):
        return None
    return replace(before.facts, size=before.size + memoryview(members[name]).nbytes)
