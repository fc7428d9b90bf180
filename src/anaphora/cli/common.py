"""Shared by all commands: the group, exit codes, files, JSON output."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import click
from click.shell_completion import CompletionItem

T = TypeVar("T", bound=Callable[..., Any])

NAME = "anaphora"
#: The environment variable by which a completion script asks for completions.
COMPLETE = "_ANAPHORA_COMPLETE"

OK, FOUND, USAGE, INTEGRITY, MISMATCH, QUARANTINED, CHAIN = 0, 1, 2, 3, 4, 5, 6
UNMET, INTERNAL, INTERRUPTED = 7, 64, 130

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


#: The commands and their summaries, as the help groups them; a module is imported when its command
#: is used. It has the command's name and defines `command`, or it is listed below.
_GROUPS = {
    "Find what lost caches cost": {
        "usage": "Show what agent programs cost, which part was a lost cache, and why.",
        "watch": "Run a command, and see what breaks its prompt cache while it runs.",
        "explain": "Explain why a prompt cache was missed, and what that cost.",
        "lint": "Find what will break a cached prefix, before it does.",
        "simulate": "Compare predicted cache usage with actual bills.",
        "statusline": "Print a status line for Claude Code.",
    },
    "Call models": {
        "ask": "Ask a model, and see how the prompt cache was used.",
        "map": "Send every line of a file, and pay for shared prefixes once.",
        "translate": "Convert a request to another provider's format.",
        "models": "List known models, or print the cache rules of one.",
    },
    "Work without a provider": {
        "demo": "Show what one conversation reads, writes and costs: no key, no network.",
        "emulate": "Run a local emulator of every provider, with caching and billing.",
        "record": "Run a command and record its calls, to replay them offline.",
        "replay": "Run a command on recorded responses, or verify and list recordings.",
    },
    "Lend models to apps": {
        "init": "Create the home folder of a daemon.",
        "secrets": "Store the keys of providers in the daemon's home folder.",
        "apps": "Create, replace and revoke the tokens of apps.",
        "grants": "Explain what apps may do, and apply grants to several nodes.",
        "serve": "Run the daemon: it holds the keys, and calls models for apps.",
        "spend": "Show what apps have spent, by group, app, model, block label, budget and day.",
        "audit": "Check and read audit logs: one row per call, in a hash chain.",
        "admin": "Create tokens of administrators.",
        "nodes": "List the nodes of a daemon on several machines, and drain one.",
        "backup": "Back up the home folder of a daemon to DIR, or restore it.",
        "store": "Check or prune the store of a daemon.",
        "rpc": "Send JSON-RPC messages to a running daemon.",
    },
    "Settings": {
        "config": "Print the JSON Schema of llm.yaml.",
        "completion": "Print the completion script for a shell.",
    },
}
COMMANDS = {name: text for group in _GROUPS.values() for name, text in group.items()}
#: Commands that are functions of their name in another command's module.
_MODULES = {
    "admin": "apps",
    "completion": "config",
    "demo": "emulate",
    "backup": "home",
    "init": "home",
    "nodes": "grants",
    "record": "replay",
    "rpc": "daemon_connection",
    "secrets": "apps",
    "statusline": "usage",
}


class CommandGroup(click.Group):
    """A group that suggests the command that was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from anaphora.yaml_values import nearest

            near = nearest(name, self.list_commands(ctx))
            hint = f" Did you mean {near!r}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


class RunGroup(CommandGroup):
    """A group that runs a command of the user's after `--`, or else one of its subcommands:
    `anaphora replay --pace -- python agent.py`, `anaphora replay verify DIR`. The group's own
    callback runs the command, which it finds with `command_after_dashes`; the group's options are
    for that."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{**settings, "invoke_without_command": True})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise click.exceptions.NoArgsIsHelpError(ctx)
        if "--" in args:
            at = args.index("--")
            # A subcommand may have a -- of its own.
            if not self.make_parser(ctx).parse_args(args[:at])[1]:
                ctx.meta[_COMMAND], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        by_user = click.core.ParameterSource.COMMANDLINE
        stated = [
            one.opts[0]
            for one in self.params
            if one.name is not None and ctx.get_parameter_source(one.name) is by_user
        ]
        if stated and self.get_command(ctx, args[0]) is not None:
            ctx.fail(f"{stated[0]} needs a command after --; it cannot be used with {args[0]!r}.")
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            hint = f"To run a command, write: {ctx.command_path} -- {' '.join(args)}"
            raise click.UsageError(f"{problem.message} {hint}", ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] -- COMMAND... | SUBCOMMAND ..."]


_COMMAND = "anaphora.cli.command"
#: Of a file that is read whole.
_MOST_BYTES = 256 * 1024 * 1024


def command_after_dashes(ctx: click.Context) -> tuple[str, ...]:
    """The words after `--` in a `RunGroup`; raises if there are none."""
    words = tuple(ctx.meta.get(_COMMAND, ()))
    if not words:
        ctx.fail(f"No command to run. Write: {ctx.command_path} -- COMMAND...")
    return words


class Commands(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"anaphora.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name if cmd_name in _MODULES else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, group in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in group.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name]) for name in names), *options]


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 a check found something or a call failed, 2 invalid options or"
    " input, 3 an anchor or a signature does not match, 4 the answer does not conform to a schema,"
    " or a file has another schema_version, 5 recordings failed their integrity check, 6 the chain"
    " of an audit log is broken, 7 a key or a package is missing, 64 internal error, 130"
    " interrupted.",
)
@click.version_option(package_name="anaphora", message="%(prog)s %(version)s")
def anaphora() -> None:
    """Define a prompt once, keep its prefix byte-stable, and know what it costs.

    LLM providers discount a prompt whose beginning they have seen before, and charge the full price
    when one byte of it changes. Anaphora keeps that prefix stable, and names the byte that broke
    it.

    New here? `anaphora usage` shows what your coding agents cost, and why. `anaphora demo` is a
    tour. Neither needs a key or a network.
    """


class MissingPackage(click.ClickException):
    exit_code = UNMET


def require(feature: str, *packages: str, extra: str = "emulator") -> None:
    """Stop with the command that installs a missing package."""
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(
                f"{feature} needs {package}; install it with: pip install 'anaphora[{extra}]'"
                f" (with uvx: uvx --from 'anaphora[{extra}]' anaphora …)"
            )


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, whatever the locale is."""
    try:
        return read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        from anaphora.errors import InvalidRequest

        raise InvalidRequest("not UTF-8 text", path=str(file)) from None


def read_bytes(file: Path) -> bytes:
    """The content of a file that an argument names, without a byte order mark; - is standard
    input."""
    if str(file) == "-":
        return read_stdin().removeprefix(BOM_UTF8)
    from anaphora.errors import Io

    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as problem:
        raise Io(f"{file}: cannot be read: {problem.strerror or problem}") from None
    if len(data) > _MOST_BYTES:
        raise Io(f"{file}: larger than {_MOST_BYTES >> 20} MB")
    return data.removeprefix(BOM_UTF8)


def read_stdin(limit: int = -1) -> bytes:
    if sys.stdin is None:
        from anaphora.errors import InvalidRequest

        raise InvalidRequest("is closed", path="standard input")
    data: bytes = sys.stdin.buffer.read(limit)
    return data


def to_json(value: Any) -> str:
    import msgspec

    from anaphora.wording import visible_json

    return visible_json(msgspec.json.format(msgspec.json.encode(value), indent=2)).decode()


def print_json(value: Any) -> None:
    click.echo(to_json(value))


def report_problems(problems: Iterable[object]) -> None:
    """Print problems with the input to standard error."""
    from anaphora.wording import visible

    for problem in problems:
        print_error_line(f"anaphora: {visible(str(problem))}")


def print_error_line(text: str | bytes) -> None:
    """Prints to standard error. If that is closed or full, the exit code stays the same."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def stop(code: int) -> NoReturn:
    raise click.exceptions.Exit(code)


# ── The file of --html ────────────────────────────────────────────────────────────────────────────


#: The name that stands for standard output.
STDOUT = Path("-")


def html_option(help: str) -> Callable[[T], T]:
    return click.option(
        "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=help
    )


class HtmlFile:
    """A report that only its owner may read. A temporary file beside it is opened when the block
    begins, so that an error is reported before the work; `write` replaces the old file atomically.
    Anything but a regular file, such as a pipe, is written directly."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._target = path
        self._unfinished: Path | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self._open()
        except OSError as problem:
            raise self._failed(problem) from None
        return self

    def _open(self) -> int:
        if self.path == STDOUT:
            return -1
        self._target = self.path.resolve()
        if self._target.exists() and not self._target.is_file():
            return os.open(self._target, os.O_WRONLY | os.O_CLOEXEC)
        name = f".{self._target.name}.{secrets.token_hex(4)}"
        unfinished = self._target.with_name(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(unfinished, flags, 0o600)
        self._unfinished = unfinished
        return file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
        if self._unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._unfinished)

    def write(self, content: bytes) -> None:
        if self._file < 0:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            return
        try:
            with open(self._file, "wb", closefd=False) as file:
                file.write(content)
            if self._unfinished is not None:
                os.replace(self._unfinished, self._target)
                self._unfinished = None
        except OSError as problem:
            raise self._failed(problem) from None

    def _failed(self, problem: OSError) -> Exception:
        from anaphora.errors import Io

        return Io(f"{self.path}: cannot be written: {problem.strerror or problem}")


def write_html(path: Path, make: Callable[[], bytes]) -> None:
    """Writes the report that `make` returns, and prints its path."""
    with HtmlFile(path) as file:
        file.write(make())
    if path != STDOUT:
        click.echo(f"the report is in {path}", err=True)
