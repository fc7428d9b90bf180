"""The checks of `anaphora serve --check`: files, keys, grants, certificate, prices of granted
models, the token key and the store, and a test of the alerts. Writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NoReturn

import msgspec

from anaphora import catalog
from anaphora.client.pool import ProviderPool, TargetChooser
from anaphora.errors import AnaphoraError, InvalidConfig
from anaphora.redaction import shown_name
from anaphora.sqlite_files import connect_read_only

from .access.granted_models import models_of
from .access.grants import AppGrant
from .access.identity import ADMIN
from .home import Home
from .home.extensions import Grants
from .home.settings import ServeOptions, Settings, SettingsFiles, effective_config
from .home.tls import ServerCertificate
from .store.opening import store_address
from .store.schema import has_store, readable, version_of

if TYPE_CHECKING:
    from anaphora.client.transport import HttpRequest
    from anaphora.postgres.address import PostgresAddress

_OLD_DAYS = 60
_GLOB = frozenset("*?[")


class HomeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A home whose files and keys are valid."""

    settings: Settings
    problems: tuple[str, ...]
    """Reasons why calls fail that a grant allows, or alerts that are asked for."""
    warnings: tuple[str, ...]
    sent: bool
    """A test of the alerts has arrived."""


def check_home(options: ServeOptions) -> HomeCheck:
    """Raises `InvalidConfig`, `MissingSecret` or `Io` if the daemon could not start."""
    home = Home.open(options.home)
    home.token_key()
    files = SettingsFiles(home, allow_env=options.allow_env_keys, resolve=options.resolve)
    config = effective_config(files.load().daemon, options)
    token_apps = _token_apps(home, files, options.clock())
    settings = files.current
    if config.tls is not None:
        ServerCertificate(home.path / config.tls.cert, home.path / config.tls.key)
    check_required(settings.grants, strict=options.strict)
    problems = [
        f"{settings.grants.origin.file}: {app}: {reason}"
        for app, grant in settings.grants.apps.items()
        for reason in unpriced(grant, settings, options.clock())
    ]
    sent, alert_warnings = asyncio.run(_test_alerts(home, settings, problems))
    warnings = (
        *alert_warnings,
        *settings.grants.warnings(token_apps),
        *without_grant(settings.grants, token_apps),
        *(f"not in force: {each}" for each in files.problems),
        *unmatched(settings),
        *map(str, settings.shared_caches()),
        *price_warnings(options.clock()),
    )
    return HomeCheck(settings=settings, problems=tuple(problems), warnings=warnings, sent=sent)


async def _test_alerts(
    home: Home, settings: Settings, problems: list[str]
) -> tuple[bool, tuple[str, ...]]:
    """Sends a test to the webhook of the alerts, if there is one. Returns whether it arrived, and
    warnings. A secret that is missing is a problem."""
    grants = settings.grants
    if grants.alerts is None:
        return False, ()
    from .alerts import NotSent, secrets_of, send_test

    webhook = grants.alerts.webhook
    try:
        secrets_of(home, webhook)
    except NotSent as problem:
        problems.append(str(grants.origin.invalid(str(problem), "alerts", "webhook")))
        return False, ()
    try:
        await send_test(home, webhook, settings.daemon.node_name)
    except NotSent as problem:
        return False, (f"a test of the alerts was not sent: {problem}",)
    return True, ()


def without_grant(grants: Grants, token_apps: Collection[str]) -> Iterator[str]:
    for app in sorted(set(token_apps) - {ADMIN, *grants.apps}):
        yield (
            f"{grants.origin.file}: {shown_name(app)}: has a token and no grant: all its calls are"
            f" refused; write a grant, or run: anaphora apps revoke {shown_name(app)}"
        )


def _token_apps(home: Home, files: SettingsFiles, now: float) -> Collection[str]:
    """Apps that have a valid token; all apps if there is no store yet. Raises if the store cannot
    be used. With PostgreSQL, its grants are those in force."""
    settings = files.current
    address = store_address(home, settings.daemon)
    if address is not None:
        return asyncio.run(_stored_apps(address, files, now))
    if not has_store(home.store):
        return ()
    with (
        readable(home.store),
        contextlib.closing(connect_read_only(home.store, any_thread=True)) as database,
    ):
        if not version_of(database, home.store):
            return settings.grants.apps
        rows = database.execute(_TOKEN_APPS.replace("$1", "?"), (now,))
        return {app for (app,) in rows}


_TOKEN_APPS = "SELECT app FROM tokens WHERE revoked IS NULL AND (expires IS NULL OR expires > $1)"


async def _stored_apps(
    address: PostgresAddress, files: SettingsFiles, now: float
) -> Collection[str]:
    """All apps if no node has made the tables yet."""
    from anaphora.postgres.connection import connect
    from anaphora.postgres.lane import Lane
    from anaphora.postgres.schema import version

    from .nodes import generations

    # Refused as for `serve`; a lane takes a refusal for one that passes.
    connection = await connect(address, name="check")
    try:
        if not await version(connection):
            return files.current.grants.apps
    finally:
        await connection.close()
    lane = Lane(address, "check")
    try:
        if (generation := await generations.latest(lane)) is not None:
            files.use_generation(generation)
            files.reload()
        return {app for (app,) in await lane.fetch(_TOKEN_APPS, now)}
    finally:
        await lane.close()


def unmatched(settings: Settings) -> Iterator[str]:
    """Granted model names that match no known model of a granted provider."""
    grants = settings.grants
    for app, grant in grants.apps.items():
        names = grant.llm.providers
        routes = settings.config.routes
        hops = [hop for name in names for hop in routes.get(name, ())]
        ids = {*(name for name in names if name not in routes), *(hop.provider for hop in hops)}
        known = [models_of(settings.providers[id]) for id in ids]
        # A server at the user's own address may have any model.
        is_open = any(settings.config.providers[id].base_url for id in ids)
        if is_open or not all(known):
            continue
        models = {*itertools.chain(*known), *(hop.model for hop in hops if hop.model)}
        for index, pattern in enumerate(grant.llm.models):
            if not any(fnmatchcase(model, pattern) for model in models):
                at = f"{grants.origin.file}:{grants.origin.line(app, 'llm', 'models', index)}"
                yield f"{at}: {app}: llm.models[{index}] matches no known model of its providers"


def price_table_days(now: float) -> int:
    """Age in days of the shipped prices, which holds and bills use."""
    today = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
    return (today - catalog.price_table_date()).days


def price_warnings(now: float) -> tuple[str, ...]:
    days = price_table_days(now)
    if days <= _OLD_DAYS:
        return ()
    return (f"the price table is {days} days old: prices may have changed; update anaphora",)


def unpriced(grant: AppGrant, settings: Settings, now: float) -> Iterator[str]:
    """Granted models without a price: under a limit in dollars their calls are denied."""
    llm = grant.llm
    if "llm_complete" not in grant.capabilities or not llm.has_spend_limit:
        return
    pool = ProviderPool(settings.providers, settings.config.routes, transport=_NoTransport())
    for name in llm.providers:
        chooser = TargetChooser(pool, (name,))
        for model in _models(name, grant, settings):
            try:
                targets, _ = chooser.targets(name, model)
            except AnaphoraError:
                continue  # another provider of the grant has it
            for target in targets:
                if target.price(now) is None:
                    yield (
                        f"no price is known for {target.model} at {target.endpoint.id}: under a"
                        " limit in dollars its calls are denied; set one under `prices` of the"
                        " provider in llm.yaml"
                    )


def _models(name: str, grant: AppGrant, settings: Settings) -> list[str]:
    """The granted models that llm.yaml or the grant itself names."""
    config, patterns = settings.config, grant.llm.models
    hops = config.routes.get(name)
    if hops is None:
        provider = config.providers[name]
        named = [provider.model, *provider.known_models]
        if not provider.known_models:
            named += [pattern for pattern in patterns if not _GLOB.intersection(pattern)]
    else:
        named = [hop.model or config.providers[hop.provider].model for hop in hops]
    granted = (
        model
        for model in named
        if model is not None and any(fnmatchcase(model, pattern) for pattern in patterns)
    )
    return list(dict.fromkeys(granted))


class _NoTransport:
    """For targets that are inspected and never called."""

    async def send(self, request: HttpRequest) -> NoReturn:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def check_required(grants: Grants, *, strict: bool) -> None:
    """With `strict`, raises if an app requires a capability that it is not granted."""
    if strict and (unmet := grants.unmet):
        named = "; ".join(f"{app}: {', '.join(sorted(names))}" for app, names in unmet.items())
        raise InvalidConfig(f"required and not granted: {named}", file=grants.origin.file)
