"""Builds the request for a target that does not speak the wire of the app's request, or for a call
of JSON-RPC: parses it, adapts its parameters to the target, and renders it.

Missing fields of a request on the same wire are inserted into its bytes, and nothing else changes:

    filled = fill_max_tokens("anthropic", body, members, 2048)
    filled.body, filled.members

Only absent fields (and nulls) are filled; `calls.clamping` lowers limits that a request sets.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from anaphora import wire
from anaphora import wire as wires
from anaphora.cache.compared_prompt import CallHints, block_hashes
from anaphora.cache.simulator import RenderedPrompt
from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.client.costs.bounds import request_facts
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.target import Target
from anaphora.client.transport import HttpRequest
from anaphora.daemon.access.checks import check_grant, check_prompt
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.faces import face_of
from anaphora.errors import InvalidRequest
from anaphora.prompt import Params, Reasoning
from anaphora.rendered import Plan, Rendered
from anaphora.traffic.planning import ReadRequest
from anaphora.values import Notice
from anaphora.wire.gemini.types import camel
from anaphora.wire.known_requests import RequestReading
from anaphora.wire.permissions.content import read_content
from anaphora.wire.reading import Members, decode_members
from anaphora.wire.spans import MemberSpan, document_span, member_spans
from anaphora.wire.tables import request_table

from .call import AppCall

if TYPE_CHECKING:
    from .steps.plan import PlanRequest

#: The limit for providers that require one, if neither grant nor catalog has one.
DEFAULT_MAX_TOKENS = 1024

_NULL = msgspec.Raw(b"null")


class FilledBody(msgspec.Struct, frozen=True, eq=False):
    """A request's bytes, and its fields in them."""

    body: bytes
    members: Members


def max_tokens_to_fill(grant: LlmGrant, profile: Profile) -> int:
    """The limit for a request without one: the grant's maximum, capped by the model's."""
    known = None if profile.output_tokens is None else profile.output_tokens.value
    limits = [limit for limit in (grant.max_tokens, known) if limit is not None]
    return min(limits, default=DEFAULT_MAX_TOKENS)


def fill_max_tokens(
    wire: str, body: bytes, members: Members, tokens: int, *, profile: Profile | None = None
) -> FilledBody:
    """The request with a limit of its output. `wire` is a name of `wire.WIRES`; the profile says
    which of the two field names a Chat host accepts."""
    face = face_of(wire)
    inside, name = face.limit_place
    if any(members.get(other, _NULL) != _NULL for other in face.limit_names):
        return FilledBody(body, members)
    if face.limit_names and profile is not None:
        own = profile.max_tokens_field
        name = name if own is None else own.value
    snake_case = request_table(wire).rename is camel
    return fill_field(body, members, name, b"%d" % tokens, inside=inside, snake_case=snake_case)


def fill_store(wire: str, body: bytes, members: Members) -> FilledBody:
    """The request with `store: false`, on a wire whose provider stores answers by default, for apps
    that may not use stored ones."""
    if not wires.features(wire).stores_responses:
        return FilledBody(body, members)
    return fill_field(body, members, "store", b"false")


def fill_field(
    body: bytes,
    members: Members,
    name: str,
    value: bytes,
    *,
    inside: str = "",
    snake_case: bool = False,
) -> FilledBody:
    """The request with this field, if it is absent or null: at the top level, or in the object
    `inside`, which is added if absent. The field's JSON is `value`. With `snake_case` the provider
    reads that spelling as well; to others it is an unknown field."""
    if not inside:
        held = spelling(members, name) if snake_case or name in members else None
        if held is None:
            return FilledBody(_append(body, name, value), {**members, name: msgspec.Raw(value)})
        if members[held] != _NULL:
            return FilledBody(body, members)
        span = member_spans(body, document_span(body), "$")[held]
        return FilledBody(_replace(body, span, value), {**members, held: msgspec.Raw(value)})
    outer = spelling(members, inside) if snake_case or inside in members else None
    if outer is None or members[outer] == _NULL:
        return fill_field(body, members, inside, b'{"%s":%s}' % (name.encode(), value))
    old = bytes(members[outer])
    inner = msgspec.json.decode(old, type=dict[str, msgspec.Raw])
    new = fill_field(old, inner, name, value, snake_case=snake_case).body
    if new == old:
        return FilledBody(body, members)
    span = member_spans(body, document_span(body), "$")[outer]
    return FilledBody(_replace(body, span, new), {**members, outer: msgspec.Raw(new)})


def spelling(members: Members, name: str) -> str | None:
    """The name that a request uses for a field: Gemini also accepts snake_case."""
    if name in members:
        return name
    return next((key for key in members if "_" in key and camel(key) == name), None)


def _append(body: bytes, name: str, value: bytes) -> bytes:
    """The document with a member added at its end."""
    end = document_span(body).end - 1
    last = end
    while body[last - 1] in b" \t\n\r":
        last -= 1
    comma = b"" if body[last - 1 : last] == b"{" else b","
    return b'%s%s"%s":%s%s' % (body[:end], comma, name.encode(), value, body[end:])


def _replace(body: bytes, span: MemberSpan, value: bytes) -> bytes:
    return body[: span.start] + value + body[span.end :]


def with_members(body: bytes, members: Members, changes: Mapping[str, bytes]) -> bytes:
    """The body with these fields: replaced if present, otherwise added at its end. `members` are
    the present ones; values are JSON."""
    if not changes:
        return body
    span = document_span(body)
    edits: list[tuple[int, int, bytes]] = []
    if any(name in members for name in changes):
        spans = member_spans(body, span, "$")
        edits = [
            (spans[name].start, spans[name].end, value)
            for name, value in changes.items()
            if name in spans
        ]
    added = b"".join(
        b"," + string(name) + b":" + value for name, value in changes.items() if name not in members
    )
    if added:
        end = span.end - 1
        edits.append((end, end, added if members else added[1:]))
    pieces: list[bytes | memoryview] = []
    view, done = memoryview(body), 0
    for start, stop, inserted in sorted(edits):
        pieces += [view[done:start], inserted]
        done = stop
    pieces.append(view[done:])
    return b"".join(pieces)


def member_object(members: Members, name: str) -> Members:
    """The members of an object in a field; empty if the field is absent or not an object."""
    raw = bytes(members.get(name, b""))
    return decode_members(raw) if raw.startswith(b"{") else {}


async def translate(
    planner: PlanRequest, call: AppCall, target: Target, stream: bool
) -> PreparedRequest:
    work, given, asked = planner.work, call.request, call.call
    assert asked is not None
    params, grant = asked.params, call.app.grant.llm
    if given is not None:
        marked = functools.partial(wire.host_marks, asked, given.wire, target.endpoint.base_wire)
        asked = await work(call, marked)
    adapted = AdaptedParams(target, None if given is None else given.wire)
    adapted.adapt(params, _default_limit(call, target))
    changes, notices = adapted.changes, adapted.notices
    if params.stream != stream:
        changes["stream"] = stream
    if params.store is None and target.endpoint.features.stores_responses:
        changes["store"] = "stored_responses" in grant.permissions
    complete = target.with_defaults(asked, changes)
    rendered = await work(call, lambda: target.render(complete))
    rules, now = target.rules, time.time()
    takes = bool(rendered.markers) and rules.slots.value > 0
    read = ReadRequest(
        provider=target.endpoint.system,
        dialect=target.endpoint.resolved.dialect,
        rendered=rendered,
        rules=rules,
        hints=CallHints(),
        takes_markers=takes or (rules.key_requests is not None and rendered.key_place is not None),
    )
    own = Plan(marks=rendered.marks, automatic=rendered.automatic)
    if call.is_large:
        await work(call, lambda: hash_blocks(rendered))
    plan = planner.place_markers(call, target, read, own, now)
    codec = target.endpoint.wire
    request = await work(call, lambda: codec.assemble(rendered, plan))
    outgoing = target.endpoint.outgoing(request)
    await work(call, lambda: _check(call, target, outgoing, request.headers, rendered))
    return PreparedRequest(
        call=complete,
        rendered=rendered,
        plan=plan,
        at=now,
        outgoing=outgoing,
        notices=tuple(notices),
    )


def hash_blocks(rendered: Rendered) -> None:
    """Hashes and counts the blocks of a prompt ahead of their use by the memory of calls."""
    prompt = RenderedPrompt(rendered, Plan())
    if len(prompt):
        prompt.key(len(prompt) - 1)
        block_hashes(prompt, 0)
        prompt.tokens(0)


def _default_limit(call: AppCall, target: Target) -> int:
    """The output limit of a call without one."""
    most, default = call.app.grant.llm.max_tokens, target.endpoint.config.max_tokens
    if most is None:
        return default
    return most if call.request is not None else min(default, most)


def _check(
    call: AppCall,
    target: Target,
    outgoing: HttpRequest,
    headers: tuple[tuple[str, str], ...],
    rendered: Rendered,
) -> None:
    """Reads the facts of the rendered request and checks them again, since they may differ from
    those of the app's request. `headers` are the request's own, without configured ones. The prompt
    of a request of a wire was checked before; that of a call of JSON-RPC is checked here."""
    grant, endpoint = call.app.grant.llm, target.endpoint
    facts = call.facts = request_facts(target, outgoing.path, outgoing.body, headers)
    check_grant(facts, grant, models=[target.model])
    if call.request is None and grant.approved_prompt is not None:
        unmarked = endpoint.wire.assemble(rendered, Plan()).body.join()
        check_prompt(facts, grant, decode_members(unmarked))


def parse_request(call: AppCall, reading: RequestReading, rest: bytes | None = None) -> None:
    """Parses the request of a wire, with the corrections that the wire's own SDK needs, and notes
    what its messages hold. `rest` is as for `RequestReading.parse`. Raises `InvalidRequest`."""
    request = call.request
    assert request is not None
    reading.parse(request.path, rest=rest)
    call.call = face_of(request.wire).repaired(reading.call)
    call.content = read_content(request.wire, call.call)


class AdaptedParams:
    """Adapts params to one target. `wire` is that of the app's request; None: JSON-RPC."""

    def __init__(self, target: Target, wire: str | None) -> None:
        self._target = target
        self._face = face_of(target.endpoint.base_wire)
        self._wire = wire
        self.changes: dict[str, object] = {}
        self.notices: list[Notice] = []

    def adapt(self, params: Params, max_tokens: int) -> None:
        """`max_tokens` is the limit for a call without one."""
        target = self._target
        if params.max_tokens is None:
            self.changes["max_tokens"] = max_tokens
            if self._wire is not None:
                text = f"the limit of the output was missing and set to {max_tokens} tokens"
                self.notices.append(Notice("max_tokens_set", text, "max_tokens"))
        highest = target.endpoint.max_temperature
        if params.temperature is not None and params.temperature > highest:
            self.changes["temperature"] = None
            text = f"{target.endpoint.id} accepts a temperature up to {highest:g}; left out"
            self.notices.append(Notice("temperature_left_out", text, "temperature"))
        if self._wire is None or self._wire == target.endpoint.base_wire:
            return
        if params.n is not None and params.n > 1:
            reason = f"{target.endpoint.id} returns one choice per call here; {params.n} requested"
            raise InvalidRequest(reason, path=face_of(self._wire).choices_field)
        if params.reasoning is not None and self._face.always_thinks:
            self._keep_thinking(params.reasoning)

    def _keep_thinking(self, reasoning: Reasoning) -> None:
        """Other wires switch thinking off; some Claude models always think."""
        if reasoning.mode == "disabled" and self._target.profile.refuses("disabled_thinking"):
            self.changes["reasoning"] = replace(reasoning, mode=None)
            self._leave_out("reasoning", f"{self._target.model} always thinks; left out")

    def _leave_out(self, name: str, text: str) -> None:
        self.notices.append(Notice("param_left_out", text, f"params.{name}"))
