"""Builds the call for a target from that of an app.

    own_call(call, target, ...)      the target speaks the wire of the app's request: the same call,
                                     with the target's model and the fields that the grant requires
    translate(planner, call, ...)    any other target, and calls of JSON-RPC: parameters are adapted

`calls.clamping` lowers limits that a request sets.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from anaphora import wire
from anaphora.cache.compared_prompt import CallHints, block_hashes
from anaphora.cache.simulator import RenderedPrompt
from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.client.costs.bounds import request_facts
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.target import Target
from anaphora.client.transport import HttpRequest
from anaphora.daemon.access.checks import check_grant, check_prompt
from anaphora.daemon.access.granted_models import hides_model
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.access.isolation import app_key, keys_separate, salt_field
from anaphora.daemon.faces import face_of
from anaphora.daemon.values import WireRequest
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, Reasoning
from anaphora.rendered import Plan, Rendered
from anaphora.traffic.planning import ReadRequest
from anaphora.values import Notice
from anaphora.wire.dialect import DialectCodec
from anaphora.wire.gemini.types import camel
from anaphora.wire.known_requests import RequestReading
from anaphora.wire.openai_chat.types import OLD_LIMIT, USAGE_KEY
from anaphora.wire.parts import own_members
from anaphora.wire.permissions.content import read_content
from anaphora.wire.reading import Members, decode_members, encode_members, known_text

from .call import AppCall

if TYPE_CHECKING:
    from .steps.plan import PlanRequest

#: The limit for providers that require one, if neither grant nor catalog has one.
DEFAULT_MAX_TOKENS = 1024

CACHE_KEY = "prompt_cache_key"


def max_tokens_to_fill(grant: LlmGrant, profile: Profile) -> int:
    """The limit for a request without one: the grant's maximum, capped by the model's."""
    known = None if profile.output_tokens is None else profile.output_tokens.value
    limits = [limit for limit in (grant.max_tokens, known) if limit is not None]
    return min(limits, default=DEFAULT_MAX_TOKENS)


def own_call(
    call: AppCall, target: Target, request: WireRequest, stream: bool, notices: list[Notice]
) -> Call:
    """The call for a target that speaks the wire of the app's request."""
    asked, endpoint, grant = call.call, target.endpoint, call.app.grant.llm
    assert asked is not None
    changes: dict[str, Any] = {}
    extras = dict(asked.extras or {})
    _fill_limit(call, target, changes, extras, notices)
    stores = not endpoint.features.stores_responses or "stored_responses" in grant.permissions
    if asked.params.store is None and not stores:
        changes["store"] = False
    if asked.params.stream != stream:
        changes["stream"] = stream
    omitted = () if endpoint.resolved.dialect is None else endpoint.resolved.dialect.omitted
    if stream and USAGE_KEY in extras and "stream_options" not in omitted:
        del extras[USAGE_KEY]
        call.hides_usage = True
    ir = asked.ir
    if call.masked:
        salt = salt_field(endpoint.resolved)
        name = salt or CACHE_KEY
        given = known_text(request.members, name)
        if given or salt:
            key = app_key(call.app.id, given)
            if not salt and ir.cache.key is not None:
                ir = replace(ir, cache=replace(ir.cache, key=key))
            else:
                own = own_members(extras, request.wire)
                own[name] = msgspec.Raw(string(key))
                extras[request.wire] = encode_members(own).decode()
            notices.append(own_key(name))
            call.masked = not salt and not keys_separate(target.rules)
    made = replace(
        asked,
        ir=ir,
        model=asked.model if hides_model(request) else target.model,
        params=replace(asked.params, **changes) if changes else asked.params,
        extras=extras or None,
    )
    codec = endpoint.wire
    return codec.adopt(made) if isinstance(codec, DialectCodec) else made


def own_key(name: str) -> Notice:
    text = f"the {name} is this app's own, so that it shares no cache with other apps"
    return Notice("cache_key_per_app", text, name)


def _fill_limit(
    call: AppCall,
    target: Target,
    changes: dict[str, Any],
    extras: dict[str, str],
    notices: list[Notice],
) -> None:
    """Sets the limit of the output if the grant or the provider requires one."""
    grant, facts = call.app.grant.llm, call.given
    assert facts is not None
    limited = grant.has_spend_limit or grant.max_tokens is not None
    if facts.max_tokens is None and (limited or target.endpoint.features.requires_max_tokens):
        tokens = changes["max_tokens"] = max_tokens_to_fill(grant, target.profile)
        named = target.profile.max_tokens_field
        if named is not None and named.value == "max_tokens":
            extras |= OLD_LIMIT
        field = facts.max_tokens_field
        text = f"{field} was missing and set to {tokens}, the most that the grant allows"
        notices.append(Notice("max_tokens_set", text, field))
        facts = replace(facts, max_tokens=tokens)
    call.facts = facts


def spelling(members: Members, name: str) -> str | None:
    """The name that a request uses for a field: Gemini also accepts snake_case."""
    if name in members:
        return name
    return next((key for key in members if "_" in key and camel(key) == name), None)


def with_members(body: bytes, members: Members, changes: Mapping[str, bytes]) -> bytes:
    """The body with these fields, whose values are JSON. `members` are the present ones."""
    if not changes:
        return body
    return encode_members(members | {name: msgspec.Raw(raw) for name, raw in changes.items()})


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
        asked = face_of(given.wire).repaired(asked)
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
    """Parses the request of a wire, and notes what its messages hold. `rest` is as for
    `RequestReading.parse`. Raises `InvalidRequest`."""
    request = call.request
    assert request is not None
    reading.parse(request.path, rest=rest)
    call.call, call.reading = reading.call, reading
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
