"""The stored objects that a request names, and which app owns them. `NOT_LENT`: the endpoints and
fields of providers that the daemon does not pass on, and what apps do instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from anaphora.client.costs.bounds import HISTORY_KINDS
from anaphora.daemon.store import HandleKind, HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.errors import NotFound, NotGranted, RequestRejected
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.permissions.kept import CallContent
from anaphora.wire.permissions.stored import items_without_type, stored_id, stored_objects

_NOT_FOUND_CODES: dict[str, str] = {"response": "previous_response_not_found"}


class Reference(msgspec.Struct, frozen=True):
    kind: HandleKind
    id: str
    param: str


def references(fields: dict[str, Any], content: CallContent) -> Iterator[Reference]:
    """The stored objects that a request names in its decoded fields and in its messages. Raises
    `NotGranted` for one that belongs to no app, and `RequestRejected` for an invalid id."""
    for found in chain(items_without_type(fields), stored_objects(fields), content.stored):
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
    store: Store, app: str, facts: CallFacts, provider: str | None = None
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


# ── What is not passed on ────────────────────────────────────────────────────────────────────────

_BATCHES = (
    "batches are not passed on, since their bill comes up to a day later: send the calls one by"
    " one, or the batch with a key of the provider"
)
_CONVERSATIONS = (
    "conversation objects are not passed on: name the last response as previous_response_id, or"
    " send the history"
)
_CONTAINERS = (
    "containers are not passed on, as their cost has no bound: code runs in a new one if the"
    " request names none"
)
_BACKGROUND = (
    "background responses are not passed on, since their bill comes only when they are fetched:"
    " stream the response"
)
_CACHED = (
    "cached contents are not passed on: send their text with each request, and Gemini caches equal"
    " beginnings by itself"
)
_UPLOADS = "uploads in parts are not passed on: send the file to /v1/files"
_INVOKE = "InvokeModel is passed on with the bodies of Claude alone: use /model/{model}/converse"

NOT_LENT = {
    "/v1/messages/batches": _BATCHES,
    "/v1/batches": _BATCHES,
    "/v1beta/batches": _BATCHES,
    "/v1beta/models/{model}:batchGenerateContent": _BATCHES,
    "/v1/conversations": _CONVERSATIONS,
    "conversation": _CONVERSATIONS,
    "/v1/containers": _CONTAINERS,
    "container": _CONTAINERS,
    "/v1/responses/{id}/cancel": _BACKGROUND,
    "background": _BACKGROUND,
    "/v1beta/cachedContents": _CACHED,
    "cachedContent": _CACHED,
    "/v1/uploads": _UPLOADS,
    "/model/{model}/invoke": _INVOKE,
}
"""Sentences by path, or by field of a body. The last path is lent for models of Anthropic."""

INVOKE = "/model/{model}/invoke"
_PATHS = [what for what in NOT_LENT if what.startswith("/") and what != INVOKE]
_PATH = re.compile(
    "|".join(f"({re.sub(r'{[a-z]+}', '[^/]+', what)})(?:/.*)?" for what in _PATHS), re.DOTALL
)
#: Fields by kind of stored object.
_FIELDS = {
    "conversation": "conversation",
    "container": "container",
    "cached_content": "cachedContent",
}


def path_not_lent(path: str) -> NotFound | None:
    """The error at a path of the table, which begins with its version."""
    match = _PATH.fullmatch(path)
    return (
        None if match is None or match.lastindex is None else not_lent(_PATHS[match.lastindex - 1])
    )


def not_lent(what: str) -> NotFound:
    return NotFound(NOT_LENT[what], status=404, code="not_found_error")


def check_kind(kind: str, param: str) -> None:
    """Raises `NotGranted` for a stored object, named at `param`, of a kind that is not lent."""
    if (field := _FIELDS.get(kind)) is not None:
        raise NotGranted(f"{param}: {NOT_LENT[field]}", param=param)


def check_background(background: bool) -> None:
    if background:
        raise NotGranted(f"background: {NOT_LENT['background']}", param="background")
