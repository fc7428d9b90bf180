"""Sends a program's calls to the proxy: by environment variables, and for some by an argument.

    upstreams = upstreams_from(os.environ, command)
    with running(default_routes(upstreams)) as proxy:
        environ, command = environment(proxy, os.environ, command)

A URL set by the user stays the destination: `ANTHROPIC_BASE_URL=https://gateway` makes
https://gateway the upstream of the route /anthropic, and the variable points to that route. The URL
of another provider leads to that provider's route. The variables are in programs.toml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from anaphora.client.config.environment import default_rows
from anaphora.errors import InvalidRequest

from .command_line import TABLES, CommandLine, ProgramArgument, parse
from .destinations import (
    LOOPBACK,
    SettingDestination,
    destination_of,
    destinations_of,
    port_of,
    settings_in,
)
from .signing import BEARER, has_aws_credentials, program_credentials

if TYPE_CHECKING:
    from .certificates import Authority
    from .server import Proxy

_LOCAL = ("127.0.0.1", "localhost")


def upstreams_from(environ: Mapping[str, str], command: Sequence[str] = ()) -> dict[str, str]:
    """The upstreams in the user's own settings, by provider, for `default_routes`."""
    found: dict[str, SettingDestination] = {}
    for destination in destinations_of(environ, parse(command)).values():
        first = found.setdefault(destination.provider, destination)
        if first.upstream != destination.upstream:
            raise InvalidRequest(
                f"{first.stated or 'the default'} and {destination.stated or 'the default'} lead to"
                f" different addresses for {destination.provider}; set both to one address, or"
                " unset one"
            )
    return {name: one.upstream for name, one in found.items() if one.upstream}


def environment(
    proxy: Proxy, environ: Mapping[str, str], command: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """The environment and command that send the program's calls to the proxy."""
    line = parse(command)
    destinations = destinations_of(environ, line)
    refuse_loop(proxy.url, (one.upstream for one in destinations.values()))
    # Other users can read arguments: the URL there has no secret.
    changed = {
        name: f"{proxy.url_of(one.provider, signs=bool(name))}{one.path}"
        for name, one in destinations.items()
    }
    argument = changed.pop("", None)
    words = list(line.with_assigned(changed))
    if line.program is not None and line.program.argument is not None and argument is not None:
        words = _with_argument(line, words, line.program.argument, argument)
    keys, held = program_credentials(environ)
    accounts = [one.account for one in TABLES.variables if one.account and one.name in changed]
    kept = {name: environ[name] for name in environ if name not in (*held, *accounts)}
    return {**kept, **keys, **changed, **_no_proxy(environ)}, words


def forward_environment(
    proxy: Proxy, authority: Authority, environ: Mapping[str, str]
) -> dict[str, str]:
    """The environment in which a program reaches its hosts through the forward proxy."""
    named = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy.forward_url)
    # Without this, Node ignores HTTPS_PROXY.
    return {**environ, **authority.environment, **named, "NODE_USE_ENV_PROXY": "1"}


def exports(proxy: Proxy, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that redirect programs started elsewhere."""
    changed, _ = environment(proxy, environ, ())
    return {name: value for name, value in changed.items() if environ.get(name) != value}


def unset_variables(proxy: Proxy, environ: Mapping[str, str]) -> list[str]:
    """The variables of this environment that such programs must not have."""
    changed, _ = environment(proxy, environ, ())
    return [name for name in environ if name not in changed]


def refuse_loop(url: str, upstreams: Iterable[str]) -> None:
    """Raises if an upstream is this proxy."""
    own = urlsplit(url)
    for upstream in upstreams:
        parts = urlsplit(upstream)
        local = parts.hostname in LOOPBACK or parts.hostname == own.hostname
        if upstream and local and port_of(parts) == port_of(own):
            raise InvalidRequest(
                f"the upstream {parts.scheme}://{parts.netloc.rpartition('@')[2]} is this proxy"
                " itself; unset the base URL, or choose another --port"
            )


def notices(environ: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """The parts of the command that cannot be redirected, one sentence each."""
    line = parse(command)
    found = [f"{one.names[0]}: {one.notice}" for one in line.wrappers if one.notice]
    for one in TABLES.bypasses:
        if one.program and (line.program is None or one.program not in line.program.names):
            continue
        if any(environ.get(name) for name in one.unless):
            continue
        if one.variable and environ.get(one.variable, "").lower() not in ("", "0", "false"):
            found.append(f"{one.variable} is set: {one.notice}")
        elif one.option and _option_begins(line.arguments, one.option, one.value):
            found.append(one.notice)
    found += [
        f"{program.title} in a shell script is not redirected: write its command after --, or add"
        f" {argument.option[0]} '{argument.setting}=\"URL\"' to it"
        for program in line.shell_programs()
        if (argument := program.argument) is not None
    ]
    values = {**environ, **line.assigned()}
    for variable in TABLES.variables:
        value = values.get(variable.name, "")
        known = variable.provider or variable.route
        if value and not known and destination_of(variable, value, values) is None:
            found.append(
                f"{variable.name} is set to an address of no known provider: its calls bypass the"
                " proxy"
            )
    if environ.get(BEARER):
        keys = "" if has_aws_credentials(environ) else "; the command gets placeholder keys"
        found.append(
            f"{BEARER} is kept from the command and sent by the proxy, since AWS SDKs send it over"
            f" TLS only{keys}"
        )
    return found


def forward_notices() -> list[str]:
    """Providers' hosts that the user's NO_PROXY excludes from a forward proxy."""
    hosts = {urlsplit(row.base_url).hostname or "" for row in default_rows().values()}
    names = sorted(one for one in hosts - LOOPBACK if "{" not in one and proxy_bypass(one))
    return [f"NO_PROXY excludes {', '.join(names)}: calls there are not seen"] if names else []


def forwarded_program(command: Sequence[str]) -> str:
    """The name of a program that uses HTTPS_PROXY instead of a base URL; empty for others."""
    program = parse(command).program
    return program.title if program is not None and program.forward else ""


def owns_terminal(command: Sequence[str]) -> bool:
    """Whether the command draws on the whole terminal, so that nothing else may be printed
    there."""
    line = parse(command)
    if line.program is None:
        return False
    return line.program.terminal and not any(
        word in line.program.batch or word.partition("=")[0] in line.program.batch
        for word in line.arguments
    )


# ── Arguments ───────────────────────────────────────────────────────────────────────────────


def _with_argument(
    line: CommandLine, words: list[str], argument: ProgramArgument, url: str
) -> list[str]:
    """The words with the setting right after the program, replacing the user's own."""
    arguments = words[line.at + 1 :]
    for begin, end, _ in reversed(settings_in(arguments, argument)):
        del arguments[begin:end]
    added = [argument.option[0], f'{argument.setting}="{url}"']
    if any(one.separator for one in line.wrappers):
        arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
        added = ["--", *added]
    return [*words[: line.at + 1], *added, *arguments]


def _option_begins(arguments: Sequence[str], options: tuple[str, ...], value: str) -> bool:
    following = [*arguments[1:], ""]
    for word, after in zip(arguments, following, strict=True):
        name, _, given = word.partition("=")
        if (word in options and after.startswith(value)) or (
            name in options and given.startswith(value)
        ):
            return True
    return False


def _no_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY and no_proxy, extended by this machine; nothing is removed."""
    made: dict[str, str] = {}
    for name, other in (("NO_PROXY", "no_proxy"), ("no_proxy", "NO_PROXY")):
        value = environ.get(name) or environ.get(other, "")
        entries = value.replace(",", " ").split()
        missing = [] if "*" in entries else [one for one in _LOCAL if one not in entries]
        made[name] = ",".join([*([value.rstrip(", ")] if value else []), *missing])
    return made
