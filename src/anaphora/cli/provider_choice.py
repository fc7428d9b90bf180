"""Shared by `anaphora ask` and `map`: the configuration, and the choice of provider and model."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from anaphora import catalog
from anaphora.client.choice import ProviderChooser
from anaphora.client.config import ClientConfig, Hop
from anaphora.client.config.environment import (
    MAX_TOKENS,
    Environment,
    default_rows,
    some_variables,
)
from anaphora.client.config.folders import user_folder
from anaphora.client.config.resolve import check, resolve_each
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.client.structured import Structured, output_of
from anaphora.errors import InvalidConfig, InvalidJson, InvalidRequest, MissingSecret
from anaphora.values.codec import loads

from .common import read_bytes, require
from .parameters import completions

_FILE = "llm.yaml"
_VARIABLE = "ANAPHORA_CONFIG"

#: The emulator accepts any key; this one is not looked for in the environment.
_EMULATOR_KEY = {"ANAPHORA_EMULATED_KEY": "emulated"}
#: The emulated provider that is used without -m.
_EMULATED_PROVIDER = "anthropic"


class AskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and its origin."""

    client: ClientConfig
    place: str
    """A file, `environment` or `emulator`."""
    environ: Mapping[str, str] | None = None
    """None: that of the process."""
    environment: Environment | None = None
    """Source of the providers without a file; the chosen one is printed."""
    emulated: bool = False

    @property
    def chooser(self) -> ProviderChooser:
        if self.environment is not None:
            return ProviderChooser(self.environment.providers, (), self.environment)
        return ProviderChooser(check(self.client), self.client.routes)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.client.providers, *self.client.routes)


class ProviderChoice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """A provider or a route."""
    model: str | None
    """None: the hops of a route have their own."""
    default_since: datetime.date | None = None
    """The date of the catalog's row that chose the model."""
    providers: dict[str, ResolvedProvider]
    """Those that may be called."""
    routes: dict[str, tuple[Hop, ...]]


def find_config() -> AskConfig:
    """The configuration from a file, or from the keys in the environment."""
    user_file = user_folder("XDG_CONFIG_HOME", ".config") / _FILE
    named = None
    if variable := os.environ.get(_VARIABLE):
        named = Path(variable)
        if not named.is_file():
            raise InvalidConfig(f"${_VARIABLE} names {variable}, which does not exist")
    file = named or next((path for path in (Path(_FILE), user_file) if path.is_file()), None)
    if file is not None:
        return AskConfig(client=ClientConfig.read(file), place=str(file))
    environment = Environment()
    return AskConfig(
        client=environment.config,
        place="environment",
        environment=environment,
    )


def emulator_config(url: str) -> AskConfig:
    """Every provider of the catalog at the emulator."""
    (key,) = _EMULATOR_KEY
    names = dict.fromkeys((_EMULATED_PROVIDER, *default_rows()))
    common = {"key": {"env": key}, "max_tokens": MAX_TOKENS}
    providers = {name: common | {"dialect": name, "base_url": f"{url}/{name}"} for name in names}
    return AskConfig(
        client=ClientConfig.from_mapping({"providers": providers}),
        place="emulator",
        environ=_EMULATOR_KEY,
        emulated=True,
    )


def choose(config: AskConfig, model: str | None, *, keys: bool = True) -> ProviderChoice:
    """The provider or route, and the model. `model` may name a provider or route alone. Without
    `keys`, missing keys are no error."""
    if model is None:
        name = _first(config)
    elif model in config.names:
        name, model = model, None
    else:
        try:
            name, model = config.chooser.choose(None, model)
        except InvalidRequest as error:
            raise InvalidRequest(error.reason, path="-m") from None
    client, since = config.client, None
    if name in client.routes:
        routes = {name: client.routes[name]}
        needed = {hop.provider for hop in client.routes[name]}
    else:
        routes, needed = {}, {name}
        if model is None:
            model, since = _default_model(config, name)
    if config.environment is not None:
        one = config.environment.find(name) if keys else config.environment.providers[name]
        return ProviderChoice(
            name=name, model=model, default_since=since, providers={name: one}, routes=routes
        )
    providers = {}
    for one, missing in resolve_each(client, environ=config.environ):
        if one.id in needed:
            if missing is not None and keys:
                raise missing
            providers[one.id] = one
    return ProviderChoice(name=name, model=model, providers=providers, routes=routes)


def models_of(config: AskConfig, name: str) -> tuple[str, ...]:
    """A provider's models: those in its configuration, or the catalog's."""
    provider = config.client.providers.get(name)
    if provider is None:
        return ()
    if provider.known_models:
        return provider.known_models
    listed = tuple(profile.id for profile in catalog.models(check(config.client)[name].system))
    return listed if provider.model in (None, *listed) else (provider.model or "", *listed)


def _first(config: AskConfig) -> str:
    """The provider or route that is used when none is named, nor a model."""
    if config.environment is not None and not config.names:
        user_file = user_folder("XDG_CONFIG_HOME", ".config") / _FILE
        raise MissingSecret(
            f"no provider is configured: no llm.yaml (looked for ./{_FILE}, {user_file}), and no"
            f" key in the environment ({some_variables()}). Set one, write an llm.yaml, or try it"
            ' without a key on the local emulator: anaphora ask --emulate "…"'
        )
    if not config.names:
        # Raises with the file's name.
        check(config.client)
    return config.names[0]


def _default_model(config: AskConfig, name: str) -> tuple[str, datetime.date | None]:
    """The configured model; without a configuration, the catalog's, and the date of its row."""
    provider = config.client.providers.get(name)
    model = None if provider is None else provider.model
    if model is None and (config.environment is not None or config.emulated):
        model = catalog.default_model(name, datetime.datetime.now(datetime.UTC).date())
        row = catalog.default_model_row(name)
        if model is not None and row is not None and row.value == model:
            return model, row.date
    if model is None:
        listed = models_of(config, name)[:3]
        known = f": {', '.join(listed)}, …" if listed else ""
        raise InvalidRequest(f"choose a model of {name} with -m{known}")
    return model, None


@contextlib.contextmanager
def config_or_emulator(*, emulate: bool, preview: bool = False) -> Iterator[AskConfig]:
    """The configuration; with `emulate`, that of an emulator, which runs until the block ends."""
    if not emulate:
        yield find_config()
    elif preview:  # nothing is sent
        yield emulator_config("http://localhost")
    else:
        require("the emulator", "granian")
        from anaphora import emulator

        with emulator.running() as emu:
            yield emulator_config(emu.url)


def read_schema(file: Path) -> Structured[Any]:
    """The output schema in a file."""
    try:
        schema = loads(read_bytes(file))
    except InvalidJson as problem:
        raise InvalidRequest(problem.reason, path=str(file)) from None
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON Schema must be an object", path=str(file))
    return output_of(schema)


# ── Completion ───────────────────────────────────────────────────────────────────────────────────


def complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Providers, `provider/model` of all, and models that begin with what was typed."""
    with contextlib.suppress(Exception):
        config = _completed_config(ctx)
        models = {name: models_of(config, name) for name in config.client.providers}
        names = [*config.names]
        names += [f"{name}/{model}" for name, listed in models.items() for model in listed]
        if incomplete:
            names += dict.fromkeys(model for listed in models.values() for model in listed)
        return completions(names, incomplete)
    return []


def _completed_config(ctx: click.Context) -> AskConfig:
    if ctx.params.get("emulate"):
        return emulator_config("http://localhost")
    return find_config()


model_option = click.option(
    "-m",
    "--model",
    shell_complete=complete_model,
    help="MODEL, PROVIDER/MODEL, or a provider or route of llm.yaml.",
)
