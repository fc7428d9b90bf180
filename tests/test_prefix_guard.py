"""The suite's own safety net must be able to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from anaphora import catalog
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.values import Conversation, Message
from anaphora.wire import anthropic

PROFILE = catalog.profile("anthropic", "claude-sonnet-4-5")


def call(conversation: Conversation, system: str) -> Call:
    ir = PromptIR.chat(conversation, system=[PromptBlock.cached_long("identity", system)])
    return Call(ir=ir, model="claude-sonnet-4-5", params=Params(max_tokens=64))


def test_a_broken_prefix_fails_the_test() -> None:
    history = Conversation([Message.user("hello")])
    first = anthropic.render(call(history, "It is 09:00."), PROFILE)
    with pytest.raises(AssertionError, match="does not begin with"):
        anthropic.render(call(history, "It is 09:01."), PROFILE, first)


def test_a_broken_prefix_is_seen_without_previous_too() -> None:
    history = Conversation([Message.user("hello")])
    anthropic.render(call(history, "It is 09:00."), PROFILE)
    with pytest.raises(AssertionError, match="does not begin with"):
        anthropic.render(call(history.append(Message.assistant("hi")), "It is 09:01."), PROFILE)


@pytest.mark.breaks_prefix(reason="shows that an exemption lets a planned break pass")
def test_an_exemption_lets_a_planned_break_pass() -> None:
    history = Conversation([Message.user("hello")])
    first = anthropic.render(call(history, "It is 09:00."), PROFILE)
    anthropic.render(call(history, "It is 09:01."), PROFILE, first)


def test_the_guard_covers_every_render() -> None:
    """Renderings are seen where tests call `anthropic.render`; a name imported past it is not."""
    here = Path(__file__).parent
    for file in sorted(here.rglob("test_*.py")):
        assert "anthropic import render" not in file.read_text().replace(__doc__ or "", "") or (
            file == Path(__file__)
        ), f"{file.relative_to(here)}: call anthropic.render instead"
