"""Sends a program's calls to the proxy: by environment variables, and for some by an argument.

    upstreams = upstreams_from(os.environ, command)
    with running(default_routes(upstreams)) as proxy:
        environ, command = environment(proxy, os.environ, command)

A URL set by the user stays the destination: `ANTHROPIC_BASE_URL=https://gateway` makes
https://gateway the upstream of the route /anthropic, and the variable points to that route. The URL
of another provider leads to that provider's route. The variables are in programs.toml.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit
from urllib.request import proxy_bypass

import msgspec

from anaphora import catalog
from anaphora.client.config.environment import default_rows, key_variables, ollama_url
from anaphora.errors import InvalidRequest

from .command_line import (
    TABLES,
    CommandLine,
    Program,
    ProgramAccount,
    ProgramArgument,
    ProgramVariable,
    parse,
)

if TYPE_CHECKING:
    from .certificates import Authority
    from .server import Proxy

#: The value of key variables in replay, for programs that require one.
PLACEHOLDER_KEY = "anaphora-replay"
_LOCAL = ("127.0.0.1", "localhost")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0", "::", ""})
#: Parts of request paths that users append to a base URL.
_PATHS = ("/v1", "/v1beta")
_PORTS = {"http": 80, "https": 443}


class _Destination(msgspec.Struct, frozen=True):
    """Where a setting leads: a provider's route, and the path after it."""

    provider: str
    path: str
    upstream: str = ""
    """The upstream of that route; empty: the provider's own URL."""
    stated: str = ""
    """The setting in which the user wrote it; empty: the default."""


def upstreams_from(environ: Mapping[str, str], command: Sequence[str] = ()) -> dict[str, str]:
    """The upstreams in the user's own settings, by provider, for `default_routes`."""
    found: dict[str, _Destination] = {}
    for destination in _destinations(environ, parse(command)).values():
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
    destinations = _destinations(environ, line)
    refuse_loop(proxy.url, (one.upstream for one in destinations.values()))
    changed = {
        name: f"{proxy.url_of(one.provider)}{one.path}" for name, one in destinations.items()
    }
    argument = changed.pop("", None)
    words = list(line.with_assigned(changed))
    if line.program is not None and line.program.argument is not None and argument is not None:
        words = _with_argument(line, words, line.program.argument, argument)
    return {**environ, **changed, **_no_proxy(environ)}, words


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


def refuse_loop(url: str, upstreams: Iterable[str]) -> None:
    """Raises if an upstream is this proxy."""
    own = urlsplit(url)
    for upstream in upstreams:
        parts = urlsplit(upstream)
        local = parts.hostname in _LOOPBACK or parts.hostname == own.hostname
        if upstream and local and _port(parts) == _port(own):
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
        if value and not variable.provider and _destination(variable, value) is None:
            found.append(
                f"{variable.name} is set to an address of no known provider: its calls bypass the"
                " proxy"
            )
    return found


def forward_notices() -> list[str]:
    """Providers' hosts that the user's NO_PROXY excludes from a forward proxy."""
    hosts = {urlsplit(row.base_url).hostname or "" for row in default_rows().values()}
    names = sorted(one for one in hosts - _LOOPBACK if "{" not in one and proxy_bypass(one))
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


def with_placeholder_keys(environ: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    """Adds a value for the unset key variables of providers, for programs that do not start without
    one. A program with its own credentials gets none."""
    made, program = dict(environ), parse(command).program
    if program is not None:
        if any(os.path.exists(_expanded(file, environ)) for file in program.login):
            return made
        for name in program.keys:
            if not made.get(name):
                made[name] = PLACEHOLDER_KEY
    rows = default_rows()
    for provider in dict.fromkeys(one.provider for one in TABLES.variables if one.provider):
        names = key_variables(rows[provider])
        if not any(made.get(name) for name in names):
            made[names[0]] = PLACEHOLDER_KEY
    return made


# ── Where each setting leads ─────────────────────────────────────────────────────────────────────


def _destinations(environ: Mapping[str, str], line: CommandLine) -> dict[str, _Destination]:
    """By variable; the program's argument has the empty name. A variable that the user has not set
    stays unset if another one of its provider is set: the program reads that one, or means the
    provider's own URL."""
    values = {**environ, **line.assigned()}
    known = TABLES.variables
    stated = {one.provider for one in known if one.provider and values.get(one.name)}
    found: dict[str, _Destination] = {}
    if line.program is not None and line.program.argument is not None:
        found[""] = _argument_destination(line, line.program, line.program.argument, values)
    own = found.get("")
    for one in known:
        value = values.get(one.name, "")
        if not value and (not one.provider or one.provider in stated):
            continue
        if _is_own_address(line, one.name):
            continue
        destination = _destination(one, value)
        if destination is None:
            continue
        # The program's own setting decides its provider's route: a variable that leads elsewhere is
        # left unchanged.
        if (
            own is not None
            and destination.provider == own.provider
            and destination.upstream != own.upstream
        ):
            continue
        found[one.name] = destination
    return found


def _destination(variable: ProgramVariable, value: str) -> _Destination | None:
    """Where a variable leads; None if that is the URL of no known provider and matters."""
    if not value:
        return _Destination(variable.provider, variable.path)
    url = ollama_url(value) if variable.name == "OLLAMA_HOST" else value
    return _read(url, variable.name, variable.provider)


def _read(url: str, setting: str, provider: str) -> _Destination | None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in _PORTS and bool(parts.hostname) and _port(parts) > 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidRequest(
            "is not a base URL: it needs http:// or https://, and a host", path=setting
        )
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    known = _provider_at(parts)
    if known is not None:
        own = default_rows()[known].base_url
        return _Destination(known, path, "" if _same_origin(own, parts) else origin, setting)
    if not provider:
        return None
    end = next((end for end in _PATHS if path.endswith(end)), "")
    return _Destination(provider, end, f"{origin}{path.removesuffix(end)}", setting)


def _provider_at(parts: SplitResult) -> str | None:
    """The provider of the catalog with that URL. A local port counts only if it is the provider's
    own."""
    for name, row in default_rows().items():
        if "{" not in row.base_url and _same_origin(row.base_url, parts):
            return name
    host = parts.hostname or ""
    if host in _LOOPBACK or parts.port is not None:
        return None
    return catalog.dialects().provider_named(host, default_rows())


def _same_origin(base_url: str, parts: SplitResult) -> bool:
    own = urlsplit(base_url)
    hosts = {own.hostname, parts.hostname}
    same = len(hosts) == 1 or hosts <= _LOOPBACK
    return same and own.scheme == parts.scheme and _port(own) == _port(parts)


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 0)


def _is_own_address(line: CommandLine, variable: str) -> bool:
    """`ollama serve` listens at the variable."""
    program = line.program
    return program is not None and variable in program.keeps and program.serves in line.arguments


# ── Arguments ────────────────────────────────────────────────────────────────────────────────────


def _argument_destination(
    line: CommandLine, program: Program, argument: ProgramArgument, environ: Mapping[str, str]
) -> _Destination:
    stated = [value for _, _, value in _settings(line.arguments, argument)]
    if stated:
        found = _read(stated[-1].strip("\"'"), argument.setting, argument.provider)
        assert found is not None
        return found
    if program.account is not None and _is_signed_in(program, program.account, environ):
        login = f"the login of {program.title}"
        return _Destination(argument.provider, "", program.account.upstream, login)
    return _Destination(argument.provider, argument.path)


def _is_signed_in(program: Program, account: ProgramAccount, environ: Mapping[str, str]) -> bool:
    """Whether the program's login file has an account and no key. Nothing of it is kept."""
    if any(environ.get(name) for name in program.keys):
        return False
    for file in program.login:
        path = _expanded(file, environ)
        if path and os.path.exists(path):
            try:
                with open(path, "rb") as opened:
                    login = msgspec.json.decode(opened.read())
            except (OSError, msgspec.DecodeError):
                return False
            named = login if isinstance(login, dict) else {}
            return bool(named.get(account.field)) and not named.get(account.key_field)
    return False


def _settings(arguments: Sequence[str], argument: ProgramArgument) -> list[tuple[int, int, str]]:
    """Start and end index, and value, of each occurrence of the setting in a program's
    arguments."""
    found: list[tuple[int, int, str]] = []
    begin = f"{argument.setting}="
    for at, word in enumerate(arguments):
        if word == "--":
            break
        for option in argument.option:
            if word == option and at + 1 < len(arguments):
                text, end = arguments[at + 1], at + 2
            elif word.startswith(option) and word != option:
                text, end = word[len(option) :].removeprefix("="), at + 1
            else:
                continue
            name, _, value = text.partition("=")
            if f"{name.strip()}=" == begin:
                found.append((at, end, value.strip()))
            break
    return found


def _with_argument(
    line: CommandLine, words: list[str], argument: ProgramArgument, url: str
) -> list[str]:
    """The words with the setting right after the program, replacing the user's own."""
    arguments = words[line.at + 1 :]
    for begin, end, _ in reversed(_settings(arguments, argument)):
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


def _expanded(file: str, environ: Mapping[str, str]) -> str:
    """The path with `~` and `$NAME` expanded from that environment; empty if a variable is not
    set."""
    first, _, rest = file.partition("/")
    base = environ.get("HOME", "") if first == "~" else environ.get(first.removeprefix("$"), "")
    return os.path.join(base, rest) if base else ""
