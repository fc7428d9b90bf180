"""`anaphora ask`"""

from __future__ import annotations

import importlib
import mimetypes
import os
import sys
from pathlib import Path
from typing import Any, get_args

import click

from anaphora.catalog import Effort
from anaphora.errors import InvalidRequest, InvalidTool, Io
from anaphora.tools import ToolRegistry
from anaphora.values import Audio, Bytes, Document, Image, Part, Text
from anaphora.values.conversation import unanswered

from . import ask_files
from .ask_chat import AskChat, AskOptions
from .ask_files import ConversationSettings, StoredConversation
from .common import EXISTING_FILE, read_stdin
from .parameters import NumberRange
from .provider_choice import (
    AskConfig,
    ProviderChoice,
    choose,
    complete_model,
    complete_provider,
    config_or_emulator,
    models_of,
    read_schema,
    split,
)

#: No provider accepts more in one request.
_MAX_BYTES = 20 * 1024 * 1024
_STDIN = "-"


@click.command()
@click.argument("question", nargs=-1)
@click.option("-m", "--model", shell_complete=complete_model, help="MODEL, or PROVIDER/MODEL.")
@click.option("-p", "--provider", shell_complete=complete_provider, help="Provider or route.")
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
@click.option("-c", "--continue", "last", is_flag=True, help="Continue the last conversation.")
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
@click.option("--temperature", type=NumberRange(0, 2), help="Sampling temperature.")
@click.option("--effort", type=click.Choice(get_args(Effort)), help="Reasoning effort.")
@click.option(
    "--preview", is_flag=True, help="Predict tokens read, written and the cost; send nothing."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def command(**given: Any) -> None:
    """Ask a model, and see how the prompt cache was used.

    The answer is streamed to standard output; tool calls, notices and, at the end, verdict and cost
    go to standard error. Without QUESTION, or when it is -, the question is read from standard
    input; with a question, only -f - reads it.

    Providers come from the first file of --config, $ANAPHORA_CONFIG, ./llm.yaml, and
    anaphora/llm.yaml in the user's configuration folder; without a file, from the keys in the
    environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, …). Without -p and -m, the first
    provider of the file or of that list is used.

    Conversations are stored in anaphora/conversations in the user's data folder, readable only by
    the user. A continued conversation keeps its provider, model and system prompt unless others are
    given. -c without a question resumes a tool loop that stopped early.

    Exit code 1 when the provider fails, --max-turns is reached or the conversation cannot be
    stored, 2 for invalid options or input, 4 when the answer does not conform to --schema, 7 when a
    key is missing or rejected, 130 when interrupted.
    """
    if given["system"] is not None:
        given["system"] = _argument(given["system"], "-s")
    options = AskOptions(**given)
    if options.emulate and options.config is not None:
        raise click.UsageError("--emulate or --config, not both")
    if (*options.files, *options.question).count(_STDIN) > 1:
        raise click.UsageError("standard input can be read only once: as QUESTION or with -f")
    stored = _stored(options)
    try:
        preview = options.preview
        with config_or_emulator(options.config, emulate=options.emulate, preview=preview) as config:
            chat = AskChat(
                options,
                config,
                _choose(options, config, stored),
                stored,
                content=_content(options, stored),
                registry=_registry(options.tools),
                output=None if options.schema is None else read_schema(options.schema),
            )
            if options.preview:
                chat.preview()
            else:
                chat.run()
    finally:
        if stored is not None:
            stored.close()


def _stored(options: AskOptions) -> StoredConversation | None:
    """The conversation to continue or to create; None when nothing is stored."""
    if not options.last:
        return ask_files.new() if options.keep and not options.preview else None
    stored = ask_files.latest(emulated=options.emulate)
    stored.open()
    return stored


def _choose(
    options: AskOptions, config: AskConfig, stored: StoredConversation | None
) -> ProviderChoice:
    provider, model = options.provider, options.model
    past = None if stored is None else stored.settings
    if stored is not None and past is not None:
        _check_past(past, stored.id, options)
        if provider is None and model is None:
            provider, model = past.provider, past.model
            if config.environment is None and provider not in config.names:
                raise InvalidRequest(
                    f"conversation {stored.id} used {provider}, which is not configured;"
                    " choose another provider with -p"
                )
        elif provider is None and model is not None:
            provider, model = split(config, model)
            provider = provider or _provider_with(config, model, past.provider)
    return choose(config, provider, model, keys=not options.preview)


def _provider_with(config: AskConfig, model: str, past: str) -> str | None:
    """The provider of a conversation, if it has the model or no other is known to have it."""
    known = [name for name in config.client.providers if model in models_of(config, name)]
    if past in config.client.routes or past in known:
        return past
    return known[0] if known else past if past in config.names else None


def _check_past(past: ConversationSettings, id: str, options: AskOptions) -> None:
    """Tools and the emulator cannot be added or removed in the middle of a conversation."""
    if past.tools and not options.tools:
        again = " ".join(f"--tool {name}" for name in past.tools)
        raise InvalidRequest(f"conversation {id} uses tools; pass them again: {again}")


def _content(options: AskOptions, stored: StoredConversation | None) -> tuple[Part, ...]:
    question = _question(options)
    parts = tuple(_part(file) for file in options.files)
    if question.strip():
        return (*parts, Text(question))
    if not parts and stored is not None:
        # A conversation that does not end with the model's answer can be resumed.
        messages = tuple(stored.messages)
        if messages and (messages[-1].role != "assistant" or unanswered(messages)):
            return ()
    raise click.UsageError('no question: anaphora ask "…", or - for standard input')


def _question(options: AskOptions) -> str:
    if options.question and options.question != (_STDIN,):
        return _argument(" ".join(options.question), "QUESTION")
    piped = sys.stdin is not None and not sys.stdin.isatty() and _STDIN not in options.files
    return _text(_read(_STDIN), _STDIN) if options.question or piped else ""


def _argument(text: str, name: str) -> str:
    """An argument as UTF-8 text, whatever the locale is."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        raise InvalidRequest("not valid UTF-8", path=name) from None


def _part(file: str) -> Part:
    """The file as a message part: text in a labelled block, or an image, audio or document."""
    data = _read(file)
    name = "stdin" if file == _STDIN else Path(file).name
    media_type = mimetypes.guess_type(name)[0] or ""
    if media_type.startswith("image/") and media_type != "image/svg+xml":
        return Image(source=Bytes(data, media_type))
    if media_type.startswith("audio/"):
        return Audio(source=Bytes(data, media_type))
    if media_type == "application/pdf":
        return Document(source=Bytes(data, media_type), title=name)
    text = _text(data, file)
    # A quote in a file's name must not end the label.
    label = name.replace('"', "'")
    end = "" if text.endswith("\n") else "\n"
    return Text(f'<file name="{label}">\n{text}{end}</file>\n')


def _read(file: str) -> bytes:
    try:
        if file == _STDIN:
            data = read_stdin(_MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_MAX_BYTES + 1)
    except OSError as problem:
        raise Io(f"{file}: cannot be read: {problem.strerror or problem}") from None
    if len(data) > _MAX_BYTES:
        limit = f"{_MAX_BYTES // 1024**2} MiB"
        raise InvalidRequest(
            f"larger than {limit}, the limit of all providers; attach a part", path=_shown(file)
        )
    return data


def _text(data: bytes, file: str) -> str:
    try:
        if b"\0" in data:
            raise ValueError
        return data.decode("utf-8-sig")
    except ValueError:
        raise InvalidRequest(
            "neither UTF-8 text nor, by its name, an image, audio or PDF file; convert it first",
            path=_shown(file),
        ) from None


def _shown(file: str) -> str:
    return "standard input" if file == _STDIN else file


def _registry(names: tuple[str, ...]) -> ToolRegistry | None:
    """A registry of the functions given as `module:function`; None without any."""
    functions = [_function(name) for name in dict.fromkeys(names)]
    if not functions:
        return None
    registry = ToolRegistry()
    for function in functions:
        registry.add(function)
    return registry


def _function(name: str) -> Any:
    """A function of a module in the current folder, or of an installed one."""
    module, colon, path = name.partition(":")
    option, here = f"--tool {name}", str(Path.cwd())
    if not (module and colon and path):
        raise InvalidTool("write module:function", path=option)
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
    except Exception as problem:
        # An error in the user's module must not look like an internal error.
        reason = f"importing {module} failed: {type(problem).__name__}: {problem}"
        if isinstance(problem, ModuleNotFoundError) and problem.name == module:
            reason = f"no module {module} in {here}"
        raise InvalidTool(reason, path=option) from problem
    try:
        for attribute in path.split("."):
            value = getattr(value, attribute)
    except AttributeError:
        raise InvalidTool(f"{module} has no {path}", path=option) from None
    if not callable(value):
        raise InvalidTool(f"{path} is not a function", path=option)
    return value
