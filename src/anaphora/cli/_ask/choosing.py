"""Whom to ask: a provider or route of the configuration, and a model."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from anaphora import catalog, wire
from anaphora.client.config.resolve import ResolvedProvider, check, resolve_each
from anaphora.client.config.values import ClientConfig, Hop
from anaphora.errors import InvalidRequest, MissingSecret
from anaphora.marked import nearest

from . import places, usual


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, and where it is from."""

    config: ClientConfig
    place: str
    """A file, `environment` or `emulator`."""
    environ: Mapping[str, str]
    made_up: bool = False
    """Nobody wrote it: models are the catalog's, and it is told who is asked."""
    emulated: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.config.providers, *self.config.routes)


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """A provider's or a route's."""
    model: str | None
    """None: a route's hops have their own."""
    providers: dict[str, ResolvedProvider]
    routes: dict[str, tuple[Hop, ...]]

    @property
    def secrets(self) -> tuple[str, ...]:
        held = (one.secret for one in self.providers.values())
        return tuple(secret.reveal() for secret in held if secret is not None)


def find(named: Path | None) -> Source:
    """The configuration: a file's, or what the environment has keys for."""
    file = places.config_file(named)
    if file is not None:
        return Source(config=ClientConfig.read(file), place=str(file), environ=os.environ)
    config = usual.from_environment(os.environ)
    if not config.providers:
        names = [name for names in usual.variables().values() for name in names]
        raise MissingSecret(
            f"there is nobody to ask: no llm.yaml (looked for {places.looked_at()}), and no key in"
            f" the environment ({', '.join(names[:3])}, …). Set one, write an llm.yaml, or try it"
            " without either: anaphora ask --emulate"
        )
    return Source(config=config, place="environment", environ=os.environ, made_up=True)


def emulated(url: str) -> Source:
    config = usual.for_emulator(url)
    return Source(
        config=config, place="emulator", environ=usual.EMULATED, made_up=True, emulated=True
    )


def choose(source: Source, provider: str | None, model: str | None, *, keys: bool = True) -> Chosen:
    """Who is asked; without `keys`, whether or not one is there."""
    name, model = _named(source, provider, model)
    config = source.config
    if name in config.routes:
        routes = {name: config.routes[name]}
        needed = {hop.provider for hop in config.routes[name]}
    else:
        routes, needed = {}, {name}
        model = model or config.providers[name].model or _usual_model(source, name)
        if model is None:
            raise InvalidRequest(f"say which model of {name} with -m{_advice(source, name)}")
    return Chosen(
        name=name, model=model, providers=_resolved(source, needed, keys=keys), routes=routes
    )


def split(source: Source, model: str) -> tuple[str | None, str]:
    """`provider/model` taken apart; a model's own name may have a slash, too."""
    first, slash, rest = model.partition("/")
    return (first, rest) if slash and rest and first in source.names else (None, model)


def models_of(source: Source, name: str) -> tuple[str, ...]:
    """The models that are known of a provider: those it is configured for, or the catalog's."""
    provider = source.config.providers.get(name)
    if provider is None:
        return ()
    if provider.known_models:
        return provider.known_models
    listed = tuple(profile.id for profile in catalog.models(_system(source, name)))
    return listed if provider.model in (None, *listed) else (provider.model or "", *listed)


def _named(source: Source, provider: str | None, model: str | None) -> tuple[str, str | None]:
    if provider is not None:
        if provider not in source.names:
            near = nearest(provider, source.names)
            meant = f"did you mean {near}?" if near else f"there are {', '.join(source.names)}"
            raise InvalidRequest(f"no provider {provider!r} to ask; {meant}", path="-p")
        return provider, model
    if not source.names:
        # Says what is wrong with the file, with its name.
        check(source.config)
    if model is not None:
        found, rest = split(source, model)
        if found is not None:
            return found, rest
        for name in source.config.providers:
            if model in models_of(source, name):
                return name, model
    return source.names[0], model


def _resolved(source: Source, needed: set[str], *, keys: bool) -> dict[str, ResolvedProvider]:
    """The providers that may be called. A key that another one lacks is no matter."""
    found = {}
    for one, missing in resolve_each(source.config, environ=source.environ):
        if one.id in needed:
            if missing is not None and keys:
                raise missing
            found[one.id] = one
    return found


def _system(source: Source, name: str) -> str:
    """Whose models they are."""
    return name if source.made_up else wire.provider_of(check(source.config)[name].wire)


def _usual_model(source: Source, name: str) -> str | None:
    if not source.made_up:
        return None  # whoever wrote a file decides what it costs
    today = datetime.datetime.now(datetime.UTC).date()
    return usual.usual_model(name, today)


def _advice(source: Source, name: str) -> str:
    listed = models_of(source, name)[:3]
    return f": {', '.join(listed)}, …" if listed else ""
