"""Verdicts against causes that are known: planted in conversations with the emulator, and marked in
recorded ones.

    wrong, missed, losses = planted(verdicts)

A verdict is wrong where it names a loss that is none, or another cause than the planted one. A loss
is missed where no verdict names it; `unknown` misses a loss that was planted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import virtual_time
from support.emulated_client import KEY, LONG, MODELS, settings
from support.paced_engine import PacedTransport, now
from support.planted_scripts import every_script, planted_run
from support.session_breaks import MOMENT, STEPS, STORY

from anaphora import AsyncClient, catalog
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.verdicts import TraceVerdict
from anaphora.cache.sent_call import ttl_seconds
from anaphora.cache.verdict import Verdict
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.engine import Engine
from anaphora.values import TTL_SECONDS

#: Providers of the sessions, by the names that the catalog has for them.
_SESSIONS = {
    "anthropic": "anthropic",
    "openai_responses": "openai",
    "openai_chat": "openai",
    "deepseek": "deepseek",
}
#: What a recording says began a call, and the cause that a verdict gives for it.
_BEGAN = {
    "resume": "resumed",
    "fork": "resumed",
    "compaction": "compaction",
    "edit": "history_edited",
}


class Judged(NamedTuple):
    """A verdict beside what was planted."""

    source: str
    name: str
    planted: frozenset[str]
    lost: bool
    """Whether less was read than had been cached."""
    verdict: Verdict

    @property
    def names_loss(self) -> bool:
        return self.verdict.result in ("partial", "miss") and self.verdict.cause is not None

    @property
    def is_wrong(self) -> bool:
        if not self.names_loss:
            return False
        return not self.planted or self.verdict.cause not in self.planted

    @property
    def is_missed(self) -> bool:
        return self.lost and bool(self.planted) and not self.names_loss


def planted(recorded: Iterable[tuple[Trace, TraceVerdict]] = ()) -> tuple[int, int, int]:
    """Wrong verdicts of loss, missed losses, and all losses whose cause is known. `recorded` are
    the verdicts on recorded calls, in the order of the calls."""
    judged = [*_planted_requests(), *_sessions(), *_marked(recorded)]
    _print(judged)
    wrong = sum(each.is_wrong for each in judged)
    missed = sum(each.is_missed for each in judged)
    return wrong, missed, sum(each.lost and bool(each.planted) for each in judged)


def _planted_requests() -> Iterator[Judged]:
    for place, name in every_script():
        run = planted_run(place, name)
        for call in run.calls:
            for source, verdict in (("watch", call.watched), ("explain", call.explained)):
                yield Judged(f"{source} {run.place}", run.name, call.planted, call.lost, verdict)


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────


def _sessions() -> Iterator[Judged]:
    for name in _SESSIONS:
        yield from virtual_time.run(_session(name))


async def _session(name: str) -> list[Judged]:
    lifetime = ttl_seconds(catalog.rules(_SESSIONS[name], MODELS[name]))
    transport = PacedTransport(Engine(EmulatorOptions(tool_calls=False)), first=0.4, whole=1.0)
    judged = []
    with _clock():
        client = AsyncClient.from_config(
            {"providers": settings("http://emulator.invalid", (name,))},
            environ={"KEY": KEY},
            transport=transport,
        )
        async with client:
            chat = client.session(name, system=LONG, on_prefix_break="off")
            for turn, (step, lifetimes, cause) in enumerate(STEPS):
                step(chat)
                await asyncio.sleep(MOMENT + lifetimes * lifetime)
                verdict = (await chat.send(f"Turn {turn}. {STORY}")).verdict
                assert verdict is not None
                causes = frozenset(() if cause is None else (cause,))
                judged.append(
                    Judged(f"session {name}", step.__name__, causes, cause is not None, verdict)
                )
    return judged


@contextmanager
def _clock() -> Iterator[None]:
    """The loop's time as that of the process."""
    with patch.object(time, "time", now):
        yield


# ── Recordings ───────────────────────────────────────────────────────────────────────────────────


def _marked(recorded: Iterable[tuple[Trace, TraceVerdict]]) -> Iterator[Judged]:
    """Calls of which the recording says what began their history, or that the model changed: the
    verdict is a hit, or names it."""
    models: dict[tuple[str | None, str], str] = {}
    lived: dict[tuple[str | None, str], float] = {}
    """The longest lifetime that each conversation has written for, in seconds."""
    for trace, one in recorded:
        call = trace.calls[one.predicted.call]
        own = trace.account, trace.id
        before, models[own] = models.get(own), one.model
        causes = set() if call.began_by is None else {_BEGAN[call.began_by]}
        if before not in (None, one.model):
            causes.add("model_changed")
        gap, written = one.predicted.gap, lived.get(own, 0.0)
        if call.usage is not None:
            ttls = [TTL_SECONDS[ttl] for ttl in call.usage.by_ttl if ttl != "unsplit"]
            lived[own] = max([written, *ttls])
        if causes and written and gap is not None and gap > written:
            causes.add("expired")  # the clock comes first
        if causes:
            lost = one.verdict.result in ("partial", "miss", "unknown")
            yield Judged("recorded", ", ".join(causes), frozenset(causes), lost, one.verdict)


def _print(judged: list[Judged]) -> None:
    print(f"{'planted':40} {'calls':>6} {'losses':>6} {'wrong':>6} {'missed':>6}")
    for name in dict.fromkeys(each.name for each in judged):
        some = [each for each in judged if each.name == name]
        losses = sum(each.lost and bool(each.planted) for each in some)
        wrong, missed = (sum(getattr(each, field) for each in some) for field in _FIELDS)
        print(f"{name:40} {len(some):6} {losses:6} {wrong:6} {missed:6}")
    for each in judged:
        if each.is_wrong or each.is_missed:
            print(f"  {each.source}, {each.name}: {each.verdict.describe(excerpts=False)}")
    print()


_FIELDS = ("is_wrong", "is_missed")


if __name__ == "__main__":
    print("wrong {}, missed {}, losses {}".format(*planted()))
