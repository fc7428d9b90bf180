"""The emulator without a socket: an object with all state, whose `respond` returns the provider's
response to a request.

    engine = Engine(EmulatorOptions(seed=7))
    engine.respond(EmulatorRequest(method="POST", path="/v1/messages", headers=…, body=…, now=0.0))

No clock is read here: `now` of the request is the time, plus the offset of the virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from anaphora import catalog
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.errors import ContextOverflow, InvalidRequest, NotFound, RequestRejected, Upstream
from anaphora.prompt import Params
from anaphora.tokens import Counts
from anaphora.wire import Wire

from . import strict
from .exchange import JSON, EmulatorRequest, EmulatorResponse, ResponseChunk, json_response
from .fault_effects import KINDS, Fault
from .generator import EmulatorOptions, Generator
from .hosts import HostRoutes
from .hosts.host import EmulatorRoute, RoutedRequest
from .hosts.stored import check_one_page
from .journal import Billing, Journal, JournalEntry, ModelFacts, UsageWindow, UsageWindows
from .models import ModelClock, check_model, model_error
from .replies.text import IdGenerator
from .routers import RouterHosts

if TYPE_CHECKING:
    from anaphora.dashboard.values import ShownCall

#: The latest time of the clock: the year 9000. Dates a few centuries later can still be written.
_LATEST = 221_845_392_000.0


def show_calls() -> Callable[[JournalEntry], ShownCall | None]:
    """Converts entries of a journal for pages."""
    from .page import ShownCalls  # imports the dashboard, which only pages need

    return ShownCalls().make


class Engine:
    def __init__(self, options: EmulatorOptions | None = None) -> None:
        self.options = options or EmulatorOptions()
        self.offset = 0.0
        """How far the virtual clock is ahead, in seconds; see `set_offset`."""
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the options: caches, stored objects, the journal, the clock."""
        options = self.options
        self.offset = 0.0
        self.journal = Journal(options.remembered, show_calls)
        self._faults = options.faults.selector(options.seed)
        self._ids = IdGenerator(options.seed)
        self._routers = RouterHosts(options.router_hosts, options.seed)
        self._windows = UsageWindows()
        self._billing = Billing(options.rows)
        self.routes = HostRoutes(self._billing, self._ids)
        for host in self.routes.hosts.values():
            host.run, host.batch_seconds = self._run_batched, options.batch_seconds
        self._generator = Generator(options, self._billing, self._ids, self.journal)

    def set_offset(self, offset: float, now: float) -> None:
        """Sets the virtual clock to `offset` seconds after `now`."""
        if not 0 <= now + offset <= _LATEST:
            raise InvalidRequest("the clock must stay between the years 1970 and 9000")
        self.offset = offset

    def codec(self, method: str, path: str, headers: Mapping[str, str]) -> Wire:
        """The wire of a request, also for its errors."""
        route = self._route(method, path, headers)
        return self.routes.codec(path, headers) if route is None else route.codec

    def _route(self, method: str, path: str, headers: Mapping[str, str]) -> EmulatorRoute | None:
        route, served = self.routes.find(method, path, headers), self.options.providers
        return None if route is not None and served and route.provider not in served else route

    def respond(self, request: EmulatorRequest) -> EmulatorResponse:
        """The response to a request, sent completely before the next request."""
        response = self.receive(request)
        if response.call is not None:
            first, *rest = (chunk.delay for chunk in response.chunks or [ResponseChunk(0.0, b"")])
            began = request.now + self.offset + first
            response.call.begin(began)
            response.call.end(began + sum(rest))
        return response

    def _run_batched(self, batch: RoutedRequest, path: str, body: bytes) -> EmulatorResponse:
        """The response to a request of a batch, in the batch's workspace. The caller ends it
        (`CallRecord.end`)."""
        headers = {**batch.headers, "content-type": JSON}
        headers.pop("x-emulator-fault", None)
        now = batch.now - self.offset
        request = EmulatorRequest(method="POST", path=path, headers=headers, body=body, now=now)
        return self.receive(request, batch=True)

    def receive(self, request: EmulatorRequest, *, batch: bool = False) -> EmulatorResponse:
        """The response to a request, before it is sent. Its cache writes can be read after
        `CallRecord.begin` or `CallRecord.end`, by the provider's rules."""
        now = request.now + self.offset
        entry = self.journal.open(now, request.method, request.path)
        entry.request_id, entry.batch = self._ids.next("req_01"), batch
        try:
            response = self._respond(request, now, entry)
            entry.status = response.status
        except Exception as problem:
            entry.status, entry.error = 500, f"internal error: {type(problem).__name__}"
            raise
        finally:
            self.journal.add(entry)
        return response

    def _respond(
        self, request: EmulatorRequest, now: float, entry: JournalEntry
    ) -> EmulatorResponse:
        route = self._route(request.method, request.path, request.headers)
        if route is None:
            reason = f"Not found: {request.method} {request.path}; the emulator has no such path"
            error = NotFound(reason, status=404, code="not_found_error")
            return _error_response(error, entry, self.routes.codec(request.path, request.headers))
        routed = RoutedRequest(
            method=request.method,
            path=request.path,
            query=request.query,
            headers=request.headers,
            body=request.body,
            now=now,
            route=route,
            host=route.host,
            entry=entry,
        )
        return self._respond_routed(routed)

    def _respond_routed(self, request: RoutedRequest) -> EmulatorResponse:
        host, route, entry = request.host, request.route, request.entry
        entry.provider, entry.wire, entry.operation = route.provider, host.wire, route.operation
        window, fault = None, None
        try:
            _check_encoding(request)
            entry.workspace = host.workspace(request, self.options.keys)
            fault = self._faults.next(request, route.provider)
            if fault is None and route.operation == "generate":
                request, fault = self._at_host(request)
            if fault is not None and KINDS[fault.name].unbilled:
                response = json_response(b"")
            elif route.operation == "generate":
                response = self._generate(host.rewrite(request))
            else:
                body = self._other_body(request)
                response = json_response(body) if isinstance(body, bytes) else body
            window = self._count_usage(request)
        except (Upstream, InvalidRequest) as problem:
            response = _error_response(problem, entry, route.codec)
        except RecursionError:
            error = RequestRejected("the body is nested too deeply", status=400)
            response = _error_response(error, entry, route.codec)
        response.headers.update(host.headers(request, window))
        if fault is None:
            return response
        entry.fault = fault.name
        response.wire, response.dialect = host.wire, route.dialect.name
        call, response.call = response.call, None  # a fault changes a copy of the response
        response = fault.apply(response)
        response.call = call
        return response

    def _at_host(self, request: RoutedRequest) -> tuple[RoutedRequest, Fault | None]:
        """The request at one of the hosts behind a router, and the fault of that host. A host that
        fails is left for the next one, if the request allows one."""
        request, hosts = self._routers.route(request)
        fault = None
        for host in hosts:
            request.entry.host = host
            fault = self._faults.next(request, request.route.provider, host)
            if fault is None or not KINDS[fault.name].unbilled:
                break
        return request, fault

    # ── Operations ───────────────────────────────────────────────────────────────────────────────

    def _generate(self, request: RoutedRequest) -> EmulatorResponse:
        try:
            prompt = self._generator.read(request)
        except InvalidRequest as problem:
            self._check_unreadable(request, problem)
        request.entry.model = prompt.rendered.model
        if self.options.strict:
            self._check_model(request, prompt.facts)
            tokens = Counts(prompt.rendered).total
            try:
                self._check(request, prompt.facts, prompt.call.params, tokens)
            except ContextOverflow as problem:
                stream = self._generator.overflow_stream(request, prompt, problem)
                if stream is None:
                    raise
                request.entry.error = str(problem)
                return stream
        response = self._generator.respond(request, prompt)
        request.host.finish(request, prompt.items, response)
        return response

    def _other_body(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        host, route = request.host, request.route
        check_one_page(request.query)
        if route.operation == "count":
            return host.count_body(self._count(host.rewrite(request)))
        if route.operation == "models":
            return host.list_models(self._models(request))
        if route.operation != "model":
            return host.handle(request)
        for profile in self._models(request):
            if profile.id == route.name:
                return dumps(host.model_fields(profile))
        profile = catalog.profile(route.provider, route.name)
        retired = ModelClock(request.now, self.offset).has_retired(profile)
        problem = model_error(profile, host.wire, retired=retired)
        problem.status = 404  # of a path, on every wire
        raise problem

    def _models(self, request: RoutedRequest) -> tuple[Profile, ...]:
        """The models of the provider; retired ones only with `any_model`."""
        if self.options.any_model:
            return catalog.models(request.route.provider)
        return ModelClock(request.now, self.offset).models(request.route.provider)

    def _count(self, request: RoutedRequest) -> int:
        try:
            rendered, facts = self._generator.cut(request)
        except InvalidRequest as problem:
            self._check_unreadable(request, problem)
        if self.options.strict:
            self._check_model(request, facts)
            # A prompt of any length can be counted.
            self._check(request, facts)
        return Counts(rendered).total

    # ── Checks and errors ────────────────────────────────────────────────────────────────────────

    def _check(
        self,
        request: RoutedRequest,
        facts: ModelFacts,
        params: Params | None = None,
        tokens: int = 0,
    ) -> None:
        counts, checks = request.route.operation == "count", request.host.checks
        strict.check(checks, request, facts, params=params, tokens=tokens, counts=counts)

    def _check_model(self, request: RoutedRequest, facts: ModelFacts) -> None:
        # The name of a deployment is its owner's.
        if not self.options.any_model and not request.route.dialect.deployments:
            clock = ModelClock(request.now, self.offset)
            check_model(facts.profile, request.host.wire, clock, _asked_model(request))

    def _check_unreadable(self, request: RoutedRequest, problem: InvalidRequest) -> NoReturn:
        """Raises the provider's error for an unreadable request, if known; else `problem`."""
        with suppress(InvalidRequest):
            model = _asked_model(request)
            facts = self._billing.facts(request.route.provider, request.host.wire, model)
            self._check(request, facts)
        raise problem from None

    def _count_usage(self, request: RoutedRequest) -> UsageWindow:
        entry = request.entry
        account, billed = (entry.provider, entry.workspace), entry.billed
        if billed is None:
            return self._windows.add(account, request.now)
        outcome, reads_count = billed.outcome, billed.facts.rules.reads_limited
        free = outcome.read if reads_count is not None and not reads_count.value else 0
        return self._windows.add(account, request.now, outcome.total - free, entry.output)


def _asked_model(request: RoutedRequest) -> str:
    return request.route.name or str(request.value("model", ""))


def _check_encoding(request: EmulatorRequest) -> None:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        reason = f"content-encoding {encoding[:40]!r} is not supported: send the body uncompressed"
        raise RequestRejected(reason, status=415)


def _error_response(
    problem: Upstream | InvalidRequest, entry: JournalEntry, codec: Wire
) -> EmulatorResponse:
    """The provider's error, also for the journal."""
    if isinstance(problem, InvalidRequest):
        param = problem.path.removeprefix("$").removeprefix(".")
        problem = RequestRejected(str(problem), status=400, param=param or None)
    problem.request_id = entry.request_id
    entry.error = str(problem)
    status, headers, body = codec.write_error(problem)
    return json_response(body, status=status, headers=headers)
