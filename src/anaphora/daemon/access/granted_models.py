"""The models that an app may call, and which of them a request names: directly, by a route, or by a
prompt stored at the provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeAlias

from msgspec.structs import replace

from anaphora import catalog
from anaphora.client.choice import name_at, refuses
from anaphora.client.config import Hop
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.client.pool import ChosenTargets, ProviderPool, TargetChooser
from anaphora.client.target import Target
from anaphora.daemon.values import App, GrantedModel, WireRequest
from anaphora.errors import AnaphoraError, InvalidRequest, NotGranted, RequestRejected
from anaphora.redaction import quoted
from anaphora.wire.reading import known_text
from anaphora.yaml_values import nearest

from .checks import is_model_granted
from .grants import LlmGrant

#: Sets of granted providers for which a chooser is kept.
_MOST_CHOOSERS = 256
#: The status of a model that is not known.
_NOT_FOUND = 404
Routes: TypeAlias = Mapping[str, Sequence[Hop]]


class GrantedTargets:
    """The providers, routes and models that apps may call."""

    def __init__(self, pool: ProviderPool) -> None:
        self._pool = pool
        self.choosers: dict[tuple[str | None, tuple[str, ...]], TargetChooser] = {}

    def reload(self) -> None:
        """Drops everything derived from the providers, which have changed."""
        self.choosers.clear()

    def chooser(self, names: tuple[str, ...], own_wire: str | None) -> TargetChooser:
        """Chooses among granted providers, preferring those that speak the wire of the request."""
        chooser = self.choosers.get((own_wire, names))
        if chooser is None:
            if len(self.choosers) >= _MOST_CHOOSERS:
                self.choosers.clear()
            ordered = sorted(names, key=lambda name: self._wire_of(name) != own_wire)
            chooser = self.choosers[own_wire, names] = TargetChooser(self._pool, ordered)
        return chooser

    def _wire_of(self, name: str) -> str | None:
        resolved = self._pool.providers.get(name)
        if resolved is None:
            return None
        return resolved.wire if resolved.dialect is None else resolved.dialect.wire

    def models(self, app: App) -> tuple[GrantedModel, ...]:
        """The models of an app's providers and routes, and the routes' names."""
        if "llm_complete" not in app.grant.capabilities or app.grant.missing:
            return ()
        pool, chooser = self._pool, self.chooser(app.grant.llm.providers, None)
        found: dict[tuple[str, str], GrantedModel] = {}
        for name in app.grant.llm.providers:
            hops = pool.routes.get(name)
            if hops is None and name in pool.providers:
                for model in models_of(pool.providers[name]):
                    if is_model_granted(model, app.grant.llm):
                        found.setdefault((name, model), _granted(name, pool.providers[name], model))
            if hops is not None and _may_call_route(app, name, chooser):
                found[name, name] = GrantedModel(provider=name, model=name, is_route=True)
            for hop in hops or ():
                resolved = pool.providers[hop.provider]
                for model in [hop.model] if hop.model else models_of(resolved):
                    if is_model_granted(model, app.grant.llm):
                        found.setdefault((name, model), _granted(name, resolved, model))
        return tuple(found.values())

    def with_nearest(self, reason: str, app: App, model: str) -> str:
        return with_nearest(reason, model, self.models(app))

    def reaches(self, grant: LlmGrant, provider: str) -> bool:
        """Whether a grant names a provider, or a route over it."""
        return provider in grant.providers or bool(routes_over(grant, self._pool.routes, provider))


def with_nearest(reason: str, model: str, models: Iterable[GrantedModel]) -> str:
    """An error about a model that is not known. A granted one with a similar name comes first;
    otherwise the most similar one is named at the end."""
    near = _nearest(model, tuple(dict.fromkeys(one.model for one in models)))
    if not near or "did you mean" in reason.lower():
        return reason
    if nearest(model, (near,)):
        return f"did you mean {near}? {reason}"
    return reason + _named_last(near)


def _named_last(near: str) -> str:
    return f"; the nearest granted model is {near}" if near else ""


#: Memoized: an app that is refused often requests the same model again.
_nearest = lru_cache(maxsize=256)(partial(nearest, alike=0.0))


def model_error(
    app: App, model: str, pool: ProviderPool, models: Iterable[GrantedModel]
) -> NotGranted:
    """The error for a model that is not granted: not found, as at the provider, if no granted
    provider is known to have it. `models` are the granted ones."""
    models = tuple(models)
    if _is_known(model, app.grant.llm, pool):
        reason = f"the model {quoted(model)} is not granted to {app.id}"
        near = _nearest(model, tuple(dict.fromkeys(one.model for one in models)))
        return NotGranted(reason + _named_last(near), param="model")
    reason = with_nearest(f"there is no model {quoted(model)}", model, models)
    error = NotGranted(reason, param="model")
    error.status, error.code = _NOT_FOUND, "model_not_found"
    return error


def no_bound_error(error: NotGranted, target: Target, models: Iterable[GrantedModel]) -> NotGranted:
    """The error for a call whose cost has no bound. A model that its maker does not list has no
    price, and is most likely misspelled. `models` are the granted ones."""
    system, model = target.endpoint.system, target.model
    if catalog.profile(system, model).known:
        return error
    other = error.restated(with_nearest(str(error), model, models))
    if catalog.maker_of(model) == system:
        other.status, other.code, other.param = _NOT_FOUND, "model_not_found", "model"
    return other


def _is_known(model: str, grant: LlmGrant, pool: ProviderPool) -> bool:
    """Whether a granted provider is known to have exactly this model."""
    for name in grant.providers:
        hops = pool.routes.get(name)
        for id in [name] if hops is None else [hop.provider for hop in hops]:
            one = pool.providers.get(id)
            if one is None:
                continue
            if model in (*one.provider.known_models, one.provider.model):
                return True
            if catalog.profile(one.system, model).known:
                return True
    return False


def named_targets(model: str, targets: Sequence[Target], hops: Sequence[Hop]) -> ChosenTargets:
    """The targets of a route for a request that names a model and no route. If every hop has its
    own model and one of them is the named one, the other hops are left out."""
    if all(hop.model is not None for hop in hops):
        named = [
            (target, hop)
            for target, hop in zip(targets, hops, strict=True)
            if target.model == name_at(target.endpoint.resolved, model)
        ]
        if named:
            return tuple(target for target, _ in named), tuple(hop for _, hop in named)
    return tuple(targets), tuple(hops)


def refusal(resolved: ResolvedProvider, model: str, grant: LlmGrant) -> str:
    """Why a model cannot be requested from a provider, empty if it can. Names no model that the app
    may not call."""
    why, provider = refuses(resolved, model), resolved.provider
    if not why or not provider.known_models:
        return why
    granted = resolved.id in grant.providers
    shown = [each for each in provider.known_models if granted and is_model_granted(each, grant)]
    if not shown:
        return f"{quoted(model)} is not among the known_models of {resolved.id}"
    return refuses(replace(resolved, provider=replace(provider, known_models=tuple(shown))), model)


def routes_over(grant: LlmGrant, routes: Routes, provider: str) -> list[str]:
    """The granted routes that may call a provider."""
    return [
        name
        for name in grant.providers
        if any(hop.provider == provider for hop in routes.get(name, ()))
    ]


def storing_provider(grant: LlmGrant, routes: Routes, named: str | None, provider: str) -> str:
    """The granted name of the provider that keeps stored objects: its own, or that of a route.
    `named` is the provider that the app names. Raises `RequestRejected` if that is a different
    one."""
    over = routes_over(grant, routes, provider)
    if named is None and provider not in grant.providers and over:
        return over[0]
    if named in (None, provider):
        return provider
    if named not in over:
        reason = "the request names stored objects of another provider"
        raise RequestRejected(reason, status=400, param="anaphora-provider")
    return named


def _may_call_route(app: App, route: str, chooser: TargetChooser) -> bool:
    """Whether all models of the route are granted."""
    try:
        targets, _ = chooser.targets(route, None)
    except AnaphoraError:
        return False
    return all(is_model_granted(target.model, app.grant.llm) for target in targets)


def _granted(name: str, resolved: ResolvedProvider, model: str) -> GrantedModel:
    profile = catalog.profile(resolved.system, model)
    context, output = profile.context_tokens, profile.output_tokens
    return GrantedModel(
        provider=name,
        model=model,
        context=None if context is None else context.value,
        max_output=None if output is None else output.value,
    )


def models_of(resolved: ResolvedProvider) -> list[str]:
    """The models that a provider is known to have."""
    config = resolved.provider
    if config.known_models:
        return list(config.known_models)
    names = [profile.id for profile in catalog.models(resolved.system)]
    return [config.model, *names] if config.model and config.model not in names else names


FIELD = "prompt"
_WIRE = "openai_responses"


def names_stored_prompt(request: WireRequest | None) -> bool:
    if request is None or request.wire != _WIRE or FIELD not in request.members:
        return False
    return bytes(request.members[FIELD]) != b"null"


def hides_model(request: WireRequest | None) -> bool:
    """Whether a stored prompt decides the model."""
    if request is None or not names_stored_prompt(request):
        return False
    return not known_text(request.members, "model")


def check_stored_prompt(grant: LlmGrant) -> None:
    """Raises `NotGranted` if the grant does not allow stored prompts, and `RequestRejected` if it
    limits spend, since a stored prompt's cost has no bound."""
    if "stored_prompts" not in grant.permissions:
        reason = "a stored prompt is not in allow (stored_prompts) of the grant"
        raise NotGranted(reason, param=FIELD)
    if grant.approved_prompt is not None:
        reason = "a stored prompt holds instructions, but the grant approves one prompt"
        raise NotGranted(reason, param=FIELD)
    if grant.has_spend_limit:
        reason = (
            "a stored prompt hides its model and size: the cost of the call has no bound, and the"
            " grant limits spend"
        )
        raise RequestRejected(reason, status=400, code="no_bound", param=FIELD)


def prompt_targets(
    app: App,
    named: str | None,
    asked: str | None,
    pool: ProviderPool,
    chooser: TargetChooser,
    models: tuple[GrantedModel, ...],
) -> tuple[Target, ...]:
    """The target of a request with a stored prompt, which may also name a provider and a model: a
    granted provider with OpenAI's Responses. `models` are the granted ones. Without a model in the
    request, the prompt's own model answers."""
    grant = app.grant.llm
    check_stored_prompt(grant)
    if named is not None and named not in grant.providers:
        reason = f"the provider {quoted(named)} is not granted to {app.id}"
        raise NotGranted(reason, param="provider")
    for name in [named] if named is not None else grant.providers:
        resolved = pool.providers.get(name)
        if (
            resolved is None
            or (resolved.wire if resolved.dialect is None else resolved.dialect.wire) != _WIRE
        ):
            continue
        model = asked or _stand_in(name, resolved.provider.model, models)
        if not is_model_granted(model, grant):
            raise model_error(app, model, pool, models)
        return chooser.targets(name, model)[0]
    reason = "only a granted provider of OpenAI's Responses has stored prompts"
    raise InvalidRequest(reason, path=FIELD)


def _stand_in(provider: str, default: str | None, models: tuple[GrantedModel, ...]) -> str:
    """A granted model of a provider, whose rate limits apply. The model that will answer is
    unknown."""
    names = [one.model for one in models if one.provider == provider]
    if not names:
        raise NotGranted(f"no model of {quoted(provider)} is granted", param="model")
    return default if default in names and default is not None else names[0]
