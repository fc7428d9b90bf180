"""Every command and option of `anaphora`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from anaphora.cli.common import NAME, anaphora

from .markdown import cell, code, fence, page, prose, table

INTRO = "Every command and option of `anaphora`, as `--help` prints them."


def pages() -> dict[str, str]:
    return {"cli.md": page("Command line", INTRO, _lines())}


def _lines() -> Iterator[str]:
    with click.Context(anaphora, info_name=NAME) as context:
        yield from _help(anaphora.help or "")
        yield from table(("command", ""), _index(anaphora, context))
        for name in anaphora.list_commands(context):
            command = anaphora.get_command(context, name)
            assert command is not None
            yield from _command(command, click.Context(command, context, info_name=name), level=2)


def _index(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = f"{context.command_path} {name}"
        anchor = path.replace(" ", "-")
        yield f"[`{path}`](#{anchor})", cell((command.help or "").partition("\n\n")[0])


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    yield ""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from fence("text", usage)
    yield from _help(command.help or "")
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = [(_names(each), cell(_told(each, context))) for each in options if not each.hidden]
    yield from table(("option", ""), rows)
    if isinstance(command, click.Group):
        yield from table(("command", ""), _index(command, context))
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if not below.hidden:
                inner = click.Context(below, context, info_name=name)
                yield from _command(below, inner, level + 1)


def _names(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    metavar = "" if option.is_flag or option.count else f" {_metavar(option)}"
    return code(names + metavar)


def _metavar(option: click.Option) -> str:
    return option.make_metavar(click.Context(anaphora))


def _told(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    return "" if record is None else record[1]


def _help(text: str) -> Iterator[str]:
    """Paragraphs; those after `\\b` keep their lines."""
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("\b"):
            yield from fence("text", block.removeprefix("\b").strip("\n"))
        else:
            yield prose(block)
            yield ""
