"""Two turns of one conversation are compared without looking at what they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.cache.verdict import SentCall, find_change, judge, preflight
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import ChunkLog, Rendered
from anaphora.tokens import Counts
from anaphora.values import Conversation, Message, Usage
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = catalog.rules("anthropic", MODEL)


def render(conversation: Conversation, previous: Rendered | None = None) -> Rendered:
    ir = PromptIR.chat(
        conversation, system=[PromptBlock.cached_long("identity", "You are careful. " * 400)]
    )
    call = Call(ir=ir, model=MODEL, params=Params(max_tokens=64))
    return anthropic.render(call, PROFILE, previous)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts the bytes that are copied out of logs meanwhile."""
    copied: list[int] = []
    slice_ = ChunkLog.slice

    def slicing(log: ChunkLog, start: int, end: int) -> bytes:
        copied.append(end - start)
        return slice_(log, start, end)

    with monkeypatch.context() as patched:
        patched.setattr(ChunkLog, "slice", slicing)
        yield copied


def test_a_turn_that_only_grows_copies_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation(
        Message.assistant(f"answer {at}") if at % 2 else Message.user(f"question {at}")
        for at in range(401)
    )
    one = render(conversation)
    two = render(conversation.append(Message.assistant("so"), Message.user("and then?")), one)
    plans = plan_once(one, RULES, reuse_expected=True), plan_once(two, RULES, reuse_expected=True)
    with watched(monkeypatch) as copied:
        assert find_change(SentCall(rendered=one, plan=plans[0]), SentCall(rendered=two)) is None
        assert preflight(one, two) == ()
    assert copied == []


def test_a_hit_costs_what_the_turn_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator keys blocks, each once: the first verdict pays for all, the next for two."""
    conversation = Conversation(
        Message.assistant(f"answer {at}") if at % 2 else Message.user(f"question {at}")
        for at in range(401)
    )
    sizes = []
    earlier = render(conversation)
    for turn in range(3):
        conversation = conversation.append(
            Message.assistant("so"), Message.user(f"and then {turn}?")
        )
        later = render(conversation, earlier)
        cached = Counts(earlier).total
        first = Usage(uncached=0, read=0, written={"5m": cached}, output=1)
        then = Usage(uncached=9, read=cached, written={}, output=1)
        with watched(monkeypatch) as copied:
            change = judge(
                SentCall(
                    rendered=earlier,
                    plan=plan_once(earlier, RULES, reuse_expected=True),
                    at=turn * 60.0,
                    usage=first,
                ),
                SentCall(
                    rendered=later,
                    plan=plan_once(later, RULES, reuse_expected=True),
                    at=turn * 60.0 + 60,
                    usage=then,
                ),
                RULES,
            )
        assert change.result == "hit"
        sizes.append(sum(copied))
        earlier = later
    assert sizes[0] > 10 * sizes[1]
    assert sizes[1] == sizes[2] < 200
