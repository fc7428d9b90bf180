"""Turn by turn: the sentence, the bytes side by side, the dollars."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from anaphora.cache.verdict.causes import format_duration
from anaphora.cache.verdict.values import format_loss
from anaphora.cli._console import Terminal
from anaphora.cli._simulate.money import unknown_said

from .turns import Explained, Turn

_COLOURS = {"first": "dim", "hit": "green", "partial": "yellow", "miss": "red"}

#: What cannot be told in one line stays on one: nothing here ends it.
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), 127]} | {10: "\\n", 9: "\\t"}


def page(explained: Explained, *, everything: bool) -> None:
    lines: list[Text] = []
    for _, turns in itertools.groupby(explained.turns, key=lambda turn: turn.conversation):
        mine = list(turns)
        if len(explained.turns) > len(mine):
            lines.append(Text(f"{mine[0].conversation}", style="bold"))
        lines += _conversation(mine, everything)
    lines += _sum(explained)
    Terminal().page(Group(*lines))


def _conversation(turns: list[Turn], everything: bool) -> Iterator[Text]:
    """Hits in a row are one line, unless all are wanted."""
    for is_hit, group in itertools.groupby(turns, key=lambda turn: turn.verdict.result == "hit"):
        mine = list(group)
        if is_hit and len(mine) > 1 and not everything:
            read = sum(turn.verdict.billed or turn.verdict.predicted or 0 for turn in mine)
            where = f"turns {mine[0].turn} to {mine[-1].turn}"
            yield _line(where, f"{len(mine)} hits, {read:,} tokens read", "hit")
            continue
        for turn in mine:
            yield from _turn(turn)


def _turn(turn: Turn) -> Iterator[Text]:
    verdict = turn.verdict
    gap = f" (+{format_duration(turn.gap)})" if turn.gap is not None else ""
    yield _line(f"turn {turn.turn}{gap}", verdict.sentence, verdict.result)
    for cause in verdict.causes[1:]:
        yield Text(f"    and {cause.text}")
    if verdict.change is not None:
        yield _side("-", verdict.change.before, "red")
        yield _side("+", verdict.change.after, "green")
    if verdict.billed is not None and verdict.predicted is not None and verdict.result != "hit":
        yield Text(f"    predicted {verdict.predicted:,} read, billed {verdict.billed:,}", "dim")


def _line(where: str, said: str, result: str) -> Text:
    text = Text(f"  {where}: ")
    return text.append(said, style=_COLOURS[result])


def _side(sign: str, said: str, colour: str) -> Text:
    shown = said.translate(_CONTROLS) if said else "(nothing: it ends before)"
    return Text(f"    {sign} {shown}", style=colour)


def _sum(explained: Explained) -> Iterator[Text]:
    found = explained.summary
    counted = f"{found.hit} hits, {found.partial} partial, {found.miss} missed, {found.first} first"
    yield Text(f"{found.turns} calls: {counted}", style="bold")
    if found.lost:
        yield Text(f"{found.lost:,} tokens paid for again: {format_loss(found.cost_usd)}")
    if found.broke:
        calls = "call" if found.broke == 1 else "calls"
        yield Text(f"the prefix broke at {found.broke} {calls}", style="red")
    if explained.unpriced:
        yield Text(unknown_said(explained.unpriced), style="dim")
