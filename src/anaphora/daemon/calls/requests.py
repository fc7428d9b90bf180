"""The request that a target gets for a call of an app: the app's own bytes where the target speaks
their wire, otherwise rendered anew."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from anaphora import wire
from anaphora.cache import CallHints, hints_of
from anaphora.cache.compared_prompt import ComparedPrompt
from anaphora.canonical import string
from anaphora.catalog import CacheRules, Dialect
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.target import Target
from anaphora.client.transport import HttpRequest
from anaphora.daemon.access.checks import check_grant, check_prompt
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.access.isolation import (
    OwnReads,
    SharedProviders,
    app_key,
    keys_separate,
    salt_field,
)
from anaphora.daemon.access.stored_prompts import hides_model
from anaphora.daemon.faces import face_of
from anaphora.daemon.facts.reading import RequestFacts, read_facts
from anaphora.daemon.money.bounds import CostBound, cost_bound
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.values import AppCall, WireRequest
from anaphora.errors import NotGranted
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import for_model
from anaphora.traffic.matching import RememberedCall
from anaphora.traffic.planning import ReadRequest, read_split
from anaphora.traffic.sent_requests import own_plan
from anaphora.values import Notice
from anaphora.wire.body_memory import DecodedBody
from anaphora.wire.reading import Members, decode_members, known_text
from anaphora.wire.splicing import splice

from .conversations import CallMemory
from .filling import (
    DEFAULT_MAX_TOKENS,
    FilledBody,
    fill_max_tokens,
    fill_store,
    max_tokens_to_fill,
    with_members,
)
from .foreign_params import AdaptedParams
from .own_prefixes import NOT_FOUND, PrefixScope

T = TypeVar("T")

#: Fields that every dialect of a wire reads like the wire's own provider.
_PLAIN = frozenset(
    "model messages system systemInstruction contents input instructions tools temperature top_p"
    " max_tokens max_output_tokens stop stop_sequences stream options think generationConfig"
    " metadata".split()
)
_NO_PROMPT = PromptIR()
_CACHED_CONTENT = frozenset(("cachedContent", "cached_content"))
_KEY = "prompt_cache_key"


class RequestBuilder:
    """Builds the requests of one call, for one target after the other."""

    def __init__(
        self,
        memory: CallMemory,
        shared: SharedProviders,
        call: AppCall,
        facts: RequestFacts | None = None,
        stored_tokens: int | None = None,
        *,
        off_loop: OffLoop,
        places_markers: bool = True,
    ) -> None:
        """`facts` are those of a request of a wire, `stored_tokens` the size of the history that it
        refers to."""
        self._memory = memory
        self._shared = shared
        self._call = call
        self._off_loop = off_loop
        self._given = facts
        self.stored_tokens = stored_tokens
        self._places_markers = places_markers and call.app.grant.llm.place_markers
        self._parsed: Call | None = None
        self.facts: RequestFacts | None = facts
        """Of the request for the current target, as it is sent."""
        self.remembered: RememberedCall | None = None
        """The call in memory, for the current target."""
        self._conversation: tuple[str, int] | None = None
        """What the call is in the conversation, by the first target that it was prepared for."""
        self.passes_bytes = False
        """The target speaks the wire of the app's request."""
        self.hides_usage = False
        """The usage of the stream was asked for by us."""
        self.masked = False
        """What other apps wrote to the cache must not be seen."""
        self.plan = Plan()
        self._place: PrefixScope | None = None
        """Where the current target caches; None before it is known."""
        self._found = NOT_FOUND
        """What the app has sent of the prompt before."""

    async def build(self, target: Target, *, stream: bool) -> PreparedRequest:
        if (before := self.remembered) is not None:  # at another target, which failed
            before.fail()
            self._conversation = self._conversation or (before.conversation, before.turn)
            self.remembered = None
        self.hides_usage, self._found, self._place = False, NOT_FOUND, None
        # A cached content is one app's own, and so is what is read from it.
        self.masked = not self._names_cached_content() and self._shared.isolates(
            self._call.app.grant, target.endpoint.id
        )
        request = self._call.request
        self.passes_bytes = request is not None and _speaks(target, request)
        if request is not None and self.passes_bytes:
            prepared = await self._pass_through(target, request, stream)
        else:
            prepared = await self._translate(target, stream)
        self.plan = prepared.plan
        if self.masked:
            await self._find_own(target.rules)
        return prepared

    async def work(self, act: Callable[[], T]) -> T:
        """The result of `act`, which takes time in proportion to the request: of a large one, in a
        thread."""
        if not self._call.is_large:
            return act()
        return await self._off_loop.run(self._call.app.id, act)

    async def _find_own(self, rules: CacheRules) -> None:
        prefixes, remembered, place = self._memory.prefixes, self.remembered, self._place
        if prefixes is not None and remembered is not None and place is not None:
            self._found = await prefixes.find(place, remembered.sent, rules)

    def own_reads(self, rules: CacheRules) -> OwnReads:
        """What the call may read of what its app wrote."""
        expected, remembered = None, self.remembered
        # Of conversations that only begin alike, a provider of units may have kept nothing.
        units = rules.automatic_breakpoint.value == "units"
        if remembered is not None and (remembered.continues or not units):
            expected = remembered.expect(rules)
        return OwnReads.of(expected).joined(self._found.reads)

    def note_prefixes(self, rules: CacheRules) -> None:
        """The call was answered: what it left in the cache is the app's own."""
        prefixes, remembered = self._memory.prefixes, self.remembered
        if self.masked and prefixes is not None and remembered is not None and self._place:
            prefixes.add(self._place, remembered.sent, rules, self._found.end)

    def _names_cached_content(self) -> bool:
        request = self._call.request
        if request is None or _CACHED_CONTENT.isdisjoint(request.members):
            return False
        return any(known_text(request.members, name) for name in _CACHED_CONTENT)

    # ── The app's own bytes ──────────────────────────────────────────────────────────────────────

    async def _pass_through(
        self, target: Target, request: WireRequest, stream: bool
    ) -> PreparedRequest:
        endpoint, dialect, rules = target.endpoint, target.endpoint.resolved.dialect, target.rules
        notices: list[Notice] = []
        filled = await self.work(lambda: self._fill(target, request, notices))
        body, members = filled.body, filled.members
        changes = self._changes(target, members, stream, notices)
        if changes:
            given = body, members, changes
            body = await self.work(lambda: with_members(*given))
            members = members | {name: msgspec.Raw(value) for name, value in changes.items()}
        face, path = face_of(endpoint.base_wire), request.path
        if face.model_in_path:
            path = face.path_to(target.model, stream=stream)
        decoded = DecodedBody(members, request.elements)
        split_path, now = path, time.time()

        def split() -> tuple[Rendered, Plan, ReadRequest]:
            rendered = for_model(endpoint.wire.split(decoded, (), split_path), target.profile)
            own, hints = own_plan(rendered, rules, members), hints_of({}, members)
            read = read_split(rendered, members, hints, rules, endpoint.system, dialect)
            if self._call.is_large:
                _hash(read.rendered)
            return rendered, own, read

        rendered, own, read = await self.work(split)
        plan = await self._plan(target, read, own, now)
        headers: tuple[tuple[str, str], ...] = ()
        if plan is not own:
            slots = rules.slots.value
            if plan.automatic is not None:
                slots -= rules.automatic_slots.value
            to_splice = body, plan, read.rendered, dialect
            spliced = await self.work(lambda: splice(*to_splice, slots=slots, decoded=decoded))
            body, headers = spliced.body, spliced.headers
            notices += spliced.notices
            plan = replace(plan, marks=spliced.marks)
            if self.remembered is not None:
                self.remembered.sent = replace(self.remembered.sent, plan=plan)
        if dialect is not None and dialect.path:
            path = dialect.path.replace("{model}:{method}", path.rpartition("/")[2])
        elif not face.model_in_path:
            path = rendered.envelope.path
        sent_headers = _headers(target.profile.api_version, dialect, request.headers) + headers
        facts = self.facts
        assert facts is not None
        params = Params(max_tokens=facts.max_tokens, service_tier=facts.service_tier or None)
        return PreparedRequest(
            call=Call(ir=_NO_PROMPT, model=target.model, params=params),
            rendered=read.rendered,
            plan=plan,
            at=now,
            outgoing=endpoint.outgoing_body(path, sent_headers, body),
            notices=tuple(notices),
        )

    def _fill(self, target: Target, request: WireRequest, notices: list[Notice]) -> FilledBody:
        """The request with the fields that the grant demands (D10)."""
        grant, base_wire, facts = self._call.app.grant.llm, request.wire, self._given
        if facts is None:
            facts = read_facts(
                target.endpoint.wire_name,
                request.members,
                request.path,
                request.headers,
                request.elements,
            )
        filled = FilledBody(request.body, request.members)
        limited = grant.has_spend_limit or grant.max_tokens is not None
        needed = limited or target.endpoint.features.requires_max_tokens
        if facts.max_tokens is None and not facts.unlimited_output and needed:
            tokens = max_tokens_to_fill(grant, target.profile)
            filled = fill_max_tokens(
                base_wire, filled.body, filled.members, tokens, profile=target.profile
            )
            field = facts.max_tokens_field
            text = f"{field} was missing and set to {tokens}, the most that the grant allows"
            notices.append(Notice("max_tokens_set", text, field))
            facts = replace(facts, max_tokens=tokens)
        if "stored_responses" not in grant.permissions:
            filled = fill_store(base_wire, filled.body, filled.members)
        self.facts = facts
        return filled

    def _changes(
        self, target: Target, members: Members, stream: bool, notices: list[Notice]
    ) -> dict[str, bytes]:
        """Fields of the body that cannot stay as they are."""
        changes: dict[str, bytes] = {}
        face = face_of(target.endpoint.base_wire)
        other = not face.model_in_path and known_text(members, "model") != target.model
        if other and not hides_model(self._call.request):
            changes["model"] = string(target.model)
        if stream and face.usage_on_request and not _omits(target, "stream_options"):
            options = _object(members, "stream_options")
            if bytes(options.get("include_usage", b"")) != b"true":
                options["include_usage"] = msgspec.Raw(b"true")
                changes["stream_options"] = msgspec.json.encode(options)
                self.hides_usage = True
        if self.masked:
            salt = salt_field(target.endpoint.resolved)
            name = salt or _KEY
            given = known_text(members, name)
            if given or salt:
                changes[name] = string(app_key(self._call.app.id, given))
                notices.append(_own_key(name))
                self.masked = not salt and not keys_separate(target.rules)
        return changes

    # ── A request of another wire ────────────────────────────────────────────────────────────────

    async def _translate(self, target: Target, stream: bool) -> PreparedRequest:
        call = self._parsed
        if call is None:
            call = self._parsed = await self.work(self._parse)
        grant, params, given = self._call.app.grant.llm, call.params, self._call.request
        if given is not None:
            call = wire.host_marks(call, given.wire, target.endpoint.base_wire)
        adapted = AdaptedParams(target, None if given is None else given.wire)
        adapted.adapt(params, self._default_limit(target))
        changes, notices = adapted.changes, adapted.notices
        if params.stream != stream:
            changes["stream"] = stream
        if params.store is None and target.endpoint.features.stores_responses:
            changes["store"] = "stored_responses" in grant.permissions
        call = target.with_defaults(call, changes)
        asked = call
        rendered = await self.work(lambda: target.render(asked))
        rules, now = target.rules, time.time()
        takes = bool(rendered.markers) and rules.slots.value > 0
        read = ReadRequest(
            provider=target.endpoint.system,
            dialect=target.endpoint.resolved.dialect,
            rendered=rendered,
            rules=rules,
            hints=CallHints(),
            takes_markers=takes
            or (rules.key_requests is not None and rendered.key_place is not None),
        )
        own = Plan(marks=rendered.marks, automatic=rendered.automatic)
        if self._call.is_large:
            await self.work(lambda: _hash(rendered))
        plan = await self._plan(target, read, own, now)
        codec = target.endpoint.wire
        request = await self.work(lambda: codec.assemble(rendered, plan))
        outgoing = target.endpoint.outgoing(request)
        await self.work(lambda: self._check_translated(target, outgoing, request.headers, rendered))
        return PreparedRequest(
            call=call,
            rendered=rendered,
            plan=plan,
            at=now,
            outgoing=outgoing,
            notices=tuple(notices),
        )

    def _default_limit(self, target: Target) -> int:
        """The limit of the output of a call that sets none."""
        most, default = self._call.app.grant.llm.max_tokens, target.endpoint.config.max_tokens
        if most is None:
            return default
        return most if self._call.call is None else min(default, most)

    def _check_translated(
        self,
        target: Target,
        outgoing: HttpRequest,
        headers: tuple[tuple[str, str], ...],
        rendered: Rendered,
    ) -> None:
        """Reads the facts of what is sent, and checks them: what was rendered may be read otherwise
        than what the app wrote. `headers` are the request's own, without those of the
        configuration. The prompt of a request of a wire was checked as the app wrote it, that of a
        call of JSON-RPC is checked as it is sent."""
        grant, endpoint = self._call.app.grant.llm, target.endpoint
        members = decode_members(outgoing.body)
        facts = self.facts = read_facts(endpoint.wire_name, members, outgoing.path, headers)
        check_grant(facts, grant, models=[target.model])
        if self._call.request is None and grant.approved_prompt is not None:
            unmarked = endpoint.wire.assemble(rendered, Plan()).body.join()
            check_prompt(facts, grant, decode_members(unmarked))

    def _parse(self) -> Call:
        if self._call.call is not None:
            return self._call.call
        request = self._call.request
        assert request is not None
        return parse_request(request, self._call.app.grant.llm)

    # ── Planning ─────────────────────────────────────────────────────────────────────────────────

    async def _plan(self, target: Target, read: ReadRequest, own: Plan, now: float) -> Plan:
        """Remembers the call, and returns the plan of what is sent: `own` where the request is to
        stay as it is."""
        app, rendered = self._call.app, read.rendered
        if not self._places_markers or rendered.marks or rendered.automatic is not None:
            read = replace(read, takes_markers=False)  # the app marks by itself
        scope = (app.id, target.endpoint.id, rendered.wire, target.model)
        elsewhere = await self._memory.look_up(read, scope=scope, at=now, own=own)
        remembered = self.remembered = self._memory.begin(
            read, scope=scope, at=now, own=own, elsewhere=elsewhere
        )
        if remembered.rules is None:
            remembered.rules = target.begun().rules
        if self._conversation is not None:
            remembered.conversation, remembered.turn = self._conversation
        place = self._place = PrefixScope(
            app.id, self._shared.account(target.endpoint.id), target.endpoint.id, target.model
        )
        if target.rules.key_requests is not None:
            await self._memory.keep_key(remembered, read, place, scope=scope)
        plan = remembered.plan or own
        if self.masked and rendered.key_place is not None and keys_separate(target.rules):
            key = app_key(app.id, plan.key or "")
            plan = replace(plan, key=key, notices=(*plan.notices, _own_key(_KEY)))
            self.masked = False
        if plan is not own:
            remembered.sent = replace(remembered.sent, plan=plan)
        return plan

    # ── Bounds ───────────────────────────────────────────────────────────────────────────────────

    def bound(self, prepared: PreparedRequest, target: Target) -> CostBound:
        """The most that an attempt can cost. Raises `NotGranted` where that is unknown and the
        grant limits what the app spends."""
        facts = self.facts
        assert facts is not None
        ttls = None
        if target.rules.mechanism.value == "explicit":
            ttls = {mark.ttl for mark in prepared.plan.marks} | set(facts.cache_ttls)
            if prepared.plan.automatic is not None:
                ttls.add(prepared.plan.automatic)
        bound = cost_bound(
            facts,
            prepared.rendered,
            target,
            at=prepared.at,
            stored_tokens=self.stored_tokens,
            ttls=ttls,
        )
        if bound.nano_usd is None and self._call.app.grant.llm.has_spend_limit:
            rule = "a call whose cost has no bound is refused under a limit in dollars"
            raise NotGranted(f"{bound.reason} ({rule})")
        return bound


def _hash(rendered: Rendered) -> None:
    """Hashes the blocks of a prompt, which the memory of calls asks for later."""
    prompt = ComparedPrompt(rendered, Plan())
    if len(prompt):
        prompt.key(len(prompt) - 1)


def parse_request(request: WireRequest, grant: LlmGrant) -> Call:
    """The call that a request asks for, with the limit that its wire needs (D10)."""
    body = request.body
    if wire.features(request.wire).requires_max_tokens:
        tokens = grant.max_tokens or DEFAULT_MAX_TOKENS
        body = fill_max_tokens(request.wire, body, request.members, tokens).body
    else:
        repaired = face_of(request.wire).repaired(request.members)
        body = with_members(body, request.members, repaired)
    return wire.get(request.wire).parse(body, request.path)


def _speaks(target: Target, request: WireRequest) -> bool:
    """Whether a target reads the bytes of a request as the app means them."""
    if target.endpoint.base_wire != request.wire:
        return False
    dialect = target.endpoint.resolved.dialect
    if dialect is None:
        return True
    named = _PLAIN.difference(dialect.fields)
    return all(name in named for name in request.members if name != "stream_options")


def _omits(target: Target, name: str) -> bool:
    dialect = target.endpoint.resolved.dialect
    return dialect is not None and name in dialect.omitted


def _own_key(name: str) -> Notice:
    text = f"the {name} is this app's own, so that it shares no cache with other apps"
    return Notice("cache_key_per_app", text, name)


@functools.lru_cache(maxsize=256)
def _merged_headers(
    version: str, dialect: tuple[tuple[str, str], ...], given: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    headers = {"content-type": "application/json"}
    if version:
        headers["anthropic-version"] = version
    return tuple({**headers, **dict(dialect), **dict(given)}.items())


def _headers(
    version: object, dialect: Dialect | None, given: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Of a request whose bytes go through; the same object for the same headers."""
    value = getattr(version, "value", "")
    own = () if dialect is None else tuple(dialect.headers.items())
    return _merged_headers(value, own, given)


def _object(members: Members, name: str) -> Members:
    raw = bytes(members.get(name, b"null"))
    return decode_members(raw) if raw.startswith(b"{") else {}
