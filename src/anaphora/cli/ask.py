"""`anaphora ask`"""

from __future__ import annotations

import contextlib
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem

from anaphora.catalog import Effort

from .ask_provider import AskConfig, emulator_config, find_config, models_of
from .ask_report import listing
from .ask_run import AskOptions, ask
from .common import EXISTING_FILE, completions, print_json
from .terminal import Terminal, table

# ── Completion: no suggestions when anything fails ───────────────────────────────────────────────


def _complete_provider(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    config = _config(ctx)
    return [] if config is None else completions(config.names, incomplete)


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Models of the given provider; without one, `provider/model` of all."""
    config = _config(ctx)
    if config is None:
        return []
    with contextlib.suppress(Exception):
        if provider := ctx.params.get("provider"):
            return completions(models_of(config, provider), incomplete)
        names = (
            f"{name}/{model}"
            for name in config.client.providers
            for model in models_of(config, name)
        )
        return completions(names, incomplete)
    return []


def _complete_conversation(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [
        CompletionItem(row["id"], help=row["question"])
        for row in listing()
        if row["id"].startswith(incomplete)
    ]


def _config(ctx: click.Context) -> AskConfig | None:
    with contextlib.suppress(Exception):
        if ctx.params.get("emulate"):
            return emulator_config("http://localhost")
        return find_config(ctx.params.get("config"))
    return None


# ── The command ──────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("question", nargs=-1)
@click.option("-m", "--model", shell_complete=_complete_model, help="MODEL, or PROVIDER/MODEL.")
@click.option(
    "-p", "--provider", shell_complete=_complete_provider, help="Provider or route of llm.yaml."
)
@click.option("-s", "--system", help="System prompt.")
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Function the model may call; repeatable.",
)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Attach a text, image, audio or PDF file; repeatable.",
)
@click.option("-c", "--last", is_flag=True, help="Continue the last conversation.")
@click.option(
    "--continue",
    "continued",
    metavar="ID",
    shell_complete=_complete_conversation,
    help="Continue this conversation.",
)
@click.option("--list", "listing", is_flag=True, help="List stored conversations.")
@click.option(
    "--no-keep", "keep", flag_value=False, default=True, help="Do not store the conversation."
)
@click.option("--config", type=EXISTING_FILE, help="Configuration to use instead of llm.yaml.")
@click.option("--emulate", is_flag=True, help="Use the local emulator: no key, no network.")
@click.option("--schema", type=EXISTING_FILE, help="JSON Schema that the answer must conform to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the bill.")
@click.option("--no-stream", "stream", flag_value=False, default=True, help="Do not stream.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Limit of output tokens.")
@click.option(
    "--max-turns",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Limit of model calls, with tools.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), help="Sampling temperature.")
@click.option("--effort", type=click.Choice(get_args(Effort)), help="Reasoning effort.")
@click.option(
    "--preview", is_flag=True, help="Predict tokens read, written and the cost; send nothing."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def command(listing: bool, **options: Any) -> None:
    """Ask a model, and see how the prompt cache was used.

    The answer is streamed to standard output; tool calls, notices and, at the end, verdict and cost
    go to standard error. QUESTION is read from standard input when it is - or piped.

    Providers come from llm.yaml: --config, $ANAPHORA_CONFIG, ./llm.yaml, or anaphora/llm.yaml in
    the user's configuration folder. Without one, the first provider whose key is in the environment
    is used (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, …).

    Conversations are stored in anaphora/conversations in the user's data folder, readable only by
    the user. -c without a question resumes an interrupted conversation.

    Exit code 2 for invalid options or input, 4 when the answer does not conform to --schema, 7 when
    a key is missing or rejected, 1 when the provider fails, 130 when interrupted.
    """
    if listing:
        _list(options["as_json"])
        return
    ask(AskOptions(**options))


def _list(as_json: bool) -> None:
    rows = listing()
    if as_json:
        print_json({"conversations": rows})
        return
    if not rows:
        click.echo("no conversations yet", err=True)
        return
    shown = table("id", "last", "provider", "messages", "question", right=["messages"])
    for column in shown.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for row in rows:
        provider = f"{row['provider']}/{row['model']}" if row["model"] else row["provider"]
        provider = f"{provider} (emulated)" if row["emulated"] else provider or "unreadable"
        last = f"{row['at']:%Y-%m-%d %H:%M}"
        shown.add_row(row["id"], last, provider, str(row["messages"]), row["question"])
    Terminal().page(shown)
