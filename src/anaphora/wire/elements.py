"""The elements of a request's list of messages, and what is known of them.

A client without state sends the whole conversation again at every turn. A reader that recognises
the beginning of an earlier list passes on what was found out about its elements.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .reading import Members


class ListElements(msgspec.Struct, eq=False, kw_only=True):
    """The elements of one list of a body."""

    name: str
    """The field that holds the list."""
    raws: list[msgspec.Raw]
    """Each as it was sent, in a copy of its own: it does not keep the body in memory."""
    digests: list[bytes] = []
    """Of the first elements, as far as they were needed."""
    plain: int = 0
    """How many of the first elements are known to hold only text and tool calls."""

    facts: object = None
    """What the rest of a body with such a list asks for, kept for a later reader."""

    def begin(self, count: int) -> ListElements:
        """The first elements, to which others may be added."""
        return ListElements(
            name=self.name,
            raws=self.raws[:count],
            digests=self.digests[:count],
            plain=min(self.plain, count),
            facts=self.facts,
        )

    def joined(self, first: int) -> bytes:
        """A list of the elements from there on."""
        return b"[" + b",".join(self.raws[first:]) + b"]"


class DecodedBody(msgspec.Struct, frozen=True, eq=False):
    """A body whose members were read before, and the elements of one of its lists."""

    members: Members
    elements: ListElements | None = None


#: What requests are split from.
SplitInput: TypeAlias = bytes | Members | DecodedBody
