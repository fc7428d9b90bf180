"""The emulator itself: one object with all state, and `answer`, which takes a request and gives
what the provider would.

    engine = Engine(Options(seed=7))
    engine.answer(Asked(method="POST", path="/v1/messages", headers=…, body=…, at=0.0))

Nothing here reads a clock: `Asked.at` is the time, plus whatever the virtual clock was moved by.
"""

from __future__ import annotations

import msgspec

from anaphora import wire
from anaphora.canonical import dumps
from anaphora.errors import InvalidRequest, NotFound, RequestRejected, Upstream
from anaphora.prompt import Call
from anaphora.rendered import Rendered
from anaphora.tokens import Counts, for_model

from . import held, listing, stored, strict
from .accounts import Accounts
from .asked import Answer, Asked, whole
from .billing import Billing, Facts
from .faults import KINDS
from .generating import Generator, loaded
from .ids import Ids
from .journal import Entry, Journal
from .limits import Limits, Spent, headers
from .options import Options
from .prompts import Prompt, Prompts
from .routes import Route, find

#: Faults that come before the prompt is looked at: nothing is cached, and nothing billed.
_TURNED_AWAY = frozenset(
    name
    for name in KINDS
    if name.startswith("rate-limit") or name in ("spend-cap", "500", "503", "529")
)


class Engine:
    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.offset = 0.0
        """How far the virtual clock is ahead, in seconds."""
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the options: caches, stored answers, the journal, the clock."""
        self.offset = 0.0
        self.journal = Journal(self.options.remembered)
        self._faults = self.options.faults.begin(self.options.seed)
        self._accounts = Accounts(self.options.keys)
        self._ids = Ids(self.options.seed)
        self._limits = Limits()
        self._billing = Billing()
        self._prompts = Prompts(self._billing)
        self._generator = Generator(
            self.options, self._billing, self._prompts, self._ids, self.journal
        )

    def answer(self, asked: Asked) -> Answer:
        if self.offset:
            asked = msgspec.structs.replace(asked, at=asked.at + self.offset)
        entry = self.journal.open(asked.at, asked.method, asked.path)
        entry.request_id = self._ids.request()
        route = find(asked.method, asked.path, asked.headers)
        if route is not None and self.options.providers:
            route = route if route.provider in self.options.providers else None
        answer = self._nowhere(asked, entry) if route is None else self._at(asked, route, entry)
        entry.status = answer.status
        self.journal.add(entry)
        return answer

    def _at(self, asked: Asked, route: Route, entry: Entry) -> Answer:
        entry.provider, entry.wire, entry.operation = route.provider, route.wire, route.operation
        spent, fault = None, None
        try:
            workspace = self._accounts.of(asked, route).workspace
            entry.workspace = workspace
            fault = self._faults.next(asked, route.provider)
            if fault is not None and fault.name in _TURNED_AWAY:
                answer = whole(b"", wire=route.wire)
            else:
                answer = self._operate(asked, route, workspace, entry)
            spent = self._spend(asked, route, entry)
        except (Upstream, InvalidRequest) as problem:
            answer = self._refused(problem, route, entry)
        except RecursionError:
            deep = RequestRejected("the body is nested too deep to be read", status=400)
            answer = self._refused(deep, route, entry)
        answer.headers.update(headers(route.wire, entry.request_id, spent, asked.at))
        if fault is None:
            return answer
        entry.fault = fault.name
        return fault.apply(msgspec.structs.replace(answer, dialect=route.speaker))

    def _operate(self, asked: Asked, route: Route, workspace: str, entry: Entry) -> Answer:
        operation = route.operation
        if operation == "generate":
            return self._generate(asked, route, workspace, entry)
        if operation == "count":
            return whole(self._counted(asked, route, workspace), wire=route.wire)
        if operation == "models":
            return whole(listing.models(route, asked.query), wire=route.wire)
        if operation == "model":
            return whole(listing.model(route), wire=route.wire)
        if operation in ("stored", "stored_items"):
            return whole(self._stored(asked, route, workspace), wire=route.wire)
        if operation in ("caches", "cache"):
            return whole(self._cached(asked, route, workspace), wire=route.wire)
        if operation == "show":
            return whole(dumps({"details": {"format": "gguf"}, "model_info": {}}), wire=route.wire)
        return whole(dumps({"version": "0.0.0-emulator"}), wire=route.wire)

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────

    def _generate(self, asked: Asked, route: Route, workspace: str, entry: Entry) -> Answer:
        if route.wire == "ollama":
            fields = asked.fields
            if bytes(fields.get("messages", msgspec.Raw(b"[]"))) == b"[]":
                model = str(msgspec.json.decode(fields.get("model", msgspec.Raw(b'""'))))
                return whole(loaded(route, model, asked.at), wire=route.wire)
        try:
            prompt = self._prompts.read(asked, route, workspace)
        except InvalidRequest as problem:
            raise self._unread(asked, route) or problem from None
        entry.model = prompt.rendered.model
        if self.options.strict:
            self._check(asked, route, prompt)
        return self._generator.answer(asked, route, workspace, prompt, entry)

    def _check(self, asked: Asked, route: Route, prompt: Prompt) -> None:
        """What the provider refuses is refused."""
        error = self._checked(
            asked, route, prompt.facts, prompt.call, prompt.rendered, _long(prompt, route.wire)
        )
        if error is not None:
            raise error

    @staticmethod
    def _checked(
        asked: Asked,
        route: Route,
        facts: Facts,
        call: Call | None = None,
        rendered: Rendered | None = None,
        tokens: int | None = None,
    ) -> Upstream | None:
        return strict.check(
            asked,
            route.wire,
            route.provider,
            call,
            rendered,
            facts.rules,
            facts.profile,
            tokens,
            counts=route.operation == "count",
        )

    def _unread(self, asked: Asked, route: Route) -> Upstream | None:
        """What the provider says to a request that cannot be read; None where that is not known."""
        try:
            named = msgspec.json.decode(asked.fields.get("model", msgspec.Raw(b'""')))
            facts = self._billing.facts(route, route.name or str(named))
        except (RequestRejected, InvalidRequest) as problem:
            return problem if isinstance(problem, Upstream) else None
        return self._checked(asked, route, facts)

    def _counted(self, asked: Asked, route: Route, workspace: str) -> bytes:
        try:
            rendered, facts = self._prompts.cut(asked, route, workspace)
        except InvalidRequest as problem:
            raise self._unread(asked, route) or problem from None
        if self.options.strict:
            # However long it is, it can be counted.
            error = self._checked(asked, route, facts, None, rendered, 0)
            if error is not None:
                raise error
        tokens = Counts(rendered).total
        if route.wire == "anthropic":
            return dumps({"input_tokens": tokens})
        if route.wire == "gemini":
            return dumps({"totalTokens": tokens})
        return dumps({"object": "response.input_tokens", "input_tokens": tokens})

    def _stored(self, asked: Asked, route: Route, workspace: str) -> bytes:
        responses = self._prompts.responses
        if route.operation == "stored_items":
            return stored.listed(responses.get(workspace, route.name))
        if asked.method == "DELETE":
            return responses.delete(workspace, route.name)
        return responses.get(workspace, route.name).response

    # ── What Gemini holds ────────────────────────────────────────────────────────────────────────

    def _cached(self, asked: Asked, route: Route, workspace: str) -> bytes:
        contents, at = self._prompts.contents, asked.at
        if route.operation == "caches":
            if asked.method == "POST":
                return self._hold(asked, route, workspace)
            return contents.listed(workspace, asked.query, at)
        if asked.method == "DELETE":
            gone = contents.delete(workspace, route.name, at)
            facts = self._billing.facts(route, gone.model)
            self._billing.simulator(route, facts).release(gone.name, at=at)
            return b"{}"
        content = contents.get(workspace, route.name, at)
        if asked.method == "PATCH":
            ends = held.expiry(asked.fields, at)
            if ends is None:
                raise RequestRejected("only ttl and expireTime can be changed", status=400)
            content.updated, content.expires = at, ends
            facts = self._billing.facts(route, content.model)
            self._billing.simulator(route, facts).extend(content.name, at=at, seconds=ends - at)
        return dumps(content.told())

    def _hold(self, asked: Asked, route: Route, workspace: str) -> bytes:
        body = asked.fields
        if "model" not in body:
            raise RequestRejected("a cached content is for one model", status=400, param="model")
        model = str(msgspec.json.decode(body["model"])).rpartition("/")[2]
        fields, at = held.frozen(body), asked.at
        ends = held.expiry(body, at)
        path = f"/v1beta/models/{model}:generateContent"
        rendered = route.codec.split(held.counted_body(fields), (), path)
        facts, chunks = self._billing.facts(route, model), len(rendered) - 1
        if not chunks:
            raise RequestRejected("there is nothing to hold", status=400, param="contents")
        tokens = Counts(for_model(rendered, facts.profile)).tokens(chunks)
        parent = route.path.partition("/cachedContents")[0].strip("/").partition("/")[2]
        name = f"{parent}/" if parent else ""
        display = body.get("displayName", body.get("display_name"))
        content = held.Content(
            name=f"{name}cachedContents/{self._ids.cache()}",
            model=model,
            fields=fields,
            chunks=chunks,
            tokens=tokens,
            created=at,
            updated=at,
            expires=held.usual_expiry(at) if ends is None else ends,
            display=None if display is None else str(msgspec.json.decode(display)),
        )
        simulator = self._billing.simulator(route, facts)
        simulator.hold(content.name, tokens, at=at, seconds=content.expires - at)
        self._prompts.contents.add(workspace, content)
        return dumps(content.told())

    # ── Errors and headers ───────────────────────────────────────────────────────────────────────

    def _spend(self, asked: Asked, route: Route, entry: Entry) -> Spent:
        place = route.provider, entry.workspace
        called = entry.called
        if called is None:
            return self._limits.spend(place, asked.at)
        outcome, limited = called.outcome, called.facts.rules.reads_limited
        free = outcome.read if limited is not None and not limited.value else 0
        return self._limits.spend(place, asked.at, outcome.total - free, entry.output)

    def _refused(self, problem: Upstream | InvalidRequest, route: Route, entry: Entry) -> Answer:
        error = _as_upstream(problem)
        error.request_id = entry.request_id
        entry.error = str(error)
        status, about, body = route.codec.write_error(error)
        return whole(body, status=status, headers=about, wire=route.wire)

    def _nowhere(self, asked: Asked, entry: Entry) -> Answer:
        """Nobody answers at this path; said as OpenAI says it."""
        error = NotFound(
            f"nothing answers {asked.method} {asked.path} here",
            status=404,
            code="not_found_error",
            request_id=entry.request_id,
        )
        entry.error = str(error)
        status, about, body = wire.get("openai_chat").write_error(error)
        return whole(body, status=status, headers=about)


def _long(prompt: Prompt, wire_name: str) -> int:
    """How many tokens the prompt is billed as, where that may be more than the model takes; 0
    where it cannot be: no token is shorter than a byte."""
    profile = prompt.facts.profile
    window = profile.context_tokens
    if wire_name == "ollama" and b'"num_ctx"' in prompt.body:
        return Counts(prompt.rendered).total  # the request names a window of its own
    if window is None or len(prompt.body) < min(window.published):
        return 0
    return Counts(prompt.rendered).total


def _as_upstream(problem: Upstream | InvalidRequest) -> Upstream:
    if isinstance(problem, Upstream):
        return problem
    place = problem.path.removeprefix("$").removeprefix(".")
    return RequestRejected(str(problem), status=400, param=place or None)
