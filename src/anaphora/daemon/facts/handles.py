"""The stored objects that a request names, and which app owns them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.client.costs.bounds import HISTORY_KINDS
from anaphora.daemon.faces.not_lent import check_kind
from anaphora.daemon.store import HandleKind, HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.errors import NotFound, NotGranted, RequestRejected
from anaphora.wire.facts.request import RequestFacts
from anaphora.wire.facts.stored import stored_id, stored_objects

_NOT_FOUND_CODES: dict[str, str] = {"response": "previous_response_not_found"}


class Reference(msgspec.Struct, frozen=True):
    kind: HandleKind
    id: str
    param: str


def references(value: dict[str, Any]) -> Iterator[Reference]:
    """The stored objects named in a decoded request. Raises `NotGranted` for one that belongs to no
    app, and `RequestRejected` for an invalid id."""
    for found in stored_objects(value):
        check_kind(found.kind, found.name)
        if found.problem:
            raise RequestRejected(found.problem, status=400, param=found.name)
        if found.shared:
            reason = f"{found.name} names an object that belongs to no app"
            raise NotGranted(reason, param=found.name)
        yield Reference(found.kind, found.id, found.name)


async def own_rows(
    store: Store, app: str, named: Iterable[tuple[HandleKind, str]]
) -> dict[tuple[HandleKind, str], HandleRow]:
    """The rows of the objects that belong to the app."""
    ids: dict[HandleKind, list[str]] = {}
    for kind, id in named:
        ids.setdefault(kind, []).append(id)
    rows: dict[tuple[HandleKind, str], HandleRow] = {}
    for kind, some in ids.items():
        found = await store.own_handles(kind, some, app)
        rows.update(((kind, id), row) for id, row in found.items())
    return rows


def not_found(kind: HandleKind, id: str, param: str | None = None) -> NotFound:
    """The error for an object of another app and for an unknown one."""
    code = _NOT_FOUND_CODES.get(kind, "not_found_error") if param else "not_found_error"
    name = kind.replace("_", " ")
    return NotFound(f"no {name} {id[:100]!r}", status=404, code=code, param=param)


async def check_references(
    store: Store, app: str, found: Iterable[Reference]
) -> tuple[HandleRow, ...]:
    """The rows of the objects that a request names. Raises `NotFound` for an unknown object or one
    of another app, and `RequestRejected` if two are at different providers."""
    named = {(one.kind, one.id): one.param for one in found}
    rows = await own_rows(store, app, named)
    for (kind, id), param in named.items():
        if (kind, id) not in rows:
            raise not_found(kind, id, param)
    if len({row.provider for row in rows.values()}) > 1:
        reason = "the request names stored objects of different providers"
        raise RequestRejected(reason, status=400)
    return tuple(rows.values())


async def stored_tokens(
    store: Store, app: str, facts: RequestFacts, provider: str | None = None
) -> int | None:
    """The maximum tokens of the history behind a request's handles; None if the size of one is
    unknown. Raises `NotFound` for a handle that is not the app's own, or is at another provider."""
    named = [(kind, stored_id(kind, text) or "") for _, kind, text in facts.handles]
    rows = await own_rows(store, app, named)
    total: int | None = 0
    for (param, kind, text), key in zip(facts.handles, named, strict=True):
        row = rows.get(key)
        if row is None or provider not in (None, row.provider):
            raise not_found(kind, text, param)
        if kind in HISTORY_KINDS:
            total = None if total is None or row.tokens is None else total + row.tokens
    return total
