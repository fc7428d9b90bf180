"""Where the settings of a program lead: its variables, and the argument that some take.

A URL set by the user stays the destination: it becomes the upstream of the route that the program
is redirected to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import SplitResult, urlsplit

import msgspec

from anaphora import catalog
from anaphora.client.config.environment import default_rows, ollama_url
from anaphora.errors import InvalidRequest

from .command_line import (
    TABLES,
    CloudRoute,
    CommandLine,
    Program,
    ProgramAccount,
    ProgramArgument,
    ProgramVariable,
)

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0", "::", ""})
#: Parts of request paths that users append to a base URL.
_PATHS = ("/v1", "/v1beta")
_PORTS = {"http": 80, "https": 443}


class SettingDestination(msgspec.Struct, frozen=True):
    """Where a setting leads: the route of a provider or a cloud, and the path after it."""

    provider: str
    path: str
    upstream: str = ""
    """The upstream of that route; empty: the provider's own URL."""
    stated: str = ""
    """The setting in which the user wrote it; empty: the default."""


def destinations_of(environ: Mapping[str, str], line: CommandLine) -> dict[str, SettingDestination]:
    """By variable; the program's argument has the empty name. A variable that the user has not set
    stays unset if another one of its provider is set: the program reads that one, or means the
    provider's own URL."""
    values = {**environ, **line.assigned()}
    stated = {_route(one) for one in TABLES.variables if _value(one, values)}
    # Those that are set come first: they may lead to another route than their own.
    known = sorted(TABLES.variables, key=lambda one: not _value(one, values))
    found: dict[str, SettingDestination] = {}
    if line.program is not None and line.program.argument is not None:
        found[""] = _argument_destination(line, line.program, line.program.argument, values)
    own = found.get("")
    for one in known:
        value = _value(one, values)
        if not value and (_route(one) in stated or (one.needs and not values.get(one.needs))):
            continue
        if _is_own_address(line, one.name):
            continue
        destination = destination_of(one, value, values)
        if destination is None or (not value and _is_elsewhere(destination, found)):
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


def _route(variable: ProgramVariable) -> str:
    return variable.route or variable.provider


def _value(variable: ProgramVariable, values: Mapping[str, str]) -> str:
    return values.get(variable.name) or values.get(variable.other, "")


def _is_elsewhere(destination: SettingDestination, found: Mapping[str, SettingDestination]) -> bool:
    """Whether a setting of the user leads the same route to an address of its own."""
    return any(
        one.provider == destination.provider
        and one.upstream
        and one.upstream != destination.upstream
        for name, one in found.items()
        if name and one.stated
    )


def destination_of(
    variable: ProgramVariable, value: str, values: Mapping[str, str]
) -> SettingDestination | None:
    """Where a variable leads; None if it is not set and has no default, or if it is the URL of no
    known provider and matters."""
    cloud = TABLES.route(variable.route)
    if value:
        url = ollama_url(value) if variable.name == "OLLAMA_HOST" else value
        return _read(url, variable.name, variable.provider, cloud, variable.path)
    if cloud is None or "{account}" not in cloud.upstream:
        return SettingDestination(_route(variable), variable.path) if _route(variable) else None
    if not (account := values.get(variable.account)):
        return None
    upstream = cloud.upstream.replace("{account}", account)
    return SettingDestination(cloud.name, variable.path, upstream, variable.account)


def _read(
    url: str, setting: str, provider: str, cloud: CloudRoute | None = None, ending: str = ""
) -> SettingDestination | None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in _PORTS and bool(parts.hostname) and port_of(parts) > 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidRequest(
            "is not a base URL: it needs http:// or https://, and a host", path=setting
        )
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    known = None if cloud is not None else _provider_at(parts)
    if known is not None:
        own = default_rows()[known].base_url
        upstream = "" if _same_origin(own, parts) else origin
        return SettingDestination(_cloud_at(known, parts), path, upstream, setting)
    provider = provider if cloud is None else cloud.name
    if not provider:
        return None
    end = next((end for end in (ending, *_PATHS) if end and path.endswith(end)), "")
    return SettingDestination(provider, end, f"{origin}{path.removesuffix(end)}", setting)


def _cloud_at(provider: str, parts: SplitResult) -> str:
    """The route of a provider's address, which may be that of a cloud."""
    for cloud in TABLES.routes:
        host = re.sub(r"\{\w+\}", "*", urlsplit(cloud.upstream).netloc)
        host = "*aiplatform*.googleapis.com" if cloud.name == "vertex" else host
        if cloud.provider == provider and fnmatchcase(parts.hostname or "", host):
            return cloud.name
    return provider


def _provider_at(parts: SplitResult) -> str | None:
    """The provider of the catalog with that URL. A local port counts only if it is the provider's
    own."""
    for name, row in default_rows().items():
        if "{" not in row.base_url and _same_origin(row.base_url, parts):
            return name
    host = parts.hostname or ""
    if host in LOOPBACK or parts.port is not None:
        return None
    return catalog.dialects().provider_named(host, default_rows())


def _same_origin(base_url: str, parts: SplitResult) -> bool:
    own = urlsplit(base_url)
    hosts = {own.hostname, parts.hostname}
    same = len(hosts) == 1 or hosts <= LOOPBACK
    return same and own.scheme == parts.scheme and port_of(own) == port_of(parts)


def port_of(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 0)


def _is_own_address(line: CommandLine, variable: str) -> bool:
    """`ollama serve` listens at the variable."""
    program = line.program
    return program is not None and variable in program.keeps and program.serves in line.arguments


# ── Arguments ────────────────────────────────────────────────────────────────────────────────────


def _argument_destination(
    line: CommandLine, program: Program, argument: ProgramArgument, environ: Mapping[str, str]
) -> SettingDestination:
    stated = [value for _, _, value in settings_in(line.arguments, argument)]
    if stated:
        found = _read(stated[-1].strip("\"'"), argument.setting, argument.provider)
        assert found is not None
        return found
    if program.account is not None and _is_signed_in(program, program.account, environ):
        login = f"the login of {program.title}"
        return SettingDestination(argument.provider, "", program.account.upstream, login)
    return SettingDestination(argument.provider, argument.path)


def _is_signed_in(program: Program, account: ProgramAccount, environ: Mapping[str, str]) -> bool:
    """Whether the program's login file has an account and no key. Nothing of it is kept."""
    if any(environ.get(name) for name in program.keys):
        return False
    for file in program.login:
        path = expanded(file, environ)
        if path and os.path.exists(path):
            try:
                with open(path, "rb") as opened:
                    login = msgspec.json.decode(opened.read())
            except (OSError, msgspec.DecodeError):
                return False
            named = login if isinstance(login, dict) else {}
            return bool(named.get(account.field)) and not named.get(account.key_field)
    return False


def settings_in(arguments: Sequence[str], argument: ProgramArgument) -> list[tuple[int, int, str]]:
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


def expanded(file: str, environ: Mapping[str, str]) -> str:
    """The path with `~` and `$NAME` expanded from that environment; empty if a variable is not
    set."""
    first, _, rest = file.partition("/")
    base = environ.get("HOME", "") if first == "~" else environ.get(first.removeprefix("$"), "")
    return os.path.join(base, rest) if base else ""
