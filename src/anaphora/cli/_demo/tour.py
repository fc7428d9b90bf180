"""The tour: the agent through every provider, laid out in two ways, and one planted break."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence

import msgspec

from anaphora.client.client import AsyncClient
from anaphora.client.response import Response
from anaphora.client.session import PrefixWarning
from anaphora.emulator import Emulator

from . import story
from .agent import Anaphoric, Usual
from .places import ENVIRON, Place, configuration
from .report import Break, Lane, Spent
from .workspace import INDEXED

#: When somebody builds the index again, and the tool's description with it.
REBUILT = "2026-11-15 09:49:20"

#: Is told the turn, and how every provider stands after it.
Watch = Callable[[int, Sequence[Lane]], None]


async def tour(
    emulator: Emulator, places: Sequence[Place], watch: Watch
) -> tuple[tuple[Lane, ...], Break]:
    """Every turn at every provider, side by side; then the break, at the first of them."""
    config = configuration(places, emulator.url)
    async with AsyncClient.from_config(config, environ=ENVIRON) as client:
        visits = [_Visit(client, place) for place in places]
        for turn, step in enumerate(story.STEPS, 1):
            await asyncio.gather(*(visit.take(turn, step) for visit in visits))
            emulator.advance(story.PAUSE)
            watch(turn, [visit.lane for visit in visits])
        broken = await _planted(visits[0], emulator)
        return tuple(visit.lane for visit in visits), broken


class _Visit:
    """Both agents at one provider."""

    def __init__(self, client: AsyncClient, place: Place) -> None:
        self.usual = Usual(client, place)
        self.anaphora = Anaphoric(client, place)
        self.lane = Lane(dialect=place.dialect, model=place.model)

    async def take(self, turn: int, step: story.Step) -> None:
        usual = await self.usual.take(turn, step)
        ours = await self.anaphora.take(turn, step)
        self.lane = msgspec.structs.replace(
            self.lane,
            usual=self.lane.usual.plus(_spent(usual)),
            anaphora=self.lane.anaphora.plus(_spent(ours)),
        )


def _spent(answered: Response) -> Spent:
    usage = answered.usage
    return Spent(
        input=usage.input or 0,
        read=usage.read,
        predicted=answered.record.predicted,
        written=usage.written_total,
        output=usage.output or 0,
        cost_usd=answered.cost_usd,
    )


async def _planted(visit: _Visit, emulator: Emulator) -> Break:
    """A tool's description changes by a few digits; then it is what it was."""
    agent, turn = visit.anaphora, len(story.STEPS) + 1
    with warnings.catch_warnings():
        # The page shows what they say: it is among the call's notices, too.
        warnings.simplefilter("ignore", PrefixWarning)
        agent.workspace.index(agent.registry, REBUILT)
        answered = await agent.take(turn, story.AFTERWARDS[0])
        emulator.advance(story.PAUSE)
        agent.workspace.index(agent.registry, INDEXED)
        mended = await agent.take(turn + 1, story.AFTERWARDS[1])
    verdict = answered.verdict
    assert verdict is not None
    assert verdict.change is not None
    change = verdict.change
    warned = next(notice for notice in answered.notices if notice.code == "prefix_breaks")
    return Break(
        dialect=visit.lane.dialect,
        model=visit.lane.model,
        turn=turn,
        warned=warned.message,
        offset=change.offset,
        label=change.label,
        path=change.path,
        before=change.before,
        after=change.after,
        verdict=str(verdict),
        lost=verdict.lost,
        cost_usd=verdict.cost_usd,
        mended_read=mended.usage.read or 0,
        mended_input=mended.usage.input or 0,
    )
