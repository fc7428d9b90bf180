"""`anaphora ask`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ._ask import completing

_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("question", nargs=-1)
@click.option("-m", "--model", shell_complete=completing.model, help="MODEL, or PROVIDER/MODEL.")
@click.option(
    "-p", "--provider", shell_complete=completing.provider, help="A provider or route of llm.yaml."
)
@click.option("-s", "--system", help="Who the model is: the system prompt.")
@click.option(
    "--tool", "tools", multiple=True, metavar="MODULE:FUNCTION", help="It may call this; repeat."
)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Goes with the question: text, image, sound or PDF; repeat.",
)
@click.option("-c", "--last", is_flag=True, help="Go on with the last conversation.")
@click.option(
    "--continue",
    "continued",
    metavar="ID",
    shell_complete=completing.conversation,
    help="Go on with this one.",
)
@click.option("--list", "listing", is_flag=True, help="Show the conversations that are kept.")
@click.option("--no-keep", "keep", flag_value=False, default=True, help="Do not keep this one.")
@click.option("--config", type=_File, help="Instead of the llm.yaml that is looked for.")
@click.option("--emulate", is_flag=True, help="Ask the emulator: no key, no network.")
@click.option("--schema", type=_File, help="A JSON schema; prints an answer that conforms to it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the bill.")
@click.option("--no-stream", "stream", flag_value=False, default=True, help="Wait for all of it.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="How long the answer may be.")
@click.option(
    "--max-turns",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How often the model is called at most, with tools.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), help="How freely it speaks.")
@click.option(
    "--effort", shell_complete=completing.effort, help="How hard it thinks: low, high, …."
)
@click.option(
    "--preview", is_flag=True, help="Say what it would read, write and cost; send nothing."
)
@click.option("-q", "--quiet", is_flag=True, help="The answer, and nothing beside it.")
def command(listing: bool, **given: Any) -> None:
    """Ask a model, and see what became of the cache.

    The answer is printed as it comes; tool calls, notices and, in the end, verdict and price go to
    standard error. QUESTION is read from standard input when it is - or piped.

    Whom to ask is in llm.yaml: --config, $ANAPHORA_CONFIG, ./llm.yaml, or anaphora/llm.yaml where
    configurations are. Without one, the first provider is asked whose key is in the environment
    (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, …).

    Conversations are kept where data is, in anaphora/conversations, and readable for you alone.
    -c without a question goes on where one broke off.

    Exit code 2 when it cannot be asked like that, 4 when the answer does not conform to --schema,
    7 when a key is missing or refused, 1 when the provider fails, 130 when interrupted.
    """
    if listing:
        _list(given["as_json"])
        return
    from ._ask.asking import Options, ask

    ask(Options(**given))


def _list(as_json: bool) -> None:
    from ._ask import conversations, report

    found = report.listing(conversations.listed())
    if as_json:
        click.echo(report.as_json({"conversations": found}))
        return
    if not found:
        click.echo("no conversations yet", err=True)
        return
    from rich.table import Table

    from .terminal import Terminal

    table = Table(box=None, pad_edge=False)
    for title in ("id", "last", "with", "messages", "question"):
        table.add_column(title, justify="right" if title == "messages" else "left", no_wrap=True)
    for told in found:
        whom = f"{told['provider']}/{told['model']}" if told["model"] else told["provider"]
        whom = f"{whom} (emulated)" if told["emulated"] else whom or "cannot be read"
        table.add_row(
            told["id"],
            f"{told['at']:%Y-%m-%d %H:%M}",
            whom,
            str(told["messages"]),
            told["question"],
        )
    Terminal().page(table)
