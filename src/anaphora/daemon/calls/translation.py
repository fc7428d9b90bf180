"""The request for a target that does not speak the wire of the app's request, or of a call of
JSON-RPC: parsed, with the parameters that the target takes, and rendered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora import wire
from anaphora.cache import CallHints
from anaphora.cache.simulator import RenderedPrompt
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.target import Target
from anaphora.client.transport import HttpRequest
from anaphora.daemon.access.checks import check_grant, check_prompt
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.faces import face_of
from anaphora.daemon.facts.reading import read_facts
from anaphora.daemon.values import WireRequest
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, Reasoning
from anaphora.rendered import Plan, Rendered
from anaphora.traffic.planning import ReadRequest
from anaphora.values import Notice
from anaphora.wire.reading import decode_members

from .call import AppCall
from .filling import DEFAULT_MAX_TOKENS, fill_max_tokens, with_members

if TYPE_CHECKING:
    from .steps.plan import PlanRequest

#: The smallest budget of thinking that Anthropic takes.
_SMALLEST_BUDGET = 1024


async def translate(
    planner: PlanRequest, call: AppCall, target: Target, stream: bool
) -> PreparedRequest:
    work, given = planner.work, call.request
    asked = call.parsed
    if asked is None:
        asked = call.parsed = await work(call, lambda: _parse(call))
    params, grant = asked.params, call.app.grant.llm
    if given is not None:
        asked = wire.host_marks(asked, given.wire, target.endpoint.base_wire)
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
    plan = await planner.place_markers(call, target, read, own, now)
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
    """Hashes the blocks of a prompt, which the memory of calls asks for later."""
    prompt = RenderedPrompt(rendered, Plan())
    if len(prompt):
        prompt.key(len(prompt) - 1)


def _default_limit(call: AppCall, target: Target) -> int:
    """The limit of the output of a call that sets none."""
    most, default = call.app.grant.llm.max_tokens, target.endpoint.config.max_tokens
    if most is None:
        return default
    return most if call.call is None else min(default, most)


def _check(
    call: AppCall,
    target: Target,
    outgoing: HttpRequest,
    headers: tuple[tuple[str, str], ...],
    rendered: Rendered,
) -> None:
    """Reads the facts of what is sent, and checks them: what was rendered may be read otherwise
    than what the app wrote. `headers` are the request's own, without those of the configuration.
    The prompt of a request of a wire was checked as the app wrote it, that of a call of JSON-RPC is
    checked as it is sent."""
    grant, endpoint = call.app.grant.llm, target.endpoint
    members = decode_members(outgoing.body)
    facts = call.facts = read_facts(endpoint.wire_name, members, outgoing.path, headers)
    check_grant(facts, grant, models=[target.model])
    if call.request is None and grant.approved_prompt is not None:
        unmarked = endpoint.wire.assemble(rendered, Plan()).body.join()
        check_prompt(facts, grant, decode_members(unmarked))


def _parse(call: AppCall) -> Call:
    if call.call is not None:
        return call.call
    assert call.request is not None
    return parse_request(call.request, call.app.grant.llm)


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


class AdaptedParams:
    """What changes for one target. `wire` is that of the app's request; None: JSON-RPC."""

    def __init__(self, target: Target, wire: str | None) -> None:
        self._target = target
        self._wire = wire
        self.changes: dict[str, object] = {}
        self.notices: list[Notice] = []

    def adapt(self, params: Params, max_tokens: int) -> None:
        """`max_tokens` is what a call without a limit gets."""
        target = self._target
        if params.max_tokens is None:
            self.changes["max_tokens"] = max_tokens
            if self._wire is not None:
                text = f"the limit of the output was missing and set to {max_tokens} tokens"
                self.notices.append(Notice("max_tokens_set", text, "max_tokens"))
        highest = target.endpoint.max_temperature
        if params.temperature is not None and params.temperature > highest:
            self.changes["temperature"] = None
            text = f"{target.endpoint.id} takes a temperature up to {highest:g}; left out"
            self.notices.append(Notice("temperature_left_out", text, "temperature"))
        if self._wire is None or self._wire == target.endpoint.base_wire:
            return
        if params.n is not None and params.n > 1:
            reason = f"{target.endpoint.id} gives one choice a call here; asked for {params.n}"
            raise InvalidRequest(reason, path=face_of(self._wire).choices_field)
        face = face_of(target.endpoint.base_wire)
        if params.reasoning is not None and face.budgets_thinking:
            self._adapt_thinking(params.reasoning, params.max_tokens or max_tokens)

    def _adapt_thinking(self, reasoning: Reasoning, max_tokens: int) -> None:
        """Other wires switch thinking on and off; Claude models need a budget, or decide
        themselves."""
        mode, profile = reasoning.mode, self._target.profile
        if mode == "disabled" and profile.refuses("disabled_thinking"):
            self.changes["reasoning"] = replace(reasoning, mode=None)
            self._leave_out("reasoning", f"{self._target.model} always thinks; left out")
        elif mode != "enabled" or reasoning.budget_tokens is not None:
            return
        elif profile.refuses("budgeted_thinking"):
            self.changes["reasoning"] = replace(reasoning, mode="adaptive")
        elif max_tokens > _SMALLEST_BUDGET:
            budget = max(_SMALLEST_BUDGET, max_tokens // 2)
            self.changes["reasoning"] = replace(reasoning, budget_tokens=budget)
        else:
            self.changes["reasoning"] = replace(reasoning, mode=None)
            text = f"thinking needs a limit of the output above {_SMALLEST_BUDGET:,} tokens"
            self._leave_out("reasoning", f"{text}; left out")

    def _leave_out(self, name: str, text: str) -> None:
        self.notices.append(Notice("param_left_out", text, f"params.{name}"))
