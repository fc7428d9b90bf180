"""Recorded conversations, sent over HTTP: the bills are the simulator's, to the token.

One side renders, plans and plays the simulator by itself. The other gets requests over HTTP, and has
nothing but the bytes: what it cuts them into, counts and bills has to be the same.

The recordings hold what was kept of a conversation, not always what was sent: calls that were broken
off have no results, some lack their first message. So nothing is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support import traces
from support.waiting import PATIENCE

from anaphora import catalog, emulator, wire
from anaphora.cache.plan import plan_once
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.generator import request_plan
from anaphora.emulator.server import Emulator
from anaphora.rendered import Plan, Rendered
from anaphora.values import Usage
from anaphora.wire.cutting import cut

pytestmark = pytest.mark.skipif(traces.missing() is not None, reason=str(traces.missing()))

#: Of each file so many conversations, and of each so many calls: long enough to grow.
CONVERSATIONS, CALLS = 6, 25
FILES = (
    "pi_claude",
    "claude_code",
    "deepseek_reasonix",
    "gemini_cli",
    "opencode_recordings",
    "inspect_openai",
)
#: Conversations that grow beyond the least that is cached.
LONG = ("pi_claude", "claude_code", "deepseek_reasonix")
KEYS = {"authorization": "Bearer k", "x-goog-api-key": "k", "anthropic-version": "2023-06-01"}


class Played:
    """A conversation as this side plays it."""

    def __init__(self, trace: traces.Trace) -> None:
        self.trace = trace
        provider, wire_name = trace.profile.provider, trace.sent[0].rendered.wire
        home = wire.PROVIDERS[wire_name] == provider
        self.name = wire_name if home else f"{provider}/{wire_name}"
        self.codec = wire.get(self.name)
        self.path = "" if home else f"/{provider}{wire.dialect_of(self.name).path}"
        self.rules = catalog.rules(provider, trace.sent[0].rendered.model, wire_name)
        self.simulator = Simulator(self.rules)

    def expected(self, rendered: Rendered, plan: Plan, at: float) -> Usage:
        prompt = RenderedPrompt(rendered, plan)
        return self.simulator.call(prompt, at=at, began=at, ended=at).usage()


def conversations(name: str) -> Iterator[Played]:
    found = [trace for trace in traces.traces(name) if trace.sent]
    yield from (Played(trace) for trace in found[:CONVERSATIONS])


@pytest.fixture(scope="module")
def lenient() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(strict=False, latency=Latency(first=0.0))) as running:
        yield running


@pytest.mark.parametrize("name", FILES)
def test_bill_equals_the_simulator(lenient: Emulator, name: str) -> None:
    emu = lenient
    calls = read = 0
    with httpx.Client(base_url=emu.url, headers=KEYS, timeout=PATIENCE) as client:
        for played in conversations(name):
            emu.reset()
            for index, sent in enumerate(played.trace.sent[:CALLS]):
                # Pauses below and above the lifetime of an entry.
                emu.advance(400 if index % 7 == 6 else 30)
                plan = plan_once(sent.rendered, played.rules, reuse_expected=True)
                request = played.codec.assemble(sent.rendered, plan)
                answer = client.post(
                    played.path or request.path,
                    content=request.body.join(),
                    headers=dict(request.headers),
                )
                assert answer.status_code == 200, answer.text
                billed = played.codec.read_reply(answer.content).usage
                at = _at(emu)
                seen = request_plan(
                    cut(played.codec, request.body.join(), request.path), played.rules
                )
                expected = played.expected(sent.rendered, seen, at)
                assert billed.input == expected.input
                assert billed.read in (expected.read, None)
                if billed.written:
                    assert billed.written_total == expected.written_total
                calls, read = calls + 1, read + (billed.read or 0)
    assert calls > 5
    assert read > 0 or name not in LONG


def _at(emu: Emulator) -> float:
    (entry,) = emu.engine.journal.entries(last=1)
    return float(entry["at"])
