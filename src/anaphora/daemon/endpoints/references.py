"""The stored objects that a request refers to: each must be the app's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.daemon.calls.filling import with_members
from anaphora.daemon.faces import face_of
from anaphora.daemon.facts.handles import not_found, own_rows, stored_objects
from anaphora.daemon.store import HandleKind, HandleRow, Store
from anaphora.errors import NotGranted, RequestRejected
from anaphora.values import Notice

from .body import JsonBody


class Reference(msgspec.Struct, frozen=True):
    kind: HandleKind
    id: str
    param: str


def references(value: dict[str, Any]) -> Iterator[Reference]:
    """The stored objects that a decoded request names. Raises `NotGranted` for one that belongs to
    no app, and `RequestRejected` for what is no id."""
    for found in stored_objects(value):
        if found.problem:
            raise RequestRejected(found.problem, status=400, param=found.name)
        if found.shared:
            reason = f"{found.name} names an object that belongs to no app"
            raise NotGranted(reason, param=found.name)
        yield Reference(found.kind, found.id, found.name)


def without_comparison(wire: str, body: JsonBody) -> tuple[bytes, Notice] | None:
    """The body without the response that the provider is to compare it with, for a diagnosis alone;
    None where it names none. SDKs send it unasked, also for apps that may store nothing."""
    name, member = face_of(wire).comparison
    options = body.value.get(name)
    if not isinstance(options, dict) or not options.get(member):
        return None
    changed = {name: dumps({**options, member: None})}
    reason = f"{name}.{member} was left out: stored_responses is not in allow of the grant"
    notice = Notice("comparison_left_out", reason, f"{name}.{member}")
    return with_members(body.data, body.members, changed), notice


async def check_references(
    store: Store, app: str, found: Iterable[Reference]
) -> tuple[HandleRow, ...]:
    """The rows of the objects that a request names. Raises `NotFound` for an object of another app,
    or of none, and `RequestRejected` where two are at different providers."""
    named = {(one.kind, one.id): one.param for one in found}
    rows = await own_rows(store, app, named)
    for (kind, id), param in named.items():
        if (kind, id) not in rows:
            raise not_found(kind, id, param)
    if len({row.provider for row in rows.values()}) > 1:
        reason = "the request names stored objects of different providers"
        raise RequestRejected(reason, status=400)
    return tuple(rows.values())
