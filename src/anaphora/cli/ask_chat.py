"""One question of `anaphora ask`: sent through a session, printed as it streams, and stored."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec
from blake3 import blake3

from anaphora import AsyncClient, Response, RunResult, errors
from anaphora.client.choice import UnknownModelWarning, unknown_model
from anaphora.client.config.environment import remembers
from anaphora.client.preview import Preview
from anaphora.client.session import PrefixWarning, Session
from anaphora.client.session.run import Run, declined
from anaphora.client.structured import Structured
from anaphora.client.turn import Turn
from anaphora.errors import AnaphoraError
from anaphora.prompt import Params, Reasoning
from anaphora.tools import ToolRegistry
from anaphora.values import (
    Message,
    Part,
    PartEnd,
    Refusal,
    Reply,
    Text,
    ToolCall,
    ToolResult,
    to_json,
)
from anaphora.wording import counted, format_usd, visible

from .ask_files import ConversationSettings, LastCall, StoredConversation, StoredLine
from .common import FOUND, INTERRUPTED, MISMATCH, print_json, stop
from .config import key_shown
from .main import exit_code
from .provider_choice import AskConfig, ProviderChoice
from .terminal import AnswerPrinter, answer_on, one_line

#: Characters of an excerpt of a tool's arguments or result, and of a provider's error message.
_EXCERPT, _ERROR = 200, 500

_EARLY_STOPS = {
    "length": "cut off at the output limit; raise it with --max-tokens",
    "refusal": "the model refused to answer",
    "turns": "stopped at --max-turns; resume with `anaphora ask --continue`",
}
_ADVICE: tuple[tuple[type[AnaphoraError], str], ...] = (
    (errors.Unauthenticated, "check the key ({keys})"),
    (errors.Forbidden, "the key ({keys}) lacks the permission"),
    (errors.QuotaExhausted, "check the account's limits, or use another provider with -p"),
    (errors.RateLimited, "wait a moment, or use another provider with -p"),
    (errors.Overloaded, "try again in a moment, or use another provider with -p"),
    (errors.NotFound, "choose another model with -m; `anaphora models` lists the known ones"),
    (errors.ContextOverflow, "send less: fewer files, or a new conversation"),
    (errors.TooLarge, "send less: fewer or smaller files, or a new conversation"),
    (errors.ContentRefused, "rephrase it, or use another provider with -p"),
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


class AskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    question: tuple[str, ...]
    provider: str | None
    model: str | None
    system: str | None
    tools: tuple[str, ...]
    files: tuple[str, ...]
    last: bool
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


class AskChat:
    def __init__(
        self,
        options: AskOptions,
        config: AskConfig,
        choice: ProviderChoice,
        stored: StoredConversation | None,
        *,
        content: tuple[Part, ...],
        registry: ToolRegistry | None,
        output: Structured[Any] | None,
    ) -> None:
        """Without `content`, an interrupted conversation is resumed."""
        self._options, self._config, self._choice = options, config, choice
        self._stored = stored
        self._content, self._registry, self._output = content, registry, output
        past = None if stored is None else stored.settings
        system = options.system if options.system is not None else (past.system if past else "")
        self._settings = ConversationSettings(
            provider=choice.name,
            model=choice.model,
            system=system,
            tools=options.tools,
            emulated=options.emulate,
        )
        self._params = Params(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            reasoning=None if options.effort is None else Reasoning(effort=options.effort),
        )
        self._store_failed = False
        # With --json or --schema, the answer is printed when it is complete.
        silent = options.as_json or output is not None
        self._printer = AnswerPrinter(quiet=options.quiet or options.as_json, silent=silent)
        tools = () if registry is None else registry.tools()
        self._prefix = blake3(to_json((system, tools))).hexdigest(16)

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

    def run(self) -> None:
        """Send the question, print and store the answer."""
        self._introduce()
        try:
            with warnings.catch_warnings():
                # The notices, which are printed, contain these warnings.
                warnings.simplefilter("ignore", PrefixWarning)
                warnings.simplefilter("ignore", UnknownModelWarning)
                result = asyncio.run(self._send())
        except KeyboardInterrupt:
            text = self._printer.text
            if self._options.as_json:
                print_json({"answer": text, "interrupted": True})
            elif text and self._output is not None:
                click.echo(answer_on(sys.stdout, text))
            self._printer.warn("interrupted; the incomplete answer is not stored")
            stop(INTERRUPTED)
        except AnaphoraError as problem:
            line = self._error_line(problem)
            self._print_arrived(problem, line)
            self._printer.warn(line)
            mismatch = self._output is not None and isinstance(problem, errors.Parse)
            stop(MISMATCH if mismatch else exit_code(problem))
        self._print(result)
        if result.stop_reason == "turns" or self._store_failed:
            stop(FOUND)

    def _print_arrived(self, problem: AnaphoraError, line: str) -> None:
        """Print the partial text of an answer whose printing waits for its end."""
        text = self._printer.text
        if not text and problem.partial is not None:
            text = _answer_text(problem.partial)
        if not text:
            return
        if self._options.as_json:
            print_json({"answer": text, "error": line})
        elif self._output is not None and self._stored is None:
            # A stored conversation contains the text.
            click.echo(answer_on(sys.stderr, text), err=True)

    def _client(self, on_wait: Callable[[float], None] | None = None) -> AsyncClient:
        remember = remembers(default=True) and not self._config.emulated
        choice = self._choice
        return AsyncClient(choice.providers, choice.routes, on_wait=on_wait, remember=remember)

    async def _send(self) -> RunResult:
        def on_wait(seconds: float) -> None:
            self._printer.note(f"waiting {seconds:.1f} s for the provider's rate limit")

        content, output = self._content or None, self._output
        async with self._client(on_wait) as client:
            session = self._session(client)
            if self._registry is not None:
                run = session.run(content, output=output, max_turns=self._options.max_turns)
                await self._stream(run, session)
                assert run.result is not None
                result = run.result
            else:
                turn = session.send(content, output=output)
                await self._stream(turn, session)
                assert turn.response is not None
                result = RunResult(
                    stop_reason="refusal" if declined(turn.response.reply) else "done",
                    responses=(turn.response,),
                    cost_usd=turn.response.cost_usd,
                    seconds=turn.response.record.seconds,
                )
            self._printer.end_line()
            params = self._params
            if output is not None:
                params = msgspec.structs.replace(params, output=output.output)
            call = LastCall.of(result.responses[-1], self._prefix, params)
            self._append(StoredLine(last_call=call))
            return result

    async def _stream(self, pending: Turn | Run, session: Session) -> None:
        """Send it, and print the text as it streams, or when it is complete."""
        if self._options.stream:
            async with aclosing(pending.__aiter__()) as events:
                async for event in events:
                    self._printer.show(event)
            return
        await pending
        if session.last is not None:
            for index, part in enumerate(session.last.reply.message.parts):
                self._printer.show(PartEnd(index=index, part=part))

    def _session(self, client: AsyncClient) -> Session:
        stored = self._stored
        session = client.session(
            self._choice.name,
            model=self._choice.model,
            system=self._settings.system,
            tools=self._registry,
            messages=tuple(stored.messages) if stored is not None else (),
            params=self._params,
            save=self._save,
        )
        call = None if stored is None or self._settings.emulated else stored.last_call
        if call is not None and call.prefix_digest == self._prefix:
            call.recall(session)
        elif call is not None:
            self._printer.note(
                "note: the system prompt or the tools changed; nothing of this conversation will"
                " be read from the cache"
            )
        return session

    def _save(self, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._printer.note(f"→ {part.name}({one_line(part.arguments, _EXCERPT)})")
            elif isinstance(part, ToolResult):
                self._printer.note(f"← {'failed: ' if part.error else ''}{_excerpt(part)}")
        self._append(StoredLine(message=message))

    def _append(self, line: StoredLine) -> None:
        """Store a line; after a failure, which is printed once, nothing more is stored."""
        if self._stored is None or self._store_failed:
            return
        try:
            self._stored.append(line, self._settings)
        except errors.Io as problem:
            self._store_failed = True
            self._printer.warn(f"not stored: {problem}")

    def _introduce(self) -> None:
        """Print notes before the call: the provider, the key, unknown models."""
        choice, stored, note = self._choice, self._stored, self._printer.note
        if stored is not None and stored.torn:
            note(f"note: the last line of {stored.path} is incomplete and is left out")
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

    def _print(self, result: RunResult) -> None:
        last = result.responses[-1]
        id = None if self._stored is None or self._store_failed else self._stored.id
        if self._options.as_json:
            fields: dict[str, Any] = {"answer": _answer_text(last.reply)}
            if self._output is not None:
                fields["parsed"] = last.parsed
            fields |= {**_result_fields(result, last), "conversation": id}
            print_json(fields | {"config": self._config.place})
            return
        if self._output is not None and result.stop_reason != "turns":
            print_json(last.parsed)
        shown = (one for one in result.notices if one.code != "model_unknown")  # printed before
        for line in dict.fromkeys(f"note: {one} [{one.code}]" for one in shown):
            self._printer.note(line)
        early = _EARLY_STOPS.get(result.stop_reason) or _EARLY_STOPS.get(last.reply.stop_reason)
        if early:
            self._printer.warn(early)
        # anthropic/claude-sonnet-5-5 · Hit: 2,847 of 2,920 tokens read, saved $0.0076. · $0.0019
        cost = result.cost_usd
        summary = [
            f"{last.record.provider}/{last.record.model}",
            str(last.verdict or "no verdict"),
            "emulated" if last.record.emulated else None,
            f"{result.turns} turns" if result.turns > 1 else None,
            "price unknown" if cost is None else format_usd(cost),
            id,
        ]
        self._printer.note(" · ".join(part for part in summary if part is not None))

    def _error_line(self, problem: AnaphoraError) -> str:
        """Provider, problem, attempts and advice in one line, without any key."""
        line, providers = one_line(str(problem), _ERROR), self._choice.providers.values()
        if isinstance(problem, errors.Upstream | errors.Transport | errors.Timeout):
            attempts = problem.attempts
            status = getattr(problem, "status", None)
            if not problem.provider:  # otherwise the message names it
                line = f"{attempts[-1].provider if attempts else self._choice.name}: {line}"
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


def _excerpt(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return one_line(result.content, _EXCERPT)
    shown = (
        part.text if isinstance(part, Text) else f"[{type(part).__name__.lower()}]"
        for part in result.content
    )
    return one_line(" ".join(shown), _EXCERPT)


def _result_fields(result: RunResult, last: Response) -> dict[str, Any]:
    """Fields of --json: the sums of all turns, and the verdict of the last."""
    responses, verdict = result.responses, last.verdict
    usage: dict[str, int | None] = {}
    for name, attribute in _COUNTS.items():
        counts = [getattr(response.usage, attribute) for response in responses]
        known = [count for count in counts if count is not None]
        usage[name] = sum(known) if known else None
    return {
        "stop": last.reply.stop_reason,
        "stop_reason": result.stop_reason,
        "provider": last.record.provider,
        "model": last.record.model,
        "served_model": last.reply.model,
        "turns": result.turns,
        "tools": [
            {"name": call.name, "arguments": call.arguments}
            for response in responses
            for call in response.tool_calls
        ],
        "usage": usage,
        "verdict": None
        if verdict is None
        else {"result": verdict.result, "sentence": str(verdict)},
        "cost_usd": result.cost_usd,
        "attempts": [attempt for response in responses for attempt in response.attempts],
        "notices": result.notices,
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
