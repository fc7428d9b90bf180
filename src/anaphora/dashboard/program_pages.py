"""The pages about calls in memory: those of `anaphora watch` and of the emulator."""

from __future__ import annotations

from .pages.blocks import BlocksPage
from .pages.conversation import ConversationPage
from .pages.conversations import ConversationsPage
from .pages.what_if import WhatIfPage
from .past_calls.memory import MemoryCalls
from .site import Page, Section

PROGRAM_SECTIONS = (
    Section("", "Overview"),
    Section("conversations", "Conversations"),
    Section("blocks", "Blocks"),
    Section("what-if", "What if"),
)


def program_pages(overview: Page, source: MemoryCalls, start: str) -> dict[str, Page]:
    """By the names of the sections. `start` says how to send a first call."""
    return {
        "": overview,
        "conversations": ConversationsPage(source, start=start),
        "conversation": ConversationPage(source, no_text="no one text changed"),
        "blocks": BlocksPage(source, start=start),
        "what-if": WhatIfPage(source, start=start),
    }
