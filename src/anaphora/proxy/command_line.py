"""Finds which known program a command line runs: by name or path, or through `env`, npx, `uv run`,
…"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

import msgspec

from anaphora.catalog.values import decode_structs, read_toml

_FILE = "programs.toml"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh"})
_SUFFIXES = frozenset({".exe", ".cmd", ".js", ".mjs", ".cjs"})


class ProgramVariable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An environment variable that holds a provider's URL."""

    name: str
    programs: str
    """The programs that read it."""
    provider: str = ""
    """Empty: the provider that the URL belongs to."""
    path: str = ""
    """The ending that programs expect of the URL."""
    route: str = ""
    """The cloud whose route it leads to, whatever the URL."""
    other: str = ""
    """A variable that programs read if this one is not set, and that is not changed."""
    needs: str = ""
    """Set only together with this variable."""
    account: str = ""
    """A variable with the account in the cloud's URL, which programs do not take beside a URL."""
    key: str = ""
    """A variable with the key that programs need for the URL."""


class CloudRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route to a cloud, which may serve models of several providers."""

    name: str
    provider: str
    upstream: str
    """With `{region}`, `{vertex}` or `{account}`."""
    prefix: str = ""
    """The first step of its paths, if it is not the name."""


class ProgramArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An option that holds a provider's URL: `-c openai_base_url="…"`."""

    provider: str
    path: str
    option: tuple[str, ...]
    setting: str


class ProgramAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The URL that a program calls if its user is signed in instead of having a key."""

    field: str
    """The field of the program's login file that means signed in, unless `key_field` is set as
    well."""
    key_field: str
    upstream: str


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    title: str
    names: tuple[str, ...]
    """File names and packages."""
    terminal: bool = False
    """Whether it draws on the whole terminal."""
    batch: tuple[str, ...] = ()
    """Arguments with which it does not."""
    argument: ProgramArgument | None = None
    forward: bool = False
    """It has no setting for a base URL, but uses HTTPS_PROXY."""
    keys: tuple[str, ...] = ()
    """Variables that hold its key, besides the providers'."""
    login: tuple[str, ...] = ()
    """Files with the program's own credentials."""
    account: ProgramAccount | None = None
    serves: str = ""
    """The argument with which it is a server itself."""
    keeps: tuple[str, ...] = ()
    """Variables that hold its own address then."""


class Bypass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calls that cannot be redirected, of a program or whenever a variable is set."""

    notice: str
    program: str = ""
    variable: str = ""
    option: tuple[str, ...] = ()
    value: str = ""
    """Prefix of the option's value."""
    unless: tuple[str, ...] = ()
    """Variables with which they can be."""


class Wrapper(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command that runs another one."""

    names: tuple[str, ...]
    values: tuple[str, ...] = ()
    """Options that take an argument."""
    words: tuple[str, ...] = ()
    """Subcommands that come before the command; without one, it runs no other command."""
    skip: int = 0
    """Number of its own arguments before the command."""
    assigns: bool = False
    """NAME=VALUE words come before the command."""
    separator: bool = False
    """The command's options come after `--`."""
    notice: str = ""


class ProgramTables(msgspec.Struct, frozen=True):
    """The content of programs.toml."""

    variables: tuple[ProgramVariable, ...]
    routes: tuple[CloudRoute, ...]
    programs: tuple[Program, ...]
    bypasses: tuple[Bypass, ...]
    wrappers: tuple[Wrapper, ...]

    def program(self, name: str) -> Program | None:
        return next((one for one in self.programs if name in one.names), None)

    def route(self, name: str) -> CloudRoute | None:
        return next((one for one in self.routes if name == one.name), None)

    def wrapper(self, name: str) -> Wrapper | None:
        return next((one for one in self.wrappers if name in one.names), None)


def _read_tables() -> ProgramTables:
    text = (pkgutil.get_data(__package__, _FILE) or b"").decode()
    rows = decode_structs(
        read_toml(text, _FILE),
        _FILE,
        variable=ProgramVariable,
        route=CloudRoute,
        program=Program,
        bypass=Bypass,
        wrapper=Wrapper,
    )
    return ProgramTables(*rows)


TABLES = _read_tables()


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and the position of the program that it runs."""

    words: tuple[str, ...]
    at: int
    """Index of the program in `words`; their number if there is none."""
    program: Program | None = None
    """The program's row in programs.toml; None if it is unknown."""
    wrappers: tuple[Wrapper, ...] = ()
    assignments: tuple[int, ...] = ()
    """Indexes of NAME=VALUE words of `env`."""

    @property
    def name(self) -> str:
        return program_name(self.words[self.at]) if self.at < len(self.words) else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after the program."""
        return self.words[self.at + 1 :]

    def assigned(self) -> dict[str, str]:
        """The variables that `env` sets in the command line."""
        pairs = (self.words[place].partition("=") for place in self.assignments)
        return {name: value for name, _, value in pairs}

    def with_assigned(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The words, with these values in the assignments of `env`."""
        words = list(self.words)
        for place in self.assignments:
            name = words[place].partition("=")[0]
            if name in values:
                words[place] = f"{name}={values[name]}"
        return tuple(words)

    def shell_programs(self) -> Iterator[Program]:
        """Known programs in the script of `sh -c`, whose arguments cannot be changed."""
        if self.name in _SHELLS and "-c" in self.arguments:
            script = " ".join(self.arguments)
            for word in dict.fromkeys(re.split(r"[\s;&|()\"']+", script)):
                if (found := TABLES.program(program_name(word))) is not None:
                    yield found


def parse(command: Sequence[str]) -> CommandLine:
    """Finds the program after wrappers. An unknown word is taken as the program."""
    words, at = tuple(command), 0
    wrappers: list[Wrapper] = []
    assignments: list[int] = []
    while at < len(words):
        name = program_name(words[at])
        wrapper = TABLES.wrapper(re.sub(r"(?<=python)3?\.\d+\Z", "3", name))
        if wrapper is None or TABLES.program(name) is not None:
            break
        after = _after_options(words, at + 1, wrapper, assignments)
        if after is None:
            break
        wrappers.append(wrapper)
        at = after + wrapper.skip
    at = min(at, len(words))
    program = TABLES.program(program_name(words[at])) if at < len(words) else None
    return CommandLine(
        words=words,
        at=at,
        program=program,
        wrappers=tuple(wrappers),
        assignments=tuple(assignments),
    )


def _after_options(
    words: tuple[str, ...], at: int, wrapper: Wrapper, assignments: list[int]
) -> int | None:
    """The index after a wrapper's own words; None if it runs no command."""
    missing = bool(wrapper.words)
    while at < len(words):
        word = words[at]
        if wrapper.assigns and _ASSIGNMENT.match(word):
            assignments.append(at)
        elif missing and word in wrapper.words:
            missing = False
            # `uv tool run`, `uv run`
            if at + 1 < len(words) and word == "tool" and words[at + 1] == "run":
                at += 1
        elif word in wrapper.values:
            at += 1
        elif word == "-m" and not missing:  # python -m
            return at + 1
        elif not word.startswith("-"):
            break
        at += 1
    return None if missing else at


def program_name(word: str) -> str:
    """The name in programs.toml: `/usr/bin/codex`, `codex.js` and `codex@latest` are codex."""
    if word.startswith("@") and word.count("/") == 1:
        scope, _, name = word.partition("/")
        return f"{scope}/{name.partition('@')[0]}"
    path = PurePath(word.replace("\\", "/"))
    name = path.stem if path.suffix.lower() in _SUFFIXES else path.name
    return name.partition("@")[0]
