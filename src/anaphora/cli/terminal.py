"""Printing pages with rich, and answers as they stream: colours on a terminal, plain text
elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from anaphora import values
from anaphora.cache.learned_steps import LearnedRow
from anaphora.cache.verdict import Result, Verdict
from anaphora.wording import visible

from .common import print_json

if TYPE_CHECKING:
    from .log_files import SkippedInput

T = TypeVar("T")
#: A line of a page: plain, with a style, or of several pieces with styles of their own; or a table.
Line: TypeAlias = str | tuple[str, str] | list[str | tuple[str, str]] | RenderableType

#: Control characters that are removed from answers on a terminal. Those for the direction of text
#: stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Piped output is not wrapped unless COLUMNS is set: a row is one line.
_PIPED_WIDTH = 10_000
#: A column of words may be folded to this width before a table becomes a list of records.
_FOLDED_WIDTH = 16
#: Escape codes.
_DIM, YELLOW = 2, 33
#: Spaces between two columns.
_GAP = 2
#: Columns of the longest bar of a table.
_LEAST_BAR, _MOST_BAR = 8, 40
#: Items from which on a progress bar is shown.
_LONG = 500
#: Problems that are printed before the rest becomes a number.
_PROBLEMS = 10


class Terminal(Console):
    """Standard output, standard error or a file. NO_COLOR removes all escape codes, FORCE_COLOR
    keeps them in a pipe; COLUMNS sets the width, on a terminal and in a pipe."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        environ = dict(os.environ)
        columns = environ.pop("COLUMNS", "")
        if file is not None:
            environ.pop("FORCE_COLOR", None)
        super().__init__(
            stderr=stderr,
            file=file,
            color_system=None if environ.get("NO_COLOR") else "auto",
            highlight=False,
            markup=False,
            emoji=False,
            _environ=environ,
        )
        if columns.isdecimal() and int(columns) > 0:
            self.width = int(columns)
        elif not self.is_terminal:
            self.width = _PIPED_WIDTH

    def page(self, content: RenderableType) -> None:
        """Print it; in plain text, without trailing blanks."""
        if self.is_terminal:
            self.print(content)
            return
        with self.capture() as captured:
            self.print(content)
        lines = (line.rstrip() for line in captured.get().splitlines())
        self.file.write("\n".join(lines).rstrip() + "\n")

    def on_broken_pipe(self) -> NoReturn:
        # Called while the error is handled; the entry point handles it.
        raise  # noqa: PLE0704


def print_lines(terminal: Terminal, lines: Iterable[Line]) -> None:
    """Print lines, and flush them."""
    terminal.page(Group(*map(_renderable, lines)))
    terminal.file.flush()


def print_report(value: Any, page: Iterable[Line], *, as_json: bool) -> None:
    """Print the value as JSON, or the lines of the page."""
    if as_json:
        print_json(value)
    else:
        Terminal().page(Group(*map(_renderable, page)))


def _renderable(line: Line) -> RenderableType:
    if isinstance(line, str):
        return Text(_line(line))
    if isinstance(line, tuple):
        return Text(_line(line[0]), line[1])
    if not isinstance(line, list):
        return line
    return Text.assemble(
        *(_line(one) if isinstance(one, str) else (_line(one[0]), one[1]) for one in line)
    )


def _line(text: str) -> str:
    """A line of a page without control characters; line breaks before and after it are layout."""
    inner = text.strip("\n")
    start = text.index(inner) if inner else len(text)
    return text[:start] + visible(inner, keep="\t") + text[start + len(inner) :]


class Rows:
    """A table without lines. Nothing is cut off: columns of words are folded, and if that is not
    enough, each row becomes a record with one cell per line."""

    def __init__(self, titles: Sequence[str], right: Iterable[str] = ()) -> None:
        self._titles = titles
        self._right = frozenset(right)
        self._rows: list[tuple[tuple[str, ...], str]] = []
        self._bars: list[tuple[float, float]] = []

    def add_row(self, *cells: str, style: str = "", bar: tuple[float, float] = (0, 0)) -> None:
        """`bar` is drawn on a terminal that has room for it: an amount, and the bad part of it."""
        self._rows.append((tuple(map(visible, cells)), style))
        self._bars.append(bar)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = zip(self._titles, *(cells for cells, _ in self._rows), strict=True)
        widths = [max(map(cell_len, column)) for column in columns]
        least = (
            width if title in self._right else min(width, _FOLDED_WIDTH)
            for title, width in zip(self._titles, widths, strict=True)
        )
        gaps = _GAP * (len(widths) - 1)
        if sum(widths) + gaps <= options.max_width:
            yield from self._lines(console, widths)
        elif sum(least) + gaps <= options.max_width:
            yield self._table()
        else:
            yield from self._records()

    def _lines(self, console: Console, widths: Sequence[int]) -> Iterator[Segment]:
        """A table that needs no folding, much faster than rich makes it: it may have many rows."""
        room = console.width - sum(widths) - _GAP * len(widths)
        most = max((amount for amount, _ in self._bars), default=0)
        drawn = console.is_terminal and most > 0 and room >= _LEAST_BAR
        scale = min(room, _MOST_BAR) / most if drawn else 0
        rows = ((self._titles, "table.header"), *self._rows)
        for (cells, style), bar in zip(rows, ((0.0, 0.0), *self._bars), strict=True):
            line = ""
            for title, cell, width in zip(self._titles, cells, widths, strict=True):
                blanks = " " * (width - cell_len(cell))
                line += (blanks + cell if title in self._right else cell + blanks) + " " * _GAP
            amount, bad = (round(part * scale) for part in bar)
            line = line if amount else line.rstrip()
            yield Segment(line, console.get_style(style or "none"))
            if amount:
                blocks = "=#" if console.options.ascii_only else "█▒"
                yield Segment(blocks[0] * (amount - bad), console.get_style("cyan"))
                yield Segment(blocks[1] * bad, console.get_style("red"))
            yield Segment.line()

    def _table(self) -> Table:
        made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for title in self._titles:
            if title in self._right:
                made.add_column(title, justify="right", no_wrap=True)
            else:
                made.add_column(title, overflow="fold")
        for cells, style in self._rows:
            made.add_row(*cells, style=style)
        return made

    def _records(self) -> Iterator[Text]:
        for index, (cells, style) in enumerate(self._rows):
            if index:
                yield Text()
            for title, cell in zip(self._titles, cells, strict=True):
                if cell:
                    yield Text(f"{title}: {cell}" if title else cell, style, overflow="fold")


def table(*titles: str, right: Iterable[str] = ()) -> Rows:
    """Columns in `right` hold figures, and are aligned to the right."""
    return Rows(titles, right)


def problem_lines(title: str, problems: Sequence[SkippedInput]) -> Iterator[Line]:
    if not problems:
        return
    yield f"\n{title}: {len(problems):,}", "bold"
    for one in problems[:_PROBLEMS]:
        yield f"  {one.place}: {one.reason}"
    if len(problems) > _PROBLEMS:
        yield f"  and {len(problems) - _PROBLEMS:,} more; --json has them all", "dim"


def tracked(items: Iterable[T], title: str, *, total: int) -> Iterator[T]:
    """The items, with a progress bar on standard error when there are many and it is a terminal."""
    if total < _LONG or not sys.stderr.isatty():
        yield from items
        return
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, title, total=total, console=console, transient=True)


def one_line(text: str, longest: int = 1000) -> str:
    """Without line breaks and control characters, cut to a length."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


class AnswerPrinter:
    """Prints the answer to standard output, and everything about it, dimmed, to standard error."""

    def __init__(self, *, quiet: bool, silent: bool) -> None:
        """`quiet` leaves out the notes; `silent` also the answer, which is only collected."""
        self.text = ""
        """The answer so far."""
        self._quiet = quiet
        self._silent = silent
        self._midline = False
        self._pieces = values.TextPieces(refusals=True)

    def show(self, event: object) -> None:
        """Print the text of a stream; reasoning and tool calls are left out."""
        if isinstance(event, values.ReplyStart):
            self.end_line()
        elif text := self._pieces.feed(event):
            self._write(text)

    def end_line(self) -> None:
        if self._midline:
            self._midline = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        if not self._quiet:
            line = one_line(text)
            self._print_error(for_stderr(line, _DIM))

    def warn(self, text: str) -> None:
        """Print a problem, even when quiet."""
        self._print_error(f"anaphora: {one_line(text)}")

    def _write(self, text: str) -> None:
        self.text += text
        if self._silent:
            return
        shown = answer_on(sys.stdout, text)
        sys.stdout.write(shown)
        sys.stdout.flush()
        self._midline = not shown.endswith("\n") if shown else self._midline

    def _print_error(self, line: str) -> None:
        self.end_line()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def answer_on(stream: IO[str], text: str) -> str:
    """A model's text as it is written to the stream: on a terminal without control characters,
    except line breaks and tabs."""
    return _CONTROL.sub("", text) if stream.isatty() else text


def for_stderr(line: str, code: int) -> str:
    """The line with an escape code, if standard error shows those."""
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    coloured = not os.environ.get("NO_COLOR") and (os.environ.get("FORCE_COLOR") or on_terminal)
    return f"\x1b[{code}m{line}\x1b[0m" if coloured else line


RESULT_COLOURS: dict[Result, str] = {
    "first": "dim",
    "hit": "green",
    "partial": "yellow",
    "miss": "red",
    "not_cacheable": "dim",
    "unknown": "dim",
}


#: Results whose cause is shown.
MISSED: tuple[Result, ...] = ("partial", "miss")


def detail_lines(verdict: Verdict, *, excerpts: bool = True) -> Iterator[Line]:
    """Lines after the sentence: further causes, both excerpts of a change, the prediction."""
    for cause in verdict.other_causes:
        yield f"    and {cause.text}"
    if verdict.change is not None and excerpts:
        before, after = verdict.change.excerpts
        yield f"    - {before}", "red"
        yield f"    + {after}", "green"
    if verdict.remedy is not None:
        yield f"    remedy: {one_line(str(verdict.remedy))}"
    expected, billed = verdict.predicted, verdict.billed
    if billed is not None and expected not in (None, billed) and verdict.result in MISSED:
        yield f"    predicted {expected:,} read, billed {billed:,}", "dim"


def learned_lines(rows: Iterable[LearnedRow]) -> Iterator[Line]:
    """Rules of the catalog that the bills contradict."""
    for line in dict.fromkeys(f"{row.provider}/{row.model}: {row.text}" for row in rows):
        yield visible(line)
