"""Objects that providers store for apps: responses, conversations, files, batches, cached contents
and containers.

An app sees and uses only its own objects. Another app's object and an unknown one are both 404.
Lists contain only the app's own objects, so that neither cursors nor counts reveal others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from anaphora.daemon.access.checks import check_capabilities
from anaphora.daemon.access.grants import AppGrant, LlmGrant
from anaphora.daemon.access.isolation import keys_separate
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.face import JSON, SSE, Route
from anaphora.daemon.facts.handles import check_references, not_found, references
from anaphora.daemon.money.late_bills import LateBills
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.store import HandleKind, HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import App
from anaphora.errors import Forbidden, NotFound, NotGranted, RequestRejected, TooLarge
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.values import Notice

from .batches import BatchCheck
from .body import MAX_BODY, JsonBody, read_object
from .cached_contents import CachedContents
from .forwarding import Forwarder, ProviderResponse
from .headers import (
    PROVIDER,
    forwarded_headers,
    forwarded_query,
    own_headers,
    query_fields,
    returned_headers,
)
from .kept import BackgroundResponses, KeptObjects, cached_tokens, fields_of, most_tokens
from .masking import change_objects, change_results, without_cache_counts
from .uploads import ResumableUploads, check_upload

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog

#: The permission that each kind of object needs.
_PERMISSIONS: dict[HandleKind, str] = {
    "response": "stored_responses",
    "conversation": "stored_responses",
    "file": "stored_responses",
    "cached_content": "stored_responses",
    "batch": "background",
    "container": "server_tools",
}
#: Kinds whose cost has no known bound.
_UNBOUNDED: tuple[HandleKind, ...] = ("batch", "container")
_PAGE, _LARGEST_PAGE = 20, 100
#: Concurrent requests to a provider for one list.
_AT_ONCE = 8
_NOT_SHOWN = Notice(
    "cache_usage_hidden",
    "cache reads of a stored response are not shown: other apps also use that cache",
    "usage.input_tokens_details",
)


class ObjectRequests:
    """Requests about stored objects, for the app that owns them."""

    def __init__(
        self,
        store: Store,
        forwarder: Forwarder,
        ledger: Ledger,
        late_bills: LateBills,
        *,
        isolates: Callable[[AppGrant, str], bool],
        reaches: Callable[[LlmGrant, str], bool],
        audit: AuditLog | None = None,
        off_loop: OffLoop | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`isolates` tells whether other apps' cache reads at a provider are hidden from an app,
        `reaches` whether a grant names a provider or a route over it."""
        self._store = store
        self._forwarder = forwarder
        self._kept = KeptObjects(store)
        self.background = BackgroundResponses(self._kept, forwarder, ledger, late_bills)
        self._isolates = isolates
        self._reaches = reaches
        self._clock = clock
        self._off_loop = off_loop or OffLoop()
        self.uploads = ResumableUploads(store, forwarder, clock, self._off_loop)
        self._cached = CachedContents(ledger, forwarder.target, clock, audit)

    async def handle(self, exchange: HttpExchange, route: Route, app: App, request_id: str) -> None:
        assert route.kind is not None
        _check_capability(app, route)
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
            response = await self._create(exchange, route, app, headers, request_id)
        else:
            response = await self._use(exchange, route, app, headers, request_id)
        await self._respond(exchange, route, request_id, response, notices + response.notices)

    async def close(self) -> None:
        await self._forwarder.close()

    # ── One object ───────────────────────────────────────────────────────────────────────────────

    async def _create(
        self,
        exchange: HttpExchange,
        route: Route,
        app: App,
        headers: tuple[tuple[str, str], ...],
        request_id: str,
    ) -> ProviderResponse:
        assert route.kind is not None
        _check_bound(route.kind, app.grant.llm)
        provider = self._choose(exchange, route, app)
        content, data, body = await self._content(exchange, route, app, provider)
        if route.kind == "batch" and body is not None:
            await self._check_batch(route, app, provider, body)
        pairs = (*headers, ("content-type", content))
        send = partial(self._forwarder.send, provider, "POST", route.path, headers=pairs, body=data)
        if route.kind == "cached_content" and body is not None:
            async with self._cached.creating(app, provider, body, request_id) as charge:
                response = await send(on_write=charge.sending)
                charge.settle(cached_tokens(fields_of(response.body)))
        else:
            response = await send()
        row = HandleRow(
            kind=route.kind, id="", app=app.owner, provider=provider, created=self._clock()
        )
        await self._kept.register(row, response.body, body)
        return self._rewritten(exchange, provider, response)

    async def _use(
        self,
        exchange: HttpExchange,
        route: Route,
        app: App,
        headers: tuple[tuple[str, str], ...],
        request_id: str,
    ) -> ProviderResponse:
        assert route.kind is not None
        row = await self._store.handle(route.kind, route.name, app.owner)
        if row is None or not self._reaches(app.grant.llm, row.provider):
            raise not_found(route.kind, route.name)
        data, body = b"", None
        if exchange.method in ("POST", "PATCH"):
            content, data, body = await self._content(exchange, route, app, row.provider)
            if data:
                headers = (*headers, ("content-type", content))
        if route.kind == "conversation" and body is not None:
            # Before it is sent: the provider may store it even if its answer is lost.
            await self._store.grow_handle(row, most_tokens(body))
        began = await self.background.has_begun(row, route)
        send = partial(
            self._forwarder.send,
            row.provider,
            exchange.method,
            route.path,
            query=forwarded_query(exchange.query_string),
            headers=headers,
            body=data,
        )
        if route.kind == "cached_content" and body is not None:
            response = await self._extend(app, row, route, body, send, request_id)
        else:
            response = await send()
        if route.operation == "delete":
            await self._store.remove_handle(route.kind, route.name, app.owner)
        elif route.kind == "batch":
            await self._kept.register_results(row, response.body, self._clock())
        if _is_file(route):
            if await self._holds_results(route, row):
                response = self._own_results(app, row.provider, response)
            return response
        if route.kind == "response":
            await self.background.fetched(row, route, response.body, began)
            response = self._own_view(app, row.provider, response)
        return self._rewritten(exchange, row.provider, response)

    def _own_view(self, app: App, provider: str, response: ProviderResponse) -> ProviderResponse:
        """A response without its reads from a cache shared with other apps."""
        if not self._isolates(app.grant, provider):
            return response
        model = fields_of(response.body).get("model")
        if isinstance(model, str) and keys_separate(self._forwarder.target(provider, model).rules):
            return response  # it was sent with the app's own cache key
        body = change_objects(response.body, without_cache_counts)
        notices = (_NOT_SHOWN,) if body != response.body else ()
        return ProviderResponse(response.headers, body, notices)

    async def _holds_results(self, route: Route, row: HandleRow) -> bool:
        if route.kind == "batch":
            return True
        if route.kind != "file" or not face_of(route.wire).holds_results_in_files:
            return False
        found = await self._forwarder.send(row.provider, "GET", f"/v1/files/{row.id}")
        return fields_of(found.body).get("purpose") == "batch_output"

    def _own_results(self, app: App, provider: str, response: ProviderResponse) -> ProviderResponse:
        """The results of a batch, masked like a response, and without texts about the operator's
        account."""
        isolates = self._isolates(app.grant, provider)

        def change(data: bytes) -> bytes:
            return self._forwarder.without_accounts(provider, data)

        def change_reply(data: bytes) -> bytes:
            return change(without_cache_counts(data) if isolates else data)

        body = change_results(response.body, change, change_reply)
        return ProviderResponse(response.headers, body)

    async def _extend(
        self,
        app: App,
        row: HandleRow,
        route: Route,
        body: JsonBody,
        send: Callable[..., Awaitable[ProviderResponse]],
        request_id: str,
    ) -> ProviderResponse:
        """Extends the lifetime of a cached content, which costs storage."""
        found = fields_of((await self._forwarder.send(row.provider, "GET", route.path)).body)
        model = str(found.get("model", "")).removeprefix("models/")
        async with self._cached.extending(app, row, model, body, request_id) as charge:
            response = await send(on_write=charge.sending)
            charge.settle(row.tokens)
        return response

    async def _content(
        self, exchange: HttpExchange, route: Route, app: App, provider: str
    ) -> tuple[str, bytes, JsonBody | None]:
        """Content type and bytes of a request, and its fields if it is JSON."""
        takes_files = route.kind == "file" or (route.kind == "container" and route.rest)
        kind = exchange.headers.get("content-type", "")
        if takes_files and not kind.lower().startswith("application/json"):
            data = await exchange.read_body()
            await self._off_loop.run(app.id, lambda: check_upload(kind, data))
            if exchange.headers.get("content-encoding", "identity") != "identity":
                raise RequestRejected("an upload must not be compressed", status=415)
            if len(data) > MAX_BODY:
                raise TooLarge(f"the file is larger than {MAX_BODY:,} bytes", status=413)
            return kind, data, None
        if route.operation == "action" and not exchange.has_body:
            return "", b"", None
        body = await read_object(exchange, self._off_loop, app.id)
        if app.grant.llm.approved_prompt is not None and route.kind == "conversation":
            reason = "a conversation may hold a system text, and the grant approves one prompt"
            raise NotGranted(reason, param="conversation")
        rows = await check_references(self._store, app.owner, references(body.value))
        if any(row.provider != provider for row in rows):
            reason = "the request names stored objects of another provider"
            raise RequestRejected(reason, status=400)
        return "application/json", body.data, body

    async def _check_batch(self, route: Route, app: App, provider: str, body: JsonBody) -> None:
        async def read_file(id: str) -> bytes:
            path = f"/v1/files/{id}/content"
            return (await self._forwarder.send(provider, "GET", path)).body

        check = BatchCheck(self._store, app.owner, app.grant.llm, provider, read_file)
        await check.check(route.wire, body)

    def _choose(self, exchange: HttpExchange, route: Route, app: App) -> str:
        granted = app.grant.llm.providers
        named = exchange.headers.get(PROVIDER)
        if named is not None:
            if named not in granted:
                raise NotGranted(f"the provider {named[:64]!r} is not granted", param=PROVIDER)
            granted = (named,)
        provider = self._forwarder.provider_for(route.wire, granted)
        if provider is None:
            reason = f"no granted provider keeps a {(route.kind or '').replace('_', ' ')}"
            raise NotGranted(reason, param=PROVIDER)
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
        base = base_url(exchange)
        rewritten = self._forwarder.rewritten
        known = [(row, body) for row, body in zip(page, found, strict=True) if body is not None]
        ids = [row.id for row, _ in known]
        objects = [msgspec.Raw(rewritten(row.provider, body, base)) for row, body in known]
        after = page[-1].id if more else ""
        return msgspec.json.encode(face_of(route.wire).stored_list(route.kind, ids, objects, after))

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

    def _rewritten(
        self, exchange: HttpExchange, provider: str, response: ProviderResponse
    ) -> ProviderResponse:
        body = self._forwarder.rewritten(provider, response.body, base_url(exchange))
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
            headers["content-type"] = SSE if response.is_stream else JSON
        headers |= own_headers(route.wire, request_id, notices=notices)
        headers["x-content-type-options"] = "nosniff"
        await exchange.respond(CompleteResponse(200, headers, response.body))


def _is_file(route: Route) -> bool:
    """Whether a response is the content of a file, whose bytes are not changed."""
    return route.rest.endswith(("content", "results"))


def base_url(exchange: HttpExchange) -> str:
    """The address that the app sent its request to."""
    return f"{exchange.scope.get('scheme', 'http')}://{exchange.headers.get('host', '')}"


def _check_capability(app: App, route: Route) -> None:
    assert route.kind is not None
    check_capabilities(app.grant, ["llm_complete"], route.path)
    needed = _PERMISSIONS.get(route.kind)
    if needed is not None and needed not in app.grant.llm.permissions:
        name = route.kind.replace("_", " ")
        raise NotGranted(f"a {name} needs `allow: [{needed}]` in the app's grant", param="allow")


def _check_bound(kind: HandleKind, grant: LlmGrant) -> None:
    if kind in _UNBOUNDED and grant.has_spend_limit:
        name = kind.replace("_", " ")
        reason = f"the cost of a {name} has no bound, and the app's grant has a spend limit"
        raise NotGranted(reason, param=kind)


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
