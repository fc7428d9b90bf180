"""Reads the request of an app and checks it against the app's grant."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from anaphora.canonical import dumps
from anaphora.client.choice import name_at
from anaphora.client.pool import ChosenTargets
from anaphora.client.routing import SessionRoute, conversation_key
from anaphora.client.target import Target
from anaphora.daemon.access.checks import (
    check_capabilities,
    check_grant,
    check_prompt,
    is_model_granted,
)
from anaphora.daemon.access.granted_models import (
    FIELD,
    model_error,
    named_targets,
    names_stored_prompt,
    prompt_targets,
    refusal,
    storing_provider,
)
from anaphora.daemon.access.handles import check_references, references, stored_tokens
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.clamping import clamp_call, clamp_request
from anaphora.daemon.calls.pipeline import CallStep, CallTools
from anaphora.daemon.calls.translation import parse_request, with_members
from anaphora.daemon.endpoints.body import (
    LONG,
    CallBody,
    is_large,
    read_json_bytes,
    read_strictly,
)
from anaphora.daemon.endpoints.headers import PROVIDER, check_options, forwarded_headers
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.face import Face, Route
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import WireRequest
from anaphora.errors import AnaphoraError, Denied, InvalidRequest, NotGranted, StoreUnavailable
from anaphora.redaction import quoted
from anaphora.values import Notice
from anaphora.wire.known_requests import RequestReading
from anaphora.wire.permissions.facts import CallFacts
from anaphora.wire.permissions.fields import read_facts
from anaphora.wire.reading import encode_members
from anaphora.wire.strict_json import is_heavy
from anaphora.wire.tables import request_table

T = TypeVar("T")

_FOR_CALLS, _FOR_STREAMS = ("llm_complete",), ("llm_complete", "llm_stream")


class PermitCall(CallStep):
    """Finds the targets of a call. Raises `InvalidRequest` if the provider is unknown or the model
    not among its `known_models` (the error's path is `provider` or `model`); then `Denied`, with an
    audit row, if the grant refuses the call."""

    name = "permit"

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    def check_early(self, call: AppCall, *, stream: bool) -> None:
        """Raises `Denied` independently of the request's content: the app lacks the capability, or
        has used up its requests of this minute."""
        tools = self._tools
        if tools.draining:
            raise StoreUnavailable("the daemon is stopping")
        try:
            needed = _FOR_STREAMS if stream else _FOR_CALLS
            check_capabilities(call.app.grant, needed, call.method)
            if tools.rates.used_up:
                tools.rates.check(call.app)
        except Denied as error:
            tools.denials.add(call.app, call.method, error, request_id=call.request_id)
            raise

    async def before(self, call: AppCall) -> None:
        tools, app = self._tools, call.app
        try:
            targets, hops = self.find_targets(call)
            if len(targets) > 1:
                assert call.call is not None
                key = conversation_key(call.call)
                targets = SessionRoute(targets, hops).order(lambda: key, time.monotonic())
            if call.is_large:
                facts = await tools.off_loop.run(app.id, lambda: _checked(call, targets))
            else:
                facts = _checked(call, targets)
            if facts is not None and facts.handles:
                call.stored_tokens = await stored_tokens(tools.ledger.store, app.owner, facts)
        except Denied as error:
            tools.refuse(call, error)
            raise
        call.targets, call.given, call.facts = targets, facts, facts

    def find_targets(self, call: AppCall) -> ChosenTargets:
        """The targets of a call. Raises `Denied` if the grant allows none."""
        tools, app = self._tools, call.app
        pool, granted = tools.pool, tools.granted
        if tools.draining:
            raise StoreUnavailable("the daemon is stopping")
        check_capabilities(app.grant, _FOR_STREAMS if call.stream else _FOR_CALLS, call.method)
        names, named, model = app.grant.llm.providers, call.provider, call.model
        request = call.request
        if request is not None and FIELD in request.members and names_stored_prompt(request):
            chooser = granted.chooser(names, None)
            keeper = named or call.stored_at
            return prompt_targets(app, keeper, model, pool, chooser, granted.models(app)), ()
        if named is None and model in names and model in pool.routes:
            named, model = model, None  # the name of a route stands for its models
        if call.stored_at is not None:
            named = storing_provider(app.grant.llm, pool.routes, named, call.stored_at)
        if named is not None:
            self._check_named(call, named, model)
        elif not names:
            raise NotGranted(f"no provider is granted to {app.id}", param="provider")
        own_wire = None if request is None else request.wire
        try:
            chooser = granted.choosers.get((own_wire, names)) or granted.chooser(names, own_wire)
            targets, hops = chooser.chosen.get((named, model)) or chooser.targets(named, model)
        except InvalidRequest as problem:
            if model is None or (named is not None and problem.path != "model"):
                raise
            reason = granted.with_nearest(problem.reason, app, model)
            raise InvalidRequest(reason, path="model") from None
        if named is None and model is not None and hops:
            targets, hops = named_targets(model, targets, hops)
        models = [target.model for target in targets]
        if model is not None and model not in models and not _is_alias(model, targets):
            models.append(model)  # a route may answer with other models
        for each in models:
            if not is_model_granted(each, app.grant.llm):
                raise model_error(app, each, pool, granted.models(app))
        if call.stored_at is not None:
            targets = tuple(each for each in targets if each.endpoint.id == call.stored_at)
            if not targets:
                reason = f"the route has no model at {quoted(call.stored_at)}"
                raise InvalidRequest(reason, path="model")
        return targets, hops

    def _check_named(self, call: AppCall, named: str, model: str | None) -> None:
        """Checks the provider or route that a call names."""
        app, pool = call.app, self._tools.pool
        resolved, is_granted_name = pool.providers.get(named), named in app.grant.llm.providers
        if (
            resolved is not None
            and model
            and (not is_granted_name or resolved.provider.known_models)
        ):
            why = refusal(resolved, name_at(resolved, model), app.grant.llm)
            if why:
                why = self._tools.granted.with_nearest(why, app, model)
                raise InvalidRequest(why, path="model")
        if not is_granted_name and (resolved is not None or named in pool.routes):
            reason = f"the provider {quoted(named)} is not granted to {app.id}"
            raise NotGranted(reason, param="provider")


def _is_alias(model: str, targets: tuple[Target, ...]) -> bool:
    """Whether a target has the model under another name."""
    return any(each.model == name_at(each.endpoint.resolved, model) for each in targets)


def _checked(call: AppCall, targets: tuple[Target, ...]) -> CallFacts | None:
    """The facts of a request of a wire, checked against the grant. A call of JSON-RPC is checked
    when it is rendered."""
    request, grant = call.request, call.app.grant.llm
    assert call.call is not None
    if request is None:
        if (lowered := clamp_call(call.call, grant)) is not None:
            call.call, notice = lowered
            call.notices += (notice,)
        return None
    name = request.wire
    for target in targets:
        if target.endpoint.base_wire == name:
            name = target.endpoint.wire_name
            break
    assert call.content is not None
    facts = read_facts(name, request.members, call.content, request.path, request.headers)
    if (clamped := clamp_request(call.call, facts, grant)) is not None:
        call.call, facts = clamped.call, clamped.facts
        call.notices += (clamped.notice,)
    check_grant(facts, grant, models=[target.model for target in targets])
    if grant.approved_prompt is not None:
        check_prompt(facts, grant, request.members)
    return facts


class ReadBody(CallStep):
    """Reads the body of a call at a provider's path. JSON-RPC reads its own messages."""

    name = "read"

    def __init__(self, tools: CallTools, permit: PermitCall, store: Store) -> None:
        self._tools = tools
        self._permit = permit
        self._store = store

    async def before(self, call: AppCall) -> None:
        exchange, route, app = call.exchange, call.route, call.app
        assert exchange is not None
        assert route is not None
        call.method = route.path
        self._permit.check_early(call, stream=route.operation == "stream")
        # botocore sends no content type with InvokeModel.
        data = await read_json_bytes(exchange, untyped=bool(route.form))
        face = face_of(route.face)
        if route.operation == "count":
            data = face.counted_body(data)
        find = functools.partial(self._tools.requests.find, data, route.wire, app.owner)
        call.is_large = len(data) > LONG
        reading = await self._work(call, find)
        call.is_large = call.is_large or is_large(reading)
        try:
            body = await self._work(call, lambda: _read(call, route, data, reading))
        except AnaphoraError:
            if not reading.known:
                raise
            call.is_large = is_heavy(data)
            body = await self._work(call, lambda: _read(call, route, data, reading.whole()))
        exchange.end_reading()
        rows: tuple[HandleRow, ...] = ()
        if face.keeps_objects:
            try:
                rows = await self._referred(call, route, body)
            except Denied as error:
                self._tools.denials.add(app, call.method, error, request_id=call.request_id)
                raise
        call.body = body
        call.provider = exchange.headers.get(PROVIDER)
        call.stored_at = rows[0].provider if rows else None
        call.model = face.model_of(route, body.value)
        call.stream = face.is_stream(route, body.value)

    async def _work(self, call: AppCall, act: Callable[[], T]) -> T:
        return await self._tools.off_loop.run(call.app.id, act) if call.is_large else act()

    async def _referred(self, call: AppCall, route: Route, body: CallBody) -> tuple[HandleRow, ...]:
        """The rows of the stored objects that a body names."""
        table, content = request_table(route.wire), call.content
        assert content is not None
        kept = (table.messages, table.system)
        fields = {name: value for name, value in body.value.items() if name not in kept}
        found = await self._work(call, lambda: tuple(references(fields, content)))
        return await check_references(self._store, call.app.owner, found) if found else ()


def _read(call: AppCall, route: Route, data: bytes, reading: RequestReading) -> CallBody:
    """Reads and parses the body of a call, of which known messages are not read again; what the
    wire's own provider does not take is changed first."""
    exchange, face, grant = call.exchange, face_of(route.face), call.app.grant.llm
    assert exchange is not None
    body = read_strictly(data, reading, by_pieces=call.is_large)
    if route.form:
        check_options(exchange.headers)
    given: Mapping[str, str] = exchange.headers
    members, changes, left_out = body.members, dict[str, bytes](), None
    if "stored_responses" not in grant.permissions:
        left_out = _comparison(face, body)
    if left_out is not None:
        changes = left_out[0]
        members = members | {name: msgspec.Raw(value) for name, value in changes.items()}
        body = replace(body, value={**body.value, **_decoded(changes)})
    plain = members
    if route.name or route.rest:  # at a cloud
        plain, named = face.plain_request(route, members)
        given = _joined(given, named) if named else given
    headers, notices = forwarded_headers(given, route.face, grant)
    call.notices = notices if left_out is None else (*notices, left_out[1])
    whole = reading.members(plain)
    named_in_path = plain is not members
    sent = encode_members(whole) if named_in_path else with_members(data, whole, changes)
    call.request = WireRequest(
        wire=route.wire,
        path=_counted_path(route.path) if route.operation == "count" else route.path,
        body=sent,
        members=whole,
        headers=headers,
    )
    parse_request(call, reading, encode_members(plain) if named_in_path or changes else None)
    return body


def _joined(given: Mapping[str, str], named: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a request, with those that are fields of its body."""
    return {**given, **{n: f"{given[n]},{v}" if n in given else v for n, v in named.items()}}


def _counted_path(path: str) -> str:
    """The path of the request whose tokens are counted: Gemini's contains the model."""
    return path.replace(":countTokens", ":generateContent")


def _comparison(face: Face, body: CallBody) -> tuple[dict[str, bytes], Notice] | None:
    """The field with the previous response that the provider would compare a request with, without
    that; None if it names none. It is used only for diagnostics; SDKs send it by default, even for
    apps that may not store responses."""
    name, member = face.comparison
    options = body.value.get(name)
    if not isinstance(options, dict) or not options.get(member):
        return None
    reason = f"{name}.{member} was left out: stored_responses is not in allow of the grant"
    notice = Notice("comparison_left_out", reason, f"{name}.{member}")
    return {name: dumps({**options, member: None})}, notice


def _decoded(changes: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: msgspec.json.decode(value) for name, value in changes.items()}
