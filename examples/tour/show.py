"""The tour in a terminal: live if one is attached, otherwise plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anaphora.cli.terminal import Terminal
from anaphora.wording import counted

from . import TURNS
from .play import (
    Comparison,
    ConversationCost,
    PlayedTurn,
    PrefixBreak,
    TourReport,
    TourStart,
    TourStep,
)

#: From this width on there is room for the figures in columns,
_NARROW = 60
#: for the model beside the provider,
_STACKED = 80
#: and for a bar, and a description beside a command.
_WIDE = 112
_COLUMNS = ("careless", "usual", "Anaphora", "saved", "cached")
_PROSE = 88
_BLOCKS = "▁▂▃▄▅▆▇█"
_GOOD, _BAD = "green", "red"
#: The tokens of a turn: their block in a bar, and what was paid for.
_KINDS = (("░", "read", _GOOD), ("▒", "written", "yellow"), ("█", "fresh", _BAD))


class TerminalDisplay:
    def __init__(self) -> None:
        self._terminal = Terminal()
        self._animated = self._terminal.is_terminal and not self._terminal.is_dumb_terminal
        self._live: Live | None = None

    def show(self, step: TourStep) -> None:
        match step:
            case TourStart(stops):
                self._start(stops)
            case PlayedTurn(turn, providers):
                self._show_turn(turn, providers)
            case PrefixBreak():
                self._terminal.page(broken(step, self._terminal.width))
            case TourReport():
                self._finish(step)

    def _start(self, stops: int) -> None:
        self._terminal.page(opening(stops, self._terminal.width))
        self._terminal.print("", end="")
        if self._animated:
            self._live = Live(console=self._terminal, transient=True, auto_refresh=False)
            self._live.start()

    def _show_turn(self, turn: int, providers: Sequence[Comparison]) -> None:
        page = bills(turn, providers, self._terminal.width)
        if turn == TURNS:
            self.close()
            self._terminal.page(page)
            self._terminal.page(after_bills(providers, self._terminal.width))
        elif self._live is not None:
            self._live.update(page, refresh=True)

    def _finish(self, report: TourReport) -> None:
        self.close()
        width = self._terminal.width
        self._terminal.page(closing(report, width))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def opening(stops: int, width: int) -> Group:
    apis = "one API" if stops == 1 else counted(stops, "API")
    return Group(
        Text("Anaphora: pay for the beginning of a prompt once", style="bold"),
        "",
        _prose(
            f"An agent fixes a rounding bug in {TURNS} turns. Every turn sends the whole prompt"
            " again, and a provider charges little for the part it has seen before: up to the"
            " first byte that differs.",
            width,
        ),
        "",
        _layouts(width),
        "",
        _prose(
            f"All three layouts are sent to {apis} by one client. A local emulator"
            " answers, and caches and bills by each provider's rules. No key, no network.",
            width,
        ),
    )


def _layouts(width: int) -> Table:
    """The order of the prompt's parts in each layout."""
    same, moving = f"bold {_GOOD}", f"bold {_BAD}"
    state, prompt = ("time and state", moving), ("system prompt ▸", same)
    history, tools = ("history …", same), ("tools", same)
    rows = {
        "careless": (
            (("tools in any order", moving), state, prompt, history),
            "differs from the first bytes on: nothing is read again",
        ),
        "usual": (
            (tools, prompt, history, state),
            "one cache marker (▸), at the end of a system prompt that never changes",
        ),
        "Anaphora": (
            (tools, prompt, ("history … ▸", same), state),
            "the same bytes, with markers where they cost least: also in the history",
        ),
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(max_width=max(20, width - _indent(width) - 10))
    for name, (parts, note) in rows.items():
        shown = Text(" ").join(Text(f"[{label}]", style=style) for label, style in parts)
        grid.add_row(f"{' ' * _indent(width)}{name}", shown)
        grid.add_row("", Text(f"└ {note}", style="dim"))
    return grid


# ── The bills ────────────────────────────────────────────────────────────────────────────────────


def bills(turn: int, providers: Sequence[Comparison], width: int) -> Group:
    title = f"The bill for {turn} turns" if turn == TURNS else f"Turn {turn} of {TURNS} …"
    rows: RenderableType = Padding(
        _table(providers, width), (0, 0, 0, _indent(width)), expand=False
    )
    if width < _NARROW:
        rows = _records(providers)
    above = _tokens_by_turn(providers[0], width) if len(providers) == 1 else ()
    return Group("", _title(1, title), *above, rows)


def _tokens_by_turn(one: Comparison, width: int) -> Iterator[RenderableType]:
    """The tokens of each turn as bars, as usual and with Anaphora."""
    layouts = one.usual, one.anaphora
    if any(cost.read is None for cost in layouts):
        return
    room = min(40, (width - _indent(width) - 14) // 2)
    most = max(turn.input for cost in layouts for turn in cost.turns)
    indent = " " * _indent(width)
    yield Text(f"{indent}turn  {'usual':{room}}   Anaphora", style="dim")
    for number, turns in enumerate(zip(*(cost.turns for cost in layouts), strict=True), 1):
        line = Text(f"{indent}{number:4}  ")
        for turn in turns:
            parts = turn.read or 0, turn.written or 0, turn.fresh
            ends = [round(sum(parts[:end]) * room / most) for end in range(1, len(parts) + 1)]
            for start, end, (block, _, style) in zip([0, *ends], ends, _KINDS, strict=False):
                line.append((end - start) * block, style)
            line.append(" " * (room - ends[-1] + 3))
        line.rstrip()
        yield line
    for index, (block, name, style) in enumerate(_KINDS):
        usual, ours = (
            sum((turn.read or 0, turn.written or 0, turn.fresh)[index] for turn in cost.turns)
            for cost in layouts
        )
        yield Text.assemble(
            f"{indent}{block} ", (f"{name:8}", style), f"usual {usual:>9,}   Anaphora {ours:>9,}"
        )
    yield Text(f"{indent}The tallest bar is {most:,} tokens.", style="dim")
    yield ""


def _table(providers: Sequence[Comparison], width: int) -> Table:
    """Provider, model and bills; on a narrow terminal, the model below the provider."""
    wide, stacked = width >= _WIDE, width < _STACKED
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2 * wide, 0, 0))
    table.add_column("provider", no_wrap=True)
    if not stacked:
        table.add_column("model", no_wrap=True, style="dim")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("", no_wrap=True, style=_GOOD)
    for one, provider in zip(providers, _providers(providers), strict=True):
        table.add_row(
            provider,
            *([] if stacked else [one.model]),
            *_figures(one),
            *(["▇" * round(20 * max(0.0, one.saved or 0.0))] if wide else []),
        )
        if stacked:
            table.add_row(Text(one.model, style="dim"))
    return table


def _records(providers: Sequence[Comparison]) -> Group:
    """One line for each figure, for terminals that are too narrow for a table."""
    lines: list[Text] = []
    for one, provider in zip(providers, _providers(providers), strict=True):
        lines += [Text(provider, style="bold"), Text(f"  {one.model}", style="dim")]
        figures = zip(_COLUMNS, _figures(one), strict=True)
        lines += [Text.assemble(f"  {name}: ", figure) for name, figure in figures]
    return Group(*lines)


def _providers(providers: Sequence[Comparison]) -> Iterator[str]:
    """The names of the providers; with the wire if one is used twice."""
    counts = Counter(one.dialect.partition("/")[0] for one in providers)
    for one in providers:
        provider, _, wire = one.dialect.partition("/")
        yield f"{provider} {wire.partition('_')[2] or wire}" if counts[provider] > 1 else provider


def _figures(one: Comparison) -> tuple[Text, ...]:
    """The cells of `_COLUMNS`."""
    saved = Text("local", style="dim")
    if one.saved is not None:
        percent = _percent(one.saved)
        saved = Text(f"{percent}%", style=f"bold {_GOOD}" if percent >= 1 else "dim")
    amounts = (Text(_amount(cost.cost_usd)) for cost in one.costs)
    return (*amounts, saved, Text(_cached(one.anaphora)))


def _percent(share: float) -> int:
    return round(100 * share)


def _amount(amount: Decimal | None) -> str:
    return "–" if amount is None else f"${amount:.4f}"


def _cached(cost: ConversationCost) -> str:
    if not cost.input:
        return ""
    if cost.read is None:
        return f"~{cost.predicted / cost.input:.0%}"
    return f"{cost.read / cost.input:.0%}"


def after_bills(providers: Sequence[Comparison], width: int) -> Group:
    """The legend of the table, and one conversation turn by turn."""
    careless, usual, ours = (
        sum((one.costs[layout].cost_usd or 0 for one in providers), Decimal(0))
        for layout in range(3)
    )
    turns = [turn for one in providers for turn in one.anaphora.turns if turn.read is not None]
    exact = sum(abs((turn.predicted or 0) - (turn.read or 0)) <= 1 for turn in turns)
    rows = {
        "total": f"${careless:.2f} careless, ${usual:.2f} usual, ${ours:.2f} with Anaphora",
        "saved": "compared with the usual layout",
        "cached": "the share of all input that was read from the cache, with Anaphora",
        "predicted": f"{exact:,} of {counted(len(turns), 'call')} read what was predicted before"
        " sending, within one token",
    }
    if any(one.saved is not None and _percent(one.saved) < 1 for one in providers):
        rows["0%"] = (
            "the provider caches without markers, or gives no discount: there it is the stable"
            " prefix that counts, which the usual layout also has"
        )
    if any(one.anaphora.read is None for one in providers):
        rows["~"] = "predicted: that provider does not report what it read"
    return Group("", _fields(rows, width), "", *_turn_by_turn(providers[0], width))


def _turn_by_turn(one: Comparison, width: int) -> Iterator[RenderableType]:
    most = max(turn.cost_usd or 0 for cost in one.costs for turn in cost.turns)
    if not most:
        return
    gap, thick = " " if width >= _WIDE else "", 2 if width >= _STACKED else 1
    indent = " " * _indent(width)
    yield Text.assemble(f"{indent}cost of each turn at ", (one.model, "bold"))
    for label, cost, style in zip(_COLUMNS, one.costs, (_BAD, "yellow", _GOOD), strict=False):
        heights = (min(7, int(8 * (turn.cost_usd or 0) / most)) for turn in cost.turns)
        bars = gap.join(thick * _BLOCKS[height] for height in heights)
        last = f" the last: {_amount(cost.turns[-1].cost_usd)}"
        yield Text.assemble(f"{indent}{label:8} ", (bars, style), (last, "dim"))


# ── The prefix break ──────────────────────────────────────────────────────────────


def broken(change: PrefixBreak, width: int) -> Group:
    restored = f"{change.restored_read:,} of {change.restored_input:,} tokens are read again."
    warning = f"{change.warning[:1].upper()}{change.warning[1:]}."
    rows: dict[str, str | Text] = {
        "planted": "The search tool's description holds the time its index was built. Before turn"
        f" {change.turn} the index is built again.",
        f"turn {change.turn - 1}": Text(f"…{change.before.strip('…')}…", style="dim"),
        f"turn {change.turn}": Text(f"…{change.after.strip('…')}…", style="dim"),
        "before sending": Text(warning, style="yellow"),
        "after the bill": Text(change.verdict, style=_BAD),
        "undone": Text(f"Turn {change.turn + 1}: {restored}", style=_GOOD),
    }
    return Group("", _title(2, "One change, found and explained"), _fields(rows, width))


def closing(report: TourReport, width: int) -> Group:
    rows = {
        "anaphora usage": "what the coding agents on this machine cost, and what was paid twice",
        "anaphora watch -- python app.py": "what the cache of your own program does, call by call",
        'anaphora ask --emulate "Hello?"': "an answer in the terminal, still without a key",
        "anaphora emulate": "every provider at localhost:8787, for your own code",
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=width >= _WIDE, overflow="fold")
    for command, description in rows.items():
        shown = Text(f"   {command}", style="cyan")
        if width >= _WIDE:
            grid.add_row(shown, Text(description, style="dim"))
        else:
            grid.add_row(shown)
            grid.add_row(Padding(Text(description, style="dim"), (0, 0, 0, 6)))
    done = f"{counted(report.calls, 'call')}, {counted(round(report.seconds), 'second')}"
    return Group("", Text.assemble(("Try next", "bold"), (f"   ({done})", "dim")), grid)


# ── Pieces ───────────────────────────────────────────────────────────────────────────────────────


def _title(number: int, title: str) -> Text:
    return Text.assemble((f"{number}  ", "bold cyan"), (title, "bold"))


def _prose(text: str, width: int) -> Table:
    grid = Table.grid()
    grid.add_column(max_width=min(_PROSE, width))
    grid.add_row(text)
    return grid


def _fields(rows: Mapping[str, str | Text], width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(max_width=max(16, min(_PROSE, width - 20)), overflow="fold")
    for name, text in rows.items():
        grid.add_row(f"{' ' * _indent(width)}{name}", text)
    return grid


def _indent(width: int) -> int:
    return 3 if width >= _STACKED else 0
