"""Holding a conversation: the call, or the calls and tools, with every word heard as it comes."""

from __future__ import annotations

from contextlib import aclosing
from decimal import Decimal
from typing import Any

import msgspec
from blake3 import blake3

from anaphora.client.client import AsyncClient
from anaphora.client.response import Response
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
    Notice,
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

from .choosing import Chosen
from .conversations import Call, Kept, Line, Settings
from .voice import Voice, one_line

#: How much of a tool's arguments and result is shown.
_SHOWN = 200
_SPOKEN = ("text", "refusal")
_FILLED = ("max_tokens", "temperature")
_PARAMS = tuple(name for name in Params.__struct_fields__ if name != "stream")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    content: tuple[Part, ...]
    """Nothing: go on where the conversation broke off."""
    settings: Settings
    params: Params
    registry: ToolRegistry | None = None
    output: Structured[Any] | None = None
    stream: bool = True
    max_turns: int = 50


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    answers: tuple[Response, ...]
    stop_reason: str
    cost_usd: Decimal | None
    kept: bool
    failures: tuple[Notice, ...] = ()
    """What went wrong between two answers."""

    @property
    def last(self) -> Response:
        return self.answers[-1]


class Talk:
    """One question of a conversation."""

    def __init__(
        self, client: AsyncClient, chosen: Chosen, wish: Wish, kept: Kept | None, voice: Voice
    ) -> None:
        self._wish = wish
        self._kept = kept
        self._voice = voice
        self._lost: Io | None = None
        self._chat = client.session(
            chosen.name,
            model=chosen.model,
            system=wish.settings.system,
            tools=wish.registry,
            messages=tuple(kept.messages) if kept is not None else (),
            params=wish.params,
            save=self._save,
        )
        self._beginning = _beginning(wish)
        if kept is not None and kept.answered is not None and not wish.settings.emulated:
            self._recall(kept.answered)

    def preview(self) -> Preview:
        output = self._wish.output
        params = {} if output is None else {"output": output.output}
        return self._chat.preview(self._wish.content, **params)

    async def hold(self) -> Outcome:
        wish, content = self._wish, self._wish.content or None
        if wish.registry is None:
            turn = self._chat.send(content, output=wish.output)
            answered = await self._heard(turn)
            outcome = self._outcome((answered,), "done", answered.cost_usd)
        else:
            run = self._chat.run(content, output=wish.output, max_turns=wish.max_turns)
            await self._ran(run)
            result = run.result
            assert result is not None
            outcome = self._outcome(result.responses, result.stop_reason, result.cost_usd)
            outcome = msgspec.structs.replace(outcome, failures=result.failures)
        self._voice.end_line()
        return outcome

    def _outcome(
        self, answers: tuple[Response, ...], stop_reason: str, cost_usd: Decimal | None
    ) -> Outcome:
        if self._kept is not None and self._lost is None and answers:
            self._write(Line(answered=self._called(answers[-1])))
        kept = self._kept is not None and self._lost is None
        return Outcome(answers=answers, stop_reason=stop_reason, cost_usd=cost_usd, kept=kept)

    # ── Hearing ──────────────────────────────────────────────────────────────────────────────────

    async def _heard(self, turn: Turn) -> Response:
        if not self._wish.stream:
            answered = await turn
            self._voice.say(_words(answered.reply.message))
            return answered
        async with turn as events:
            hear = _Hearing(self._voice)
            async for event in events:
                hear(event)
        assert turn.response is not None
        return turn.response

    async def _ran(self, run: Run) -> None:
        if not self._wish.stream:
            await run
            if self._chat.last is not None:
                self._voice.say(_words(self._chat.last.reply.message))
            return
        hear = _Hearing(self._voice)
        async with aclosing(run.__aiter__()) as events:  # type: ignore[type-var]
            async for event in events:
                hear(event)

    # ── Keeping ──────────────────────────────────────────────────────────────────────────────────

    def _save(self, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._voice.aside(f"→ {part.name}({one_line(part.arguments, _SHOWN)})")
            elif isinstance(part, ToolResult):
                self._voice.aside(f"← {'failed: ' if part.error else ''}{_result(part)}")
        if self._kept is not None:
            self._write(Line(message=message))

    def _write(self, line: Line) -> None:
        """An answer that cannot be kept is still an answer: it is told, and goes on."""
        assert self._kept is not None
        if self._lost is not None:
            return
        try:
            self._kept.hold(self._wish.settings)
            self._kept.keep(line)
        except Io as problem:
            self._lost = problem
            self._voice.warn(f"not kept: {problem}")

    def _called(self, answered: Response) -> Call:
        record, reply, output = answered.record, answered.reply, self._wish.output
        params = self._wish.params
        if output is not None:
            params = msgspec.structs.replace(params, output=output.output)
        at = record.attempts[-1].at if record.attempts else record.at
        return Call(
            provider=record.provider,
            model=record.model,
            beginning=self._beginning,
            params=params,
            id=reply.id,
            answered_by=reply.model,
            stop=reply.stop,
            usage=reply.usage,
            at=at,
            first=record.at + (record.first or 0.0),
        )

    def _recall(self, call: Call) -> None:
        if call.beginning != self._beginning:
            self._voice.aside(
                "note: the system prompt or the tools changed: nothing that is cached of this"
                " conversation will be read"
            )
            return
        _recall(self._chat, call)


class _Hearing:
    """Says the words of a stream, and nothing of what was thought or called."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._kinds: dict[int, str] = {}
        self._heard: set[int] = set()

    def __call__(self, event: object) -> None:
        match event:
            case ReplyStart():
                self._voice.end_line()
                self._kinds.clear()
                self._heard.clear()
            case PartStart(index=index, kind=kind):
                self._kinds[index] = kind
            case PartDelta(index=index, delta=delta) if self._kinds.get(index) in _SPOKEN:
                self._heard.add(index)
                self._voice.say(delta)
            case PartEnd(index=index, part=Text(text=text) | Refusal(text=text)):
                if index not in self._heard:  # it came in one piece
                    self._voice.say(text)


def _recall(chat: Session, call: Call) -> None:
    reply = Reply(
        id=call.id,
        model=call.answered_by,
        message=chat.messages[-1],
        stop=call.stop,
        usage=call.usage,
    )
    params = {name: getattr(call.params, name) for name in _PARAMS}
    # Nothing said is what a configuration fills in.
    params = {
        name: value for name, value in params.items() if value is not None or name not in _FILLED
    }
    chat.recall(
        reply, provider=call.provider, model=call.model, at=call.at, first=call.first, **params
    )


def _beginning(wish: Wish) -> str:
    tools = () if wish.registry is None else wish.registry.tools()
    return blake3(to_json((wish.settings.system, tools))).hexdigest(16)


def _words(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text | Refusal))


def _result(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return one_line(result.content, _SHOWN)
    return one_line(" ".join(_shown(part) for part in result.content), _SHOWN)


def _shown(part: Any) -> str:
    return part.text if isinstance(part, Text) else f"[{type(part).__name__.lower()}]"
