"""The tour for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import story
from .engine import Measured
from .report import Break, Lane, Report

#: From here on there is room for a bar and the wire's name.
_WIDE = 104
#: And here for what a command does, beside it.
_VERY_WIDE = 136
_PROSE = 88
_BLOCKS = "▁▂▃▄▅▆▇█"
_GOOD, _BAD = "green", "red"
#: They are in the repository.
_EXPLAINED = "docs/examples/turn-1.json docs/examples/turn-2-next-day.json"
_LINTED = "docs/examples/turn-1.json"


def opening(lanes: int, width: int) -> Group:
    """What is about to happen."""
    return Group(
        Text("Anaphora: pay for the beginning of a prompt once", style="bold"),
        "",
        _prose(
            f"An agent fixes a rounding bug in {len(story.STEPS)} turns. Every turn sends the whole"
            " prompt again, and a provider charges little for what it has seen before: up to the"
            " first byte that is not the same.",
            width,
        ),
        "",
        _layouts(),
        "",
        _prose(
            f"Both go through {lanes} APIs, by one client. An emulator on this machine answers for"
            " them, and caches and bills by each provider's own rules. No key, no network.",
            width,
        ),
    )


def _layouts() -> Table:
    """Where things stand in the two prompts."""
    same, moving = f"bold {_GOOD}", f"bold {_BAD}"
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)

    def drawn(*parts: tuple[str, str]) -> Text:
        return Text(" ").join(Text(f"[{said}]", style=style) for said, style in parts)

    state, prompt, history = "time and state", "system prompt", "history …"
    grid.add_row(
        "   as usual",
        drawn((state, moving), (prompt, same), ("tools, in any order", moving), (history, same)),
    )
    grid.add_row("", Text("└ differs at every turn: nothing behind it is read", style="dim"))
    grid.add_row(
        "   Anaphora",
        drawn(("tools", same), (prompt, same), (history, same), (state, moving)),
    )
    grid.add_row("", Text("└ the same bytes at every turn: read, not paid for again", style="dim"))
    return grid


# ── The bill ─────────────────────────────────────────────────────────────────────────────────────


def bills(turn: int, lanes: Sequence[Lane], width: int) -> Group:
    """How everybody stands after a turn."""
    done = turn == len(story.STEPS)
    said = f"The bill for {turn} turns" if done else f"Turn {turn} of {len(story.STEPS)} …"
    table = Padding(_table(lanes, width), (0, 0, 0, 3), expand=False)
    return Group("", _title(1, said), table)


def _table(lanes: Sequence[Lane], width: int) -> Table:
    wide = width >= _WIDE
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1 + wide, 0, 0))
    table.add_column("provider", no_wrap=True)
    table.add_column("model", no_wrap=True)
    for name in ("as usual", "Anaphora", "saved", "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("", no_wrap=True)
    for lane in lanes:
        table.add_row(
            name_of(lane, lanes),
            Text(lane.model, style="dim"),
            _usd(lane.usual.cost_usd),
            _usd(lane.anaphora.cost_usd),
            _saved(lane.saved),
            _share(lane),
            *([_bar(lane.saved)] if wide else []),
        )
    return table


def name_of(lane: Lane, lanes: Sequence[Lane]) -> str:
    """The provider; its wire, too, where it is there twice."""
    provider, _, wire = lane.dialect.partition("/")
    if sum(other.dialect.startswith(f"{provider}/") for other in lanes) == 1:
        return provider
    return f"{provider} {wire.partition('_')[2] or wire}"


def _usd(amount: Decimal | None) -> str:
    return "–" if amount is None else f"${amount:.4f}"


def _saved(share: float | None) -> Text:
    if share is None:
        return Text("local", style="dim")
    percent = round(100 * share)
    return Text(f"{percent or 0}%", style=f"bold {_GOOD}" if percent >= 1 else "dim")


def _share(lane: Lane) -> str:
    bill = lane.anaphora
    if not bill.input:
        return ""
    if bill.read is None:
        return f"~{bill.predicted / bill.input:.0%}"
    return f"{bill.read / bill.input:.0%}"


def _bar(share: float | None) -> Text:
    return Text("▇" * round(20 * max(0.0, share or 0.0)), style=_GOOD)


def after_bills(lanes: Sequence[Lane], width: int) -> Group:
    """What the table's figures are, and how one of them came about."""
    return Group("", _legend(lanes, width), "", *_turn_by_turn(lanes[0], width))


def _legend(lanes: Sequence[Lane], width: int) -> Table:
    usual = sum((lane.usual.cost_usd or 0 for lane in lanes), Decimal(0))
    ours = sum((lane.anaphora.cost_usd or 0 for lane in lanes), Decimal(0))
    turns = [turn for lane in lanes for turn in lane.anaphora.turns if turn.read is not None]
    met = sum(abs((turn.predicted or 0) - (turn.read or 0)) <= 1 for turn in turns)
    rows: list[tuple[str, str | Text]] = [
        ("in all", f"${usual:.2f} as usual, ${ours:.2f} with Anaphora"),
        (
            "as usual",
            "laid out as above; where a provider takes cache markers, one, at the end of the system"
            " prompt: it writes what is never read, and that costs extra",
        ),
        ("cached", "of all input, the share that was read from the cache"),
        (
            "predicted",
            f"{met:,} of {len(turns):,} calls read what had been predicted before sending, within"
            " one token",
        ),
    ]
    if any(lane.saved is not None and round(100 * lane.saved) < 1 for lane in lanes):
        rows.append(("0%", "no discount on cached input is known there; it is only faster"))
    if any(lane.anaphora.read is None for lane in lanes):
        rows.append(("~", "by the rules: that provider does not tell what it read"))
    return _fields(*rows, width=width)


def _turn_by_turn(lane: Lane, width: int) -> Iterator[RenderableType]:
    most = max(turn.cost_usd or Decimal(0) for turn in (*lane.usual.turns, *lane.anaphora.turns))
    if not most:
        return
    gap = " " if width >= _WIDE else ""
    yield Text.assemble("   what each turn cost at ", (lane.model, "bold"))
    for said, bill, style in (("as usual", lane.usual, _BAD), ("Anaphora", lane.anaphora, _GOOD)):
        bars = (
            _BLOCKS[min(7, int(8 * (turn.cost_usd or Decimal(0)) / most))] * 2
            for turn in bill.turns
        )
        last = f"  the last: {_usd(bill.turns[-1].cost_usd)}"
        yield Text.assemble(f"   {said}  ", (gap.join(bars), style), (last, "dim"))


# ── The break ────────────────────────────────────────────────────────────────────────────────────


def broken(found: Break, width: int) -> Group:
    grid = _fields(
        (
            "planted",
            f"The search tool says when its index was built. Before turn {found.turn} somebody"
            " builds it again.",
        ),
        (f"turn {found.turn - 1}", Text(_excerpt(found.before), style="dim")),
        (f"turn {found.turn}", Text(_excerpt(found.after), style="dim")),
        ("before sending", Text(_sentence(found.warned), style="yellow")),
        ("after the bill", Text(found.verdict, style=_BAD)),
        (
            "put back",
            Text(
                f"Turn {found.turn + 1}: {found.mended_read:,} of {found.mended_input:,} tokens are"
                " read again.",
                style=_GOOD,
            ),
        ),
        width=width,
    )
    return Group("", _title(2, "One change, found and explained"), grid)


def _excerpt(text: str) -> str:
    return f"…{text.strip('…')}…"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# ── A real server ────────────────────────────────────────────────────────────────────────────────


def served(found: Measured, width: int) -> Group:
    room = max(10, min(48, width - 40))
    slowest = max(found.cold, found.warm)

    def bar(seconds: float, style: str) -> Text:
        cells = max(1, round(seconds / slowest * room))
        return Text.assemble(("▇" * cells, style), f" {seconds:.2f} s")

    grid = _fields(
        ("cold", bar(found.cold, _BAD)),
        ("warm", bar(found.warm, _GOOD)),
        (
            "",
            f"until the first words of an answer. Of {found.tokens:,} tokens the server had"
            f" {found.cached:,}, by its own word; {found.predicted:,} had been predicted.",
        ),
        width=width,
    )
    return Group("", _title(3, "The same prefix on a real server: llama.cpp, here"), grid)


def unserved(why: str, width: int) -> Group:
    said = Padding(_prose(why, width - 3), (0, 0, 0, 3), expand=False)
    return Group("", _title(3, "The same prefix on a real server: llama.cpp"), said)


def closing(report: Report, width: int) -> Group:
    """What to try now."""
    rows = [
        ('anaphora ask --emulate "Hello?"', "an answer in the terminal, still without a key"),
        ("anaphora emulate", "all these providers at localhost:8787, for your own code"),
        (f"anaphora explain {_EXPLAINED}", "which byte broke a cache, and what that costs"),
        (f"anaphora lint {_LINTED}", "what is going to break one"),
        ("anaphora demo --json", "this tour as data"),
    ]
    beside = width >= _VERY_WIDE
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for command, what in rows:
        said = [Text(f"   {command}", style="cyan"), Text(what, style="dim")]
        if beside:
            grid.add_row(*said)
        else:
            grid.add_row(said[0])
            grid.add_row(Text(f"      {what}", style="dim"))
    done = f"{report.calls:,} calls, {report.seconds:.0f} seconds"
    return Group("", Text.assemble(("Try next", "bold"), (f"   ({done})", "dim")), grid)


# ── Pieces ───────────────────────────────────────────────────────────────────────────────────────


def _title(number: int, said: str) -> Text:
    return Text.assemble((f"{number}  ", "bold cyan"), (said, "bold"))


def _prose(text: str, width: int) -> Table:
    grid = Table.grid()
    grid.add_column(max_width=min(_PROSE, width))
    grid.add_row(text)
    return grid


def _fields(*rows: tuple[str, str | Text], width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(max_width=min(_PROSE, width - 20))
    for name, text in rows:
        grid.add_row(f"   {name}", text)
    return grid
