"""Objects that providers store for apps: responses and files.

An app sees and uses only its own objects. Another app's object and an unknown one are both 404.
Lists contain only the app's own objects, so that neither cursors nor counts reveal others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from anaphora.daemon.access.checks import check_capabilities
from anaphora.daemon.access.grants import AppGrant, LlmGrant
from anaphora.daemon.access.handles import not_found
from anaphora.daemon.access.isolation import keys_separate
from anaphora.daemon.calls.translation import member_object, with_members
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.face import JSON, Kept, Route
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.store import HandleKind, HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import App
from anaphora.errors import (
    AnaphoraError,
    Forbidden,
    NotFound,
    NotGranted,
    RequestRejected,
    TooLarge,
)
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.values import Notice
from anaphora.wire.reading import DECODE_ERRORS, decode_members, encode_members

from .body import MAX_BODY
from .forwarding import Forwarder, ProviderResponse
from .headers import (
    PROVIDER,
    forwarded_headers,
    forwarded_query,
    own_headers,
    query_fields,
    returned_headers,
)
from .uploads import ResumableUploads, check_upload

_PERMISSION = "stored_responses"
_PAGE, _LARGEST_PAGE = 20, 100
#: Concurrent requests to a provider for one list.
_AT_ONCE = 8
_NOT_SHOWN = Notice(
    "cache_usage_hidden",
    "cache reads of a stored response are not shown: other apps also use that cache",
    "usage.input_tokens_details",
)
_DIAGNOSTICS, _DETAILS = "prompt_cache_diagnostics", "input_tokens_details"
_COUNTS = ("cached_tokens", "cache_write_tokens")
#: Kinds that OpenAI keeps for 30 days, and seconds between removals of older rows.
_FORGOTTEN: tuple[HandleKind, ...] = ("response", "item")
_SECONDS, _REMOVAL_SECONDS = 30 * 86_400.0, 60.0


class KeptObjects:
    """Records the owners of the responses that a provider stores, and forgets them when it has
    deleted them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._removed = 0.0

    async def add(self, row: HandleRow, kept: Iterable[Kept]) -> None:
        """Adds objects of the app and provider of `row`."""
        rows = [replace(row, kind=kind, id=id, tokens=tokens) for kind, id, tokens in kept]
        await asyncio.gather(*map(self._store.add_handle, rows))  # in one transaction
        if not rows or row.created - self._removed <= _REMOVAL_SECONDS:
            return
        self._removed = row.created
        with contextlib.suppress(AnaphoraError):
            for kind in _FORGOTTEN:
                await self._store.remove_old_handles(kind, row.created - _SECONDS)


class ObjectRequests:
    """Requests about stored objects, for the app that owns them."""

    def __init__(
        self,
        store: Store,
        forwarder: Forwarder,
        *,
        isolates: Callable[[AppGrant, str], bool],
        reaches: Callable[[LlmGrant, str], bool],
        off_loop: OffLoop | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`isolates` tells whether other apps' cache reads at a provider are hidden from an app,
        `reaches` whether a grant names a provider or a route over it."""
        self._store = store
        self._forwarder = forwarder
        self._isolates = isolates
        self._reaches = reaches
        self._clock = clock
        self._off_loop = off_loop or OffLoop()
        self.uploads = ResumableUploads(store, forwarder, clock, self._off_loop)

    async def handle(self, exchange: HttpExchange, route: Route, app: App, request_id: str) -> None:
        assert route.kind is not None
        check_capabilities(app.grant, ["llm_complete"], route.path)
        if _PERMISSION not in app.grant.llm.permissions:
            reason = f"a {route.kind} needs `allow: [{_PERMISSION}]` in the app's grant"
            raise NotGranted(reason, param="allow")
        if route.operation == "upload":
            if self.uploads.begins(exchange):
                provider = self._choose(exchange, route, app)
                await self.uploads.begin(exchange, route, app, provider, request_id)
            else:
                await self.uploads.proceed(exchange, route, app, request_id, self._reaches)
            return
        if route.operation == "list":
            body = await self._list(exchange, route, app)
            await self._respond(exchange, route, request_id, ProviderResponse((), body))
            return
        headers, notices = forwarded_headers(exchange.headers, route.wire, app.grant.llm)
        if route.operation == "create":
            response = await self._create(exchange, route, app, headers)
        else:
            response = await self._use(exchange, route, app, headers)
        await self._respond(exchange, route, request_id, response, notices + response.notices)

    async def close(self) -> None:
        await self._forwarder.close()

    # ── One object ───────────────────────────────────────────────────────────────────────────────

    async def _create(
        self, exchange: HttpExchange, route: Route, app: App, headers: tuple[tuple[str, str], ...]
    ) -> ProviderResponse:
        """Uploads a file."""
        provider = self._choose(exchange, route, app)
        content, data = exchange.headers.get("content-type", ""), await exchange.read_body()
        await self._off_loop.run(app.id, lambda: check_upload(content, data))
        if exchange.headers.get("content-encoding", "identity") != "identity":
            raise RequestRejected("an upload must not be compressed", status=415)
        if len(data) > MAX_BODY:
            raise TooLarge(f"the file is larger than {MAX_BODY:,} bytes", status=413)
        pairs = (*headers, ("content-type", content))
        response = await self._forwarder.send(
            provider, "POST", route.path, headers=pairs, body=data
        )
        id = fields_of(response.body).get("id")
        if not isinstance(id, str) or not id:
            raise NotFound("the provider's answer names no object", status=502)
        await self._store.add_handle(
            HandleRow(kind="file", id=id, app=app.owner, provider=provider, created=self._clock())
        )
        return self._cleaned(provider, response)

    async def _use(
        self, exchange: HttpExchange, route: Route, app: App, headers: tuple[tuple[str, str], ...]
    ) -> ProviderResponse:
        assert route.kind is not None
        row = await self._store.handle(route.kind, route.name, app.owner)
        if row is None or not self._reaches(app.grant.llm, row.provider):
            raise not_found(route.kind, route.name)
        response = await self._forwarder.send(
            row.provider,
            exchange.method,
            route.path,
            query=forwarded_query(exchange.query_string),
            headers=headers,
        )
        if route.operation == "delete":
            await self._store.remove_handle(route.kind, route.name, app.owner)
        if _is_file(route):
            return response
        if route.kind == "response":
            response = self._own_view(app, row.provider, response)
        return self._cleaned(row.provider, response)

    def _own_view(self, app: App, provider: str, response: ProviderResponse) -> ProviderResponse:
        """A response without its reads from a cache shared with other apps."""
        if not self._isolates(app.grant, provider):
            return response
        model = fields_of(response.body).get("model")
        if isinstance(model, str) and keys_separate(self._forwarder.target(provider, model).rules):
            return response  # it was sent with the app's own cache key
        body = _without_cache_counts(response.body)
        notices = (_NOT_SHOWN,) if body != response.body else ()
        return ProviderResponse(response.headers, body, notices)

    def _choose(self, exchange: HttpExchange, route: Route, app: App) -> str:
        granted = app.grant.llm.providers
        named = exchange.headers.get(PROVIDER)
        if named is not None:
            if named not in granted:
                raise NotGranted(f"the provider {named[:64]!r} is not granted", param=PROVIDER)
            granted = (named,)
        provider = self._forwarder.provider_for(route.wire, granted)
        if provider is None:
            raise NotGranted(f"no granted provider keeps a {route.kind}", param=PROVIDER)
        return provider

    # ── Lists ────────────────────────────────────────────────────────────────────────────────────

    async def _list(self, exchange: HttpExchange, route: Route, app: App) -> bytes:
        assert route.kind is not None
        query = dict(query_fields(exchange.query_string))
        rows = await self._store.handles(route.kind, app.owner)
        rows = [row for row in rows if self._reaches(app.grant.llm, row.provider)]
        provider = self._forwarder.provider_for
        rows = [row for row in rows if provider(route.wire, (row.provider,)) is not None]
        rows.sort(key=lambda row: (row.created, row.id), reverse=query.get("order") != "asc")
        page, more = _page(rows, query)
        gate = asyncio.Semaphore(_AT_ONCE)
        found = await asyncio.gather(*(self._fetch(row, route, gate) for row in page))
        known = [(row, body) for row, body in zip(page, found, strict=True) if body is not None]
        ids = [row.id for row, _ in known]
        cleaned = self._forwarder.cleaned
        objects = [msgspec.Raw(cleaned(row.provider, body)) for row, body in known]
        after = page[-1].id if more else ""
        return msgspec.json.encode(face_of(route.wire).stored_list(ids, objects, after))

    async def _fetch(self, row: HandleRow, route: Route, gate: asyncio.Semaphore) -> bytes | None:
        """One object; None if the provider has deleted it meanwhile."""
        async with gate:
            try:
                path = f"{route.path}/{row.id}"
                return (await self._forwarder.send(row.provider, "GET", path)).body
            except (NotFound, Forbidden) as problem:
                if isinstance(problem, Forbidden) and not face_of(route.wire).gone_is_forbidden:
                    raise
                await self._store.remove_handle(row.kind, row.id, row.app)
                return None

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────

    def _cleaned(self, provider: str, response: ProviderResponse) -> ProviderResponse:
        body = self._forwarder.cleaned(provider, response.body)
        return ProviderResponse(response.headers, body, response.notices)

    async def _respond(
        self,
        exchange: HttpExchange,
        route: Route,
        request_id: str,
        response: ProviderResponse,
        notices: tuple[Notice, ...] = (),
    ) -> None:
        is_file = _is_file(route)
        headers = returned_headers(response.headers, file=is_file)
        if is_file:
            headers.setdefault("content-disposition", "attachment")
        else:
            headers["content-type"] = JSON
        headers |= own_headers(route.wire, request_id, notices=notices)
        headers["x-content-type-options"] = "nosniff"
        await exchange.respond(CompleteResponse(200, headers, response.body))


def _is_file(route: Route) -> bool:
    """Whether a response is the content of a file, whose bytes are not changed."""
    return route.rest == "content"


def _without_cache_counts(body: bytes) -> bytes:
    """The JSON of a response as if nothing had been read from a cache or written to it. The app's
    own share of these reads is not known any more."""
    try:
        members = decode_members(body)
    except DECODE_ERRORS:
        return body
    changes = {}
    if bytes(members.get(_DIAGNOSTICS, b"null")) != b"null":
        changes[_DIAGNOSTICS] = b"null"
    usage = member_object(members, "usage")
    if details := member_object(usage, _DETAILS):
        counts = {count: msgspec.Raw(b"0") for count in _COUNTS if count in details}
        usage[_DETAILS] = msgspec.Raw(encode_members({**details, **counts}))
        changes["usage"] = encode_members(usage)
    return with_members(body, members, changes)


def _page(rows: list[HandleRow], query: dict[str, str]) -> tuple[list[HandleRow], bool]:
    limit = query.get("limit") or query.get("pageSize") or str(_PAGE)
    if not limit.isdecimal() or not limit.isascii() or len(limit) > 6 or int(limit) < 1:
        reason = f"limit must be a number from 1 to {_LARGEST_PAGE}"
        raise RequestRejected(reason, status=400, param="limit")
    after = query.get("after") or query.get("after_id") or query.get("pageToken")
    ids = [row.id for row in rows]
    start = ids.index(after) + 1 if after in ids else 0
    end = start + min(int(limit), _LARGEST_PAGE)
    return rows[start:end], end < len(rows)


def fields_of(body: bytes) -> dict[str, object]:
    try:
        value = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}
