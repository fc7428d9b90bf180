"""`anaphora ask`: one question, sent through a session, and printed as the answer streams."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora import AsyncClient, Response, errors
from anaphora.client.choice import UnknownModelWarning, unknown_model
from anaphora.client.preview import Preview
from anaphora.client.session import Session
from anaphora.client.session.run import declined
from anaphora.client.structured import Structured
from anaphora.errors import AnaphoraError, InvalidRequest, Io
from anaphora.values import Audio, Bytes, Document, Image, Part, Refusal, Reply, Text
from anaphora.wording import counted, format_usd, visible

from .common import EXISTING_FILE, INTERRUPTED, MISMATCH, print_json, read_stdin, stop
from .config import key_shown
from .main import exit_code
from .provider_choice import (
    AskConfig,
    ProviderChoice,
    choose,
    config_or_emulator,
    model_option,
    read_schema,
)
from .terminal import AnswerPrinter, answer_on, one_line

#: No provider accepts more in one request.
_MAX_BYTES = 20 * 1024 * 1024
_STDIN = "-"
#: Characters of a provider's error message.
_ERROR = 500

_EARLY_STOPS = {
    "length": "cut off at the output limit; raise `max_tokens` in llm.yaml",
    "refusal": "the model refused to answer",
}
_ADVICE: tuple[tuple[type[AnaphoraError], str], ...] = (
    (errors.Unauthenticated, "check the key ({keys})"),
    (errors.Forbidden, "the key ({keys}) lacks the permission"),
    (errors.QuotaExhausted, "check the account's limits, or use another provider with -m"),
    (errors.RateLimited, "wait a moment, or use another provider with -m"),
    (errors.Overloaded, "try again in a moment, or use another provider with -m"),
    (errors.NotFound, "choose another model with -m; `anaphora models` lists the known ones"),
    (errors.ContextOverflow, "send less: fewer files"),
    (errors.TooLarge, "send less: fewer or smaller files"),
    (errors.ContentRefused, "rephrase it, or use another provider with -m"),
    (errors.Transport, "check that {hosts} is the right address and can be reached"),
    (errors.Timeout, "raise `timeouts` in llm.yaml, or ask for a shorter answer"),
)
#: The counts of --json, and the attributes of `Usage` that hold them.
_COUNTS = {
    "input": "input",
    "uncached": "uncached",
    "read": "read",
    "written": "written_total",
    "output": "output",
    "reasoning": "reasoning",
}


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    question: tuple[str, ...]
    model: str | None
    system: str | None
    files: tuple[str, ...]
    schema: Path | None
    as_json: bool
    preview: bool
    emulate: bool
    quiet: bool


@click.command()
@click.argument("question", nargs=-1)
@model_option
@click.option("-s", "--system", help="System prompt.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Attach a text, image, audio or PDF file; repeatable.",
)
@click.option("--schema", type=EXISTING_FILE, help="JSON Schema that the answer must conform to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the bill.")
@click.option(
    "--preview", is_flag=True, help="Predict tokens read, written and the cost; send nothing."
)
@click.option("--emulate", is_flag=True, help="Use the local emulator: no key, no network.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def command(**given: Any) -> None:
    """Ask a model, and see how the prompt cache was used.

    The answer is streamed to standard output; notices and, at the end, verdict and cost go to
    standard error. Without QUESTION, or when it is -, the question is read from standard input;
    with a question, only -f - reads it.

    Providers come from the first file of $ANAPHORA_CONFIG, ./llm.yaml, and anaphora/llm.yaml in the
    user's configuration folder; without a file, from the keys in the environment (OPENAI_API_KEY,
    ANTHROPIC_API_KEY, GEMINI_API_KEY, …). Without -m, the first provider of the file or of that
    list is used.

    Exit code 1 when the provider fails, 2 for invalid options or input, 4 when the answer does not
    conform to --schema, 7 when a key is missing or rejected, 130 when interrupted.
    """
    options = _Options(**given)
    if options.system is not None:
        options = msgspec.structs.replace(options, system=_argument(options.system, "-s"))
    if (*options.files, *options.question).count(_STDIN) > 1:
        raise click.UsageError("standard input can be read only once: as QUESTION or with -f")
    with config_or_emulator(emulate=options.emulate, preview=options.preview) as config:
        choice = choose(config, options.model, keys=not options.preview)
        output = None if options.schema is None else read_schema(options.schema)
        one = _Question(options, config, choice, _content(options), output)
        if options.preview:
            one.preview()
        else:
            one.ask()


class _Question:
    def __init__(
        self,
        options: _Options,
        config: AskConfig,
        choice: ProviderChoice,
        content: tuple[Part, ...],
        output: Structured[Any] | None,
    ) -> None:
        self._options, self._config, self._choice = options, config, choice
        self._content, self._output = content, output
        # With --json or --schema, the answer is printed when it is complete.
        silent = options.as_json or output is not None
        self._printer = AnswerPrinter(quiet=options.quiet or options.as_json, silent=silent)

    def preview(self) -> None:
        """Print what would happen; nothing is sent."""
        self._introduce()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownModelWarning)
            session = self._session(self._client())
        preview = session.preview(self._content, output=self._output)
        if self._options.as_json:
            print_json(preview)
        else:
            click.echo("\n".join(map(visible, _preview_lines(preview))))

    def ask(self) -> None:
        """Send the question, and print the answer."""
        self._introduce()
        try:
            with warnings.catch_warnings():
                # The notices, which are printed, contain this warning.
                warnings.simplefilter("ignore", UnknownModelWarning)
                response = asyncio.run(self._send())
        except KeyboardInterrupt:
            text = self._printer.text
            if self._options.as_json:
                print_json({"answer": text, "interrupted": True})
            elif text and self._output is not None:
                click.echo(answer_on(sys.stdout, text))
            self._printer.warn("interrupted")
            stop(INTERRUPTED)
        except AnaphoraError as problem:
            line = self._error_line(problem)
            self._print_arrived(problem, line)
            self._printer.warn(line)
            mismatch = self._output is not None and isinstance(problem, errors.Parse)
            stop(MISMATCH if mismatch else exit_code(problem))
        self._print(response)

    def _print_arrived(self, problem: AnaphoraError, line: str) -> None:
        """Print the partial text of an answer whose printing waits for its end."""
        text = self._printer.text
        if not text and problem.partial is not None:
            text = _answer_text(problem.partial)
        if not text:
            return
        if self._options.as_json:
            print_json({"answer": text, "error": line})
        elif self._output is not None:
            click.echo(answer_on(sys.stderr, text), err=True)

    def _client(self, on_wait: Callable[[float], None] | None = None) -> AsyncClient:
        choice = self._choice
        return AsyncClient(choice.providers, choice.routes, on_wait=on_wait)

    async def _send(self) -> Response:
        def on_wait(seconds: float) -> None:
            self._printer.note(f"waiting {seconds:.1f} s for the provider's rate limit")

        async with self._client(on_wait) as client:
            turn = self._session(client).send(self._content, output=self._output)
            async with aclosing(turn.__aiter__()) as events:
                async for event in events:
                    self._printer.show(event)
            self._printer.end_line()
            assert turn.response is not None
            return turn.response

    def _session(self, client: AsyncClient) -> Session:
        choice = self._choice
        return client.session(choice.name, model=choice.model, system=self._options.system or "")

    def _introduce(self) -> None:
        """Print notes before the call: the provider, the key, unknown models."""
        choice, note = self._choice, self._printer.note
        if self._config.emulated:
            note("emulated: no provider is called, and each run begins with an empty cache")
        elif self._config.environment is not None:
            used = choice.providers[choice.name]
            source = "with credentials" if used.credentials is not None else "with the key from"
            shown = key_shown(used)
            source = "without a key" if shown.startswith("none") else f"{source} {shown}"
            since = choice.default_since
            row = "" if since is None else f" (default model of {since}; -m chooses another)"
            note(f"no llm.yaml: using {choice.name}/{choice.model}{row} {source}")
        for one in choice.providers.values():
            for notice in one.notices:
                note(f"note: {notice}")
            if one.id == choice.name and choice.model is not None:
                for notice in unknown_model(one, choice.model):
                    note(f"note: {notice} [{notice.code}]")

    def _print(self, response: Response) -> None:
        if self._options.as_json:
            fields = _fields(response, with_value=self._output is not None)
            print_json(fields | {"config": self._config.place})
            return
        if self._output is not None:
            print_json(response.parsed)
        shown = (one for one in response.notices if one.code != "model_unknown")  # printed before
        for line in dict.fromkeys(f"note: {one} [{one.code}]" for one in shown):
            self._printer.note(line)
        reason = "refusal" if declined(response.reply) else response.reply.stop_reason
        if early := _EARLY_STOPS.get(reason):
            self._printer.warn(early)
        # anthropic/claude-sonnet-5-5 · Hit: 2,847 of 2,920 tokens read, saved $0.0076. · $0.0019
        cost = response.cost_usd
        summary = (
            f"{response.record.provider}/{response.record.model}",
            str(response.verdict or "no verdict"),
            "price unknown" if cost is None else format_usd(cost),
        )
        self._printer.note(" · ".join(summary))

    def _error_line(self, problem: AnaphoraError) -> str:
        """Provider, problem, attempts and advice in one line, without any key."""
        line, providers = one_line(str(problem), _ERROR), self._choice.providers.values()
        if isinstance(problem, errors.Upstream | errors.Transport | errors.Timeout):
            attempts = problem.attempts
            status = getattr(problem, "status", None)
            name = f"{attempts[-1].provider if attempts else self._choice.name}: "
            line = name + line.removeprefix(name)
            line += f" ({status})" if status else ""
            line += f", after {len(attempts)} attempts" if len(attempts) > 1 else ""
        advice = next((text for kind, text in _ADVICE if isinstance(problem, kind)), "")
        if advice:
            keys = ", ".join(map(key_shown, providers))
            hosts = ", ".join(one.shown_url for one in providers)
            line = f"{line.rstrip('.')}; {advice.format(keys=keys, hosts=hosts)}"
        return line


def _answer_text(reply: Reply) -> str:
    """The text to print of an answer, or of a refusal."""
    return "".join(part.text for part in reply.message.parts if isinstance(part, Text | Refusal))


def _fields(response: Response, *, with_value: bool) -> dict[str, Any]:
    """Fields of --json."""
    record, reply, verdict = response.record, response.reply, response.verdict
    return {
        "answer": _answer_text(reply),
        **({"parsed": response.parsed} if with_value else {}),
        "stop": "refusal" if declined(reply) else reply.stop_reason,
        "provider": record.provider,
        "model": record.model,
        "served_model": reply.model,
        "usage": {name: getattr(response.usage, field) for name, field in _COUNTS.items()},
        "verdict": None
        if verdict is None
        else {"result": verdict.result, "sentence": str(verdict)},
        "cost_usd": response.cost_usd,
        "attempts": response.attempts,
        "notices": response.notices,
    }


def _preview_lines(preview: Preview) -> list[str]:
    lines = [f"{preview.provider}/{preview.model}: {counted(preview.size, 'byte')}", str(preview)]
    if preview.cost_usd is None:
        lines.append("the price is unknown")
    elif preview.uncached_cost_usd is not None:
        lines.append(f"{format_usd(preview.uncached_cost_usd)} if nothing were cached")
    lines += [f"marker: {marker}" for marker in preview.markers]
    lines += [f"note: {notice} [{notice.code}]" for notice in preview.notices]
    return [*lines, "Nothing was sent."]


# ── Question and files ───────────────────────────────────────────────────────────────────────────


def _content(options: _Options) -> tuple[Part, ...]:
    question = _question(options)
    parts = tuple(_part(file) for file in options.files)
    if not question.strip():
        raise click.UsageError('no question: anaphora ask "…", or - for standard input')
    return (*parts, Text(question))


def _question(options: _Options) -> str:
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
