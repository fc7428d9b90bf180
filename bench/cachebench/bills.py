"""What the emulator billed for one family, and what became of its cache writes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec
import planner

from anaphora import catalog
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.verdict import SentCall
from anaphora.rendered import Plan
from anaphora.values import Usage

Json = dict[str, Any]
#: Errors that a result keeps.
_SHOWN = 2


class Bill(msgspec.Struct):
    family: str
    calls: int = 0
    refused: int = 0
    """Requests that the provider would refuse."""
    dollars: float = 0.0
    tokens: int = 0
    """Of all prompts."""
    read: int = 0
    written: int = 0
    wasted: int = 0
    """Written and not read before the end, or before they were written again."""
    cpu: list[float] = []
    """Seconds of the client's process, for each call."""
    errors: list[str] = []
    foresight: float | None = None
    """The dollars of perfect foresight for the same requests."""

    def add_answer(self, answer: Json) -> None:
        self.calls += 1
        self.cpu = [*self.cpu, answer["cpu"]]
        if "error" in answer and len(self.errors) < _SHOWN:
            self.errors = [*self.errors, answer["error"]]

    def add_entries(
        self, entries: list[Json], sent: Callable[[str, str], SentCall | None], singles: list[bool]
    ) -> None:
        """The entries of the emulator's journal, the oldest first."""
        writes, requests, output = _Writes(), list[planner.Request](), 0.0
        for entry in entries:
            if entry["status"] >= 400:
                self.refused += 1
            if "cost_usd" not in entry:
                continue
            written = sum(entry["written"].values())
            self.dollars += float(entry["cost_usd"] or 0.0)
            self.read += entry["read"]
            self.written += written
            self.tokens += entry["read"] + written + entry["uncached"]
            call = sent(entry["workspace"], entry["reply_id"])
            if call is None:
                continue
            writes.add(call, entry)
            output += _dollars(entry, Usage(uncached=0, read=0, written={}, output=entry["output"]))
            single = singles[len(requests)] if len(requests) < len(singles) else False
            requests.append(planner.Request(entry["at"], 0, call.rendered, single))
        self.wasted = writes.wasted()
        self.foresight = _foresight(entries, requests, output)


class _Writes:
    """Which written tokens were read later, by the content of their prefix."""

    def __init__(self) -> None:
        self._waiting: dict[Any, int] = {}
        self._lost = 0

    def add(self, call: SentCall, entry: Json) -> None:
        prompt, start = RenderedPrompt(call.rendered, Plan()), 0
        spans = [span for span in entry["spans"] if span["fate"] == "written"]
        for position in range(len(prompt)):
            end, key = prompt.tokens(position), prompt.key(position)
            if end <= entry["read"]:
                self._waiting.pop(key, None)
            elif any(span["start"] <= start and end <= span["end"] for span in spans):
                self._lost += self._waiting.pop(key, 0)
                self._waiting[key] = end - start
            start = end

    def wasted(self) -> int:
        return self._lost + sum(self._waiting.values())


def _dollars(entry: Json, usage: Usage) -> float:
    when = datetime.datetime.fromtimestamp(entry["at"], datetime.UTC)
    price = catalog.price(entry["provider"], entry["model"], when, wire=entry["wire"] or None)
    cost = None if price is None else price.of(usage)
    return 0.0 if cost is None else float(cost)


def _foresight(entries: list[Json], requests: list[planner.Request], output: float) -> float | None:
    """The least that these requests cost with any markers; None if the provider takes none."""
    if not requests:
        return None
    billed = next(entry for entry in entries if "cost_usd" in entry)
    rules = catalog.rules(billed["provider"], billed["model"], billed["wire"])
    if not rules.slots.value:
        return None
    unit = _dollars(billed, Usage(uncached=1000, read=0, written={}, output=0)) / 1000
    return planner.foresight(rules, requests) * unit + output
