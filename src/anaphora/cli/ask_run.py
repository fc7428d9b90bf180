"""From the options of `anaphora ask` to a question, its answer, and what is printed of it."""

from __future__ import annotations

import asyncio
import importlib
import mimetypes
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora import AsyncClient, canonical
from anaphora.client.session import PrefixWarning
from anaphora.client.session.run import unanswered
from anaphora.client.structured import Structured, output_of
from anaphora.errors import AnaphoraError, InvalidJson, InvalidRequest, InvalidTool, Io
from anaphora.prompt import Params
from anaphora.prompt.call import Reasoning
from anaphora.tools import ToolRegistry
from anaphora.values import Audio, Bytes, Document, Image, Part, Text

from . import ask_provider, ask_report, ask_store
from .ask_chat import AnswerPrinter, AskChat, AskRequest, AskResult
from .ask_provider import AskConfig, ProviderChoice
from .ask_store import ConversationSettings, StoredConversation
from .common import FOUND, INTERRUPTED, require, stop, to_json

#: No provider accepts more in one request.
_MAX_BYTES = 20 * 1024 * 1024
_STDIN = "-"


class AskOptions(msgspec.Struct, frozen=True, kw_only=True):
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


def ask(options: AskOptions) -> None:
    """Ask, print the answer, and store both."""
    _check(options)
    # With --json or --schema, the answer is printed when it is complete.
    silent = options.as_json or options.schema is not None
    printer = AnswerPrinter(quiet=options.quiet or options.as_json, silent=silent)
    stored = _stored(options)
    try:
        with _config(options) as config:
            request = _request(options, config, stored)
            exchange = _Exchange(request, stored, printer, as_json=options.as_json)
            if options.preview:
                exchange.preview()
            else:
                exchange.run()
    finally:
        if stored is not None:
            stored.close()


class _Exchange:
    """One question: sent, and its result printed."""

    def __init__(
        self,
        request: AskRequest,
        stored: StoredConversation | None,
        printer: AnswerPrinter,
        *,
        as_json: bool,
    ) -> None:
        self._request = request
        self._choice = request.choice
        self._stored = stored
        self._printer = printer
        self._as_json = as_json

    def preview(self) -> None:
        """Print what would happen; nothing is sent."""
        self._introduce()
        client = AsyncClient(self._choice.providers, self._choice.routes)
        preview = self._chat(client).preview()
        if self._as_json:
            self._print_json(preview)
        else:
            click.echo("\n".join(ask_report.preview_lines(preview)))

    def run(self) -> None:
        self._introduce()
        try:
            with warnings.catch_warnings():
                # It is among the notices, which are printed.
                warnings.simplefilter("ignore", PrefixWarning)
                result = asyncio.run(self._send())
        except KeyboardInterrupt:
            self._interrupted()
            stop(INTERRUPTED)
        except AnaphoraError as problem:
            self._printer.warn(ask_report.error_line(problem, self._choice))
            stop(ask_report.exit_code(problem, schema=self._request.output is not None))
        self._print(result)
        if result.run.stop_reason == "turns" or (self._stored is not None and not result.stored):
            stop(FOUND)

    async def _send(self) -> AskResult:
        def on_wait(seconds: float) -> None:
            self._printer.note(f"waiting {seconds:.1f} s for the provider's rate limit")

        choice = self._choice
        async with AsyncClient(choice.providers, choice.routes, on_wait=on_wait) as client:
            return await self._chat(client).send()

    def _chat(self, client: AsyncClient) -> AskChat:
        return AskChat(client, self._request, self._stored, self._printer)

    def _introduce(self) -> None:
        """Print what is known before the call."""
        choice, stored, printer = self._choice, self._stored, self._printer
        if stored is not None and stored.torn:
            printer.note(f"note: the last line of {stored.path} is incomplete and is left out")
        if self._request.config.emulated:
            printer.note(
                f"emulated: no provider is called; the answer of {choice.model} is generated here"
            )
        elif self._request.config.generated:
            key = choice.providers[choice.name].provider.key
            printer.note(f"no llm.yaml: using {choice.name}/{choice.model} with the key from {key}")
        for one in choice.providers.values():
            for notice in one.notices:
                printer.note(f"note: {notice}")

    def _print(self, result: AskResult) -> None:
        stored, printer, schema = self._stored, self._printer, self._request.output is not None
        if self._as_json:
            fields = ask_report.result_fields(result, stored, schema=schema)
            self._print_json(fields | {"config": self._request.config.place})
            return
        if schema and result.run.stop_reason != "turns":
            self._print_json(result.last.parsed)
        for notice in ask_report.notices(result):
            printer.note(notice)
        if (early := ask_report.early_stop(result, stored)) is not None:
            printer.warn(early)
        printer.note(ask_report.summary_line(result, stored))

    def _interrupted(self) -> None:
        text = self._printer.text
        if self._as_json:
            self._print_json({"answer": text, "interrupted": True})
        elif text and self._request.output is not None:
            click.echo(text)
        self._printer.warn("interrupted; the incomplete answer is not stored")

    def _print_json(self, value: Any) -> None:
        click.echo(ask_report.without_secrets(to_json(value), self._choice))


# ── The request ──────────────────────────────────────────────────────────────────────────────────


def _check(options: AskOptions) -> None:
    if options.last and options.continued is not None:
        raise click.UsageError("-c or --continue ID, not both")
    if options.emulate and options.config is not None:
        raise click.UsageError("--emulate and --config exclude each other")
    if (*options.files, *options.question).count(_STDIN) > 1:
        raise click.UsageError("standard input can be read once")


def _stored(options: AskOptions) -> StoredConversation | None:
    """The conversation to continue or to create; None when nothing is stored."""
    if options.continued is not None:
        stored = ask_store.find(options.continued)
    elif options.last:
        stored = ask_store.latest(emulated=options.emulate)
    else:
        return ask_store.new() if options.keep and not options.preview else None
    stored.open()
    return stored


@contextmanager
def _config(options: AskOptions) -> Iterator[AskConfig]:
    if not options.emulate:
        yield ask_provider.find_config(options.config)
        return
    if options.preview:  # nothing is sent
        yield ask_provider.emulator_config("http://localhost")
        return
    require("the emulator", "granian", "starlette")
    from anaphora import emulator

    with emulator.running() as emu:
        yield ask_provider.emulator_config(emu.url)


def _choose(
    options: AskOptions, config: AskConfig, stored: StoredConversation | None
) -> ProviderChoice:
    provider, model = options.provider, options.model
    past = None if stored is None else stored.settings
    if stored is not None and past is not None:
        _check_past(past, stored, options)
        if provider is None:
            # The conversation's provider and model, unless the options name others.
            if model is not None:
                provider, model = ask_provider.split(config, model)
            elif past.provider in config.names:
                model = past.model
            provider = provider or past.provider
    return ask_provider.choose(config, provider, model, keys=not options.preview)


def _check_past(
    past: ConversationSettings, stored: StoredConversation, options: AskOptions
) -> None:
    """Tools and the emulator cannot be added or removed in the middle of a conversation."""
    if past.emulated != options.emulate:
        way = "with" if past.emulated else "without"
        raise InvalidRequest(
            f"conversation {stored.id} was started {way} --emulate; continue it {way} --emulate"
        )
    if past.tools and not options.tools:
        again = " ".join(f"--tool {name}" for name in past.tools)
        raise InvalidRequest(f"conversation {stored.id} uses tools; pass them again: {again}")


def _request(
    options: AskOptions, config: AskConfig, stored: StoredConversation | None
) -> AskRequest:
    choice = _choose(options, config, stored)
    past = None if stored is None else stored.settings
    system = options.system if options.system is not None else (past.system if past else "")
    return AskRequest(
        config=config,
        choice=choice,
        content=_content(options, stored),
        settings=ConversationSettings(
            provider=choice.name,
            model=choice.model,
            system=system,
            tools=options.tools,
            emulated=options.emulate,
        ),
        params=Params(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            reasoning=None if options.effort is None else Reasoning(effort=options.effort),
        ),
        registry=_registry(options.tools),
        output=None if options.schema is None else _output(options.schema),
        stream=options.stream,
        max_turns=options.max_turns,
    )


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
        return " ".join(options.question)
    piped = sys.stdin is not None and not sys.stdin.isatty() and _STDIN not in options.files
    return _text(_read(_STDIN), _STDIN) if options.question or piped else ""


def _output(file: Path) -> Structured[Any]:
    try:
        schema = canonical.loads(file.read_bytes())
    except (InvalidJson, ValueError) as problem:
        raise InvalidRequest(f"not JSON: {problem}", path=str(file)) from None
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON Schema is an object", path=str(file))
    return output_of(schema)


# ── Attached files ───────────────────────────────────────────────────────────────────────────────


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
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
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


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def _registry(names: Iterable[str]) -> ToolRegistry | None:
    """A registry of the functions that `module:function` name; None without any."""
    functions = [_function(name) for name in dict.fromkeys(names)]
    if not functions:
        return None
    registry = ToolRegistry()
    for function in functions:
        registry.add(function)
    return registry


def _function(name: str) -> Any:
    module, colon, path = name.partition(":")
    option = f"--tool {name}"
    if not (module and colon and path):
        raise InvalidTool("write module:function", path=option)
    value = _module(module, option)
    for attribute in path.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            raise InvalidTool(f"{module} has no {path}", path=option) from None
    if not callable(value):
        raise InvalidTool(f"{path} is not a function", path=option)
    return value


def _module(module: str, option: str) -> Any:
    """A module from the current folder, or an installed one."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except Exception as problem:
        # An error in the user's module must not look like an internal error.
        if isinstance(problem, ModuleNotFoundError) and problem.name == module:
            reason = f"no module {module} in {here}"
        else:
            reason = f"importing {module} failed: {type(problem).__name__}: {problem}"
        raise InvalidTool(reason, path=option) from problem
