"""Choosing the provider for a model, and the model's name there.

    client.complete("Hi", model="claude-sonnet-5-5")         the provider that is known to have it
    client.complete("Hi", model="openrouter/openai/o3")      `openai/o3` from openrouter

The address of a model's maker never gets requests for models of another maker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn

from anaphora import catalog
from anaphora.errors import InvalidRequest, MissingSecret
from anaphora.prompt import Call
from anaphora.redaction import quoted
from anaphora.values import Notice
from anaphora.yaml_values import nearest

from .config.environment import Environment, advice, default_rows, environment_rows, row_name
from .config.secrets import ResolvedProvider
from .options import CALL_KEYWORDS

#: What other libraries call the content of a call.
_CONTENT = ("messages", "message", "prompt", "contents", "input")
#: A model in examples.
EXAMPLE_MODEL = "claude-sonnet-5-5"


class UnknownModelWarning(UserWarning):
    """The catalog lacks a model, and has one with a similar name."""


class ProviderChooser:
    """Chooses among the providers of a client, and its routes."""

    def __init__(
        self,
        providers: Mapping[str, ResolvedProvider],
        routes: Collection[str] = (),
        environment: Environment | None = None,
    ) -> None:
        """With an `environment`, its providers are used."""
        self._providers = providers
        self._routes = routes
        self._environment = environment

    def choose(self, provider: str | None, model: str | None) -> tuple[str, str | None]:
        """The provider or route, and the model's name at the provider. A route's providers may
        name the model differently: see `name_at`."""
        if provider is not None:
            self._check_name(provider)
            chosen = self._providers.get(provider)
            if model is not None and chosen is not None:
                model = name_at(chosen, model)
            return provider, model
        if model is not None:
            found = self.named_by_prefix(model) or self._having(model)
            if found is not None:
                return found
        return self._only(model), model

    def resolved(self, name: str) -> ResolvedProvider:
        """A provider by its id, with its key."""
        if self._environment is not None and name in environment_rows():
            return self._environment.find(name)
        self._check_name(name)
        return self._providers[name]

    def _check_name(self, provider: str) -> None:
        if provider in self._providers or provider in self._routes:
            return
        if self._environment is not None and provider in environment_rows():
            self._environment.find(provider)
            return
        names = (*self._providers, *self._routes)
        system = catalog.provider_named(provider)
        near = next((id for id, one in self._providers.items() if one.system == system), "")
        known = names if self._environment is None else (*names, *environment_rows())
        near = near or nearest(provider, known)
        if near:
            hint = f"did you mean {near}?"
        elif catalog.maker_of(provider.rpartition("/")[2]) is not None:
            hint = f"for a model, write model={provider!r}"
        else:
            hint = f"there are {', '.join(names) or 'none'}"
        raise InvalidRequest(f"no provider {quoted(provider)}; {hint}", path="provider")

    def named_by_prefix(self, model: str) -> tuple[str, str] | None:
        """For `provider/model`: by the provider's id, or by its name in the catalog."""
        first, slash, rest = model.partition("/")
        if not slash or not rest:
            return None
        if self._environment is not None:
            cloud = row_name(first, rest)
            if cloud in environment_rows() and cloud not in default_rows():
                return self._environment.find(cloud).id, rest
        if first in self._routes and first not in self._providers:
            return first, rest
        one = self._providers.get(first)
        if one is None:
            named = (each for each in self._providers.values() if is_named(each, first))
            one = next(named, None)
        if one is None:
            system = catalog.provider_named(first)
            if self._environment is None or system not in default_rows():
                return None  # some providers of the catalog cannot be called, only read from logs
            if self._having(model) is not None:
                return None
            # Hosts name models `maker/model`.
            if not catalog.is_maker(system) or not self._is_open_to(model):
                one = self._environment.find(system)
        if one is None:
            return None
        name, whole = _without(one, first, rest), self._having(model)
        if whole is not None and not has(one, name):
            return whole
        return one.id, name

    def _having(self, model: str) -> tuple[str, str] | None:
        for id, one in self._providers.items():
            if has(one, model):
                return id, model
        return None

    def _possible(self, model: str | None) -> list[ResolvedProvider]:
        """The providers that may get calls of a model."""
        return [one for one in self._providers.values() if model is None or not refuses(one, model)]

    def _is_open_to(self, model: str) -> bool:
        """Whether exactly one provider may serve the model, and it takes any: a custom address, or
        a host whose models are named `maker/model`."""
        match self._possible(model):
            case [one]:
                host = "/" in model and not catalog.is_maker(one.system)
                return host or one.provider.base_url is not None
        return False

    def _only(self, model: str | None) -> str:
        """The only possible provider of a model that none is known to have."""
        maker = None if model is None else catalog.maker_of(model)
        missing = self._environment is not None and maker not in (None, *self._providers)
        if model is not None and maker is not None and missing and not self._is_open_to(model):
            raise MissingSecret(
                f"{model} is a model of {maker}, which has no key in the environment:"
                f" {advice(maker)}, or name another provider: provider/{model}"
            )
        if len(self._providers) == 1:
            return next(iter(self._providers))
        if len(self._routes) == 1:
            return next(iter(self._routes))
        if model is not None and len(possible := self._possible(model)) == 1:
            return possible[0].id
        self._fail(model)

    def _fail(self, model: str | None) -> NoReturn:
        names = (*self._providers, *self._routes)
        if self._environment is not None:
            self._environment.require_any()
        if not names:
            raise InvalidRequest("no provider is configured", path="provider")
        names_listed = ", ".join(names)
        first, slash, rest = (model or "").partition("/")
        if slash and first in default_rows():
            raise InvalidRequest(
                f"no provider {quoted(first)} is configured; there are {names_listed}", path="model"
            )
        if slash and (near := nearest(first, (*names, *default_rows()))):
            raise InvalidRequest(
                f"no provider {quoted(first)}; did you mean {near}/{rest}?", path="model"
            )
        if model is None:
            raise InvalidRequest(
                f"name a model, as in model={EXAMPLE_MODEL!r}, or one of the providers"
                f" {names_listed}",
                path="provider",
            )
        raise InvalidRequest(
            f"no provider is known to have {model}; name one of {names_listed}, as in"
            f" {names[0]}/{model}",
            path="provider",
        )


def check_order(content: object, provider: str | None) -> None:
    """`anaphora.complete` takes the model first; a client, the content."""
    if provider is None or not isinstance(content, str) or len(content.split()) != 1:
        return
    if catalog.maker_of(content.rpartition("/")[2]) is not None:
        raise InvalidRequest(
            f"the content comes first: client.complete(…, model={content!r})", path="content"
        )


def check_content(
    content: object, model: object, options: Mapping[str, object], *, model_first: bool = False
) -> None:
    """Raises if the content is missing, given by a keyword, or part of a whole request body."""
    if content is None or not options.keys().isdisjoint(_CONTENT):
        raise missing_content(model, options, model_first=model_first)
    if isinstance(content, str | Call) or not isinstance(content, Mapping):
        return
    if "role" in content or "type" in content:
        return
    if not content.keys().isdisjoint(_CONTENT):
        model = model or content.get("model")
        raise missing_content(model, {**content, **options}, model_first=model_first)


def missing_content(
    model: object, options: Mapping[str, object], *, model_first: bool = False
) -> InvalidRequest:
    """The error that shows how to call `complete`: on a client the content comes first, in
    `anaphora.complete` the model."""
    named = next((name for name in _CONTENT if name in options), "")
    value = options.get(named)
    shown = "'…'" if isinstance(value, str) or not named else "[{'role': 'user', 'content': …}]"
    is_name = isinstance(model, str) and len(model.split()) == 1
    name = repr(model if is_name else EXAMPLE_MODEL)
    known = [each for each in options if each in CALL_KEYWORDS and each != "model"]
    others = "".join(f", {each}=…" for each in known)
    call = f"client.complete({shown}, model={name}{others})"
    if model_first:
        call = f"anaphora.complete({name}, {shown}{others})"
    if not named:
        missing = "model" if model_first and not model else "content"
        return InvalidRequest(f"is missing; write {call}", path=missing)
    place = "second" if model_first else "first"
    return InvalidRequest(f"pass it as the {place} argument: {call}", path=named)


def is_named(one: ResolvedProvider, prefix: str) -> bool:
    """Whether `prefix/model` means this provider. At a custom address, the wire does not tell which
    models are there."""
    if prefix == one.id:
        return True
    if catalog.provider_named(prefix) != one.system:
        return False
    config = one.provider
    return config.base_url is None or config.dialect is not None or not catalog.is_maker(one.system)


def name_at(one: ResolvedProvider, model: str) -> str:
    """The model's name at the chosen provider: without the provider's name in front. A custom
    address gets every name unchanged."""
    first, slash, rest = model.partition("/")
    if not slash or not rest:
        return model
    named = catalog.provider_named(first) == one.system
    if catalog.is_maker(one.system):
        elsewhere = one.provider.base_url is not None and not one.own_models_only
        named = (named or first == one.id) and not elsewhere
    return _without(one, first, rest) if named else model


def _without(one: ResolvedProvider, prefix: str, rest: str) -> str:
    """The model without the provider's name, unless that is part of the model's name."""
    whole, config = f"{prefix}/{rest}", one.provider
    if whole in config.known_models or (whole == config.model and not one.own_models_only):
        return whole
    return whole if prefix == one.system and catalog.is_self_named(prefix, rest) else rest


def has(one: ResolvedProvider, model: str) -> bool:
    """Whether the provider is known to have the model."""
    config = one.provider
    if config.known_models:
        return model in config.known_models
    if model == config.model:
        return True
    if catalog.is_maker(one.system) and catalog.maker_of(model) is not None:
        return catalog.maker_of(model) == one.system
    return catalog.profile(one.system, model).known


def refuses(one: ResolvedProvider, model: str) -> str:
    """Why a provider cannot be called for a model; empty if it can."""
    known = one.provider.known_models
    if known:
        if model in known:
            return ""
        near = nearest(model, known)
        hint = f"; did you mean {near}?" if near else f": {', '.join(known)}"
        return f"{quoted(model)} is not among the known_models of {one.id}{hint}"
    if not one.own_models_only:
        return ""
    maker = catalog.maker_of(model)
    first, slash, _ = model.partition("/")
    if maker is None and slash:
        maker = catalog.provider_named(first)
    if maker is None or maker == one.system:
        return ""
    return f"{model} is a model of {maker}, and {one.id!r} has only those of {one.system}"


def checked_model(one: ResolvedProvider, model: object) -> str:
    """The name of a model, checked for this provider."""
    if model is None:
        reason = f"no model is given for {one.id}; name one, or set `model` in llm.yaml"
    elif not isinstance(model, str):
        reason = f"must be the name of a model, not {model!r}"
    elif not (reason := refuses(one, model)):
        return model
    raise InvalidRequest(reason, path="model")


def unknown_model(one: ResolvedProvider, model: str) -> tuple[Notice, ...]:
    """A notice if the model's name may be misspelled."""
    if not one.own_models_only or one.provider.known_models:
        return ()
    if catalog.profile(one.system, model).known:
        return ()
    near = catalog.similar_model(one.system, model)
    if not near:
        return ()
    date = catalog.models_date(one.system)
    message = f"{model} is not among the models of {one.system} in the catalog of {date}"
    return (Notice("model_unknown", f"{message}; did you mean {near}?", "model"),)
