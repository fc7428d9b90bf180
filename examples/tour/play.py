"""Runs the tour: three prompt layouts at every provider, and a planted prefix break."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora import (
    AsyncClient,
    Call,
    Conversation,
    Message,
    Params,
    PromptBlock,
    PromptIR,
    Response,
    Tool,
    emulator,
)
from anaphora.client.dispatch import dispatch_all
from anaphora.client.session import PrefixWarning
from anaphora.emulator import Emulator, EmulatorOptions, Latency
from anaphora.prompt import PromptCachePlan

from . import INDEXED, PAUSE, STORY, TURNS, Step, TourStop, Workspace, rates, script, state

#: When the search index is built again: the planted change.
REBUILT = "2026-11-15 09:49:20"

LAYOUTS = ("careless", "usual", "anaphora")

_PARAMS = Params(max_tokens=1024)
_SYSTEM = (
    PromptBlock.plain("identity", STORY.identity),
    PromptBlock.plain("knowledge", STORY.knowledge),
    PromptBlock.plain("rates", rates()),
)
#: The same with one cache marker, at its end, and no other in the prompt.
_MARKED = (*_SYSTEM[:-1], PromptBlock.cached_short("rates", rates()))
_NO_OTHER_MARKERS = PromptCachePlan(messages=False)


# ── Results ──────────────────────────────────────────────────────────────────────────────────────


class TurnCost(msgspec.Struct, frozen=True, kw_only=True):
    """The bill of one turn; None is unknown. `read` and `predicted` are parts of the input: what
    was read from the cache, and what was predicted to be."""

    input: int
    read: int | None
    predicted: int | None
    written: int | None
    output: int
    cost_usd: Decimal | None

    @property
    def fresh(self) -> int:
        """The input at the full price."""
        return self.input - (self.read or 0) - (self.written or 0)


class ConversationCost(msgspec.Struct, frozen=True):
    turns: tuple[TurnCost, ...] = ()

    def with_turn(self, response: Response) -> ConversationCost:
        usage = response.usage
        turn = TurnCost(
            input=usage.input or 0,
            read=usage.read,
            predicted=response.record.predicted,
            written=usage.written_total,
            output=usage.output or 0,
            cost_usd=response.cost_usd,
        )
        return ConversationCost((*self.turns, turn))

    @property
    def cost_usd(self) -> Decimal | None:
        known = [turn.cost_usd for turn in self.turns if turn.cost_usd is not None]
        return sum(known, Decimal(0)) if len(known) == len(self.turns) else None

    @property
    def input(self) -> int:
        return sum(turn.input for turn in self.turns)

    @property
    def read(self) -> int | None:
        """None if the provider does not report it."""
        known = [turn.read for turn in self.turns if turn.read is not None]
        return sum(known) if known else None

    @property
    def predicted(self) -> int:
        return sum(turn.predicted or 0 for turn in self.turns)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one conversation in each layout."""

    dialect: str
    model: str
    careless: ConversationCost = ConversationCost()
    usual: ConversationCost = ConversationCost()
    anaphora: ConversationCost = ConversationCost()

    @property
    def saved(self) -> float | None:
        """The share of the usual layout's cost that Anaphora's saves."""
        usual, ours = self.usual.cost_usd, self.anaphora.cost_usd
        return None if not usual or ours is None else float(1 - ours / usual)

    @property
    def costs(self) -> tuple[ConversationCost, ...]:
        return self.careless, self.usual, self.anaphora


class PrefixBreak(msgspec.Struct, frozen=True, kw_only=True):
    """The planted change: the warning before the call, the verdict after it, and the tokens that
    the next turn reads, with the change undone."""

    dialect: str
    model: str
    turn: int
    warning: str
    offset: int
    label: str
    path: str
    before: str
    after: str
    verdict: str
    lost: int
    cost_usd: Decimal | None
    restored_read: int
    restored_input: int


class TourReport(msgspec.Struct, frozen=True, kw_only=True):
    turns: int
    calls: int
    seconds: float
    providers: tuple[Comparison, ...]
    prefix_break: PrefixBreak


# ── The tour ─────────────────────────────────────────────────────────────────────────────────────


class TourStart(msgspec.Struct, frozen=True):
    stops: int


class PlayedTurn(msgspec.Struct, frozen=True):
    """All providers have answered a turn in all layouts."""

    turn: int
    providers: Sequence[Comparison]


TourStep: TypeAlias = TourStart | PlayedTurn | PrefixBreak | TourReport
"""What `play` gives to `show`, in this order."""


def play(
    show: Callable[[TourStep], None] = lambda _: None,
    stops: Sequence[TourStop] = STORY.stops[:1],
) -> TourReport:
    """`show` is called while the tour runs."""
    started = time.monotonic()
    show(TourStart(len(stops)))
    with emulator.running(EmulatorOptions(script=script(), latency=Latency(first=0.0))) as emu:
        providers, prefix_break = asyncio.run(
            tour(emu, stops, lambda turn, played: show(PlayedTurn(turn, played)))
        )
    show(prefix_break)
    calls = sum(len(cost.turns) for one in providers for cost in one.costs)
    report = TourReport(
        turns=TURNS,
        calls=calls + len(STORY.afterwards),
        seconds=time.monotonic() - started,
        providers=providers,
        prefix_break=prefix_break,
    )
    show(report)
    return report


async def tour(
    emulator: Emulator,
    stops: Sequence[TourStop],
    on_turn: Callable[[int, Sequence[Comparison]], None],
) -> tuple[tuple[Comparison, ...], PrefixBreak]:
    """Run every turn at every provider; then the prefix break, at the first of them.

    Every provider is emulated, once for each layout. The emulator accepts any key, and keeps one
    cache for each key. `on_turn` is called with the number of the turn and the bills so far.
    """
    providers = {
        f"{stop.dialect} {layout}": {
            "dialect": stop.dialect,
            "base_url": f"{emulator.url}/{stop.provider}",
            "key": {"env": layout},
        }
        for stop in stops
        for layout in LAYOUTS
    }
    environ = {layout: f"key-{layout}" for layout in LAYOUTS}
    async with AsyncClient.from_config({"providers": providers}, environ=environ) as client:
        visits = [_Visit(client, stop) for stop in stops]
        for turn, step in enumerate(STORY.steps, 1):
            await asyncio.gather(*(visit.take(turn, step) for visit in visits))
            emulator.advance(PAUSE)
            on_turn(turn, [visit.costs for visit in visits])
        prefix_break = await _break_prefix(visits[0], emulator)
        return tuple(visit.costs for visit in visits), prefix_break


# ── The agents ───────────────────────────────────────────────────────────────────────────────────


class AnaphoraAgent:
    """Anaphora's layout: a session, with the changing state after the history."""

    def __init__(self, client: AsyncClient, stop: TourStop) -> None:
        self.workspace = Workspace()
        self.registry = self.workspace.tools()
        self._turn = 0
        self._session = client.session(
            f"{stop.dialect} anaphora",
            model=stop.model,
            system=_SYSTEM,
            tools=self.registry,
            state=lambda: state(self._turn, self.workspace.failing(), self.workspace.edited),
            params=_PARAMS,
        )

    async def take(self, turn: int, step: Step) -> Response:
        self._turn = turn
        result = await self._session.run(step.user or None, max_turns=1)
        return result.responses[0]


class SdkAgent:
    """A layout with a provider's SDK, with one cache marker at the end of the system prompt. The
    usual one is careful: system prompt and tools never change, and the state is the last message.
    The careless one has two mistakes: the state heads the system prompt, and the order of the tools
    varies."""

    def __init__(
        self, client: AsyncClient, stop: TourStop, layout: Literal["usual", "careless"]
    ) -> None:
        self.layout = layout
        self._client = client
        self._stop = stop
        self._workspace = Workspace()
        self._registry = self._workspace.tools()
        self._messages = Conversation()

    async def take(self, turn: int, step: Step) -> Response:
        if step.user:
            self._messages = self._messages.append(Message.user(step.user))
        now = state(turn, self._workspace.failing(), self._workspace.edited)
        call = Call(
            ir=self._prompt(now),
            model=self._stop.model,
            tools=self._tools(turn),
            params=_PARAMS,
        )
        provider, model = f"{self._stop.dialect} {self.layout}", self._stop.model
        response = await self._client.complete(call, provider, model=model)
        self._messages = self._messages.append(response.reply.message)
        if response.tool_calls:
            results = await dispatch_all(self._registry, response.tool_calls)
            self._messages = self._messages.append(Message(role="tool", parts=results))
        return response

    def _prompt(self, now: str) -> PromptIR:
        if self.layout == "careless":
            system = (PromptBlock.plain("state", now), *_MARKED)
            return PromptIR.chat(self._messages, system=system, cache=_NO_OTHER_MARKERS)
        return PromptIR.chat(
            self._messages, system=_MARKED, tail=(Message.user(now),), cache=_NO_OTHER_MARKERS
        )

    def _tools(self, turn: int) -> tuple[Tool, ...]:
        tools = self._registry.tools()
        first = turn % len(tools) if self.layout == "careless" else 0
        return tools[first:] + tools[:first]


class _Visit:
    def __init__(self, client: AsyncClient, stop: TourStop) -> None:
        self.careless = SdkAgent(client, stop, "careless")
        self.usual = SdkAgent(client, stop, "usual")
        self.anaphora = AnaphoraAgent(client, stop)
        self.costs = Comparison(dialect=stop.dialect, model=stop.model)

    async def take(self, turn: int, step: Step) -> None:
        self.costs = msgspec.structs.replace(
            self.costs,
            careless=self.costs.careless.with_turn(await self.careless.take(turn, step)),
            usual=self.costs.usual.with_turn(await self.usual.take(turn, step)),
            anaphora=self.costs.anaphora.with_turn(await self.anaphora.take(turn, step)),
        )


async def _break_prefix(visit: _Visit, emulator: Emulator) -> PrefixBreak:
    """Change a few digits of a tool's description for one turn, then undo it."""
    agent, turn = visit.anaphora, TURNS + 1
    with warnings.catch_warnings():
        # The same text is among the response's notices, which are shown.
        warnings.simplefilter("ignore", PrefixWarning)
        agent.workspace.index(agent.registry, REBUILT)
        response = await agent.take(turn, STORY.afterwards[0])
        emulator.advance(PAUSE)
        agent.workspace.index(agent.registry, INDEXED)
        restored = await agent.take(turn + 1, STORY.afterwards[1])
    verdict = response.verdict
    assert verdict is not None
    change = verdict.change
    assert change is not None
    warning = next(notice for notice in response.notices if notice.code == "prefix_breaks")
    return PrefixBreak(
        dialect=visit.costs.dialect,
        model=visit.costs.model,
        turn=turn,
        warning=warning.message,
        offset=change.offset,
        label=change.label,
        path=change.path,
        before=change.before,
        after=change.after,
        verdict=str(verdict),
        lost=verdict.lost,
        cost_usd=verdict.cost_usd,
        restored_read=restored.usage.read or 0,
        restored_input=restored.usage.input or 0,
    )
