"""One exchange of `anaphora ask`: sent through a session, printed as it streams, and stored."""

from __future__ import annotations

import os
import re
import sys
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3

from anaphora import AsyncClient, Response, RunResult
from anaphora.client.session import Session
from anaphora.client.session.preview import Preview
from anaphora.client.session.run import Run
from anaphora.client.structured import Structured
from anaphora.client.turn import Turn
from anaphora.errors import Io
from anaphora.prompt import Params
from anaphora.tools import ToolRegistry
from anaphora.values import (
    Message,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyStart,
    Text,
    ToolCall,
    ToolResult,
    to_json,
)

from .ask_provider import AskConfig, ProviderChoice
from .ask_store import ConversationSettings, LastCall, StoredConversation, StoredLine

#: Control characters; an answer must not move the cursor or change the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: The longest note in characters, and the longest excerpt of a tool's arguments or result.
_NOTE, _EXCERPT = 1000, 200
#: Parameters that a configuration fills in when they are None.
_CONFIGURED = ("max_tokens", "temperature")
_PARAMS = tuple(name for name in Params.__struct_fields__ if name != "stream")


def one_line(text: str, longest: int = _NOTE) -> str:
    """Without line breaks and control characters, cut to a length."""
    line = _CONTROL.sub("", " ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


class AnswerPrinter:
    """Prints the answer to standard output, and everything about it, dimmed, to standard error."""

    def __init__(self, *, quiet: bool = False, silent: bool = False) -> None:
        """`quiet` leaves out the notes; `silent` also the answer, which is only collected."""
        self._quiet = quiet
        self._silent = silent
        self._text: list[str] = []
        self._midline = False

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._text)

    def write(self, text: str) -> None:
        """Print a piece of the answer."""
        if not text:
            return
        self._text.append(text)
        if self._silent:
            return
        out = sys.stdout
        shown = _CONTROL.sub("", text) if out.isatty() else text
        out.write(shown)
        out.flush()
        self._midline = not shown.endswith("\n") if shown else self._midline

    def end_line(self) -> None:
        if self._midline:
            self._midline = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        if not self._quiet:
            line = one_line(text)
            self._print_error(f"\x1b[2m{line}\x1b[0m" if _stderr_has_colours() else line)

    def warn(self, text: str) -> None:
        """Print a problem, even when quiet."""
        self._print_error(f"anaphora: {one_line(text)}")

    def _print_error(self, line: str) -> None:
        self.end_line()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _stderr_has_colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class _StreamPrinter:
    """Prints the text of a stream; reasoning and tool calls are left out."""

    def __init__(self, printer: AnswerPrinter) -> None:
        self._printer = printer
        self._kinds: dict[int, str] = {}
        self._printed: set[int] = set()

    def __call__(self, event: object) -> None:
        match event:
            case ReplyStart():
                self._printer.end_line()
                self._kinds.clear()
                self._printed.clear()
            case PartStart(index=index, kind=kind):
                self._kinds[index] = kind
            case PartDelta(index=index, delta=delta):
                if self._kinds.get(index) in ("text", "refusal"):
                    self._printed.add(index)
                    self._printer.write(delta)
            case PartEnd(index=index, part=Text(text=text) | Refusal(text=text)):
                if index not in self._printed:  # it came without deltas
                    self._printer.write(text)


class AskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A question and how it is asked."""

    config: AskConfig
    choice: ProviderChoice
    content: tuple[Part, ...]
    """Empty: resume an interrupted conversation."""
    settings: ConversationSettings
    params: Params
    registry: ToolRegistry | None = None
    output: Structured[Any] | None = None
    stream: bool = True
    max_turns: int = 50


class AskResult(NamedTuple):
    """The run of one question, and whether it was stored."""

    run: RunResult
    stored: bool

    @property
    def last(self) -> Response:
        return self.run.responses[-1]


class AskChat:
    """The session of one question."""

    def __init__(
        self,
        client: AsyncClient,
        request: AskRequest,
        stored: StoredConversation | None,
        printer: AnswerPrinter,
    ) -> None:
        self._request = request
        self._stored = stored
        self._printer = printer
        self._store_failed = False
        self._session = client.session(
            request.choice.name,
            model=request.choice.model,
            system=request.settings.system,
            tools=request.registry,
            messages=tuple(stored.messages) if stored is not None else (),
            params=request.params,
            save=self._save,
        )
        tools = () if request.registry is None else request.registry.tools()
        self._prefix = blake3(to_json((request.settings.system, tools))).hexdigest(16)
        if stored is not None and stored.last_call is not None and not request.settings.emulated:
            self._recall(stored.last_call)

    def preview(self) -> Preview:
        output = self._request.output
        params = {} if output is None else {"output": output.output}
        return self._session.preview(self._request.content, **params)

    async def send(self) -> AskResult:
        request, content = self._request, self._request.content or None
        if request.registry is None:
            turn = self._session.send(content, output=request.output)
            await self._print(turn)
            assert turn.response is not None
            response = turn.response
            result = RunResult(
                stop_reason="done",
                responses=(response,),
                cost_usd=response.cost_usd,
                seconds=response.record.seconds,
            )
        else:
            run = self._session.run(content, output=request.output, max_turns=request.max_turns)
            await self._print(run)
            assert run.result is not None
            result = run.result
        self._printer.end_line()
        self._append(StoredLine(last_call=self._last_call(result.responses[-1])))
        return AskResult(result, stored=self._stored is not None and not self._store_failed)

    async def _print(self, pending: Turn | Run) -> None:
        """Send it, and print the text as it streams, or when it is complete."""
        show = _StreamPrinter(self._printer)
        if self._request.stream:
            async with aclosing(pending.__aiter__()) as events:  # type: ignore[type-var]
                async for event in events:
                    show(event)
            return
        await pending
        if self._session.last is not None:
            for index, part in enumerate(self._session.last.reply.message.parts):
                show(PartEnd(index=index, part=part))

    # ── Storing ──────────────────────────────────────────────────────────────────────────────────

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
            self._stored.use(self._request.settings)
            self._stored.append(line)
        except Io as problem:
            self._store_failed = True
            self._printer.warn(f"not stored: {problem}")

    def _last_call(self, response: Response) -> LastCall:
        record, reply, output = response.record, response.reply, self._request.output
        params = self._request.params
        if output is not None:
            params = msgspec.structs.replace(params, output=output.output)
        return LastCall(
            provider=record.provider,
            model=record.model,
            prefix_digest=self._prefix,
            params=params,
            id=reply.id,
            served_model=reply.model,
            stop_reason=reply.stop_reason,
            usage=reply.usage,
            at=record.attempts[-1].at if record.attempts else record.at,
            first_token_at=record.at + (record.first or 0.0),
        )

    def _recall(self, call: LastCall) -> None:
        """Tell the session what the last call cached, unless the prefix changed since."""
        if call.prefix_digest != self._prefix:
            self._printer.note(
                "note: the system prompt or the tools changed; nothing of this conversation will"
                " be read from the cache"
            )
            return
        _recall(self._session, call)


def _recall(session: Session, call: LastCall) -> None:
    reply = Reply(
        id=call.id,
        model=call.served_model,
        message=session.messages[-1],
        stop_reason=call.stop_reason,
        usage=call.usage,
    )
    params = {
        name: value
        for name in _PARAMS
        if (value := getattr(call.params, name)) is not None or name not in _CONFIGURED
    }
    session.recall(
        reply,
        provider=call.provider,
        model=call.model,
        at=call.at,
        first=call.first_token_at,
        **params,
    )


def _excerpt(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return one_line(result.content, _EXCERPT)
    shown = (
        part.text if isinstance(part, Text) else f"[{type(part).__name__.lower()}]"
        for part in result.content
    )
    return one_line(" ".join(shown), _EXCERPT)
