"""Shared by `anaphora record`, `replay` and `watch`: the proxy's routes, a command on the upstream
of recordings, and its report."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from anaphora.wording import counted

from .common import FOUND, report_problems, require, stop

if TYPE_CHECKING:
    from anaphora.proxy.forward import Forwarding
    from anaphora.proxy.routes import NetworkUpstream
    from anaphora.proxy.server import Proxy
    from anaphora.replay.player import Player
    from anaphora.traffic.calls import ProxyRoute

#: Variables whose values are secrets.
_SECRET = re.compile(
    r"(?:\A|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)\Z|\AAWS_BEARER_TOKEN_"
)
#: Shorter values occur in ordinary text.
_SHORTEST_SECRET = 8
#: Exit codes from here on: the command was ended by a signal.
_SIGNALS = 128
#: A route of a provider that the catalog does not have.
_ROUTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

upstream_option = click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="PROVIDER=URL",
    help="Send the calls of a provider to another address, such as a gateway.",
)

proxy_option = click.option(
    "--proxy",
    "by_proxy",
    is_flag=True,
    help="Set HTTPS_PROXY instead of base URLs, for programs that take none.",
)


class RecordedRun(NamedTuple):
    """The options that `record` and `replay` share."""

    folder: Path
    upstreams: tuple[str, ...]
    by_proxy: bool
    rules: Path | None
    port: int


def recording_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options, which the command gets as `options`."""

    @functools.wraps(command)
    def changed(*arguments: Any, **given: Any) -> None:
        shared = {name: given.pop(name) for name in RecordedRun._fields}
        command(*arguments, options=RecordedRun(**shared), **given)

    for option in (
        click.option(
            "--port",
            type=click.IntRange(0, 65_535),
            default=0,
            help="Port of the proxy; any free one by default.",
        ),
        click.option(
            "--rules",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Additional match rules, besides the built-in ones and DIR/replay.toml.",
        ),
        upstream_option,
        proxy_option,
        click.option(
            "--dir",
            "folder",
            type=click.Path(path_type=Path),
            default="recordings",
            show_default=True,
            metavar="DIR",
            help="Folder of the recordings.",
        ),
    ):
        changed = option(changed)
    return changed


def run_recorded(
    command: Sequence[str],
    player: Callable[[Sequence[str]], Player],
    options: RecordedRun,
    *,
    pace: bool = False,
    offline: bool = False,
) -> None:
    """Run the command, report recorded and replayed calls, and exit with its code. `player` gets
    the secrets of the environment, after the command was found; with `offline` the command gets
    placeholders instead of missing credentials."""
    require("this command", "granian", extra="proxy")
    from anaphora.proxy import launch
    from anaphora.proxy.placeholders import PlaceholderTokens, with_placeholder_keys
    from anaphora.proxy.programs import refuse_loop
    from anaphora.proxy.recording import RecordedUpstream
    from anaphora.proxy.server import running

    launch.find(command, os.environ)
    by_proxy = needs_proxy(command, options.by_proxy, lambda text: report_problems([text]))
    routes = routes_of(command, options.upstreams, by_proxy=by_proxy)
    play = player(secrets_of(os.environ))
    report_problems(notices_of(command, by_proxy=by_proxy))
    upstream = RecordedUpstream(play, network_for(command), pace=pace)
    tokens = PlaceholderTokens() if offline else None
    with (
        tempfile.TemporaryDirectory(prefix="anaphora-") as folder,
        forwarding_for(command, lambda text: report_problems([text]), by_proxy) as forwarding,
        running(
            routes,
            upstream=upstream,
            port=options.port,
            pages=tokens,
            own_process=True,
            forwarding=forwarding,
        ) as proxy,
    ):
        refuse_loop(proxy.url, (route.upstream for route in proxy.routes))
        environ, words = redirected(proxy, forwarding, command)
        if tokens is not None:
            environ = with_placeholder_keys(environ, command)
            environ |= tokens.environment(folder, proxy.url)
        code = launch.run(words, environ)
    problems = report_recorded(play)
    report = play.report
    if not (report.recorded or report.replayed or report.misses or report.failures):
        report_problems([why_no_calls(by_proxy, code)])
    if code or problems:
        stop(code or FOUND)


def network_for(command: Sequence[str]) -> NetworkUpstream:
    """The network, with signed requests signed again by the credentials that the command has."""
    from anaphora.proxy.command_line import parse
    from anaphora.proxy.routes import NetworkUpstream
    from anaphora.proxy.signing import RequestSigner, child_variables

    return NetworkUpstream(signer=RequestSigner(child_variables(parse(command).assigned())))


def needs_proxy(command: Sequence[str], by_proxy: bool, report: Callable[[str], None]) -> bool:
    """Whether the command needs a forward proxy: because of --proxy, or because the program takes
    no base URL, which is reported."""
    from anaphora.proxy.programs import forwarded_program

    if not by_proxy and (title := forwarded_program(command)):
        report(f"{title} takes no base URL, so HTTPS_PROXY is set, as with --proxy")
        return True
    return by_proxy


@contextlib.contextmanager
def forwarding_for(
    command: Sequence[str], report: Callable[[str], None], by_proxy: bool
) -> Iterator[Forwarding | None]:
    """The settings of a forward proxy for the command; None if it needs none."""
    if not by_proxy:
        yield None
        return
    require("--proxy", "cryptography", extra="proxy")
    from anaphora.proxy.certificates import temporary_authority
    from anaphora.proxy.forward import Forwarding
    from anaphora.proxy.programs import upstreams_from

    with temporary_authority(os.environ) as authority:
        yield Forwarding(authority, upstreams_from(os.environ, command), report)


def redirected(
    proxy: Proxy, forwarding: Forwarding | None, command: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """The environment and the arguments that direct the command to the proxy."""
    from anaphora.proxy.programs import environment, forward_environment

    if forwarding is None:
        return environment(proxy, os.environ, command)
    return forward_environment(proxy, forwarding.authority, os.environ), list(command)


def notices_of(command: Sequence[str], *, by_proxy: bool) -> list[str]:
    """Notices about calls of the command that the proxy cannot see."""
    from anaphora.proxy.programs import forward_notices, notices

    return forward_notices() if by_proxy else notices(os.environ, command)


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """The values of variables that hold keys and passwords, which a program may print."""
    return [
        value
        for name, value in environ.items()
        if len(value) >= _SHORTEST_SECRET and _SECRET.search(name.upper())
    ]


def why_no_calls(by_proxy: bool, code: int) -> str:
    """Why a command that has ended made no calls; `code` is its exit code."""
    if 0 < code < _SIGNALS:
        return f"no calls were seen: the command failed with exit code {code}"
    if by_proxy:
        return (
            "no calls were seen: the command called no provider of the catalog, or does not use"
            " HTTPS_PROXY"
        )
    return (
        "no calls were seen: if the command called a model, it takes no base URL from the"
        " environment; --proxy sets HTTPS_PROXY instead"
    )


def report_recorded(player: Player) -> bool:
    """Print the player's report to standard error. True if a call was missed or not written."""
    report, done = player.report, []
    if player.mode != "none":
        done.append(f"{counted(report.recorded, 'exchange')} recorded in")
    if report.replayed or player.mode == "none":
        done.append(f"{counted(report.replayed, 'exchange')} replayed from")
    report_problems(f"not recorded: {text}" for text in report.failures)
    report_problems(f"no recording: {text}" for text in report.misses)
    report_problems([f"{', '.join(done)} {player.store.folder}"])
    return bool(report.misses or report.failures)


def routes_of(
    words: Sequence[str], upstreams: tuple[str, ...], *, by_proxy: bool = False
) -> list[ProxyRoute]:
    """The routes of the catalog's providers, at the addresses that the user's settings and
    --upstream name, and of providers that the catalog does not have."""
    from anaphora import catalog
    from anaphora.proxy.command_line import TABLES, parse
    from anaphora.proxy.programs import upstreams_from
    from anaphora.proxy.routes import default_routes, route_named
    from anaphora.proxy.signing import known_region
    from anaphora.traffic.calls import ProxyRoute, checked_upstream
    from anaphora.yaml_values import nearest

    clouds = {row.name for row in TABLES.routes}
    known = {row.provider for row in catalog.dialects().rows}
    # A forward proxy sees the addresses themselves.
    named, others = {} if by_proxy else upstreams_from(os.environ, words), []
    for text in upstreams:
        name, equals, url = text.partition("=")
        if not equals or not _ROUTE_NAME.fullmatch(name):
            raise click.BadParameter("write PROVIDER=URL", param_hint="--upstream")
        provider = route_named(name, known)
        if provider is not None:
            named[provider] = _route_base(url, provider)
        elif near := nearest(name, sorted(known | clouds)):
            reason = f"no provider {name!r}. Did you mean {near!r}?"
            raise click.BadParameter(reason, param_hint="--upstream")
        else:
            url = checked_upstream(url, name)
            others.append(ProxyRoute(prefix=f"/{name}", provider="", upstream=url))
    region = known_region({**os.environ, **parse(words).assigned()})
    return [*default_routes(named, region), *others]


def _route_base(url: str, provider: str) -> str:
    """The base URL of a route. A client's base URL may end with the prefix of all paths of the
    route: `/v1` for OpenAI, `/openai/v1` for Groq."""
    from anaphora import catalog

    url = url.rstrip("/")
    paths = [row.request_path for row in catalog.dialects().rows if row.provider == provider]
    if not paths:
        return url
    begin = url.find("/", url.find("://") + 3)
    while begin > 0:
        ending = url[begin:]
        if all(path.startswith(f"{ending}/") for path in paths):
            return url.removesuffix(ending)
        begin = url.find("/", begin + 1)
    return url
