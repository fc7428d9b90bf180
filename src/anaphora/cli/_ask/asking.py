"""From what the command line says to a question, and to whom."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from anaphora import canonical
from anaphora.catalog import Effort
from anaphora.client.session.run import unanswered
from anaphora.client.structured import Structured, output_of
from anaphora.errors import InvalidJson, InvalidRequest
from anaphora.prompt import Params
from anaphora.prompt.call import Reasoning
from anaphora.values import Part, Text

from . import choosing, conversations, files
from .answering import Answering
from .choosing import Chosen, Source
from .conversations import Kept, Settings
from .talking import Wish
from .tools import registry_of
from .voice import Voice


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    question: tuple[str, ...]
    provider: str | None
    model: str | None
    system: str | None
    tools: tuple[str, ...]
    files: tuple[str, ...]
    last: bool
    continued: str | None
    config: Path | None
    emulate: bool
    schema: Path | None
    as_json: bool
    stream: bool
    max_tokens: int | None
    max_turns: int
    temperature: float | None
    effort: str | None
    preview: bool
    keep: bool
    quiet: bool


def ask(options: Options) -> None:
    """Asks, says the answer, and keeps both."""
    _check(options)
    # What is made of the whole answer is not said before there is one.
    silent = options.as_json or options.schema is not None
    voice = Voice(quiet=options.quiet or options.as_json, silent=silent)
    kept = _kept(options)
    try:
        with _source(options) as source:
            wish, chosen = _wish(options, source, kept)
            answering = Answering(source, chosen, wish, kept, voice, as_json=options.as_json)
            if options.preview:
                answering.preview()
            else:
                answering.hold()
    finally:
        if kept is not None:
            kept.close()


# ── What is asked ────────────────────────────────────────────────────────────────────────────────


def _check(options: Options) -> None:
    if options.last and options.continued is not None:
        raise click.UsageError("-c or --continue ID, not both")
    if options.emulate and options.config is not None:
        raise click.UsageError("--emulate asks the emulator, not who is in --config")
    if options.effort is not None and options.effort not in get_args(Effort):
        known = ", ".join(get_args(Effort))
        raise click.BadParameter(f"{options.effort!r} is none of {known}", param_hint="--effort")
    if (*options.files, *options.question).count("-") > 1:
        raise click.UsageError("standard input can be read once")


def _kept(options: Options) -> Kept | None:
    if options.last or options.continued is not None:
        if options.continued is not None:
            kept = conversations.named(options.continued)
        else:
            kept = conversations.last(emulated=options.emulate)
        kept.open()
        return kept
    return conversations.new() if options.keep and not options.preview else None


@contextmanager
def _source(options: Options) -> Iterator[Source]:
    if not options.emulate:
        yield choosing.find(options.config)
        return
    if options.preview:  # nobody will be asked
        yield choosing.emulated("http://localhost")
        return
    for package in ("granian", "starlette"):
        if find_spec(package) is None:
            raise click.ClickException(
                f"the emulator needs {package}; install it with: pip install 'anaphora[emulator]'"
            )
    from anaphora import emulator

    with emulator.running() as emu:
        yield choosing.emulated(emu.url)


def _wish(options: Options, source: Source, kept: Kept | None) -> tuple[Wish, Chosen]:
    past = kept.settings if kept is not None else None
    if past is not None:
        assert kept is not None
        _check_past(past, kept, options)
    chosen = _chosen(options, source, past)
    system = options.system if options.system is not None else (past.system if past else "")
    reasoning = None if options.effort is None else Reasoning(effort=options.effort)
    wish = Wish(
        content=_content(options, kept),
        settings=Settings(
            provider=chosen.name,
            model=chosen.model,
            system=system,
            tools=options.tools,
            emulated=options.emulate,
        ),
        params=Params(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            reasoning=reasoning,
        ),
        registry=registry_of(options.tools),
        output=None if options.schema is None else _output(options.schema),
        stream=options.stream,
        max_turns=options.max_turns,
    )
    return wish, chosen


def _check_past(past: Settings, kept: Kept, options: Options) -> None:
    """What was begun with tools goes on with tools, and what the emulator made up stays there."""
    if past.emulated != options.emulate:
        way = "with --emulate" if past.emulated else "without --emulate"
        raise InvalidRequest(f"conversation {kept.id} was held {way}, and goes on {way} only")
    if past.tools and not options.tools:
        again = " ".join(f"--tool {name}" for name in past.tools)
        raise InvalidRequest(
            f"conversation {kept.id} was held with tools; name them again: {again}"
        )


def _chosen(options: Options, source: Source, past: Settings | None) -> Chosen:
    provider, model = options.provider, options.model
    if past is not None and provider is None:
        # It goes on where it was, unless somebody says otherwise.
        if model is not None:
            provider, model = choosing.split(source, model)
        elif past.provider in source.names:
            model = past.model
        provider = provider or past.provider
    return choosing.choose(source, provider, model, keys=not options.preview)


def _content(options: Options, kept: Kept | None) -> tuple[Part, ...]:
    question = _question(options)
    parts = files.parts_of(options.files)
    if question.strip():
        return (*parts, Text(question))
    broken_off = kept is not None and _broke_off(kept)
    if broken_off and not parts:
        return ()
    raise click.UsageError('what is the question? anaphora ask "…", or - for standard input')


def _question(options: Options) -> str:
    if options.question == ("-",):
        return files.standard_input()
    if options.question:
        return " ".join(options.question)
    piped = sys.stdin is not None and not sys.stdin.isatty() and "-" not in options.files
    return files.standard_input() if piped else ""


def _broke_off(kept: Kept) -> bool:
    """Whether the last word is not the model's."""
    messages = tuple(kept.messages)
    return bool(messages) and (messages[-1].role != "assistant" or bool(unanswered(messages)))


def _output(file: Path) -> Structured[Any]:
    try:
        schema = canonical.loads(file.read_bytes())
    except (InvalidJson, ValueError) as problem:
        raise InvalidRequest(f"not JSON: {problem}", path=str(file)) from None
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON schema is an object", path=str(file))
    return output_of(schema)
