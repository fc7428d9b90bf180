"""A request whose first messages are known is read as if it were the first one."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from support import traces
from support.exchanges import needs_exchanges, records
from support.growing_bodies import PATHS, Body, attempt, conversations
from support.hostile import BODIES, mutated
from support.mutations import RICH

from anaphora import catalog, errors, wire
from anaphora.prompt import Call
from anaphora.rendered import Plan
from anaphora.wire.known_requests import KnownRequests
from anaphora.wire.reading import DECODE_ERRORS, decode_elements, decode_members

LISTS = {"openai_responses": "input", "gemini": "contents"}
#: White space of 1 KB: shorter bodies are not kept.
PAD = b" " * 1100


def shown(call: Call | None) -> Any:
    if call is None:
        return None
    return repr(call), list(map(repr, call.ir.segments[0].messages))


def known(
    requests: KnownRequests, body: bytes, name: str, path: str = "", scope: str = "app"
) -> int:
    """Reads a body, which gives what `parse` gives; how many of its messages were known."""
    reading = requests.find(body, name, scope)
    warm, refused = attempt(lambda: reading.read(path))
    cold, problem = attempt(lambda: wire.get(name).parse(body, path))
    assert refused == problem
    assert shown(warm) == shown(cold)
    return 0 if refused else reading.known


def padded(body: bytes) -> bytes:
    start = body.index(b"{") + 1
    return body[:start] + PAD + body[start:]


def turns(body: bytes, name: str) -> Iterator[bytes]:
    """The bodies of a conversation that ends with this one: its first messages, and so on."""
    data = padded(body)
    members = decode_members(body)
    raw = bytes(members.get(LISTS.get(name, "messages"), b""))
    if raw[:1] != b"[":
        return
    start = data.index(raw)
    elements = [bytes(each) for each in decode_elements(raw)]
    at = start + 1
    for count, each in enumerate(elements, 1):
        at = data.index(each, at) + len(each)
        if count > len(elements) - 8 or count % 16 == 0:
            yield data[:at] + b"]" + data[start + len(raw) :]


# ── The same as parse ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PATHS)
@given(conversation=conversations())
def test_body_is_read_as_if_it_were_the_first(name: str, conversation: list[Body]) -> None:
    requests = KnownRequests(1 << 20)
    for each in conversation:
        known(requests, padded(each.write(name)), name, PATHS[name])


@pytest.mark.parametrize("name", sorted(wire.WIRES))
@needs_exchanges
def test_recorded_requests_are_read_as_if_each_were_the_first(name: str) -> None:
    requests, found = KnownRequests(1 << 24), 0
    for record in records(name):
        row = catalog.dialects().at_host(record["host"], name, record["path"])
        names = {name} if row is None else {name, row.name}
        for one in names:
            for body in turns(record["request"].encode(), name):
                found += known(requests, body, one, record["path"]) > 0
    assert found > 100, found


