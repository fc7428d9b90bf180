"""Reads the request of an app at the path of a provider: its body, the headers that go on, and the
stored objects that it names."""

from __future__ import annotations

from anaphora.canonical import dumps
from anaphora.daemon.calls.call import AppCall, CallTools
from anaphora.daemon.calls.filling import with_members
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.daemon.endpoints.body import read_json_bytes
from anaphora.daemon.endpoints.body_memory import AppBodies, CallBody, read_whole
from anaphora.daemon.endpoints.headers import PROVIDER, forwarded_headers
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.face import Face, Route
from anaphora.daemon.facts.handles import Reference, check_references
from anaphora.daemon.store import HandleRow, Store
from anaphora.daemon.values import WireRequest
from anaphora.errors import AnaphoraError, Denied
from anaphora.values import Notice

from .permit import PermitCall


class ReadBody(CallStep):
    """For calls at the paths of providers. JSON-RPC reads its messages itself."""

    name = "read"

    def __init__(self, tools: CallTools, permit: PermitCall, store: Store) -> None:
        self._tools = tools
        self._permit = permit
        self._store = store
        self._bodies = AppBodies()

    async def before(self, call: AppCall) -> None:
        exchange, route, app = call.exchange, call.route, call.app
        assert exchange is not None
        assert route is not None
        call.method = route.path
        self._permit.check_early(call, stream=route.operation == "stream")
        body = await self._read(call, route, await read_json_bytes(exchange))
        exchange.end_reading()
        headers, notices = forwarded_headers(exchange.headers, route.wire, app.grant.llm)
        stores = "stored_responses" in app.grant.llm.permissions
        face = face_of(route.wire)
        if not stores and face.comparison[0] in body.value:
            changed = _without_comparison(face, body)
            if changed is not None:
                large = call.is_large
                body = await self._read(call, route, changed[0])
                call.is_large = large
                notices += (changed[1],)
        rows: tuple[HandleRow, ...] = ()
        if face.keeps_objects:
            try:
                rows = await self._referred(call, route, body)
            except Denied as error:
                self._tools.denials.add(app.id, call.method, error, request_id=call.request_id)
                raise
        self._bodies.keep(app.id, route.wire, body, refers=bool(rows))
        call.body, call.notices = body, notices
        call.provider = exchange.headers.get(PROVIDER)
        call.stored_at = rows[0].provider if rows else None
        call.model = face.model_of(route, body.value)
        call.stream = face.is_stream(route, body.value)
        call.request = WireRequest(
            wire=route.wire,
            path=_counted_path(route.path) if route.operation == "count" else route.path,
            body=body.data,
            members=body.members,
            headers=headers,
            elements=body.elements,
        )

    async def _read(self, call: AppCall, route: Route, data: bytes) -> CallBody:
        reading = self._bodies.reading(call.app.id, route.wire, data)
        call.is_large = reading.is_large
        if call.is_large:
            return await self._tools.off_loop.run(call.app.id, reading)
        return reading()

    async def _referred(self, call: AppCall, route: Route, body: CallBody) -> tuple[HandleRow, ...]:
        """The rows of the stored objects that a body names."""
        app = call.app.id
        try:
            found: tuple[Reference, ...]
            if call.is_large:
                found = await self._tools.off_loop.run(app, lambda: tuple(body.references()))
            else:
                found = tuple(body.references())
            return await check_references(self._store, app, found) if found else ()
        except AnaphoraError:
            if not body.known:
                raise
        # The error is that of the whole body.
        whole = read_whole(route.wire, body.data)
        return await check_references(self._store, app, whole.references())


def _counted_path(path: str) -> str:
    """Of the request whose tokens are counted: Gemini's has the model."""
    return path.replace(":countTokens", ":generateContent")


def _without_comparison(face: Face, body: CallBody) -> tuple[bytes, Notice] | None:
    """The body without the response that the provider is to compare it with, for a diagnosis alone;
    None where it names none. SDKs send it unasked, also for apps that may store nothing."""
    name, member = face.comparison
    options = body.value.get(name)
    if not isinstance(options, dict) or not options.get(member):
        return None
    changed = {name: dumps({**options, member: None})}
    reason = f"{name}.{member} was left out: stored_responses is not in allow of the grant"
    notice = Notice("comparison_left_out", reason, f"{name}.{member}")
    return with_members(body.data, body.members, changed), notice
