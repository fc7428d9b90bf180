"""What a grant sees in the bytes of a request."""

from __future__ import annotations

from collections.abc import Iterable

from anaphora import wire as wires
from anaphora.wire.permissions.content import read_content
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.permissions.fields import read_facts
from anaphora.wire.reading import decode_members


def facts_in(
    wire: str, body: bytes, path: str = "", headers: Iterable[tuple[str, str]] = ()
) -> CallFacts:
    content = read_content(wires.base_of(wire), wires.get(wire).parse(body, path))
    return read_facts(wire, decode_members(body), content, path, headers)
