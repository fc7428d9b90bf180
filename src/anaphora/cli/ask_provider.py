"""The configuration of `anaphora ask`, and the provider and model that it chooses."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from anaphora import catalog, wire
from anaphora.catalog import Dialect
from anaphora.client.config import ClientConfig, Hop
from anaphora.client.config.resolve import ResolvedProvider, check, resolve_each
from anaphora.errors import InvalidConfig, InvalidRequest, MissingSecret
from anaphora.redaction import quoted
from anaphora.yaml_values import nearest

_FILE = "llm.yaml"
_VARIABLE = "ANAPHORA_CONFIG"

#: Output limit of generated configurations, for wires that require one: room for a long answer.
_MAX_TOKENS = 8192
#: The emulator accepts any key; this one is not looked for in the environment.
_EMULATOR_KEY = {"ANAPHORA_EMULATED_KEY": "emulated"}
#: The emulated provider that is used without -p or -m.
_EMULATED_PROVIDER = "anthropic"


class AskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and its origin."""

    client: ClientConfig
    place: str
    """A file, `environment` or `emulator`."""
    environ: Mapping[str, str] | None = None
    """None: the process's own."""
    generated: bool = False
    """Not from a file: models are the catalog's, and the chosen provider is printed."""
    emulated: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.client.providers, *self.client.routes)


class ProviderChoice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Of a provider or a route."""
    model: str | None
    """None: the hops of a route have their own."""
    providers: dict[str, ResolvedProvider]
    """Those that may be called."""
    routes: dict[str, tuple[Hop, ...]]


def user_folder(variable: str, default: str) -> Path:
    """A folder of the XDG base directory specification, which ignores relative paths."""
    path = Path(os.environ.get(variable, ""))
    return (path if path.is_absolute() else Path.home() / default) / "anaphora"


def find_config(named: Path | None) -> AskConfig:
    """The configuration from a file, or from the keys in the environment."""
    user_file = user_folder("XDG_CONFIG_HOME", ".config") / _FILE
    if named is None and (variable := os.environ.get(_VARIABLE)):
        named = Path(variable)
        if not named.is_file():
            raise InvalidConfig(f"${_VARIABLE} names {variable}, which does not exist")
    file = named or next((path for path in (Path(_FILE), user_file) if path.is_file()), None)
    if file is not None:
        return AskConfig(client=ClientConfig.read(file), place=str(file))
    # The variables that hold each provider's key, for hosted providers with one address.
    variables = {
        provider: row.key_variables or (f"{provider.upper()}_API_KEY",)
        for provider, row in _first_dialects().items()
        if row.base_url.startswith("https:") and "{" not in row.base_url and row.auth != "none"
    }
    keys = {
        provider: [name for name in names if os.environ.get(name)]
        for provider, names in variables.items()
    }
    providers = {provider: _provider(provider, set_[0]) for provider, set_ in keys.items() if set_}
    if not providers:
        names = [name for names in variables.values() for name in names]
        raise MissingSecret(
            f"no provider is configured: no llm.yaml (looked for ./{_FILE}, {user_file}), and no"
            f" key in the environment ({', '.join(names[:3])}, …). Set one, write an llm.yaml, or"
            " use the emulator: anaphora ask --emulate"
        )
    client = ClientConfig.from_mapping({"providers": providers})
    return AskConfig(client=client, place="environment", generated=True)


def emulator_config(url: str) -> AskConfig:
    """Every provider of the catalog at the emulator."""
    (key,) = _EMULATOR_KEY
    names = dict.fromkeys((_EMULATED_PROVIDER, *_first_dialects()))
    providers = {name: _provider(name, key) | {"base_url": f"{url}/{name}"} for name in names}
    return AskConfig(
        client=ClientConfig.from_mapping({"providers": providers}),
        place="emulator",
        environ=_EMULATOR_KEY,
        generated=True,
        emulated=True,
    )


def _provider(name: str, key: str) -> dict[str, Any]:
    return {"dialect": name, "key": {"env": key}, "max_tokens": _MAX_TOKENS}


def _first_dialects() -> dict[str, Dialect]:
    first: dict[str, Dialect] = {}
    for row in catalog.dialects().rows:
        first.setdefault(row.provider, row)
    return first


def choose(
    config: AskConfig, provider: str | None, model: str | None, *, keys: bool = True
) -> ProviderChoice:
    """The provider or route, and the model. Without `keys`, missing keys are no error."""
    name, model = _named(config, provider, model)
    client = config.client
    if name in client.routes:
        routes = {name: client.routes[name]}
        needed = {hop.provider for hop in client.routes[name]}
    else:
        routes, needed = {}, {name}
        model = model or client.providers[name].model
        if model is None and config.generated:
            model = catalog.default_model(name, datetime.datetime.now(datetime.UTC).date())
        if model is None:
            listed = models_of(config, name)[:3]
            known = f": {', '.join(listed)}, …" if listed else ""
            raise InvalidRequest(f"choose a model of {name} with -m{known}")
    providers = {}
    for one, missing in resolve_each(client, environ=config.environ):
        if one.id in needed:
            if missing is not None and keys:
                raise missing
            providers[one.id] = one
    return ProviderChoice(name=name, model=model, providers=providers, routes=routes)


def split(config: AskConfig, model: str) -> tuple[str | None, str]:
    """`provider/model` taken apart; a model's name may contain a slash as well."""
    first, slash, rest = model.partition("/")
    return (first, rest) if slash and rest and first in config.names else (None, model)


def models_of(config: AskConfig, name: str) -> tuple[str, ...]:
    """A provider's models: those in its configuration, or the catalog's."""
    provider = config.client.providers.get(name)
    if provider is None:
        return ()
    if provider.known_models:
        return provider.known_models
    system = name if config.generated else wire.provider_of(check(config.client)[name].wire)
    listed = tuple(profile.id for profile in catalog.models(system))
    return listed if provider.model in (None, *listed) else (provider.model or "", *listed)


def _named(config: AskConfig, provider: str | None, model: str | None) -> tuple[str, str | None]:
    if provider is not None:
        if provider not in config.names:
            near = nearest(provider, config.names)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(config.names)}"
            raise InvalidRequest(f"no provider {quoted(provider)}; {hint}", path="-p")
        return provider, model
    if not config.names:
        # Raises with the file's name.
        check(config.client)
    if model is not None:
        named, rest = split(config, model)
        if named is not None:
            return named, rest
        for name in config.client.providers:
            if model in models_of(config, name):
                return name, model
    return config.names[0], model
