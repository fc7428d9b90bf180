"""What the grant of an app allows: where a call may go, and what it may ask for."""

from __future__ import annotations

import time

from anaphora.client.choice import name_at
from anaphora.client.pool import ChosenTargets
from anaphora.client.routing import SessionRoute, conversation_key
from anaphora.client.target import Target
from anaphora.daemon.access.checks import check_capabilities, check_grant, check_prompt, is_granted
from anaphora.daemon.access.granted_models import (
    asked_for,
    name_of_keeper,
    refusal,
    refused_model,
)
from anaphora.daemon.access.stored_prompts import FIELD, names_stored_prompt, prompt_targets
from anaphora.daemon.calls.call import AppCall, CallTools
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.daemon.calls.translation import parse_request
from anaphora.daemon.facts.reading import read_new_facts
from anaphora.daemon.facts.request import RequestFacts, facts_before
from anaphora.errors import Denied, InvalidRequest, NotGranted, StoreUnavailable
from anaphora.redaction import quoted

_FOR_CALLS, _FOR_STREAMS = ("llm_complete",), ("llm_complete", "llm_stream")


class PermitCall(CallStep):
    """Finds the targets of a call. In this order: `InvalidRequest` where the provider is unknown,
    or the model not one of its `known_models` (the path is the field's: `provider`, `model`); then
    `Denied` by the grant, which is noted in the audit log."""

    name = "permit"

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    def check_early(self, call: AppCall, *, stream: bool) -> None:
        """Raises `Denied` for what an app may not do whatever its request holds: it has not the
        capability, or its requests of this minute are used up."""
        tools = self._tools
        if tools.draining:
            raise StoreUnavailable("the daemon is stopping")
        try:
            needed = _FOR_STREAMS if stream else _FOR_CALLS
            check_capabilities(call.app.grant, needed, call.method)
            tools.rates.check(call.app)
        except Denied as error:
            tools.denials.add(call.app.id, call.method, error, request_id=call.request_id)
            raise

    async def before(self, call: AppCall) -> None:
        tools, app = self._tools, call.app
        try:
            targets, hops = self._targets(call)
            if len(targets) > 1:
                if call.is_large:
                    key = await tools.off_loop.run(app.id, lambda: _route_key(call))
                else:
                    key = _route_key(call)
                targets = SessionRoute(targets, hops).order(lambda: key, time.monotonic())
            if call.is_large:
                facts = await tools.off_loop.run(app.id, lambda: _checked(call, targets))
            else:
                facts = _checked(call, targets)
            if facts is not None and facts.handles:
                call.stored_tokens = await tools.history.tokens(app.id, facts)
        except Denied as error:
            tools.denials.refuse(call, error)
            raise
        call.targets, call.given, call.facts = targets, facts, facts
        if tools.refresher is not None and app.grant.llm.keep_warm is not None:
            call.refresher = tools.refresher

    def _targets(self, call: AppCall) -> ChosenTargets:
        """The targets of a call. Raises `Denied` where the grant allows no call."""
        tools, app = self._tools, call.app
        pool, granted = tools.pool, tools.granted
        if tools.draining:
            raise StoreUnavailable("the daemon is stopping")
        check_capabilities(app.grant, _FOR_STREAMS if call.stream else _FOR_CALLS, call.method)
        names, named, model = app.grant.llm.providers, call.provider, call.model
        request = call.request
        if request is not None and FIELD in request.members and names_stored_prompt(request):
            return prompt_targets(call, pool, granted.chooser(names, None), granted.models(app)), ()
        if named is None and model in names and model in pool.routes:
            named, model = model, None  # the name of a route stands for its models
        if call.stored_at is not None:
            named = name_of_keeper(app.grant.llm, pool.routes, named, call.stored_at)
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
            near = granted.nearest(app, model)
            raise InvalidRequest(problem.reason + near, path="model") from None
        if named is None and model is not None and hops:
            targets, hops = asked_for(model, targets, hops)
        models = [target.model for target in targets]
        if model is not None and model not in models and not _is_alias(model, targets):
            models.append(model)  # a route answers with others
        for each in models:
            if not is_granted(each, app.grant.llm.models):
                raise refused_model(app, each, pool, granted.models(app))
        if call.stored_at is not None:
            targets = tuple(each for each in targets if each.endpoint.id == call.stored_at)
            if not targets:
                reason = f"the route has no model at {quoted(call.stored_at)}"
                raise InvalidRequest(reason, path="model")
        return targets, hops

    def _check_named(self, call: AppCall, named: str, model: str | None) -> None:
        """The provider or route that a call names."""
        app, pool = call.app, self._tools.pool
        resolved, is_granted_name = pool.providers.get(named), named in app.grant.llm.providers
        if (
            resolved is not None
            and model
            and (not is_granted_name or resolved.provider.known_models)
        ):
            why = refusal(resolved, name_at(resolved, model), app.grant.llm)
            if why:
                near = "" if why.endswith("?") else self._tools.granted.nearest(app, model)
                raise InvalidRequest(why + near, path="model")
        if not is_granted_name and (resolved is not None or named in pool.routes):
            reason = f"the provider {quoted(named)} is not granted to {app.id}"
            raise NotGranted(reason, param="provider")


def _is_alias(model: str, targets: tuple[Target, ...]) -> bool:
    """Whether a target has the model under another name."""
    return any(each.model == name_at(each.endpoint.resolved, model) for each in targets)


def _checked(call: AppCall, targets: tuple[Target, ...]) -> RequestFacts | None:
    """What a request of a wire asks for, which the grant allows; a call of JSON-RPC is checked when
    it is rendered."""
    request, grant = call.request, call.app.grant.llm
    if request is None:
        return None
    ends = [target.endpoint for target in targets if target.endpoint.base_wire == request.wire]
    name = ends[0].wire_name if ends else request.wire
    members, path, headers = request.members, request.path, request.headers
    facts, elements = None, request.elements
    if elements is not None:
        facts = facts_before((name, path, headers), request.wire, members, elements)
    if facts is None:
        facts = read_new_facts(name, members, path, headers, elements)
    check_grant(facts, grant, models=[target.model for target in targets])
    if grant.approved_prompt is not None:
        check_prompt(facts, grant, request.members, request.elements)
    return facts


def _route_key(call: AppCall) -> bytes:
    if call.call is not None:
        return conversation_key(call.call)
    assert call.request is not None
    return conversation_key(parse_request(call.request, call.app.grant.llm))
