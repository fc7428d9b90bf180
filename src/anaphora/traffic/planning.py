"""Plans the markers of a program's requests, from the requests alone.

    plans = ConversationPlans()
    read = read_request(method, provider, path, headers, body)
    planned = plans.add(read, scope=account, at=now)
    planned.plan            None: leave the request unchanged

A program does not say which requests belong together, nor which will follow. Conversations are
found by the beginnings of prompts, as for verdicts. Reuse is expected of a request that continues
or begins like an earlier one, that contains tools or a reply, or that itself asks for caching.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Literal, TypeAlias

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora import catalog
from anaphora.bounded import BoundedMap
from anaphora.cache import PrefixIndex, hints_of
from anaphora.cache.compared_prompt import CallHints
from anaphora.cache.plan import AppMemory, Gaps, MatchedCallPlanner, has_replies
from anaphora.cache.plan.memory import ConversationState
from anaphora.cache.prefix_index import EarlierCall
from anaphora.catalog import CacheRules, Dialect
from anaphora.prompt import Call, ToolMark
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.rendered.request_log import droppable
from anaphora.tokens import Bills, for_model
from anaphora.values import TTL_SECONDS, AnyTool, Ttl
from anaphora.wire import Wire
from anaphora.wire.cloud_paths import unread_model
from anaphora.wire.cutting import cut_call
from anaphora.wire.reading import Members, object_members, request_error

from .calls import LoggedCall, counts_tokens, wire_at

OwnMarkers: TypeAlias = Literal["keep", "replace"]
"""How markers that a program places itself are treated."""

#: Number of models at accounts whose history is remembered.
_MOST_MEMORIES = 64
#: Number of calls whose continuation is recognised, and bytes of their prompts.
_MOST_CALLS, _MOST_BYTES = 4096, 32 * 1024 * 1024
#: Maximum number of blocks at the end of a prompt that may change from call to call, and how often
#: that must be seen: a last message is seldom edited.
_MOST_CHANGING, _TIMES_SEEN = 4, 2
#: Fields by which a request continues objects stored at the provider.
STORED_FIELDS = ("previous_response_id", "conversation", "prompt", "thread")
_STORED_FIELDS = frozenset(STORED_FIELDS)
_AUTOMATIC: dict[Ttl | None, Plan] = {ttl: Plan(automatic=ttl) for ttl in (None, *TTL_SECONDS)}


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request of a program as chunks."""

    provider: str
    dialect: Dialect | None
    rendered: Rendered
    rules: CacheRules
    hints: CallHints
    takes_markers: bool
    """Its provider accepts markers or a cache key in the body, and the body has the whole
    prompt."""
    continues_stored: bool = False
    """It accepts a cache key, and continues a conversation stored at the provider."""
    codec: Wire | None = None
    """What rendered it,"""
    call: Call | None = None
    """and the call, if it may be rendered again."""


class PlannedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call with its plan, kept as long as a later call may continue it."""

    plan: Plan | None
    """None: the request is left unchanged."""
    state: ConversationState
    chunks: int
    changing: int = 0
    """How many last blocks of the previous call this one does not repeat."""
    seen: int = 0
    """How often in a row that many were not repeated."""
    continued: bool = False
    """A later call continues it; any other one is a branch."""
    bills: Bills = ()
    """(estimated, billed) tokens of the conversation."""
    beginning: bytes | None = None
    """The key of the part of its prompt that others share."""
    longer: Ttl | None = None
    """The lifetime that the request's own markers get."""
    tools: tuple[bytes, ...] = ()
    """Digests of its tools in their order, and"""
    host: tuple[str, float] = ("", 0.0)
    """the host behind a router that answered, and until when it has the prefix; if requests are
    fixed."""


def read_request(
    method: str, provider: str, path: str, headers: Mapping[str, str], body: bytes
) -> ReadRequest | None:
    """None if it is not a model call, or of an unknown provider. Header names are lower-case.
    Raises `InvalidRequest` if it cannot be read."""
    wire = wire_at(path)
    encoded = is_encoded(headers)
    if method != "POST" or wire is None or not provider or encoded or counts_tokens(path):
        return None
    if unread_model(path):
        return None
    logged = LoggedCall(request=body, response=b"", wire=wire, provider=provider, path=path)
    codec, provider = logged.codec()
    members = object_members(body, "$", request_error)
    call = codec.parse(body, path)
    rendered = cut_call(codec, call)
    read = read_split(
        for_model(droppable(rendered), catalog.profile(provider, rendered.model)),
        members,
        hints_of(headers, members),
        catalog.rules(provider, rendered.model, rendered.wire),
        provider,
        getattr(codec, "dialect", None),
    )
    return replace(read, codec=codec, call=call)


def reordered(read: ReadRequest, call: Call) -> ReadRequest:
    """The request with its tools in another order."""
    assert read.codec is not None
    rendered = droppable(cut_call(read.codec, call))
    profile = catalog.profile(read.provider, rendered.model)
    return replace(read, rendered=for_model(rendered, profile), call=call)


def may_take_markers(rules: CacheRules) -> bool:
    """Whether any request of a model accepts markers or a cache key."""
    return rules.slots.value > 0 or rules.key_requests is not None


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Whether the body is compressed: markers cannot be placed in it."""
    return headers.get("content-encoding", "identity").lower() not in ("", "identity")


def own_plan(rendered: Rendered, rules: CacheRules, members: Members) -> Plan:
    """The request's markers, and the one that the provider adds unless the request disables it."""
    automatic = rendered.automatic
    if automatic is None and rules.automatic_breakpoint.value == "last_message":
        options = msgspec.json.decode(members.get("prompt_cache_options", b"null"))
        explicit = isinstance(options, dict) and options.get("mode") == "explicit"
        if not explicit and rules.default_ttl is not None:
            automatic = rules.default_ttl.value
    if not rendered.marks:
        return _AUTOMATIC[automatic]
    return Plan(marks=rendered.marks, automatic=automatic)


def read_split(
    rendered: Rendered,
    members: Members,
    hints: CallHints,
    rules: CacheRules,
    provider: str,
    dialect: Dialect | None,
) -> ReadRequest:
    """A request that was rendered before."""
    own_breakpoint = rules.automatic_breakpoint.value == "last_message"
    if not own_breakpoint and not any(rendered.request_markers.values()):
        rendered = replace(rendered, automatic=None)
    marks = bool(rendered.markers)
    keyed = rules.key_requests is not None and isinstance(rendered.key_place, bytes)
    fields = _STORED_FIELDS.intersection(members)
    stored = bool(fields) and any(bytes(members[name]) != b"null" for name in fields)
    return ReadRequest(
        provider=provider,
        dialect=dialect,
        rendered=rendered,
        rules=rules,
        hints=hints,
        takes_markers=not stored and ((marks and rules.slots.value > 0) or keyed),
        continues_stored=stored and keyed and bool(hints.previous_reply),
    )


def in_tool_order(call: Call, order: tuple[bytes, ...]) -> Call | None:
    """The call with its tools in the order of an earlier one; None if they are in that order, or
    are not the same tools, or two of them have markers, whose lifetimes must fall. A single marker
    keeps its place in the list."""
    own = tool_order(call)
    marked = sum(isinstance(mark, ToolMark) for mark in call.ir.cache.marks)
    if own == order or marked > 1 or sorted(own) != sorted(order):
        return None
    found: dict[bytes, list[AnyTool]] = {}
    for digest, tool in zip(reversed(own), reversed(call.tools), strict=True):
        found.setdefault(digest, []).append(tool)
    tools = tuple(found[digest].pop() for digest in order)
    places = {tool.name: index for index, tool in enumerate(call.tools)}
    marks = tuple(
        replace(mark, name=tools[places[mark.name]].name) if isinstance(mark, ToolMark) else mark
        for mark in call.ir.cache.marks
    )
    ir = replace(call.ir, cache=replace(call.ir.cache, marks=marks)) if marked else call.ir
    return replace(call, tools=tools, ir=ir)


def tool_order(call: Call) -> tuple[bytes, ...]:
    """Digests of a request's tools in their order."""
    return tuple(blake3(msgspec.json.encode(tool)).digest(16) for tool in call.tools)


class ConversationPlans:
    """Plans the requests of all programs, each conversation with its own history. Bounded. Not
    thread-safe."""

    def __init__(
        self,
        own_markers: OwnMarkers = "keep",
        *,
        fix: bool = False,
    ) -> None:
        """`fix`: only prompts that repeat or begin like an earlier one are marked, none that the
        provider caches anyway; and the request's own markers get longer lifetimes."""
        self._own_markers = own_markers
        self._fix = fix
        self._index: PrefixIndex[PlannedCall] = PrefixIndex(_MOST_CALLS, _MOST_BYTES)
        self._memories = BoundedMap[Hashable, AppMemory](_MOST_MEMORIES)

    def before(self, request: ReadRequest, *, scope: Hashable) -> PlannedCall | None:
        """The call that a request continues."""
        own = _own_scope(request, scope)
        found = self._index.find(request.rendered, scope=own, hints=request.hints)
        return found.call if found is not None and found.continues else None

    def add(self, request: ReadRequest, *, scope: Hashable, at: float) -> PlannedCall:
        """Plans a request and remembers it."""
        own = _own_scope(request, scope)
        memory = self._memory(own, request.rules)
        call = _begun(request, memory)
        found = self._index.add(request.rendered, call, scope=own, hints=request.hints)
        return self._plan(call, request, found, memory, at)

    def add_found(
        self,
        request: ReadRequest,
        found: EarlierCall[PlannedCall] | None,
        *,
        scope: Hashable,
        at: float,
    ) -> PlannedCall:
        """The same for a request whose earlier call is known: no lookup, and the caller remembers
        the request."""
        memory = self._memory_of(request, scope)
        return self._plan(_begun(request, memory), request, found, memory, at)

    def _plan(
        self,
        call: PlannedCall,
        request: ReadRequest,
        found: EarlierCall[PlannedCall] | None,
        memory: AppMemory,
        at: float,
    ) -> PlannedCall:
        rendered, state, repeats = request.rendered, None, False
        if self._own_markers == "replace":
            rendered = replace(rendered, marks=())
        if found is not None and found.continues:
            before = found.call
            state = call.state = _state_after(before, found.chunks, rendered, memory)
            call.bills = before.bills
            call.changing = before.chunks - found.chunks
            call.seen = before.seen + 1 if call.changing == before.changing else 1
            rendered = _without_changing_end(rendered, call)
            repeats = call.changing <= _MOST_CHANGING and found.chunks >= _leading(rendered)
        if not request.takes_markers:
            if request.continues_stored:
                call.plan = MatchedCallPlanner(memory, rendered, call.state).key_plan(
                    rendered, at=at
                )
            return call
        if self._fix and (rendered.marks or rendered.automatic in rendered.request_markers):
            call.longer = _longer_ttl(memory, Gaps() if state is None else state.gaps, at)
            rendered = _lengthened(rendered, call.longer)
        planner = MatchedCallPlanner(memory, rendered, state)
        call.state = planner.state
        plan = Plan(marks=rendered.marks)
        if planner.reuse_expected:
            plan = call.plan = planner.plan(rendered, at=at)
            unsure = not repeats and not planner.begins_like_another(rendered)
            if memory.rules.unmarked_caching is not None:  # in a cache of their own
                unsure = not rendered.marks
            unsure = unsure or (plan.only_marks and not plan.marks)
            if self._fix and unsure and plan.key is None:
                call.plan = None
                plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
        elif (keyed := planner.key_plan(rendered, at=at)) is not None:
            plan = call.plan = keyed
        planner.sent_matched(rendered, plan, at=at)
        call.beginning = planner.beginning
        return call

    def _memory_of(self, request: ReadRequest, scope: Hashable) -> AppMemory:
        return self._memory(_own_scope(request, scope), request.rules)

    def _memory(self, own: Hashable, rules: CacheRules) -> AppMemory:
        memory = self._memories.use(own)
        if memory is None:
            memory = self._memories[own] = AppMemory(rules)
        return memory


def _begun(request: ReadRequest, memory: AppMemory) -> PlannedCall:
    return PlannedCall(plan=None, state=memory.start(), chunks=len(request.rendered))


def _state_after(
    before: PlannedCall, chunks: int, rendered: Rendered, memory: AppMemory
) -> ConversationState:
    """The planner's state for the prompt after a call, whose first `chunks` they share."""
    # A changed prompt without replies begins a conversation, mostly of another user.
    begins = chunks < before.chunks and not has_replies(rendered)
    forked, before.continued = before.continued or begins, True
    return memory.fork(before.state, begins=begins) if forked else before.state


def _own_scope(request: ReadRequest, scope: Hashable) -> Hashable:
    """The model at an account."""
    return scope, request.provider, request.rendered.wire, request.rendered.model


def _longer_ttl(memory: AppMemory, gaps: Gaps, at: float) -> Ttl | None:
    """The lifetime that the program's own markers should have, if a pause was longer than theirs
    and a longer one pays."""
    shortest = TTL_SECONDS[memory.rules.ttls.value[-1]] if memory.rules.ttls.value else 0
    pauses = [*gaps.lengths, *([] if gaps.last is None else [at - gaps.last])]
    if not shortest or max(pauses, default=0.0) <= shortest:
        return None
    best = memory.costs.best_ttl(gaps, at)
    return best if best is not None and TTL_SECONDS[best] > shortest else None


def _lengthened(rendered: Rendered, ttl: Ttl | None) -> Rendered:
    """The request with its own markers as they are sent."""
    if ttl is None:
        return rendered
    marks = (
        Mark(mark.chunk, ttl, mark.splice) if TTL_SECONDS[mark.ttl] < TTL_SECONDS[ttl] else mark
        for mark in rendered.marks
    )
    asked = rendered.automatic in rendered.request_markers
    return replace(rendered, marks=tuple(marks), automatic=ttl if asked else rendered.automatic)


def _without_changing_end(rendered: Rendered, call: PlannedCall) -> Rendered:
    """The plan without a marker on the last blocks, if earlier calls show that they change: an
    entry written there is never read."""
    if not 0 < call.changing <= _MOST_CHANGING or call.seen < _TIMES_SEEN:
        return rendered
    return replace(rendered, cacheable=max(_leading(rendered), len(rendered) - call.changing))


def _leading(rendered: Rendered) -> int:
    """The number of blocks of tools and system prompt."""
    return sum(run.count for run in rendered.runs if run.section != "messages")
