"""Prompt parts and callbacks of the wrong type are refused by name, and nothing is lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.emulated_client import LONG, connected
from support.tables import each_row

from anaphora import CachePolicy, Conversation, Message, PromptBlock, PromptIR, ToolRegistry
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.prompt import RenderedContext, Segment

MESSAGES = Conversation([Message.user("guide")])


async def save_async(message: Message) -> None:
    """Never awaited, so nothing would be saved."""


@each_row(
    "kind, fields, path",
    [
        (Segment, {"role": "stable_prefix", "messages": MESSAGES}, "Segment.role"),
        (Segment, {"role": "stabel", "messages": MESSAGES}, "Segment.role"),
        (PromptIR, {"segments": (Message.user("guide"),)}, "PromptIR.segments[0]"),
        (PromptIR, {"system_text": 5}, "PromptIR.system_text"),
        (PromptIR, {"system_blocks": ("text",)}, "PromptIR.system_blocks[0]"),
        (PromptBlock, {"label": "label", "text": 5}, "PromptBlock.text"),
        (PromptBlock, {"label": "label", "text": "text", "cache": "1h"}, "PromptBlock.cache"),
        (RenderedContext, {"turns": [Message.user("x")]}, "RenderedContext.turns"),
        (RenderedContext, {"state_turn": "now"}, "RenderedContext.state_turn"),
    ],
)
def test_part_of_the_wrong_type_is_named(
    kind: Callable[..., Any], fields: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        kind(**fields)
    assert caught.value.path == path


@pytest.mark.parametrize("save", [save_async, 5], ids=["async", "no function"])
def test_invalid_save_is_rejected(emu: Emulator, save: Any) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(InvalidRequest, match="save"):
                emulated.client.session("anthropic", save=save)

    asyncio.run(main())


def test_run_continues_when_the_first_message_cannot_be_saved(emu: Emulator) -> None:
    def save(message: Message) -> None:
        raise OSError("disk full")

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", tools=ToolRegistry(), save=save)
            ran = await chat.run("Hello?")
            assert ran.text
            assert len(chat.messages) == 2
            assert "save_failed" in {notice.code for notice in ran.notices}

    asyncio.run(main())


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
def test_changed_cache_policy_is_a_notice(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            block = PromptBlock("identity", LONG, CachePolicy.EPHEMERAL_1H)
            chat = emulated.client.session(name, model="gpt-5.6", system=[block])
            response = await chat.send("Hello?")
            found = [(notice.code, notice.path) for notice in response.notices]
            assert ("ttl_changed", "system[0]") in found

    asyncio.run(main())
