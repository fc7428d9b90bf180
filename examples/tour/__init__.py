"""The tour that `anaphora demo` runs: one agent at every provider, with three prompt layouts. This
module has its conversation, read from story.yaml, and the repository that the agent works in."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import msgspec

from anaphora import ToolRegistry
from anaphora.emulator.replies.script import (
    Script,
    ScriptMatch,
    ScriptReply,
    ScriptRule,
    ScriptToolCall,
)
from anaphora.wording import counted


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: the user's message, if there is one, and the model's reply."""

    user: str = ""
    reply: str
    tools: tuple[dict[str, dict[str, Any]], ...] = ()

    @property
    def tool_calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [call for one in self.tools for call in one.items()]


class TourStop(msgspec.Struct, frozen=True):
    """A dialect and a model, as `anaphora models PROVIDER` lists them."""

    dialect: str
    model: str

    @property
    def provider(self) -> str:
        return self.dialect.partition("/")[0]


class Story(msgspec.Struct, frozen=True, kw_only=True):
    stops: tuple[TourStop, ...]
    identity: str
    knowledge: str
    goods: tuple[str, ...]
    sold: tuple[str, ...]
    files: dict[str, str]
    """The repository that the agent works in."""
    steps: tuple[Step, ...]
    afterwards: tuple[Step, ...]
    """Two turns after the twenty, for the planted prefix break."""


STORY = msgspec.yaml.decode(Path(__file__).with_name("story.yaml").read_bytes(), type=Story)
TURNS = len(STORY.steps)

#: Seconds between two turns.
PAUSE = 41

#: When the search tool's index was built; the tool's description holds it.
INDEXED = "2026-11-14 18:02:11"

_CENT = Decimal("0.01")


def rates() -> str:
    """A long table in the prompt that is the same in every call."""
    sales = [(goods, sold) for goods in STORY.goods for sold in STORY.sold]
    rows = [
        f"{100 + index:03}  {goods} {sold}: 0.{(5, 10, 20)[(index * 7 + len(goods)) % 3]:02}"
        for index, (goods, sold) in enumerate(sales)
    ]
    return "Rates from 2024-01-01, as the tax office sent them\n" + "\n".join(rows) + "\n"


def opening(turn: int) -> str:
    """The text by which the emulator's script recognises a turn."""
    return f"Turn {turn}."


def state(turn: int, failing: int, edited: list[str]) -> str:
    """The part of the prompt that differs in every call."""
    seconds = 9 * 3600 + 35 * 60 + PAUSE * turn
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return (
        f"{opening(turn)} It is {clock}. Tests failing: {failing}."
        f" Edited: {', '.join(edited) or 'nothing'}."
    )


def script() -> Script:
    """The emulator's replies: one rule for each turn and layout, matched by the state."""
    rules = []
    for turn, step in enumerate((*STORY.steps, *STORY.afterwards), 1):
        calls = [
            ScriptToolCall(name=name, arguments=arguments) for name, arguments in step.tool_calls
        ]
        reply = ScriptReply(text=step.reply, tool_calls=tuple(calls))
        rules += [
            ScriptRule(match=ScriptMatch(text=opening(turn)), reply=reply),
            ScriptRule(match=ScriptMatch(system=opening(turn)), reply=reply),
        ]
    return Script(tuple(rules))


# ── The repository ───────────────────────────────────────────────────────────────────────────────


class Workspace:
    """Four files, an archive of invoices, and a test run that depends on the files."""

    def __init__(self) -> None:
        self.files = dict(STORY.files)
        self.edited: list[str] = []

    def tools(self) -> ToolRegistry:
        registry = ToolRegistry()
        for function in (self.read_file, self.edit_file, self.run_tests, self.list_invoices):
            registry.add(function)
        self.index(registry, INDEXED)
        return registry

    def index(self, registry: ToolRegistry, built: str) -> None:
        """Add the search tool; the time in its description breaks the prefix when it changes."""
        description = (
            "Find lines that contain a text, in every file. Upper and lower case matter."
            f" Index built {built}."
        )
        registry.add(self.search, description=description, replace=True)

    def failing(self) -> int:
        return int("HALF_EVEN" in self.files["billing/invoice.py"])

    def read_file(self, path: str) -> str:
        """Read a file of the workspace.

        Args:
            path: Path relative to the root of the repository.
        """
        return self.files[path]

    def search(self, text: str, limit: int = 20) -> str:
        """Find lines that contain a text.

        Args:
            text: What to look for; taken literally.
            limit: How many lines to show at most.
        """
        hits = [
            f"{path}:{number}: {line.strip()}"
            for path, content in self.files.items()
            for number, line in enumerate(content.splitlines(), 1)
            if text in line
        ]
        return "\n".join(hits[:limit])

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file, everywhere it stands.

        Args:
            path: Path relative to the root of the repository.
            old: The text to replace, exactly as it stands in the file.
            new: What to put there instead.
        """
        count = self.files[path].count(old)
        self.files[path] = self.files[path].replace(old, new)
        self.edited.append(path)
        return f"{path}: {counted(count, 'replacement')}"

    def run_tests(self, path: str = "tests") -> str:
        """Run the test suite, or a part of it.

        Args:
            path: A folder or a file of tests.
        """
        if not self.failing():
            return f"{path}: 2 passed"
        return (
            f"{path}: 1 failed, 1 passed\n"
            "test_half_cents_go_up: assert Decimal('82.81') == Decimal('82.82')\n"
            "  where Decimal('82.81') = Invoice('2024-117', …).total()"
        )

    def list_invoices(self, month: str) -> str:
        """List the invoices of a month: amount before discount, rate, what was charged, what was
        right.

        Args:
            month: Year and month, as in 2024-05.
        """
        before = 24 * (int(month[5:]) - 1)
        rows = (_invoice_row(month, before + row) for row in range(1, 25))
        return "number    amount   rate  charged  right    difference\n" + "\n".join(rows)


def _invoice_row(month: str, number: int) -> str:
    """An archived invoice; 2024-117 is the one in the tests."""
    amount = Decimal(500 + (number * 7919 - 18_658) % 90_000) / 100
    rate = (Decimal("0.10"), Decimal("0.05"), Decimal("0.20"))[number % 3]
    net = amount * Decimal("0.90")
    charged, right = (
        net.quantize(_CENT, rule) + (net * rate).quantize(_CENT, rule)
        for rule in (ROUND_HALF_EVEN, ROUND_HALF_UP)
    )
    off = charged - right if charged != right else 0
    return f"{month[:4]}-{number:03}  {amount:<7.2f}  {rate}  {charged:<7}  {right:<7}  {off}"
